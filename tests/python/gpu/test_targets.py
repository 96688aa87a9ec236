# SPDX-License-Identifier: Apache-2.0
"""The PTX path, forced: accuracy and invariance hold within a target, whatever bits it has."""

import os
import subprocess
import sys

import pytest
from paths import ROOT

OP = ROOT / "tests/python/linear_logp"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("RLK_TEST_ARCH" in os.environ, reason="RLK_TEST_ARCH forces one already"),
]


def test_compute_80_passes_the_same_tests():
    # In a process of its own, where no kernel of the card's own target can be in the way.
    files = [str(OP / f"test_{name}.py") for name in ("values", "invariance")]
    # Warnings of other packages were let pass or not by whoever runs this test.
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env={**os.environ, "RLK_TEST_ARCH": "compute_80"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
