# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's clipped policy loss and its log-probs of logits.

    from rlk.integrations import nemo_rl

    nemo_rl.patch()  # in each worker, before training

`ClippedPGLossFn` keeps its options, its checks of them and its metrics; `clipped_pg_loss` computes.
Log-probs of logits that one process holds whole are `rlk.jit.logp`; those that are split over ranks
or filtered by top-k or top-p stay NeMo-RL's. Tried with NeMo-RL 0.6.0 (7ea279a).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlk import jit
from rlk.errors import fail, text
from rlk.integrations._config import clip_low
from rlk.integrations._named_loss import ppo_loss
from rlk.integrations._nemo_rl_metrics import at_least_one, mean_weight, of_tokens, share
from rlk.integrations._patch import Patch, Seam

__all__ = ["clipped_pg_loss", "patch", "unpatch"]

Tensor = Any
inf = float("inf")
#: What errors of the op call its arguments.
NAMES = {
    "log_probs": "next_token_logprobs",
    "old_log_probs": "prev_logprobs",
    "loss_mask": "token_mask",
    "ref_log_probs": "reference_policy_logprobs",
    "rollout_logprobs": "generation_logprobs",
    "global_tokens": "global_valid_toks",
    "global_sequences": "global_valid_seqs",
    "eps_clip_low": "ratio_clip_min",
    "eps_clip_high": "ratio_clip_max",
    "clip_ratio_c": "ratio_clip_c",
    "kl_coef": "reference_policy_kl_penalty",
    "kl_estimator": "reference_policy_kl_type",
    "kl_clamp": "kl_input_clamp_value",
    "kl_output_clamp": "kl_output_clamp_value",
}
KL_TYPES = ("k1", "k2", "k3")
#: Values of truncated_importance_sampling_type.
TRUNCATIONS = ("tis", "icepop", "seq-mask-tis")


def clipped_pg_loss(
    loss_fn: Any,
    next_token_logprobs: Tensor,
    data: Mapping[str, Tensor],
    global_valid_seqs: Tensor,
    global_valid_toks: Tensor,
) -> tuple[Tensor, dict[str, Any]]:
    """The loss of a ClippedPGLossFn, whose method ``__call__`` it replaces.

    Args:
        loss_fn: the ClippedPGLossFn, or an object with its attributes (those of its config, and
            loss_type). All are honoured.
        next_token_logprobs: ``[B, T - 1]``, any floating dtype.
        data: advantages, prev_logprobs, generation_logprobs, reference_policy_logprobs and
            token_mask ``[B, T]``, sample_mask ``[B]`` (both of 0 and 1), and, where they are there,
            curr_logprobs_unfiltered ``[B, T - 1]`` and rewards ``[B]``.
        global_valid_seqs, global_valid_toks: counts over all micro-batches and ranks, one element.

    Returns:
        (loss, metrics): float32 of 0 dimensions, and NeMo-RL's numbers by its names. The metrics
        wait for the device, once.

    Raises:
        rlk.InvalidArgument: as `rlk.jit.ppo_loss`, and for masks that hold parts of 1.

    Example:
        >>> loss, metrics = ClippedPGLossFn(config)(log_probs, data, num_sequences, num_tokens)
    """
    log_probs = next_token_logprobs
    token_mask, sample_mask = data["token_mask"][:, 1:], data["sample_mask"]
    weighted = token_mask * sample_mask.unsqueeze(-1)
    mask = weighted.bool()
    generation = data["generation_logprobs"][:, 1:]
    # NeMo-RL computes no log-probs of the previous policy where the policy is still that one.
    is_on_policy = loss_fn.force_on_policy_ratio
    old = log_probs.detach() if is_on_policy else data["prev_logprobs"][:, 1:]
    weights, outside = _importance_weights(loss_fn, old - generation, mask)
    shared: dict[str, Any] = {"dialect": "nemo", **_reduction(loss_fn)}
    if shared["loss_reduction"] == "token_mean":
        shared["global_tokens"] = _count(global_valid_toks, log_probs)
    else:
        shared["global_sequences"] = _count(global_valid_seqs, log_probs)
    kl = _kl(loss_fn, data, generation)
    unfiltered = data.get("curr_logprobs_unfiltered")
    is_apart = bool(kl) and unfiltered is not None  # the KL is of other log-probs than the policy's
    loss, parts = ppo_loss(
        NAMES,
        log_probs,
        old,
        data["advantages"][:, 1:],
        mask,
        **shared,
        **_policy(loss_fn),
        **({} if is_apart else kl),
        importance_weights=weights if loss_fn.use_importance_sampling_correction else None,
    )
    if unfiltered is not None and is_apart:
        nothing = torch.zeros_like(sample_mask, dtype=torch.float32)
        of_kl, parts = ppo_loss(
            NAMES, unfiltered, unfiltered.detach(), nothing, mask, policy_loss="gpg", **shared, **kl
        )
        loss = loss + of_kl
    positive = _positive_nll(loss_fn, log_probs, data, mask)
    if positive is not None:
        loss = loss + loss_fn.positive_example_nll_weight * positive
    with torch.no_grad():
        counts = (global_valid_seqs, global_valid_toks)
        found = of_tokens(loss_fn, log_probs, old, generation, mask, global_valid_toks)
        found["sampling_importance_ratio"] = mean_weight(weights, mask, sample_mask, *counts)
        if outside is not None:
            found["is_oob_ratio"] = share(outside, mask, sample_mask, *counts)
        found["num_valid_samples"] = sample_mask.sum()
        found["loss"] = loss
        zero = torch.zeros((), device=mask.device)
        found["positive_nll_loss"] = zero if positive is None else positive
        found["kl_penalty"] = parts.kl_loss if kl else zero
        tensors = (*found.values(), (weighted != mask).any())
        *values, is_part = torch.stack([x.detach().float().reshape(()) for x in tensors]).tolist()
    if is_part:
        fail("ppo_loss", "sample_mask", "0 or 1, as in token_mask", "another value in one of them")
    return loss, dict(zip(found, values, strict=True))


