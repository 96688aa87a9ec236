# SPDX-License-Identifier: Apache-2.0
"""Autograd of the losses from logits. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _grpo_loss, _ratio_kl
from rlk._torch import Gradients, refuse_options, refuse_tangents
from rlk.errors import InvalidArgument


class _RatioKl(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, policy_logits: Any, call: _ratio_kl.Call, stream: Any) -> Any:
        found, saved = _ratio_kl.forward(call, stream, True)
        assert saved is not None
        _save(ctx, policy_logits, call.logp, saved)
        ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, grad_ratio: Any, grad_kl: Any) -> Any:
        if grad_ratio is None and grad_kl is None:
            return None, None, None
        policy_logits, *saved = ctx.saved_tensors[:5]

        def compute() -> Any:
            parts = _ratio_kl.Saved(*saved)
            return _ratio_kl.gradient(grad_ratio, grad_kl, policy_logits, ctx.logp, parts, None)

        upstream = (grad_ratio, grad_kl)
        return _once("ratio_kl", compute, *upstream, policy_logits), None, None


class _GrpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, policy_logits: Any, call: _grpo_loss.Call, stream: Any) -> Any:
        loss, figures, saved = _grpo_loss.forward(call, stream, True)
        # The gradient for an upstream of 1, which is what a loss mostly gets.
        ctx.gradient = _grpo_loss.gradient(policy_logits, call.logp, saved, stream)
        _save(ctx, policy_logits, call.logp, saved)
        ctx.mark_non_differentiable(figures)
        ctx.set_materialize_grads(False)
        return loss, figures

    @staticmethod
    def backward(ctx: Any, upstream: Any, *_: Any) -> Any:
        if upstream is None:
            return None, None, None
        policy_logits, *saved = ctx.saved_tensors[:6]
        # Handed out once: whoever got it may write to it.
        made, ctx.gradient = ctx.gradient, None

        def compute() -> Any:
            parts = _grpo_loss.scaled(_grpo_loss.Saved(*saved), upstream)
            return _grpo_loss.gradient(policy_logits, ctx.logp, parts, None, made, upstream)

        return _once("grpo_loss", compute, upstream, policy_logits), None, None


def _save(ctx: Any, policy_logits: Any, logp: tuple[Any, ...], saved: tuple[Any, ...]) -> None:
    # Options are saved for their check alone: it refuses a backward after an in-place change.
    tensors = [option for option in logp if isinstance(option, torch.Tensor)]
    ctx.save_for_backward(policy_logits, *saved, *tensors)
    ctx.logp = logp


def _once(op: str, compute: Any, *inputs: Any) -> Any:
    """compute(), a second derivative of which is an error."""
    return Gradients.apply(op, compute, *inputs) if torch.is_grad_enabled() else compute()


def _apply(function: Any, op: str, call: Any, stream: int | None) -> Any:
    policy_logits = call.policy_logits
    if not isinstance(policy_logits, torch.Tensor):
        raise InvalidArgument(
            f"{op}: policy_logits: expected a torch tensor where another argument is one that "
            f"needs a gradient, got {type(policy_logits).__name__}"
        )
    _, temperature, softcap, logit_scale, *_ = call.logp
    refuse_tangents(op, policy_logits=policy_logits)
    refuse_options(op, temperature, softcap, logit_scale)
    return function.apply(policy_logits, call, stream)


def ratio_kl(call: _ratio_kl.Call, stream: int | None) -> _ratio_kl.RatioKl:
    """`rlk.jit.ratio_kl` where policy_logits need a gradient."""
    return _ratio_kl.RatioKl(*_apply(_RatioKl, "ratio_kl", call, stream))


def grpo_loss(call: _grpo_loss.Call, stream: int | None) -> _grpo_loss.GrpoLoss:
    """`rlk.jit.grpo_loss` where policy_logits need a gradient."""
    return _grpo_loss.result(*_apply(_GrpoLoss, "grpo_loss", call, stream))
