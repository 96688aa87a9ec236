# SPDX-License-Identifier: Apache-2.0
"""Inputs and cases of ppo_loss: how tokens are drawn for each kind, and what garbage looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlk._loss_options import SWITCHES

from ..case import Case, Inputs
from ..loss_oracle import DEFAULTS
from ..spec import Liveness, OpSpec, parser_of, yes_or_no
from ..stored import LAYOUTS, Stored, encode, of

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
ADVERSARIAL = tuple(kind for kind in KINDS if kind not in ("random", "benchmark", "constant"))
WILD = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 200.0])
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
PROMPTS = {"loss_reduction": "prompt_mean", "samples_per_prompt": 3}
SEQUENCES = {"loss_reduction": "sequence_mean"}
# A value of an option that must show in loss and gradient, and what switches the option on.
LIVE: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "dialect": ("liger", {}),
    "policy_loss": ("gpg", {}),
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
    "kl_coef": (0.6, NEEDS_KL),
    "kl_estimator": ("k1", NEEDS_KL),
    "kl_gradient": ("unbiased", NEEDS_KL),
    "kl_weight": ("ratio", NEEDS_KL),
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
    pairs["loss_weights"] = base, {"loss_weights": of(weights, "float32")}
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


OPTION_VALUES: Mapping[str, Callable[[str], Any]] = {
    **{name: parser_of(name, value) for name, value in DEFAULTS.items() if name[:5] != "group"},
    "mask": str,
    "loss_weights": yes_or_no,
}


def build(case: Case) -> Inputs:
    """Draws the inputs of a case."""
    rng, shape = case.rng("tokens"), case.lead
    spread = {"benchmark": 0.1, "near": 1e-4}.get(case.kind, 0.5)

    def normal(scale: float) -> np.ndarray:
        return np.asarray(scale * rng.normal(size=shape))

    log_probs = np.asarray(-rng.exponential(1.5, shape))
    values = {name: log_probs + normal(spread) for name in ROWS if name != "advantages"}
    values |= {"log_probs": log_probs, "advantages": normal(1.0)}
    values["entropy"] = np.abs(normal(1.0))
    mask = _mask(case, rng)
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
    weights = np.abs(normal(0.1)) if case.options.get("loss_weights") else None
    stored: dict[str, Any] = {**DEFAULTS, "loss_weights": None, "loss_mask": None}
    given = {k: v for k, v in case.options.items() if k in DEFAULTS}
    stored |= given
    for name, value in values.items():
        stored[name] = of(value, case.dtype, _layout(case))
    if mask is not None:
        kind = str(case.options.get("mask", "bool"))
        stored["loss_mask"] = of(mask, kind, _layout(case))
    if weights is not None:
        stored["loss_weights"] = of(weights, "float32", _layout(case))
    names = [name for name in (*ROWS, "loss_mask", "loss_weights") if stored[name] is not None]
    inputs = Inputs(stored, case.lead, tuple(names))
    if case.kind == "garbage" and mask is not None:
        inputs = with_garbage(inputs, ~mask.reshape(-1), case.rng("garbage"))
    return inputs


def with_garbage(inputs: Inputs, where: np.ndarray, rng: np.random.Generator) -> Inputs:
    """Anything in the rows `where` of every tensor but mask and weights."""
    changed = {}
    for name in ROWS:
        stored: Stored = inputs[name].clone()
        raw = stored.raw()
        wild = encode(rng.choice(WILD, inputs.lead), stored.dtype)
        raw[...] = np.where(where.reshape(inputs.lead), wild, raw)
        changed[name] = stored
    return inputs.but(**changed)


def suite(dtype: str, specialized: bool, seed: int) -> list[Case]:
    """Every kind, layout and option set at one size, then the sizes."""
    base = case(dtype, (4, 19), seed=seed)
    everything = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}
    found = [base]
    found += [base.but(kind=kind) for kind in KINDS if kind != "random"]
    found += [base.but(kind=kind, options={"kl_coef": 0.1}) for kind in ("near", "far")]
    found += [base.but(kind=kind, options=everything) for kind in KINDS]
    found += [base.but(layout=layout) for layout in LAYOUTS[1:]]
    found += [base.but(options=options) for options in OPTION_SETS[1:]]
    for lead in ((1, 1), (3,), (0,), (2, 0), (1, 4099), (130, 3)):
        found.append(case(dtype, lead, seed=seed + 1))
    return found[:42] if specialized else found


def random_case(rng: np.random.Generator, seed: int) -> Case:
    """Any dtype, size, kind, layout and options."""
    lead = (int(rng.integers(1, 9)), int(rng.integers(0, 70)))
    options = dict(OPTION_SETS[rng.integers(len(OPTION_SETS))])
    if rng.random() < 0.5:
        options |= {"eps_clip_high": float(np.float32(rng.uniform(0.05, 0.6)))}
    kind, layout = str(rng.choice(list(KINDS))), str(rng.choice(LAYOUTS))
    dtype = str(rng.choice(("float32", "float16", "bfloat16")))
    return case(dtype, lead, kind, layout, options, seed)


def case(
    dtype: str,
    lead: tuple[int, ...],
    kind: str = "random",
    layout: str = "contiguous",
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Case:
    return Case("ppo_loss", dtype, lead, {}, kind, layout, options or {}, seed)


def _mask(case: Case, rng: np.random.Generator) -> np.ndarray | None:
    if case.kind == "none_active":
        return np.zeros(case.lead, bool)
    if case.options.get("mask") == "none":
        return None
    return np.asarray(rng.random(case.lead) < 0.8)


def _layout(case: Case) -> str:
    # Rows that share their memory cannot hold garbage of their own.
    return "contiguous" if case.layout == "expanded" and case.kind == "garbage" else case.layout
