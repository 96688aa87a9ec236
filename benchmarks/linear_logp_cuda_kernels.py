# SPDX-License-Identifier: Apache-2.0
"""Times the CUDA kernels of linear_logp, launched by the prototype driver in tests/gpu.

g is the product hidden @ weight.T in the storage type, vocabulary padded to a multiple of 64, taken
before and after each row of the table. Peers are what PyTorch has, in the same run.

    python benchmarks/linear_logp_cuda_kernels.py --out results.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))
from linear_logp_driver import Problem

SHAPES = (
    (4096, 2048, 32768),
    (4096, 2048, 50257),
    (4096, 2048, 131072),
    (4096, 4096, 128256),
    (8192, 3584, 152064),
    (256, 4096, 128256),
    (16, 4096, 128256),
)
MIB = 1 << 20


def median_ms(run: Callable[[], Any], reps: int) -> float:
    run()
    torch.cuda.synchronize()
    events = []
    for _ in range(reps):
        pair = torch.cuda.Event(True), torch.cuda.Event(True)
        pair[0].record()
        run()
        pair[1].record()
        events.append(pair)
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events)


def extra_mib(run: Callable[[], Any]) -> tuple[float, Any]:
    """Peak of memory beyond what is there before, and the result."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB, result


def measure(n: int, dim: int, vocab: int, dtype: torch.dtype, reps: int) -> list[dict[str, Any]]:
    hidden = (torch.randn(n, dim, device="cuda") * 0.5).to(dtype)
    weight = (torch.randn(vocab, dim, device="cuda") / dim**0.5).to(dtype)
    target = torch.randint(0, vocab, (n,), device="cuda")
    grad = torch.randn(n, device="cuda")
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -vocab % 64))
    rows: list[dict[str, Any]] = []

    def product() -> float:
        out = torch.empty(n, len(padded), device="cuda", dtype=dtype)
        return median_ms(lambda: torch.matmul(hidden, padded.T, out=out), reps)

    def add(name: str, run: Callable[[], Any], outputs_mib: float) -> None:
        torch.cuda.empty_cache()
        before = product()
        extra, _ = extra_mib(run)
        ms = median_ms(run, reps)
        after = product()
        g = (before + after) / 2
        rows.append(
            {
                "shape": [n, dim, vocab], "dtype": str(dtype)[6:], "what": name, "ms": ms,
                "g_before_ms": before, "g_after_ms": after, "ratio": ms / g,
                "extra_mib": extra - outputs_mib,
            }
        )  # fmt: skip
        shape = f"{n}x{dim}x{vocab} {str(dtype)[6:]}"
        print(f"{shape:28} {name:26} {ms:8.3f} ms {ms / g:6.2f} g", end="  ")
        print(f"g {before:.3f}/{after:.3f}  extra {extra - outputs_mib:.0f} MiB", flush=True)

    gradients_mib = (hidden.nbytes + weight.nbytes) / MIB
    problem = Problem(hidden, weight, target, ignore_index=None)
    add("forward", problem.forward, 0.0)

    def both() -> Any:
        problem.forward()
        return problem.backward(grad)

    add("forward + backward", both, gradients_mib)
    problem.keep.clear()
    problem.saved = None

    def eager() -> torch.Tensor:
        return -torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(hidden, weight).float(), target, reduction="none"
        )

    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()

    def eager_both() -> Any:
        logits = torch.nn.functional.linear(h, w)
        logp = -torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
        return torch.autograd.grad(logp, (h, w), grad)

    if dtype is not torch.float32 and n * vocab < 1.3e9:
        add("eager forward", eager, 0.0)
        add("eager forward + backward", eager_both, gradients_mib)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=12)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for shape in SHAPES:
        rows += measure(*shape, torch.bfloat16, options.reps)
    rows += measure(4096, 2048, 32768, torch.float16, options.reps)
    rows += measure(4096, 2048, 32768, torch.float32, 3)
    usage = {
        f"{'bwd' if key[3] else 'fwd'} x={key[0]} {key[1]}": {
            name: vars(u) for name, u in module.binary.usage.items()
        }
        for key, module in Problem.modules.items()
    }
    result = {
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "rows": rows, "usage": usage,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
