# SPDX-License-Identifier: Apache-2.0
"""softcap, logit_scale, return_entropy, return_lse on NumPy arrays: values, bits, refusals."""

import itertools

import numpy as np
import pytest
from problems import (
    DTYPES,
    Problem,
    check,
    check_all_outputs,
    of_logits,
    only,
    problem,
    with_garbage,
)
from reference import same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")

OPTIONS = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}
NAMES = ("log_prob", "entropy", "lse")


def all_grads(p: Problem, **options):
    entropy, lse = p.upstream[::-1].copy(), p.upstream * 0.5
    return rlk.jit.linear_logp_backward(
        p.upstream, *p.operands, grad_entropy=entropy, grad_lse=lse, **options
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 30.0},
        {"softcap": 0.5},
        {"logit_scale": 0.0625},
        {"logit_scale": -3},
        {"logit_scale": 0},
        OPTIONS,
    ],
    ids=str,
)
def test_values_and_gradients(dtype, options):
    p = problem(33, 72, 1203, dtype, scale=3.0, bias=dtype)
    check(p, **options)
    check_all_outputs(p, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized(dtype):
    rlk.jit.configure(specialize=True)
    p = problem(9, 24, 300, dtype, bias="float32")
    check_all_outputs(p, **OPTIONS)
    kernel = rlk.jit.explain(*p.operands, **OPTIONS, return_entropy=True).kernel
    assert "softcap=yes logit_scale=yes entropy=yes" in kernel


def test_an_option_left_out_is_not_in_the_kernel():
    p = problem()
    rlk.jit.configure(specialize=True)
    plain = rlk.jit.explain(*p.operands).kernel
    assert "softcap" not in plain
    assert "logit_scale" not in plain
    assert "entropy" not in plain
    for options in ({"return_lse": True}, {"logit_scale": 1}, {"softcap": None}):
        assert rlk.jit.explain(*p.operands, **options).kernel == plain
    backward = rlk.jit.explain(*p.operands, return_entropy=True, backward=True).kernel
    assert "linear_logp.bwd" in backward
    assert "entropy=yes" in backward


def test_what_is_returned():
    p = problem((2, 3))
    assert isinstance(p.logp(), np.ndarray)
    for entropy, lse in ((True, False), (False, True), (True, True)):
        found = rlk.jit.linear_logp(*p.operands, return_entropy=entropy, return_lse=lse)
        assert isinstance(found, rlk.jit.LinearLogpResult)
        assert found._fields == NAMES
        assert (found.entropy is not None) == entropy
        assert (found.lse is not None) == lse
        for value in found:
            assert value is None or (value.shape == (2, 3) and value.dtype == np.float32)


@pytest.mark.parametrize("specialize", [False, True])
def test_a_value_beside_others_has_the_same_bits(specialize):
    rlk.jit.configure(specialize=specialize)
    p = problem(17, 20, 390, bias="float32")
    for options in ({}, OPTIONS):
        both = p.outputs(**options)
        assert same_bits(p.logp(**options), both.log_prob)
        assert same_bits(p.outputs(**options, return_lse=False).entropy, both.entropy)
        assert same_bits(p.outputs(**options, return_entropy=False).lse, both.lse)


def test_generic_and_specialized_give_the_same_bits():
    p = problem(17, 20, 390, bias="float32")
    for softcap, scale in itertools.product((None, 2.0), (1.0, 0.4)):
        options = {"softcap": softcap, "logit_scale": scale}
        found = []
        for specialize in (False, True):
            rlk.jit.configure(specialize=specialize)
            found.append([*p.outputs(**options), *all_grads(p, **options), *p.grads(**options)])
        for generic, specialized in zip(*found, strict=True):
            assert same_bits(generic, specialized)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype):
    p = problem(131, 40, 390, dtype, bias="float32")
    whole, whole_grad = p.outputs(**OPTIONS), all_grads(p, **OPTIONS).hidden
    order = np.random.default_rng(0).permutation(131)
    for rows in (slice(0, 1), slice(5, 20), slice(64, 131), slice(None, None, -1), order):
        part = only(p, rows)
        for name in NAMES:
            got = getattr(part.outputs(**OPTIONS), name)
            assert same_bits(got, np.ascontiguousarray(getattr(whole, name)[rows])), name
        grads = rlk.jit.linear_logp_backward(
            part.upstream,
            *part.operands,
            **OPTIONS,
            grad_entropy=p.upstream[::-1][rows],
            grad_lse=(p.upstream * 0.5)[rows],
        )
        assert same_bits(grads.hidden, np.ascontiguousarray(whole_grad[rows]))


