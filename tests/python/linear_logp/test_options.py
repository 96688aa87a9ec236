# SPDX-License-Identifier: Apache-2.0
"""softcap, logit_scale, return_entropy, return_lse: values, bits, special values."""

import numpy as np
import pytest
from devices import jit, on_cpu_alone, on_cuda_alone, on_each_level, on_each_level_alone
from problems import (
    DIM,
    DTYPES,
    NAMES,
    VOCAB,
    Problem,
    check,
    check_all_outputs,
    numpy_type,
    of_logits,
    only,
    problem,
    with_garbage,
)
from reference import as_float64, assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

OPTIONS = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}
FIELDS = ("log_prob", "entropy", "lse")


def all_grads(p: Problem, **options):
    """Gradients of all three outputs at once."""
    return p.grads(grad_entropy=p.upstream * 0.25 - 1, grad_lse=p.upstream * 0.5, **options)


def everything(p: Problem, **options) -> tuple:
    return *p.outputs(**options), *all_grads(p, **options)


def assert_equal(got: tuple, want: tuple, what: object) -> None:
    for name, one, other in zip((*FIELDS, "hidden", "weight", "bias"), got, want, strict=False):
        assert one is other is None or same_bits(one, other), f"{name}: {what}"


@on_each_level
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 30.0},
        {"softcap": 0.5},
        {"softcap": 0.1, "logit_scale": -2},  # mostly flat
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


@on_cuda_alone
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_than_one_tile_of_everything(dtype):
    check_all_outputs(problem(300, 264, 5003, dtype, bias="float32"), **OPTIONS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized(device, dtype):
    rlk.jit.configure(specialize=True)
    sizes = {"cpu": (9, 24, 300), "cuda": (33, DIM, VOCAB)}[device]
    p = problem(*sizes, dtype, bias="float32")
    check_all_outputs(p, **OPTIONS)
    explained = jit.explain(rlk.jit.linear_logp, *p.operands, **OPTIONS, return_entropy=True)
    assert explained.variant == "specialized"
    assert "softcap=yes logit_scale=yes entropy=yes" in explained.kernel


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


@on_cpu_alone
def test_an_option_left_out_is_not_in_the_kernel():
    p = problem()
    rlk.jit.configure(specialize=True)
    plain = jit.explain(rlk.jit.linear_logp, *p.operands).kernel
    assert not any(word in plain for word in ("softcap", "logit_scale", "entropy"))
    for options in ({"return_lse": True}, {"logit_scale": 1}, {"softcap": None}):
        assert jit.explain(rlk.jit.linear_logp, *p.operands, **options).kernel == plain
    backward = jit.explain(
        rlk.jit.linear_logp, *p.operands, return_entropy=True, backward=True
    ).kernel
    assert "linear_logp.bwd" in backward
    assert "entropy=yes" in backward


def test_what_is_returned():
    p = problem((2, 3))
    assert isinstance(p.logp(), np.ndarray)
    for entropy, lse in ((True, False), (False, True), (True, True)):
        found = p.logp(return_entropy=entropy, return_lse=lse)
        assert isinstance(found, rlk.jit.LogpResult)
        assert found._fields == FIELDS
        assert (found.entropy is not None) == entropy
        assert (found.lse is not None) == lse
        for value in found:
            assert value is None or (value.shape == (2, 3) and value.dtype == np.float32)


@on_each_level
@pytest.mark.parametrize(
    ("dtype", "specialize"), [*((dtype, False) for dtype in DTYPES), ("float32", True)]
)
def test_a_value_beside_others_has_the_same_bits(device, dtype, specialize):
    rlk.jit.configure(specialize=specialize and device == "cpu")
    p = problem(130, 40, 1000, dtype, bias="float32")
    for options in ({}, OPTIONS):
        both = p.outputs(**options)
        assert same_bits(p.logp(**options), both.log_prob)
        assert same_bits(p.outputs(**options, return_lse=False).entropy, both.entropy)
        assert same_bits(p.outputs(**options, return_entropy=False).lse, both.lse)


VARIANTS = {
    "cpu": [
        *(({"softcap": c, "logit_scale": s}, "float32") for c in (None, 2.0) for s in (1.0, 0.4)),
        *((OPTIONS, dtype) for dtype in DTYPES),
    ],
    "cuda": [
        *((OPTIONS, dtype) for dtype in DTYPES),
        *((o, "bfloat16") for o in ({}, {"softcap": 2.0}, {"logit_scale": 0.4})),
    ],
}


@on_each_level
def test_generic_and_specialized_give_the_same_bits(device):
    sizes = {"cpu": (17, 20, 390), "cuda": (300, DIM, VOCAB)}[device]
    for options, dtype in VARIANTS[device]:
        p = problem(*sizes, dtype, bias="float32")
        found = []
        for specialize in (False, True):
            rlk.jit.configure(specialize=specialize)
            found.append((*everything(p, **options), p.logp(**options), *p.grads(**options)))
        assert jit.explain(rlk.jit.linear_logp, *p.operands, **options).variant == "specialized"
        for generic, specialized in zip(*found, strict=True):
            assert same_bits(generic, specialized)


@on_each_level
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, OPTIONS], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(device, dtype, options):
    rows, *sizes = {"cpu": (131, 40, 390), "cuda": (531, DIM, VOCAB)}[device]
    p = problem(rows, *sizes, dtype, bias="float32")
    whole, whole_grad = p.outputs(**options), all_grads(p, **options).hidden
    order = np.random.default_rng(0).permutation(rows)
    parts = (slice(0, 1), slice(5, 20), slice(128, 129), slice(64, rows), slice(None, None, -1))
    for some in (*parts, order):
        part = only(p, some)
        assert_equal(part.outputs(**options), tuple(value[some] for value in whole), some)
        assert same_bits(all_grads(part, **options).hidden, whole_grad[some]), some


