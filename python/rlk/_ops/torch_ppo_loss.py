# SPDX-License-Identifier: Apache-2.0
"""Autograd of ppo_loss for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._metrics import make_metrics
from rlk._ops.ppo_loss import Call, PpoLoss, forward
from rlk._ops.torch_common import once, refuse_tangents


def _scaled(upstream: Any, saved: Any, dtype: Any) -> Any:
    """upstream * saved, in dtype."""
    if saved is None:
        return None
    like = saved if dtype == saved.dtype else saved.new_empty(0, dtype=dtype)

    def compute() -> Any:
        return _core.ppo_loss_backward(upstream, saved, like)

    # With create_graph the gradient must not look like a constant, even if the upstream is one.
    asking = saved.new_empty(0).requires_grad_() if torch.is_grad_enabled() else None
    return once("ppo_loss", compute, upstream, asking)


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, log_probs: Any, entropy: Any, call: Call, stream: Any, written: list[Any]
    ) -> Any:
        needs, needs_entropy = ctx.needs_input_grad[:2]
        loss, *written[:], grad, grad_entropy = forward(call, stream, needs, needs_entropy)
        ctx.save_for_backward(grad, grad_entropy)
        ctx.dtypes = (log_probs.dtype, None if entropy is None else entropy.dtype)
        ctx.set_materialize_grads(False)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        if upstream is None:
            return None, None, None, None, None
        grad, grad_entropy = ctx.saved_tensors
        dtype, entropy_dtype = ctx.dtypes
        of_entropy = _scaled(upstream, grad_entropy, entropy_dtype)
        return _scaled(upstream, grad, dtype), of_entropy, None, None, None


def ppo_loss(call: Call, stream: int | None) -> PpoLoss:
    """`rlk.jit.ppo_loss` where log_probs or entropy need a gradient."""
    refuse_tangents("ppo_loss", log_probs=call.log_probs, entropy=call.entropy)
    written: list[Any] = []  # beside autograd, which would look at each as at an output
    loss = _PpoLoss.apply(call.log_probs, call.entropy, call, stream, written)
    return PpoLoss(loss, make_metrics(*written))
