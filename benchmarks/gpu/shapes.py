# SPDX-License-Identifier: Apache-2.0
"""Time, memory and error at one shape: rlk, its peers and its own settings against the product."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import comparison
import torch
from comparison import RLK, Case

from gpu import exact, facts, peers
from gpu.clock import Clock, Runner, said, tensors
from gpu.job import MAIN, ODD, ROWS, SMALL, Job
from rlk import jit

DTYPE = "bfloat16"
OTHER_DTYPES = ("float16", "float32")
PASSES = ("fwd", "fwd+bwd")
FP32_SOFTMAX = "torch eager, fp32 softmax"
UNPADDED, THREE = "product, V not padded", "the three products"
BUDGETS_MIB = (64, 512, 2048)


@dataclass(frozen=True)
class Entry:
    """Who runs: `make` gives the log-prob function, `prepare` comes before each burst."""

    name: str
    make: Callable[[], peers.LogProb]
    prepare: Callable[[], Any] = lambda: None


def rlk_entry(name: str = RLK, **settings: Any) -> Entry:
    prepare = functools.partial(jit.configure, **settings) if settings else lambda: None
    return Entry(name, lambda: jit.linear_logp, prepare)


@functools.cache
def everybody() -> tuple[Entry, ...]:
    """rlk and the peers; a function is made once a process, an ImportError is kept as well."""
    found = [rlk_entry()]
    for name, make in peers.MAKERS.items():
        found.append(Entry(name, functools.cache(make)))
    return tuple(found)


# --- The products ---------------------------------------------------------------------------------


def plain_product(drawn: dict[str, Any], multiple: int = 64) -> Callable[[], Any]:
    """g: hidden @ weight.T in the storage type, V padded to a multiple, into memory that is
    there."""
    hidden, weight = drawn["hidden"], drawn["weight"]
    if len(weight) % multiple:
        weight = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % multiple))
    out = hidden.new_empty(len(hidden), len(weight))
    return lambda: torch.mm(hidden, weight.T, out=out)


def three_products(drawn: dict[str, Any]) -> Callable[[], Any]:
    """What any backward that keeps the logits has to do: g and the gradients' two products."""
    hidden, weight = drawn["hidden"], drawn["weight"]
    weight = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % 64))
    logits = torch.randn(len(hidden), len(weight), dtype=hidden.dtype, device=hidden.device)
    grads = torch.empty_like(hidden), torch.empty_like(weight)
    forward = plain_product(drawn)

    def run() -> None:
        forward()
        torch.mm(logits, weight, out=grads[0])
        torch.mm(logits.T, hidden, out=grads[1])

    return run


