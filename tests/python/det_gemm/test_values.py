# SPDX-License-Identifier: Apache-2.0
"""det_gemm: values and gradients in float64, layouts, bits of rows and of sums over tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from devices import expected_target, jit, on_cpu_alone, on_each_level
from layouts import LAYOUTS, turned
from problems import DTYPES, numpy_type
from reference import STORE, UNIT, as_float64, dtype_name, same_bits

import rlk
from rlk import _core

NARROW = DTYPES[1:]


def draw(rows, terms: int, cols: int, dtype: str = "float32", seed: int = 0):
    """a, b, bias and an upstream gradient."""
    rng = np.random.default_rng(seed)
    lead = rows if isinstance(rows, tuple) else (rows,)
    sizes = ((*lead, terms), (terms, cols), (cols,), (*lead, cols))
    return tuple(rng.standard_normal(size).astype(numpy_type(dtype)) for size in sizes)


def assert_product(found, a, b, bias=None) -> None:
    """Within rounding of a float32 chain."""
    exact, size = as_float64(a) @ as_float64(b), np.abs(as_float64(a)) @ np.abs(as_float64(b))
    if bias is not None:
        exact, size = exact + as_float64(bias), size + np.abs(as_float64(bias))
    bound = STORE[dtype_name(found)] * np.abs(exact) + (a.shape[-1] / 8 + 2) * UNIT * size
    bound += 2.0**-25 if dtype_name(found) == "float16" else 0.0
    worst = np.max(np.abs(as_float64(found) - exact) / bound, initial=0.0)
    assert found.shape == exact.shape
    assert worst <= 1.0, worst


def assert_gradients(found, g, a, b, bias) -> None:
    rows, flat = a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])
    assert_product(found.a, g, b.T)
    assert_product(found.b, rows.T, flat)
    if bias is not None:
        assert_product(found.bias[None], np.ones((1, len(flat)), flat.dtype), flat)
        assert dtype_name(found.bias) == dtype_name(bias)


SIZES = [
    (1, 1, 1),
    (1, 17, 5),
    (3, 8, 1),
    (7, 191, 47),
    (8, 192, 48),
    (9, 193, 49),
    (64, 64, 64),
    (65, 130, 129),
    (257, 40, 200),
    (2, 1030, 300),
    ((2, 3, 5), 33, 17),
    ((), 24, 30),
]


@on_each_level
@pytest.mark.usefixtures("device", "generic")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_against_float64(sizes, dtype):
    a, b, bias, g = draw(*sizes, dtype)
    assert_product(jit.det_gemm(a, b), a, b)
    assert_product(jit.det_gemm(a, b, bias), a, b, bias)
    assert_gradients(jit.det_gemm_backward(g, a, b, bias), g, a, b, bias)


@pytest.mark.usefixtures("device", "generic")
@pytest.mark.parametrize("dtype", NARROW)
def test_sums_may_be_kept_in_float32(dtype):
    a, b, bias, g = draw(33, 96, 70, dtype)
    wide = bias.astype(np.float32) * 1.0001
    found = jit.det_gemm(a, b, wide, out_dtype="float32")
    assert found.dtype == np.float32
    assert_product(found, a, b, wide)
    assert same_bits(found.astype(a.dtype), jit.det_gemm(a, b, wide))
    assert_gradients(jit.det_gemm_backward(g, a, b, wide), g, a, b, wide)


@pytest.mark.usefixtures("device", "generic")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [*LAYOUTS, "turned"])
def test_any_strides_give_the_same_bits(layout, dtype):
    a, b, bias, g = draw((3, 20), 72, 56, dtype)
    lay = turned if layout == "turned" else LAYOUTS[layout]
    want, grads = jit.det_gemm(a, b, bias), jit.det_gemm_backward(g, a, b, bias)
    assert same_bits(want, jit.det_gemm(lay(a), lay(b), LAYOUTS["spaced"](bias)))
    assert same_bits(want, jit.det_gemm(a, lay(b), bias))
    found = jit.det_gemm_backward(lay(g), lay(a), lay(b), bias)
    for name in ("a", "b", "bias"):
        assert same_bits(getattr(grads, name), getattr(found, name)), name


@pytest.mark.usefixtures("device", "generic")
def test_expanded_operands():
    a, b, _, g = draw(40, 64, 48)
    wide = np.broadcast_to(a[:1], a.shape)
    found = jit.det_gemm(wide, b)
    assert same_bits(found, jit.det_gemm(np.ascontiguousarray(wide), b))
    flat = np.broadcast_to(g[:1, :1], g.shape)
    want = jit.det_gemm_backward(np.ascontiguousarray(flat), a, b)
    for one, other in zip(want, jit.det_gemm_backward(flat, a, b), strict=True):
        assert one is other is None or same_bits(one, other)


@on_each_level
@pytest.mark.usefixtures("device", "generic")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype):
    a, b, bias, g = draw(300, 200, 136, dtype)
    out = jit.det_gemm(a, b, bias)
    grad = jit.det_gemm_backward(g, a, b, needs=("a",)).a
    rng = np.random.default_rng(1)
    for count in (1, 2, 7, 16, 17, 63, 64, 65, 129, 256, 299):
        at = rng.permutation(300)[:count]
        assert same_bits(out[at], jit.det_gemm(a[at], b, bias)), count
        assert same_bits(grad[at], jit.det_gemm_backward(g[at], a[at], b, needs=("a",)).a), count
    assert same_bits(out, np.concatenate([jit.det_gemm(x, b, bias) for x in np.split(a, 4)]))
    assert same_bits(out.reshape(3, 100, -1), jit.det_gemm(a.reshape(3, 100, -1), b, bias))


def accumulated(a, g, cuts) -> np.ndarray:
    """a^T g, by parts of the tokens in one chain."""
    into = np.zeros((a.shape[-1], g.shape[-1]), np.float32)
    bounds = [0, *cuts, len(a)]
    for first, last in itertools.pairwise(bounds):
        _core.det_gemm_accumulate({"a": a[first:last], "grad_output": g[first:last], "into": into})
    return into


def chains(a, b) -> np.ndarray:
    """a b in float32, as documented: blocks of 192 terms, each a chain of fused multiply-adds."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], 192):
        part = np.zeros_like(total)
        for k in range(first, min(first + 192, a.shape[1])):
            # 64 bits hold the product; that the sum is rounded twice shows once in 2^40 or so.
            part = (a[:, k, None].astype(np.longdouble) * b[k] + part).astype(np.float32)
        total += part
    return total


