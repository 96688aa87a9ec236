# SPDX-License-Identifier: Apache-2.0
"""Autograd of det_gemm for torch tensors. Imported at the first call that needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.det_gemm import prepared
from rlk._ops.torch_common import check_operands, once, restored, save, through_operators

_OPERANDS = ("a", "b", "bias")


class _DetGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, bias: Any, arguments: Arguments) -> Any:
        out = _core.det_gemm_forward(arguments, False, *ctx.needs_input_grad[:3])
        save(ctx, "det_gemm", arguments)
        # Gradients of what was cast are the float32 sums, which autograd rounds if need be.
        ctx.sums = a is not arguments["a"], b is not arguments["b"]
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        needs = ctx.needs_input_grad[:3]
        return *gradients(_core.det_gemm_backward, ctx, needs, ctx.sums, grad_output), None


def gradients(
    run: Any, ctx: Any, needs: Sequence[bool], sums: Sequence[bool], grad_output: Any
) -> Any:
    """Of a, b and bias, those that are needed; `run`: the core's function or one of an operator;
    `sums`: of a and of b the gradient is to be float32."""
    arguments = restored(ctx)
    operands = [arguments[name] for name in _OPERANDS]
    b = operands[1]
    # A weight's gradient comes as the weight lies, so that no copy of it is made.
    transposes_b = b.stride(0) == 1 and b.stride(1) != 1

    def compute(given: Arguments) -> Any:
        rounded = given["grad_output"].to(given["a"].dtype)
        grad_a, grad_b, grad_bias = run(
            {**given, "grad_output": rounded}, *needs, transposes_b, *sums
        )
        return grad_a, grad_b.T if transposes_b and grad_b is not None else grad_b, grad_bias

    given = {**arguments, "grad_output": grad_output}
    return once("det_gemm", compute, given, grad_output, *operands)


def operands_of(arguments: Arguments) -> list[Any]:
    """a, b and bias, where autograd can take the call."""
    return check_operands("det_gemm", arguments, _OPERANDS)


def det_gemm(given: Arguments, casts: bool) -> Any:
    """`casts`: operands may be cast; their gradients are those of what is given."""
    if through_operators():
        from rlk._ops import torch_det_gemm_operators

        return torch_det_gemm_operators.det_gemm(given)
    return _DetGemm.apply(*operands_of(given), prepared(given, casts))
