# SPDX-License-Identifier: Apache-2.0
"""Time of `rlk-jit list` over a large cache: `cache_list.py PROGRAM [--entries N]`.

Makes a folder of N entries whose key and metadata are those of real kernels and whose payload is a
hole of real length: a listing does not read it. Runs the listing warm, and cold where the kernel's
caches may be dropped (root), and prints the least and the median of the wall times.
"""

import argparse
import hashlib
import json
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

COMPILER = "nvrtc-12.9-31f50d4d7c1c475a"
OPTIONS = [
    "--gpu-architecture=sm_90a",
    "-std=c++20",
    "--fmad=false",
    "--device-as-default-execution-space",
    "--ptxas-options=-v",
    "-DRLK_BACKWARD=0",
    "-DRLK_SHARED_LIMIT=232448",
]
PAYLOAD_BYTES = 57400
CHECKSUM_BYTES = 16
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def key(name: str) -> bytes:
    """The key of a kernel, as cache/key.hpp has it."""
    fields = [
        ("format", "1"),
        ("abi", "1"),
        ("backend", "cuda"),
        ("op", "linear_logp"),
        ("pass", "fwd"),
        ("template", hashlib.sha256(b"template").hexdigest()),
        ("specialization", name),
        ("target", "sm_90a"),
        *(("option", option) for option in OPTIONS),
    ]
    texts = (text.encode() for field in fields for text in field)
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def metadata(name: str, vocab: int) -> bytes:
    """The metadata of a kernel, as jit/metadata.cpp writes it."""
    fields = {
        "name": name,
        "target": "sm_90a",
        "generic": False,
        "compiler": COMPILER,
        "created": int(time.time()),
        "compile_ms": 429.590552,
        "code_bytes": 41600,
        "options": OPTIONS,
        "entries": [f"rlk_linear_logp_fwd_{step}" for step in ("rows", "pack", "main", "merge")],
        "constants": {"kX": 2, "kV": vocab, "kD": 4096},
        "registers": 168,
        "shared_bytes": 4224,
        "dynamic_shared_bytes": 65536,
        "local_bytes": 0,
        "spilled_bytes": 0,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def make_entries(folder: Path, num_entries: int) -> None:
    """Writes the entries; their checksum is zeros, which a listing does not look at."""
    for vocab in range(num_entries):
        name = f"linear_logp.fwd[x=bf16 V={vocab} D=4096 tile=128x192x64]@sm_90a"
        key_bytes, metadata_bytes = key(name), metadata(name, vocab)
        head = b"\x89RLK\r\n\x1a\n" + struct.pack(
            "<IIQQ", 1, len(key_bytes), len(metadata_bytes), PAYLOAD_BYTES
        )
        digest = hashlib.md5(key_bytes, usedforsecurity=False).hexdigest()
        path = folder / f"{digest}.{COMPILER}.rlk"
        with path.open("wb") as file:
            file.write(head + key_bytes + metadata_bytes)
            file.truncate(file.tell() + PAYLOAD_BYTES + CHECKSUM_BYTES)
        path.chmod(0o600)


def list_seconds(words: list[str]) -> float:
    """Wall time of one run of the program."""
    start = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def drop_caches() -> bool:
    """Forgets what the kernel knows of every file; whether that is allowed."""
    try:
        subprocess.run(["sync"], check=True)
        DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True


def measure(program: str, folder: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds of each run, by kind."""
    base = [program, "--cache-dir", str(folder), "list"]
    seconds: dict[str, list[float]] = {}
    for kind, words in (("table", base), ("json", [*base, "--json"])):
        list_seconds(words)
        seconds[f"{kind}, warm"] = [list_seconds(words) for _ in range(repeats)]
        if drop_caches():
            seconds[f"{kind}, cold"] = [list_seconds(words)]
    return seconds


def main() -> None:
    """Makes the folder, or takes one that an earlier run has made, and prints a line a kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="path of rlk-jit")
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="made if absent, and kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlk-list-") as scratch:
        folder = args.folder or Path(scratch) / "cache"
        if not folder.exists():
            folder.mkdir(mode=0o700)
            make_entries(folder, args.entries)
        for kind, seconds in measure(args.program, folder, args.repeats).items():
            print(
                f"{kind:12} {min(seconds):6.2f} s least, {statistics.median(seconds):6.2f} s median"
            )


if __name__ == "__main__":
    main()
