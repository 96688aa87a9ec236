# SPDX-License-Identifier: Apache-2.0
"""Which checks run on which cases, and running them: rlk.check.run()."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import checks, rules, transforms
from .candidates import Candidate, Misuse
from .case import Case
from .checks import Measured, Session
from .frameworks import Failure
from .result import Result
from .spec import OpSpec
from .stored import Stored

Check = Callable[[Session, Case], Measured]
GRADIENT_RULES = ("row_sum", "linear_in_upstream")
SPECIALIZED_EVERY = 20  # of the random cases: each specialization costs a compile


@dataclass(frozen=True)
class Job:
    """One check of one case; `spec` where the case's inputs are another's than the op's own."""

    name: str
    check: Check
    case: Case
    spec: OpSpec | None = None


@dataclass
class Shared:
    """Bits of the generic variant, for the specialized one to be compared with."""

    bits: dict[Case | str, Mapping[str, Stored]] = field(default_factory=dict)

    def variants(self, session: Session, case: Case) -> Measured:
        """Specialized and generic give the same bits."""
        inputs = session.spec.build(case)
        upstream = session.spec.upstream(case, inputs)
        values = checks.call(session, case, inputs, upstream)
        key = f"{case.text()} seed={case.seed}"
        if key in self.bits:
            label = "specialized and generic differ"
            checks.expect_same(self.bits[key], values, "batch_variant", label)
        else:
            self.bits[key] = values
        return {}


def suite_jobs(
    spec: OpSpec, candidate: Candidate, dtypes: Iterable[str], seed: int, shared: Shared
) -> Iterator[Job]:
    """The whole suite of --all for one candidate."""
    specialized = candidate.variant == "specialized"
    dtypes = list(dtypes)
    for dtype in dtypes:
        cases = spec.suite(dtype, specialized, seed)
        for case in cases:
            yield from case_jobs(spec, candidate, case, gradient=True)
        for case in spec.invariance_cases(dtype, seed):
            yield from invariance_jobs(spec, candidate, case)
        yield from rule_jobs(spec, candidate, cases[0])
        if candidate.variant is not None:
            for case in spec.suite(dtype, True, seed):
                yield Job("variants", shared.variants, case)
    for dtype in dtypes:  # last: a kernel that reads wildly may take the process with it
        yield from refusal_jobs(candidate, spec.suite(dtype, specialized, seed)[0])


def case_jobs(spec: OpSpec, candidate: Candidate, case: Case, gradient: bool) -> Iterator[Job]:
    """Forward, and the gradients where the kind has them."""
    yield Job("forward", checks.forward, case)
    if gradient and not candidate.forward_only and case.kind not in spec.forward_only:
        yield Job("gradient", checks.gradient, case)


def invariance_jobs(spec: OpSpec, candidate: Candidate, case: Case) -> Iterator[Job]:
    more = {"degrees": candidate.over_ranks, "blocks": candidate.set_blocks}
    names = (name for name, has in more.items() if has is not None)
    for name in (*spec.transforms, *names):
        yield Job(f"invariance {name}", transforms.check(name), case)


def rule_jobs(spec: OpSpec, candidate: Candidate, case: Case) -> Iterator[Job]:
    """Liveness and the op's own rules."""
    yield Job("option_liveness", rules.option_liveness, case)
    for name, rule in spec.rules().items():
        if name not in GRADIENT_RULES or candidate.differentiates:
            yield Job(f"rule {name}", rule, case)


def refusal_jobs(candidate: Candidate, case: Case) -> Iterator[Job]:
    if candidate.survives_bad_ids:
        yield Job("refusals", rules.refusals, case)


def random_jobs(spec: OpSpec, candidate: Candidate, count: int, seed: int) -> Iterator[Job]:
    """Random cases; the specialized variant takes every twentieth, the generic one the others."""
    for number in range(count):
        chosen = number % SPECIALIZED_EVERY == SPECIALIZED_EVERY - 1
        if candidate.variant is not None and chosen != (candidate.variant == "specialized"):
            continue
        rng = np.random.default_rng([seed, number])
        case = spec.random_case(rng, seed + number)
        yield from case_jobs(spec, candidate, case, gradient=True)


def run_jobs(
    session: Session,
    jobs: Iterable[Job],
    on_start: Callable[[Result], None],
    on_result: Callable[[Result], None],
) -> None:
    """Runs the jobs in order; a candidate's failure is a result, never an exception.

    on_start gets what the result is if the candidate ends the process.
    """
    for job in jobs:
        name, variant = session.candidate.name, session.candidate.variant
        on_start(Result(job.case, name, variant, job.name, "failed", "ended"))
        on_result(run_job(session, job))


def run_job(session: Session, job: Job) -> Result:
    """One check of one case as a Result."""
    candidate, case = session.candidate, job.case
    if job.spec is not None:
        session = Session(job.spec, candidate, session.contract, session.arch)
    head: dict[str, Any] = {"case": case, "candidate": candidate.name, "variant": candidate.variant}
    head["check"] = job.name
    inputs, _ = session.prepared(case)
    refused = candidate.refuses(session.spec, inputs)
    if refused is not None:
        return Result(
            **head, status="not_applicable", message=f"the adapter does not take {refused}"
        )
    started = time.perf_counter()
    kernel: Mapping[str, str] = {}
    try:
        found = job.check(session, case)
        kernel = session.describe(inputs)
        status: dict[str, Any] = {"status": "passed"}
    except Failure as failure:
        found = {"place": failure.place, **failure.measured}
        status = {"status": "failed", "failure": failure.kind, "message": str(failure)}
    seconds = time.perf_counter() - started
    return Result(**head, **status, **found, kernel=kernel, seconds=seconds)


def nothing(*_: Any) -> None:
    """The default on_start and on_result."""


def expect_positive(**sizes: int) -> None:
    """Raises Misuse for the first size that is not above 0."""
    for name, size in sizes.items():
        if size <= 0:
            raise Misuse(f"{name}: expected > 0, got {size}")
