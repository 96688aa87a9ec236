# SPDX-License-Identifier: Apache-2.0
"""Inputs of linear_ppo_loss and linear_grpo_loss: how tokens are drawn for each kind, and a case of
each option."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import Case, Inputs, Liveness
from ..spec import OpSpec
from ..stored import Stored, of, of_raw
from . import linear_logp_inputs, ppo_loss_inputs
from .linear_logp import live_changes
from .ratio_kl import log_softmax

Array = Any  # NumPy arrays
KINDS = {
    "random": "log-ratios of standard deviation 0.3",
    "benchmark": "the benchmarks' head, log-ratios of standard deviation 0.1",
    "constant": "every value the same",
    "flat": "logits of standard deviation 1e-5 around one value, as a fresh head's",
    "offset": "1e4 added to every logit",
    "neg_inf": "masked vocabulary: columns at -inf",
    "dominant": "one logit far over all others",
    "near": "no advantages, references of 1e-4 away",
    "far": "log-ratios up to 1000, on both sides of every clamp",
    "garbage": "NaN, infinity and out-of-range ids in the inactive tokens",
    "nan_row": "a NaN in one token",
    "none_active": "no active token",
}
HEAD = ("hidden", "weight", "bias")
OF_LOGITS: tuple[dict[str, Any], ...] = (
    {},
    {"bias": "none"},
    {"bias": "float32", "temperature": 0.7},
    {"temperature": "row", "mask": "bool"},
    {"softcap": 3.0, "logit_scale": 0.5, "mask": "int32", "target": "int32"},
    {"ignore_index": 0, "mask": "float32", "grad_scale": 0.25},
)
OF_PPO: tuple[dict[str, Any], ...] = (
    {"kl_coef": 0.1},
    {"kl_coef": 0.3, "kl_estimator": "k1", "kl_gradient": "unbiased", "temperature": 1.5},
    {"kl_coef": 0.3, "kl_estimator": "k2", "kl_weight": "ratio", "mask": "bool"},
    {"kl_coef": 0.1, "kl_reduction": "sequence_mean", "bias": "none"},
    {"entropy_coef": 0.02},
    {"entropy_coef": 0.02, "softcap": 3.0, "temperature": 0.7},
    {"use_tis": True, "tis_imp_ratio_cap": 1.5},
    {"use_tis": True, "tis_level": "sequence", "tis_mode": "mask", "tis_imp_ratio_cap": 2.0},
    {"use_dual_clip": True, "clip_ratio_c": 1.5, "loss_reduction": "seq_mean_token_sum"},
    {"policy_loss": "gspo", "loss_reduction": "sequence_mean_valid"},
    {"ratio_level": "sequence", "kl_coef": 0.1, "kl_weight": "ratio"},
    {"policy_loss": "cispo"},
    {"policy_loss": "sapo", "loss_reduction": "token_sum"},
    {"policy_loss": "gpg", "global_tokens": 1000},
    {"loss_reduction": "prompt_mean", "samples_per_prompt": 1},
    {"loss_weights": True},
    {"importance_weights": True},
    {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02},
)
OF_GRPO: tuple[dict[str, Any], ...] = (
    {"beta": 0.0},
    {"beta": 0.5, "clip_eps": 0.1, "mask": "bool"},
    {"beta": 0.5, "kl_estimator": "k1", "bias": "none"},
    {"beta": 0.5, "kl_estimator": "k2", "loss_reduction": "sequence_mean"},
    {"beta": 0.5, "kl_gradient": "unbiased", "entropy_coef": 0.02},
    {"use_dual_clip": True, "normalize": "center"},
    {"policy_loss": "gspo"},
    {"samples": 6, "loss_reduction": "token_sum"},
)


def tokens_of(case: Case) -> tuple[int, ...]:
    """The shape of the tokens; `sizes` has a length where a row of the case is a sequence."""
    if len(case.lead) == 2 or "length" not in case.sizes:
        return case.lead
    return (*case.lead, case.sizes["length"])


def draw(case: Case, has_ref: bool) -> dict[str, Any]:
    """By the names of linear_ppo_loss, with a reference where `has_ref`."""
    shape, rng, o = tokens_of(case), case.rng("loss"), case.options
    drawn = linear_logp_inputs.draw(case.but(lead=shape))
    mask = drawn.pop("mask")
    if case.kind == "none_active":
        mask = np.zeros(shape, bool)
    spread = {"benchmark": 0.1, "near": 1e-4}.get(case.kind, 0.3)

    def normal(scale: float, shape: tuple[int, ...] = shape) -> Array:
        return np.asarray(scale * rng.normal(size=shape))

    now = _log_probs(case, drawn)
    old = now + normal(spread)
    advantages = normal(1.0)
    if case.kind == "near":
        advantages = np.zeros(shape)
    if case.kind == "far":
        far = rng.choice([0.0, 19.0, -19.0, 25.0, -25.0, 1e3, -1e3], shape)
        old = now - far
        if case.dtype == "float16":  # which holds no gradient of ratios of e^19
            advantages = np.where(far > 0, np.abs(advantages), advantages)
    given = {
        **drawn,
        "old_log_probs": old,
        "advantages": advantages,
        "loss_mask": mask,
        **{n: np.abs(normal(0.1)) if o.get(n) else None for n in ppo_loss_inputs.GIVEN_WEIGHTS},
    }
    if o.get("use_tis"):
        given["rollout_logprobs"] = old + normal(0.3)
    if has_ref:
        for name in HEAD:
            value = drawn[name]
            away = 0.0 if value is None or name == "bias" else normal(spread, value.shape)
            scale = 0.1 if name == "weight" and case.kind != "flat" else float(name == "hidden")
            given[f"ref_{name}"] = None if value is None else value + scale * away
    return given


def _log_probs(case: Case, drawn: dict[str, Any]) -> Array:
    """Of the targets, roughly: of the head before it is rounded; -1 where there is none."""
    o, bias, heat = case.options, drawn["bias"], np.asarray(drawn["temperature"])
    with np.errstate(all="ignore"):
        logits = drawn["hidden"] @ drawn["weight"].T
        logits = float(o.get("logit_scale", 1.0)) * (logits if bias is None else logits + bias)
        if "softcap" in o:
            logits = o["softcap"] * np.tanh(logits / o["softcap"])
        logs = log_softmax(logits / heat[..., None])
        ids = drawn["target"].clip(0, logits.shape[-1] - 1)[..., None]
        found = np.take_along_axis(logs, ids, -1)[..., 0]
    return np.where(np.isfinite(found), found, -1.0)


def liveness(
    spec: OpSpec, case: Case, old: str, options: dict[str, Any], more: dict[str, Any]
) -> list[Liveness]:
    """Six sequences whose reference is given, with each option that both ops have. `old` is what
    the log-probs before the update are called, `options` are the case's, `more` are inputs."""
    base = spec.build(case.but(kind="random", options={"bias": "none", **options}))
    before, shape = base[old].values(), base["target"].shape
    noise = 0.3 * case.rng("rollout").normal(size=shape)
    base = base.but(rollout_logprobs=of(before + noise, "float32"), **more)

    def built(**own: Any) -> Inputs:
        names = {} if "kl_coef" in spec.defaults else {"kl_coef": "beta"}
        return base.but(**{names.get(name, name): value for name, value in own.items()})

    ramp = np.linspace(-1.0, 1.0, case.sizes["vocab"])
    changes = {**live_changes(spec, base), "bias": {"bias": of(ramp, case.dtype)}}
    return [
        *ppo_loss_inputs.liveness(spec, built, old),
        *(Liveness(name, base, base.but(**change)) for name, change in changes.items()),
        Liveness("grad_scale", base, base.but(grad_scale=0.5), spec.differentiable),
    ]


def live_reference(spec: OpSpec, case: Case, options: dict[str, Any]) -> list[Liveness]:
    """The parts of a reference's head."""
    base = spec.build(case.but(kind="random", options=options))
    found = []
    for name in (f"ref_{name}" for name in HEAD):
        other = 0.5 * base[name].values()
        change = {name: of(other, base[name].dtype)}
        found.append(Liveness(name, base, base.but(**change), spec.differentiable))
    return found


def ref_log_probs(base: Inputs, old: str) -> dict[str, Any]:
    """In place of a reference's head, 1 over what is called `old`."""
    name = "ref_logps" if old == "old_logps" else "ref_log_probs"
    away = of(base[old].values() + 1.0, "float32")
    return {name: away, **{f"ref_{part}": None for part in HEAD}}


def flat(tokens: Stored) -> Stored:
    """Tokens [B, T, ...] as [B * T, ...]."""
    raw = tokens.raw()
    return of_raw(raw.reshape(-1, *raw.shape[2:]), tokens.dtype)
