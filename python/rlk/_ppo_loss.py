# SPDX-License-Identifier: Apache-2.0
"""The op ppo_loss: its Python side without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import Resolved, resolve
from rlk._metrics import Metrics, make_metrics
from rlk.errors import InvalidArgument, check_needs

Tensor = Any
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
        raise TypeError(f"ppo_loss: {name}: expected an option that exists")
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
