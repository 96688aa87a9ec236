# SPDX-License-Identifier: Apache-2.0
"""linear_logp's CPU kernels at each level of this processor: values, edges, bits."""

import itertools

import numpy as np
import pytest
from problems import (
    DTYPES,
    LEVELS,
    Problem,
    check,
    check_all_outputs,
    host_levels,
    numpy_type,
    of_logits,
    only,
    problem,
    with_garbage,
)
from reference import same_bits

import rlk

OPTIONS = {"softcap": 1.5, "logit_scale": 0.75}


@pytest.fixture(autouse=True, params=LEVELS)
def level(request):
    if request.param not in host_levels():
        pytest.skip(f"this processor is no {request.param}")
    rlk.jit.configure(arch=request.param, specialize=False)
    return request.param


def heat_of(p: Problem) -> np.ndarray:
    """A temperature a row."""
    return np.random.default_rng(len(p.target)).uniform(0.5, 2, len(p.target)).astype(np.float32)


def every_result(p: Problem, **options) -> list[np.ndarray]:
    """All outputs, and the gradients of all outputs."""
    grads = rlk.jit.linear_logp_backward(
        p.upstream, *p.operands, grad_entropy=p.upstream[::-1], grad_lse=2 * p.upstream, **options
    )
    return [each for each in (*p.outputs(**options), *grads) if each is not None]


def assert_same(got: list[np.ndarray], want: list[np.ndarray], what: str = "") -> None:
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        assert same_bits(np.ascontiguousarray(one), np.ascontiguousarray(other)), f"{what}, {i}"


# --- Values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "dim", "vocab"),
    [
        *((1, 1, 1), (3, 1, 2), (2, 5, 1), (17, 7, 129)),
        *((50, 48, 128), (49, 191, 257), (130, 200, 131), (9, 417, 1153)),
    ],
)
def test_sizes_and_types(rows, dim, vocab, dtype):
    for bias in (None, dtype, "float32"):
        p = problem(rows, dim, vocab, dtype, bias=bias)
        check(p, temperature=heat_of(p))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 129, 1153])
def test_options(vocab, dtype):
    p = problem(9, 70, vocab, dtype, bias="float32")
    for options in (
        OPTIONS,
        {"softcap": 30, "logit_scale": 0.75},  # hardly capped
        {"softcap": 0.1, "logit_scale": -2},  # mostly flat
        {"logit_scale": 0},
        {"softcap": 1.5},
        {"logit_scale": 0.75},
        {},
    ):
        check_all_outputs(p, str(options), temperature=heat_of(p), **options)


@pytest.mark.parametrize("spread", [0, 1e-3, 30, 1000])
def test_entropy_of_very_unequal_and_very_equal_logits(spread):
    check_all_outputs(of_logits([-spread * (np.arange(700) % 50) / 50] * 5, np.arange(5)))


def test_several_strips_and_waves():
    p = problem(1300, 3, 1300, bias="float32")
    check(p, temperature=heat_of(p))
    check_all_outputs(p, temperature=heat_of(p), **OPTIONS)


@pytest.mark.parametrize("vocab", [1, 130, 257, 300])
def test_logits_far_from_zero(vocab):
    p = problem(20, 64, vocab, bias="float32")
    p.bias[:] = 1e4
    check(p)
    p.bias[:] = -300 + np.arange(vocab) % 100
    check(p)


def test_one_dominating_logit():
    p = problem(20, 64, 300, bias="float32")
    p.bias[131] = 1000
    p.target[3] = 131
    check(p)
    assert p.logp()[3] == 0


# Equal terms make a long chain of additions err to one side; blocks keep it within the bound.
@pytest.mark.parametrize("value", [1 / 3, 0.7, 1.1])
@pytest.mark.parametrize(("rows", "dim", "vocab"), [(2, 4096, 3), (2000, 2, 3), (2, 2, 5000)])
def test_constant_inputs_at_large_sizes(rows, dim, vocab, value):
    p = problem(rows, dim, vocab, bias="float32")
    p.hidden[:] = p.upstream[:] = value
    p.weight[:] = value + (1e-4 * np.arange(3)[:, None] if dim == 4096 else 0)
    p.bias[:] = 0
    p.target[:] = 0
    check(p)


