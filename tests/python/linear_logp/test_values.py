# SPDX-License-Identifier: Apache-2.0
"""Log-probs and gradients against float64: ordinary and hard inputs."""

import numpy as np
import pytest
from devices import (
    and_with_torch,
    jit,
    on_cpu_alone,
    on_cuda_alone,
    on_each_level,
    on_each_level_alone,
)
from problems import DIM, DTYPES, VOCAB, Problem, check, numpy_type, of_logits, problem
from reference import as_float64, assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")


@on_each_level
@pytest.mark.parametrize("bias", [None, "same", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_log_probs_and_gradients(dtype, scale, bias):
    check(problem(33, 72, 1203, dtype, scale=scale, bias=dtype if bias == "same" else bias))


@on_cuda_alone
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim", "vocab"), [(130, 904, 1025), (300, 1032, 5003)])
def test_more_than_one_tile_of_everything(rows, dim, vocab, dtype):
    check(problem(rows, dim, vocab, dtype, bias=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized(device, dtype):
    rlk.jit.configure(specialize=True)
    sizes = {"cpu": (72, 1203), "cuda": (DIM, VOCAB)}[device]
    p = problem(33, *sizes, dtype, bias="float32")
    check(p)
    assert jit.explain(rlk.jit.linear_logp, *p.operands).variant == "specialized"


# Around the widths of lanes, panels, leaves and blocks of every level, of tiles and warps. Padding
# with zeros, or a maximum that starts at zero, would outweigh every real logit.
VOCABULARIES = [1, 2, 3, 7, 8, 9, 11, 12, 24, 47, 48, 49, 95, 96, 97, 127, 128, 129, 191, 192, 193]


@on_each_level
@pytest.mark.parametrize("vocab", [*VOCABULARIES, 383, 385, 1000])
def test_odd_vocabularies_with_all_logits_far_from_zero(vocab):
    for dtype in DTYPES:
        p = problem(17, 5, vocab, dtype, seed=vocab)
        for bias in (-200, 1e4, -300 + np.arange(vocab) % 100):
            check(p.but(bias=np.full(vocab, bias, np.float32)), dtype)


DIMS = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 191, 192, 193, 385]


@on_each_level
@pytest.mark.parametrize("dim", DIMS)
def test_odd_hidden_sizes(dim):
    for dtype in DTYPES:
        check(problem(9, dim, 130, dtype, seed=dim), dtype)


ROWS = [1, 2, 5, 12, 13, 15, 16, 17, 23, 24, 25, 47, 48, 49, 63, 64, 65, 97, 127, 128, 129]


@on_each_level
@pytest.mark.parametrize("rows", [*ROWS, 255, 256, 257])
def test_odd_numbers_of_rows(rows):
    for dtype in DTYPES:
        check(problem(rows, 20, 140, dtype, bias="float32", seed=rows), dtype)


@pytest.mark.parametrize(("low", "high"), [(-300, -200), (200, 300), (-3e4, 3e4), (-1e-3, 1e-3)])
def test_all_logits_in_a_range(low, high):
    logits = np.random.default_rng(1).uniform(low, high, (6, 500))
    p = of_logits(logits, logits.argmax(axis=1))
    assert np.isfinite(p.logp()).all()
    check(p)


@on_each_level
@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probs_are_never_above_zero(dtype):
    rng = np.random.default_rng(2)
    # One logit dominates: the sum is 1 and a little, or exactly 1.
    for gap in (0, 1e-3, 1, 5, 10, 15, 17, 20, 90, 200):
        logits = rng.standard_normal((64, 777)) * 1e-3
        target = rng.integers(0, 777, 64)
        logits[np.arange(64), target] += gap
        offset = rng.uniform(-50, 50, (64, 1))
        logp = of_logits(logits + offset, target, dtype).logp()
        assert (logp <= 0).all(), gap
        assert gap < 90 or not logp.any()


@on_each_level
def test_one_token_of_the_vocabulary_has_log_prob_zero():
    for dtype in DTYPES:
        p = problem(5, 9, 1, dtype, bias="float32")
        assert same_bits(p.logp(), np.zeros(5, np.float32))
        assert not any(grad.any() for grad in p.grads())


@on_each_level
def test_equal_logits_give_minus_log_of_the_vocabulary():
    for vocab in (2, 100, 127, 128, 129, 1000, 4099):
        hidden, weight = np.ones((3, 4), np.float32), np.full((vocab, 4), 0.25, np.float32)
        logp = jit.linear_logp(hidden, weight, np.array([0, vocab // 2, vocab - 1]))
        np.testing.assert_allclose(logp, -np.log(vocab), rtol=3e-7)


@pytest.mark.parametrize("dim", [4, 700])
def test_bias_enters_once(dim):
    p = problem(8, dim, 260)
    bias = np.zeros(260, np.float32)
    bias[p.target] = 5
    check(p.but(bias=bias))
    assert (p.but(bias=bias).logp() > p.logp()).all()


def test_a_common_offset_of_ten_thousand_changes_nothing():
    # Multiples of 1/64 below 2^17 are exact in float32, and so must be their differences.
    rng = np.random.default_rng(3)
    logits = rng.integers(-640, 640, (11, 333)) / 64
    plain = of_logits(logits, rng.integers(0, 333, 11))
    for offset in (1e4, -1e4):
        moved = plain.but(bias=np.full(333, offset, np.float32))
        assert same_bits(moved.logp(), plain.logp())
        assert same_bits(moved.grads().hidden, plain.grads().hidden)


@pytest.fixture
def tf32_allowed(device):
    """In torch, on a GPU."""
    if device == "cpu":
        yield
        return
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tf32_allowed")  # torch's own permission is none of ours
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
    logp = jit.linear_logp(hidden, weight, np.array([1]))
    np.testing.assert_allclose(logp, -np.log1p(np.exp(-1)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_softmax_over_a_quarter_of_a_million_tokens(dtype):
    # The sum, about 2^18, is above float16's largest number, and one term below its smallest.
    vocab = 262144
    hidden, weight = (np.zeros((rows, 8), numpy_type(dtype)) for rows in (2, vocab))
    logp = jit.linear_logp(hidden, weight, np.array([0, vocab - 1]))
    np.testing.assert_allclose(logp, -np.log(vocab), rtol=3e-7)
    check(problem(3, 8, vocab, dtype, scale=20))
    if dtype == "float16":
        check(problem(3, 8, vocab, dtype))


# Equal terms make a long chain of additions err to one side; blocks keep it within the bound.
@on_each_level_alone
@pytest.mark.parametrize("value", [1 / 3, 0.7, 1.1])
@pytest.mark.parametrize(("rows", "dim", "vocab"), [(2, 4096, 3), (2000, 2, 3), (2, 2, 5000)])
def test_constant_inputs_at_large_sizes(rows, dim, vocab, value):
    p = problem(rows, dim, vocab, bias="float32")
    p.hidden[:] = p.upstream[:] = value
    p.weight[:] = value + (1e-4 * np.arange(3)[:, None] if dim == 4096 else 0)
    p.bias[:] = 0
    p.target[:] = 0
    check(p)


@on_cuda_alone
def test_a_float16_gradient_of_a_4096th_spread_over_a_vocabulary_survives():
    # Every term of dZ is 2e-9, far below float16's least; in the first column of the hidden
    # state's gradient all of them add up, and nothing else is there.
    rows, dim, vocab = 64, 16, 128256
    p = problem(rows, dim, vocab, "float16", scale=0.05)
    p.weight[:, 0] = 1
    p.weight[p.target, 0] = 0
    upstream = np.full(rows, 1 / 4096, np.float32)
    upstream[0] = 1  # a large one beside them scales the weight's gradient, not that of the others
    p = p.but(upstream=upstream)
    exact, grads = p.reference().gradients(upstream), p.grads()
    assert_within(grads.hidden, exact["hidden"])
    column = as_float64(grads.hidden)[1:, 0]
    np.testing.assert_allclose(column, -1 / 4096, rtol=2e-3)
    # In the weight's gradient the small rows' hidden states are 4096 times smaller, and so have a
    # step of their own: that of float16 relative to the largest gradient of the call.
    error = np.abs(as_float64(grads.weight) - exact["weight"].value)
    assert (error <= exact["weight"].bound + 2.0**-25).all()


@on_each_level
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_at_minus_infinity(dtype):
    p = problem(4, 12, 200, dtype)
    bias = np.zeros(200, np.float32)
    bias[p.target[1]] = -np.inf
    masked = p.but(bias=bias)
    logp = masked.logp()
    assert logp[1] == -np.inf
    assert np.isfinite(np.delete(logp, 1)).all()
    check(masked)  # the other columns keep -g * p
    assert np.isfinite(as_float64(masked.grads().weight)).all()


def test_nan_in_the_weights_is_nan_everywhere():
    p = problem(5, 12, 200)
    p.weight[77, 3] = np.nan
    assert np.isnan(p.logp()).all()


@on_each_level_alone
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 130, 299])
def test_a_bad_column_is_in_every_row(column, bad):
    p = problem(5, 50, 300, bias="float32")
    p.bias[column] = bad
    assert np.isnan(p.logp()).all()


def test_a_nan_upstream_gradient_stays_in_its_row():
    p = problem(20, 12, 200, "float16")
    upstream = p.upstream.copy()
    upstream[4] = np.nan
    grad = p.but(upstream=upstream).grads(needs=("hidden",)).hidden
    others = np.arange(20) != 4
    assert np.isnan(grad[4]).all()
    assert same_bits(grad[others], p.grads(needs=("hidden",)).hidden[others])


@on_cuda_alone  # the CPU raises at once
def test_a_temperature_that_is_none_makes_its_row_nan():
    p = problem(6, 12, 200)
    heat = np.full(6, 0.7, np.float32)
    want = p.logp(temperature=heat)
    for bad in (0.0, -1.0, np.nan, np.inf):
        wrong = heat.copy()
        wrong[2] = bad
        logp = p.logp(temperature=wrong)
        assert np.isnan(logp[2])
        assert same_bits(np.delete(logp, 2), np.delete(want, 2))


FLOATS = ("float32", "float64", "float16", "bfloat16")


@on_each_level
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1, 1.0, 1.5, np.float32(0.7), np.float64(0.7)])
def test_temperature_is_applied_once(temperature, dtype):
    p = problem(9, 16, 310, dtype, bias="float32")
    check(p, temperature=temperature)
    rows = np.linspace(temperature, 2, 9)
    for kind in FLOATS:
        check(p, kind, temperature=rows.astype(numpy_type(kind)))


@and_with_torch
def test_one_temperature_a_row():
    p = problem(40, 16, 310, bias="float32")
    heat = np.resize(np.array([0.3, 0.7, 1, 1.5, 11]), 40)
    for kind in FLOATS:
        check(p, temperature=heat.astype(numpy_type(kind)))


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_a_number_and_a_tensor_of_temperatures_agree_to_the_bit(device, temperature):
    p = problem(9, 16, 310, bias="float32")
    rows, scalar = np.full(9, temperature), np.array(temperature)
    want = p.logp(temperature=temperature)
    assert same_bits(p.logp(temperature=rows), want)
    assert device == "cuda" or same_bits(p.logp(temperature=scalar), want)
    pairs = zip(p.grads(temperature=temperature), p.grads(temperature=rows), strict=True)
    assert all(same_bits(one, many) for one, many in pairs)


def test_log_probs_of_a_trained_head_to_a_ten_thousandth():
    # Logits as a language model has them; the figure of the contract for such inputs.
    p = problem(24, 256, 4096, "float32", scale=3, seed=5)
    check(p)
    error = np.abs(p.logp() - p.reference().forward().value)
    assert error.max() <= 1e-4


@on_cpu_alone
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


@and_with_torch
@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint64"])
def test_targets_of_any_integer_type(kind):
    p = problem(20, 8, 120)
    assert same_bits(p.but(target=p.target.astype(kind)).logp(), p.logp())


def test_a_repeated_call_gives_the_same_bits():
    p = problem(100, 40, 900, bias="float32")
    assert same_bits(p.logp(), p.logp())
    assert all(same_bits(one, other) for one, other in zip(p.grads(), p.grads(), strict=True))


def test_weights_changed_in_place_are_seen():
    p = problem(4, 12, 200)
    before = p.logp()
    p.weight[:] *= 1.5
    assert not same_bits(before, p.logp())
    check(p)


def test_results_do_not_share_memory():
    p = problem(5, 8, 100)
    first = p.logp()
    copy = first.copy()
    other = problem(5, 8, 100, seed=1).logp()
    assert not np.shares_memory(first, other)
    assert same_bits(first, copy)
    assert_within(first, p.reference().forward())
