# SPDX-License-Identifier: Apache-2.0
"""det_gemm's and linear's autograd, on the CPU's torch tensors and on a card."""

from __future__ import annotations

import numpy as np
import pytest
from devices import torch_name
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]
DTYPES = ["float32", "bfloat16", "float16"]


def draw(lead=(6, 11), terms: int = 72, cols: int = 40, dtype: str = "float32"):
    rng = np.random.default_rng(3)
    sizes = ((*lead, terms), (cols, terms), (cols,), (*lead, cols))
    return [tensor(rng.standard_normal(size), dtype) for size in sizes]


def assert_close(found, exact, terms: int) -> None:
    rounding = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
    unit = rounding[str(found.dtype).removeprefix("torch.")]
    error = (found.double() - exact).abs().max()
    assert error <= exact.abs().max() * (2 * unit + terms * 2.0**-23), error


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_against_float64(dtype):
    x, w, bias, g = draw(dtype=dtype)
    leaves = [t.clone().requires_grad_() for t in (x, w, bias)]
    y = rlk.jit.linear(*leaves)
    y.backward(g)
    double = [t.double().requires_grad_() for t in (x, w, bias)]
    exact = torch.nn.functional.linear(*double)
    exact.backward(g.double())
    assert_close(y.detach(), exact.detach(), 72)
    for leaf, want in zip(leaves, double, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        assert leaf.grad.is_contiguous()
        assert_close(leaf.grad, want.grad, 72)


def test_only_what_is_asked_for_has_a_gradient():
    x, w, bias, g = draw()
    for asked in ((True, False, False), (False, True, False), (False, False, True)):
        leaves = [t.clone().requires_grad_(n) for t, n in zip((x, w, bias), asked, strict=True)]
        rlk.jit.linear(*leaves).backward(g)
        assert [leaf.grad is not None for leaf in leaves] == list(asked)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_float32_result_of_16_bits(dtype):
    x, w, _, g = draw(dtype=dtype)
    x.requires_grad_()
    y = rlk.jit.det_gemm(x, w.T, out_dtype=torch.float32)
    assert y.dtype == torch.float32
    y.backward(g.float())
    assert_close(x.grad, g.double() @ w.double(), 40)


def test_the_weights_gradient_has_the_same_bits_in_either_layout():
    x, w, _, g = draw()
    b = w.T.contiguous().requires_grad_()
    rlk.jit.det_gemm(x, b).backward(g)
    own = w.clone().requires_grad_()
    rlk.jit.linear(x, own).backward(g)
    assert torch.equal(b.grad.T, own.grad)


def test_a_second_derivative_is_refused():
    x, w, _, _ = draw()
    x.requires_grad_()
    (grad,) = torch.autograd.grad(rlk.jit.linear(x, w).sum(), x, create_graph=True)
    with pytest.raises(rlk.Unsupported, match="det_gemm: backward: expected one derivative"):
        grad.sum().backward()


def test_an_in_place_change_before_the_backward_is_found():
    x, w, _, g = draw()
    w.requires_grad_()
    y = rlk.jit.linear(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(g)


@pytest.mark.parametrize("half", DTYPES[1:])
@pytest.mark.parametrize("own", DTYPES)
def test_autocast(half, own):
    """As torch.mm: the result in its dtype, each gradient in the operand's own, and unrounded."""
    x, w, bias, g = draw(dtype=own)
    dtype = getattr(torch, half)
    leaves = [t.clone().requires_grad_() for t in (x, w, bias)]
    with torch.autocast(torch_name(), dtype=dtype):
        y = rlk.jit.linear(*leaves)
    g = g.to(dtype)
    y.backward(g)
    given = (x.to(dtype), w.to(dtype), bias if own == half else bias.float())
    assert y.dtype == dtype
    assert torch.equal(y, rlk.jit.linear(*given))
    double = [t.double().requires_grad_() for t in given]
    exact = torch.nn.functional.linear(*double)
    exact.backward(g.double())
    for leaf, want in zip(leaves, double, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        assert_close(leaf.grad, want.grad, 72)  # the bound is float32's where the leaf is
    with torch.autocast(torch_name(), dtype=dtype):
        of_float = rlk.jit.det_gemm(x, w.T, out_dtype="float32")
        assert of_float.dtype == torch.float32
        assert (
            "x=" + {"bfloat16": "bf16", "float16": "f16"}[half]
            in rlk.jit.explain(rlk.jit.linear, x, w).kernel
        )
    assert torch.equal(of_float.to(dtype), rlk.jit.det_gemm(given[0], given[1].T))


def test_a_second_derivative_is_refused_in_autocast_too():
    x, w, _, g = draw()
    w.requires_grad_()
    with torch.autocast(torch_name(), dtype=torch.bfloat16):
        y = rlk.jit.linear(x, w)
    (grad,) = torch.autograd.grad(y, w, g.bfloat16(), create_graph=True)
    with pytest.raises(rlk.Unsupported, match="det_gemm: backward: expected one derivative"):
        grad.sum().backward()


def test_autocast_casts_a_weight_once_a_region():
    x, w, _, _ = draw()
    w.requires_grad_()

    def address(y):
        (found,) = (t for t in y.grad_fn.saved_tensors if t.shape == w.T.shape)
        return found.data_ptr()

    with torch.autocast(torch_name(), dtype=torch.bfloat16):
        first = rlk.jit.linear(x, w)
        assert address(rlk.jit.det_gemm(x, w.T)) == address(first)
        seen = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t)
        with hooks:
            torch.nn.functional.linear(x[0].clone().requires_grad_(), w)
        assert address(first) in [t.data_ptr() for t in seen]
