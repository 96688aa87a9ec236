# SPDX-License-Identifier: Apache-2.0
"""What processes record in the cache folder, and what rlk-jit makes of it."""

import json
import subprocess
from pathlib import Path

from processes import CALL, entries, run_python

from rlk import _cli


def rlk_jit(cache: Path, *arguments: str, code: int = 0):
    command = _cli.command(["--cache-dir", str(cache), "--json", *arguments])
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == code, ended
    return json.loads(ended.stdout)


def test_first_calls_of_processes_are_counted(tmp_path):
    cache = tmp_path / "cache"
    loop = "for _ in range(5): call()\nreport()"
    for _ in range(3):
        run_python(loop, RLK_CACHE_DIR=str(cache))
    stats = rlk_jit(cache, "stats", "linear_logp.fwd[x=f32 V=50 D=8]")
    (kernel,) = stats["kernels"]
    assert (kernel["hits"], kernel["compiles"], kernel["failed"]) == (2, 1, 0)
    assert kernel["compile_ms"] > 0
    assert stats["cache"]["entries"] == len(entries(cache)) == 1


def test_explain_says_what_a_process_then_does(tmp_path):
    cache = tmp_path / "cache"
    run_python(CALL, RLK_CACHE_DIR=str(cache))
    (kernel,) = rlk_jit(cache, "stats")["kernels"]
    name = kernel["name"]
    assert rlk_jit(cache, "explain", name)["does"] == "load"
    assert run_python(CALL, RLK_CACHE_DIR=str(cache)).report["disk_hits"] == 1
    other = name.replace("V=50", "V=51")
    told = rlk_jit(cache, "explain", other, code=1)
    assert (told["does"], told["nearest"]["name"]) == ("compile", name)
    assert told["nearest"]["field"] == "specialization"
    assert run_python("call(51)\nreport()", RLK_CACHE_DIR=str(cache)).report["compiles"] == 1


def test_a_process_that_never_compiles_counts_fallbacks(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    run_python(CALL, RLK_CACHE_DIR=str(cache), RLK_JIT="off")
    kernels = {kernel["name"]: kernel for kernel in rlk_jit(cache, "stats")["kernels"]}
    assert sorted((one["hits"], one["fallbacks"]) for one in kernels.values()) == [(0, 1), (1, 0)]
