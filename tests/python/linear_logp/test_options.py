# SPDX-License-Identifier: Apache-2.0
"""softcap, logit_scale, return_entropy, return_lse: values and bits."""

import numpy as np
import pytest
from devices import jit, on_cpu_alone, on_cuda_alone, on_each_level, on_each_level_alone
from problems import (
    DIM,
    DTYPES,
    NAMES,
    OUTPUTS,
    VOCAB,
    all_grads,
    all_results,
    assert_same,
    check,
    check_all_outputs,
    numpy_type,
    of_logits,
    only,
    problem,
    with_garbage,
)
from reference import assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

OPTIONS = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}


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
        assert found._fields == OUTPUTS
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
    device: [
        *((OPTIONS, dtype) for dtype in DTYPES),
        *(({"softcap": c, "logit_scale": s}, plain) for c in (None, 2.0) for s in (1.0, 0.4)),
    ]
    for device, plain in (("cpu", "float32"), ("cuda", "bfloat16"))
}


@on_each_level
def test_generic_and_specialized_give_the_same_bits(device):
    sizes = {"cpu": (17, 20, 390), "cuda": (300, DIM, VOCAB)}[device]
    for options, dtype in VARIANTS[device]:
        p = problem(*sizes, dtype, bias="float32")
        found = []
        for specialize in (False, True):
            rlk.jit.configure(specialize=specialize)
            found.append((*all_results(p, **options), p.logp(**options), *p.grads(**options)))
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
        assert_same(part.outputs(**options), tuple(value[some] for value in whole), some)
        assert same_bits(all_grads(part, **options).hidden, whole_grad[some]), some


@on_each_level_alone
@pytest.mark.parametrize("sizes", [(700, 100, 1500), (3, 500, 2000), (900, 300, 5)])
def test_threads_do_not_matter(sizes):
    p = problem(*sizes, bias="float32")
    want = all_results(p, **OPTIONS)
    for threads in (1, 2, 3, 7):
        rlk.jit.configure(num_threads=threads)
        assert_same(all_results(p, **OPTIONS), want, threads)


@on_cuda_alone
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_result_depends_on_the_workspace(dtype):
    # Partials of a strip, logits of a wave: with 1 MiB each is the least that there is.
    p = problem(1500, 64, 70001, dtype, bias="float32")
    want = all_results(p, **OPTIONS)
    for mib in (1, 3, 16, 256, 4096):
        rlk.jit.configure(workspace_mib=mib)
        assert_same(all_results(p, **OPTIONS), want, f"{mib} MiB of workspace")


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
        for name in OUTPUTS:
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
    assert_same(scaled, cooled, "powers of two are exact")


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


@on_each_level
def test_several_strips_and_waves():
    p = problem(1300, 3, 1300, bias="float32")
    check(p)
    check_all_outputs(p, **OPTIONS)


@on_each_level
@pytest.mark.parametrize("rows", [50, 1300])  # on a GPU in one row of tiles, and listed
@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_rows(dtype, rows):
    mask = np.arange(rows) % 3 != 1
    p = problem(rows, 16, 310, dtype, bias="float32")
    want = all_results(only(p, mask), **OPTIONS)
    got = all_results(with_garbage(p, mask), **OPTIONS, mask=mask)
    for value, exact in zip(got[:4], want[:4], strict=True):
        assert same_bits(value[~mask], np.zeros_like(value[~mask]))
        assert same_bits(value[mask], exact)
    assert_same(got[4:], want[4:], "sums of active rows")


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
