# SPDX-License-Identifier: Apache-2.0
"""The first calls of a process whose cache folder is empty: a forward alone, and with its backward.

The one alone is under no_grad, so that it begins nothing for a backward. Each sample is a fresh
process, in which torch, autograd and the device are up before the clock starts; what it times is
rlk alone: its import, what it compiles, loads and runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import environment, median_and_range, print_table, run_child, write_json

PROCESSES = 5
#: Operation, dtype and sizes N x D x V; of det_gemm M x K x N, of logp and grpo_loss N x V.
CUDA_CASES = [
    ("linear_logp", "bfloat16", (4096, 2048, 32768)),
    ("linear_logp", "bfloat16", (4096, 3584, 152064)),
    ("linear_logp", "float32", (512, 2048, 32768)),
    ("logp", "bfloat16", (2048, 128256)),
    ("grpo_loss", "bfloat16", (2048, 128256)),
    ("det_gemm", "bfloat16", (4096, 4096, 4096)),
]
CPU_CASES = [
    ("linear_logp", "float32", (16, 64, 4096)),
    ("linear_logp", "bfloat16", (16, 64, 4096)),
    ("logp", "float32", (16, 4096)),
    ("grpo_loss", "float32", (16, 4096)),
    ("det_gemm", "float32", (16, 64, 96)),
]


def call_of(op: str, dtype: str, sizes: tuple[int, ...], device: str) -> tuple[Any, list[Any]]:
    """A call without arguments, and the tensors that it has gradients of."""
    import torch

    kind = getattr(torch, dtype)

    def real(*shape: int) -> Any:
        return (0.02 * torch.randn(shape, device=device)).to(kind).requires_grad_()

    def jit() -> Any:
        import rlk.jit

        return rlk.jit

    if op == "det_gemm":
        rows, terms, columns = sizes
        x, weight = real(rows, terms), real(columns, terms)
        return lambda: jit().linear(x, weight), [x, weight]
    rows, vocab = sizes[0], sizes[-1]
    target = torch.randint(vocab, (rows,), device=device)
    if op == "linear_logp":
        hidden, weight = real(rows, sizes[1]), real(vocab, sizes[1])
        return lambda: jit().linear_logp(hidden, weight, target), [hidden, weight]
    leaf = real(rows, vocab)
    if op == "logp":
        return lambda: jit().logp(leaf, target), [leaf]
    sequences = (2, rows // 2)  # one group
    logits, ids = leaf.view(*sequences, vocab), target.view(sequences)
    old = torch.zeros(sequences, device=device)
    rewards = torch.tensor([0.0, 1.0], device=device)
    return (
        lambda: jit().grpo_loss(logits, None, ids, old, rewards, samples_per_prompt=2, beta=0.0)[0],
        [leaf],
    )


def sample(op: str, dtype: str, sizes: tuple[int, ...], device: str, with_backward: bool) -> None:
    """One process: prints JSON."""
    import torch

    call, leaves = call_of(op, dtype, sizes, device)
    # Autograd's own first use, and a kernel of torch.
    torch.autograd.grad((leaves[0].float() * 2).sum(), leaves[0])

    def wait() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    start, start_cpu = wait(), time.process_time()
    with torch.set_grad_enabled(with_backward):
        result = call()
    forward = wait()
    if with_backward:
        torch.autograd.grad(result.sum(), leaves)
    end = wait()
    import rlk.jit

    found = {
        "forward_ms": 1e3 * (forward - start),
        "total_ms": 1e3 * (end - start),
        "cpu_ms": 1e3 * (time.process_time() - start_cpu),
    }
    rlk.jit.wait()  # for what nobody has waited for
    print(json.dumps(found | rlk.jit.cache_info()._asdict()))


def measure(case: tuple[str, str, tuple[int, ...]], device: str, processes: int) -> dict[str, Any]:
    """Every process's figures, the two kinds by turns, and ratios of medians."""
    runs: dict[str, list[dict[str, Any]]] = {"forward": [], "both": []}
    op, dtype, sizes = case
    for _ in range(processes):
        for kind in runs:
            with tempfile.TemporaryDirectory(prefix="rlk-bench-") as cache:
                places = {
                    "RLK_CACHE_DIR": cache,
                    "RLK_CACHE_PATH": "",
                    "CUDA_CACHE_PATH": f"{cache}/driver",
                }
                words = [op, dtype, *map(str, sizes)]
                found = run_child([__file__, "--one", kind, "--device", device, *words], places)
            if found["compiles"] == 0:
                raise RuntimeError(f"{op}: expected a compile, got {found}")
            runs[kind].append(found)
    medians = {
        kind: statistics.median(run["total_ms"] for run in of_kind)
        for kind, of_kind in runs.items()
    }
    ratio = medians["both"] / medians["forward"]
    return {"op": op, "dtype": dtype, "sizes": sizes, "processes": runs, "ratio": ratio}


def row_of(found: dict[str, Any]) -> list[object]:
    """Medians and ranges."""

    def cell(kind: str, key: str) -> str:
        return median_and_range(run[key] for run in found["processes"][kind])

    name = f"{found['op']} {found['dtype']} {' x '.join(map(str, found['sizes']))}"
    alone, forward = cell("forward", "total_ms"), cell("both", "forward_ms")
    compiles = found["processes"]["both"][0]["compiles"]
    return [name, alone, forward, cell("both", "total_ms"), found["ratio"], compiles]


def main() -> None:
    """Prints a table and, with --out, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of each kind")
    parser.add_argument("--only", default="", help="cases with this part in their operation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures, and the machine's")
    parser.add_argument("--one", choices=("forward", "both"), help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        op, dtype, *sizes = args.words
        return sample(op, dtype, tuple(map(int, sizes)), args.device, args.one == "both")
    import torch  # its version, for the report

    facts = environment() | {"torch": torch.__version__}
    if args.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    cases = CUDA_CASES if args.device == "cuda" else CPU_CASES
    results = []
    for case in cases:
        if args.only in case[0]:
            print(*case, file=sys.stderr, flush=True)
            results.append(measure(case, args.device, args.processes))
    columns = ["empty cache", "forward alone", "forward", "forward + backward", "ratio", "compiles"]
    print_table(f"ms: median (range) of {args.processes}", columns, map(row_of, results))
    if args.json:
        write_json(args.json, f"cold_start_{args.device}", facts, {"cases": results})
    return None


if __name__ == "__main__":
    main()
