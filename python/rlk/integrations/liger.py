# SPDX-License-Identifier: Apache-2.0
"""Liger's fused linear GRPO loss: from hidden states to the loss without logits.

    from rlk.integrations import liger

    liger.patch()  # then LigerFusedLinearGRPOLoss computes here

Every option is honoured but "luspo" outside of its case of one column: sequence ratios without a
KL term and without weights by token. There Liger's own loss counts masked tokens; it is refused.
``compiled`` and ``chunk_size`` say how Liger computes, and change no number. Tried with
Liger-Kernel 0.8.2 (ead96b6) and 0.8.5.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from rlk import jit
from rlk.errors import fail, text
from rlk.integrations._config import clip_low
from rlk.integrations._named_loss import ppo_loss
from rlk.integrations._patch import Patch, Seam
from rlk.integrations.hf import in_one_dtype

__all__ = ["grpo_loss", "grpo_loss_of_log_probs", "patch", "unpatch"]

Tensor = Any
LOG_LEAST, LOG_MOST = math.log(1e-8), 20.0  # of VESPO's log-weights
#: Reduction by loss_type; None: a sum, divided by a count that need not be an integer.
REDUCTIONS: dict[str, str | None] = {
    "grpo": "sequence_mean",
    "sapo": "sequence_mean",
    "bnpo": "token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    "luspo": "sequence_sum",
    "dapo": None,
    "cispo": None,
    "vespo": None,
}
#: What errors of the op call its arguments.
NAMES = {
    "log_probs": "per_token_logps",
    "old_log_probs": "old_per_token_logps",
    "loss_mask": "attention_mask",
    "ref_log_probs": "ref_per_token_logps",
    "importance_weights": "vllm_is_ratio",
    "max_seq_len": "max_completion_length",
    "eps_clip_low": "epsilon_low",
    "eps_clip_high": "epsilon_high",
    "sapo_tau_pos": "sapo_temperature_pos",
    "sapo_tau_neg": "sapo_temperature_neg",
    "kl_coef": "beta",
}
POLICY_LOSSES = {"cispo": "cispo", "sapo": "sapo", "vespo": "gpg"}  # of the others: ppo


def grpo_loss(
    loss_fn: Any,
    _input: Tensor,
    lin_weight: Tensor,
    selected_token_ids: Tensor,
    attention_mask: Tensor,
    advantages: Tensor,
    bias: Tensor | None = None,
    ref_per_token_logps: Tensor | None = None,
    old_per_token_logps: Tensor | None = None,
    ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    vllm_is_ratio: Tensor | None = None,
    num_items_in_batch: Any = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of a LigerFusedLinearGRPOLoss, whose method ``forward`` it replaces.

    Args:
        loss_fn: the LigerFusedLinearGRPOLoss, or an object with its attributes.
        _input: hidden states ``[B, T, D]``. lin_weight: ``[V, D]``. bias: ``[V]``.
        selected_token_ids, attention_mask: ``[B, T]``; tokens of mask 0 cost no matrix work.
        ref_input, ref_weight, ref_bias: the reference's head, read where use_ref_model is set and
            there are no ref_per_token_logps.
        Others: as `grpo_loss_of_log_probs`.

    Returns:
        (loss, metrics), as `grpo_loss_of_log_probs`. Gradients flow to _input, lin_weight and bias.

    Raises:
        rlk.InvalidArgument: as `grpo_loss_of_log_probs` and `rlk.jit.linear_logp`.

    Example:
        >>> loss_fn = LigerFusedLinearGRPOLoss(beta=0.0)
        >>> loss, metrics = loss_fn(hidden, weight, ids, mask, advantages)
    """

    def log_probs_of(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight, bias, dtype = in_one_dtype(hidden, weight, bias)
        return jit.linear_logp(
            hidden,
            weight,
            selected_token_ids,
            bias,
            temperature=loss_fn.temperature,
            mask=attention_mask,
            ignore_index=None,
            compute_dtype=dtype,
        )

    ref = None
    if loss_fn.use_ref_model and loss_fn.beta != 0.0:
        ref = ref_per_token_logps
        if ref is None and ref_input is None:
            fail("ppo_loss", "ref_per_token_logps", "a tensor (or ref_input) with beta", "None")
        if ref is None:
            with torch.no_grad():
                ref = log_probs_of(ref_input, ref_weight, ref_bias)
    return grpo_loss_of_log_probs(
        loss_fn,
        log_probs_of(_input, lin_weight, bias),
        attention_mask,
        advantages,
        ref,
        old_per_token_logps,
        vllm_is_ratio,
        num_items_in_batch,
    )


def grpo_loss_of_log_probs(
    loss_fn: Any,
    per_token_logps: Tensor,
    attention_mask: Tensor,
    advantages: Tensor,
    ref_per_token_logps: Tensor | None = None,
    old_per_token_logps: Tensor | None = None,
    vllm_is_ratio: Tensor | None = None,
    num_items_in_batch: Any = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of log-probs under a LigerFusedLinearGRPOLoss's options.

    Args:
        loss_fn: has beta, epsilon_low, epsilon_high, loss_type, max_completion_length,
            importance_sampling_level, sapo_temperature_pos, sapo_temperature_neg, delta,
            use_bias_correction_kl, vespo_k_pos, vespo_k_neg, vespo_lambda_pos, vespo_lambda_neg.
        per_token_logps, attention_mask: ``[B, T]``. advantages: ``[B]``.
        ref_per_token_logps, old_per_token_logps: ``[B, T]``; None: per_token_logps as constants.
        vllm_is_ratio: constant weights, ``[B]``, ``[B, 1]`` or ``[B, T]``.
        num_items_in_batch: tokens over all micro-batches and processes, read of dapo, cispo, vespo.

    Returns:
        (loss, metrics): float32 of 0 dimensions; the mean KL, where beta is not 0, and the share of
        clipped tokens.

    Raises:
        rlk.InvalidArgument: an unknown word, sequence ratios with cispo, sapo or vespo, luspo of
            more than one column, or as `rlk.jit.ppo_loss`.

    Example:
        >>> loss, metrics = grpo_loss_of_log_probs(loss_fn, log_probs, mask, advantages)
    """
    kind, level = loss_fn.loss_type, loss_fn.importance_sampling_level
    constant = per_token_logps.detach()
    old = constant if old_per_token_logps is None else old_per_token_logps
    weights = vllm_is_ratio
    if weights is not None and weights.dim() == 1:
        weights = weights.unsqueeze(-1)
    _check(loss_fn, weights)
    options: dict[str, Any] = {"policy_loss": POLICY_LOSSES.get(kind, "ppo"), "ratio_level": level}
    if kind == "vespo":
        log_ratio = torch.where(attention_mask.bool(), constant - old, 0.0)
        weights = _vespo_weights(loss_fn, log_ratio, advantages, weights)
    if kind == "sapo":
        options["sapo_tau_pos"] = loss_fn.sapo_temperature_pos
        options["sapo_tau_neg"] = loss_fn.sapo_temperature_neg
    elif kind not in POLICY_LOSSES:
        options["delta"] = loss_fn.delta
    if loss_fn.beta != 0.0:
        options["kl_coef"] = loss_fn.beta
        options["ref_log_probs"] = constant if ref_per_token_logps is None else ref_per_token_logps
        if loss_fn.use_bias_correction_kl:
            options["kl_weight"] = "ratio"
            options["kl_ratio"] = "policy" if level == "sequence" else "token"
    reduction = REDUCTIONS[kind]
    loss, found = ppo_loss(
        NAMES,
        per_token_logps,
        old,
        advantages,
        attention_mask,
        dialect="liger",
        loss_reduction="token_sum" if reduction is None else reduction,
        eps_clip_low=clip_low(loss_fn.epsilon_low),
        eps_clip_high=loss_fn.epsilon_high,
        max_seq_len=loss_fn.max_completion_length,
        importance_weights=weights,
        **options,
    )
    if reduction is None:
        loss = loss / _count(attention_mask, num_items_in_batch)
    clipped = found.clip_ratio * (0.0 if kind in ("sapo", "vespo") else 1.0)
    if loss_fn.beta == 0.0:
        return loss, (clipped,)
    return loss, (found.kl_sum / found.num_active.clamp(min=1), clipped)


def _check(loss_fn: Any, weights: Tensor | None) -> None:
    kind, level = loss_fn.loss_type, loss_fn.importance_sampling_level
    if kind not in REDUCTIONS:
        fail("ppo_loss", "loss_type", ", ".join(REDUCTIONS), text(kind))
    if level not in ("token", "sequence"):
        fail("ppo_loss", "importance_sampling_level", "token, sequence", text(level))
    if level == "sequence" and kind in POLICY_LOSSES:
        fail("ppo_loss", "importance_sampling_level", f"'token' with loss_type={kind!r}", level)
    by_token = weights is not None and weights.shape[1] > 1
    if kind == "luspo" and (level == "token" or loss_fn.beta != 0.0 or by_token):
        expected = "another with token ratios, with beta or with vllm_is_ratio of [B, T]"
        fail("ppo_loss", "loss_type", expected, "'luspo'")


def _count(mask: Tensor, num_items: Any) -> Tensor:
    """Tokens per process, of all micro-batches where their number is given."""
    group = torch.distributed
    is_spread = group.is_available() and group.is_initialized()
    if num_items is not None:
        total = torch.as_tensor(num_items, device=mask.device, dtype=torch.float32)
    else:
        total = mask.sum(dtype=torch.float32)
        if is_spread:
            group.all_reduce(total)
    return (total / (group.get_world_size() if is_spread else 1)).clamp(min=1.0)


def _vespo_weights(
    loss_fn: Any, log_ratio: Tensor, advantages: Tensor, weights: Tensor | None
) -> Tensor:
    """VESPO's gamma weights ``[B, 1]``: e^lambda w^k e^(-lambda w) of the sequence's weight w."""
    with torch.no_grad():
        log_w = log_ratio.clamp(-LOG_MOST, LOG_MOST).sum(-1, keepdim=True)
        if weights is not None:
            log_w = log_w + weights.log().clamp(LOG_LEAST, LOG_MOST).sum(-1, keepdim=True)
        log_w = log_w.clamp(LOG_LEAST, LOG_MOST)
        is_positive = advantages.unsqueeze(-1) >= 0
        power = torch.where(is_positive, loss_fn.vespo_k_pos, loss_fn.vespo_k_neg)
        rate = torch.where(is_positive, loss_fn.vespo_lambda_pos, loss_fn.vespo_lambda_neg)
        rate = rate.clamp(min=1e-4)
        phi = (rate + power * log_w - rate * log_w.exp()).exp()
        return phi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


_PATCH = Patch(
    "liger_kernel",
    distribution="liger-kernel",
    since="0.8.2",
    before="0.8.6",
    seams=(
        Seam(
            "liger_kernel.chunked_loss.grpo_loss:LigerFusedLinearGRPOLoss.forward",
            lambda original: grpo_loss,
            "self, _input, lin_weight, selected_token_ids, attention_mask, advantages, bias, "
            "ref_per_token_logps, old_per_token_logps, ref_input, ref_weight, ref_bias, "
            "vllm_is_ratio, num_items_in_batch",
        ),
    ),
)


def patch(*, allow_untried: bool = False) -> None:
    """Makes LigerFusedLinearGRPOLoss compute here; once is enough.

    Args:
        allow_untried: goes on with a version that this was not tried with.

    Raises:
        rlk.LoadError: Liger cannot be imported.
        rlk.Unsupported: another version, or what would be replaced is not as it was.

    Example:
        >>> liger.patch()
    """
    _PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Puts back what `patch` replaced."""
    _PATCH.off()