def test_threads_do_not_matter():
    p = problem(200, 40, 1500)
    found = []
    for threads in (1, 2, 5):
        rlk.jit.configure(num_threads=threads)
        found.append([*p.outputs(**OPTIONS), *all_grads(p, **OPTIONS)])
    for other in found[1:]:
        for one, first in zip(other, found[0], strict=True):
            assert one is first is None or same_bits(one, first)


def test_every_option_changes_the_result():
    p = problem()
    plain, plain_grads = p.outputs(), all_grads(p)
    for options in ({"softcap": 2.0}, {"logit_scale": 0.5}):
        changed, grads = p.outputs(**options), all_grads(p, **options)
        for name in NAMES:
            assert not same_bits(getattr(changed, name), getattr(plain, name)), (options, name)
        assert not same_bits(grads.hidden, plain_grads.hidden)
        assert not same_bits(grads.weight, plain_grads.weight)
    for name in ("grad_entropy", "grad_lse"):
        grads = rlk.jit.linear_logp_backward(p.upstream, *p.operands, **{name: p.upstream})
        assert not same_bits(grads.hidden, p.grads().hidden), name


def test_the_cap_bends_the_temperature_does_not():
    p = of_logits([[30.0, 60.0, 90.0]], [2])
    z = 30 * np.tanh(np.array([1, 2, 3])) / 2
    got = p.outputs(softcap=30, temperature=2.0)
    np.testing.assert_allclose(got.lse, np.log(np.exp(z).sum()), rtol=1e-6)


def test_scale_and_temperature_are_one_without_a_cap():
    p = problem(9, 16, 310)
    scaled, cooled = p.outputs(logit_scale=0.25), p.outputs(temperature=4.0)
    for one, other in zip(scaled, cooled, strict=True):  # powers of two: exact
        assert same_bits(one, other)


def test_a_gradient_that_is_absent_is_zero():
    p = problem(9, 16, 310, bias="float32")
    zeros = np.zeros(9, np.float32)
    for given in ({"grad_entropy": p.upstream}, {"grad_lse": p.upstream}):
        absent = rlk.jit.linear_logp_backward(None, *p.operands, **given)
        full = rlk.jit.linear_logp_backward(
            zeros, *p.operands, **{"grad_entropy": zeros, "grad_lse": zeros, **given}
        )
        for one, other in zip(absent, full, strict=True):
            np.testing.assert_array_equal(one, other)


def test_gradients_by_differences():
    # Independent of any formula for the gradient, the reference's included.
    p = problem(3, 5, 11, bias="float32")
    options = {"softcap": 1.25, "logit_scale": 0.8, "temperature": 0.7}
    entropy, lse = np.float32([0.5, -1, 2]), np.float32([-0.3, 1, 0.2])
    grads = rlk.jit.linear_logp_backward(
        p.upstream, *p.operands, grad_entropy=entropy, grad_lse=lse, **options
    )
    step = 1e-5

    def loss(**changed) -> float:
        operands = {
            name: getattr(p, name).astype(np.float64) for name in ("hidden", "weight", "bias")
        } | changed
        x = np.float32(0.8) * (operands["hidden"] @ operands["weight"].T + operands["bias"])
        z = 1.25 * np.tanh(x / 1.25) / np.float32(0.7)
        sums = np.log(np.exp(z).sum(axis=1))
        logs = z - sums[:, None]
        of_rows = p.upstream * logs[np.arange(3), p.target] + lse * sums
        return float((of_rows - entropy * (np.exp(logs) * logs).sum(axis=1)).sum())

    for name in ("hidden", "weight", "bias"):
        base = getattr(p, name).astype(np.float64)
        slopes = np.zeros_like(base)
        for index in np.ndindex(base.shape):
            up, down = base.copy(), base.copy()
            up[index] += step
            down[index] -= step
            slopes[index] = (loss(**{name: up}) - loss(**{name: down})) / (2 * step)
        np.testing.assert_allclose(getattr(grads, name), slopes, rtol=1e-4, atol=1e-5)