@on_each_level_alone
@pytest.mark.parametrize("sizes", [(700, 100, 1500), (3, 500, 2000), (900, 300, 5)])
def test_threads_do_not_matter(sizes):
    p = problem(*sizes, bias="float32")
    want = everything(p, **OPTIONS)
    for threads in (1, 2, 3, 7):
        rlk.jit.configure(num_threads=threads)
        assert_equal(everything(p, **OPTIONS), want, threads)


@on_cuda_alone
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_result_depends_on_the_workspace(dtype):
    # Partials of a strip, logits of a wave: with 1 MiB each is the least that there is.
    p = problem(1500, 64, 70001, dtype, bias="float32")
    want = everything(p, **OPTIONS)
    for mib in (1, 3, 16, 256, 4096):
        rlk.jit.configure(workspace_mib=mib)
        assert_equal(everything(p, **OPTIONS), want, f"{mib} MiB of workspace")


@pytest.mark.parametrize("dtype", DTYPES)
def test_absent_options_change_no_bits(dtype):
    p = problem(40, 64, 1000, dtype, bias="float32")
    zeros = np.zeros_like(p.upstream)
    full = p.grads(grad_lse=zeros, logit_scale=1, softcap=None)
    assert all(same_bits(one, other) for one, other in zip(full, p.grads(), strict=True))
    # A gradient of the entropy takes another formula, that of zeros too.
    exact = p.reference().gradients(p.upstream, zeros)
    for name, got in zip(NAMES, p.grads(grad_entropy=zeros), strict=True):
        assert_within(got, exact[name], name)


def test_every_option_changes_the_result():
    p = problem()
    plain, plain_grads = p.outputs(), all_grads(p)
    for options in ({"softcap": 2.0}, {"logit_scale": 0.5}):
        changed, grads = p.outputs(**options), all_grads(p, **options)
        for name in FIELDS:
            assert not same_bits(getattr(changed, name), getattr(plain, name)), (options, name)
        assert not same_bits(grads.hidden, plain_grads.hidden)
        assert not same_bits(grads.weight, plain_grads.weight)
    for name in ("grad_entropy", "grad_lse"):
        assert not same_bits(p.grads(**{name: p.upstream}).hidden, p.grads().hidden), name


def test_the_cap_bends_the_temperature_does_not():
    p = of_logits([[30.0, 60.0, 90.0]], [2])
    z = 30 * np.tanh(np.array([1, 2, 3])) / 2
    got = p.outputs(softcap=30, temperature=2.0)
    np.testing.assert_allclose(got.lse, np.log(np.exp(z).sum()), rtol=1e-6)


def test_scale_and_temperature_are_one_without_a_cap():
    p = problem(9, 16, 310)
    scaled, cooled = p.outputs(logit_scale=0.25), p.outputs(temperature=4.0)
    assert_equal(scaled, cooled, "powers of two are exact")


