# SPDX-License-Identifier: Apache-2.0
"""Ops compiled for their shapes at the first call, cached on disk, launched from then on."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from rlk import _core, _group_advantages, _grpo_loss, _ppo_loss, _ratio_kl
from rlk._ahead import Preloaded, Warmed, preload, warm
from rlk._grpo_loss import GrpoLoss
from rlk._ppo_loss import PpoLoss, PpoLossGrads
from rlk._ratio_kl import RatioKl
from rlk.errors import check_needs

__all__ = [
    "CacheInfo",
    "Explanation",
    "GrpoLoss",
    "LinearLogpGrads",
    "LinearLogpResult",
    "LogpResult",
    "PpoLoss",
    "PpoLossGrads",
    "Preloaded",
    "RatioKl",
    "Warmed",
    "cache_info",
    "check_errors",
    "configure",
    "explain",
    "explain_group_advantages",
    "explain_grpo_loss",
    "explain_logp",
    "explain_ppo_loss",
    "explain_ratio_kl",
    "group_advantages",
    "grpo_loss",
    "grpo_loss_backward",
    "linear_logp",
    "linear_logp_backward",
    "logp",
    "logp_backward",
    "ppo_loss",
    "ppo_loss_backward",
    "preload",
    "ratio_kl",
    "ratio_kl_backward",
    "settings",
    "wait",
    "warm",
]

Tensor = Any  # a torch tensor, NumPy array or DLPack producer


def _needs_autograd(*tensors: Any) -> bool:
    """Whether one of these is a torch tensor that needs a gradient here, or may carry a tangent."""
    # A call with torch tensors has imported torch; rlk never does.
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    # Within forward_ad.dual_level() or torch.func.jvp a tensor may carry a tangent.
    # The level has no public name; a torch without it is taken to be outside.
    tangents = getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
    if not tangents and not torch.is_grad_enabled():
        return False
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and (tangents or tensor.requires_grad):
            return True
    return False


class LinearLogpResult(NamedTuple):
    """What `linear_logp` returns where more than the log-prob is asked for, float32 ``[...]`` each;
    None where not asked for."""

    log_prob: Tensor  #: log p of the target
    entropy: Tensor | None  #: -sum p log p over the vocabulary, in nats
    lse: Tensor | None  #: log(sum exp z), of the logits that the softmax is taken of


def linear_logp(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    stream: int | None = None,
) -> Any:
    """Log-probabilities of target ids, straight from hidden states; no [N, V] logits are formed.

    ``log_softmax(z)[target]`` of the logits ``z = cap(logit_scale * (hidden @ weight.T + bias)) /
    temperature``, in this order, ``cap(x) = softcap * tanh(x / softcap)``; all in float32 from
    the first to the last operation. A row's bits depend on that row alone: not on the batch, its
    position, strides or the number of threads. Differentiable in hidden, weight and bias for torch
    tensors. On a CUDA device the call is queued on the current stream and returns at once.

    Args:
        hidden: ``[..., D]``, float32, bfloat16 or float16.
        weight: ``[V, D]``, hidden's dtype.
        target: ``[...]``, ids in ``[0, V)`` of any integer dtype.
        bias: ``[V]``, hidden's dtype or float32.
        temperature: a number above 0, or one a row, ``[...]``; rounded to float32.
        softcap: a number above 0 that logits are capped to (Gemma 2: 30); None: they are not.
        logit_scale: a number that logits are multiplied by (Cohere; Granite divides by it).
        mask: ``[...]``, bool, integer or float of 0 and 1. Rows of 0 are inactive: log-prob,
            entropy, lse and gradients 0, and their hidden state and target may hold anything.
        ignore_index: rows with this target are inactive as well; None: no target is special.
        return_entropy: also give the entropy of each row's distribution, in nats.
        return_lse: also give the log-sum-exp of each row's logits z.
        stream: CUDA stream handle to queue on, for tensors whose framework tells no current
            stream (CuPy and JAX through DLPack); None: the default stream. Not for torch tensors.

    Returns:
        float32 ``[...]``, at most 0: a torch tensor for torch tensors, a NumPy array for others on
        the CPU, an `rlk.Array` for others on CUDA. A target whose logit is -inf gives -inf, a row
        whose logits are all -inf gives NaN. With return_entropy or return_lse a `LinearLogpResult`
        (log_prob, entropy, lse), None where not asked for; each is differentiable.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device or value is wrong (a ValueError). On CUDA a
            target out of range makes its row NaN and is raised by a later call or `check_errors`.
        rlk.Unsupported: nothing here can run this device and dtype, or a tensor carries a tangent
            of forward-mode differentiation (a NotImplementedError).

    Example:
        >>> log_probs = rlk.jit.linear_logp(hidden, lm_head.weight, tokens, temperature=0.7)
        >>> (-(advantages * log_probs).sum()).backward()

        >>> out = rlk.jit.linear_logp(hidden, weight, tokens, softcap=30.0, return_entropy=True)
        >>> (out.log_prob + 0.01 * out.entropy).sum().backward()

    With M = max z, S = sum exp(z - M) and T = sum exp(z - M) (z - M) over the vocabulary, log p =
    (z_t - M) - log S, the entropy is log S - T / S, and lse = M + log S.
    """
    if _needs_autograd(hidden, weight, bias, temperature, softcap, logit_scale):
        from rlk import _torch

        log_prob, entropy, lse = _torch.linear_logp(
            hidden,
            weight,
            target,
            bias,
            temperature,
            softcap,
            logit_scale,
            mask,
            ignore_index,
            stream,
            return_entropy,
            return_lse,
        )
        if return_entropy or return_lse:
            return LinearLogpResult(log_prob, entropy, lse)
        return log_prob
    result = _core.linear_logp_forward(
        hidden,
        weight,
        target,
        bias,
        temperature,
        softcap,
        logit_scale,
        mask,
        ignore_index,
        stream,
        return_entropy,
        return_lse,
        False,
    )
    return LinearLogpResult(*result[:3]) if return_entropy or return_lse else result


class LinearLogpGrads(NamedTuple):
    """Gradients of `linear_logp`; None where not asked for."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def linear_logp_backward(
    grad_output: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    grad_entropy: Tensor | None = None,
    grad_lse: Tensor | None = None,
    stream: int | None = None,
    needs: tuple[str, ...] = ("hidden", "weight", "bias"),
) -> LinearLogpGrads:
    """Gradients of `linear_logp` for those without autograd.

    Runs the forward once more for its saved values a row, then the backward.

    Args:
        grad_output: ``[...]``, the gradient of the loss with respect to the log-probs; None: 0.
        hidden, weight, target, bias, temperature, softcap, logit_scale, mask, ignore_index, stream:
            as in `linear_logp`.
        grad_entropy: ``[...]``, the gradient with respect to the entropy; None: 0.
        grad_lse: ``[...]``, the gradient with respect to the log-sum-exp; None: 0.
        needs: which gradients to compute; "bias" is left out by itself where bias is None.

    Returns:
        `LinearLogpGrads` (hidden ``[..., D]``, weight ``[V, D]``, bias ``[V]``), each in the dtype
        of what it is the gradient of, None where not asked for.

    Raises:
        rlk.InvalidArgument: as `linear_logp`, for a name in needs that is none of the three, and
            where all three gradients are None.

    Example:
        >>> grads = rlk.jit.linear_logp_backward(-advantages, hidden, weight, tokens)
        >>> weight -= 1e-3 * grads.weight

    dz_j = grad_output (1[j = target] - p_j) + grad_lse p_j - grad_entropy p_j (log p_j + entropy),
    then times 1 / temperature, 1 - tanh^2 of the cap, and logit_scale.
    """
    needs = check_needs("linear_logp", needs, ("hidden", "weight", "bias"))
    grads = _core.linear_logp_backward(
        grad_output,
        grad_entropy,
        grad_lse,
        hidden,
        weight,
        target,
        bias,
        temperature,
        softcap,
        logit_scale,
        mask,
        ignore_index,
        stream,
        None,
        None,
        None,
        "hidden" in needs,
        "weight" in needs,
        "bias" in needs and bias is not None,
    )
    return LinearLogpGrads(*grads)


