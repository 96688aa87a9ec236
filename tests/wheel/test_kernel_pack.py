# SPDX-License-Identifier: Apache-2.0
"""The pack of a release beside its wheel, in an environment that can compile nothing for a GPU."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHS = ("sm_80", "sm_90a")


def lines_of(name: str) -> list[str]:
    text = (ROOT / "release" / name).read_text()
    lines = [each.partition("#")[0].strip() for each in text.splitlines()]
    return [each for each in lines if each]


HEADS = lines_of("heads.txt")


@pytest.fixture(scope="module")
def imported(venv, environment, tmp_path_factory) -> Path:
    """A folder with the pack's kernels."""
    pack = os.environ.get("RLK_TEST_PACK")
    if not pack:
        pytest.skip("RLK_TEST_PACK names no pack of kernels, which ./dev release makes")
    folder = tmp_path_factory.mktemp("pack") / "kernels"
    program = venv / "bin/rlk-jit"
    subprocess.run([program, "--cache-dir", folder, "import", pack], env=environment, check=True)
    return folder


@pytest.fixture
def rlk_jit(venv, environment, imported, tmp_path):
    """Runs it with the pack's folder as a read-only layer, as a job would."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    variables = environment | {"RLK_CACHE_DIR": str(cache)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [venv / "bin/rlk-jit", "--layer", imported, "--json", *arguments]
        return subprocess.run(words, env=variables, capture_output=True, text=True, check=False)

    return run


def test_the_heads_are_thirty_different_ones():
    assert len(set(HEADS)) == len(HEADS) == 30
    assert all(re.fullmatch(r"V=\d+,D=\d+", head) for head in HEADS)


def test_a_first_step_of_a_known_model_compiles_nothing(rlk_jit):
    archs = [word for arch in ARCHS for word in ("--arch", arch)]
    for words in (("--pass", "fwd", "--entropy"), ("--pass", "bwd")):
        done = rlk_jit("warm", "--op", "linear_logp", *archs, *words, *HEADS)
        assert done.returncode == 0, done.stderr
        kernels = json.loads(done.stdout)["kernels"]
        assert len(kernels) >= len(HEADS) * len(ARCHS)
        assert {each["outcome"] for each in kernels} == {"present"}
    for name in lines_of("losses.txt"):
        for arch in ARCHS:
            assert rlk_jit("explain", f"{name}@{arch}").returncode == 0, name


def test_another_head_is_not_in_it(rlk_jit):
    name = "linear_logp.fwd[x=bf16 V=131 D=64]@sm_80"
    assert rlk_jit("explain", name).returncode == 1


def test_drivers_from_cuda_12_on_can_load_it(imported, rlk_jit):
    listed = json.loads(rlk_jit("list").stdout)
    compilers = {each["compiler"] for each in listed if Path(each["path"]).parent == imported}
    assert len(compilers) == 1
    assert compilers.pop().startswith("nvrtc-12.")


def test_it_lists_nothing_to_load_at_start(imported):
    """preload() would load the kernels of thirty models."""
    assert not (imported / "manifest.json").exists()