def test_masked_vocabulary():
    p = problem(6, 16, 700, bias="float32")
    bias = p.bias.copy()
    bias[:400] = -np.inf
    target = 400 + p.target % 300
    target[2] = 17  # masked
    masked = Problem(p.hidden, p.weight, target, bias, p.upstream)
    kept = Problem(p.hidden, p.weight[400:], target - 400, p.bias[400:], p.upstream)
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


@pytest.mark.parametrize("lowest", [-1e38, np.finfo(np.float32).min])
def test_vocabulary_masked_by_large_numbers(lowest):
    # A whole leaf of them: their products with sums and gradients would overflow.
    p = problem(6, 16, 700, bias="float32")
    p.bias[:400] = lowest
    p.target[:] = 400 + p.target % 300
    masked = Problem(
        p.hidden, p.weight, p.target, np.where(p.bias == p.bias[0], -np.inf, p.bias), p.upstream
    )
    for got, want in zip(p.outputs(), masked.outputs(), strict=True):
        assert same_bits(got, want)
    for got, want in zip(all_grads(p), all_grads(masked), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_cap_makes_masked_vocabulary_finite():
    p = problem(6, 16, 50, bias="float32")
    p.bias[3] = -np.inf
    p.target[1] = 3
    assert np.isfinite(p.logp(softcap=2.0)).all()
    check_all_outputs(p, softcap=2.0)
    assert all_grads(p, softcap=2.0).bias[3] == 0


def test_a_row_of_only_minus_infinity():
    p = problem(3, 8, 20, bias="float32")
    p.bias[:] = -np.inf
    got = p.outputs()
    assert np.isnan(got.log_prob).all()
    assert np.isnan(got.entropy).all()
    assert (got.lse == -np.inf).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}])
def test_nan_stays_in_its_row(bad, options):
    p = problem(12, 16, 310)
    clean = p.outputs(**options)
    p.hidden[5, 3] = bad
    got = p.outputs(**options)
    others = np.arange(12) != 5
    # A capped infinity is a number; infinities of both signs are in a row here.
    capped = "softcap" in options and bad == np.inf
    for name in NAMES:
        assert np.isnan(getattr(got, name)[5]) != capped
        assert same_bits(getattr(got, name)[others], getattr(clean, name)[others])


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e4, 1e30])
def test_extreme_logits(size):
    rng = np.random.default_rng(0)
    for softcap in (None, 30.0):
        p = of_logits(size * rng.standard_normal((4, 300)), rng.integers(0, 300, 4))
        check_all_outputs(p, f"{size}", softcap=softcap)


def test_the_entropy_is_between_zero_and_log_of_the_vocabulary():
    for vocab in (1, 2, 1000):
        hidden, weight = np.ones((3, 4), np.float32), np.full((vocab, 4), 0.25, np.float32)
        p = Problem(hidden, weight, np.zeros(3, np.int64), None, np.ones(3, np.float32))
        np.testing.assert_allclose(p.outputs().entropy, np.log(vocab), rtol=3e-7)
    for gap in (10.0, 17.0, 100.0, 1e4):
        logits = np.zeros((2, 500))
        logits[:, 77] = gap
        assert (of_logits(logits, [77, 0]).outputs().entropy >= 0).all()