class LogpResult(NamedTuple):
    """What `logp` returns where more than the log-prob is asked for, float32 ``[...]`` each; None
    where not asked for."""

    log_prob: Tensor  #: log p of the target
    entropy: Tensor | None  #: -sum p log p over the vocabulary, in nats
    lse: Tensor | None  #: log(sum exp z), of the logits that the softmax is taken of


def logp(
    logits: Tensor,
    target: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    inplace_backward: bool = False,
    stream: int | None = None,
) -> Any:
    """Log-probabilities of target ids from logits; no log_softmax is formed.

    ``log_softmax(z)[target]`` of ``z = cap(logit_scale * logits) / temperature``, ``cap(x) =
    softcap * tanh(x / softcap)``, in float32 whatever the logits' dtype. One read of the logits
    forward, one read and one write backward. A row's bits depend on that row alone; those of
    float32 logits are those of `linear_logp` where its dot products are the same numbers.
    Differentiable in logits for torch tensors, the gradient in their dtype.

    Args:
        logits: ``[..., V]``, float32, bfloat16 or float16.
        target: ``[...]``, ids in ``[0, V)`` of any integer dtype.
        temperature, softcap, logit_scale, mask, ignore_index, return_entropy, return_lse, stream:
            as in `linear_logp`. Rows that are not active are not read.
        inplace_backward: the backward writes the gradient over the logits, so that no second
            tensor of their size is needed. Only where nothing else reads the logits afterwards:
            torch raises where its autograd would, and at a second backward.

    Returns:
        As `linear_logp`: float32 ``[...]``, or a `LogpResult` with return_entropy or return_lse.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `linear_logp`; and with inplace_backward for
            logits that are a leaf, or whose elements share memory.

    Example:
        >>> log_probs = rlk.jit.logp(model(tokens).logits[:, :-1], tokens[:, 1:])
        >>> (-(advantages * log_probs).sum()).backward()

    With M = max z, S = sum exp(z - M) and T = sum exp(z - M) (z - M) over the vocabulary, log p =
    (z_t - M) - log S, the entropy is log S - T / S, and lse = M + log S.
    """
    options = (target, temperature, softcap, logit_scale, mask, ignore_index)
    if _needs_autograd(logits, temperature, softcap, logit_scale):
        from rlk import _torch_logp

        result = _torch_logp.logp(
            logits, options, stream, return_entropy, return_lse, inplace_backward
        )
        return LogpResult(*result) if return_entropy or return_lse else result[0]
    result = _core.logp_forward(
        logits, *options, stream, return_entropy, return_lse, False, inplace_backward
    )
    return LogpResult(*result[:3]) if return_entropy or return_lse else result


