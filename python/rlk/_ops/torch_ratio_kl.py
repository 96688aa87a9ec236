# SPDX-License-Identifier: Apache-2.0
"""Autograd of ratio_kl for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk._ops.ratio_kl import Call, RatioKl, Saved, forward, gradient
from rlk._ops.torch_common import Gradients, refuse_options, refuse_tangents
from rlk.errors import InvalidArgument


class _RatioKl(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, policy_logits: Any, call: Call, stream: Any) -> Any:
        found, saved = forward(call, stream, True)
        assert saved is not None
        save(ctx, policy_logits, call.logp, saved)
        ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, grad_ratio: Any, grad_kl: Any) -> Any:
        if grad_ratio is None and grad_kl is None:
            return None, None, None
        policy_logits, *saved = ctx.saved_tensors[:5]

        def compute() -> Any:
            parts = Saved(*saved)
            return gradient(grad_ratio, grad_kl, policy_logits, ctx.logp, parts, None)

        upstream = (grad_ratio, grad_kl)
        return once("ratio_kl", compute, *upstream, policy_logits), None, None


def save(ctx: Any, policy_logits: Any, logp: tuple[Any, ...], saved: tuple[Any, ...]) -> None:
    # Options are saved for their check alone: it refuses a backward after an in-place change.
    tensors = [option for option in logp if isinstance(option, torch.Tensor)]
    ctx.save_for_backward(policy_logits, *saved, *tensors)
    ctx.logp = logp


def once(op: str, compute: Any, *inputs: Any) -> Any:
    """compute(), a second derivative of which is an error."""
    return Gradients.apply(op, compute, *inputs) if torch.is_grad_enabled() else compute()


def apply(function: Any, op: str, call: Any, stream: int | None) -> Any:
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


def ratio_kl(call: Call, stream: int | None) -> RatioKl:
    """`rlk.jit.ratio_kl` where policy_logits need a gradient."""
    return RatioKl(*apply(_RatioKl, "ratio_kl", call, stream))
