# SPDX-License-Identifier: Apache-2.0
"""linear_logp for the checker: what it computes, what holds for it, what it must refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import rules
from ..case import Case, Inputs, Liveness
from ..contract import Coefficients
from ..oracle import (
    Bounded,
    Expected,
    LinearLogprob,
    LinearRows,
    linear_logprob,
    linear_logprob_gradients,
)
from ..spec import Adapter, Changes, OpSpec, RandomShape, adversarial
from ..stats_oracle import NAMES as STATS
from ..stats_oracle import logit_stats, spread
from ..stored import Stored, of
from . import linear_logp_inputs as inputs_of

WITH_GRADIENTS = {"return_entropy": True, "return_lse": True}
EVERY_OUTPUT = {**WITH_GRADIENTS, "return_stats": True}
# (lead, V, D): one element, sizes around the leaf of 192 and around vector widths, odd, no rows.
SHAPES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((2, 8), 257, 96),
    ((1, 1), 1, 1),
    ((3,), 2, 1),
    ((), 17, 5),
    ((2, 4), 97, 33),
    ((15,), 191, 64),
    ((1, 5), 193, 17),
    ((16,), 192, 128),
    ((1, 17), 384, 63),
    ((3, 5), 1000, 129),
    ((33,), 4099, 64),
    ((0,), 64, 32),
    ((1, 24), 32003, 32),
)
# Each V and D costs a compile a pass, seconds of it with NVRTC: all specialized cases share these.
SPECIALIZED_SHAPES = (((2, 8), 257, 96), ((1, 1), 1, 1), ((1, 5), 385, 33), ((33,), 4099, 64))


def _shape(lead: tuple[int, ...], vocab: int, depth: int, **more: Any) -> Changes:
    return {"lead": lead, "sizes": {"vocab": vocab, "hidden": depth}, **more}


def flat(value: float) -> Changes:
    """Of a case whose logits are this value, nearly."""
    return {"kind": "flat", "options": {"constant_value": value, **EVERY_OUTPUT}}


def _with_and_without_bias(
    shapes: Sequence[tuple[tuple[int, ...], int, int]], *more: Changes
) -> list[Changes]:
    first, *others = (_shape(*shape) for shape in shapes)
    small = [shape for shape in others if shape["sizes"]["vocab"] < 10000]
    return [first, *others, *({**shape, "options": {"bias": "none"}} for shape in small), *more]


class LinearLogp(OpSpec):
    """log p of one target id a row, entropy, log-sum-exp and statistics of its logits
    z = cap(logit_scale * (hidden . weight^T + bias)) / temperature."""

    name = "linear_logp"
    op_class = "linear_logprob"
    row_inputs: tuple[str, ...] = ("hidden", "target", "temperature", "mask")
    ids = "target"
    float32_inputs = frozenset({"temperature"})
    outputs: tuple[str, ...] = ("logp", "entropy", "lse", *STATS)
    of_ids: tuple[str, ...] = ("logp",)
    output_options = frozenset(EVERY_OUTPUT)
    grad_arguments = {"logp": "grad_output", "entropy": "grad_entropy", "lse": "grad_lse"}
    differentiable: tuple[str, ...] = ("hidden", "weight", "bias")
    row_outputs: tuple[str, ...] = ("logp", "entropy", "lse", *STATS, "hidden")
    axes: Mapping[str, tuple[str, ...]] = {
        "hidden": ("hidden",),
        "weight": ("vocab", "hidden"),
        "bias": ("vocab",),
    }
    kinds = inputs_of.KINDS
    forward_only = ("neg_inf_row",)  # no gradient is defined there
    option_sets: Sequence[Mapping[str, Any]] = inputs_of.OPTION_SETS
    own_options: tuple[str, ...] = ("bias", "mask", "target")
    shapes: Sequence[Changes] = _with_and_without_bias(
        SHAPES,
        *(_shape((3,), vocab, 3) for vocab in inputs_of.UNEVEN),
        *(_shape((2,), vocab, 4, **flat(value)) for vocab, value in inputs_of.FLAT),
        _shape((2, 8), 1153, 64, kind="neg_inf"),
        _shape((4, 4), 4096, 256, kind="benchmark"),
    )
    specialized_shapes: Sequence[Changes] = _with_and_without_bias(
        SPECIALIZED_SHAPES,
        _shape((2, 8), 4099, 64, kind="neg_inf"),
        _shape((4, 4), 4099, 64, kind="benchmark"),
    )
    combinations: Sequence[Changes] = (
        *({"kind": "garbage", "layout": layout} for layout in ("strided", "transposed")),
        *({"kind": k, "options": EVERY_OUTPUT} for k in adversarial(inputs_of.KINDS)),
        *({"kind": kind, "options": {"softcap": 2.0}} for kind in ("offset", "neg_inf")),
        {"kind": "garbage", "options": {"mask": "bool", "temperature": "row"}},
    )
    # Enough rows for the transform batch_size, plain and with all options.
    invariant: Sequence[Changes] = (
        _shape((2, 65), 257, 96, options={"bias": "none", "ignored": 0}),
        _shape((2, 65), 385, 33, options=inputs_of.OPTION_SETS[-1]),
    )
    over_ranks = True
    more_adapters: Mapping[str, Adapter] = {
        "cross_entropy": Adapter(
            # Liger's order: (weight, hidden, target, bias) -> -log p, nothing ignored.
            lambda function, a: -function(a["weight"], a["hidden"], a["target"], a.get("bias")),
            frozenset({"bias"}),
        ),
    }
    torch_reference = staticmethod(lambda **arguments: torch_linear_logp(**arguments))

    @staticmethod
    def outputs_from(result: Any) -> Any:
        """The statistics, the fourth value where there are four, as values of their own."""
        if not isinstance(result, (tuple, list)):
            return result
        stats = result[3] if len(result) > 3 else None
        return (*result[:3], *((None,) * len(STATS) if stats is None else stats))

    def plain_options(self, kind: str) -> Sequence[Mapping[str, Any]]:
        return ({},) if inputs_of.needs_bias(kind) else ({}, {"bias": "none"})

    def draw(self, case: Case) -> dict[str, Any]:
        return inputs_of.draw(case)

    def dtype_of(self, case: Case, name: str) -> str:
        has_single = name == "bias" and case.options.get("bias") == "float32"
        return "float32" if has_single else super().dtype_of(case, name)

    def layout_of(self, case: Case, name: str) -> str:
        return inputs_of.layout(case, name)

    def outputs_of(self, inputs: Inputs) -> tuple[str, ...]:
        asked_by = {
            **{n: f"return_{n}" for n in self.outputs},
            **dict.fromkeys(STATS, "return_stats"),
        }
        return tuple(n for n in self.outputs if inputs.values.get(asked_by[n], True))

    def dtype_of_output(self, inputs: Inputs, name: str) -> str:
        return "int64" if name == "argmax" else "float32"

    def vocab_of(self, inputs: Inputs) -> int:
        return int(inputs["weight"].shape[0])

    def oracle(
        self, inputs: Inputs, active: np.ndarray, c: Mapping[str, float]
    ) -> tuple[Any, LinearLogprob]:
        """The active rows and their exact outputs."""
        bias = None if inputs["bias"] is None else inputs["bias"].values()
        rows = LinearRows(
            **row_options(inputs, active, "target"),
            hidden=inputs.active_rows("hidden", active),
            weight=inputs["weight"].values(),
            bias=bias,
        )
        return rows, linear_logprob(rows, c, "entropy" in self.outputs_of(inputs))

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        c = coefficients(self.op_class, case.dtype)
        active = self.active_tokens(inputs)
        rows, forward = self.oracle(inputs, active, c)
        bound = forward.bound
        if case.kind == "benchmark" and "benchmark_atol" in c:
            bound = np.minimum(bound, c["benchmark_atol"])
        asked = self.outputs_of(inputs)
        exact = {
            "logp": Bounded(forward.logp, bound),
            "entropy": Bounded(forward.entropy, forward.entropy_bound),
            "lse": Bounded(forward.lse, forward.lse_bound),
            **(logit_stats(rows, forward, c) if set(STATS) & set(asked) else {}),
        }

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            g = {name: one.values()[active] for name, one in upstream.items()}
            found = self.row_gradients(inputs, rows, g, forward, coefficients)
            rowwise = set(self.row_outputs)
            return {n: x.spread(active) if n in rowwise else x for n, x in found.items()}

        outputs = {name: spread(name, exact[name], active) for name in asked}
        return Expected(outputs, gradients)

    def row_gradients(
        self,
        inputs: Inputs,
        rows: Any,
        upstream: Mapping[str, np.ndarray],
        forward: LinearLogprob,
        coefficients: Coefficients,
    ) -> dict[str, Bounded]:
        """Exact gradients of active rows, and their sums."""
        op_class = self.op_class + "_grad"
        store = {n: coefficients(op_class, inputs[n].dtype) for n in self.needs(inputs)}
        return linear_logprob_gradients(rows, upstream, forward, store["hidden"], store)

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        """Small sizes mostly."""
        vocab = int(rng.choice([rng.integers(1, 40), rng.integers(1, 600), rng.integers(1, 3000)]))
        depth = int(rng.choice([rng.integers(1, 20), rng.integers(1, 300)]))
        rows = int(rng.choice([rng.integers(0, 4), rng.integers(1, 40)]))
        lead: tuple[int, ...] = (rows,)
        if rng.random() < 0.5:
            batch = int(rng.integers(1, 5))
            lead = (batch, -(-rows // batch))
        if rng.random() < 0.03:
            lead = ()
        heat = {"temperature": float(np.exp(rng.normal() * 0.5))} if rng.random() < 0.3 else {}
        return lead, self.sizes_of(vocab=vocab, hidden=depth), heat

    def liveness(self, case: Case) -> list[Liveness]:
        base = self.build(case.but(kind="random", options={**self.all_active, "bias": "none"}))
        changes = live_changes(self, base)
        if "bias" in self.defaults:
            ramp = np.linspace(-1.0, 1.0, case.sizes["vocab"])
            changes["bias"] = {"bias": of(ramp, case.dtype)}
        pairs = [Liveness(name, base, base.but(**change)) for name, change in changes.items()]
        per_row = base.but(temperature=of(np.full(base.lead, 0.5), "float32"))
        pairs.append(Liveness("temperature", base, per_row))
        for name in WITH_GRADIENTS:
            asked = base.but(**{name: True})
            pairs.append(Liveness(name, base, asked, self.differentiable))
        return pairs

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {
            "logp_not_positive": rules.not_positive,
            "row_sum": rules.linear_row_sum,
            "linear_in_upstream": rules.linear_in_upstream,
            "shift": rules.bias_shift,
            "outputs_beside": rules.linear_outputs_beside,
        }


def live_changes(spec: OpSpec, base: Inputs) -> dict[str, dict[str, Any]]:
    """Of an op of logits: a change of each option, mask included, that must show."""
    ids = base[str(spec.ids)]
    half = np.arange(ids.raw().size).reshape(ids.shape) % 2 == 0
    return {
        **{name: {name: value} for name, value in inputs_of.LIVE.items()},
        spec.mask: {spec.mask: of(half, "bool")},
        "ignore_index": {"ignore_index": int(ids.raw().reshape(-1)[0])},
    }


def row_options(inputs: Inputs, active: np.ndarray, ids: str) -> dict[str, Any]:
    """What the oracle's rows of all ops of logits have."""
    softcap = inputs["softcap"]
    return {
        "target": inputs.active_rows(ids, active).astype(np.int64),
        "temperature": inputs.active_rows("temperature", active),
        "softcap": None if softcap is None else float(np.float32(softcap)),
        "logit_scale": float(np.float32(inputs["logit_scale"])),
    }