def logp_backward(
    grad_output: Tensor | None,
    logits: Tensor,
    target: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    grad_entropy: Tensor | None = None,
    grad_lse: Tensor | None = None,
    stream: int | None = None,
) -> Tensor:
    """Gradient of `logp` for those without autograd; runs the forward once more.

    Args:
        grad_output: ``[...]``, the gradient of the loss with respect to the log-probs; None: 0.
        grad_entropy, grad_lse: ``[...]``, of the entropy and the log-sum-exp; None: 0.
        Others: as `logp`.

    Returns:
        The gradient of the logits, ``[..., V]`` of their dtype.

    Raises:
        rlk.InvalidArgument: as `logp`, and where all three gradients are None.

    Example:
        >>> grad = rlk.jit.logp_backward(-advantages, logits, tokens)

    The formula is that of `linear_logp_backward`'s dz.
    """
    return _core.logp_backward(
        grad_output,
        grad_entropy,
        grad_lse,
        logits,
        target,
        temperature,
        softcap,
        logit_scale,
        mask,
        ignore_index,
        stream,
        None,
        None,
        None,
        False,
        None,
        None,
    )


def ratio_kl(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    attention_mask: Tensor | None,
    old_logps: Tensor,
    *,
    ref_logps: Tensor | None = None,
    kl: str = "k3",
    kl_gradient: str = "pathwise",
    kl_clamp: float = 20.0,
    log_ratio_clamp: float | tuple[float, float] = 20.0,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    ignore_index: int | None = -100,
    stream: int | None = None,
) -> RatioKl:
    """Importance ratios and KL estimates of tokens, straight from the logits of both policies.

    ``ratio = exp(log p - old)`` and ``kl = k(ref - log p)``, log p and ref being the `logp` of
    action_ids under the two logits, with its bits. One read of each logits forward; backward one
    read and one write of the policy's. Differentiable in policy_logits alone, for torch tensors.

    Args:
        policy_logits: ``[..., V]``, float32, bfloat16 or float16. Packed sequences: ``[N, V]``.
        ref_logits: ``[..., V]`` of the reference policy, or None with ref_logps.
        action_ids: ``[...]``, ids in ``[0, V)`` of any integer dtype.
        attention_mask: ``[...]``, bool, integer or float of 0 and 1; None: all are active. Inactive
            tokens may hold anything in every argument; so may those of ignore_index.
        old_logps: ``[...]``, of any floating dtype.
        ref_logps: ``[...]``, the reference's log-probs in place of its logits.
        kl: "k1" -e, "abs" |e|, "k2" e^2 / 2 or "k3" exp(e) - 1 - e, with e = ref - log p.
        kl_gradient: "pathwise", the derivative of that; "unbiased": -e; "unbiased_clamped": -e,
            and 0 beyond kl_clamp.
        kl_clamp: k3's e is clamped to +-kl_clamp; its pathwise derivative beyond is 0.
        log_ratio_clamp: a number or (low, high) that log p - old is clamped to, inf for none; the
            derivative beyond is 0.
        temperature, softcap, logit_scale, ignore_index, stream: as in `logp`, of both logits.

    Returns:
        `RatioKl` (ratio, kl), float32 ``[...]``; 1 and 0 where inactive, the gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong (a ValueError).

    Example:
        >>> ratio, kl = rlk.jit.ratio_kl(logits, ref_logits, tokens, mask, old_logps)
        >>> ((-advantages * ratio + 0.04 * kl) * mask).sum().backward()

    k3 is Schulman's ("Approximating KL divergence", 2020), as GRPO takes it.
    """
    call = _ratio_kl.make_call(
        policy_logits,
        ref_logits,
        action_ids,
        attention_mask,
        old_logps,
        ref_logps=ref_logps,
        kl=kl,
        kl_gradient=kl_gradient,
        kl_clamp=kl_clamp,
        log_ratio_clamp=log_ratio_clamp,
        temperature=temperature,
        softcap=softcap,
        logit_scale=logit_scale,
        ignore_index=ignore_index,
    )
    if _needs_autograd(policy_logits, temperature, softcap, logit_scale):
        from rlk import _torch_grpo_loss

        return _torch_grpo_loss.ratio_kl(call, stream)
    return _ratio_kl.forward(call, stream, False)[0]


