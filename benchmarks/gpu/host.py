# SPDX-License-Identifier: Apache-2.0
"""Host time of a warm call at sizes where the device has little to do."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import comparison
import harness
import numpy as np
import torch
from harness import Candidate

from gpu.clock import Clock, said
from gpu.job import Job
from rlk import jit

# A burst must fit into the device's queue (1024 launches), or the host would wait for the device.
CALLS = 50
SHAPES = ((1, 64, 256), (16, 256, 1024))
BLOCK = 128

CUPY_SOURCE = """
extern "C" __global__ void nothing(
    const void* hidden, const void* weight, const long long* target, const void* mask, float* logp,
    float* row_max, float* row_log_sum, long long num_rows, long long dim, long long vocab,
    long long hidden_pitch, long long weight_pitch, long long target_stride, long long ignore_index,
    float inverse_temperature) {
  if (num_rows < 0) logp[0] = inverse_temperature;
}
"""
SIZES = (8, 64, 256, 64, 64, 1, -100)

Makers = dict[str, Callable[[], Callable[[], Any]]]


def rlk_makers(device: str) -> Makers:
    found: Makers = {}
    for rows, dim, vocab in SHAPES:
        drawn = comparison.draw(rows, dim, vocab, "bfloat16", device)
        hidden, weight, target = (drawn[name] for name in ("hidden", "weight", "target"))
        leaf = weight.detach().requires_grad_()
        call = jit.linear_logp
        words = f"{rows}x{dim}x{vocab}"
        ways = {
            "rlk, no autograd": functools.partial(call, hidden, weight, target),
            "rlk, no autograd, ignore_index=None": functools.partial(
                call, hidden, weight, target, ignore_index=None
            ),
            "rlk, autograd": functools.partial(call, hidden, leaf, target),
        }
        found |= {f"{name} {words}": lambda run=run: run for name, run in ways.items()}
    return found


def triton_launch(device: str, allocate: bool) -> Callable[[], Any]:
    from gpu import triton_kernels

    empty = functools.partial(torch.empty, dtype=torch.float32, device=device)
    hidden, weight = empty(8, 64, dtype=torch.bfloat16), empty(256, 64, dtype=torch.bfloat16)
    target, mask = empty(8, dtype=torch.int64), empty(8, dtype=torch.bool)
    logp, row_max, row_log_sum = empty(8), empty(8), empty(8)
    arrays = (hidden, weight, target, mask)

    def run() -> Any:
        out = empty(8) if allocate else logp
        triton_kernels.nothing[(1,)](*arrays, out, row_max, row_log_sum, *SIZES, 1.0)
        return out

    return run


def cupy_launch() -> Callable[[], Any]:
    import cupy

    kernel = cupy.RawKernel(CUPY_SOURCE, "nothing")
    arrays = [cupy.empty(8, np.float32) for _ in range(7)]
    arguments = (*arrays, *map(np.int64, SIZES), np.float32(1.0))
    return lambda: kernel((1,), (BLOCK,), arguments)


def autograd_function(device: str) -> Callable[[], Any]:
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Any, weight: Any, *others: Any) -> Any:
            ctx.save_for_backward(hidden, weight)
            return hidden.detach()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None, None, None, None, None, None

    hidden, leaf = torch.randn(1, device=device), torch.randn(1, device=device).requires_grad_()
    return lambda: Identity.apply(hidden, leaf, None, None, None, None, None)


def add_out(device: str) -> Callable[[], Any]:
    values, out = torch.randn(8, device=device), torch.empty(8, device=device)
    return lambda: torch.add(values, values, out=out)


def makers(device: str) -> Makers:
    return rlk_makers(device) | {
        "Triton launch": lambda: triton_launch(device, allocate=False),
        "torch.empty + Triton launch": lambda: triton_launch(device, allocate=True),
        "CuPy RawKernel": cupy_launch,
        "torch.add, out=": lambda: add_out(device),
        "torch.empty": lambda: lambda: torch.empty(8, device=device),
        "an empty autograd.Function": lambda: autograd_function(device),
    }


def many(name: str, run: Callable[[], Any]) -> Callable[[], Any]:
    """CALLS calls, grad mode set around all of them."""
    grad = "no autograd" not in name and "autograd" in name

    def runs() -> None:
        with torch.set_grad_enabled(grad):
            for _ in range(CALLS):
                run()

    return runs


def measure(job: Job) -> dict[str, Any]:
    """Microseconds a call: median of samples of CALLS calls, and the least."""
    clock = Clock(job.device)
    not_run = dict(job.without)
    candidates = []
    for name, make in makers(job.device).items():
        if name in not_run:
            continue
        job.begin(name)
        try:
            run = make()
            for _ in range(20):
                run()
            clock.synchronize()
        except Exception as error:
            clock.synchronize()
            not_run[name] = said(error)
            continue
        candidates.append(Candidate(name, many(name, run), clock.synchronize))
    rounds = 10 if job.quick or job.device == "cpu" else 200
    samples = harness.interleave(candidates, rounds, warmup=3, pause_s=0.0)
    calls = {
        name: {"median_us": 1e6 * statistics.median(s) / CALLS, "least_us": 1e6 * min(s) / CALLS}
        for name, s in samples.items()
    }
    return {"calls": calls, "not_run": not_run, "cache_info": jit.cache_info()._asdict()}
