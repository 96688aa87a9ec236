# SPDX-License-Identifier: Apache-2.0
"""The kernels that ship with rlk: which there are, their size, and that no GPU kernel spills."""

import json
import subprocess
from importlib.metadata import files
from pathlib import Path

import pytest

from rlk import _cli

CPU_TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
CUBIN_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
TARGETS = (*CPU_TARGETS, *CUBIN_TARGETS, "compute_80")


def rlk_jit(cache: Path, *arguments: str):
    command = _cli.command(["--cache-dir", str(cache), "--json", *arguments])
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    """Those of the built-in layer, each with its metadata, by name."""
    cache = tmp_path_factory.mktemp("cache")
    listed = [entry for entry in rlk_jit(cache, "list") if entry["layer"] == "built-in"]
    return {
        entry["name"]: entry | rlk_jit(cache, "show", entry["key"])["metadata"] for entry in listed
    }


def test_every_pass_dtype_and_target_has_a_generic_kernel(entries):
    every = ("f32", "bf16", "f16")
    dtypes = {
        "linear_logp.fwd": every,
        "linear_logp.bwd": every,
        "logp.fwd": every,
        "logp.bwd": every,
        "ratio_kl.fwd": ("f32",),
        "ratio_kl.bwd": ("f32",),
        "ppo_loss.fwd": ("f32",),
        "ppo_loss.bwd": every,
        "group_advantages.fwd": ("f32",),
        "grpo_loss.bwd": every,
        "det_gemm.fwd": every,
    }
    assert entries.keys() == {
        f"{kernel}[x={dtype} generic]@{target}"
        for kernel, found in dtypes.items()
        for dtype in found
        for target in TARGETS
        # On the CPU grpo_loss is the others, one after the other.
        if not (kernel.startswith("grpo_loss") and target.startswith("x86"))
    }


def test_the_layer_is_small(entries):
    assert sum(entry["file_bytes"] for entry in entries.values()) < 30 << 20


def test_cuda_kernels_are_of_nvrtc_12_9(entries):
    compilers = {entry["compiler"] for name, entry in entries.items() if "x86-64" not in name}
    assert len(compilers) == 1
    assert compilers.pop().startswith("nvrtc-12.9-")


def test_no_gpu_kernel_spills(entries):
    cubins = [entry for entry in entries.values() if entry["target"] in CUBIN_TARGETS]
    assert cubins
    for entry in cubins:
        assert (entry["spilled_bytes"], entry["local_bytes"]) == (0, 0), entry["name"]


def test_ptxas_takes_the_ptx(entries, tmp_path):
    """What the driver does at load: a word newer than the PTX's own version is an error there."""
    (ptxas,) = (f.locate() for f in files("nvidia-cuda-nvcc-cu12") if f.name == "ptxas")
    ptx = tmp_path / "kernel.ptx"
    names = [name for name in entries if name.endswith("@compute_80")]
    assert names
    for name in names:
        shown = _cli.command(["--cache-dir", str(tmp_path), "show", "--ptx", entries[name]["key"]])
        ptx.write_bytes(subprocess.run(shown, capture_output=True, check=True).stdout)
        assembled = [ptxas, "-arch=sm_90", "-O0", "-o", tmp_path / "kernel.cubin", ptx]
        done = subprocess.run(assembled, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr[:2000]}"
