# SPDX-License-Identifier: Apache-2.0
"""Autograd of ratio_kl for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk._ops.ratio_kl import Call, RatioKl, Saved, forward, gradient
from rlk._ops.torch_common import apply, once, save


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


def ratio_kl(call: Call, stream: int | None) -> RatioKl:
    """`rlk.jit.ratio_kl` where policy_logits need a gradient."""
    return RatioKl(*apply(_RatioKl, "ratio_kl", call, stream))
