# SPDX-License-Identifier: Apache-2.0
"""logp for the checker: linear_logp's rows and options, with logits in place of a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import rules
from ..case import Case, Inputs
from ..contract import Coefficients
from ..oracle import Bounded, LinearLogprob, LogitRows, linear_logprob, logit_gradient
from ..spec import Adapter, Changes
from ..stats_oracle import NAMES as STATS
from . import linear_logp_inputs as inputs_of
from .linear_logp import LinearLogp, flat, row_options, torch_linear_logp


def shape(lead: tuple[int, ...], vocab: int, **more: Any) -> Changes:
    return {"lead": lead, "sizes": {"vocab": vocab}, **more}


class Logp(LinearLogp):
    """log p of one target id a row, entropy, log-sum-exp and statistics of
    z = cap(logit_scale * logits) / temperature."""

    name = "logp"
    op_class = "logprob"
    row_inputs: tuple[str, ...] = ("logits", "target", "temperature", "mask")
    differentiable = ("logits",)
    row_outputs: tuple[str, ...] = ("logp", "entropy", "lse", *STATS, "logits")
    axes: Mapping[str, tuple[str, ...]] = {"logits": ("vocab",)}
    option_sets: Sequence[Mapping[str, Any]] = tuple(
        {k: v for k, v in o.items() if k != "bias"} for o in inputs_of.OPTION_SETS
    )
    own_options = ("mask", "target")
    sizes = ("vocab",)
    # Sizes around the leaves of 128 and 192 and around vector widths, odd, no rows.
    shapes: Sequence[Changes] = (
        shape((2, 8), 257),
        shape((1, 1), 1),
        shape((3,), 2),
        shape((), 17),
        shape((15,), 127),
        shape((1, 5), 193),
        shape((16,), 192),
        shape((1, 17), 384),
        shape((33,), 4099),
        shape((0,), 64),
        shape((1, 24), 32003),
        *(shape((3,), vocab) for vocab in inputs_of.UNEVEN),
        *(shape((2,), vocab, **flat(value)) for vocab, value in inputs_of.FLAT),
    )
    specialized_shapes: Sequence[Changes] = (
        shape((2, 8), 257),
        shape((1, 1), 1),
        shape((1, 5), 385),
        shape((33,), 4099),
    )
    invariant: Sequence[Changes] = (
        shape((2, 65), 257, options={"ignored": 0}),
        shape((2, 65), 385, options=inputs_of.OPTION_SETS[-1]),
    )
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

    def draw(self, case: Case) -> dict[str, Any]:
        return inputs_of.draw_logits(case)

    def vocab_of(self, inputs: Inputs) -> int:
        return int(inputs[self.differentiable[0]].shape[-1])

    def oracle(
        self, inputs: Inputs, active: np.ndarray, c: Mapping[str, float]
    ) -> tuple[Any, LinearLogprob]:
        with_entropy = "entropy" in self.outputs_of(inputs)
        return logit_oracle(inputs, active, c, "logits", "target", with_entropy)

    def row_gradients(
        self,
        inputs: Inputs,
        rows: Any,
        upstream: Mapping[str, np.ndarray],
        forward: LinearLogprob,
        coefficients: Coefficients,
    ) -> dict[str, Bounded]:
        c = coefficients(self.op_class + "_grad", inputs["logits"].dtype)
        return {"logits": logit_gradient(rows, upstream, forward, c)}

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {
            "logp_not_positive": rules.not_positive,
            "linear_in_upstream": rules.linear_in_upstream,
            "outputs_beside": rules.linear_outputs_beside,
        }


def logit_oracle(
    inputs: Inputs,
    active: np.ndarray,
    c: Mapping[str, float],
    logits: str,
    ids: str,
    with_entropy: bool = False,
) -> tuple[LogitRows, LinearLogprob]:
    """The active tokens of logits that have this name, and what is exact of them."""
    values = inputs.active_rows(logits, active)
    rows = LogitRows(**row_options(inputs, active, ids), logits=values)
    return rows, linear_logprob(rows, c, with_entropy)


def policy_gradient(
    case: Case,
    rows: LogitRows,
    policy: LinearLogprob,
    active: np.ndarray,
    factor: Bounded,
    coefficients: Coefficients,
) -> Bounded:
    """Gradient of policy_logits from that of the active log-probs, which may be off itself."""
    c = coefficients("logprob_grad", case.dtype)
    exact = logit_gradient(rows, {"logp": factor.value}, policy, c)
    unit = np.abs(logit_gradient(rows, {"logp": np.ones_like(factor.value)}, policy, c).value)
    more = np.where(unit > 0, factor.bound[:, None], 0.0) * unit
    # A masked column has no gradient, whatever the row's: 0 times an infinite one is none.
    masked = rows.logits == -np.inf
    value, bound = (np.where(masked, 0.0, x) for x in (exact.value, exact.bound + more))
    return Bounded(value, bound).spread(active)


def torch_logp(logits: Any, target: Any, **options: Any) -> Any:
    """log_softmax and gather, on the active rows."""
    return torch_linear_logp(logits, None, target, **options)
