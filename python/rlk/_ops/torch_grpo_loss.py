# SPDX-License-Identifier: Apache-2.0
"""Autograd of grpo_loss for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk._ops.grpo_loss import Call, GrpoLoss, Saved, forward, gradient, result, scaled
from rlk._ops.torch_common import apply, once, save


class _GrpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, policy_logits: Any, call: Call, stream: Any) -> Any:
        loss, figures, saved, made = forward(call, stream, True)
        # The gradient for an upstream of 1, which is what a loss mostly gets.
        ctx.gradient = (
            made if made is not None else gradient(policy_logits, call.logp, saved, stream)
        )
        save(ctx, policy_logits, call.logp, saved)
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
            parts = scaled(Saved(*saved), upstream)
            return gradient(policy_logits, ctx.logp, parts, None, made, upstream)

        return once("grpo_loss", compute, upstream, policy_logits), None, None


def grpo_loss(call: Call, stream: int | None) -> GrpoLoss:
    """`rlk.jit.grpo_loss` where policy_logits need a gradient."""
    return result(*apply(_GrpoLoss, "grpo_loss", call, stream))