def other_products(drawn: dict[str, Any], which: str) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Makers of the products that are shown beside g."""
    if which == "fwd+bwd":
        return {THREE: lambda: three_products(drawn)}
    padded = len(drawn["weight"]) % 64 == 0
    return {} if padded else {UNPADDED: lambda: plain_product(drawn, multiple=1)}


# --- One shape ------------------------------------------------------------------------------------


def measure_shape(
    job: Job,
    shape: tuple[int, int, int],
    entries: Sequence[Entry],
    passes: Sequence[str] = PASSES,
    dtype: str = DTYPE,
) -> list[dict[str, Any]]:
    """One row a pass and candidate; a row without "ms" says why: "absent" or "failed"."""
    clock = Clock(job.device)
    case = Case(*job.sized(shape), dtype)
    drawn = comparison.draw(case.rows, case.dim, case.vocab, dtype, job.device)
    job.begin("float64")
    answer = exact.solve(drawn)
    rows = []
    for which in passes:
        found: dict[str, dict[str, Any]] = {}
        runners: dict[str, Runner] = {}
        reference: tuple[Any, ...] | None = None
        for entry in entries:
            if entry.name in job.without:
                found[entry.name] = {"failed": job.without[entry.name]}
                continue
            job.begin(entry.name)
            try:
                row, runner, result = _first(clock, entry, drawn, which, answer)
            except ImportError as error:
                found[entry.name] = {"absent": said(error)}
                continue
            except Exception as error:
                clock.synchronize()  # raises where the device is lost
                found[entry.name] = {"failed": said(error)}
                continue
            if entry.name.startswith(RLK):
                if reference is not None:
                    row["same_bits"] = all(map(_same, result, reference))
                reference = reference or result
            found[entry.name], runners[entry.name] = row, runner
        reference = result = None
        runners |= {
            name: Runner(make())
            for name, make in other_products(drawn, which).items()
            if name not in job.without
        }
        samples, failed = clock.race(
            plain_product(drawn),
            runners,
            rounds=3 if job.quick or job.device == "cpu" else 9,
            seconds=2.0 if job.quick or job.device == "cpu" else 8.0,
            begin=job.begin,
        )
        for name, taken in samples.items():
            found[name] = found.get(name, {}) | taken.summary()
        for name, why in failed.items():
            found[name] = found.get(name, {}) | {"failed": why}
        facts_of = {k: v for k, v in asdict(case).items() if k != "threads"} | {"which": which}
        rows += [facts_of | {"candidate": name} | row for name, row in found.items()]
    return rows


def _first(
    clock: Clock, entry: Entry, drawn: dict[str, Any], which: str, answer: exact.Exact
) -> tuple[dict[str, Any], Runner, tuple[Any, ...]]:
    """First calls: what they take outside torch, error, extra memory."""
    entry.prepare()
    run = comparison.pass_of(entry.make(), drawn, which)
    before = clock.outside_torch_mib()
    result = tensors(run())
    clock.synchronize()
    after = clock.outside_torch_mib()
    row: dict[str, Any] = {}
    if before is not None and after is not None:
        row["first_call_outside_torch_mib"] = after - before
    row |= answer.errors(result)
    row["extra_mib"] = clock.extra_mib(run)
    return row, Runner(run, entry.prepare), result


def _same(a: Any, b: Any) -> bool:
    return bool(torch.equal(a.detach(), b.detach()))


# --- Parts ----------------------------------------------------------------------------------------


def _finish(job: Job, rows: list[dict[str, Any]], shape: tuple[int, int, int]) -> dict[str, Any]:
    """The part's result: rows, which kernels ran, clocks under load."""
    drawn = comparison.draw(*job.sized(shape), DTYPE, job.device)
    found: dict[str, Any] = {"runs": rows, "cache_info": jit.cache_info()._asdict()}
    arguments = drawn["hidden"], drawn["weight"], drawn["target"]
    for which, backward in (("fwd", False), ("bwd", True)):
        try:
            told = jit.explain(jit.linear_logp, *arguments, backward=backward)
            found[f"explain_{which}"] = str(told)
        except Exception as error:
            found[f"explain_{which}"] = said(error)
    if job.device == "cuda":
        found["under_load"] = facts.under_load(plain_product(drawn))
    return found


def few() -> list[Entry]:
    return [entry for entry in everybody() if entry.name in (RLK, FP32_SOFTMAX)]


def main_shape(job: Job) -> dict[str, Any]:
    return _finish(job, measure_shape(job, MAIN, everybody()), MAIN)


def odd_vocab(job: Job) -> dict[str, Any]:
    return _finish(job, measure_shape(job, ODD, few() if job.quick else everybody()), ODD)


def by_rows(job: Job) -> dict[str, Any]:
    """One weight, few to many rows."""
    rows = []
    for shape in ROWS:
        rows += measure_shape(job, shape, few() if job.quick else everybody())
    return _finish(job, rows, ROWS[-1])


def dtypes(job: Job) -> dict[str, Any]:
    """fp16 and fp32; g is of the same dtype, so in fp32 it has no tensor cores."""
    rows = []
    for dtype in OTHER_DTYPES:
        rows += measure_shape(job, SMALL, few(), dtype=dtype)
    return _finish(job, rows, SMALL)


def budgets(job: Job) -> dict[str, Any]:
    """The backward's waves under several RLK_WORKSPACE_MIB; rows say whether the bits are equal."""
    entries = [rlk_entry(f"{RLK}, {mib} MiB", workspace_mib=mib) for mib in BUDGETS_MIB]
    return _finish(job, measure_shape(job, MAIN, entries, ("fwd+bwd",)), MAIN)


def variants(job: Job) -> dict[str, Any]:
    """Sizes as constants against sizes at run time."""
    entries = [
        rlk_entry(f"{RLK}, specialized", specialize=True),
        rlk_entry(f"{RLK}, generic", specialize=False),
    ]
    rows = measure_shape(job, MAIN, entries) + measure_shape(job, ODD, entries)
    jit.configure(specialize=True)
    return _finish(job, rows, MAIN)