def _policy(loss_fn: Any) -> dict[str, Any]:
    if loss_fn.force_on_policy_ratio:  # the ratio is 1, and carries the gradient
        return {"policy_loss": "ppo", "eps_clip_low": 1.0, "eps_clip_high": inf}
    if loss_fn.disable_ppo_ratio:
        return {"policy_loss": "gpg"}
    clip = {
        "eps_clip_low": clip_low(loss_fn.ratio_clip_min),
        "eps_clip_high": loss_fn.ratio_clip_max,
    }
    if loss_fn.use_cispo:
        return {"policy_loss": "cispo", **clip}
    level = "sequence" if loss_fn.sequence_level_importance_ratios else "token"
    found = {"policy_loss": "ppo", "ratio_level": level, **clip}
    if loss_fn.ratio_clip_c is not None:
        found |= {"use_dual_clip": True, "clip_ratio_c": loss_fn.ratio_clip_c}
    return found


def _reduction(loss_fn: Any) -> dict[str, str]:
    by_token = loss_fn.loss_type.value == "token_level"
    return {"loss_reduction": "token_mean" if by_token else "sequence_mean_valid"}


def _kl(loss_fn: Any, data: Mapping[str, Tensor], generation: Tensor) -> dict[str, Any]:
    kind = loss_fn.reference_policy_kl_type
    if kind not in KL_TYPES:  # metrics are of it without a penalty too
        fail("ppo_loss", "reference_policy_kl_type", ", ".join(KL_TYPES), text(kind))
    if loss_fn.reference_policy_kl_penalty == 0:
        return {}
    clamps = (loss_fn.kl_input_clamp_value, loss_fn.kl_output_clamp_value)
    found = {
        "kl_coef": loss_fn.reference_policy_kl_penalty,
        "kl_estimator": kind,
        "kl_clamp": inf if clamps[0] is None else clamps[0],
        "kl_output_clamp": inf if clamps[1] is None else clamps[1],
        "kl_gradient": "importance",
        "ref_log_probs": data["reference_policy_logprobs"][:, 1:],
    }
    if loss_fn.use_on_policy_kl_approximation:
        found |= {"kl_weight": "ratio", "kl_ratio": "rollout", "rollout_logprobs": generation}
    return found


