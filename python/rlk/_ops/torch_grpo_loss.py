# SPDX-License-Identifier: Apache-2.0
"""Autograd of grpo_loss for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk._ops.common import Arguments
from rlk._ops.grpo_loss import NAMES, Call, GrpoLoss, forward, gradient, result, scaled
from rlk._ops.torch_common import check_operands, once, refuse_options, restored, save
from rlk.errors import renamed


class _GrpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, policy_logits: Any, call: Call) -> Any:
        loss, floats, saved, made = forward(call, True)
        # The gradient for an upstream of 1, which is what a loss mostly gets.
        made = made if made is not None else gradient({**call.logp, **saved})
        with renamed("grpo_loss", NAMES):
            save(ctx, "logp", call.logp, saved, {"made": made})
        ctx.is_given = False
        ctx.mark_non_differentiable(floats)
        ctx.set_materialize_grads(False)
        return loss, floats

    @staticmethod
    def backward(ctx: Any, upstream: Any, *_: Any) -> Any:
        if upstream is None:
            return None, None
        arguments = restored(ctx)
        made = arguments.pop("made")
        # Given once: whoever has it may write to it, which is no change of what was saved.
        into, ctx.is_given = None if ctx.is_given else made.data, True

        def compute(given: Arguments) -> Any:
            return gradient(scaled(given, upstream), into, upstream)

        return once("grpo_loss", compute, arguments, upstream, arguments["logits"]), None


def grpo_loss(call: Call, arguments: Arguments) -> GrpoLoss:
    """`rlk.jit.grpo_loss` where policy_logits need a gradient."""
    (policy_logits,) = check_operands("grpo_loss", arguments, ("policy_logits",))
    refuse_options("grpo_loss", arguments)
    return result(*_GrpoLoss.apply(policy_logits, call))
