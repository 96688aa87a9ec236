# SPDX-License-Identifier: Apache-2.0
"""ratio_kl for the checker: logp's rows and options, and both policies' log-probs through exp
and k."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case, Inputs, Liveness
from ..checks import Session
from ..contract import Coefficients
from ..frameworks import Failure
from ..oracle import Bounded, Expected, LinearLogprob
from ..spec import Adapter, Changes, OpSpec
from ..stored import Stored, of
from . import linear_logp_inputs as inputs_of
from .linear_logp import live_changes, torch_active
from .logp import Logp, logit_oracle, policy_gradient, shape, torch_logp

Array = Any  # NumPy arrays
# What logp's inputs are called here.
NAMES = {"logits": "policy_logits", "target": "action_ids", "mask": "attention_mask"}
KL_SETS: tuple[dict[str, Any], ...] = (
    {"kl": "k1"},
    {"kl": "abs", "mask": "bool"},
    {"kl": "k2", "temperature": 0.7},
    {"kl_gradient": "unbiased"},
    {"kl_gradient": "importance", "kl_clamp": 0.25},
    {"kl_gradient": "importance", "kl": "k2"},
    {"kl": "k1", "kl_clamp": 0.25},
    {"log_ratio_clamp": 0.5},
)
# A value of each own option that must show in the gradient.
LIVE: Mapping[str, Any] = {
    "kl": "k1",
    "kl_gradient": "unbiased",
    "kl_clamp": 0.05,
    "log_ratio_clamp": 0.05,
}
DISTANCES = np.array([0.0, 19.0, -19.0, 25.0, -25.0, 1e3, -1e3])  # on both sides of every clamp


class RatioKl(Logp):
    """exp(log p - old) and k(ref - log p) of one token id a row."""

    name = "ratio_kl"
    op_class = "ratio"
    over_ranks = False
    row_inputs = (*NAMES.values(), "temperature", "ref_logits", "old_logps")
    ids, mask = "action_ids", "attention_mask"
    float32_inputs = frozenset({"temperature", "old_logps"})
    outputs = ("ratio", "kl")
    of_ids = outputs
    output_options: frozenset[str] = frozenset()
    outputs_from = staticmethod(OpSpec.outputs_from)
    grad_arguments = {"ratio": "grad_ratio", "kl": "grad_kl"}
    differentiable = ("policy_logits",)
    row_outputs = ("ratio", "kl", "policy_logits")
    axes: Mapping[str, tuple[str, ...]] = {"policy_logits": ("vocab",)}
    kinds = {
        **inputs_of.KINDS,
        "near": "references of 1e-4 away: k3 of 1e-9",
        "far": "log-ratios and distances to the reference of up to 1000, beyond every clamp",
    }
    option_sets = (
        *({k: v for k, v in o.items() if "return" not in k} for o in Logp.option_sets),
        *KL_SETS,
    )
    shapes = (
        shape((2, 8), 257),
        shape((1, 1), 1),
        shape((3,), 2),
        shape((), 17),
        shape((1, 5), 193),
        shape((0,), 64),
        shape((33,), 1030),
        *(shape((3,), vocab) for vocab in inputs_of.UNEVEN),
        *(shape((2,), vocab, kind="flat") for vocab, _ in inputs_of.FLAT),
    )
    specialized_shapes = shapes[:1]
    specialized_most = 24
    combinations: Sequence[Changes] = tuple(
        {"kind": kind, "options": options}
        for options in ({"kl": "k1"}, {"kl": "k2"}, {"kl_gradient": "unbiased"})
        for kind in ("near", "far", "garbage")
    )
    invariant = (
        shape((2, 65), 257, options={"ignored": 0}),
        shape((2, 65), 257, options={"kl": "k2", "mask": "bool"}),
    )
    more_adapters: Mapping[str, Adapter] = {}
    torch_reference = staticmethod(lambda **arguments: torch_ratio_kl(**arguments))

    def draw(self, case: Case) -> dict[str, Any]:
        like = {"near": "random", "far": "random"}.get(case.kind, case.kind)
        values = inputs_of.draw_logits(case.but(kind=like))
        rng, x = case.rng("reference"), values["logits"]
        ids = np.clip(values["target"], 0, x.shape[-1] - 1)
        log_probs = np.take_along_axis(log_softmax(x), ids[..., None], -1)[..., 0]
        old = np.where(np.isfinite(log_probs), log_probs, -5.0) + 0.3 * rng.normal(size=case.lead)
        ref = x + (1e-4 if case.kind == "near" else 0.3) * rng.normal(size=x.shape)
        if case.kind == "neg_inf_target":  # both at -inf would be no distance
            ref = np.where(x == -np.inf, -3.0, ref)
        if case.kind == "far":
            old, ref = far_away(rng, old, ref)
        named = {NAMES.get(name, name): value for name, value in values.items()}
        return {**named, "ref_logits": ref, "old_logps": old}

    def layout_of(self, case: Case, name: str) -> str:
        if name in ("ref_logits", "old_logps"):
            return "contiguous" if case.layout == "expanded" else case.layout
        return inputs_of.layout(case, "logits" if name == "policy_logits" else name)

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        c, c_ratio, c_kl = (coefficients(name, case.dtype) for name in ("logprob", "ratio", "kl"))
        active = self.active_tokens(inputs)
        rows, policy = logit_oracle(inputs, active, c, "policy_logits", "action_ids")
        _, ref = logit_oracle(inputs, active, c, "ref_logits", "action_ids")
        old = inputs.active_rows("old_logps", active)
        with np.errstate(all="ignore"):
            ratio, ratio_slope = _ratio(inputs, c_ratio, policy, old)
            kl, kl_slope = _kl(inputs, c_kl, policy, ref)

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            with np.errstate(all="ignore"):
                a = _product(upstream["ratio"].values()[active], ratio_slope)
                b = _product(upstream["kl"].values()[active], kl_slope)
            factor = Bounded(a.value + b.value, a.bound + b.bound)
            exact = policy_gradient(case, rows, policy, active, factor, coefficients)
            return {"policy_logits": exact}

        outputs = {"ratio": ratio.spread(active, 1.0), "kl": kl.spread(active)}
        return Expected(outputs, gradients)

    def liveness(self, case: Case) -> list[Liveness]:
        base = self.build(case.but(kind="random", options=self.all_active))
        changes = {**{n: {n: v} for n, v in LIVE.items()}, **live_changes(self, base)}
        far = of(base["old_logps"].values() + 1.0, "float32")
        changes["ref_logps"] = {"ref_logits": None, "ref_logps": far}
        return [Liveness(n, base, base.but(**c), self.differentiable) for n, c in changes.items()]

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {"kl_not_negative": kl_not_negative}


def log_softmax(x: Array) -> Array:
    most = x.max(-1, initial=-np.inf, keepdims=True)
    with np.errstate(all="ignore"):
        away = x - np.where(np.isfinite(most), most, 0.0)
        return away - np.log(np.exp(away).sum(-1, keepdims=True))


def far_away(rng: np.random.Generator, old: Array, ref: Array) -> tuple[Array, Array]:
    """Log-probs and logits at distances beyond every clamp."""
    away = np.where(np.arange(ref.shape[-1]) % 3 == 0, 300.0, 0.0)
    return old - rng.choice(DISTANCES, old.shape), ref + away


def kl_not_negative(session: Session, case: Case) -> dict[str, Any]:
    """k3 >= 0, also where the policies are all but one."""
    inputs = session.spec.build(case.but(kind="near", options={}))
    kl = session.forward(inputs).outputs["kl"].values()
    if (kl < 0).any():
        raise Failure("accuracy", f"kl: expected >= 0, got {kl.min():.9g}")
    return {}


def _ratio(
    inputs: Inputs, c: Mapping[str, float], policy: LinearLogprob, old: Array
) -> tuple[Bounded, Bounded]:
    """The ratio and its derivative."""
    most, delta = inputs["log_ratio_clamp"], policy.logp - old
    off = policy.bound + 2.0**-23 * (np.abs(old) + np.abs(delta))
    off = np.where(np.isfinite(off), off, 0.0)
    ratio = np.exp(np.clip(delta, -most, most))
    bound = ratio * np.maximum(c["logits_rtol"], c["rtol"] + off)
    slope = np.where(np.abs(delta) > most, 0.0, ratio)
    ties = np.abs(np.abs(delta) - most) <= off
    return Bounded(ratio, bound), Bounded(slope, np.where(ties, np.inf, bound))


def _most(kind: str, kl_clamp: float | None) -> float:
    if kl_clamp is not None:
        return kl_clamp
    return 20.0 if kind == "k3" else np.inf


def _kl(
    inputs: Inputs, c: Mapping[str, float], policy: LinearLogprob, ref: LinearLogprob
) -> tuple[Bounded, Bounded]:
    """The KL estimate and its derivative; `off` is how far e may be."""
    kind, e = inputs["kl"], ref.logp - policy.logp
    most = _most(kind, inputs["kl_clamp"])
    off = policy.bound + ref.bound + 2.0**-23 * np.abs(e)
    off = np.where(np.isfinite(off), off, 0.0)
    clipped, beyond = np.clip(e, -most, most), np.abs(e) > most
    curve = np.exp(clipped)
    value, slope, slope_off = {
        "k1": (-clipped, np.ones_like(e), np.zeros_like(e)),
        "abs": (np.abs(clipped), -np.sign(e), np.zeros_like(e)),
        "k2": (clipped * clipped / 2, -e, off),
        "k3": (
            np.expm1(clipped) - clipped,
            -np.expm1(clipped),
            curve * off + c["rtol"] * np.abs(np.expm1(clipped)),
        ),
    }[kind]
    reach = np.abs(slope) * np.maximum(c["logits_expm1_rtol"], off)
    bound = c["atol"] + c["rtol"] * np.abs(value) + reach + off * off * np.maximum(curve, 1.0)
    ties = np.abs(np.abs(e) - most) <= off
    ties |= (np.abs(e) <= off) & (kind == "abs")
    if inputs["kl_gradient"] == "unbiased":
        slope, slope_off = -e, off
    else:
        if inputs["kl_gradient"] == "importance":
            slope, slope_off = value + slope, bound + slope_off
        slope = np.where(beyond, 0.0, slope)
    return Bounded(value, bound), Bounded(slope, np.where(ties, np.inf, slope_off))


def _product(upstream: Array, slope: Bounded) -> Bounded:
    """Taken where the slope is not 0 alone."""
    value = np.where(slope.value == 0, 0.0, upstream * slope.value)
    error = np.abs(upstream) * slope.bound + 2.0**-22 * np.abs(value)
    return Bounded(value, np.where(upstream == 0, 0.0, error))


def torch_ratio_kl(
    policy_logits: Any,
    ref_logits: Any,
    action_ids: Any,
    attention_mask: Any,
    old_logps: Any,
    kl: str = "k3",
    kl_gradient: str = "pathwise",
    kl_clamp: float | None = None,
    log_ratio_clamp: float = 20.0,
    **options: Any,
) -> Any:
    """As PyTorch users write it, from the log_softmax of both logits; masked before exp."""
    import torch

    ids = action_ids.long()
    active = torch_active(ids, attention_mask, options.get("ignore_index", -100))
    log_prob = torch_logp(policy_logits, ids, mask=active, **options)
    ref = torch_logp(ref_logits, ids, mask=active, **options).detach()
    none = torch.zeros_like(log_prob)
    delta = torch.where(active, log_prob - old_logps, none)
    e = torch.where(active, ref - log_prob, none)
    most = _most(kl, kl_clamp)
    clipped = e.clamp(-most, most)
    value = {
        "k1": -clipped,
        "abs": clipped.abs(),
        "k2": clipped * clipped / 2,
        "k3": torch.expm1(clipped) - clipped,
    }[kl]
    if kl_gradient != "pathwise":
        inside = (e.abs() <= most) | (kl_gradient == "unbiased")
        through = e * e / 2
        if kl_gradient == "importance" and kl != "k3":  # of k3 it is that, without what cancels
            through = value + value.detach() * log_prob
        through = torch.where(active & inside, through, none)
        value = value.detach() + through - through.detach()
    return delta.clamp(-log_ratio_clamp, log_ratio_clamp).exp(), value
