# SPDX-License-Identifier: Apache-2.0
"""The op det_gemm, without torch, and linear, which is made of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from rlk import _core
from rlk._ops.common import Arguments, Tensor, is_compiling
from rlk.errors import check_needs, fail, renamed, shape_of, text

#: Of linear: the arguments of det_gemm by the names they have there.
_NAMES = {"a": "x", "b": "weight"}


def det_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: Any = None,
    stream: int | None = None,
) -> Tensor:
    """A matrix product whose bits do not depend on the batch: ``a @ b + bias``.

    Sums are float32, each one chain in the order of k; the bias is added to the sum in float32,
    and the result rounded once. A row's bits depend on that row of a, on b and on the bias alone:
    not on the number of rows, on the row's position, strides, padding, the number of threads or
    multiprocessors, or the kernel's tile. float32 inputs are multiplied as float32, never as
    TF32. Differentiable in a, b and bias for torch tensors: the gradients are such products too,
    and that of b sums tokens in their order. On a CUDA device the call is queued on the current
    stream and returns at once.

    Args:
        a: ``[..., M, K]``, float32, bfloat16 or float16, any strides. All axes but the last are
            rows.
        b: ``[K, N]``, a's dtype, any strides: ``weight.T`` is read in place. In torch's autocast a
            and b are taken in its dtype, as torch.mm takes them; their gradients have their own
            dtypes, a float32 one unrounded.
        bias: ``[N]``, a's dtype or float32; None: 0.
        out_dtype: that of the result: None: a's; "float32" or float32's object of torch or NumPy:
            the sums as they are. Of a float32 result the gradient is rounded to a's dtype first.
        stream: as in `linear_logp`.

    Returns:
        ``[..., M, N]``: a torch tensor for torch tensors, a NumPy array for others on the CPU, an
        `rlk.Array` for others on CUDA.

    Raises:
        rlk.InvalidArgument: a shape, dtype or device is wrong (a ValueError).
        rlk.Unsupported: nothing here can run this device and dtype, or a tensor carries a tangent
            of forward-mode differentiation or is inside a torch.func transform (a
            NotImplementedError). Nothing else is run in its place.

    Example:
        >>> y = rlk.jit.det_gemm(x, weight.T, bias)
        >>> assert torch.equal(rlk.jit.det_gemm(x[7:8], weight.T, bias), y[7:8])

    out_ij = round(sum_k a_ik b_kj + bias_j).
    """
    given = {
        "a": a,
        "b": b,
        "bias": bias,
        "out_dtype": out_dtype,
        "stream": stream,
    }
    compiles = is_compiling()
    casts = compiles or _core.is_autocast_enabled()
    if compiles or _core.needs_autograd(given):
        from rlk._ops import torch_det_gemm

        return torch_det_gemm.det_gemm(given, casts)
    return _core.det_gemm_forward(prepared(given, casts))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``det_gemm(x, weight.T, bias)``, with the arguments of torch's F.linear.

    Args:
        x: ``[..., K]``, float32, bfloat16 or float16.
        weight: ``[N, K]``, x's dtype; in autocast any of the three, as in `det_gemm`.
        bias: ``[N]``, x's dtype or float32; None: 0.

    Returns:
        ``[..., N]`` of x's dtype, in autocast of autocast's, as `det_gemm` gives it.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `det_gemm`.

    Example:
        >>> y = rlk.jit.linear(hidden, layer.weight, layer.bias)
    """
    with renamed("linear", _NAMES):
        return det_gemm(x, _transposed(x, weight), bias)


class DetGemmGrads(NamedTuple):
    """Gradients of `det_gemm`; None where not asked for."""

    a: Tensor | None
    b: Tensor | None
    bias: Tensor | None


def det_gemm_backward(
    grad_output: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    stream: int | None = None,
    needs: tuple[str, ...] = ("a", "b", "bias"),
) -> DetGemmGrads:
    """Gradients of `det_gemm` for those without autograd.

    Args:
        grad_output: ``[..., M, N]``, a's dtype, or float32, which is rounded to a's first.
        a, b, bias, stream: as in `det_gemm`.
        needs: which gradients to compute; "bias" is left out by itself where bias is None.

    Returns:
        `DetGemmGrads` (a ``[..., M, K]``, b ``[K, N]``, bias ``[N]``), each in the dtype of what it
        is the gradient of, None where not asked for.

    Raises:
        rlk.InvalidArgument: as `det_gemm`, and for a name in needs that is none of the three.

    Example:
        >>> grads = rlk.jit.det_gemm_backward(grad_output, x, weight.T)
        >>> weight -= 1e-3 * grads.b.T

    grad_a = grad_output b^T; grad_b = a^T grad_output and grad_bias = 1^T grad_output, each element
    one chain over the rows in their order.
    """
    arguments = {**locals(), "grad_output": _rounded(grad_output, a)}
    needs = check_needs("det_gemm", needs, ("a", "b", "bias"))
    has_bias = "bias" in needs and bias is not None
    return DetGemmGrads(*_core.det_gemm_backward(arguments, "a" in needs, "b" in needs, has_bias))


def explain(arguments: Arguments) -> tuple[str, str, str, str, str]:
    return _core.det_gemm_explain(prepared(arguments, casts=True))


def explain_linear(arguments: Arguments) -> tuple[str, str, str, str, str]:
    x, weight = arguments["x"], arguments["weight"]
    given = {"a": x, "b": _transposed(x, weight), "bias": arguments["bias"]}
    with renamed("linear", _NAMES):
        return explain({**given, "out_dtype": None, "backward": arguments["backward"]})


def _transposed(x: Any, weight: Any) -> Any:
    """det_gemm would tell the shape of what it is given, the other way round."""
    shape = shape_of(weight)
    terms = (shape_of(x) or (None,))[-1]
    if shape is not None and terms and (len(shape) != 2 or not shape[0] or shape[1] != terms):
        expected = f"shape [N, {terms}] with N at least 1 ({{a}} has {terms} columns)"
        fail("linear", "weight", expected, list(shape))
    return getattr(weight, "T", weight)


def prepared(given: Arguments, casts: bool) -> Arguments:
    """The arguments as the core takes them: in autocast's dtype, where it `casts`, and out_dtype
    None where it is a's own."""
    if casts and hasattr(given["a"], "requires_grad"):
        from rlk._ops import torch_cast

        given = torch_cast.cast("det_gemm", given, ("a", "b"), given.get("compute_dtype"))
    asked = given["out_dtype"]
    if asked is None:
        return given
    name = _name_of(asked)
    own = _name_of(getattr(given["a"], "dtype", None))
    if name is None or name not in ("float32", own):
        fail("det_gemm", "out_dtype", "None, float32 or the dtype of {a}", text(asked))
    return {**given, "out_dtype": None if name == own else name}


def _rounded(grad: Any, a: Any) -> Any:
    """A float32 gradient in a's dtype, where its framework can say so."""
    own = getattr(a, "dtype", None)
    if own is None or _name_of(getattr(grad, "dtype", None)) != "float32":
        return grad
    to = getattr(grad, "astype", None) or getattr(grad, "to", None)
    return grad if to is None or own == grad.dtype else to(own)


def _name_of(dtype: Any) -> str | None:
    if dtype is None or isinstance(dtype, str):
        return dtype
    name = str(dtype)
    if name.startswith("torch."):
        return name.removeprefix("torch.")
    with suppress(TypeError):
        return str(np.dtype(dtype))
    return None
