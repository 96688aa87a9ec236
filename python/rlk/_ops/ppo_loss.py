# SPDX-License-Identifier: Apache-2.0
"""The op ppo_loss, without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import ELSEWHERE, Resolved, no_option, resolve
from rlk._metrics import Metrics, make_metrics
from rlk._ops.common import Explanation, Tensor, needs_autograd
from rlk.errors import InvalidArgument, check_needs

Number = int | float
Bounds = float | tuple[float, float]


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
    call = make_call(log_probs, old_log_probs, advantages, loss_mask, **options)
    if needs_autograd(log_probs, call.tensors.get("entropy")):
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
        `PpoLossGrads`, each of log_probs' shape, in the dtype of what it is the gradient of.

    Raises:
        rlk.InvalidArgument: as `ppo_loss`.

    Example:
        >>> grads = rlk.jit.ppo_loss_backward(np.float32(1), log_probs, old, advantages, mask)
    """
    call = make_call(log_probs, old_log_probs, advantages, loss_mask, **options)
    return gradients(call, grad_output, stream, needs)


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
    call = make_call(log_probs, old_log_probs, advantages, loss_mask, **options)
    return Explanation(*_core.ppo_loss_explain(call.tensors, call.options.core))


class Call(NamedTuple):
    """Arguments as the core takes them."""

    tensors: dict[str, Any]
    options: Resolved


def make_call(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    *,
    dialect: str = "rlk",
    policy_loss: str | None = None,
    loss_reduction: str | None = None,
    eps_clip_low: float | None = None,
    eps_clip_high: float | None = None,
    use_dual_clip: bool | None = None,
    clip_ratio_c: float | None = None,
    delta: float | None = None,
    cispo_bounds: str | tuple[float, float] | None = None,
    sapo_tau_pos: float | None = None,
    sapo_tau_neg: float | None = None,
    log_ratio_clamp: Bounds | None = None,
    gspo_log_ratio_clamp: Bounds | None = None,
    use_tis: bool | None = None,
    tis_mode: str | None = None,
    tis_level: str | None = None,
    tis_imp_ratio_cap: float | None = None,
    tis_imp_ratio_floor: float | None = None,
    tis_log_clamp: float | None = None,
    tis_overflow: str | None = None,
    rollout_logprobs: Tensor | None = None,
    kl_coef: float | None = None,
    ref_log_probs: Tensor | None = None,
    kl_estimator: str | None = None,
    kl_gradient: str | None = None,
    kl_weight: str | None = None,
    kl_clamp: float | None = None,
    kl_output_clamp: float | None = None,
    kl_reduction: str | None = None,
    entropy: Tensor | None = None,
    entropy_coef: float | None = None,
    max_seq_len: Number | None = None,
    samples_per_prompt: int | None = None,
    group_boundaries: Tensor | None = None,
    global_tokens: int | Tensor | None = None,
    global_sequences: int | Tensor | None = None,
    global_groups: int | Tensor | None = None,
    loss_weights: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **unknown: Any,
) -> Call:
    for name in unknown:
        raise no_option("ppo_loss", name, ELSEWHERE.get(name))
    options = resolve(
        dialect,
        max_seq_len,
        samples_per_prompt,
        group_boundaries is not None,
        loss_weights is not None,
        policy_loss,
        loss_reduction,
        eps_clip_low,
        eps_clip_high,
        use_dual_clip,
        clip_ratio_c,
        delta,
        cispo_bounds,
        sapo_tau_pos,
        sapo_tau_neg,
        log_ratio_clamp,
        gspo_log_ratio_clamp,
        use_tis,
        tis_mode,
        tis_level,
        tis_imp_ratio_cap,
        tis_imp_ratio_floor,
        tis_log_clamp,
        tis_overflow,
        kl_coef,
        kl_estimator,
        kl_gradient,
        kl_weight,
        kl_clamp,
        kl_output_clamp,
        kl_reduction,
        entropy_coef,
    )
    tensors = {
        "log_probs": log_probs,
        "old_log_probs": old_log_probs,
        "advantages": advantages,
        "loss_mask": loss_mask,
        "cu_seqlens": cu_seqlens,
        "loss_weights": loss_weights,
    }
    # What an option that is off would read is not looked at.
    for name, given in (
        ("group_boundaries", group_boundaries),
        ("global_tokens", global_tokens),
        ("global_sequences", global_sequences),
        ("global_groups", global_groups),
    ):
        if name in options.needs:
            tensors[name] = given
    for needed, name, tensor, switch in (
        (options.needs_rollout, "rollout_logprobs", rollout_logprobs, "use_tis"),
        (options.needs_ref, "ref_log_probs", ref_log_probs, "kl_coef"),
        (options.needs_entropy, "entropy", entropy, "entropy_coef"),
    ):
        if needed:
            if tensor is None:
                raise InvalidArgument(
                    f"ppo_loss: {name}: expected a tensor with {switch}, got None"
                )
            tensors[name] = tensor
    return Call(tensors, options)


def forward(
    call: Call, stream: int | None, needs_grad: bool, needs_entropy: bool
) -> tuple[Any, ...]:
    """(loss, metrics, saved for log_probs, saved for entropy)."""
    loss, counts, figures, exact, grad, grad_entropy = _core.ppo_loss_forward(
        call.tensors, call.options.core, stream, needs_grad, needs_entropy
    )
    return loss, counts, figures, exact, grad, grad_entropy


def run(call: Call, stream: int | None) -> PpoLoss:
    loss, counts, figures, exact, _, _ = forward(call, stream, False, False)
    return PpoLoss(loss, make_metrics(counts, figures, exact))


def gradients(
    call: Call, grad_output: Tensor, stream: int | None, needs: tuple[str, ...]
) -> PpoLossGrads:
    needs = check_needs("ppo_loss", needs, ("log_probs", "entropy"))
    has_entropy = "entropy" in needs and call.options.needs_entropy
    *_, grad, grad_entropy = forward(call, stream, "log_probs" in needs, has_entropy)
    found = [
        None if saved is None else _core.ppo_loss_backward(grad_output, saved, call.tensors[name])
        for name, saved in (("log_probs", grad), ("entropy", grad_entropy))
    ]
    return PpoLossGrads(*found)
