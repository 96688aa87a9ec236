# SPDX-License-Identifier: Apache-2.0
"""logp against float64, and its bits: those of linear_logp, of any batch, layout and variant."""

import itertools

import numpy as np
import pytest
from logits import Exact, Logits, draw
from problems import DTYPES, host_levels, numpy_type
from reference import as_float64, assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")

OPTION_SETS = [
    {},
    {"temperature": 0.7},
    {"softcap": 1.5},
    {"logit_scale": -0.5},
    {"softcap": 2.0, "logit_scale": 0.25, "temperature": 1.3},
]
# Around the leaf, a vector, four chains.
SIZES = [1, 2, 3, 5, 15, 17, 127, 128, 129, 131, 191, 193, 384, 4099]


def check(p: Logits, options: dict, **exact) -> None:
    found, want = p.outputs(**options), Exact(p, **options, **exact)
    for name, bounded in want.outputs().items():
        assert getattr(found, name).dtype == np.float32
        assert_within(getattr(found, name), bounded, name)
    assert same_bits(p.logp(**options), found.log_prob)
    grads = [p.upstream, 0.5 * p.upstream[..., ::-1], p.upstream + 1]
    got = p.grad(**options, grad_entropy=grads[1], grad_lse=grads[2])
    assert got.dtype == p.logits.dtype
    assert_within(got, want.gradient(*grads), "gradient")
    assert_within(p.grad(**options), want.gradient(p.upstream), "gradient of log_prob")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTION_SETS, ids=str)
def test_options(options, dtype):
    check(draw((3, 5), 310, dtype), options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", SIZES)
def test_sizes(vocab, dtype):
    check(draw(5, vocab, dtype), {})


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 0), (2, 3, 2), (40,)])
def test_shapes(lead):
    p = draw(lead, 65)
    if lead == ():
        assert p.logp().shape == ()
        assert p.grad().shape == (65,)
        return
    check(p, {})


def test_a_temperature_a_row():
    p = draw(9, 310)
    heat = np.linspace(0.4, 2, 9, dtype=np.float32)
    check(p, {"temperature": heat})
    for i in (0, 8):
        one = Logits(p.logits[i : i + 1], p.target[i : i + 1], p.upstream[i : i + 1])
        alone = one.logp(temperature=float(heat[i]))
        assert same_bits(p.logp(temperature=heat)[i : i + 1], alone)


