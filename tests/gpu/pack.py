# SPDX-License-Identifier: Apache-2.0
"""What ./dev gpu-pack runs: gathers in one folder what a GPU machine without network lacks.

python tests/gpu/pack.py BUILTIN_LAYER LIBNVRTC_12

headers/   header-only libraries, of this system's packages
builtin.tar.xz   the built-in CUDA kernels, made here by NVRTC 12.9
wheels/    pybind11, and the Python packages of benchmarks/peers.txt
nvrtc-12.9.tar.xz   that NVRTC, to be compared with the machine's own
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import card
from card import PACK

MOST_MIB = 60
PYTHON = "3.12"  # of the GPU machine
HEADERS = ("spdlog", "fmt", "CLI", "nlohmann", "xxhash.h", "xxh3.h")


def stamped(stamp: Path, content: str) -> bool:
    return stamp.exists() and stamp.read_text() == content


def pack_headers(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in HEADERS:
        source = Path("/usr/include") / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)


def pack_builtin(layer: Path, archive: Path) -> None:
    entries = sorted(layer.glob("*.nvrtc-*.rlk"))
    if not entries:
        raise SystemExit(f"gpu-pack: no CUDA kernels in {layer}: was NVRTC 12.9 found?")
    with tarfile.open(archive, "w:xz", preset=1) as packed:
        for entry in entries:
            packed.add(entry, entry.name)


def pack_wheels(requirements: str, folder: Path) -> None:
    stamp = folder / "requirements.txt"
    if stamped(stamp, requirements):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    wanted = folder / "wanted.txt"
    wanted.write_text(requirements)
    # Pure Python alone, so that unpacking them is enough.
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"),
            *(f"--python-version={PYTHON}", "--platform=any", "-d", folder, "-r", wanted),
        ],
        check=True,
    )
    wanted.rename(stamp)


def pack_nvrtc(library: Path, folder: Path) -> None:
    """A minute of work, so it is done anew only for another library."""
    stamp = folder / "nvrtc.sha256"
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    if stamped(stamp, digest):
        return
    with tarfile.open(folder / "nvrtc-12.9.tar.xz", "w:xz") as archive:
        for file in (library, *library.parent.glob("libnvrtc-builtins.so.12.*")):
            archive.add(file, file.name)
    stamp.write_text(digest)


def main(layer: Path, library: Path) -> int:
    folder = PACK
    folder.mkdir(exist_ok=True)
    pack_headers(folder / "headers")
    pack_builtin(layer, folder / "builtin.tar.xz")
    peers = (card.ROOT / "benchmarks" / "peers.txt").read_text()
    pack_wheels(f"pybind11>=3.0,<4\n{peers}", folder / "wheels")
    pack_nvrtc(library, folder)
    (folder / "commit").write_text(card.ask("git", "describe", "--always", "--dirty"))
    mib = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / (1 << 20)
    print(f"{folder}: {mib:.1f} MiB")
    if mib >= MOST_MIB:
        print(f"gpu-pack: expected less than {MOST_MIB} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
