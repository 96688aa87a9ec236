# SPDX-License-Identifier: Apache-2.0
"""What the autograd of several ops uses. Imported at the first call that needs a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from rlk._ops.common import PARAMETERS, Arguments
from rlk.errors import Fault, Unsupported, fail


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
            Fault(ctx.op, "backward", "one derivative", "a second (create_graph=True)")
        )


def once(op: str, compute: Callable[[], Any], *inputs: Any) -> Any:
    """compute(), gradients of these inputs, a second derivative of which is an error."""
    return Gradients.apply(op, compute, *inputs) if torch.is_grad_enabled() else compute()


def check_operands(op: str, arguments: Arguments, *names: str) -> list[Any]:
    """The arguments that have gradients, where they are torch tensors (or None) that may have."""
    operands = [arguments[name] for name in names]
    for name, operand in zip(names, operands, strict=True):
        if operand is not None and not isinstance(operand, torch.Tensor):
            fail(
                op,
                name,
                "a torch tensor where another argument is one that needs a gradient",
                type(operand).__name__,
            )
    refuse_tangents(op, arguments, names)
    return operands


def refuse_tangents(op: str, arguments: Arguments, names: Iterable[str]) -> None:
    forward_ad = torch.autograd.forward_ad
    if getattr(forward_ad, "_current_level", -1) < 0:
        return
    for name in names:
        operand = arguments[name]
        if not isinstance(operand, torch.Tensor):
            continue
        if forward_ad.unpack_dual(operand).tangent is not None:
            expected = "a tensor without a tangent (no forward-mode derivative is there)"
            raise Unsupported(Fault(op, name, expected, "one with it"))


def refuse_options(op: str, arguments: Arguments) -> None:
    """Options of logits through which a gradient would have to flow."""
    numbers = {
        name: "tensor" if kind == "number_per_row" else "number"
        for name, (kind, _) in PARAMETERS["logp"].items()
        if "number" in kind
    }
    refuse_tangents(op, arguments, numbers)
    for name, what in numbers.items():
        value = arguments[name]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            fail(op, name, f"a {what} that needs no gradient", "one that does")


def save(ctx: Any, arguments: Arguments, **made: Any) -> None:
    """Keeps arguments, and what a forward made, for `restored`.

    Tensors are torch's to keep: it refuses a backward after an in-place change of one.
    """
    kept = {**arguments, **made}
    ctx.names = [name for name, value in kept.items() if isinstance(value, torch.Tensor)]
    ctx.plain = {name: value for name, value in kept.items() if name not in ctx.names}
    ctx.save_for_backward(*(kept[name] for name in ctx.names))


def restored(ctx: Any) -> Arguments:
    return {**ctx.plain, **dict(zip(ctx.names, ctx.saved_tensors, strict=True))}
