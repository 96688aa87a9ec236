# SPDX-License-Identifier: Apache-2.0
"""Autograd of ratio_kl for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk._ops.common import Arguments
from rlk._ops.ratio_kl import NAMES, Call, RatioKl, forward, gradient
from rlk._ops.torch_common import check_operands, once, refuse_options, restored, save
from rlk.errors import renamed


class _RatioKl(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, policy_logits: Any, call: Call) -> Any:
        found, saved = forward(call, True)
        with renamed("ratio_kl", NAMES):
            save(ctx, "logp", call.logp, saved)
        ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, grad_ratio: Any, grad_kl: Any) -> Any:
        if grad_ratio is None and grad_kl is None:
            return None, None
        arguments = {**restored(ctx), "grad_ratio": grad_ratio, "grad_kl": grad_kl}
        return once("ratio_kl", gradient, arguments, grad_ratio, grad_kl, arguments["logits"]), None


def ratio_kl(call: Call, arguments: Arguments) -> RatioKl:
    """`rlk.jit.ratio_kl` where policy_logits need a gradient."""
    (policy_logits,) = check_operands("ratio_kl", arguments, ("policy_logits",))
    refuse_options("ratio_kl", arguments)
    return RatioKl(*_RatioKl.apply(policy_logits, call))