def test_inactive_rows():
    p = problem((3, 4), 16, 310, bias="float32")
    active = np.arange(12).reshape(3, 4) % 3 != 1
    p.target[2, 3] = -100
    inactive = ~active | (p.target == -100)
    dirty = with_garbage(p, active)
    got, want = dirty.outputs(mask=active, **OPTIONS), p.outputs(**OPTIONS)
    for name in NAMES:
        assert not getattr(got, name)[inactive].any()
        assert same_bits(getattr(got, name)[~inactive], getattr(want, name)[~inactive])
    grads = rlk.jit.linear_logp_backward(
        dirty.upstream,
        *dirty.operands,
        mask=active,
        grad_entropy=dirty.upstream,
        grad_lse=dirty.upstream,
        **OPTIONS,
    )
    assert not grads.hidden[inactive].any()
    for grad in grads:
        assert np.isfinite(grad).all()


@pytest.mark.parametrize("kind", ["all masked", "no rows"])
def test_nothing_to_do(kind):
    p = problem(4 if kind == "all masked" else 0, 16, 310, bias="float32")
    mask = np.zeros(len(p.target), bool)
    for value in p.outputs(mask=mask, **OPTIONS):
        assert value.shape == p.target.shape
        assert not value.any()
    for grad in all_grads(p, mask=mask, **OPTIONS):
        assert not grad.any()


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_upstream_gradients_of_any_floating_type(kind):
    p = problem(12, 16, 310)
    g = p.upstream.astype(np.float16)  # values that all three hold
    want = rlk.jit.linear_logp_backward(
        None, *p.operands, grad_entropy=g.astype(np.float32), grad_lse=g.astype(np.float32)
    )
    got = rlk.jit.linear_logp_backward(
        None, *p.operands, grad_entropy=g.astype(kind), grad_lse=g.astype(kind)
    )
    assert same_bits(got.hidden, want.hidden)


def refused(message: str, **options) -> None:
    """Forward, backward and explain all refuse the call with this message."""
    p = problem(4, 8, 50)
    for call in (
        lambda: p.logp(**options),
        lambda: p.grads(**options),
        lambda: rlk.jit.explain(*p.operands, **options),
        lambda: rlk.jit.explain(*p.operands, **options, backward=True),
    ):
        with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {message}$"):
            call()


@pytest.mark.parametrize("bad", [0, -1, 0.0, float("nan"), float("inf"), 1e39, 1e-39])
def test_softcap_out_of_range(bad):
    refused("softcap: expected a finite number above 0 .3e-39 to 8e37., got .*", softcap=bad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_logit_scale_out_of_range(bad):
    refused("logit_scale: expected a finite number of float32, got .*", logit_scale=bad)


@pytest.mark.parametrize(("bad", "got"), [("30", "str"), ([30.0], "list"), (1j, "complex")])
def test_what_is_no_number(bad, got):
    refused(f"softcap: expected a number or None, got {got}", softcap=bad)
    refused(f"logit_scale: expected a number, got {got}", logit_scale=bad)


def test_no_logit_scale_is_one():
    refused("logit_scale: expected a number, got NoneType", logit_scale=None)


@pytest.mark.parametrize("name", ["grad_entropy", "grad_lse"])
def test_upstream_gradients_that_do_not_fit(name):
    p = problem(4, 8, 50)
    for bad, message in (
        (np.ones(3, np.float32), r"expected shape \[4\], got \[3\]"),
        (np.ones(4, np.int64), "expected a floating dtype, got int64"),
        (3, "expected a torch tensor, NumPy array or DLPack tensor, got int"),
    ):
        with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {name}: {message}$"):
            rlk.jit.linear_logp_backward(p.upstream, *p.operands, **{name: bad})


def test_no_upstream_gradient_at_all():
    p = problem(4, 8, 50)
    with pytest.raises(rlk.InvalidArgument, match="grad_output: expected a tensor, got None"):
        rlk.jit.linear_logp_backward(None, *p.operands)


def test_numbers_of_other_kinds():
    p = problem()
    want = p.logp(softcap=2.0, logit_scale=0.5)
    got = p.logp(softcap=np.float32(2), logit_scale=np.array(0.5))
    assert same_bits(got, want)
    assert same_bits(p.logp(softcap=2, logit_scale=1), p.logp(softcap=2.0))