def ratio_kl_backward(
    grad_ratio: Tensor | None,
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    attention_mask: Tensor | None,
    old_logps: Tensor,
    *,
    grad_kl: Tensor | None = None,
    stream: int | None = None,
    **options: Any,
) -> Tensor:
    """Gradient of `ratio_kl` for those without autograd; runs the forward once more.

    Args:
        grad_ratio, grad_kl: ``[...]``, of the ratio and of the KL estimate; None: 0.
        Others: as `ratio_kl`.

    Returns:
        The gradient of policy_logits, ``[..., V]`` of their dtype.

    Raises:
        rlk.InvalidArgument: as `ratio_kl`, and where both gradients are None.

    Example:
        >>> grad = rlk.jit.ratio_kl_backward(-advantages, logits, ref_logits, tokens, mask, old)
    """
    call = _ratio_kl.make_call(
        policy_logits, ref_logits, action_ids, attention_mask, old_logps, **options
    )
    return _ratio_kl.gradients(call, grad_ratio, grad_kl, stream)


def ppo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    *,
    stream: int | None = None,
    **options: Any,
) -> PpoLoss:
    """A policy loss of log-probs with its metrics; the derivative is made in the same pass.

    ``sum over active tokens of w * (rho * l + kl_coef * k) - w * entropy_coef * H``, where l is the
    policy loss of the token, rho its importance weight, k a KL estimator and w a weight that the
    reduction makes from counts. fp32; a token's gradient follows from that token, its sequence's
    statistics and the weights alone, and the loss is an exact sum: with global counts neither
    follows order, padding, packing or micro-batches. Differentiable in log_probs and entropy.

    Args:
        log_probs: ``[B, T]``, or ``[N]`` with cu_seqlens, or ``[T]``: one sequence. Any floating
            dtype; old_log_probs, rollout_logprobs, ref_log_probs, entropy have its shape.
        old_log_probs: of the policy before the update.
        advantages: of log_probs' shape, or ``[B]``: one a sequence.
        loss_mask: of log_probs' shape, bool, integer or float of 0 and 1; None: all active.
            Inactive tokens may hold anything, NaN included.
        stream: as in `linear_logp`.
        options: below; what is None is the dialect's.

    Options:
        dialect: rules of "rlk", "rl_kernel", "verl", "verl_old", "skyrl", "trl", "openrlhf",
            "nemo", "slime", "areal" or "liger": `rlk.losses.DIALECTS`.
        policy_loss: "ppo" (default), "gspo" (not with "token_sum"), "cispo", "sapo", "gpg".
        eps_clip_low, eps_clip_high: 0.2, 0.2. use_dual_clip (ppo alone), clip_ratio_c: False, 3.0.
        delta: the most that the ratio of ppo or gspo is before it is compared with the clip, for
            both signs of A, as in TRL; None: no such cap. Not with use_dual_clip.
        cispo_bounds: "1+eps"; "eps"; (low, high). sapo_tau_pos, sapo_tau_neg: 1.0, 1.05.
        log_ratio_clamp, gspo_log_ratio_clamp: 20.0, a number or (low, high), inf for none; the
            value is clamped, its derivative beyond is 0.
        use_tis, rollout_logprobs: importance weights exp(old - rollout). tis_mode: "truncate" to
            [tis_imp_ratio_floor, tis_imp_ratio_cap] (0, 10), "mask" (0 outside), "band" (the
            token's weight where the statistic is inside, else 0). tis_level: the statistic's,
            "token", "sequence" (sum), "geometric" (mean). tis_log_clamp 20.0, tis_overflow "cap".
        kl_coef, ref_log_probs, kl_estimator ("k1", "abs", "k2", "k3"), kl_gradient ("pathwise",
            "unbiased", "unbiased_clamped"), kl_weight ("one", "ratio"), kl_clamp 20.0,
            kl_output_clamp inf, kl_reduction "policy".
        entropy, entropy_coef: a bonus.
        loss_reduction: "token_mean" (default), "token_sum", "sequence_mean" (over all B),
            "sequence_mean_valid", "seq_mean_token_sum", "seq_mean_token_sum_norm" (over B *
            max_seq_len), "seq_mean_token_sum_norm_valid", "token_sum_over_L", "prompt_mean",
            "rollout_mean".
        max_seq_len; samples_per_prompt or group_boundaries ``[P + 1]``: what these ask for; where
            none does, not looked at.
        global_tokens, global_sequences, global_groups: counts over all micro-batches and ranks, a
            number or an int64 tensor of one element.
        loss_weights: ``[B]`` or of log_probs' shape, in place of a reduction.
        cu_seqlens: ``[B + 1]``, starts of packed sequences.

    Returns:
        `PpoLoss` (loss, metrics): float32 and `rlk.losses.Metrics`, 0-d. Without an active token
        the loss is 0 and every gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong, or options
            contradict each other (a ValueError).
        TypeError: an option that does not exist.

    Example:
        >>> loss, metrics = rlk.jit.ppo_loss(log_probs, old, advantages, mask, use_dual_clip=True)
        >>> loss.backward()

    The formulas, and where systems disagree, are in docs/ppo_loss.md.
    """
    call = _ppo_loss.make_call(log_probs, old_log_probs, advantages, loss_mask, **options)
    if _needs_autograd(log_probs, call.tensors.get("entropy")):
        from rlk import _torch_losses

        return _torch_losses.ppo_loss(call, stream)
    return _ppo_loss.run(call, stream)


