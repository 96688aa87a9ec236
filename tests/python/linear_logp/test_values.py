# SPDX-License-Identifier: Apache-2.0
"""Log-probs against float64: ordinary and hard inputs."""

import numpy as np
import pytest
from problems import DTYPES, Problem, check, numpy_type, of_logits, problem
from reference import assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_log_probs_and_gradients(dtype, scale):
    check(problem(33, 72, 1203, dtype, scale=scale, bias=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized(dtype):
    rlk.jit.configure(specialize=True)
    check(problem(33, 72, 1203, dtype, bias="float32"))


# Around the widths of lanes, panels, leaves and blocks of every level.
@pytest.mark.parametrize("vocab", [1, 2, 3, 11, 12, 24, 47, 48, 49, 127, 128, 129, 191, 192, 193])
def test_odd_vocabularies_with_all_logits_far_below_zero(vocab):
    # Padding with zeros, or a maximum that starts at zero, would outweigh every real logit.
    p = problem(17, 5, vocab, seed=vocab)
    bias = np.full(vocab, -200, np.float32)
    check(Problem(p.hidden, p.weight, p.target, bias, p.upstream))


@pytest.mark.parametrize("dim", [1, 2, 3, 15, 16, 17, 31, 191, 192, 193, 385])
def test_odd_hidden_sizes(dim):
    check(problem(9, dim, 130, seed=dim))


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 23, 24, 25, 47, 48, 49, 97])
def test_odd_numbers_of_rows(rows):
    check(problem(rows, 20, 140, bias="float32", seed=rows))


@pytest.mark.parametrize(("low", "high"), [(-300, -200), (200, 300), (-3e4, 3e4), (-1e-3, 1e-3)])
def test_all_logits_in_a_range(low, high):
    rng = np.random.default_rng(1)
    logits = rng.uniform(low, high, (6, 500))
    p = of_logits(logits, logits.argmax(axis=1))
    assert np.isfinite(p.logp()).all()
    check(p)


def test_log_probs_are_never_above_zero():
    rng = np.random.default_rng(2)
    # One logit dominates: the sum is 1 and a little, or exactly 1.
    for gap in (0, 1e-3, 1, 5, 10, 15, 17, 20, 90, 200):
        logits = rng.standard_normal((64, 777)) * 1e-3
        target = rng.integers(0, 777, 64)
        logits[np.arange(64), target] += gap
        offset = rng.uniform(-50, 50, (64, 1))
        logp = of_logits(logits + offset, target).logp()
        assert (logp <= 0).all(), gap


def test_one_token_of_the_vocabulary_has_log_prob_zero():
    p = problem(5, 9, 1, bias="float32")
    assert same_bits(p.logp(), np.zeros(5, np.float32))
    grads = p.grads()
    for name in ("hidden", "weight", "bias"):
        assert not getattr(grads, name).any()


