# SPDX-License-Identifier: Apache-2.0
"""What the autograd of several ops uses. Imported at the first call that needs a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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


def once(op: str, compute: Callable[[], Any], *inputs: Any) -> Any:
    """compute(), gradients of these inputs, a second derivative of which is an error."""
    return Gradients.apply(op, compute, *inputs) if torch.is_grad_enabled() else compute()


def expect_tensor(op: str, name: str, operand: Any) -> None:
    if not isinstance(operand, torch.Tensor):
        raise InvalidArgument(
            f"{op}: {name}: expected a torch tensor where another argument is one that needs a "
            f"gradient, got {type(operand).__name__}"
        )


def refuse_tangents(op: str, **operands: Any) -> None:
    forward_ad = torch.autograd.forward_ad
    if getattr(forward_ad, "_current_level", -1) < 0:
        return
    for name, operand in operands.items():
        if not isinstance(operand, torch.Tensor):
            continue
        if forward_ad.unpack_dual(operand).tangent is not None:
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


def save(ctx: Any, policy_logits: Any, logp: tuple[Any, ...], saved: tuple[Any, ...]) -> None:
    # Options are saved for their check alone: it refuses a backward after an in-place change.
    tensors = [option for option in logp if isinstance(option, torch.Tensor)]
    ctx.save_for_backward(policy_logits, *saved, *tensors)
    ctx.logp = logp


def apply(function: Any, op: str, call: Any, stream: int | None) -> Any:
    """The autograd function of an op of policy_logits."""
    expect_tensor(op, "policy_logits", call.policy_logits)
    _, temperature, softcap, logit_scale, *_ = call.logp
    refuse_tangents(op, policy_logits=call.policy_logits)
    refuse_options(op, temperature, softcap, logit_scale)
    return function.apply(call.policy_logits, call, stream)