def ppo_loss_backward(
    grad_output: Tensor,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    *,
    stream: int | None = None,
    needs: tuple[str, ...] = ("log_probs", "entropy"),
    **options: Any,
) -> PpoLossGrads:
    """Gradients of `ppo_loss` for those without autograd; runs the forward once more.

    Args:
        grad_output: float32 of one element, the gradient of the loss.
        needs: which gradients; "entropy" is left out by itself without an entropy bonus.
        Others: as `ppo_loss`.

    Returns:
        `PpoLossGrads`, each of log_probs' shape, in the dtype of what it is the gradient of.

    Raises:
        rlk.InvalidArgument: as `ppo_loss`.

    Example:
        >>> grads = rlk.jit.ppo_loss_backward(np.float32(1), log_probs, old, advantages, mask)
    """
    call = _ppo_loss.make_call(log_probs, old_log_probs, advantages, loss_mask, **options)
    return _ppo_loss.gradients(call, grad_output, stream, needs)


def group_advantages(
    rewards: Tensor,
    *,
    samples_per_prompt: int | None = None,
    group_boundaries: Tensor | None = None,
    dialect: str = "rlk",
    normalize: str | None = None,
    ddof: int | None = None,
    eps: float | None = None,
    eps_mode: str | None = None,
    group_of_one: str | None = None,
    stream: int | None = None,
) -> Tensor:
    """Each reward against the mean of its group, as GRPO, Dr.GRPO and RLOO take it.

    ``(reward - mean) / denominator`` in two passes of float64, rounded once to float32. A group of
    equal rewards gives exactly 0. No gradient flows.

    Args:
        rewards: any shape and floating dtype, one a sequence; groups are neighbours in row-major
            order.
        samples_per_prompt: size of each group; divides the number of rewards.
        group_boundaries: ``[P + 1]`` integers in its place: group g is
            ``[boundaries[g], boundaries[g + 1])``. Starts at 0, ends at the number of rewards,
            strictly increases. On CUDA a device tensor that does not is raised by a later call or
            `check_errors`, unless validate="sync".
        dialect: rules of "rlk", "rl_kernel", "verl", "verl_old", "skyrl", "trl", "openrlhf",
            "nemo", "slime", "areal" or "liger" for what is None below: `rlk.losses.ADVANTAGES`.
        normalize: "std" (default): the standard deviation and eps; "center": 1 (Dr.GRPO); "rloo":
            the mean is that of the others; "loo_std": mean and standard deviation are, which
            divides only where it is above 0 (NeMo).
        ddof: 0 or 1 (default), of the standard deviation.
        eps: 1e-6, added to it (eps_mode "add", the default), or its least value ("max").
        group_of_one: advantage of a reward without others: "zero" (default), "reward": itself,
            "error": refused; NaN where boundaries in device memory have such a group.
        stream: as in `linear_logp`.

    Returns:
        float32 of rewards' shape.

    Raises:
        rlk.InvalidArgument: a shape, dtype, name or number is wrong, boundaries are none, or both
            group arguments are given (a ValueError).

    Example:
        >>> rlk.jit.group_advantages(np.float32([1, 0, 0, 1]), samples_per_prompt=2)
        array([ 0.7071058, -0.7071058, -0.7071058,  0.7071058], dtype=float32)

    The formula is that of GRPO (Shao et al. 2024), Dr.GRPO (Liu et al. 2025), RLOO (Ahmadian et
    al. 2024).
    """
    return _group_advantages.group_advantages(
        rewards,
        samples_per_prompt=samples_per_prompt,
        group_boundaries=group_boundaries,
        dialect=dialect,
        normalize=normalize,
        ddof=ddof,
        eps=eps,
        eps_mode=eps_mode,
        group_of_one=group_of_one,
        stream=stream,
    )


