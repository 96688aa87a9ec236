# SPDX-License-Identifier: Apache-2.0
"""Forward, gradient and determinism of one case against the oracle.

Every check is a function of (Session, Case) that raises Failure or returns measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .candidates import Candidate, Outcome
from .case import Case, Inputs
from .compare import Deviation, deviation, expect_form, same_bits
from .contract import Contract
from .frameworks import Failure
from .oracle import Bounded, Expected
from .result import measured
from .spec import OpSpec
from .stored import Stored


@dataclass
class Session:
    """Who is checked against what."""

    spec: OpSpec
    candidate: Candidate
    contract: Contract
    arch: str | None
    _last: tuple[Case, Inputs, Expected] | None = None

    def prepared(self, case: Case) -> tuple[Inputs, Expected]:
        """Inputs of a case and the exact outputs; the last case is kept for its next check."""
        if self._last is None or self._last[0] != case:
            inputs = self.spec.build(case)
            self._last = (case, inputs, self.expected(case, inputs))
        return self._last[1:]

    def coefficients(self, op_class: str, dtype: str) -> Mapping[str, float]:
        return self.contract.coefficients(op_class, dtype, self.arch)

    def expected(self, case: Case, inputs: Inputs) -> Expected:
        return self.spec.expected(case, inputs, self.coefficients)

    def forward(self, inputs: Inputs) -> Outcome:
        """One forward call whose outputs have the right form and whose inputs are untouched."""
        outcome = self.candidate.forward(self.spec, inputs)
        self._expect_outputs(outcome, inputs)
        return outcome

    def gradient(
        self,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        needs: tuple[str, ...] | None = None,
        inspect: Callable[[Outcome], None] = lambda outcome: None,
    ) -> Outcome:
        """One forward and backward call, of the right form; the outputs are looked at, by `inspect`
        too, before the backward runs. `needs` are all that there are."""
        needs = self.spec.needs(inputs) if needs is None else needs

        def inspect_forward(outcome: Outcome) -> None:
            self._expect_outputs(outcome, inputs)
            inspect(outcome)

        outcome = self.candidate.gradient(self.spec, inputs, upstream, needs, inspect_forward)
        if outcome.changed:
            raise Failure("input_changed", f"{', '.join(outcome.changed)} written by the call")
        for name in needs:
            given = inputs[name]
            expect_form(name, outcome.gradients[name], given.shape, given.dtype, "grad_")
        return outcome

    def describe(self, inputs: Inputs) -> Mapping[str, str]:
        """The kernel that these inputs run, where the candidate can tell."""
        describe = self.candidate.describe
        if describe is None:
            return {}
        return describe(self.candidate.framework.give_all(self.spec.arguments(inputs)))

    def _expect_outputs(self, outcome: Outcome, inputs: Inputs) -> None:
        if outcome.changed:
            raise Failure("input_changed", f"{', '.join(outcome.changed)} written by the call")
        for name in self.spec.outputs_of(inputs):
            shape = self.spec.output_shape(inputs, name)
            dtype = self.spec.dtype_of_output(inputs, name)
            expect_form(name, outcome.outputs[name], shape, dtype, "")


Measured = dict[str, Any]


def forward(session: Session, case: Case) -> Measured:
    """Outputs within their bounds."""
    inputs, expected = session.prepared(case)
    outputs = session.forward(inputs).outputs
    return _judged(_compared(session, inputs, outputs, expected.outputs, ""))


def gradient(session: Session, case: Case) -> Measured:
    """Outputs first, then every gradient, within its bounds, for a random upstream gradient. All
    are measured; the first that is beyond its bound is the failure."""
    inputs, expected = session.prepared(case)
    upstream = session.spec.upstream(case, inputs)
    found: list[Found] = []

    def inspect(outcome: Outcome) -> None:
        found.extend(_compared(session, inputs, outcome.outputs, expected.outputs, ""))

    try:
        outcome = session.gradient(inputs, upstream, inspect=inspect)
    except Failure:
        _judged(found)  # what the forward gave comes first
        raise
    exact = expected.gradients(upstream)
    return _judged([*found, *_compared(session, inputs, outcome.gradients, exact, "grad_")])


def determinism(session: Session, case: Case) -> Measured:
    """The same inputs, three runs with another call between them, the same bits; the runs
    take another number of threads each where the candidate lets them be set."""
    spec = session.spec
    inputs = spec.build(case)
    upstream = spec.upstream(case, inputs)
    other = spec.build(case.but(seed=case.seed + 1))
    runs = []
    for num_threads in (3, 1, 2):
        if session.candidate.set_threads is not None:
            session.candidate.set_threads(num_threads)
        runs.append(call(session, case, inputs, upstream))
        session.forward(other)
    for run in runs[1:]:
        expect_same(runs[0], run, "nondeterministic", "the same call gave other bits")
    return {}


def call(
    session: Session, case: Case, inputs: Inputs, upstream: Mapping[str, Stored]
) -> dict[str, Stored]:
    """Outputs and, where the kind has them, gradients of one call, by name."""
    found = dict(session.forward(inputs).outputs)
    if case.kind not in session.spec.forward_only and session.candidate.differentiates:
        found |= session.gradient(inputs, upstream).gradients
    return found


def expect_same(
    first: Mapping[str, Stored], second: Mapping[str, Stored], kind: str, message: str
) -> None:
    """Raises Failure(kind) at the first value whose bits differ."""
    for name in first:
        where = same_bits(first[name], second[name])
        if where is not None:
            raise Failure(kind, f"{message}: {name}{list(where)}")


def place_of(spec: OpSpec, inputs: Inputs, name: str, index: tuple[int, ...]) -> dict[str, int]:
    """An index by the names of its axes; row and position are batch and sequence."""
    axes = spec.axes.get(name, ())
    if name in spec.row_outputs:
        lead = ("row", "position") if len(inputs.lead) == 2 else ("row",) * len(inputs.lead)
        axes = (*lead, *axes)
    return dict(zip(axes, index, strict=False))


Found = tuple[Measured, Failure | None]  # of one value


def _judged(found: Sequence[Found]) -> Measured:
    """The worst of all values, with the errors of each. Raises the first failure."""
    errors = {one["value"]: one["worst"] for one, _ in found}
    for _, failure in found:
        if failure is not None:
            failure.measured["errors"] = errors
            raise failure
    worst: Measured = max((one for one, _ in found), key=lambda one: one["worst"], default={})
    return {**worst, "errors": errors}


def _compared(
    session: Session,
    inputs: Inputs,
    got: Mapping[str, Stored],
    exact: Mapping[str, Bounded],
    prefix: str,
) -> list[Found]:
    return [_compare(session, inputs, name, got[name], exact[name], prefix) for name in exact]


def _compare(
    session: Session, inputs: Inputs, name: str, got: Stored, exact: Bounded, prefix: str
) -> Found:
    values = got.values()
    found = deviation(values, exact, got.dtype)
    if values.size == 0:
        return {"value": name, "place": {}, **measured(found)}, None
    place = place_of(session.spec, inputs, name, found.index)
    place |= session.spec.place_of_row(inputs, name, found.index)
    if found.worst > 1.0:
        kind = prefix + _kind(session.spec, inputs, name, values, exact, found)
        message = (
            f"{name}: expected {exact.value[found.index]:.9g} within "
            f"{exact.bound[found.index]:.3g}, got {values[found.index]:.9g}"
        )
        failure = Failure(kind, message, place, {"value": name, **measured(found)})
        return {"value": name, **measured(found)}, failure
    return {"value": name, "place": place, **measured(found)}, None


def _kind(
    spec: OpSpec,
    inputs: Inputs,
    name: str,
    got: np.ndarray,
    exact: Bounded,
    found: Deviation,
) -> str:
    if name in spec.row_outputs:
        num_lead = len(inputs.lead)
        flat = int(np.ravel_multi_index(found.index[:num_lead], inputs.lead)) if num_lead else 0
        if not spec.active(inputs)[flat]:
            return "inactive"
    odd = not (np.isfinite(got[found.index]) and np.isfinite(exact.value[found.index]))
    return "nonfinite" if odd else "accuracy"
