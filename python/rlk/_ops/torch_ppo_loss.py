# SPDX-License-Identifier: Apache-2.0
"""Autograd of ppo_loss for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._metrics import make_metrics
from rlk._ops.ppo_loss import Call, PpoLoss, forward
from rlk._ops.torch_common import once, refuse_tangents


def apply(function: Any, *inputs: Any) -> Any:
    return function.apply(*inputs)


def _scaled(upstream: Any, saved: Any, dtype: Any) -> Any:
    """upstream * saved, in dtype."""
    like = saved if dtype == saved.dtype else saved.new_empty(0, dtype=dtype)

    def compute() -> Any:
        return _core.ppo_loss_backward(upstream, saved, like)

    # With create_graph the gradient must not look like a constant, even if the upstream is one.
    asking = saved.new_empty(0).requires_grad_() if torch.is_grad_enabled() else None
    return once("ppo_loss", compute, upstream, asking)


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Any, entropy: Any, call: Call, stream: Any) -> Any:
        needs, needs_entropy, *_ = ctx.needs_input_grad
        loss, counts, figures, exact, grad, grad_entropy = forward(
            call, stream, needs, needs_entropy
        )
        ctx.save_for_backward(grad, grad_entropy)
        ctx.dtypes = (log_probs.dtype, None if entropy is None else entropy.dtype)
        ctx.mark_non_differentiable(counts, figures, exact)
        ctx.set_materialize_grads(False)
        return loss, counts, figures, exact

    @staticmethod
    def backward(ctx: Any, upstream: Any, *_: Any) -> Any:
        if upstream is None:
            return None, None, None, None
        grads = [
            None if saved is None else _scaled(upstream, saved, dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *grads, None, None


def ppo_loss(call: Call, stream: int | None) -> PpoLoss:
    """`rlk.jit.ppo_loss` where log_probs or entropy need a gradient."""
    log_probs, entropy = call.tensors["log_probs"], call.tensors.get("entropy")
    refuse_tangents("ppo_loss", log_probs=log_probs, entropy=entropy)
    loss, counts, figures, exact = apply(_PpoLoss, log_probs, entropy, call, stream)
    return PpoLoss(loss, make_metrics(counts, figures, exact))