def grpo_loss(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    old_logps: Tensor,
    rewards: Tensor,
    completion_mask: Tensor | None = None,
    *,
    samples_per_prompt: int | None = None,
    group_boundaries: Tensor | None = None,
    clip_eps: float | None = None,
    beta: float = 0.04,
    ref_logps: Tensor | None = None,
    dialect: str = "rlk",
    normalize: str | None = None,
    ddof: int | None = None,
    eps: float | None = None,
    eps_mode: str | None = None,
    group_of_one: str | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    ignore_index: int | None = -100,
    stream: int | None = None,
    **options: Any,
) -> GrpoLoss:
    """The GRPO loss, straight from logits and rewards: `group_advantages`, `logp` of both
    policies and `ppo_loss`, with the bits of calling them one by one.

    ``sum over active tokens of w * (max(-A r, -A clip(r)) + beta * k)``, r = exp(log p - old),
    k = k3(ref - log p). The gradient of the logits is made in the forward; a backward whose
    upstream is exactly 1 hands it out, and one with another makes it anew, told on the device.
    Differentiable in policy_logits alone, for torch tensors.

    Args:
        policy_logits: ``[B, T, V]``, or ``[N, V]`` with cu_seqlens, or ``[T, V]``: one sequence.
            float32, bfloat16 or float16.
        ref_logits: of the reference policy, likewise; None with ref_logps or a beta of 0, where
            it is not looked at.
        action_ids: ``[B, T]`` (``[N]``, ``[T]``), ids in ``[0, V)`` of any integer dtype.
        old_logps: of action_ids' shape, any floating dtype.
        rewards: ``[B]``, one a sequence, any floating dtype.
        completion_mask: of action_ids' shape, bool, integer or float of 0 and 1; None: all are
            active. Inactive tokens may hold anything; so may those of ignore_index.
        samples_per_prompt, group_boundaries: one of them, as in `group_advantages`.
        clip_eps: eps_clip_low and eps_clip_high of `ppo_loss`; None: 0.2, or the dialect's.
        beta: the factor of the KL term; 0: there is none.
        ref_logps: the reference's log-probs in place of its logits.
        dialect: rules of both `group_advantages` and `ppo_loss` for what is not given.
        normalize, ddof, eps, eps_mode, group_of_one: as in `group_advantages`.
        temperature, softcap, logit_scale, ignore_index, stream: as in `logp`, of both logits.
        options: those of `ppo_loss`, but kl_coef (it is beta), ref_log_probs and entropy (made
            here); cu_seqlens for packed sequences, and entropy_coef for a bonus, among them.

    Returns:
        `GrpoLoss` (loss, policy_loss, kl), float32 and 0-d; policy_loss and kl carry no gradient.
        Without an active token the loss is 0 and the gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong, or options
            contradict each other (a ValueError).
        rlk.Unsupported: as `logp`, and on CUDA for what is no torch tensor.
        TypeError: an option that does not exist.

    Example:
        >>> loss, policy_loss, kl = rlk.jit.grpo_loss(
        ...     logits, ref_logits, tokens, old_logps, rewards, mask, samples_per_prompt=8)
        >>> loss.backward()

    The formula is that of GRPO (Shao et al. 2024) with DAPO's token mean (Yu et al. 2025).
    """
    call = _grpo_loss.make_call(
        policy_logits,
        ref_logits,
        action_ids,
        old_logps,
        rewards,
        completion_mask,
        samples_per_prompt=samples_per_prompt,
        group_boundaries=group_boundaries,
        clip_eps=clip_eps,
        beta=beta,
        ref_logps=ref_logps,
        dialect=dialect,
        normalize=normalize,
        ddof=ddof,
        eps=eps,
        eps_mode=eps_mode,
        group_of_one=group_of_one,
        temperature=temperature,
        softcap=softcap,
        logit_scale=logit_scale,
        ignore_index=ignore_index,
        **options,
    )
    if _needs_autograd(policy_logits, temperature, softcap, logit_scale):
        from rlk import _torch_grpo_loss

        return _torch_grpo_loss.grpo_loss(call, stream)
    loss, figures, _ = _grpo_loss.forward(call, stream, False)
    return _grpo_loss.result(loss, figures)