def torch_active(ids: Any, mask: Any, ignore_index: int | None = -100) -> Any:
    """Which ids, int64, are of active rows."""
    active = (ids == ids) if mask is None else mask != 0
    return active if ignore_index is None else active & (ids != ignore_index)


def torch_linear_logp(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any = None,
    temperature: Any = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Any = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    return_stats: bool = False,
) -> Any:
    """F.linear, log_softmax, gather, on the active rows; logits in the inputs' own type."""
    import torch
    import torch.nn.functional as F

    target = target.long()  # a narrow type would wrap ignore_index
    active = torch_active(target, mask, ignore_index).reshape(-1)
    logits = hidden.reshape(-1, hidden.shape[-1])[active]
    if weight is not None:
        logits = F.linear(logits, weight)
    if bias is not None:
        logits = logits + bias
    if logit_scale != 1.0:
        logits = logits * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.reshape(-1)[active].unsqueeze(-1)
    chosen = target.reshape(-1)[active].unsqueeze(-1)
    logits = logits / temperature
    logp = F.log_softmax(logits, dim=-1, dtype=torch.float32)

    def spread(rows: Any) -> Any:
        out = torch.zeros(active.shape, dtype=torch.float32, device=hidden.device)
        return out.index_put((active,), rows).reshape(target.shape)

    log_prob = spread(logp.gather(-1, chosen).squeeze(-1))
    if not return_entropy and not return_lse and not return_stats:
        return log_prob
    finite = logp.masked_fill(logp == -torch.inf, 0.0)  # 0 log 0 = 0
    entropy = spread(-(logp.exp() * finite).sum(-1)) if return_entropy else None
    lse = spread(logits.float().logsumexp(-1)) if return_lse else None
    return (
        log_prob,
        entropy,
        lse,
        *([torch_stats(logits, logp, active, target.shape)] * return_stats),
    )


def torch_stats(logits: Any, logp: Any, active: Any, shape: Any) -> Any:
    """max, argmax, mean and sum of p^2 of the active rows' logits; none where one is NaN or inf."""
    import torch

    z, sum_p2 = logits.detach().float(), logp.detach().double().exp().square().sum(-1)
    odd = ~(z.amax(-1) < torch.inf)
    rows = (
        z.amax(-1).masked_fill(odd, torch.nan),
        z.argmax(-1).masked_fill(odd, -1),
        z.mean(-1),
        sum_p2.float(),
    )
    found = []
    for row, neutral in zip(rows, (0, -1, 0, 0), strict=True):
        out = torch.full(active.shape, neutral, dtype=row.dtype, device=row.device)
        found.append(out.index_put((active,), row).reshape(shape))
    return tuple(found)
