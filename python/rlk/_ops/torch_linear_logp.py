# SPDX-License-Identifier: Apache-2.0
"""Autograd of linear_logp for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._ops.torch_common import expect_tensor, once, refuse_options, refuse_tangents

# temperature, softcap, logit_scale, mask, ignore_index
Options = tuple[Any, Any, Any, Any, Any]


class _LinearLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Any,
        weight: Any,
        target: Any,
        bias: Any,
        options: Options,
        stream: Any,
        return_entropy: bool,
        return_lse: bool,
    ) -> Any:
        log_prob, entropy, lse, row_max, row_log_sum = _core.linear_logp_forward(
            hidden,
            weight,
            target,
            bias,
            *options,
            stream,
            return_entropy,
            return_lse,
            True,
        )
        # Saved for their check alone: it refuses a backward after an in-place change.
        tensors = [option for option in (target, *options) if isinstance(option, torch.Tensor)]
        ctx.save_for_backward(hidden, weight, bias, row_max, row_log_sum, entropy, *tensors)
        ctx.target, ctx.options = target, options
        ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
        return log_prob, entropy, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Any, grad_entropy: Any, grad_lse: Any) -> Any:
        if grad_output is None and grad_entropy is None and grad_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        hidden, weight, bias, row_max, row_log_sum, entropy, *_ = ctx.saved_tensors
        options: Options = ctx.options
        needs_hidden, needs_weight, _, needs_bias, *_ = ctx.needs_input_grad

        def compute() -> Any:
            return _core.linear_logp_backward(
                grad_output,
                grad_entropy,
                grad_lse,
                hidden,
                weight,
                ctx.target,
                bias,
                *options,
                None,
                row_max,
                row_log_sum,
                entropy,
                needs_hidden,
                needs_weight,
                needs_bias,
            )

        upstream = (grad_output, grad_entropy, grad_lse)
        grads = once("linear_logp", compute, *upstream, hidden, weight, bias)
        grad_hidden, grad_weight, grad_bias = grads
        return grad_hidden, grad_weight, None, grad_bias, *[None] * 4


def linear_logp(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any,
    options: Options,
    stream: Any,
    return_entropy: bool,
    return_lse: bool,
) -> Any:
    """(log_prob, entropy, lse), None where not asked for."""
    for name, operand in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if operand is not None:
            expect_tensor("linear_logp", name, operand)
    refuse_tangents("linear_logp", hidden=hidden, weight=weight, bias=bias)
    refuse_options("linear_logp", *options[:3])
    return _LinearLogp.apply(
        hidden,
        weight,
        target,
        bias,
        options,
        stream,
        return_entropy,
        return_lse,
    )
