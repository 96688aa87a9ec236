# SPDX-License-Identifier: Apache-2.0
"""det_gemm as operators of torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.det_gemm import det_gemm as det_gemm_function
from rlk._ops.det_gemm import det_gemm_backward, prepared
from rlk._ops.torch_cast import autocast_dtype
from rlk._ops.torch_common import save
from rlk._ops.torch_det_gemm import gradients, operands_of
from rlk._ops.torch_operators import Operator, Rules, differentiable, expect_shape, words_of

_OPERANDS = ("a", "b", "bias")
_FLAGS = (*(f"needs_{name}" for name in _OPERANDS), "transposes_b", "sums_of_a", "sums_of_b")


def _fake_forward(arguments: Arguments) -> Any:
    a, b = arguments["a"], arguments["b"]
    columns = b.shape[1:] if b.ndim == 2 else ("N",)
    expect_shape("det_gemm", "b", b, (*a.shape[-1:], *columns), "[K, N], a being [..., M, K]")
    dtype = a.dtype if arguments["out_dtype"] is None else torch.float32
    return a.new_empty((*a.shape[:-1], *columns), dtype=dtype)


def _backward(arguments: Arguments) -> tuple[Any, ...]:
    grads = _core.det_gemm_backward(arguments, *(arguments[name] for name in _FLAGS))
    return tuple(arguments["a"].new_empty(0) if grad is None else grad for grad in grads)


def _fake_backward(arguments: Arguments) -> tuple[Any, ...]:
    a, b, bias = (arguments[name] for name in _OPERANDS)
    found = []
    for name, like in (("a", a), ("b", b.T if arguments["transposes_b"] else b), ("bias", bias)):
        if arguments[f"needs_{name}"]:
            dtype = torch.float32 if arguments.get(f"sums_of_{name}") else like.dtype
            found.append(like.new_empty(like.shape, dtype=dtype))
        else:
            found.append(a.new_empty(0))
    return tuple(found)


def _flops(arguments: Arguments, products: int = 1) -> int:
    columns: int = arguments["b"][1]
    return 2 * products * prod(arguments["a"]) * columns


_run_forward = Operator("_det_gemm_forward", "det_gemm", words_of(det_gemm_function), "Tensor")
_run_forward.is_kernel(_core.det_gemm_forward, _fake_forward)
_run_forward.counts(_flops)
_run_backward = Operator(
    "_det_gemm_backward",
    "det_gemm",
    [
        *words_of(det_gemm_backward),
        *(f"bool {name}=False" for name in _FLAGS),
    ],
    "(Tensor, Tensor, Tensor)",  # of no elements where not needed
)
_run_backward.is_kernel(_backward, _fake_backward)
_run_backward.counts(lambda given: _flops(given, given["needs_a"] + given["needs_b"]))


def _gradients(ctx: Any, needs: Sequence[bool], grad_output: Any) -> Any:
    if grad_output is None:
        return (None,) * 3

    def run(given: Arguments, *flags: bool) -> tuple[Any, ...]:
        grads = _run_backward({**given, **dict(zip(_FLAGS, flags, strict=True))})
        return tuple(g if is_there else None for g, is_there in zip(grads, flags[:3], strict=True))

    return gradients(run, ctx, needs, ctx.sums, grad_output)


def _save(ctx: Any, arguments: Arguments, _: Any) -> None:
    ctx.sums = arguments["sums_of_a"], arguments["sums_of_b"]
    save(ctx, "det_gemm", {name: arguments[name] for name in _OPERANDS})


_RULES = Rules("det_gemm", lambda given, _: (_run_forward(given),), _save, _gradients)


def _det_gemm(given: Arguments) -> Any:
    operands = operands_of(given)
    arguments = prepared(given, casts=True)
    # Gradients of what was cast are the float32 sums, which autograd rounds if need be.
    sums = {f"sums_of_{name}": given[name] is not arguments[name] for name in ("a", "b")}
    return differentiable(_RULES, {**arguments, **sums}, *operands)[0]


_operator = Operator(
    "det_gemm", "det_gemm", [*words_of(det_gemm_function), "str? compute_dtype=None"], "Tensor"
)
_operator.is_composite(_det_gemm)


def det_gemm(given: Arguments) -> Any:
    return _operator({**given, "compute_dtype": autocast_dtype(given["a"])})