def test_equal_logits_give_minus_log_of_the_vocabulary():
    for vocab in (2, 100, 1000, 4099):
        hidden, weight = np.ones((3, 4), np.float32), np.full((vocab, 4), 0.25, np.float32)
        logp = rlk.jit.linear_logp(hidden, weight, np.array([0, vocab // 2, vocab - 1]))
        np.testing.assert_allclose(logp, -np.log(vocab), rtol=3e-7)


@pytest.mark.parametrize("dim", [4, 700])
def test_bias_enters_once(dim):
    p = problem(8, dim, 260)
    bias = np.zeros(260, np.float32)
    bias[p.target] = 5
    biased = Problem(p.hidden, p.weight, p.target, bias, p.upstream)
    check(biased)
    assert (biased.logp() > p.logp()).all()


def test_a_common_offset_of_ten_thousand_changes_nothing():
    # Multiples of 1/64 below 2^17 are exact in float32, and so must be their differences.
    rng = np.random.default_rng(3)
    logits = rng.integers(-640, 640, (11, 333)) / 64
    target = rng.integers(0, 333, 11)
    plain = of_logits(logits, target)
    for offset in (1e4, -1e4):
        bias = np.full(333, offset, np.float32)
        moved = Problem(plain.hidden, plain.weight, target, bias, plain.upstream)
        assert same_bits(moved.logp(), plain.logp())
        assert same_bits(moved.grads().hidden, plain.grads().hidden)


def test_float32_products_are_real_float32():
    # TF32 or bf16 factors are wrong by 2^-11 or 2^-9 here, where the logits differ by 2^-20 parts.
    dim = 64
    hidden = np.full((1, dim), 1 + 2.0**-13, np.float32)
    weight = np.full((2, dim), 1 + 2.0**-13, np.float32)
    weight[1] = 1
    p = Problem(hidden, weight, np.array([1]), None, np.ones(1, np.float32))
    check(p)
    difference = dim * (1 + 2.0**-13) * 2.0**-13
    np.testing.assert_allclose(p.logp(), -np.log(1 + np.exp(difference)), atol=1e-5)
    assert abs(p.logp()[0] + np.log(2)) > 1e-3  # what rounded factors would give


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_are_not_rounded_to_sixteen_bits(dtype):
    # Exact products whose sums need more than 11 bits; rounded logits would be equal.
    kind = numpy_type(dtype)
    hidden = np.array([[256, 1]]).astype(kind)
    weight = np.array([[16, 0], [16, 1]]).astype(kind)
    logp = rlk.jit.linear_logp(hidden, weight, np.array([1]))
    np.testing.assert_allclose(logp, -np.log1p(np.exp(-1)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_vocabulary(dtype):
    p = problem(6, 12, 400, dtype)
    bias = np.random.default_rng(4).standard_normal(400).astype(np.float32)
    gone = np.r_[0:3, 128:256, 399]  # a leaf and more of nothing but -inf
    bias[gone] = -np.inf
    target = np.array([5, 50, 100, 300, 398, 127])
    masked = Problem(p.hidden, p.weight, target, bias, p.upstream)
    check(masked)
    assert np.isfinite(masked.logp()).all()
    grads = masked.grads()
    assert not grads.weight[gone].any()
    assert not grads.bias[gone].any()
    assert np.isfinite(np.asarray(grads.hidden, np.float32)).all()


def test_a_target_at_minus_infinity():
    p = problem(4, 12, 200)
    bias = np.zeros(200, np.float32)
    bias[p.target[1]] = -np.inf
    masked = Problem(p.hidden, p.weight, p.target, bias, p.upstream)
    logp = masked.logp()
    assert logp[1] == -np.inf
    assert np.isfinite(np.delete(logp, 1)).all()
    check(masked)  # the other columns keep -g * p
    assert np.isfinite(masked.grads().weight).all()


def test_all_logits_at_minus_infinity_are_nan():
    p = problem(3, 4, 150)
    bias = np.full(150, -np.inf, np.float32)
    assert np.isnan(rlk.jit.linear_logp(p.hidden, p.weight, p.target, bias)).all()


def test_nan_stays_in_its_row():
    p = problem(50, 12, 200)
    hidden = p.hidden.copy()
    hidden[[7, 30], 3] = np.nan
    broken = Problem(hidden, p.weight, p.target, None, p.upstream)
    is_nan = np.isin(np.arange(50), [7, 30])
    assert (np.isnan(broken.logp()) == is_nan).all()
    assert same_bits(broken.logp()[~is_nan], p.logp()[~is_nan])
    grad = broken.grads().hidden
    assert np.isnan(grad[is_nan]).all()
    assert same_bits(grad[~is_nan], p.grads().hidden[~is_nan])


def test_nan_in_the_weights_is_nan_everywhere():
    p = problem(5, 12, 200)
    weight = p.weight.copy()
    weight[77, 3] = np.nan
    assert np.isnan(rlk.jit.linear_logp(p.hidden, weight, p.target)).all()


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1, 1.0, 1.5, np.float32(0.7), np.float64(0.7)])
def test_temperature_is_applied_once(temperature):
    check(problem(9, 16, 310, bias="float32"), temperature=temperature)


def test_one_temperature_a_row():
    p = problem(40, 16, 310, bias="float32")
    heat = np.resize(np.array([0.3, 0.7, 1, 1.5, 11]), 40)
    for kind in (np.float32, np.float64, np.float16, numpy_type("bfloat16")):
        check(p, temperature=heat.astype(kind))


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_a_number_and_a_tensor_of_temperatures_agree_to_the_bit(temperature):
    p = problem(9, 16, 310, bias="float32")
    rows = np.full(9, temperature)
    scalar = np.array(temperature)
    assert same_bits(p.logp(temperature=temperature), p.logp(temperature=rows))
    assert same_bits(p.logp(temperature=temperature), p.logp(temperature=scalar))
    for name in ("hidden", "weight", "bias"):
        one, many = p.grads(temperature=temperature), p.grads(temperature=rows)
        assert same_bits(getattr(one, name), getattr(many, name))


def test_log_probs_of_a_trained_head_to_a_ten_thousandth():
    # Logits as a language model has them; the figure of the contract for such inputs.
    p = problem(24, 256, 4096, "float32", scale=3, seed=5)
    check(p)
    error = np.abs(p.logp() - p.reference().forward().value)
    assert error.max() <= 1e-4


def test_weights_changed_in_place_are_seen():
    p = problem(4, 12, 200)
    weight = p.weight.copy()
    changing = Problem(p.hidden, weight, p.target, None, p.upstream)
    before = changing.logp()
    weight *= 1.5
    assert not same_bits(before, changing.logp())
    check(changing)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_the_same_after_a_call(dtype):
    p = problem(9, 16, 310, dtype, bias=dtype)
    heat = np.full(9, 0.7, np.float32)
    mask = np.arange(9) % 3 != 0
    inputs = (*p.operands, p.upstream, heat, mask)
    before = [array.tobytes() for array in inputs]
    p.logp(temperature=heat, mask=mask)
    p.grads(temperature=heat, mask=mask)
    assert [array.tobytes() for array in inputs] == before


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint64"])
def test_targets_of_any_integer_type(kind):
    p = problem(20, 8, 120)
    logp = rlk.jit.linear_logp(p.hidden, p.weight, p.target.astype(kind))
    assert same_bits(logp, p.logp())


def test_a_repeated_call_gives_the_same_bits():
    p = problem(100, 40, 900, bias="float32")
    first, again = p.grads(), p.grads()
    assert same_bits(p.logp(), p.logp())
    for one, other in zip(first, again, strict=True):
        assert same_bits(one, other)


def test_results_do_not_share_memory():
    p = problem(5, 8, 100)
    first = p.logp()
    copy = first.copy()
    other = problem(5, 8, 100, seed=1).logp()
    assert not np.shares_memory(first, other)
    assert same_bits(first, copy)
    assert_within(first, p.reference().forward())
