# SPDX-License-Identifier: Apache-2.0
"""The wheel where there is nothing besides: LLVM comes with it, NVRTC does not."""

import json
import os
from pathlib import Path

JOB = Path(__file__).with_name("job.py").read_text()


def test_the_root_is_bare(bare):
    assert not {"proc", "dev", "bin", "sbin", "sys"} & set(os.listdir(bare.root))
    programs = [
        path.relative_to(bare.root)
        for path in bare.root.rglob("*")
        if path.is_file() and path.parent.name in ("bin", "sbin")
    ]
    assert len(programs) == 2, programs  # the interpreter and rlk-jit


def test_the_cpu_path_compiles(bare):
    done = bare.run("-c", JOB)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["variants"] == ["specialized", "generic"]
    assert told["compiles"] == 2


def test_without_llvm_the_generic_kernels_run(bare):
    site = bare.without_llvm()
    done = bare.run("-c", JOB, site=site, RLK_CACHE_DIR="/home/other")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["variants"] == ["generic", "generic"]
    assert (told["compiles"], told["fallbacks"] > 0) == (0, True)
    (warning,) = done.stderr.splitlines()
    assert "librlk_llvm.so is missing" in warning


def test_without_nvrtc_it_says_what_to_install(bare):
    done = bare.run("-m", "rlk._cli", "doctor")
    assert done.returncode == 0, done.stderr
    lines = {line[4:].split()[0]: line for line in done.stdout.splitlines()}
    assert "libcuda.so.1" in lines["driver"]
    assert "install nvidia-cuda-nvrtc-cu12" in lines["nvrtc"]
    done = bare.run("-m", "rlk._cli", "warm", "--arch", "sm_90a", "V=512,D=64")
    assert done.returncode == 1
    assert "no NVRTC found: install nvidia-cuda-nvrtc-cu12" in done.stderr


def test_a_health_check_is_content_where_nothing_is_to_be_written(bare):
    """As in a container with a read-only root file system and RLK_JIT=off."""
    command = ("-m", "rlk._cli", "doctor", "--strict")
    off = bare.run(*command, HOME="/nowhere", RLK_JIT="off")
    assert "cannot be written" in off.stdout
    assert off.returncode == 0, off.stdout
    assert bare.run(*command, HOME="/nowhere").returncode == 1


def test_cuda_kernels_are_in_it_all_the_same(bare):
    done = bare.run("-m", "rlk._cli", "--json", "list")
    assert done.returncode == 0, done.stderr
    targets = {entry["target"] for entry in json.loads(done.stdout)}
    assert {"sm_80", "sm_90a", "sm_120", "compute_80"} <= targets