@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 129, 1000])
def test_equal_logits(vocab):
    p = of_logits(np.full((3, vocab), 0.5), [0] * 3)
    np.testing.assert_allclose(p.logp(), -np.log(vocab), atol=1e-6)
    assert vocab > 1 or not p.logp().any()


# --- tanh of the softcap ------------------------------------------------------------------------


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


def test_tanh_and_its_slope_are_accurate_everywhere(level):
    every = np.arange(1, 0x7F800000, 8191, np.uint32).view(np.float32)
    values = np.r_[every, -np.arange(0.1, 10, 1e-4, np.float32)]
    got, got_slope = tanh_and_slope(values)
    x = values.astype(np.float64)
    assert (np.abs(got) <= 1).all()
    assert ulps(got, np.tanh(x)).max() <= (2.5 if level == "x86-64-v2" else 2)
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


# --- Infinities, NaN, inactive rows -------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"logit_scale": 0.75}, OPTIONS], ids=str)
def test_masked_vocabulary(options):
    p = problem(30, 40, 400, bias="float32")
    # Two whole leaves, columns here and there, and the last one.
    gone = np.r_[0:256, 259:400:7, 399]
    p.target[:] = np.setdiff1d(np.arange(400), gone)[:30]
    p.target[4] = 5  # a masked target
    p.bias[gone] = -np.inf
    check_all_outputs(p, temperature=heat_of(p), **options)
    logp = p.logp(**options)
    # A cap makes a logit of -inf finite; its gradient is 0 all the same.
    assert np.isfinite(np.delete(logp, 4)).all()
    assert logp[4] == -np.inf or "softcap" in options
    *_, hidden, weight, bias = every_result(p, **options)
    assert np.isfinite(hidden).all()
    assert not weight[gone].any()
    assert not bias[gone].any()


def test_a_row_of_only_minus_infinity():
    p = problem(3, 8, 300, bias="float32")
    p.bias[:] = -np.inf
    log_prob, entropy, lse, hidden, *_ = every_result(p)
    assert np.isnan(log_prob).all()
    assert np.isnan(entropy).all()
    assert (lse == -np.inf).all()
    assert np.isnan(hidden[0, 0])


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=str)
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800000, 0x7F800001, 0xFFFFFFFF, 0x7FC12345])
def test_nan_and_infinity_stay_in_their_row(bits, options):
    if options and bits == 0x7F800000:
        pytest.skip("a capped infinity is a number")
    p = problem(65, 50, 300, bias="float32")
    others = np.arange(65) != 17
    clean = every_result(p, **options)[:4]
    p.hidden.view(np.uint32)[17, 9] = bits
    for got, want in zip(every_result(p, **options)[:4], clean, strict=True):
        assert np.isnan(got[17]).all()
        assert same_bits(got[others], want[others])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 130, 299])
def test_a_bad_column_is_in_every_row(column, bad):
    p = problem(5, 50, 300, bias="float32")
    p.bias[column] = bad
    assert np.isnan(p.logp()).all()


def test_inactive_rows_are_neither_read_nor_in_the_sums():
    p = problem(200, 70, 150, bias="float32")
    active = np.arange(200) % 3 != 1
    heat = np.where(active, heat_of(p), np.nan).astype(np.float32)
    want = only(p, active)
    dirty = with_garbage(p, active)
    masked, heats = {"mask": active, "temperature": heat}, {"temperature": heat[active]}
    assert same_bits(dirty.logp(**masked)[active], want.logp(**heats))
    got, wanted = dirty.grads(**masked), want.grads(**heats)
    assert same_bits(got.hidden[active], wanted.hidden)
    assert_same([got.weight, got.bias], [wanted.weight, wanted.bias])


def test_no_rows_give_zero_gradients():
    grads = problem(0, 20, 1500, bias="float32").grads()
    assert not grads.weight.any()
    assert not grads.bias.any()


@pytest.mark.parametrize("gap", [0, 1, 10, 17, 100, 1000])
def test_the_entropy_is_never_below_zero(gap):
    p = problem(20, 64, 300, bias="float32")
    p.bias[131] = gap
    assert (p.outputs(logit_scale=0.75).entropy >= 0).all()
    assert not problem(5, 8, 1, bias="float32").outputs(**OPTIONS).entropy.any()


# --- 16-bit types -------------------------------------------------------------------------------


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


# --- Bits ---------------------------------------------------------------------------------------


