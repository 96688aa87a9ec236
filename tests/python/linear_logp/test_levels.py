# SPDX-License-Identifier: Apache-2.0
"""linear_logp's CPU kernels at each level of this processor: tanh, 16-bit types, constant sizes."""

import devices
import numpy as np
import pytest
from devices import on_each_level_alone
from problems import DTYPES, Problem, numpy_type, problem
from reference import same_bits

import rlk

pytestmark = [pytest.mark.usefixtures("device", "generic"), on_each_level_alone]


def tanh_and_slope(values) -> tuple[np.ndarray, np.ndarray]:
    """Of a vocabulary of one token the log-sum-exp is its logit, and its gradient the slope."""
    values = np.asarray(values, np.float32)
    operands = (values[:, None], np.ones((1, 1), np.float32), np.zeros(len(values), np.int64))
    ones = np.ones(len(values), np.float32)
    lse = rlk.jit.linear_logp(*operands, softcap=1, return_lse=True).lse
    grads = rlk.jit.linear_logp_backward(None, *operands, grad_lse=ones, softcap=1)
    return lse, grads.hidden[:, 0]


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    exponent = np.maximum(np.floor(np.log2(np.abs(want))), -126)
    return np.abs(got - want) / 2.0 ** (exponent - 23)


def test_tanh_and_its_slope_are_accurate_everywhere():
    every = np.arange(1, 0x7F800000, 8191, np.uint32).view(np.float32)
    values = np.r_[every, -np.arange(0.1, 10, 1e-4, np.float32)]
    got, got_slope = tanh_and_slope(values)
    x = values.astype(np.float64)
    assert (np.abs(got) <= 1).all()
    assert ulps(got, np.tanh(x)).max() <= (2.5 if devices.expected_target() == "x86-64-v2" else 2)
    # Beyond, exp(-2 |x|) is below 2^-126 and 0.
    x, got_slope = x[np.abs(x) < 34], got_slope[np.abs(x) < 34]
    # The argument of that exp is rounded.
    assert (ulps(got_slope, 1 / np.cosh(x) ** 2) <= 5 + 2.5 * np.abs(x)).all()


def test_tanh_of_zeros_infinities_and_nan():
    got, slope = tanh_and_slope([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, np.nan])
    np.testing.assert_array_equal(got, [0, 0, 1, -1, 1, -1, np.nan])
    np.testing.assert_array_equal(slope, [1, 1, 0, 0, 0, 0, np.nan])


def test_bias_then_scale_then_cap_then_temperature():
    """Every other order gives another number."""
    one, some = np.ones((1, 1), np.float32), np.float32([[0.8]])
    p = Problem(some, one, np.zeros(1, np.int64), np.float32([0.3]), None)
    options = {"logit_scale": 2, "softcap": 1.5, "temperature": 0.7}
    x = 2 * (0.8 + 0.3) / 1.5
    np.testing.assert_allclose(p.outputs(**options).lse, 1.5 * np.tanh(x) / 0.7, rtol=1e-6)
    grads = rlk.jit.linear_logp_backward(None, *p.operands, grad_lse=np.ones(1, "f4"), **options)
    np.testing.assert_allclose(grads.hidden, [[2 / 0.7 / np.cosh(x) ** 2]], rtol=2e-6)


def weight_gradient(dtype: str, hidden: np.ndarray, scale: float) -> np.ndarray:
    """Of one row and two equal logits, under 2 * scale: scale * hidden, rounded once."""
    p = Problem(
        hidden[None, :],
        np.zeros((2, len(hidden)), hidden.dtype),
        np.array([1]),
        None,
        np.float32([2 * scale]),
    )
    np.testing.assert_allclose(p.logp(), -np.log(2), rtol=1e-6)
    return p.grads().weight[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1, -1, 1.0009765, 0.74609375, 3e-3])
def test_sixteen_bit_values_are_read_and_rounded_right(dtype, scale):
    hidden = np.arange(65536, dtype=np.uint16).view(numpy_type(dtype))
    with np.errstate(invalid="ignore", over="ignore"):
        hidden = np.where(np.isfinite(hidden), hidden, 0).astype(hidden.dtype)
        want = (np.float32(scale) * hidden.astype(np.float32)).astype(hidden.dtype)
    np.testing.assert_array_equal(weight_gradient(dtype, hidden, scale), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_gradients_keep_nan_and_overflow(dtype):
    ones = np.resize([-1, 1], 40).astype(numpy_type(dtype))
    assert np.isnan(weight_gradient(dtype, ones, np.nan).astype(np.float32)).all()
    pairs = [(65519, 65504), (65520, np.inf)] if dtype == "float16" else [(2.0**126, 2.0**126)]
    for given, stored in pairs:
        np.testing.assert_array_equal(weight_gradient(dtype, ones, given), stored * ones)


def every_result(p: Problem) -> list[np.ndarray]:
    """All outputs, and the gradients of all outputs."""
    grads = p.grads(grad_entropy=p.upstream[::-1], grad_lse=2 * p.upstream)
    return [*p.outputs(), *grads]


def assert_specialized_is_generic(p: Problem) -> None:
    want = every_result(p)
    rlk.jit.configure(specialize=True)
    for got, exact in zip(every_result(p), want, strict=True):
        assert same_bits(got, exact)
    explained = rlk.jit.explain(rlk.jit.linear_logp, *p.operands, return_entropy=True)
    assert explained.variant == "specialized"
    rlk.jit.configure(specialize=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_sizes_give_the_same_bits(dtype):
    assert_specialized_is_generic(problem(70, 195, 389, dtype, bias=dtype))
    for size in (1, 192, 384) if dtype == "float32" else ():  # loops vanish
        assert_specialized_is_generic(problem(5, size, size, bias="float32"))
