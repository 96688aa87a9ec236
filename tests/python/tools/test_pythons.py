# SPDX-License-Identifier: Apache-2.0
"""What CMake says of an interpreter in RLK_PYTHONS that no module can be built for."""

import shutil
import subprocess
import sys

import pytest
from paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")


def configure(pythons: str) -> tuple[int, str]:
    defined = {"Python_EXECUTABLE": sys.executable, "RLK_PYTHONS": pythons}
    options = [f"-D{name}={value}" for name, value in defined.items()]
    done = subprocess.run(
        ["cmake", *options, "-P", ROOT / "cmake/Pythons.cmake"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join(done.stderr.split())


def test_no_other_python_is_needed():
    assert configure("") == (0, "")


@pytest.mark.parametrize("missing", ["/no/such/python3.12", "python3.99", "/etc", "/bin/true", ";"])
def test_an_interpreter_that_will_not_do_is_named(missing):
    status, said = configure(missing)
    assert status != 0
    expected = "RLK_PYTHONS: expected interpreters of CPython 3.11 or later with headers, got"
    assert f"{expected} '{missing.strip(';')}'" in said


def test_a_second_interpreter_of_one_version_is_named():
    status, said = configure(sys.executable)
    assert status != 0
    assert "RLK_PYTHONS: expected" in said
    assert f"'{sys.executable}'" in said
