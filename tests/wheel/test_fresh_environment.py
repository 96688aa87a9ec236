# SPDX-License-Identifier: Apache-2.0
"""The wheel in a new virtual environment that has NumPy alone."""

import json
import subprocess
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("job.py")


@pytest.fixture
def run(venv, environment, tmp_path):
    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [venv / "bin" / program, *arguments],
            env=environment | {"RLK_CACHE_DIR": str(venv.parent / "cache")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert done.stderr == ""
        return done.stdout

    return run


def test_pip_brings_numpy_alone(run):
    listed = json.loads(
        run("python", "-m", "pip", "--disable-pip-version-check", "list", "--format=json")
    )
    names = {package["name"] for package in listed}
    assert names - {"pip", "setuptools"} == {"numpy", "rlk"}


def test_it_computes(run, venv):
    told = json.loads(run("python", str(JOB)))
    assert told["variants"] == ["specialized", "generic"]
    assert told["compiles"] == 2
    assert Path(told["package"]).is_relative_to(venv)


def test_the_commands_run(run):
    run("python", str(JOB))
    listed = json.loads(run("rlk-jit", "--json", "list"))
    layers = {entry["layer"] for entry in listed}
    assert len(layers) == 2, layers
    doctor = run("rlk-jit", "doctor")
    assert "librlk_llvm.so, tried in" in doctor
    assert "not stored" not in doctor
    # NumPy alone has no bfloat16.
    dtypes = ("--dtype", "fp32", "--dtype", "fp16")
    checked = run("rlk-check", "--vocab", "65", "--hidden", "32", "--grad", "--quiet", *dtypes)
    assert " 0 failed" in checked
