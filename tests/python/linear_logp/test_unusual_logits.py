# SPDX-License-Identifier: Apache-2.0
"""Logits that are masked, infinite, missing, very large, or alike: all outputs and gradients."""

import numpy as np
import pytest
from devices import on_each_level
from problems import (
    DTYPES,
    Problem,
    all_grads,
    all_results,
    assert_same,
    check,
    check_all_outputs,
    of_logits,
    problem,
)
from reference import as_float64, same_bits

pytestmark = pytest.mark.usefixtures("device", "generic")


# tanh is 1 in fp32 from 9 on, and its slope no difference of two such numbers.
@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("softcap", [0.1, 2.0, 50.0])
def test_logits_far_beyond_the_cap(softcap, scale):
    for dtype in DTYPES:
        check_all_outputs(problem(9, 40, 500, dtype, scale=scale), dtype, softcap=softcap)


# Columns beyond the vocabulary capped to -softcap would outweigh every real logit.
@on_each_level
@pytest.mark.parametrize("vocab", [1, 2, 95, 97, 191, 192, 193, 385])
def test_odd_vocabularies_with_all_logits_far_below_zero(vocab):
    for dtype in DTYPES:
        p = problem(17, 5, vocab, dtype, seed=vocab)
        p = p.but(bias=np.full(vocab, -200, np.float32))
        check_all_outputs(p, dtype, softcap=1000.0)
        assert (p.outputs(softcap=20.0, temperature=0.25).lse < -70).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropies_that_are_known(dtype):
    logits = np.zeros((3, 5003))
    logits[1, 77] = 200  # all others underflow
    logits[2, :2] = 150
    entropy = of_logits(logits, [5, 77, 1], dtype).outputs().entropy
    np.testing.assert_allclose(entropy, [np.log(5003), 0, np.log(2)], rtol=1e-6, atol=1e-7)
    assert (entropy >= 0).all()


def test_masked_vocabulary_is_as_if_it_were_not_there():
    p = problem(6, 16, 700, bias="float32")
    p.bias[:400] = -np.inf
    target = 400 + p.target % 300
    target[2] = 17  # masked
    masked = p.but(target=target)
    kept = p.but(weight=p.weight[400:], target=target - 400, bias=p.bias[400:])
    kept.target[2] = 0
    got, want = masked.outputs(), kept.outputs()
    assert got.log_prob[2] == -np.inf
    np.testing.assert_allclose(got.entropy, want.entropy, rtol=2e-6)
    np.testing.assert_allclose(got.lse, want.lse, rtol=2e-6)
    check_all_outputs(masked)
    grads = all_grads(masked)
    assert not grads.weight[:400].any()
    assert not grads.bias[:400].any()
    assert np.isfinite(grads.hidden).all()


# Leaves of either device, and more, of nothing but masked columns.
@on_each_level
@pytest.mark.parametrize(("vocab", "first", "last"), [(400, 128, 256), (600, 190, 400)])
@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_vocabulary(dtype, lowest, vocab, first, last):
    bias = np.random.default_rng(4).standard_normal(vocab).astype(np.float32)
    gone = np.r_[0:3, first:last, vocab - 1]
    bias[gone] = lowest
    target = np.array([5, 50, 100, last + 44, vocab - 2, first - 1])
    masked = problem(6, 12, vocab, dtype).but(target=target, bias=bias)
    for options in ({}, {"logit_scale": 0.5}):
        found, grads = masked.outputs(**options), all_grads(masked, **options)
        assert np.isfinite(found).all()
        assert not grads.weight[gone].any()
        assert not grads.bias[gone].any()
        assert np.isfinite(as_float64(grads.hidden)).all()
        if lowest == -np.inf:
            check(masked, **options)
            check_all_outputs(masked, **options)
    capped = all_results(masked, softcap=30.0)  # to -30: no longer masked, by the formula
    assert all(np.isfinite(as_float64(value)).all() for value in capped)


