# SPDX-License-Identifier: Apache-2.0
"""Compiles what a first step of known models needs, and writes it into one pack for rlk-jit import.

make_pack.py PACK FOLDER [--arch sm_90a ...] [--head V=151936,D=4096 ...] [--cuda 12]

A step is linear_logp under no_grad and with gradients, with and without the entropy that trainers
log, its backward, and the losses of losses.txt. No GPU is needed. FOLDER keeps what was compiled
for the next time. The same kernels give the same bytes, whatever else the folder has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from rlk._program import command

HERE = Path(__file__).parent
ARCHS = ["sm_80", "sm_90a"]


def lines_of(path: Path) -> list[str]:
    """Those that are more than a comment, without it."""
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line]


def rlk_jit(folder: Path, *arguments: str) -> Any:
    """What it says over this cache folder, as JSON; settings of the caller do not count."""
    words = command(["--cache-dir", str(folder), "--json", *arguments])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RLK_")}
    done = subprocess.run(words, env=kept, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def warm(folder: Path, what: str, *arguments: str) -> list[str]:
    """The keys of the kernels, all of which are in the folder then."""
    told = rlk_jit(folder, "warm", "--reproducible", *arguments)
    kernels = told["kernels"]
    compiled = sum(kernel["outcome"] == "compiled" for kernel in kernels)
    print(f"{what}: {compiled} of {len(kernels)} compiled, {told['seconds']:.1f} s", flush=True)
    return [kernel["key"] for kernel in kernels]


def make(pack: Path, folder: Path, archs: list[str], heads: list[str], cuda: int | None) -> None:
    """Compiles into the folder what it lacks, and exports what is asked for."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    losses = folder / "losses.txt"
    names = [f"{name}@{arch}" for name in lines_of(HERE / "losses.txt") for arch in archs]
    losses.write_text("".join(f"{name}\n" for name in names))
    by = ["--cuda", str(cuda)] if cuda else []
    keys = warm(folder, "losses", *by, "--trace", str(losses))
    targets = [word for arch in archs for word in ("--arch", arch)]
    for head in heads:
        kernels = ["--op", "linear_logp", "--dtype", "bf16", *targets, head]
        keys += warm(folder, f"{head} forward", *by, "--pass", "fwd", "--entropy", *kernels)
        keys += warm(folder, f"{head} backward", *by, "--pass", "bwd", *kernels)
    # A manifest would have preload() load the kernels of all models.
    (folder / "manifest.json").unlink()
    pack.parent.mkdir(parents=True, exist_ok=True)
    told = rlk_jit(folder, "export", str(pack), *keys)
    if told["entries"] != len(set(keys)):
        raise SystemExit(f"{pack}: expected {len(set(keys))} kernels, got {told['entries']}")
    print(f"{told['entries']} kernels, {told['bytes']} bytes, sha256 {told['sha256']}: {pack}")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", action="append", help=f"a target; without it {ARCHS}")
    parser.add_argument("--head", action="append", help="a head; without it those of heads.txt")
    parser.add_argument("--cuda", type=int, help="compile by NVRTC of this CUDA major")
    options = parser.parse_args()
    heads = options.head or lines_of(HERE / "heads.txt")
    make(options.pack, options.folder, options.arch or ARCHS, heads, options.cuda)


if __name__ == "__main__":
    main()