def test_batches_threads_and_variants_with_all_options():
    p = problem(1000, 203, 301, bias="float32")
    heat = heat_of(p)

    def rows_of(rows: slice) -> list[np.ndarray]:
        part = only(p, rows)
        grads = rlk.jit.linear_logp_backward(
            part.upstream,
            *part.operands,
            grad_entropy=part.upstream,
            grad_lse=part.upstream,
            temperature=heat[rows],
            **OPTIONS,
        )
        return [*part.outputs(temperature=heat[rows], **OPTIONS), grads.hidden]

    want = rows_of(slice(None))
    for size in (1, 2, 15, 16, 17, 63, 64, 65, 127):
        for first in (0, 311, 1000 - size):
            rows = slice(first, first + size)
            assert_same(rows_of(rows), [each[rows] for each in want], f"{size} from {first}")


@pytest.mark.parametrize("sizes", [(700, 100, 1500), (3, 500, 2000), (900, 300, 5)])
def test_threads_do_not_matter(sizes):
    p = problem(*sizes, bias="float32")
    rlk.jit.configure(num_threads=1)
    want = every_result(p, **OPTIONS)
    for threads in (2, 3, 7):
        rlk.jit.configure(num_threads=threads)
        assert_same(every_result(p, **OPTIONS), want, f"{threads} threads")


def assert_specialized_is_generic(p: Problem, **options) -> None:
    want = every_result(p, **options)
    rlk.jit.configure(specialize=True)
    assert_same(every_result(p, **options), want, str(options))
    assert (
        rlk.jit.explain(rlk.jit.linear_logp, *p.operands, **options, return_entropy=True).variant
        == "specialized"
    )
    rlk.jit.configure(specialize=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_sizes_give_the_same_bits(dtype):
    assert_specialized_is_generic(problem(70, 195, 389, dtype, bias=dtype))
    for size in (1, 192, 384) if dtype == "float32" else ():  # loops vanish
        assert_specialized_is_generic(problem(5, size, size, bias="float32"))


@pytest.mark.parametrize("names", [(), ("softcap",), ("logit_scale",), ("softcap", "logit_scale")])
def test_constant_options_give_the_same_bits(names):
    p = problem(29, 50, 300, bias="float32")
    options = {name: OPTIONS[name] for name in names}
    assert_specialized_is_generic(p, **options)
    want = p.outputs(**options)
    # A value that is not asked for changes none of the others.
    for specialize, entropy, lse in itertools.product((False, True), repeat=3):
        rlk.jit.configure(specialize=specialize)
        got = p.outputs(return_entropy=entropy, return_lse=lse, **options)
        given = [got] if not (entropy or lse) else [each for each in got if each is not None]
        wanted = [want.log_prob] + [want.entropy] * entropy + [want.lse] * lse
        assert_same(given, wanted, f"{specialize} {entropy} {lse}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_matter(dtype):
    p = problem(37, 101, 150, dtype, bias=dtype)

    def strided(array: np.ndarray, step: int, order: str) -> np.ndarray:
        shape = [abs(step) * n for n in array.shape]
        room = np.full(shape, np.nan, array.dtype, order)[(slice(None, None, step),) * array.ndim]
        room[...] = array
        return room

    want = [*p.outputs(), *p.grads()]
    for step, order in ((1, "F"), (-2, "C"), (3, "C"), (2, "F")):
        hidden, weight = (strided(each, step, order) for each in (p.hidden, p.weight))
        q = Problem(hidden, weight, p.target, strided(p.bias, -step, "C"), p.upstream)
        assert_same([*q.outputs(), *q.grads()], want, f"{step} {order}")


def test_expanded_inputs_read_like_copies():
    p = problem(20, 30, 140, bias="float32")
    expanded = Problem(
        np.broadcast_to(p.hidden[:1], p.hidden.shape),
        np.broadcast_to(p.weight[:, :1], p.weight.shape),
        p.target,
        np.broadcast_to(p.bias[:1], p.bias.shape),
        p.upstream,
    )
    copied = Problem(*(np.ascontiguousarray(each) for each in expanded.operands), p.upstream)
    assert_same(every_result(expanded), every_result(copied))


def test_gradients_asked_for_alone():
    p = problem(70, 60, 200, bias="float32")
    every = p.grads()
    for name in ("hidden", "weight", "bias"):
        assert same_bits(getattr(p.grads(needs=(name,)), name), getattr(every, name))
