# SPDX-License-Identifier: Apache-2.0
"""The forward alone over sizes of models, row counts and options, each against the product.

The weight of one call must at least be read once: a ratio over that, at the copy bandwidth
measured here, stands beside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import comparison
import torch

from gpu.clock import Clock, Runner
from gpu.job import Job
from gpu.shapes import plain_product
from rlk import jit

DTYPE = "bfloat16"
# Bar of the ratio to g, by shape.
BARS = {
    (4096, 2048, 131072): 0.98,
    (4096, 4096, 128256): 1.00,
    (8192, 3584, 152064): 1.00,
    (4096, 2048, 32768): 1.00,
    (4096, 2048, 50257): 1.00,
    (1, 4096, 128256): 1.05,
    (16, 4096, 128256): 1.05,
    (64, 4096, 128256): 1.05,
    (256, 4096, 128256): 1.03,
    (16384, 2048, 248320): 1.00,
    (4096, 896, 151936): 1.00,
}
ALONE = "rlk, no row ignored"
DEFAULT = "rlk, ignore_index"
HALF = "rlk, half of the rows masked"
EVERYTHING = "rlk, entropy and log-sum-exp"
CAPPED = "rlk, softcap, logit scale"
GENERIC = "rlk, generic"
# Where options and the generic kernel are timed as well: each compiles kernels of its own.
WITH_OPTIONS = ((4096, 2048, 131072), (4096, 2048, 50257), (4096, 896, 151936))
ROUNDS, SECONDS = 9, 6.0


def candidates(drawn: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    given = drawn["hidden"], drawn["weight"], drawn["target"]
    call = functools.partial(jit.linear_logp, *given, ignore_index=None)
    mask = torch.rand(len(drawn["hidden"]), device=drawn["hidden"].device) < 0.5
    return {
        ALONE: call,
        DEFAULT: lambda: jit.linear_logp(*given),
        HALF: lambda: jit.linear_logp(*given, mask=mask),
        EVERYTHING: lambda: call(return_entropy=True, return_lse=True),
        CAPPED: lambda: call(softcap=30.0, logit_scale=0.5),
        GENERIC: call,
    }


def is_timed(name: str, shape: tuple[int, int, int]) -> bool:
    if name in (ALONE, DEFAULT):
        return True
    return shape[0] > 256 if name == HALF else shape in WITH_OPTIONS


def weight_bound_ms(drawn: dict[str, Any], clock: Clock) -> float:
    """Reading the weight once, at half the time of a copy of as many bytes."""
    weight = drawn["weight"]
    copy = torch.empty_like(weight)
    return min(clock.burst_ms(lambda: copy.copy_(weight), 5) for _ in range(3)) / 2


def measure_one(job: Job, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    clock = Clock(job.device)
    rows, dim, vocab = job.sized(shape)
    with torch.no_grad():
        drawn = comparison.draw(rows, dim, vocab, DTYPE, job.device)
        calls = candidates(drawn)
        runners = {
            name: Runner(run, functools.partial(jit.configure, specialize=name != GENERIC))
            for name, run in calls.items()
            if is_timed(name, shape)
        }
        for runner in runners.values():
            runner.prepare()
            runner.run()
        jit.configure(specialize=True)
        extra = clock.extra_mib(calls[ALONE])
        bound = weight_bound_ms(drawn, clock) if rows <= 256 else None
        samples, failed = clock.race(
            plain_product(drawn), runners, ROUNDS, SECONDS, begin=lambda name: job.begin(name)
        )
        jit.configure(specialize=True)
    found = []
    for name in runners:
        row: dict[str, Any] = {"rows": rows, "dim": dim, "vocab": vocab, "dtype": DTYPE}
        row |= {"candidate": name, "which": "fwd"}
        row |= samples[name].summary() if name in samples else {"failed": failed[name]}
        if name == ALONE:
            row |= {"extra_mib": extra, "bar": BARS[shape], "weight_bound_ms": bound}
        found.append(row)
    return found


def measure(job: Job) -> dict[str, Any]:
    """One row a shape and candidate."""
    found: list[dict[str, Any]] = []
    for shape in list(BARS)[:2] if job.quick else BARS:
        found += measure_one(job, shape)
        if job.device == "cuda":
            torch.cuda.empty_cache()
    return {"runs": found, "memory_mib": long_memory_mib(job)}


def long_memory_mib(job: Job) -> float | None:
    """Memory beyond inputs and result, log-prob alone, of as many rows as fit."""
    rows, dim, vocab = job.sized((131072, 512, 248320))
    drawn = comparison.draw(rows, dim, vocab, DTYPE, job.device)
    with torch.no_grad():
        return Clock(job.device).extra_mib(candidates(drawn)[ALONE])