@pytest.mark.usefixtures("device", "generic")
@pytest.mark.parametrize("layout", ["kk", "kl", "lk", "ll"])
@pytest.mark.parametrize("sizes", [(130, 388, 132), (70, 36, 200), (4, 192, 8), (65, 581, 33)])
def test_a_float32_element_is_chains_of_192_terms(sizes, layout):
    if expected_target() == "x86-64-v2":
        pytest.skip("v2 rounds products")
    a, b, _, _ = draw(*sizes)
    want = chains(a, b)
    a = np.asfortranarray(a) if layout[0] == "l" else a
    b = np.asfortranarray(b) if layout[1] == "k" else b
    assert same_bits(jit.det_gemm(a, b), want)


@on_cpu_alone
@pytest.mark.usefixtures("device", "generic")
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_summed_in_one_chain(dtype):
    a, _, _, g = draw(700, 60, 100, dtype)
    whole = accumulated(a, g, [])
    assert_product(whole, a.T, g)
    grads = rlk.jit.det_gemm_backward(g, a, np.ones((60, 100), a.dtype), needs=("b",))
    assert same_bits(whole.astype(a.dtype), grads.b)
    for cuts in ([192], [192, 384], [576], [192, 192, 576]):
        assert same_bits(whole, accumulated(a, g, cuts)), cuts


@pytest.mark.usefixtures("device", "generic")
def test_no_rows_and_no_tokens():
    a, b, bias, g = draw(0, 24, 40)
    assert jit.det_gemm(a, b, bias).shape == (0, 40)
    grads = jit.det_gemm_backward(g, a, b, bias)
    assert grads.a.shape == (0, 24)
    assert not grads.b.any()
    assert grads.b.shape == (24, 40)
    assert not grads.bias.any()
    assert grads.bias.shape == (40,)


@pytest.mark.usefixtures("device", "generic")
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_its_row(dtype):
    a, b, bias, _ = draw(70, 50, 40, dtype)
    want = jit.det_gemm(a, b, bias)
    a[3, 7], a[5, 0] = np.nan, np.inf
    found = as_float64(jit.det_gemm(a, b, bias))
    assert np.isnan(found[3]).all()
    assert np.isinf(found[5]).all()
    rest = np.delete(np.arange(70), (3, 5))
    assert (found[rest] == as_float64(want)[rest]).all()


@on_cpu_alone
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized_and_generic_give_the_same_bits(dtype):
    a, b, bias, g = draw(37, 201, 83, dtype)
    runs = []
    for specialize in (False, True):
        rlk.jit.configure(specialize=specialize)
        w = np.asfortranarray(b)
        runs.append((rlk.jit.det_gemm(a, w, bias), *rlk.jit.det_gemm_backward(g, a, w, bias)))
    for one, other in zip(*runs, strict=True):
        assert same_bits(one, other)


@on_cpu_alone
@pytest.mark.usefixtures("device", "generic")
def test_threads_change_no_bit():
    a, b, bias, g = draw(500, 300, 400)
    runs = []
    for num_threads in (1, 2, 3):
        rlk.jit.configure(num_threads=num_threads)
        runs.append((rlk.jit.det_gemm(a, b, bias), *rlk.jit.det_gemm_backward(g, a, b, bias)))
    for run in runs[1:]:
        assert all(same_bits(one, other) for one, other in zip(runs[0], run, strict=True))


@on_cpu_alone
@pytest.mark.usefixtures("device")
def test_a_thousand_numbers_of_tokens_load_one_kernel():
    rng = np.random.default_rng(0)
    b = rng.standard_normal((16, 24)).astype(np.float32)
    a = rng.standard_normal((1000, 16)).astype(np.float32)
    g = rng.standard_normal((1000, 24)).astype(np.float32)
    before = rlk.jit.cache_info()
    for tokens in range(1, 1001):
        rlk.jit.det_gemm(a[:tokens], b)
        rlk.jit.det_gemm_backward(g[:tokens], a[:tokens], b)
    after = rlk.jit.cache_info()
    # The product, the gradient of a, and that of b, which is the generic variant.
    assert after.compiles - before.compiles == 2
    assert after.loaded + after.fallbacks - before.loaded - before.fallbacks <= 3


@pytest.mark.usefixtures("device", "generic")
def test_linear_is_the_product_with_the_transposed_weight():
    a, b, bias, _ = draw((2, 9), 40, 24)
    weight = np.ascontiguousarray(b.T)
    assert same_bits(jit.linear(a, weight, bias), jit.det_gemm(a, b, bias))
    assert same_bits(jit.linear(a, weight), jit.det_gemm(a, b))
