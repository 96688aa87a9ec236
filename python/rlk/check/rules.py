# SPDX-License-Identifier: Apache-2.0
"""Rules that hold without an oracle's answer: liveness, refusals and metamorphic relations.

Each takes (Session, Case), raises Failure, or returns what it measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case, Rejected
from .checks import Measured, Session, call
from .compare import deviation, same_bits
from .frameworks import Failure
from .oracle import Bounded
from .spec import OpSpec
from .stored import of, of_raw


def option_liveness(session: Session, case: Case) -> Measured:
    """Each option changes the outputs, and each gradient that both calls have."""
    spec = session.spec
    for pair in spec.liveness(case):
        if session.candidate.refuses(spec, pair.with_option):
            continue
        without, changed = (
            call(session, case, inputs, spec.upstream(case, inputs))
            for inputs in (pair.without, pair.with_option)
        )
        names = without.keys() & changed.keys()
        for name in names if pair.shows_in is None else names & set(pair.shows_in):
            if same_bits(without[name], changed[name]) is None:
                raise Failure("option_dead", f"{pair.option} changes nothing in {name}")
    return {}


def refusals(session: Session, case: Case) -> Measured:
    """Bad inputs raise, or give NaN in the row that is bad: never a plausible number."""
    spec = session.spec
    for bad in rejected(spec, case):
        try:
            outcome = session.forward(bad.inputs)
        except Failure as failure:
            if failure.kind == "raised":
                continue
            raise
        for name in spec.outputs_of(bad.inputs):
            value = outcome.outputs[name].values().reshape(-1)[bad.place]
            if not np.isnan(value):
                raise Failure("bad_input_accepted", f"{bad.label}: {name} is {value:.9g}")
    return {}


def rejected(spec: OpSpec, case: Case) -> list[Rejected]:
    """Inputs that must not be accepted: one id outside the vocabulary."""
    if spec.ids is None:
        return []
    base = spec.build(case.but(kind="random", options=spec.all_active))
    place, vocab, found = base[spec.ids].raw().size // 2, case.sizes["vocab"], []
    valid = int(base[spec.ids].raw().reshape(-1)[place])
    bad = {"V": vocab, "-1": -1, "2^31": 2**31, "2^32+id": 2**32 + valid, "2^63-1": 2**63 - 1}
    for label, value in bad.items():
        ids = np.array(base[spec.ids].raw(), np.int64)
        ids.reshape(-1)[place] = value
        at = place if spec.outputs[0] in spec.row_outputs else 0
        inputs = base.but(**{spec.ids: of_raw(ids, "int64")})
        found.append(Rejected(f"{spec.ids} {label}", inputs, at))
    return found


def not_positive(session: Session, case: Case) -> Measured:
    """log p <= 0, also where one logit is all of the sum."""
    inputs = session.spec.build(case)
    outcome = session.forward(inputs)
    for name in session.spec.outputs_of(inputs):
        values = outcome.outputs[name].values()
        if (values > 0).any():
            raise Failure("positive", f"{name}: expected <= 0, got {np.nanmax(values):.9g}")
    return {}


def linear_row_sum(session: Session, case: Case) -> Measured:
    """The exact dZ of a row sums to 0: with a column of ones in weight, that column of dHidden
    is 0, and so is the sum of dBias."""
    spec = session.spec
    inputs = spec.build(case)
    weight = inputs["weight"].values()
    weight[:, -1] = 1.0
    inputs = inputs.but(weight=of(weight, case.dtype))
    upstream = spec.upstream(case, inputs)
    gradients = session.gradient(inputs, upstream).gradients
    exact = session.expected(case, inputs).gradients(upstream)
    sums = {"hidden": (gradients["hidden"].values()[..., -1], exact["hidden"].bound[..., -1])}
    if "bias" in gradients:
        sums["bias"] = (gradients["bias"].values().sum(), exact["bias"].bound.sum())
    for name, (got, bound) in sums.items():
        _expect_within("row_sum", name, got, np.zeros_like(got), bound)
    return {}


def linear_in_upstream(session: Session, case: Case) -> Measured:
    """grad(a) + grad(b) = grad(a + b), within the three bounds."""
    spec = session.spec
    inputs = spec.build(case)
    rng = case.rng("linear")
    # Multiples of 1/64: their sum is exact.
    a, b = (np.round(rng.normal(size=inputs.lead) * 64) / 64 for _ in range(2))
    got, allowed = [], []
    for g in (a, b, a + b):
        names = [name for name in spec.outputs_of(inputs) if name in spec.grad_arguments]
        upstream = dict.fromkeys(names, of(g, "float32"))
        got.append(session.gradient(inputs, upstream).gradients)
        allowed.append(session.expected(case, inputs).gradients(upstream))
    for name in spec.needs(inputs):
        first, second, both = (part[name].values() for part in got)
        bound = sum(part[name].bound for part in allowed)
        _expect_within("not_linear", name, first + second, both, bound)
    return {}


def bias_shift(session: Session, case: Case) -> Measured:
    """The same number added to every logit changes nothing but rounding."""
    spec = session.spec
    base = spec.build(case)
    vocab = base["weight"].shape[0]
    # Multiples of 1/8 below 1, and 8: both sums are exact in every storage type.
    bias = np.round(case.rng("shift").uniform(-1, 1, size=vocab) * 8) / 8
    outputs, bounds = [], []
    for shift in (0.0, 8.0):
        inputs = base.but(bias=of(bias + shift, case.dtype))
        outputs.append(session.forward(inputs).outputs)
        bounds.append(session.expected(case, inputs).outputs)
    for name in spec.outputs_of(base):
        before, after = (part[name].values() for part in outputs)
        bound = bounds[0][name].bound + bounds[1][name].bound
        _expect_within("not_shift_invariant", name, after, before, bound)
    return {}


def linear_outputs_beside(session: Session, case: Case) -> Measured:
    """log p has the same bits whatever is asked for beside it."""
    spec = session.spec
    alone = spec.build(case)
    beside = alone.but(**dict.fromkeys(spec.output_options, True))
    if session.candidate.refuses(spec, beside):
        return {}
    first = spec.outputs[0]
    before, after = (session.forward(inputs).outputs[first] for inputs in (alone, beside))
    where = same_bits(before, after)
    if where is not None:
        raise Failure("beside_variant", f"{first}{list(where)}: other bits beside other outputs")
    return {}


def _expect_within(kind: str, name: str, got: Any, wanted: Any, bound: Any) -> None:
    exact = Bounded(np.asarray(wanted), np.asarray(bound))
    found = deviation(np.asarray(got), exact, "float64")
    if found.worst > 1.0:
        raise Failure(kind, f"{name}: off by {found.max_abs:.3g}, {found.worst:.3g} of the bound")