@pytest.mark.parametrize("lowest", [-1e38, np.finfo(np.float32).min])
def test_vocabulary_masked_by_large_numbers(lowest):
    # A whole leaf of them: their products with sums and gradients would overflow.
    p = problem(6, 16, 700, bias="float32")
    p.bias[:400] = lowest
    p.target[:] = 400 + p.target % 300
    masked = p.but(bias=np.where(np.arange(700) < 400, np.float32(-np.inf), p.bias))
    assert_same(p.outputs(), masked.outputs(), lowest)
    for got, want in zip(all_grads(p), all_grads(masked), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_cap_makes_masked_vocabulary_finite():
    p = problem(6, 16, 50, bias="float32")
    p.bias[3] = -np.inf
    p.target[1] = 3
    assert np.isfinite(p.logp(softcap=2.0)).all()
    check_all_outputs(p, softcap=2.0)
    assert all_grads(p, softcap=2.0).bias[3] == 0


@on_each_level
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_only_minus_infinity(dtype):
    for sizes in ((3, 8, 20), (3, 4, 150)):
        p = problem(*sizes, dtype)
        got = p.but(bias=np.full(sizes[2], -np.inf, np.float32)).outputs()
        assert np.isnan(got.log_prob).all()
        assert np.isnan(got.entropy).all()
        assert (got.lse == -np.inf).all()


@on_each_level
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800000, 0x7F800001, 0xFFFFFFFF, 0x7FC12345])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}])
def test_nan_or_infinity_stays_in_its_row(bits, options):
    p = problem(12, 16, 310)
    clean = p.outputs(**options)
    p.hidden.view(np.uint32)[5, 3] = bits
    got = p.outputs(**options)
    # A capped infinity is a number; infinities of both signs are in a row here.
    capped = "softcap" in options and bits == 0x7F800000
    for one, other in zip(got, clean, strict=True):
        assert np.isnan(one[5]) != capped
        assert same_bits(np.delete(one, 5), np.delete(other, 5))


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_in_its_rows(dtype, odd):
    p = problem(300, 12, 200, dtype)
    hidden = p.hidden.copy()
    hidden[[7, 30, 130, 299], 3] = odd
    broken = p.but(hidden=hidden)
    is_nan = np.isin(np.arange(300), [7, 30, 130, 299])
    every = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}
    for options in ({}, every) if np.isnan(odd) else ({},):
        for got, exact in zip(
            all_results(broken, **options)[:4], all_results(p, **options)[:4], strict=True
        ):
            assert np.isnan(as_float64(got[is_nan])).all()
            assert same_bits(got[~is_nan], exact[~is_nan])


@on_each_level
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e4, 1e30])
def test_extreme_logits(size):
    rng = np.random.default_rng(0)
    for softcap in (None, 30.0):
        p = of_logits(size * rng.standard_normal((4, 300)), rng.integers(0, 300, 4))
        check_all_outputs(p, f"{size}", softcap=softcap)


@on_each_level
@pytest.mark.parametrize("spread", [0, 1e-3, 30, 1000])
def test_entropy_of_very_unequal_and_very_equal_logits(spread):
    check_all_outputs(of_logits([-spread * (np.arange(700) % 50) / 50] * 5, np.arange(5)))


@on_each_level
def test_the_entropy_is_between_zero_and_log_of_the_vocabulary():
    for vocab in (1, 2, 1000):
        hidden, weight = np.ones((3, 4), np.float32), np.full((vocab, 4), 0.25, np.float32)
        p = Problem(hidden, weight, np.zeros(3, np.int64), None, np.ones(3, np.float32))
        np.testing.assert_allclose(p.outputs().entropy, np.log(vocab), rtol=3e-7)
    for gap in (0.0, 1.0, 10.0, 17.0, 100.0, 1e4):
        logits = np.zeros((2, 500))
        logits[:, 77] = gap
        assert (of_logits(logits, [77, 0]).outputs().entropy >= 0).all()
