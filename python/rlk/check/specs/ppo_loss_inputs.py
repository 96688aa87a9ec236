# SPDX-License-Identifier: Apache-2.0
"""Inputs of ppo_loss: how tokens are drawn for each kind, and a case of each option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlk._loss_options import SWITCHES

from ..case import Case, Inputs, Liveness
from ..spec import OpSpec
from ..stored import of

KINDS = {
    "random": "log-ratios of standard deviation 0.5, ragged masks",
    "benchmark": "log-ratios of standard deviation 0.1",
    "constant": "every token the same",
    "near": "no advantages, distances to the reference of 1e-4: a loss of k3 of 1e-9",
    "far": "log-ratios up to 1000, on both sides of every clamp",
    "garbage": "NaN, infinities and wild numbers in inactive tokens",
    "nan_token": "a NaN in one active token",
    "none_active": "no active token",
    "no_advantage": "advantages of zero beside ratios of e^20",
}
ROWS = ("log_probs", "old_log_probs", "advantages", "rollout_logprobs", "ref_log_probs", "entropy")

OPTION_SETS: tuple[dict[str, Any], ...] = (
    {},
    {"mask": "none"},
    {"mask": "float32", "use_dual_clip": True, "clip_ratio_c": 1.5},
    {"delta": 1.1},
    {"policy_loss": "gspo", "delta": 2.0, "loss_reduction": "sequence_mean"},
    {"use_tis": True, "tis_imp_ratio_cap": 1.5, "mask": "int64"},
    {"use_tis": True, "tis_mode": "mask", "tis_imp_ratio_cap": 1.5, "tis_imp_ratio_floor": 0.5},
    {"use_tis": True, "tis_level": "sequence", "tis_imp_ratio_cap": 2.0},
    {"use_tis": True, "tis_level": "geometric", "tis_mode": "band", "tis_imp_ratio_floor": 0.9},
    {"kl_coef": 0.1},
    {"kl_coef": 0.1, "kl_estimator": "k2", "kl_weight": "ratio"},
    {"kl_coef": 0.1, "kl_gradient": "unbiased", "kl_output_clamp": 10.0},
    {"kl_coef": 0.1, "kl_estimator": "k1", "kl_reduction": "sequence_mean"},
    {"kl_coef": 0.1, "kl_estimator": "abs", "entropy_coef": 0.02},
    {"policy_loss": "gspo", "loss_reduction": "sequence_mean_valid"},
    {"policy_loss": "gspo", "loss_reduction": "token_sum"},
    {"ratio_level": "sequence", "kl_coef": 0.1, "kl_weight": "ratio"},
    {"ratio_level": "sequence", "advantage_level": "sequence", "use_dual_clip": True},
    {"ratio_level": "sequence", "policy_loss": "sapo", "importance_weights": True},
    {
        "ratio_level": "sequence",
        "advantage_level": "ratio",
        "use_tis": True,
        "tis_mode": "mask",
        "tis_rejected": "leave",
        "tis_imp_ratio_cap": 1.5,
    },
    {"importance_weights": True, "use_dual_clip": True},
    {"kl_coef": 0.1, "kl_estimator": "k1", "kl_gradient": "importance"},
    {"kl_coef": 0.1, "kl_weight": "ratio", "kl_ratio": "rollout", "kl_output_clamp": 1.0},
    {"policy_loss": "gspo", "kl_coef": 0.1, "kl_weight": "ratio", "kl_ratio": "token"},
    {"loss_reduction": "sequence_sum"},
    {"policy_loss": "cispo", "cispo_bounds": "eps", "eps_clip_high": 2.0},
    {"policy_loss": "sapo", "loss_reduction": "sequence_mean"},
    {"policy_loss": "gpg", "use_tis": True, "kl_coef": 0.1},
    {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 64},
    {"loss_reduction": "prompt_mean", "samples_per_prompt": 1},
    {"loss_reduction": "token_sum"},
    {"global_tokens": 1000},
    {"log_ratio_clamp": np.inf, "eps_clip_low": 0.1, "eps_clip_high": 0.3},
    {"loss_weights": True},
)

NEEDS_TIS = {"use_tis": True, "tis_imp_ratio_cap": 1.2, "tis_imp_ratio_floor": 0.8}
NEEDS_KL = {"kl_coef": 0.3}
GIVEN_WEIGHTS = ("loss_weights", "importance_weights")
PROMPTS = {"loss_reduction": "prompt_mean", "samples_per_prompt": 3}
SEQUENCES = {"loss_reduction": "sequence_mean"}
# A value of an option that must show in loss and gradient, and what switches the option on.
LIVE: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "dialect": ("liger", {}),
    "policy_loss": ("gpg", {}),
    "ratio_level": ("sequence", {}),
    "advantage_level": ("sequence", {}),
    "loss_reduction": ("sequence_mean", {}),
    "eps_clip_low": (0.9, {}),
    "eps_clip_high": (1.5, {}),
    "use_dual_clip": (True, {"clip_ratio_c": 1.05}),
    "clip_ratio_c": (1.05, {"use_dual_clip": True, "clip_ratio_c": 2.0}),
    "delta": (1.1, {}),
    "cispo_bounds": ((0.9, 1.1), {"policy_loss": "cispo"}),
    "sapo_tau_pos": (2.0, {"policy_loss": "sapo"}),
    "sapo_tau_neg": (2.0, {"policy_loss": "sapo"}),
    "log_ratio_clamp": (0.1, {}),
    "gspo_log_ratio_clamp": (0.01, {"policy_loss": "gspo"}),
    "use_tis": (True, {}),
    "tis_mode": ("mask", NEEDS_TIS),
    "tis_level": ("sequence", NEEDS_TIS),
    "tis_imp_ratio_cap": (1.1, NEEDS_TIS),
    "tis_imp_ratio_floor": (0.95, NEEDS_TIS),
    "tis_log_clamp": (0.05, NEEDS_TIS),
    "tis_overflow": ("zero", {"use_tis": True, "tis_level": "sequence"}),
    "tis_rejected": ("leave", {**NEEDS_TIS, "tis_mode": "mask", "ratio_level": "sequence"}),
    "kl_coef": (0.6, NEEDS_KL),
    "kl_estimator": ("k1", NEEDS_KL),
    "kl_gradient": ("unbiased", NEEDS_KL),
    "kl_weight": ("ratio", NEEDS_KL),
    "kl_ratio": ("rollout", {**NEEDS_KL, "kl_weight": "ratio"}),
    "kl_clamp": (0.05, NEEDS_KL),
    "kl_output_clamp": (0.01, NEEDS_KL),
    "kl_reduction": ("token_sum", NEEDS_KL),
    "entropy_coef": (0.5, {"entropy_coef": 0.2}),
    "max_seq_len": (50, {"loss_reduction": "token_sum_over_L", "max_seq_len": 64}),
    "samples_per_prompt": (2, PROMPTS),
    "global_tokens": (1000, {}),
    "global_sequences": (50, SEQUENCES),
    "global_groups": (50, PROMPTS),
}


def liveness(spec: OpSpec, built: Callable[..., Inputs], old: str) -> list[Liveness]:
    """Of all options that the op takes from the table. `built` makes six sequences with the options
    that it is given; `old` is what the log-probs before the update are called."""
    base = built()
    shape = base[old].shape
    before = base[old].values()
    pairs = {name: (built(**more), {name: value}) for name, (value, more) in LIVE.items()}
    # Weights of e^100 that fp32 does not hold.
    overflow, zero = pairs["tis_overflow"]
    pairs["tis_overflow"] = overflow.but(rollout_logprobs=of(before - 100.0, "float32")), zero
    for name, switch in SWITCHES.items():
        on = built(**{switch: LIVE[switch][0]})
        pairs[name] = on, {name: of(before + 0.25, "float32")}
    weights = np.linspace(0.1, 0.2, before.size).reshape(shape)
    for name in GIVEN_WEIGHTS:
        pairs[name] = base, {name: of(weights, "float32")}
    mask = np.arange(before.size).reshape(shape) % 2 == 0
    pairs["loss_mask"] = base, {"loss_mask": of(mask, "bool")}
    uneven = {"samples_per_prompt": None, "group_boundaries": of(np.array([0, 1, 6]), "int64")}
    pairs["group_boundaries"] = built(**PROMPTS), uneven
    # A bonus on the entropy has a gradient of its own alone where the entropy is given.
    places = {"entropy_coef": ("loss", "entropy"), "entropy": ("loss",)}
    if "entropy" not in spec.defaults:
        places = {}
    return [
        Liveness(name, without, without.but(**change), places.get(name, spec.differentiable))
        for name, (without, change) in pairs.items()
        if name in spec.defaults
    ]


def draw(case: Case) -> dict[str, Any]:
    """All tensors of a token each, mask and weights where the case has them."""
    rng, shape = case.rng("tokens"), case.lead
    spread = {"benchmark": 0.1, "near": 1e-4}.get(case.kind, 0.5)

    def normal(scale: float) -> np.ndarray:
        return np.asarray(scale * rng.normal(size=shape))

    log_probs = np.asarray(-rng.exponential(1.5, shape))
    values = {name: log_probs + normal(spread) for name in ROWS if name != "advantages"}
    values |= {"log_probs": log_probs, "advantages": normal(1.0)}
    values["entropy"] = np.abs(normal(1.0))
    mask = None if case.options.get("mask") == "none" else np.asarray(rng.random(shape) < 0.8)
    if case.kind == "none_active":
        mask = np.zeros(shape, bool)
    if case.kind == "near":
        values["advantages"] = np.zeros(shape)
    if case.kind == "constant":
        constant = float(case.options.get("constant_value", -1.0))
        values = dict.fromkeys(ROWS, np.full(shape, constant))
    if case.kind == "far":
        far = rng.choice([0.0, 19.0, -19.0, 25.0, -25.0, 1e3, -1e3], shape)
        values["old_log_probs"] = log_probs - far
        values["rollout_logprobs"] = values["old_log_probs"] - rng.permuted(far)
        values["ref_log_probs"] = log_probs + rng.permuted(far)
    if case.kind == "no_advantage":
        values["advantages"] = np.where(rng.random(shape) < 0.5, 0.0, values["advantages"])
        values["old_log_probs"] = np.where(values["advantages"] == 0, log_probs - 30, log_probs)
    if case.kind == "nan_token" and log_probs.size:
        flat = values["log_probs"].reshape(-1).copy()
        active = np.flatnonzero(np.ones(flat.size) if mask is None else mask.reshape(-1))
        flat[active[:1]] = np.nan
        values["log_probs"] = flat.reshape(shape)
    weights = {
        name: np.abs(normal(0.1)) if case.options.get(name) else None for name in GIVEN_WEIGHTS
    }
    return {**values, "loss_mask": mask, **weights}
