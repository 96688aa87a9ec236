# SPDX-License-Identifier: Apache-2.0
"""Autograd for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rlk import _core
from rlk.errors import InvalidArgument, Unsupported


class Gradients(torch.autograd.Function):
    """The gradients as a function of their inputs, so that a second derivative is an error.

    torch's once_differentiable leaves it out without a word where grad_output is a constant.
    """

    @staticmethod
    def forward(ctx: Any, op: str, compute: Callable[[], Any], *inputs: Any) -> Any:
        ctx.op = op
        return compute()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise Unsupported(
            f"{ctx.op}: backward: expected one derivative, got a second (create_graph=True)"
        )


class _LinearLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Any,
        weight: Any,
        target: Any,
        bias: Any,
        temperature: Any,
        softcap: Any,
        logit_scale: Any,
        mask: Any,
        ignore_index: Any,
        stream: Any,
        return_entropy: bool,
        return_lse: bool,
    ) -> Any:
        log_prob, entropy, lse, row_max, row_log_sum = _core.linear_logp_forward(
            hidden,
            weight,
            target,
            bias,
            temperature,
            softcap,
            logit_scale,
            mask,
            ignore_index,
            stream,
            return_entropy,
            return_lse,
            True,
        )
        # Saved for their check alone: it refuses a backward after an in-place change.
        others = (target, temperature, mask)
        tensors = [tensor for tensor in others if isinstance(tensor, torch.Tensor)]
        ctx.save_for_backward(hidden, weight, bias, row_max, row_log_sum, entropy, *tensors)
        ctx.others = (target, temperature, softcap, logit_scale, mask, ignore_index)
        ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
        return log_prob, entropy, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Any, grad_entropy: Any, grad_lse: Any) -> Any:
        if grad_output is None and grad_entropy is None and grad_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        hidden, weight, bias, row_max, row_log_sum, entropy, *_ = ctx.saved_tensors
        target, temperature, softcap, logit_scale, mask, ignore_index = ctx.others
        needs_hidden, needs_weight, _, needs_bias, *_ = ctx.needs_input_grad

        def compute() -> Any:
            return _core.linear_logp_backward(
                grad_output,
                grad_entropy,
                grad_lse,
                hidden,
                weight,
                target,
                bias,
                temperature,
                softcap,
                logit_scale,
                mask,
                ignore_index,
                None,
                row_max,
                row_log_sum,
                entropy,
                needs_hidden,
                needs_weight,
                needs_bias,
            )

        if torch.is_grad_enabled():  # create_graph
            upstream = (grad_output, grad_entropy, grad_lse)
            grads = Gradients.apply("linear_logp", compute, *upstream, hidden, weight, bias)
        else:
            grads = compute()
        grad_hidden, grad_weight, grad_bias = grads
        return grad_hidden, grad_weight, None, grad_bias, *[None] * 8


def _tangent(tensor: torch.Tensor) -> torch.Tensor | None:
    level = getattr(torch.autograd.forward_ad, "_current_level", -1)
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent if level >= 0 else None


def refuse_tangents(op: str, **operands: Any) -> None:
    for name, operand in operands.items():
        if isinstance(operand, torch.Tensor) and _tangent(operand) is not None:
            raise Unsupported(
                f"{op}: {name}: expected a tensor without a tangent (no forward-mode "
                "derivative is there), got one with it"
            )


def refuse_options(op: str, temperature: Any, softcap: Any, logit_scale: Any) -> None:
    """Options through which a gradient would have to flow."""
    refuse_tangents(op, temperature=temperature, softcap=softcap, logit_scale=logit_scale)
    for name, value, what in (
        ("temperature", temperature, "tensor"),
        ("softcap", softcap, "number"),
        ("logit_scale", logit_scale, "number"),
    ):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise InvalidArgument(
                f"{op}: {name}: expected a {what} that needs no gradient, got one that does"
            )


def linear_logp(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any,
    temperature: Any,
    softcap: Any,
    logit_scale: Any,
    mask: Any,
    ignore_index: Any,
    stream: Any,
    return_entropy: bool,
    return_lse: bool,
) -> Any:
    """(log_prob, entropy, lse), None where not asked for."""
    for name, operand in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if operand is not None and not isinstance(operand, torch.Tensor):
            raise InvalidArgument(
                f"linear_logp: {name}: expected a torch tensor where another argument is one that "
                f"needs a gradient, got {type(operand).__name__}"
            )
    refuse_tangents("linear_logp", hidden=hidden, weight=weight, bias=bias)
    refuse_options("linear_logp", temperature, softcap, logit_scale)
    return _LinearLogp.apply(
        hidden,
        weight,
        target,
        bias,
        temperature,
        softcap,
        logit_scale,
        mask,
        ignore_index,
        stream,
        return_entropy,
        return_lse,
    )