def _importance_weights(
    loss_fn: Any, log_weights: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Constant weights ``[B, T]`` or ``[B, 1]``, and which of them the truncation changes."""
    with torch.no_grad():
        log_weights = torch.where(mask, log_weights, 0.0)
        if loss_fn.sequence_level_importance_ratios:
            log_weights = log_weights.sum(-1, keepdim=True)
        weights = torch.nan_to_num(log_weights.exp(), nan=0.0, posinf=0.0, neginf=0.0)
        high = loss_fn.truncated_importance_sampling_ratio
        kind = loss_fn.truncated_importance_sampling_type
        if kind is None and high is None:
            return weights, None
        if kind not in TRUNCATIONS:
            name = "truncated_importance_sampling_type"
            fail("ppo_loss", name, ", ".join(TRUNCATIONS), text(kind))
        if high is None:
            name = "truncated_importance_sampling_ratio"
            fail("ppo_loss", name, "a number with a type", "None")
        low = loss_fn.truncated_importance_sampling_ratio_min or 0.0
        if kind == "tis":
            return weights.clamp(low, high), (weights < low) | (weights > high)
        if kind == "icepop":
            inside = (weights >= low) & (weights <= high)
            return torch.where(inside, weights, 0.0), ~inside
        # seq-mask-tis, by the geometric mean of the sequence
        mean = log_weights.nan_to_num(0.0, 0.0, 0.0).sum(-1, keepdim=True) / at_least_one(mask)
        inside = (mean.exp() >= low) & (mean.exp() <= high)
        return torch.where(inside, weights, 0.0), ~inside.squeeze(-1)


def _positive_nll(
    loss_fn: Any, log_probs: Tensor, data: Mapping[str, Tensor], mask: Tensor
) -> Tensor | None:
    """The mean of -log p over tokens of samples with a reward above 0, of this micro-batch."""
    if not loss_fn.positive_example_nll_weight > 0 or "rewards" not in data:
        return None
    ones = torch.ones_like(data["rewards"], dtype=torch.float32)
    correct = mask & (data["rewards"] > 0).unsqueeze(-1)
    return jit.ppo_loss(log_probs, log_probs.detach(), ones, correct, policy_loss="gpg").loss


def _count(value: Any, like: Tensor) -> Tensor:
    """Of a batch without tokens, whose count is 0, every term is 0 whatever the count is."""
    return torch.as_tensor(value, device=like.device).clamp(min=1).to(torch.int64)


def _logprobs(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def get_next_token_logprobs_from_logits(
        input_ids: Tensor,
        next_token_logits: Tensor,
        seq_index: Tensor | None = None,
        vocab_parallel_rank: int | None = None,
        vocab_parallel_group: Any = None,
        context_parallel_group: Any = None,
        sampling_params: Any = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        top_k, top_p = (
            getattr(sampling_params, "top_k", None),
            getattr(sampling_params, "top_p", None),
        )
        is_filtered = (top_k is not None and top_k > 0) or top_p not in (None, 1.0)
        is_split = vocab_parallel_group is not None or hasattr(next_token_logits, "placements")
        if is_filtered or is_split:
            return original(
                input_ids,
                next_token_logits,
                seq_index=seq_index,
                vocab_parallel_rank=vocab_parallel_rank,
                vocab_parallel_group=vocab_parallel_group,
                context_parallel_group=context_parallel_group,
                sampling_params=sampling_params,
                chunk_size=chunk_size,
            )
        target = input_ids[:, 1:].to(next_token_logits.device)
        return jit.logp(next_token_logits[:, :-1], target, ignore_index=None)

    return get_next_token_logprobs_from_logits


_LOSS = "next_token_logprobs, data, global_valid_seqs, global_valid_toks"
_LOGPROBS = (
    "input_ids, next_token_logits, seq_index, vocab_parallel_rank, vocab_parallel_group, "
    "context_parallel_group, sampling_params, chunk_size"
)
_PATCH = Patch(
    "nemo_rl",
    distribution="nemo-rl",
    since="0.6.0",
    before="0.7",
    seams=(
        Seam(
            "nemo_rl.algorithms.loss.loss_functions:ClippedPGLossFn.__call__",
            lambda original: clipped_pg_loss,
            f"self, {_LOSS}",
        ),
        Seam(
            "nemo_rl.distributed.model_utils:get_next_token_logprobs_from_logits",
            _logprobs,
            _LOGPROBS,
        ),
    ),
)


def patch(*, allow_untried: bool = False) -> None:
    """Makes NeMo-RL compute its clipped policy loss and its log-probs here; once is enough.

    Args:
        allow_untried: goes on with a version that this was not tried with.

    Raises:
        rlk.LoadError: NeMo-RL cannot be imported.
        rlk.Unsupported: another version, or what would be replaced is not as it was.

    Example:
        >>> nemo_rl.patch()
    """
    _PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Puts back what `patch` replaced."""
    _PATCH.off()
