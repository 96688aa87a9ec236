# SPDX-License-Identifier: Apache-2.0
"""logp for the checker: linear_logp's rows and options, with logits in place of a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import rules
from ..case import Case, Inputs, flat_rows
from ..contract import Contract
from ..oracle import Bounded, LinearLogprob, LogitRows, linear_logprob, logit_gradient
from ..spec import Adapter, Expected
from ..stored import LAYOUTS, Stored, decode
from . import linear_logp_inputs as draw
from .linear_logp import LinearLogp, spread_rows, torch_linear_logp

OPTION_SETS = tuple({k: v for k, v in o.items() if k != "bias"} for o in draw.OPTION_SETS)
# (lead, V): sizes around the leaves of 128 and 192 and around vector widths, odd, no rows.
SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 8), 257),
    ((1, 1), 1),
    ((3,), 2),
    ((), 17),
    ((15,), 127),
    ((1, 5), 193),
    ((16,), 192),
    ((1, 17), 384),
    ((33,), 4099),
    ((0,), 64),
    ((1, 24), 32003),
)
SPECIALIZED_SHAPES = (((2, 8), 257), ((1, 1), 1), ((1, 5), 385), ((33,), 4099))


class Logp(LinearLogp):
    """log p of one target id a row, entropy and log-sum-exp of
    z = cap(logit_scale * logits) / temperature."""

    name = "logp"
    op_class = "logprob"
    row_inputs = ("logits", "target", "temperature", "mask")
    differentiable = ("logits",)
    axes = {"logp": (), "entropy": (), "lse": (), "logits": ("vocab",)}
    row_outputs: tuple[str, ...] = ("logp", "entropy", "lse", "logits")
    option_sets = OPTION_SETS
    option_values = {k: v for k, v in draw.OPTION_VALUES.items() if k != "bias"}
    more_adapters: Mapping[str, Adapter] = {
        "cross_entropy": Adapter(
            # (logits, target) -> -log p, nothing ignored.
            lambda function, a: -function(a["logits"], a["target"]),
            frozenset(),
        ),
    }
    torch_reference = staticmethod(lambda **arguments: torch_logp(**arguments))

    def plain_options(self, kind: str) -> Sequence[Mapping[str, Any]]:
        return ({},)

    def build(self, case: Case) -> Inputs:
        return draw.build(case, self.row_inputs)

    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        return self.differentiable

    def oracle(
        self, case: Case, inputs: Inputs, active: np.ndarray, c: Mapping[str, float]
    ) -> tuple[Any, LinearLogprob]:
        rows = logit_rows(inputs, active)
        return rows, linear_logprob(rows, c, "entropy" in self.outputs_of(inputs))

    def expected_gradients(
        self,
        case: Case,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        forward: Expected,
        contract: Contract,
        arch: str | None,
    ) -> Mapping[str, Bounded]:
        c = contract.coefficients(self.op_class + "_grad", case.dtype, arch)
        rows, logprob, active = forward.state
        g = {
            name: decode(flat_rows(one, len(inputs.lead)), one.dtype)[active]
            for name, one in upstream.items()
        }
        exact = logit_gradient(rows, g, logprob, c)
        shape = inputs["logits"].shape
        value, bound = (spread_rows(x, active).reshape(shape) for x in (exact.value, exact.bound))
        return {"logits": Bounded(value, bound)}

    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        base = _case(dtype, *SHAPES[0], seed=seed)
        every = {"return_entropy": True, "return_lse": True}
        found = [base.but(kind=kind) for kind in self.kinds]
        found += [base.but(layout=layout) for layout in LAYOUTS[1:]]
        found += [base.but(kind="garbage", layout=layout) for layout in ("strided", "transposed")]
        found += [base.but(options=options) for options in OPTION_SETS[1:] if options]
        found += [base.but(kind=kind, options=every) for kind in self.adversarial]
        found += [base.but(kind=kind, options={"softcap": 2.0}) for kind in ("offset", "neg_inf")]
        for lead, vocab in (SPECIALIZED_SHAPES if specialized else SHAPES)[1:]:
            found.append(_case(dtype, lead, vocab, seed=seed + 1))
        return found

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        plain = _case(dtype, (2, 65), 257, seed=seed, options={"ignored": 0})
        return [plain, _case(dtype, (2, 65), 385, seed=seed, options=dict(OPTION_SETS[-1]))]

    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        linear = super().random_case(rng, seed)
        options = {k: v for k, v in linear.options.items() if k != "bias"}
        vocab, kind = linear.sizes["vocab"], linear.kind
        return _case(linear.dtype, linear.lead, vocab, kind, linear.layout, options, seed)

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {
            "logp_not_positive": rules.not_positive,
            "linear_in_upstream": rules.linear_in_upstream,
            "outputs_beside": rules.linear_outputs_beside,
        }


def _case(
    dtype: str,
    lead: tuple[int, ...],
    vocab: int,
    kind: str = "random",
    layout: str = "contiguous",
    options: dict[str, Any] | None = None,
    seed: int = 0,
) -> Case:
    return Case("logp", dtype, lead, {"vocab": vocab}, kind, layout, options or {}, seed)


def logit_rows(inputs: Inputs, active: np.ndarray) -> LogitRows:
    """The active rows in float64; plain numbers are rounded to fp32 first, as the op says."""

    def rows(name: str) -> np.ndarray:
        values = decode(flat_rows(inputs[name], len(inputs.lead)), inputs[name].dtype)
        return np.asarray(values[active])

    temperature, softcap = inputs["temperature"], inputs["softcap"]
    return LogitRows(
        rows("logits"),
        rows("target").astype(np.int64),
        rows("temperature")
        if isinstance(temperature, Stored)
        else np.full(int(active.sum()), float(np.float32(temperature))),
        None if softcap is None else float(np.float32(softcap)),
        float(np.float32(inputs["logit_scale"])),
    )


def torch_logp(logits: Any, target: Any, **options: Any) -> Any:
    """log_softmax and gather, on the active rows."""
    return torch_linear_logp(logits, None, target, **options)
