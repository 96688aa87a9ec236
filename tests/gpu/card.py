# SPDX-License-Identifier: Apache-2.0
"""What a run on a GPU machine ran on: card, driver and versions."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "gpu_pack"
PACKAGES = ("torch", "triton", "cupy-cuda13x", "jax", "numpy", "pytest", "nvidia-cuda-nvrtc")


def ask(*command: str) -> str:
    """Its output, or why there is none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    return done.stdout.strip() or f"(status {done.returncode})"


def commit() -> str:
    """Of the tree, or the one that the pack was made at."""
    packed = PACK / "commit"
    found = ask("git", "describe", "--always", "--dirty")
    return packed.read_text().strip() if found.startswith("(") and packed.exists() else found


def wheel_nvrtc() -> Path | None:
    """libnvrtc.so.13 of the installed wheel."""
    try:
        files = distribution("nvidia-cuda-nvrtc").files or []
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.name == "libnvrtc.so.13"]
    return found[0] if found else None


def version(package: str) -> str:
    try:
        return distribution(package).version
    except PackageNotFoundError:
        return "none"


def facts() -> str:
    """One fact a line."""
    query = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.mem"
    builtin = set()
    for archive in PACK.glob("builtin.tar.xz"):
        with tarfile.open(archive) as packed:
            builtin = {name.split(".", 1)[1] for name in packed.getnames()}
    lines = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "commit": commit(),
        "card": ask("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"),
        "linux": ask("uname", "-r"),
        "g++": ask("g++", "--version").splitlines()[0],
        "nvcc": ask("/usr/local/cuda/bin/nvcc", "--version").splitlines()[-1],
        "sanitizer": ask("/usr/local/cuda/bin/compute-sanitizer", "--version").splitlines()[-1],
        "python": sys.version.split()[0],
        **{package: version(package) for package in PACKAGES},
        "built-in layer": ", ".join(sorted(builtin)),
    }
    return "".join(f"{name:18} {value}\n" for name, value in lines.items())