def grpo_loss_backward(
    grad_output: Tensor,
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    old_logps: Tensor,
    rewards: Tensor,
    completion_mask: Tensor | None = None,
    *,
    stream: int | None = None,
    **options: Any,
) -> Tensor:
    """Gradient of `grpo_loss` for those without autograd; runs the forward once more.

    Args:
        grad_output: float32 of one element, the gradient of the loss.
        Others: as `grpo_loss`.

    Returns:
        The gradient of policy_logits, of their shape and dtype.

    Raises:
        rlk.InvalidArgument: as `grpo_loss`.

    Example:
        >>> grad = rlk.jit.grpo_loss_backward(
        ...     np.float32(1), logits, ref, tokens, old, rewards, mask, samples_per_prompt=8)
    """
    call = _grpo_loss.make_call(
        policy_logits, ref_logits, action_ids, old_logps, rewards, completion_mask, **options
    )
    return _grpo_loss.gradients(call, grad_output, stream)


class Explanation(NamedTuple):
    """What a call would run, and why."""

    kernel: str  #: name of the kernel, as in ``rlk-jit list``
    key: str  #: its cache key, 32 hex digits
    variant: str  #: "specialized" or "generic"
    source: str  #: "loaded", "cache", "compile", or "none" where nothing can run
    reason: str  #: in words

    def __str__(self) -> str:
        return (
            f"{self.kernel}\n  {self.variant}, source: {self.source} ({self.reason})\n"
            f"  key {self.key}"
        )


def explain(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    backward: bool = False,
) -> Explanation:
    """Which variant `linear_logp` would run for these arguments, and why; nothing is compiled.

    Args:
        backward: explain the backward in place of the forward: that of all outputs asked for.
        Others: as `linear_logp`.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `linear_logp` would.

    Example:
        >>> print(rlk.jit.explain(hidden, weight, tokens))
    """
    return Explanation(
        *_core.linear_logp_explain(
            hidden,
            weight,
            target,
            bias,
            temperature,
            softcap,
            logit_scale,
            mask,
            ignore_index,
            None,
            return_entropy,
            return_lse,
            backward,
        )
    )


def explain_logp(
    logits: Tensor,
    target: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    backward: bool = False,
) -> Explanation:
    """Which variant `logp` would run for these arguments, and why; nothing is compiled.

    Args:
        backward: explain the backward in place of the forward: that of all outputs asked for.
        Others: as `logp`.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `logp` would.

    Example:
        >>> print(rlk.jit.explain_logp(logits, tokens))
    """
    options = (target, temperature, softcap, logit_scale, mask, ignore_index)
    return Explanation(
        *_core.logp_explain(logits, *options, None, return_entropy, return_lse, backward)
    )


def explain_ppo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    **options: Any,
) -> Explanation:
    """Which variant `ppo_loss` would run for these arguments, and why; nothing is compiled.

    Args:
        All: as `ppo_loss`.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `ppo_loss` would.

    Example:
        >>> print(rlk.jit.explain_ppo_loss(log_probs, old, advantages, mask, use_dual_clip=True))
    """
    call = _ppo_loss.make_call(log_probs, old_log_probs, advantages, loss_mask, **options)
    return Explanation(*_core.ppo_loss_explain(call.tensors, call.options.core))


def explain_ratio_kl(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    attention_mask: Tensor | None = None,
    old_logps: Tensor | None = None,
    *,
    backward: bool = False,
    **options: Any,
) -> Explanation:
    """Which variant of `logp` would read the logits of these arguments of `ratio_kl`, and why.

    Args:
        backward: explain the backward in place of the forward.
        Others: as `ratio_kl`; those that `logp` has not are not looked at.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `logp` would.

    Example:
        >>> print(rlk.jit.explain_ratio_kl(logits, ref_logits, tokens))
    """
    return _explain_logp_of(policy_logits, action_ids, attention_mask, options, backward)


def explain_grpo_loss(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    old_logps: Tensor | None = None,
    rewards: Tensor | None = None,
    completion_mask: Tensor | None = None,
    *,
    backward: bool = False,
    **options: Any,
) -> Explanation:
    """Which variant of `logp` would read the logits of these arguments of `grpo_loss`, and why.

    Args:
        backward: explain the backward in place of the forward.
        Others: as `grpo_loss`; those that `logp` has not are not looked at.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `logp` would.

    Example:
        >>> print(rlk.jit.explain_grpo_loss(logits, ref_logits, tokens))
    """
    return _explain_logp_of(policy_logits, action_ids, completion_mask, options, backward)


def _explain_logp_of(
    logits: Tensor, target: Tensor, mask: Any, options: dict[str, Any], backward: bool
) -> Explanation:
    names = ("temperature", "softcap", "logit_scale", "ignore_index")
    given = {name: options[name] for name in names if name in options}
    return explain_logp(logits, target, mask=mask, backward=backward, **given)


def explain_group_advantages(rewards: Tensor, **options: Any) -> Explanation:
    """Which variant `group_advantages` would run for these arguments; nothing is compiled.

    Args:
        All: as `group_advantages`.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `group_advantages` would.

    Example:
        >>> print(rlk.jit.explain_group_advantages(rewards, samples_per_prompt=8))
    """
    return Explanation(*_group_advantages.explain(rewards, **options))


