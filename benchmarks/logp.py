# SPDX-License-Identifier: Apache-2.0
"""Time of logp, forward and forward + backward, in units of reading or writing the logits once.

    python benchmarks/logp.py --device cuda [--shape 32x256x131072] [--dtype float16] [--json FILE]

A unit is half of a copy of the logits, measured beside: a copy reads and writes. On CUDA times are
of bursts between events, on the CPU of single calls by the clock. Exit status 1 where a bar is
missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
import torch.nn.functional as F
from gpu.clock import Clock
from harness import Candidate, Figure

import rlk

SHAPES = {"cpu": (1, 128, 32768), "cuda": (32, 256, 131072)}
UNIT, FORWARD, BOTH, IN_PLACE = "unit", "forward", "forward + backward", "the same, in place"
TENTH, TENTH_BOTH = "forward, a tenth active", "forward + backward, a tenth active"
ZEROS = "zeros"  # what rows that are not active cost in the backward
TORCH, TORCH_BOTH = "F.cross_entropy", "F.cross_entropy, forward + backward"


def cases(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> dict[str, Callable[[], Any]]:
    g = torch.Generator(device).manual_seed(0)
    logits = torch.randn(shape, generator=g, device=device, dtype=dtype)
    target = torch.randint(shape[-1], shape[:-1], generator=g, device=device)
    few = torch.rand(shape[:-1], generator=g, device=device) < 0.1
    upstream = torch.randn(shape[:-1], generator=g, device=device)
    leaf = logits.detach().requires_grad_()
    other = torch.empty_like(logits)
    scratch = logits.clone().requires_grad_() * 1  # no leaf

    def backward(found: Any) -> Any:
        return torch.autograd.grad(found, leaf, upstream.reshape(found.shape))

    def in_place() -> Any:
        # Its values become gradients, which are logits like others to the clock.
        found = rlk.jit.logp(scratch, target, inplace_backward=True)
        return torch.autograd.grad(found, scratch, upstream)

    def cross_entropy(x: Any) -> Any:
        return F.cross_entropy(x.reshape(-1, shape[-1]), target.reshape(-1), reduction="none")

    return {
        UNIT: lambda: other.copy_(logits),
        FORWARD: lambda: rlk.jit.logp(logits, target),
        BOTH: lambda: backward(rlk.jit.logp(leaf, target)),
        IN_PLACE: in_place,
        TENTH: lambda: rlk.jit.logp(logits, target, mask=few),
        TENTH_BOTH: lambda: backward(rlk.jit.logp(leaf, target, mask=few)),
        ZEROS: lambda: other.zero_(),
        TORCH: lambda: cross_entropy(logits),
        TORCH_BOTH: lambda: backward(cross_entropy(leaf)),
    }


def measure(runs: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """Median milliseconds a call; each round runs all in turn."""
    for run in runs.values():
        run()
    if device == "cpu":
        order = [Candidate(name, run, calls=2) for name, run in runs.items()]
        timed = harness.interleave(order, rounds)
        return {name: 1e3 * statistics.median(seconds) for name, seconds in timed.items()}
    clock = Clock(device)
    calls = {name: clock.calls_for(run) for name, run in runs.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        turn = number % len(runs)
        for name in [*runs][turn:] + [*runs][:turn]:
            samples[name].append(clock.burst_ms(runs[name], calls[name]))
    return {name: statistics.median(times) for name, times in samples.items()}


def figures(words: str, ms: dict[str, float]) -> list[Figure]:
    unit, few = ms[UNIT] / 2, "a tenth active"
    beyond_zeros = max(ms[TENTH_BOTH] - ms[ZEROS], 0.0)
    return [
        Figure(f"logp, {words}: forward", ms[FORWARD] / unit, "units", 1.15, strict=False),
        Figure(
            f"logp, {words}: forward + backward",
            ms[BOTH] / unit / 3,
            "x 3 units",
            1.3,
            strict=False,
        ),
        Figure("in place", ms[IN_PLACE] / unit / 3, "x 3 units"),
        Figure(
            "forward, a tenth active, over all", ms[TENTH] / ms[FORWARD], "x", 0.2, strict=False
        ),
        Figure(
            f"{BOTH}, {few}, beyond the zero fill, over all",
            beyond_zeros / ms[BOTH],
            "x",
            0.2,
            strict=False,
        ),
        Figure("F.cross_entropy", ms[TORCH] / unit, "units"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--shape", metavar="...xV", help="1x128x32768 on the CPU, 32x256x131072 on CUDA")
    add("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    add("--rounds", type=int, default=9, help="samples a candidate (9)")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    shape = SHAPES[options.device]
    if options.shape:
        shape = tuple(map(int, options.shape.split("x")))
    facts = harness.environment()
    if options.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
    runs = cases(shape, getattr(torch, options.dtype), options.device)
    ms = measure(runs, options.device, options.rounds)
    words = f"{'x'.join(map(str, shape))} {options.dtype}"
    gigabytes = math.prod(shape) * torch.finfo(getattr(torch, options.dtype)).bits / 8e9
    harness.print_table(
        f"logp, {words}, {options.device}",
        ["case", "median ms", "units"],
        ([name, time, time / (ms[UNIT] / 2)] for name, time in ms.items()),
    )
    print(f"a copy moves {2e3 * gigabytes / ms[UNIT]:.0f} GB/s\n")
    listed = figures(words, ms)
    table = harness.print_figures(f"logp on {facts.get('card', facts['cpu'])}", listed)
    if options.json:
        content = {"shape": shape, "dtype": options.dtype, "ms": ms, "table": table}
        harness.write_json(options.json, "logp", facts, content)
    return int(options.device == "cuda" and any(figure.verdict == "no" for figure in listed))


if __name__ == "__main__":
    sys.exit(main())
