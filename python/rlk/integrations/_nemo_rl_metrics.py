# SPDX-License-Identifier: Apache-2.0
"""The metrics of NeMo-RL's clipped policy loss, by its names, as tensors on the device."""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any
inf = float("inf")


def at_least_one(mask: Tensor) -> Tensor:
    """The number of active tokens of each sequence, ``[B, 1]``."""
    return mask.sum(-1, keepdim=True).clamp(min=1)


def of_tokens(
    loss_fn: Any,
    log_probs: Tensor,
    old: Tensor,
    generation: Tensor,
    mask: Tensor,
    num_tokens: Any,
) -> dict[str, Tensor]:
    """Those that are means over tokens, and the extremes of the ratio."""

    def mean(values: Tensor) -> Tensor:
        return torch.where(mask, values, 0.0).sum() / (num_tokens + 1e-8)

    def extreme(values: Tensor, neutral: float) -> Tensor:
        values = torch.where(mask, values, neutral)
        if values.numel() == 0:
            return torch.full((), neutral, device=mask.device)
        return values.min() if neutral > 0 else values.max()

    ratio = _ratio(loss_fn, log_probs, old, mask)
    clamped = ratio
    if not (loss_fn.force_on_policy_ratio or loss_fn.disable_ppo_ratio):
        clamped = ratio.clamp(1.0 - loss_fn.ratio_clip_min, 1.0 + loss_fn.ratio_clip_max)
    gap = old - generation
    mixture = torch.logaddexp(old, generation) - torch.log(torch.full_like(old, 2.0))
    kind = loss_fn.reference_policy_kl_type
    to_mixture = _estimate("k3", old - mixture) + _estimate("k3", generation - mixture)
    return {
        "probs_ratio": mean(ratio),
        "probs_ratio_clamped": mean(clamped),
        "probs_ratio_min": extreme(ratio, inf),
        "probs_ratio_max": extreme(ratio, -inf),
        "probs_ratio_clamped_min": extreme(clamped, inf),
        "probs_ratio_clamped_max": extreme(clamped, -inf),
        "token_mult_prob_error": mean(gap.abs().exp()),
        "gen_kl_error": mean(_estimate(kind, gap)),
        "policy_kl_error": mean(_estimate(kind, -gap)),
        "js_divergence_error": mean(0.5 * to_mixture),
        "approx_entropy": -mean((log_probs - generation).exp() * log_probs),
    }


def _ratio(loss_fn: Any, log_probs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """What stands in the place of the ratio: without one, the log-probs."""
    if loss_fn.disable_ppo_ratio and not loss_fn.force_on_policy_ratio:
        return log_probs
    log_ratio = torch.where(mask, log_probs - old, 0.0)
    if loss_fn.sequence_level_importance_ratios and not loss_fn.force_on_policy_ratio:
        mean = log_ratio.sum(-1, keepdim=True) / at_least_one(mask)
        log_ratio = mean.expand_as(log_ratio)
    return log_ratio.exp()


def _estimate(kind: str, e: Tensor) -> Tensor:
    """k1, k2 or k3 of e = reference - log_prob."""
    if kind == "k1":
        return -e
    return e.square() / 2 if kind == "k2" else e.exp() - 1 - e


def mean_weight(
    weights: Tensor, mask: Tensor, sample_mask: Tensor, num_sequences: Any, num_tokens: Any
) -> Tensor:
    if weights.shape == mask.shape:
        return torch.where(mask, weights, 0.0).sum() / (num_tokens + 1e-8)
    # NeMo-RL multiplies [B, 1] by [B], which pairs each weight with every sample.
    return weights.sum() * sample_mask.sum() / (num_sequences + 1e-8)


def share(
    outside: Tensor, mask: Tensor, sample_mask: Tensor, num_sequences: Any, num_tokens: Any
) -> Tensor:
    """Of tokens, or, where outside is one flag a sequence, of those."""
    if outside.dim() == 1:
        return (outside * sample_mask).sum() / (num_sequences + 1e-8)
    return (outside & mask).sum() / (num_tokens + 1e-8)
