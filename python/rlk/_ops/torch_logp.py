# SPDX-License-Identifier: Apache-2.0
"""Autograd of logp for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._ops.logp import LogpOptions
from rlk._ops.torch_common import expect_tensor, once, refuse_options, refuse_tangents
from rlk.errors import InvalidArgument, Unsupported


class _Logp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Any,
        options: LogpOptions,
        stream: Any,
        return_entropy: bool,
        return_lse: bool,
        in_place: bool,
    ) -> Any:
        log_prob, entropy, lse, row_max, row_log_sum = _core.logp_forward(
            logits, *options, stream, return_entropy, return_lse, True, in_place
        )
        # Saved for their check alone: it refuses a backward after an in-place change.
        tensors = [option for option in options if isinstance(option, torch.Tensor)]
        ctx.save_for_backward(logits, row_max, row_log_sum, entropy, *tensors)
        ctx.options, ctx.in_place = options, in_place
        ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
        return log_prob, entropy, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Any, grad_entropy: Any, grad_lse: Any) -> Any:
        if grad_output is None and grad_entropy is None and grad_lse is None:
            return (None,) * 6
        logits, row_max, row_log_sum, entropy, *_ = ctx.saved_tensors
        upstream = (grad_output, grad_entropy, grad_lse)
        saved = (row_max, row_log_sum, entropy)

        def compute() -> Any:
            inputs: Any = (*upstream, logits, *ctx.options, None, *saved, ctx.in_place, None, None)
            return _core.logp_backward(*inputs)

        if ctx.in_place and torch.is_grad_enabled():
            raise Unsupported(
                "logp: inplace_backward: expected a backward without create_graph=True, which "
                "needs the logits again"
            )
        grad = once("logp", compute, *upstream, logits)
        if ctx.in_place:
            # Whoever saved the logits is told that they are gone: torch raises there.
            torch.autograd.graph.increment_version(logits)
            grad = logits.detach()
        return grad, None, None, None, None, None


def logp(
    logits: Any,
    options: LogpOptions,
    stream: Any,
    return_entropy: bool,
    return_lse: bool,
    in_place: bool,
) -> Any:
    """(log_prob, entropy, lse), None where not asked for."""
    expect_tensor("logp", "logits", logits)
    _, temperature, softcap, logit_scale, *_ = options
    refuse_tangents("logp", logits=logits)
    refuse_options("logp", temperature, softcap, logit_scale)
    result = _Logp.apply(logits, options, stream, return_entropy, return_lse, in_place)
    if in_place and logits.requires_grad and logits.is_leaf:  # the core has seen that it is a flag
        raise InvalidArgument(
            "logp: inplace_backward: expected logits that an operation made, got a leaf, whose "
            "values would become its gradient"
        )
    return result
