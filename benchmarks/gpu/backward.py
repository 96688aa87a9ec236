# SPDX-License-Identifier: Apache-2.0
"""Forward and backward against the product: sizes of models, what the forward may keep, peers.

Two parts: `own` has rlk alone over all shapes, `against_peers` rlk and its peers over a few. So no
peer can take rlk's results along.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import comparison
import torch
from comparison import RLK

from gpu import exact, peers
from gpu.clock import Clock, Runner, said, tensors, time_limit
from gpu.job import Job
from gpu.shapes import THREE, everybody, plain_product, three_products
from rlk import jit

DTYPE = "bfloat16"
Shape = tuple[int, int, int]
# MiB that all exponentials of a shape take, rounded up.
EVERYTHING_MIB: dict[Shape, int] = {
    (4096, 2048, 131072): 1024,
    (4096, 4096, 128256): 1002,
    (8192, 3584, 152064): 2376,
    (4096, 2048, 50257): 400,
    (256, 4096, 128256): 64,
    (64, 4096, 128256): 64,
    (1, 4096, 128256): 64,
}
WITH_PEERS = ((4096, 2048, 131072), (256, 4096, 128256), (64, 4096, 128256))
ACCUMULATED = ((4096, 2048, 131072),)

FORWARD = "rlk, forward"
NOTHING = "rlk, saved_mib=0"
HALF = "rlk, half of the upstream gradient 0"
FROZEN = "rlk, frozen head"
ACCUMULATE = "rlk, accumulate_into"
PRODUCT_64 = "product, V padded to 64"

PAD = 8  # rows of the weight of g are a multiple of this
BURST, BURST_OF_REHEARSAL = (40.0, 200), (1.0, 5)  # milliseconds, most calls
ROUNDS, SECONDS = 9, 5.0
FIRST_SECONDS = 30.0  # of a candidate's first call, compilers included
OWN_SECONDS, PEERS_SECONDS = 60.0, 200.0  # no further shape of a part begins after that


@dataclass(frozen=True)
class Call:
    """A candidate's call, made ready."""

    run: Callable[[], Any]  # gives the log-probs, or (log-probs, *gradients)
    which: str = "fwd+bwd"
    upstream: Any = None  # where it is not the drawn one
    sum_of_weight: Any = None  # what weight's gradient is added to


Makers = dict[str, Callable[[], Call]]


# --- Candidates -----------------------------------------------------------------------------------


def both(drawn: dict[str, Any], **options: Any) -> Call:
    function = functools.partial(jit.linear_logp, **options)
    return Call(comparison.pass_of(function, drawn, "fwd+bwd"))


def own_calls(drawn: dict[str, Any], everything_mib: int) -> Makers:
    return {
        RLK: lambda: both(drawn),
        NOTHING: lambda: both(drawn, saved_mib=0),
        f"rlk, saved_mib={everything_mib}": lambda: both(drawn, saved_mib=everything_mib),
    }