def test_a_gradient_that_is_absent_is_zero():
    p = problem(9, 16, 310, bias="float32")
    zeros = np.zeros(9, np.float32)
    entropy, lse = {"grad_entropy": p.upstream}, {"grad_lse": p.upstream}
    for given, others in ((entropy, {"grad_lse": zeros}), (lse, {})):
        absent = p.but(upstream=None).grads(**given)
        full = p.but(upstream=zeros).grads(**given, **others)
        for one, other in zip(absent, full, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_upstream_gradients_of_any_stride_and_type(dtype, kind):
    p = problem((5, 7), 24, 310, dtype)
    base = np.random.default_rng(0).standard_normal((5, 14)).astype(numpy_type(kind))
    one, all_one = base[:, :1], base[:1, :1]
    nothing = p.but(upstream=None)
    for g in (base[:, ::2], base[:, 6::-1], *(np.broadcast_to(x, (5, 7)) for x in (one, all_one))):
        dense = np.ascontiguousarray(g).astype(np.float32)
        for grads in (
            lambda x: p.but(upstream=x).grads(),
            lambda x: nothing.grads(grad_entropy=x, grad_lse=x),
        ):
            got, want = grads(g), grads(dense)
            assert same_bits(got.hidden, want.hidden)
            assert same_bits(got.weight, want.weight)


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
    capped = everything(masked, softcap=30.0)  # to -30: no longer masked, by the formula
    assert all(np.isfinite(as_float64(value)).all() for value in capped)


@pytest.mark.parametrize("lowest", [-1e38, np.finfo(np.float32).min])
def test_vocabulary_masked_by_large_numbers(lowest):
    # A whole leaf of them: their products with sums and gradients would overflow.
    p = problem(6, 16, 700, bias="float32")
    p.bias[:400] = lowest
    p.target[:] = 400 + p.target % 300
    masked = p.but(bias=np.where(np.arange(700) < 400, np.float32(-np.inf), p.bias))
    assert_equal(p.outputs(), masked.outputs(), lowest)
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
    for options in ({}, OPTIONS) if np.isnan(odd) else ({},):
        for got, exact in zip(
            everything(broken, **options)[:4], everything(p, **options)[:4], strict=True
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
def test_several_strips_and_waves():
    p = problem(1300, 3, 1300, bias="float32")
    check(p)
    check_all_outputs(p, **OPTIONS)


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


@on_each_level
@pytest.mark.parametrize("rows", [50, 1300])  # on a GPU in one row of tiles, and listed
@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_rows(dtype, rows):
    mask = np.arange(rows) % 3 != 1
    p = problem(rows, 16, 310, dtype, bias="float32")
    want = everything(only(p, mask), **OPTIONS)
    got = everything(with_garbage(p, mask), **OPTIONS, mask=mask)
    for value, exact in zip(got[:4], want[:4], strict=True):
        assert same_bits(value[~mask], np.zeros_like(value[~mask]))
        assert same_bits(value[mask], exact)
    assert_equal(got[4:], want[4:], "sums of active rows")


def test_inactive_rows_of_two_axes_by_mask_and_index():
    p = problem((3, 4), 16, 310, bias="float32")
    active = np.arange(12).reshape(3, 4) % 3 != 1
    p.target[2, 3] = -100
    inactive = ~active | (p.target == -100)
    dirty = with_garbage(p, active)
    got, want = dirty.outputs(mask=active, **OPTIONS), p.outputs(**OPTIONS)
    for one, other in zip(got, want, strict=True):
        assert not one[inactive].any()
        assert same_bits(one[~inactive], other[~inactive])
    g = dirty.upstream
    grads = dirty.grads(mask=active, grad_entropy=g, grad_lse=g, **OPTIONS)
    assert not grads.hidden[inactive].any()
    assert all(np.isfinite(grad).all() for grad in grads)


@on_each_level
@pytest.mark.parametrize("kind", ["all masked", "no rows"])
def test_nothing_to_do(kind):
    p = problem(4 if kind == "all masked" else 0, 16, 310, bias="float32")
    mask = np.zeros(len(p.target), bool)
    for value in p.outputs(mask=mask, **OPTIONS):
        assert value.shape == p.target.shape
        assert not value.any()
    assert not any(grad.any() for grad in all_grads(p, mask=mask, **OPTIONS))


@on_cuda_alone  # the CPU raises at once
def test_a_bad_id_makes_all_of_its_row_nan():
    import torch
    from devices import put

    p = problem(9, 40, 193)
    want = p.outputs(**OPTIONS)
    p.target[5] = 193
    given = [put(x) for x in p.operands[:3]]
    found = rlk.jit.linear_logp(*given, **OPTIONS, return_entropy=True, return_lse=True)
    with pytest.raises(rlk.InvalidArgument, match="got 193 in row 5"):
        rlk.jit.check_errors()
    others = torch.arange(9) != 5
    for got, exact in zip(found, want, strict=True):
        assert got[5].isnan()
        assert same_bits(got.cpu()[others], exact[others.numpy()])


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_float16_keeps_gradients_of_any_size(size):
    # A GPU scales dZ by a bound of all three gradients: none overflows float16, none vanishes.
    p = problem(24, 40, 3001, "float16")
    reference = p.reference(softcap=4.0)
    for factors in ((1, 1, 1), (1e-4, 1, 0), (0, 1e-4, 1), (1, 1, 1e4)):
        first, second, third = (p.upstream * np.float32(factor * size) for factor in factors)
        # The gradient itself is stored in float16: small and large ones through the hidden state.
        options = {"grad_entropy": second, "grad_lse": third, "softcap": 4.0, "needs": ("hidden",)}
        got = p.but(upstream=first).grads(**options).hidden
        exact = reference.gradients(first, second, third)["hidden"]
        if np.abs(exact.value).max() < 6e4:
            assert_within(got, exact, str(size))
        assert not np.isnan(got).any()


@on_cpu_alone
def test_numbers_of_other_kinds():
    p = problem()
    want = p.logp(softcap=2.0, logit_scale=0.5)
    got = p.logp(softcap=np.float32(2), logit_scale=np.array(0.5))
    assert same_bits(got, want)
    assert same_bits(p.logp(softcap=2, logit_scale=1), p.logp(softcap=2.0))
