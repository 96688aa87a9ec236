# SPDX-License-Identifier: Apache-2.0
"""linear_logp_backward: what it computes, what it leaves out."""

import itertools

import numpy as np
import pytest
from problems import DTYPES, Problem, check, problem
from reference import Bounded, assert_within, same_bits, worst

import rlk

pytestmark = pytest.mark.usefixtures("generic")

NAMES = ("hidden", "weight", "bias")


@pytest.mark.parametrize("needs", [n for k in range(4) for n in itertools.combinations(NAMES, k)])
def test_only_what_is_asked_for(needs):
    p = problem(9, 16, 310, bias="float32")
    full = p.grads()
    some = p.grads(needs=needs)
    for name in NAMES:
        if name in needs:
            assert same_bits(getattr(some, name), getattr(full, name))
        else:
            assert getattr(some, name) is None


def test_no_gradient_of_an_absent_bias():
    grads = problem(9, 16, 310).grads()
    assert grads.bias is None
    assert isinstance(grads, rlk.jit.LinearLogpGrads)


@pytest.mark.parametrize(
    ("dtype", "bias"),
    [*((dtype, dtype) for dtype in DTYPES), *((d, "float32") for d in DTYPES[1:])],
)
def test_dtypes_follow_the_operands(dtype, bias):
    p = problem((2, 3), 16, 310, dtype, bias=bias)
    grads = p.grads()
    for name in NAMES:
        assert getattr(grads, name).dtype == getattr(p, name).dtype
        assert getattr(grads, name).shape == getattr(p, name).shape
    check(p)


def test_an_upstream_gradient_of_its_own_a_row():
    p = problem(50, 16, 310)
    sparse = np.zeros(50, np.float32)
    sparse[[3, 20]] = -2.5, 1e3
    grads = rlk.jit.linear_logp_backward(sparse, *p.operands)
    assert not np.delete(grads.hidden, [3, 20], axis=0).any()
    assert_within(grads.hidden, p.reference().gradients(sparse)["hidden"])
    assert_within(grads.weight, p.reference().gradients(sparse)["weight"])


@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_an_upstream_gradient_of_any_floating_type(kind):
    p = problem(12, 16, 310)
    upstream = p.upstream.astype(np.float16)  # values that all three hold
    want = rlk.jit.linear_logp_backward(upstream.astype(np.float32), *p.operands)
    got = rlk.jit.linear_logp_backward(upstream.astype(kind), *p.operands)
    assert same_bits(got.hidden, want.hidden)
    assert same_bits(got.weight, want.weight)


def upstream_layouts(values: np.ndarray) -> dict[str, np.ndarray]:
    spread = np.full((values.size, 3), 7, np.float32)
    spread[:, 1] = values
    return {"column": spread[:, 1], "reversed": values[::-1].copy()[::-1]}


@pytest.mark.parametrize("layout", ["column", "reversed"])
def test_a_strided_upstream_gradient(layout):
    p = problem(12, 16, 310)
    strided = upstream_layouts(p.upstream)[layout]
    assert not strided.flags.c_contiguous
    got = rlk.jit.linear_logp_backward(strided, *p.operands)
    assert same_bits(got.hidden, p.grads().hidden)


def test_one_upstream_gradient_for_all_rows():
    p = problem((3, 4), 16, 310)
    one = np.broadcast_to(np.float32(0.25), (3, 4))
    got = rlk.jit.linear_logp_backward(one, *p.operands)
    assert same_bits(got.hidden, rlk.jit.linear_logp_backward(one.copy(), *p.operands).hidden)


def test_the_gradient_is_linear_in_its_upstream():
    p = problem(12, 16, 310)
    # A power of two scales every float32 exactly.
    scaled = rlk.jit.linear_logp_backward(p.upstream * 8, *p.operands)
    assert same_bits(scaled.hidden, p.grads().hidden * 8)
    assert same_bits(scaled.weight, p.grads().weight * 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradients_over_many_rows_are_summed_in_float32(dtype):
    # Sums kept in 16 bits would lose most of 3,000 small terms.
    p = problem(3000, 8, 20, dtype, bias="float32")
    same_sign = Problem(np.abs(p.hidden), p.weight, p.target * 0, p.bias, np.abs(p.upstream))
    check(same_sign)


def test_the_error_does_not_grow_with_strips_of_rows():
    # Rows go in strips; a sum restarted or rounded at each would show in the worst ratio.
    ratios = []
    for rows in (64, 1000, 5000):
        p = problem(rows, 12, 64)
        ratios.append(worst(p.grads().weight, p.reference().gradients(p.upstream)["weight"]))
    assert max(ratios) < 0.5, ratios


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_temperature_reaches_the_gradient_once(temperature):
    check(problem(9, 16, 310, bias="float32"), temperature=temperature)
    rows = np.linspace(temperature, 2, 9).astype(np.float32)
    check(problem(9, 16, 310, bias="float32"), temperature=rows)


def test_gradient_by_differences():
    # Independent of any formula for the gradient, the reference's included.
    p = problem(3, 5, 11, bias="float32")
    grads = p.grads(temperature=0.7)
    step = 1e-5

    def loss(**changed) -> float:
        operands = {name: getattr(p, name).astype(np.float64) for name in NAMES} | changed
        z = (operands["hidden"] @ operands["weight"].T + operands["bias"]) / np.float32(0.7)
        logp = z[np.arange(3), p.target] - np.log(np.exp(z).sum(axis=1))
        return float((p.upstream * logp).sum())

    for name in NAMES:
        base = getattr(p, name).astype(np.float64)
        slopes = np.zeros_like(base)
        for index in np.ndindex(base.shape):
            up, down = base.copy(), base.copy()
            up[index] += step
            down[index] -= step
            slopes[index] = (loss(**{name: up}) - loss(**{name: down})) / (2 * step)
        np.testing.assert_allclose(getattr(grads, name), slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_the_hidden_state_sum_over_the_whole_vocabulary(dtype):
    p = problem(3, 8, 5000, dtype)
    grads = p.grads(needs=("hidden",))
    exact = p.reference().gradients(p.upstream)["hidden"]
    assert_within(grads.hidden, Bounded(exact.value, exact.bound))
