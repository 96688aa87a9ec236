# SPDX-License-Identifier: Apache-2.0
"""The op ppo_loss, without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import NAMES, Resolved, resolve
from rlk._metrics import Metrics, make_metrics
from rlk._ops.common import Arguments, Tensor
from rlk.errors import InvalidArgument, check_needs


class PpoLoss(NamedTuple):
    """What `ppo_loss` returns."""

    loss: Tensor  #: float32, 0-d
    metrics: Metrics


class PpoLossGrads(NamedTuple):
    """Gradients of `ppo_loss`; None where not asked for."""

    log_probs: Tensor | None
    entropy: Tensor | None


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
        advantages: of log_probs' shape, or ``[B]``, ``[B, 1]``: one a sequence.
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
    call = make_call(log_probs, old_log_probs, advantages, loss_mask, options)
    if _core.needs_autograd({"log_probs": log_probs, "entropy": call.entropy}):
        from rlk._ops import torch_ppo_loss

        return torch_ppo_loss.ppo_loss(call, stream)
    return run(call, stream)


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
        `PpoLossGrads`, each of log_probs' shape, in the dtype of what it is the gradient of; for
        float64 in float32.

    Raises:
        rlk.InvalidArgument: as `ppo_loss`.

    Example:
        >>> grads = rlk.jit.ppo_loss_backward(np.float32(1), log_probs, old, advantages, mask)
    """
    call = make_call(log_probs, old_log_probs, advantages, loss_mask, options)
    return gradients(call, grad_output, stream, needs)


def explain(arguments: Arguments) -> tuple[str, str, str, str, str]:
    del arguments["backward"], arguments["stream"]
    inputs = (arguments.pop(name) for name in Call._fields[:4])
    call = make_call(*inputs, options=arguments)
    return _core.ppo_loss_explain(call, call.options.core)


class Call(NamedTuple):
    """Arguments as the core takes them: tensors in its order, None where not there or not read."""

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    loss_mask: Tensor | None
    rollout_logprobs: Tensor | None
    ref_log_probs: Tensor | None
    entropy: Tensor | None
    loss_weights: Tensor | None
    cu_seqlens: Tensor | None
    group_boundaries: Tensor | None
    global_tokens: int | Tensor | None
    global_sequences: int | Tensor | None
    global_groups: int | Tensor | None
    options: Resolved


TENSORS = Call._fields[4:-1]  # that are options
OPTIONS = frozenset({"dialect", "max_seq_len", "samples_per_prompt", *NAMES, *TENSORS})


def make_call(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None,
    options: dict[str, Any],
) -> Call:
    """Takes the tensors out of `options`: a dictionary, for keywords are matched slowly."""
    rollout, ref, entropy, weights, cu_seqlens, boundaries, tokens, sequences, groups = [
        options.pop(name, None) for name in TENSORS
    ]
    resolved = resolve(boundaries is not None, weights is not None, options)
    needs = resolved.needs
    # What an option that is off would read is not looked at.
    return Call(
        log_probs,
        old_log_probs,
        advantages,
        loss_mask,
        _needed(rollout, "rollout_logprobs", "use_tis") if resolved.needs_rollout else None,
        _needed(ref, "ref_log_probs", "kl_coef") if resolved.needs_ref else None,
        _needed(entropy, "entropy", "entropy_coef") if resolved.needs_entropy else None,
        weights,
        cu_seqlens,
        boundaries if "group_boundaries" in needs else None,
        tokens if "global_tokens" in needs else None,
        sequences if "global_sequences" in needs else None,
        groups if "global_groups" in needs else None,
        resolved,
    )


def _needed(tensor: Tensor | None, name: str, switch: str) -> Tensor:
    if tensor is None:
        raise InvalidArgument(f"ppo_loss: {name}: expected a tensor with {switch}, got None")
    return tensor


def forward(
    call: Call, stream: int | None, needs_grad: bool, needs_entropy: bool
) -> tuple[Any, ...]:
    """(loss, three that metrics are made of, saved for log_probs, saved for entropy)."""
    return _core.ppo_loss_forward(call, call.options.core, stream, needs_grad, needs_entropy)


def run(call: Call, stream: int | None) -> PpoLoss:
    loss, *written, _, _ = forward(call, stream, False, False)
    return PpoLoss(loss, make_metrics(*written))


def gradients(
    call: Call, grad_output: Tensor, stream: int | None, needs: tuple[str, ...]
) -> PpoLossGrads:
    needs = check_needs("ppo_loss", needs, ("log_probs", "entropy"))
    has_entropy = "entropy" in needs and call.options.needs_entropy
    *_, grad, grad_entropy = forward(call, stream, "log_probs" in needs, has_entropy)
    found = [
        None if saved is None else _core.ppo_loss_backward(grad_output, saved, of)
        for of, saved in ((call.log_probs, grad), (call.entropy, grad_entropy))
    ]
    return PpoLossGrads(*found)
