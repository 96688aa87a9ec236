# SPDX-License-Identifier: Apache-2.0
"""linear_logp for the checker: what it computes, what holds for it, what it must refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import rules
from ..case import Case, Inputs, flat_rows
from ..contract import Contract
from ..oracle import Bounded, LinearLogprob, LinearRows, linear_logprob, linear_logprob_gradients
from ..spec import Adapter, Expected, Liveness, OpSpec, Rejected
from ..stored import Stored, decode, of, of_raw
from . import linear_logp_inputs as draw
from . import linear_logp_suite as cases

ROW_INPUTS = ("hidden", "target", "temperature", "mask")


class LinearLogp(OpSpec):
    """log p of one target id a row, entropy and log-sum-exp of its logits
    z = cap(logit_scale * (hidden . weight^T + bias)) / temperature."""

    name = "linear_logp"
    op_class = "linear_logprob"
    outputs: tuple[str, ...] = ("logp", "entropy", "lse")
    output_options = frozenset({"return_entropy", "return_lse"})
    grad_arguments = {"logp": "grad_output", "entropy": "grad_entropy", "lse": "grad_lse"}
    row_inputs: tuple[str, ...] = ROW_INPUTS
    ids = "target"
    differentiable: tuple[str, ...] = ("hidden", "weight", "bias")
    axes = {
        "logp": (),
        "entropy": (),
        "lse": (),
        "hidden": ("hidden",),
        "weight": ("vocab", "hidden"),
        "bias": ("vocab",),
    }
    row_outputs: tuple[str, ...] = ("logp", "entropy", "lse", "hidden")
    kinds = draw.KINDS
    adversarial = draw.ADVERSARIAL
    forward_only = draw.FORWARD_ONLY
    option_sets = draw.OPTION_SETS
    option_values = draw.OPTION_VALUES
    more_adapters: Mapping[str, Adapter] = {
        "cross_entropy": Adapter(
            # Liger's order: (weight, hidden, target, bias) -> -log p, nothing ignored.
            lambda function, a: -function(a["weight"], a["hidden"], a["target"], a.get("bias")),
            frozenset({"bias"}),
        ),
    }
    torch_reference = staticmethod(lambda **arguments: torch_linear_logp(**arguments))

    def plain_options(self, kind: str) -> Sequence[Mapping[str, Any]]:
        return ({},) if draw.needs_bias(kind) else ({}, {"bias": "none"})

    def build(self, case: Case) -> Inputs:
        return draw.build(case, self.row_inputs)

    def outputs_of(self, inputs: Inputs) -> tuple[str, ...]:
        asked = {"entropy": inputs["return_entropy"], "lse": inputs["return_lse"]}
        return tuple(name for name in self.outputs if asked.get(name, True))

    def upstream(self, case: Case, inputs: Inputs) -> Mapping[str, Stored]:
        active = self.active(inputs)
        names = self.outputs_of(inputs)
        return {name: draw.upstream(case, name, active, inputs.lead) for name in names}

    def active(self, inputs: Inputs) -> np.ndarray:
        num_lead = len(inputs.lead)
        active = np.ones(inputs.num_rows, bool)
        if inputs["mask"] is not None:
            active &= flat_rows(inputs["mask"], num_lead) != 0
        if inputs["ignore_index"] is not None:
            active &= flat_rows(inputs["target"], num_lead) != inputs["ignore_index"]
        return active

    def place_of_row(self, inputs: Inputs, name: str, index: tuple[int, ...]) -> dict[str, int]:
        return {"vocab": int(inputs["target"].raw()[index])} if name == "logp" else {}

    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        return self.differentiable if inputs["bias"] is not None else ("hidden", "weight")

    def oracle(
        self, case: Case, inputs: Inputs, active: np.ndarray, c: Mapping[str, float]
    ) -> tuple[Any, LinearLogprob]:
        """The active rows and their exact outputs."""
        rows = linear_rows(inputs, active)
        return rows, linear_logprob(rows, c, "entropy" in self.outputs_of(inputs))

    def expected(
        self, case: Case, inputs: Inputs, contract: Contract, arch: str | None
    ) -> Expected:
        c = contract.coefficients(self.op_class, case.dtype, arch)
        active = self.active(inputs)
        names = self.outputs_of(inputs)
        rows, forward = self.oracle(case, inputs, active, c)
        bound = forward.bound
        if case.kind == "benchmark" and "benchmark_atol" in c:
            bound = np.minimum(bound, c["benchmark_atol"])
        exact = {
            "logp": Bounded(forward.logp, bound),
            "entropy": Bounded(forward.entropy, forward.entropy_bound),
            "lse": Bounded(forward.lse, forward.lse_bound),
        }

        def spread(rows: np.ndarray) -> np.ndarray:
            return spread_rows(rows, active).reshape(inputs.lead)

        found = {n: Bounded(spread(exact[n].value), spread(exact[n].bound)) for n in names}
        return Expected(found, (rows, forward, active))

    def expected_gradients(
        self,
        case: Case,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        forward: Expected,
        contract: Contract,
        arch: str | None,
    ) -> Mapping[str, Bounded]:
        op_class = self.op_class + "_grad"
        c = contract.coefficients(op_class, case.dtype, arch)
        rows, logprob, active = forward.state
        needs = self.needs(inputs)
        store = {n: contract.coefficients(op_class, inputs[n].dtype, arch) for n in needs}
        g = {
            name: decode(flat_rows(one, len(inputs.lead)), one.dtype)[active]
            for name, one in upstream.items()
        }
        exact = linear_logprob_gradients(rows, g, logprob, c, store)
        shape = inputs["hidden"].shape
        hidden = exact["hidden"]
        spread = (spread_rows(part, active).reshape(shape) for part in (hidden.value, hidden.bound))
        exact["hidden"] = Bounded(*spread)
        return {name: exact[name] for name in needs}

    def with_garbage(self, inputs: Inputs, where: np.ndarray, rng: np.random.Generator) -> Inputs:
        return draw.with_garbage(inputs, where, self.row_inputs, rng)

    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        return cases.suite(dtype, specialized, seed)

    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        return cases.random_case(rng, seed)

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        return cases.invariance_cases(dtype, seed)

    def liveness(self, case: Case) -> list[Liveness]:
        base = self.build(case.but(kind="random", options={"bias": "none", "ignored": 0}))
        rows, vocab = base.num_rows, case.sizes["vocab"]
        ramp = np.linspace(-1.0, 1.0, vocab)
        half = np.arange(rows) % 2 == 0
        first = int(flat_rows(base["target"], len(base.lead))[0])
        changed = {
            **({"bias": base.but(bias=of(ramp, case.dtype))} if "bias" in self.defaults else {}),
            **{name: base.but(**{name: value}) for name, value in draw.LIVE.items()},
            "mask": base.but(mask=of(half.reshape(base.lead), "bool")),
            "ignore_index": base.but(ignore_index=first),
        }
        per_row = base.but(temperature=of(np.full(base.lead, 0.5), "float32"))
        pairs = [Liveness(name, base, inputs) for name, inputs in changed.items()]
        pairs.append(Liveness("temperature", base, per_row))
        for name in ("return_entropy", "return_lse"):
            asked = base.but(**{name: True})
            pairs.append(Liveness(name, base, asked, self.differentiable))
        return pairs

    def rejected(self, case: Case) -> list[Rejected]:
        base = self.build(case.but(kind="random", options={"ignored": 0}))
        return wild_ids(base, self.ids, case.sizes["vocab"])

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {
            "logp_not_positive": rules.not_positive,
            "row_sum": rules.linear_row_sum,
            "linear_in_upstream": rules.linear_in_upstream,
            "shift": rules.bias_shift,
            "outputs_beside": rules.linear_outputs_beside,
        }


def wild_ids(inputs: Inputs, name: str, vocab: int) -> list[Rejected]:
    """The inputs with one id outside the vocabulary."""
    place, found = inputs[name].raw().size // 2, []
    valid = int(inputs[name].raw().reshape(-1)[place])
    bad = {"V": vocab, "-1": -1, "2^31": 2**31, "2^32+id": 2**32 + valid, "2^63-1": 2**63 - 1}
    for label, value in bad.items():
        ids = np.array(inputs[name].raw(), np.int64)
        ids.reshape(-1)[place] = value
        row = place * inputs.num_rows // ids.size
        found.append(Rejected(f"{name} {label}", inputs.but(**{name: of_raw(ids, "int64")}), row))
    return found


def linear_rows(inputs: Inputs, active: np.ndarray) -> LinearRows:
    """The active rows in float64; plain numbers are rounded to fp32 first, as the op says."""
    num_lead = len(inputs.lead)

    def rows(name: str) -> np.ndarray:
        values = decode(flat_rows(inputs[name], num_lead), inputs[name].dtype)
        return np.asarray(values[active])

    temperature = inputs["temperature"]
    if isinstance(temperature, Stored):
        heat = rows("temperature")
    else:
        heat = np.full(int(active.sum()), float(np.float32(temperature)))
    bias = None if inputs["bias"] is None else inputs["bias"].values()
    target = rows("target").astype(np.int64)
    softcap = inputs["softcap"]
    return LinearRows(
        rows("hidden"),
        inputs["weight"].values(),
        target,
        heat,
        bias,
        None if softcap is None else float(np.float32(softcap)),
        float(np.float32(inputs["logit_scale"])),
    )


def spread_rows(rows: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Values of active rows at their place, exact zero in the inactive ones."""
    full = np.zeros((len(active), *rows.shape[1:]))
    full[active] = rows
    return full


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
) -> Any:
    """F.linear, log_softmax, gather, on the active rows; logits in the inputs' own type."""
    import torch
    import torch.nn.functional as F

    target = target.long()  # a narrow type would wrap ignore_index
    active = torch.ones_like(target, dtype=torch.bool)
    if mask is not None:
        active &= mask != 0
    if ignore_index is not None:
        active &= target != ignore_index
    active = active.reshape(-1)
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
    if not return_entropy and not return_lse:
        return log_prob
    finite = logp.masked_fill(logp == -torch.inf, 0.0)  # 0 log 0 = 0
    entropy = spread(-(logp.exp() * finite).sum(-1)) if return_entropy else None
    return log_prob, entropy, spread(logits.float().logsumexp(-1)) if return_lse else None
