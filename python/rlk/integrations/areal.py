# SPDX-License-Identifier: Apache-2.0
"""AReaL's policy losses, its rejection sampling and its log-probs of logits.

    from rlk.integrations import areal

    areal.patch()  # in each worker, before training

`ppo_actor_loss_fn` and `sapo_loss_fn` have AReaL's arguments and results, and every option of both
is honoured. Log-probs of logits that one process holds whole are `rlk.jit.logp`; those of tensor
parallel ranks stay AReaL's. Tried with AReaL 1.0.4 (4aef98d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rlk import jit
from rlk.integrations._areal_rejection import Rejection, Sequences, reject
from rlk.integrations._config import clip_low
from rlk.integrations._named_loss import ppo_loss
from rlk.integrations._patch import Patch, Seam

__all__ = ["patch", "ppo_actor_loss_fn", "sapo_loss_fn", "unpatch"]

Tensor = Any
#: What errors of the op call its arguments.
NAMES = {
    "log_probs": "logprobs",
    "ratio_level": "importance_sampling_level",
    "eps_clip_low": "eps_clip",
    "eps_clip_high": "eps_clip_higher",
    "clip_ratio_c": "c_clip",
    "sapo_tau_pos": "tau_pos",
    "sapo_tau_neg": "tau_neg",
}


def ppo_actor_loss_fn(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    eps_clip: float,
    loss_mask: Tensor,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
    rejection_sampling: Any = None,
    importance_sampling_level: str = "token",
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """AReaL's decoupled clipped loss: the ratio is to the proximal policy.

    Args:
        logprobs, proximal_logprobs, old_logprobs, advantages: ``[B, T]``, or ``[N]`` packed.
        loss_mask: of their shape, bool.
        rejection_sampling: a RejectionSamplingConfig (level, action, metric, agg, upper, lower).
            Rejected tokens leave the sequence's means but not the count that the loss is divided
            by.
        importance_sampling_level: "token"; "sequence": ratio and advantage are the means over the
            tokens of the sequence that are left.
        cu_seqlens: ``[B + 1]``, read of packed tokens where an option is by sequence.

    Returns:
        (loss, statistics): float32 of 0 dimensions, and AReaL's tensors by token.

    Raises:
        rlk.InvalidArgument: an unknown word in an option, packed tokens without the boundaries that
            an option asks for, or as `rlk.jit.ppo_loss` (a ValueError, as AReaL's).

    Example:
        >>> loss, stat = ppo_actor_loss_fn(log_probs, proximal, old, advantages, 0.2, mask)
    """
    mask = loss_mask.bool()
    by_sequence = importance_sampling_level == "sequence"
    sequences = Sequences(logprobs, cu_seqlens)
    found = None
    if rejection_sampling is not None:
        found = reject(proximal_logprobs, old_logprobs, mask, sequences, rejection_sampling)
    left = mask if found is None else found.mask
    high = eps_clip if eps_clip_higher is None else eps_clip_higher
    loss, _ = ppo_loss(
        {**NAMES, "old_log_probs": "proximal_logprobs"},
        logprobs,
        proximal_logprobs,
        advantages,
        left,
        **_shared(importance_sampling_level, sequences, mask),
        policy_loss="ppo",
        eps_clip_low=clip_low(eps_clip),
        eps_clip_high=high,
        use_dual_clip=c_clip is not None,
        clip_ratio_c=3.0 if c_clip is None else c_clip,
        importance_weights=None if found is None else found.weights,
    )
    with torch.no_grad():
        log_ratio = logprobs - proximal_logprobs
        ratio, each_advantage = _ratio(log_ratio, advantages, left, by_sequence, sequences)
        first = -each_advantage * ratio
        second = -each_advantage * ratio.clamp(1.0 - eps_clip, 1.0 + high)
        each = torch.maximum(first, second)
        clipped, dual = (first < second) & left, torch.zeros_like(left)
        if c_clip is not None:
            third = each_advantage.abs() * c_clip
            dual = (third < each) & left
            each = torch.minimum(each, third)
        stat = {
            "loss": each if found is None else each * found.weights,
            "importance_weight": ratio,
            "approx_kl": log_ratio,
            "clip_mask": clipped,
            "dual_clip_mask": dual,
        }
        if found is not None:
            stat |= _of_rejection(found, proximal_logprobs - old_logprobs)
    return loss, stat


def sapo_loss_fn(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    tau_pos: float,
    tau_neg: float,
    loss_mask: Tensor,
    importance_sampling_level: str = "token",
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """AReaL's SAPO: a soft gate in the clip's place.

    Args:
        tau_pos, tau_neg: the gate's temperatures by the sign of the advantage, above 0.
        Others: as `ppo_actor_loss_fn`.

    Returns:
        (loss, statistics), as `ppo_actor_loss_fn`.

    Raises:
        rlk.InvalidArgument: as `ppo_actor_loss_fn`.

    Example:
        >>> loss, stat = sapo_loss_fn(log_probs, old, advantages, 1.0, 1.05, mask)
    """
    mask = loss_mask.bool()
    by_sequence = importance_sampling_level == "sequence"
    sequences = Sequences(logprobs, cu_seqlens)
    loss, _ = ppo_loss(
        {**NAMES, "old_log_probs": "old_logprobs"},
        logprobs,
        old_logprobs,
        advantages,
        mask,
        **_shared(importance_sampling_level, sequences, mask),
        policy_loss="sapo",
        sapo_tau_pos=tau_pos,
        sapo_tau_neg=tau_neg,
    )
    with torch.no_grad():
        log_ratio = logprobs - old_logprobs
        ratio, each_advantage = _ratio(log_ratio, advantages, mask, by_sequence, sequences)
        gates = [torch.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau) for tau in (tau_pos, tau_neg)]
        gate = torch.where(each_advantage > 0, gates[0], gates[1])
        stat = {
            "loss": -gate * each_advantage,
            "importance_weight": ratio,
            "approx_kl": log_ratio,
            "clip_mask": torch.zeros_like(mask),
            "dual_clip_mask": torch.zeros_like(mask),
            "sapo_soft_gate": gate,
            "sapo_scaled_gate_pos": gates[0],
            "sapo_scaled_gate_neg": gates[1],
        }
    return loss, stat


def _shared(level: str, sequences: Sequences, mask: Tensor) -> dict[str, Any]:
    """Options of both losses; the count is of the tokens before a rejection."""
    if level == "sequence":
        sequences.check("importance_sampling_level='sequence'")
    return {
        "dialect": "areal",
        "loss_reduction": "token_mean",
        "global_tokens": mask.count_nonzero().clamp(min=1),
        "ratio_level": level,
        "advantage_level": "ratio",
        "cu_seqlens": sequences.boundaries,
    }


def _ratio(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, by_sequence: bool, sequences: Sequences
) -> tuple[Tensor, Tensor]:
    """Ratio and advantage of each token; a ratio of 0 where the token is inactive."""
    if by_sequence:
        log_ratio = sequences.mean(log_ratio, mask)
        advantages = torch.where(mask, sequences.mean(advantages, mask), 0.0)
    return torch.where(mask, log_ratio.exp(), 0.0), advantages


def _of_rejection(found: Rejection, log_weights: Tensor) -> dict[str, Any]:
    kept = (found.weights > 0) & found.mask
    return {
        "behave_approx_kl": torch.where(kept, log_weights, 0.0),
        "behave_imp_weight": found.weights,
        "behave_mask": kept,
        "filtered_fraction": found.filtered_fraction,
    }


def _logprobs(return_entropy: bool) -> Callable[[Any], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def gather(
            logits: Tensor,
            labels: Tensor,
            temperature: float = 1.0,
            tp_group: Any = None,
            chunk_size: int = 1024,
        ) -> Any:
            if tp_group is not None and torch.distributed.get_world_size(tp_group) > 1:
                return original(logits, labels, temperature, tp_group, chunk_size)
            found = jit.logp(
                logits,
                labels,
                temperature=temperature,
                ignore_index=None,
                return_entropy=return_entropy,
            )
            return (found.log_prob, found.entropy) if return_entropy else found

        gather.__name__ = original.__name__
        return gather

    return make


_FUNCTIONAL = "areal.utils.functional.functional"
_VOCAB = "areal.utils.functional.vocab_parallel"
_LOGITS = "logits, labels, temperature, tp_group, chunk_size"
_PATCH = Patch(
    "areal",
    since="1.0.4",
    before="1.0.5",
    seams=(
        Seam(
            f"{_FUNCTIONAL}:ppo_actor_loss_fn",
            lambda original: ppo_actor_loss_fn,
            "logprobs, proximal_logprobs, old_logprobs, advantages, eps_clip, loss_mask, "
            "eps_clip_higher, c_clip, rejection_sampling, importance_sampling_level, cu_seqlens",
        ),
        Seam(
            f"{_FUNCTIONAL}:sapo_loss_fn",
            lambda original: sapo_loss_fn,
            "logprobs, old_logprobs, advantages, tau_pos, tau_neg, loss_mask, "
            "importance_sampling_level, cu_seqlens",
        ),
        Seam(f"{_VOCAB}:gather_logprobs", _logprobs(False), _LOGITS),
        Seam(f"{_VOCAB}:gather_logprobs_entropy", _logprobs(True), _LOGITS),
    ),
)


def patch(*, allow_untried: bool = False) -> None:
    """Makes AReaL compute its policy losses and its log-probs here; once is enough.

    Args:
        allow_untried: goes on with a version that this was not tried with.

    Raises:
        rlk.LoadError: AReaL cannot be imported.
        rlk.Unsupported: another version, or what would be replaced is not as it was.

    Example:
        >>> areal.patch()
    """
    _PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Puts back what `patch` replaced."""
    _PATCH.off()
