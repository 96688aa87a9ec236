# SPDX-License-Identifier: Apache-2.0
"""Kernels that one machine compiled run on another after export and import."""

import hashlib
import subprocess
from pathlib import Path

from processes import CALL, entries, run_python

from rlk import _cli


def rlk_jit(cache: Path, *arguments: str) -> list[str]:
    command = _cli.command(["--cache-dir", str(cache), *arguments])
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended
    return ended.stdout.splitlines()


def test_a_pack_saves_the_other_machine_every_compile(tmp_path):
    here, there, pack = tmp_path / "here", tmp_path / "far/away", tmp_path / "kernels.pack"
    made = run_python(CALL, RLK_CACHE_DIR=str(here)).report
    assert made["compiles"] == 1
    sha256 = rlk_jit(here, "export", str(pack))[1].removeprefix("sha256 ")
    assert sha256 == hashlib.sha256(pack.read_bytes()).hexdigest()
    rlk_jit(there, "import", str(pack), "--sha256", sha256)
    assert entries(there) == entries(here)
    got = run_python(CALL, RLK_CACHE_DIR=str(there)).report
    assert (got["compiles"], got["disk_hits"], got["llvm"]) == (0, 1, False)
    assert got["logp"] == made["logp"]
    # And back: the same bytes, though the files are younger and one was used.
    assert rlk_jit(there, "export", str(tmp_path / "again"))[1] == f"sha256 {sha256}"