@pytest.mark.parametrize("options", OPTION_SETS, ids=str)
@pytest.mark.parametrize("vocab", SIZES)
def test_bits_are_those_of_linear_logp(vocab, options):
    """One-hot hidden states make linear_logp's dot products the logits themselves."""
    p = draw(21, vocab)
    weight = np.ascontiguousarray(p.logits.T)
    every = {"return_entropy": True, "return_lse": True}
    for level in host_levels():
        rlk.jit.configure(arch=level)
        linear = rlk.jit.linear_logp(
            np.eye(21, dtype=np.float32), weight, p.target, **options, **every
        )
        for one, other in zip(linear, p.outputs(**options), strict=True):
            assert same_bits(one, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bits_do_not_follow_the_storage_type(dtype):
    p = draw(9, 1000, dtype)
    wide = p.but(logits=p.logits.astype(np.float32))
    for one, other in zip(p.outputs(), wide.outputs(), strict=True):
        assert same_bits(one, other)
    assert same_bits(p.grad(), wide.grad().astype(numpy_type(dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, OPTION_SETS[-1]], ids=str)
def test_a_row_has_its_bits_in_any_batch_and_on_any_threads(options, dtype):
    p = draw(67, 5003, dtype)
    found, grad = p.outputs(**options), p.grad(**options)
    order = np.random.default_rng(0).permutation(67)
    for rows, threads in itertools.product((order, slice(0, 1), slice(5, 22)), (1, 3)):
        rlk.jit.configure(num_threads=threads)
        part = Logits(p.logits[rows], p.target[rows], p.upstream[rows])
        for one, all_rows in zip(part.outputs(**options), found, strict=True):
            assert same_bits(one, all_rows[rows])
        assert same_bits(part.grad(**options), grad[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, OPTION_SETS[-1]], ids=str)
@pytest.mark.parametrize("vocab", [1, 128, 333])
def test_specialized_is_generic(vocab, options, dtype):
    p = draw(6, vocab, dtype)
    generic = (*p.outputs(**options), p.logp(**options), p.grad(**options))
    every = {"grad_entropy": p.upstream}
    grads = p.grad(**options, **every)
    rlk.jit.configure(specialize=True)
    before = rlk.jit.cache_info().fallbacks
    for one, other in zip(
        generic, (*p.outputs(**options), p.logp(**options), p.grad(**options)), strict=True
    ):
        assert same_bits(one, other)
    assert same_bits(grads, p.grad(**options, **every))
    assert rlk.jit.cache_info().fallbacks == before
    explained = rlk.jit.explain_logp(p.logits, p.target, **options, backward=True)
    assert f"V={vocab}" in explained.kernel
    assert explained.variant == "specialized"


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(dtype):
    """Strides, alignment, broadcast rows: torchtitan #3629."""
    p = draw((4, 6), 130, dtype)
    want = (*p.outputs(), p.grad())
    x = p.logits
    room = np.zeros((4, 12, 263), x.dtype)
    room[:, ::2, 1:261:2] = x
    odd = np.zeros(x.size * x.itemsize + 64, np.uint8)
    shifted = odd[x.itemsize : x.itemsize + x.nbytes].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    swapped = np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    for same in (room[:, ::2, 1:261:2], shifted, swapped, x[::-1, ::-1][::-1, ::-1]):
        q = p.but(logits=same)
        for one, other in zip((*q.outputs(), q.grad()), want, strict=True):
            assert same_bits(one, other)
    flipped = Logits(x[..., ::-1], 129 - p.target, p.upstream)
    check(flipped, {})
    expanded = Logits(np.broadcast_to(x[:1], x.shape), p.target, p.upstream)
    check(expanded, {})
    ids = np.broadcast_to(p.target[:1, :1], (4, 6))
    check(Logits(x, ids, np.broadcast_to(p.upstream[:1], (4, 6))), {})


@pytest.mark.parametrize("vocab", [1, 5, 300, 5003])
def test_log_p_is_never_positive(vocab):
    """maxtext #5231: nor is it rounded to the logits' type."""
    for dtype, scale in itertools.product(DTYPES, (1.0, 30.0)):
        p = draw(40, vocab, dtype, scale)
        p = p.but(target=as_float64(p.logits).argmax(-1))
        assert (p.logp() <= 0).all()
    if vocab == 1:
        assert not p.logp().any()


def special(vocab=400):
    p = draw(6, vocab)
    return p, p.logits.copy()


def test_masked_vocabulary():
    p, x = special()
    x[:, :150] = -np.inf
    x[:, 399] = -np.inf
    x[1, 260:] = -np.inf
    p = p.but(logits=x, target=np.array([200, 399, 3, 160, 398, 250]))
    check(p, {})
    found, grad = p.outputs(), p.grad()
    assert (found.log_prob[1:3] == -np.inf).all()
    assert np.isfinite(found.entropy).all()
    assert not grad[x == -np.inf].any()
    assert np.isfinite(grad).all()


def test_rows_of_only_minus_infinity_and_nan_stay_alone():
    p, x = special()
    clean = (*p.outputs(), p.grad())
    x[1] = -np.inf
    x[3, 200] = np.nan
    x[4, 17] = np.inf
    p = p.but(logits=x)
    for found, want in zip((*p.outputs(), p.grad()), clean, strict=True):
        assert same_bits(found[[0, 2, 5]], want[[0, 2, 5]])
    found = p.outputs()
    assert np.isnan(found.log_prob[[1, 3, 4]]).all()
    assert np.isnan(p.grad()[1]).all()


@pytest.mark.parametrize("shift", [-3e38, -1e30, -1e4, 1e4, 1e30, 3e38])
def test_extreme_logits(shift):
    p, x = special()
    x[:, 7] = shift
    p = p.but(logits=x)
    check(p, {})
    check(p.but(target=np.full(6, 7)), {})


def test_one_column_has_all_of_the_mass():
    p, x = special()
    x[:, 7] = 1e4
    p = p.but(logits=x, target=np.full(6, 7))
    found = p.outputs()
    assert not found.log_prob.any()
    assert not found.entropy.any()
    assert not p.grad().any()


@pytest.mark.parametrize("name", ["return_entropy", "return_lse", "inplace_backward"])
def test_switches(name):
    """As linear_logp's."""
    logits, target = np.zeros((2, 8), np.float32), np.zeros(2, np.int64)
    for wrong in ("yes", [1], np.zeros(2)):
        with pytest.raises(rlk.InvalidArgument, match=f"^logp: {name}: expected True or False"):
            rlk.jit.logp(logits, target, **{name: wrong})
