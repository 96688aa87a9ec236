# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy for the checker. A row is a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case, Inputs, Liveness
from ..contract import Coefficients
from ..options import options_of
from ..oracle import Bounded, Expected, LinearRows, chain
from ..spec import Changes
from ..stats_oracle import logit_stats
from ..stored import Stored, of
from . import linear_logp_inputs
from .linear_logp import live_changes, torch_active
from .linear_logp_inputs import KINDS
from .linear_loss import HEAD, UNEVEN, LinearLoss, linear_shape

SMOOTH = {"label_smoothing": 0.1}
SQUARE = {"lse_square_scale": 1e-3}
NONE = {"reduction": "none"}


class LinearCrossEntropy(LinearLoss):
    """(1 - e) nll + e (lse - mean z) + s lse^2, its sum or mean."""

    name = "linear_cross_entropy"
    row_inputs = ("hidden", "target", "temperature", "mask")
    float32_inputs = frozenset({"temperature"})
    outputs = ("loss", "losses")  # one of them: "losses" are those of reduction "none"
    of_ids = ("losses",)
    grad_arguments: Mapping[str, str] = {"loss": "grad_output", "losses": "grad_output"}
    row_outputs = ("losses", "hidden")
    axes: Mapping[str, tuple[str, ...]] = {
        "hidden": ("hidden",),
        "weight": ("vocab", "hidden"),
        "bias": ("vocab",),
    }
    kinds = KINDS
    forward_only = ("neg_inf_row",)  # no gradient is defined there
    option_sets: Sequence[Mapping[str, Any]] = (
        {},
        {"bias": "none"},
        {"bias": "float32", "temperature": 0.7, **SQUARE},
        {"temperature": "row", "mask": "bool", **SMOOTH},
        {"softcap": 3.0, "logit_scale": 0.5, "mask": "int32", "target": "int32"},
        {"ignore_index": 0, "reduction": "sum", "grad_scale": 0.25, "target": "int16"},
        {"mask": "float32", "ignore_index": None, "global_tokens": 1000},
        {**SMOOTH, "logit_scale": -0.5},
        {**SQUARE, "softcap": 2.0, "reduction": "sum"},
        NONE,
        {**NONE, **SMOOTH, **SQUARE, "mask": "bool", "temperature": 0.7},
    )
    shapes: Sequence[Changes] = (
        linear_shape((2, 8), 257, 96),
        linear_shape((1, 1), 1, 1),
        linear_shape((), 17, 5),
        linear_shape((3, 2, 4), 97, 33),
        linear_shape((0,), 64, 32),
        linear_shape((130,), 1000, 33),
        *(linear_shape((3,), vocab, 3) for vocab in UNEVEN),
        linear_shape((2,), 50257, 4, kind="flat"),
    )
    specialized_shapes = shapes[:1]
    specialized_most = 30
    combinations: Sequence[Changes] = (
        *({"kind": kind, "options": {**NONE, **SQUARE}} for kind in KINDS),
        *({"kind": k, "options": SMOOTH} for k in ("flat", "offset", "dominant", "garbage")),
    )
    # A token's weight follows from the number of all, but here; with label smoothing the gradients
    # have sums of torch's.
    invariant: Sequence[Changes] = tuple(
        linear_shape((2, 65), vocab, 33, options=options)
        for vocab, options in (
            (257, {"reduction": "sum", "bias": "none"}),
            (130, {**SQUARE, "reduction": "sum", "mask": "bool", "temperature": "row"}),
            (130, {**NONE, **SQUARE, "mask": "bool"}),
        )
    )
    torch_reference = staticmethod(lambda **arguments: torch_linear_cross_entropy(**arguments))
    rlk_alone = frozenset(options_of(name)) - {
        *("bias", "temperature", "softcap", "logit_scale", "ignore_index", "mask"),
        *("reduction", "label_smoothing", "lse_square_scale"),
    }

    def draw(self, case: Case) -> dict[str, Any]:
        return linear_logp_inputs.draw(case)

    def outputs_of(self, inputs: Inputs) -> tuple[str, ...]:
        return ("losses",) if inputs["reduction"] == "none" else ("loss",)

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        c = coefficients(self.op_class, case.dtype)
        c_grad = coefficients(self.op_class + "_grad", case.dtype)
        c_logp = coefficients("linear_logprob", case.dtype)
        active = self.active_tokens(inputs)
        rows, forward = self.head(inputs, active, c_logp)
        e, s = (float(np.float32(inputs[n])) for n in ("label_smoothing", "lse_square_scale"))
        weight = {"mean": 1.0 / max(inputs["global_tokens"] or active.sum(), 1)}
        w = weight.get(inputs["reduction"], 1.0)
        lse = forward.lse
        with np.errstate(all="ignore"):
            value, size = -(1 - e) * forward.logp, (1 - e) * np.abs(forward.logp)
            bound = (1 - e) * forward.bound
            if e != 0:
                mean = logit_stats(rows, forward, c_logp)["mean_logit"]
                value = value + e * (lse - mean.value)
                size = size + e * (np.abs(lse) + np.abs(mean.value))
                bound = bound + e * (forward.lse_bound + mean.bound)
            if s != 0:
                value, size = value + s * lse * lse, size + abs(s) * lse * lse
                bound = bound + abs(s) * (2 * np.abs(lse) + forward.lse_bound) * forward.lse_bound
            bound = bound + c["weight_sum_rtol"] * size + 2.0**-60
        if inputs["reduction"] == "none":
            outputs = {"losses": Bounded(value, bound).spread(active)}
        else:
            outputs = {"loss": Bounded(np.asarray((w * value).sum()), np.asarray(w * bound.sum()))}

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            (given,) = (one.values() for one in upstream.values())
            g = given[active] if given.shape else np.full(len(lse), float(given))
            g = g * w * float(np.float32(inputs["grad_scale"]))
            rtol = c_grad["rtol"] * np.abs(g)
            up = {"logp": Bounded(-(1 - e) * g, rtol)}
            if e != 0 or s != 0:
                with np.errstate(all="ignore"):
                    slope, off = e + 2 * s * lse, 2 * abs(s) * forward.lse_bound
                    off = np.abs(g) * off + rtol * (e + 2 * np.abs(s * lse))
                # A row that has no gradient has none of what is infinite.
                lse_grad, off = (np.where(g == 0, 0.0, x) for x in (g * slope, off))
                up["lse"] = Bounded(lse_grad, off)
            found = self.head_gradients(inputs, rows, forward, up, coefficients)
            if e != 0:
                found = self._with_mean(inputs, rows, found, -e * g, coefficients)
            return self.laid_out(active, found)

        return Expected(outputs, gradients)

    def _with_mean(
        self,
        inputs: Inputs,
        rows: LinearRows,
        found: Mapping[str, Bounded],
        g: np.ndarray,
        coefficients: Coefficients,
    ) -> dict[str, Bounded]:
        """The gradients with those of each row's mean logit, which are added to them as stored."""
        vocab, each = len(rows.weight), g * rows.logit_scale / rows.temperature / len(rows.weight)
        hidden = np.where(each[:, None] != 0, rows.hidden, 0.0)
        of_mean = {
            "hidden": (each[:, None] * rows.weight.sum(0), vocab),
            "weight": ((each @ hidden)[None], len(each)),
            "bias": (each.sum()[None], len(each)),
        }
        sizes = {
            "hidden": np.abs(each[:, None]) * np.abs(rows.weight).sum(0),
            "weight": (np.abs(each) @ np.abs(hidden))[None],
            "bias": np.abs(each).sum()[None],
        }
        sums = {}
        for name, one in found.items():
            c = coefficients("linear_logprob_grad", inputs[name].dtype)
            more, terms = of_mean[name]
            # Each is rounded as it is stored, and their sum.
            value = one.value + more
            rounding = c["store_rtol"] * (np.abs(more) + np.abs(value)) + 2 * c["store_atol"]
            bound = one.bound + rounding + (chain(c, terms) + 2.0**-21) * sizes[name]
            sums[name] = Bounded(value, bound)
        return sums

    def liveness(self, case: Case) -> list[Liveness]:
        base = self.build(case.but(kind="random", options={"ignored": 0, "bias": "none"}))
        ramp = np.linspace(-1.0, 1.0, case.sizes["vocab"])
        changes = {
            **live_changes(self, base),
            "bias": {"bias": of(ramp, case.dtype)},
            "label_smoothing": SMOOTH,
            "lse_square_scale": SQUARE,
            "reduction": {"reduction": "sum"},
            "global_tokens": {"global_tokens": 1000},
        }
        return [
            *(Liveness(name, base, base.but(**change)) for name, change in changes.items()),
            Liveness("grad_scale", base, base.but(grad_scale=0.5), HEAD),
        ]


def torch_linear_cross_entropy(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any = None,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    temperature: Any = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Any = None,
) -> Any:
    """F.linear and F.cross_entropy, with 0 for a mean over no token."""
    import torch
    import torch.nn.functional as F

    target = target.long()
    active = torch_active(target, mask, ignore_index).reshape(-1)
    logits = F.linear(hidden.reshape(-1, hidden.shape[-1])[active], weight, bias).float()
    logits = logits * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.reshape(-1)[active].unsqueeze(-1)
    logits, ids = logits / temperature, target.reshape(-1)[active]
    rows = F.cross_entropy(logits, ids, reduction="none", label_smoothing=label_smoothing)
    rows = rows + lse_square_scale * logits.logsumexp(-1).square()
    if reduction == "none":
        found = torch.zeros(active.shape, device=hidden.device)
        return found.index_put((active,), rows).reshape(target.shape)
    return rows.sum() / (max(len(rows), 1) if reduction == "mean" else 1)
