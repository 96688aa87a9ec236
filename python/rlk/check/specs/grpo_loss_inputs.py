# SPDX-License-Identifier: Apache-2.0
"""Inputs of grpo_loss: how sequences are drawn for each kind, and a case of each option."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import Case, Inputs, Liveness
from ..spec import OpSpec
from ..stored import Stored, of, of_raw
from . import group_advantages, ppo_loss_inputs
from .linear_logp import live_changes
from .ratio_kl import far_away, log_softmax

Array = Any  # NumPy arrays
KINDS = {
    "random": "log-ratios of standard deviation 0.3, ragged masks",
    "benchmark": "log-ratios of standard deviation 0.1",
    "constant": "every logit and reward the same",
    "flat": "logits of standard deviation 1e-5",
    "near": "equal rewards, references of 1e-4 away: a loss of k3 of 1e-9",
    "far": "log-ratios and distances to the reference of hundreds, beyond every clamp",
    "garbage": "NaN, infinities and wild ids in inactive tokens",
    "nan_token": "a NaN in one active token",
    "none_active": "no active token",
    "equal": "groups of equal rewards",
}
OPTION_SETS: tuple[dict[str, Any], ...] = (
    {},
    {"mask": "none"},
    {"mask": "float32", "beta": 0.0},
    {"beta": 0.5, "clip_eps": 0.1},
    {"beta": 0.5, "kl_estimator": "k1", "mask": "int64"},
    {"beta": 0.5, "kl_estimator": "k2", "loss_reduction": "sequence_mean"},
    {"beta": 0.5, "kl_gradient": "unbiased"},
    {"use_dual_clip": True, "normalize": "center"},
    {"temperature": 0.7, "softcap": 3.0, "logit_scale": 0.5},
    {"samples": 6, "loss_reduction": "token_sum"},
    {"ignored": 0.3},
)


def draw(case: Case) -> dict[str, Any]:
    """Tensors of a token or a sequence each; a lead of two is sequences and tokens."""
    rng, o = case.rng("tokens"), case.options
    vocab = case.sizes["vocab"]
    tokens = case.lead if len(case.lead) == 2 else (*case.lead, case.sizes.get("length", 7))
    lead = tokens[:1]
    spread = {"benchmark": 0.1, "near": 1e-4}.get(case.kind, 0.3)
    policy = 2.0 * rng.normal(size=(*tokens, vocab))
    ref = policy + spread * rng.normal(size=policy.shape)
    if case.kind == "flat":
        policy, ref = 0.5e-5 * policy, 0.5e-5 * ref
    rewards = rng.normal(size=lead)
    if case.kind == "constant":
        value = float(o.get("constant_value", 0.5))
        policy, ref, rewards = (np.full_like(x, value) for x in (policy, ref, rewards))
    samples = samples_of(case)
    if case.kind in ("near", "equal"):
        rewards = np.repeat(rewards[::samples], samples)
    ids = rng.integers(0, vocab, tokens)
    if "token_value" in o:
        ids = np.full(tokens, o["token_value"])
    log_probs = np.take_along_axis(log_softmax(policy), ids[..., None], -1)[..., 0]
    old = log_probs + spread * rng.normal(size=tokens)
    if case.kind == "far":
        old, ref = far_away(rng, old, ref)
    ids = np.where(rng.random(tokens) < o.get("ignored", 0.0), -100, ids)
    mask: Array = rng.random(tokens) < 0.8
    if mask.size > 1:
        mask.reshape(-1)[[0, -1]] = True, False
    if case.kind == "nan_token" and mask.size:
        mask.reshape(-1)[0] = True
        ids.reshape(-1)[0] = 0
        policy.reshape(-1)[0] = np.nan
    if case.kind == "none_active":
        mask = np.zeros(tokens, bool)
    elif o.get("mask") == "none":
        mask = None
    temperature = o.get("temperature", 1.0)
    if temperature == "row":
        temperature = rng.uniform(0.5, 1.5, size=tokens)
    return {
        "policy_logits": policy,
        "ref_logits": ref,
        "action_ids": ids,
        "old_logps": old,
        "rewards": rewards,
        "samples_per_prompt": samples,
        "completion_mask": mask,
        "temperature": temperature,
    }


def samples_of(case: Case) -> int:
    """How many sequences a group has; all, where they do not divide."""
    count = case.lead[0]
    samples = int(case.options.get("samples", 4))
    return samples if count % samples == 0 else count


def liveness(spec: OpSpec, case: Case) -> list[Liveness]:
    """Six sequences, with each option of theirs and of the ops that the loss is made of."""
    sizes = {**case.sizes, "length": 40}
    base = spec.build(case.but(kind="random", lead=(6,), sizes=sizes, options={"samples": 3}))
    old, shape = base["old_logps"].values(), base["action_ids"].shape
    noise = 0.3 * case.rng("rollout").normal(size=shape)
    base = base.but(rollout_logprobs=of(old + noise, "float32"))

    def built(**options: Any) -> Inputs:
        return base.but(**{{"kl_coef": "beta"}.get(k, k): v for k, v in options.items()})

    own: dict[str, dict[str, Any]] = {
        "beta": {"beta": 0.5},
        "clip_eps": {"clip_eps": 0.02},
        "ref_logps": {"ref_logits": None, "ref_logps": of(old + 1.0, "float32")},
        **live_changes(spec, base),
    }
    pairs = {name: (base, change) for name, change in own.items()}
    for name, (value, more) in group_advantages.LIVE.items():
        pairs[name] = base.but(**more), {name: value}
    packed = base.but(
        loss_reduction="sequence_mean",
        **{name: _packed(base[name]) for name in base.row_names if name != "rewards"},
        rollout_logprobs=None,
    )
    even, uneven = (
        of(np.array(starts), "int64")
        for starts in (range(0, old.size + 1, shape[1]), [0, 1, 3, 6, 10, 20, old.size])
    )
    pairs["cu_seqlens"] = packed.but(cu_seqlens=even), {"cu_seqlens": uneven}
    return [
        *ppo_loss_inputs.liveness(spec, built, "old_logps"),
        *(Liveness(n, a, a.but(**b), spec.differentiable) for n, (a, b) in pairs.items()),
    ]


def _packed(tokens: Stored) -> Stored:
    """Tokens [B, T, ...] as [B * T, ...]."""
    raw = tokens.raw()
    return of_raw(raw.reshape(-1, *raw.shape[2:]), tokens.dtype)