def option_calls(drawn: dict[str, Any]) -> Makers:
    """The forward alone, and backwards that have less to do."""

    def half() -> Call:
        upstream = drawn["upstream"].clone()
        upstream[torch.randperm(len(upstream))[: len(upstream) // 2]] = 0
        return Call(both(drawn | {"upstream": upstream}).run, upstream=upstream)

    def frozen() -> Call:
        hidden = drawn["hidden"].detach().requires_grad_()

        def run() -> Any:
            logp = jit.linear_logp(hidden, drawn["weight"], drawn["target"])
            return logp, *torch.autograd.grad(logp, hidden, drawn["upstream"])

        return Call(run)

    forward = comparison.pass_of(jit.linear_logp, drawn, "fwd")
    found: Makers = {FORWARD: lambda: Call(forward, "fwd"), FROZEN: frozen}
    return found if len(drawn["hidden"]) == 1 else found | {HALF: half}


def accumulating(drawn: dict[str, Any]) -> Call:
    hidden, weight = (drawn[name].detach().requires_grad_() for name in ("hidden", "weight"))
    total = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)

    def run() -> Any:
        logp = jit.linear_logp(hidden, weight, drawn["target"], accumulate_into=total)
        found = torch.autograd.grad(logp, (hidden, weight), drawn["upstream"], allow_unused=True)
        return logp, found[0]

    return Call(run, sum_of_weight=total)


def peer_calls(drawn: dict[str, Any]) -> Makers:
    def make(entry: Any) -> Call:
        return Call(comparison.pass_of(entry.make(), drawn, "fwd+bwd"))

    return {entry.name: functools.partial(make, entry) for entry in everybody()[1:]}


def sum_calls(drawn: dict[str, Any], everything_mib: int) -> Makers:
    """Peers whose loss is a sum over rows, and rlk with the same loss: no row's log-prob is given,
    and upstream gradients are all the same."""
    minus_one = -torch.ones_like(drawn["upstream"])
    hidden, weight = (drawn[name].detach().requires_grad_() for name in ("hidden", "weight"))

    def call(loss: peers.Sum) -> Call:
        def run() -> Any:
            return None, *torch.autograd.grad(
                loss(hidden, weight, drawn["target"]), (hidden, weight)
            )

        return Call(run, upstream=minus_one)

    def own(hidden: Any, weight: Any, target: Any) -> Any:
        return -jit.linear_logp(hidden, weight, target, saved_mib=everything_mib).sum()

    found: Makers = {"rlk, a sum": lambda: call(own)}
    for name, make in peers.SUMS.items():
        found[f"{name}, a sum"] = lambda make=make: call(make())
    return found


def compile_all(job: Job, shapes: Iterable[Shape]) -> None:
    """Compiles rlk's kernels on as many threads as there are kernels. What fails here fails again,
    with its words, when it is measured."""

    def call(shape: Shape, keeps: bool) -> None:
        rows, dim, vocab = job.sized(shape)
        new = functools.partial(torch.zeros, device=job.device)
        hidden, weight = (new(n, dim, dtype=getattr(torch, DTYPE)) for n in (rows, vocab))
        target = new(rows, dtype=torch.int64)
        with contextlib.suppress(Exception):
            if keeps:
                # The forward with autograd; the backward of torch would run on one thread for all.
                jit.linear_logp(hidden.requires_grad_(), weight, target, saved_mib=1 << 20)
            else:
                jit.linear_logp_backward(new(rows), hidden, weight, target)

    with ThreadPoolExecutor(16) as pool:
        for shape in shapes:
            for keeps in (False, True):
                pool.submit(call, shape, keeps)


# --- What is measured -----------------------------------------------------------------------------


def measure_shape(job: Job, shape: Shape, drawn: dict[str, Any], calls: Makers) -> list[Any]:
    """One row a candidate and product; a row without "ms" says why: "absent" or "failed"."""
    clock = Clock(job.device, *(BURST_OF_REHEARSAL if job.device == "cpu" else BURST))
    job.begin("float64")
    answer = exact.solve(drawn)
    found: dict[str, dict[str, Any]] = {}
    runners: dict[str, Runner] = {}
    reference: tuple[Any, ...] = ()
    for name, make in calls.items():
        found[name] = {"which": "fwd+bwd"}
        if name in job.without:
            found[name]["failed"] = job.without[name]
            continue
        job.begin(name)
        try:
            with time_limit(FIRST_SECONDS):
                call = make()
                result = tensors(call.run())
                clock.synchronize()
        except ImportError as error:
            found[name]["absent"] = said(error)
            continue
        except Exception as error:
            clock.synchronize()  # raises where the device is lost
            found[name]["failed"] = said(error)
            continue
        other = call.upstream is not None
        right = exact.solve(drawn | {"upstream": call.upstream}) if other else answer
        total = () if call.sum_of_weight is None else (call.sum_of_weight,)
        found[name] = {"which": call.which} | right.errors((*result, *total))
        if name == RLK:
            reference = result
        elif name.startswith("rlk, saved_mib") and reference:
            pairs = zip(result, reference, strict=True)
            found[name]["same_bits"] = all(torch.equal(a, b) for a, b in pairs)
        del result
        found[name]["extra_mib"] = clock.extra_mib(call.run)
        runners[name] = Runner(call.run)
    reference = ()
    products = {THREE: ("fwd+bwd", three_products(drawn))}
    if len(drawn["weight"]) % 64:
        products[PRODUCT_64] = ("fwd", plain_product(drawn))
    for name, (which, run) in products.items():
        found[name] = {"which": which}
        runners[name] = Runner(run)
    seconds = 2.0 if job.quick or job.device == "cpu" else SECONDS
    g = plain_product(drawn, PAD)
    samples, failed = clock.race(g, runners, ROUNDS, seconds, begin=job.begin)
    for name, taken in samples.items():
        found[name] |= taken.summary()
    for name, why in failed.items():
        found[name]["failed"] = why
    facts = sizes(job, shape)
    return [facts | {"candidate": name} | row for name, row in found.items()]


def sizes(job: Job, shape: Shape) -> dict[str, Any]:
    return dict(zip(("rows", "dim", "vocab"), job.sized(shape), strict=True)) | {"dtype": DTYPE}


def measure(
    job: Job, shapes: Iterable[Shape], seconds: float, calls: Callable[[Any, Shape], Makers]
) -> dict[str, Any]:
    """A part's result: rows, and which kernels ran."""
    shapes = list(shapes)[:2] if job.quick else list(shapes)
    start = time.monotonic()
    job.begin("rlk's compiles")
    compile_all(job, shapes)
    runs: list[dict[str, Any]] = []
    explained: dict[str, str] = {}
    for shape in shapes:
        if job.device == "cuda":
            torch.cuda.empty_cache()
        if runs and time.monotonic() - start > seconds:
            why = {"which": "fwd+bwd", "failed": f"not begun: {seconds:g} s were over"}
            runs.append(sizes(job, shape) | {"candidate": "all"} | why)
            continue
        drawn = comparison.draw(*job.sized(shape), DTYPE, job.device)
        runs += measure_shape(job, shape, drawn, calls(drawn, shape))
        arguments = drawn["hidden"], drawn["weight"], drawn["target"]
        told = jit.explain(jit.linear_logp, *arguments, backward=True)
        explained["x".join(map(str, job.sized(shape)))] = str(told)
    return {"runs": runs, "cache_info": jit.cache_info()._asdict(), "explain_bwd": explained}


def own(job: Job) -> dict[str, Any]:
    def calls(drawn: dict[str, Any], shape: Shape) -> Makers:
        found = own_calls(drawn, EVERYTHING_MIB[shape]) | option_calls(drawn)
        if shape in ACCUMULATED:
            found[ACCUMULATE] = lambda: accumulating(drawn)
        return found

    return measure(job, EVERYTHING_MIB, OWN_SECONDS, calls)


def against_peers(job: Job) -> dict[str, Any]:
    def calls(drawn: dict[str, Any], shape: Shape) -> Makers:
        everything = EVERYTHING_MIB[shape]
        return own_calls(drawn, everything) | sum_calls(drawn, everything) | peer_calls(drawn)

    return measure(job, WITH_PEERS, PEERS_SECONDS, calls)
