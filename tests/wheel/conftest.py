# SPDX-License-Identifier: Apache-2.0
"""The wheel that ./dev has built, unpacked, installed beside NumPy, and laid into a bare root."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import bare_root
import pytest


@pytest.fixture(scope="session")
def wheel() -> Path:
    path = os.environ.get("RLK_TEST_WHEEL")
    if not path:
        pytest.fail("RLK_TEST_WHEEL names no wheel; run ./dev wheel test", pytrace=False)
    return Path(path)


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pip would put into site-packages."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        for file in archive.infolist():
            path = Path(archive.extract(file, folder))
            path.chmod(0o755 if file.external_attr >> 16 & 0o111 else 0o644)
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The caller's, without what leads to another rlk or sets this one; a cache of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RLK_", "PYTHON", "LD_", "CUDA_"))
    }
    return kept | {"RLK_CACHE_DIR": str(tmp_path_factory.mktemp("home") / "cache")}


def pythons() -> list[str]:
    """The interpreters that the wheel is for: of a release several, else this one."""
    named = os.environ.get("RLK_TEST_PYTHONS", "").split(":")
    return [each for each in named if each] or [sys.executable]


def facts_of(interpreter: str) -> tuple[str, str]:
    """Its tag, as cp311, and the end of its extension modules' names."""
    code = (
        "import sys, sysconfig;"
        "print(f'cp3{sys.version_info.minor}', sysconfig.get_config_var('EXT_SUFFIX'))"
    )
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True)
    tag, suffix = done.stdout.split()
    return tag, suffix


@pytest.fixture(scope="session")
def bindings() -> dict[str, str]:
    """The name of the compiled module by the tag of its Python, for each that the wheel is for."""
    return {tag: f"_core{suffix}" for tag, suffix in map(facts_of, pythons())}


@pytest.fixture(scope="session", params=pythons(), ids=lambda each: facts_of(each)[0])
def venv(request, wheel: Path, tmp_path_factory: pytest.TempPathFactory, environment) -> Path:
    """A new environment that has the wheel and what pip brings along, which is NumPy alone."""
    folder = tmp_path_factory.mktemp("venv") / "an environment"
    subprocess.run([request.param, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--quiet", wheel], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def bare(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> bare_root.BareRoot:
    return bare_root.make(tmp_path_factory.mktemp("bare"), unpacked)