class CacheInfo(NamedTuple):
    """Counters of this process."""

    memory_hits: int  #: calls whose kernel was loaded already
    disk_hits: int  #: kernels loaded from a cache layer
    compiles: int  #: kernels compiled
    fallbacks: int  #: calls that ran a generic kernel in place of a specialized one
    unloads: int  #: kernels unloaded, to keep to RLK_MAX_KERNELS
    loaded: int  #: specialized kernels that are loaded now
    alternatives: int  #: calls that ran a specialized kernel of another tile in place of theirs


def cache_info() -> CacheInfo:
    """Counters of this process: how its calls found their kernels.

    Example:
        >>> rlk.jit.cache_info().compiles
        1
    """
    return CacheInfo(*_core.cache_info())


def _expect(kind: type, **values: object) -> None:
    for name, value in values.items():
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_number if kind is int else isinstance(value, kind)):
            raise TypeError(f"configure: {name}: expected {kind.__name__}, got {value!r}")


def configure(
    *,
    policy: str | None = None,
    arch: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    log: str | None = None,
    specialize: bool | None = None,
    validate: str | None = None,
    workspace_mib: int | None = None,
    max_kernels: int | None = None,
    max_sms: int | None = None,
    tile: str | None = None,
) -> None:
    """Change settings of this process; what is None stays as it is.

    Args:
        policy: "sync" (a miss compiles), "async" (a miss runs the generic kernel, the same bits,
            and compiles in the background) or "off" (never compiles); environment: RLK_JIT.
        arch: targets to compile for, such as "x86-64-v3" or "sm_90a,x86-64-v4"; a backend
            that is not named takes what the device has; environment: RLK_ARCH.
        cache_dir: folder of the read-write cache layer; environment: RLK_CACHE_DIR.
        num_threads: threads of the CPU kernels; environment: RLK_NUM_THREADS. Results do not
            depend on it.
        log: trace, debug, info, warn, error or off; environment: RLK_LOG.
        specialize: False runs the generic variants alone. Results are the same bits.
        validate: "async" or "sync": on CUDA, look at targets, boundaries, masks, global counts and
            temperatures before each launch, which waits for the stream; environment: RLK_VALIDATE.
        workspace_mib: MiB of a CUDA backward's temporary memory, about; environment:
            RLK_WORKSPACE_MIB. Results do not depend on it.
        max_kernels: specialized kernels that are loaded at once; beyond it the least recently
            used is unloaded and, when it is called again, loaded from the cache. Kernels of a
            captured CUDA graph stay. Environment: RLK_MAX_KERNELS.
        max_sms: multiprocessors that a persistent CUDA kernel takes, so that others are left for
            communication; 0: all. Results do not depend on it.
        tile: tile of the CUDA kernels that have several, such as "64-static"; "tuned": what
            ``rlk-jit tune`` chose for this GPU and the number of rows, else a default. For
            measurements. Results do not depend on it.

    Raises:
        rlk.InvalidArgument: a value that the setting cannot have.
        TypeError: a value of another type.

    Example:
        >>> rlk.jit.configure(policy="off")
    """
    _expect(str, policy=policy, arch=arch, log=log, validate=validate, tile=tile)
    _expect(int, num_threads=num_threads, workspace_mib=workspace_mib, max_kernels=max_kernels)
    _expect(int, max_sms=max_sms)
    _expect(bool, specialize=specialize)
    _core.configure(
        policy,
        arch,
        cache_dir,
        num_threads,
        log,
        specialize,
        validate,
        workspace_mib,
        max_kernels,
        max_sms,
        tile,
    )


def settings() -> dict[str, Any]:
    """The settings in force: what `configure` takes, by name."""
    return _core.settings()


def check_errors(device: int | None = None) -> None:
    """Wait for CUDA devices, then raise what kernels found wrong in the values of earlier calls.

    Kernels cannot raise: a target out of range makes its row NaN, boundaries out of order are cut
    to what exists, and such an error is remembered, one a device, until this function or the next
    call on that device raises it, once.

    Args:
        device: CUDA device to look at; None: all that rlk ran on in this process.

    Raises:
        rlk.InvalidArgument: an active row's target was out of range (names op, row and id), or
            cu_seqlens or group_boundaries were out of order (names where).

    Example:
        >>> loss.backward()
        >>> rlk.jit.check_errors()
    """
    _core.check_errors(device)


def wait(timeout_s: float | None = None) -> bool:
    """Wait until no kernel is compiled in the background (policy "async").

    Args:
        timeout_s: seconds to wait at most; None: no limit.

    Returns:
        Whether nothing is left to compile. The next call of each op takes its new kernel.

    Example:
        >>> rlk.jit.configure(policy="async")
        >>> warm_up()
        >>> rlk.jit.wait()
        True
    """
    return _core.wait(timeout_s)
