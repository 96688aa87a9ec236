# SPDX-License-Identifier: Apache-2.0
"""The first GRPO step of a process: with an empty cache, and with the pack of kernels of a release.

A step is the old log-probs with their entropy, linear_grpo_loss, and its backward. Each sample is a
fresh process, in which torch, autograd and the device are up before the clock starts; what it times
is rlk alone: its import, what it compiles, loads and runs. With the pack nothing may be compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import environment, median_and_range, print_table, run_child, write_json

from rlk._program import command

PROCESSES = 5
#: Of release/heads.txt: Qwen3 0.6B, Llama 3.1 8B, Qwen2.5 7B, gpt-oss.
HEADS = ["V=151936,D=1024", "V=128256,D=4096", "V=152064,D=3584", "V=201088,D=2880"]


def sample(head: str, rows: int, device: str) -> None:
    """One process: prints JSON."""
    import torch

    vocab, dim = (int(word.partition("=")[2]) for word in head.split(","))

    def real(*shape: int) -> Any:
        return (0.02 * torch.randn(shape, device=device)).bfloat16().requires_grad_()

    num_sequences = 8
    hidden, weight = real(num_sequences, rows // num_sequences, dim), real(vocab, dim)
    ids = torch.randint(vocab, hidden.shape[:2], device=device)
    mask = torch.ones(ids.shape, device=device)
    rewards = torch.rand(num_sequences, device=device)
    # Autograd's own first use, and a kernel of torch.
    torch.autograd.grad((hidden.float() * 2).sum(), hidden)

    def wait() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    start = wait()
    import rlk.jit

    with torch.no_grad():
        old = rlk.jit.linear_logp(hidden, weight, ids, mask=mask, return_entropy=True)
    log_probs = wait()
    loss, _, _ = rlk.jit.linear_grpo_loss(
        hidden, weight, ids, old.log_prob, rewards, mask, samples_per_prompt=4, beta=0.0
    )
    loss.backward()
    end = wait()
    found = {"log_probs_ms": 1e3 * (log_probs - start), "step_ms": 1e3 * (end - start)}
    rlk.jit.wait()  # for what nobody has waited for
    print(json.dumps(found | rlk.jit.cache_info()._asdict()))


def measure(layer: Path, head: str, rows: int, device: str, processes: int) -> dict[str, Any]:
    """Every process's figures; an empty cache and the pack by turns."""
    runs: dict[str, list[dict[str, Any]]] = {"empty": [], "pack": []}
    for _ in range(processes):
        for kind in runs:
            with tempfile.TemporaryDirectory(prefix="rlk-bench-") as cache:
                places = {
                    "RLK_CACHE_DIR": cache,
                    "RLK_CACHE_PATH": str(layer) if kind == "pack" else "",
                    "CUDA_CACHE_PATH": f"{cache}/driver",
                }
                words = [__file__, "--one", head, "--device", device, "--rows", str(rows)]
                found = run_child(words, places)
            if (found["compiles"] == 0) != (kind == "pack") or found["fallbacks"] != 0:
                raise RuntimeError(
                    f"{head}, {kind}: expected compiles without a pack alone: {found}"
                )
            runs[kind].append(found)
    return {"head": head, "rows": rows, "processes": runs}


def row_of(found: dict[str, Any]) -> list[object]:
    """Medians and ranges."""

    def cell(kind: str, key: str) -> str:
        return median_and_range(run[key] for run in found["processes"][kind])

    cells = [cell(kind, key) for kind in ("empty", "pack") for key in ("log_probs_ms", "step_ms")]
    return [found["head"], *cells, found["processes"]["empty"][0]["compiles"]]


def main() -> None:
    """Prints a table and, with --json, writes JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pack", type=Path, nargs="?", help="what ./dev release has made")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--head", action="append", help=f"a head; without it {HEADS}")
    parser.add_argument("--rows", type=int, default=4096, help="tokens of the step, in 8 sequences")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures, and the machine's")
    parser.add_argument("--one", metavar="HEAD", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return sample(args.one, args.rows, args.device)
    if args.pack is None:
        parser.error("expected a pack, got none")
    import torch  # its version, for the report

    facts = environment() | {"torch": torch.__version__, "pack_bytes": args.pack.stat().st_size}
    if args.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory(prefix="rlk-bench-") as root:
        layer = Path(root, "kernels")
        words = command(["--cache-dir", str(layer), "import", str(args.pack)])
        kept = {name: text for name, text in os.environ.items() if not name.startswith("RLK_")}
        subprocess.run(words, env=kept, check=True)
        heads = args.head or HEADS
        results = [measure(layer, each, args.rows, args.device, args.processes) for each in heads]
    columns = ["head", "empty: log-probs", "step", "pack: log-probs", "step", "compiles"]
    print_table(f"ms: median (range) of {args.processes}", columns, map(row_of, results))
    if args.json:
        write_json(args.json, f"first_step_{args.device}", facts, {"heads": results})
    return None


if __name__ == "__main__":
    main()
