# SPDX-License-Identifier: Apache-2.0
"""Autograd of det_gemm for torch tensors. Imported at the first call that needs it."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.det_gemm import prepared
from rlk._ops.torch_common import check_operands, once, restored, save

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
        arguments = restored(ctx)
        operands = [arguments[name] for name in _OPERANDS]
        a, b = operands[:2]
        # A weight's gradient comes as the weight lies, so that no copy of it is made.
        transposes_b = b.stride(0) == 1 and b.stride(1) != 1

        def compute() -> Any:
            given = {**arguments, "grad_output": grad_output.to(a.dtype)}
            needs_a, needs_b, needs_bias, _ = ctx.needs_input_grad
            grad_a, grad_b, grad_bias = _core.det_gemm_backward(
                given, needs_a, needs_b, needs_bias, transposes_b, *ctx.sums
            )
            return grad_a, grad_b.T if transposes_b and grad_b is not None else grad_b, grad_bias

        return *once("det_gemm", compute, grad_output, *operands), None


def det_gemm(given: Arguments, casts: bool) -> Any:
    """`casts`: operands may be cast; their gradients are those of what is given."""
    operands = check_operands("det_gemm", given, _OPERANDS)
    return _DetGemm.apply(*operands, prepared(given, casts))
