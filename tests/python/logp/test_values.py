# SPDX-License-Identifier: Apache-2.0
"""logp against float64, and its bits: those of linear_logp, of any batch, layout and variant."""

import itertools

import numpy as np
import pytest
from devices import host_levels, jit, on_cpu_alone, on_cuda_alone
from layouts import LAYOUTS, shifted, transposed
from logits import Logits, draw
from problems import DTYPES, numpy_type
from reference import Exact, as_float64, assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

OPTION_SETS = [
    {},
    {"temperature": 0.7},
    {"softcap": 1.5},
    {"logit_scale": -0.5},
    {"softcap": 2.0, "logit_scale": 0.25, "temperature": 1.3},
    {"softcap": 2.0, "logit_scale": -0.25, "temperature": 1.3},
]
# Around the leaf, a vector, four chains; of a GPU, what a block reads at once and several parts.
SIZES = [
    1,
    2,
    3,
    5,
    8,
    15,
    17,
    127,
    128,
    129,
    131,
    191,
    192,
    193,
    384,
    385,
    3072,
    4099,
    6145,
    50257,
]

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
option_sets = pytest.mark.parametrize("options", OPTION_SETS, ids=str)


def run(p: Logits, **options):
    """Outputs, gradient of all of them, gradient of the log-prob."""
    every = {"grad_entropy": p.upstream * 0.5, "grad_lse": p.upstream + 1}
    return (*p.outputs(**options), p.grad(**options, **every), p.grad(**options))


def same(first, second) -> bool:
    return all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def check(p: Logits, found=None, **options) -> None:
    found, want = run(p, **options) if found is None else found, Exact(p, **options)
    for (name, bounded), value in zip(want.outputs().items(), found, strict=False):
        assert value.dtype == np.float32
        assert_within(value, bounded, name)
    g = p.upstream
    assert found[3].dtype == found[4].dtype == p.logits.dtype
    assert_within(found[3], want.gradient(g, np.float32(0.5) * g, g + np.float32(1)), "gradient")
    assert_within(found[4], want.gradient(g), "gradient of log_prob")


@each_dtype
@pytest.mark.parametrize(
    ("vocab", "options"),
    [
        *((vocab, options) for vocab in SIZES for options in (OPTION_SETS[i] for i in (0, 1, 5))),
        *((310, options) for options in OPTION_SETS),
    ],
    ids=str,
)
def test_against_float64(vocab, options, dtype):
    p = draw(5, vocab, dtype)
    found = run(p, **options)
    check(p, found, **options)
    assert same_bits(p.logp(**options), found[0])


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 0), (2, 3, 2), (3, 5), (40,)])
def test_shapes(lead):
    p = draw(lead, 65)
    if lead == ():
        assert p.logp().shape == ()
        assert p.grad().shape == (65,)
        return
    check(p)


def test_a_temperature_a_row():
    p = draw(9, 310)
    heat = np.linspace(0.4, 2, 9, dtype=np.float32)
    check(p, temperature=heat)
    for i in (0, 8):
        alone = p.rows(slice(i, i + 1)).logp(temperature=float(heat[i]))
        assert same_bits(p.logp(temperature=heat)[i : i + 1], alone)


@option_sets
@pytest.mark.parametrize("vocab", [*SIZES, 1000])
def test_bits_are_those_of_linear_logp(device, vocab, options):
    """One-hot hidden states make linear_logp's dot products the logits themselves."""
    p = draw(32, vocab)
    weight = np.ascontiguousarray(p.logits.T)
    every = {"return_entropy": True, "return_lse": True}
    for level in host_levels() if device == "cpu" else [rlk.jit.settings()["arch"]]:
        rlk.jit.configure(arch=level)
        eye = np.eye(32, dtype=np.float32)
        linear = jit.linear_logp(eye, weight, p.target, **options, **every)
        assert same(linear, p.outputs(**options))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bits_do_not_follow_the_storage_type(dtype):
    for vocab in (1000, 5003):
        p = draw(9, vocab, dtype)
        wide = p.but(logits=p.logits.astype(np.float32))
        assert same(p.outputs(), wide.outputs())
        assert same_bits(p.grad(), wide.grad().astype(numpy_type(dtype)))


@on_cpu_alone
@each_dtype
@pytest.mark.parametrize("options", [{}, OPTION_SETS[-1]], ids=str)
def test_a_row_has_its_bits_in_any_batch_and_on_any_threads(options, dtype):
    p = draw(67, 5003, dtype)
    want = run(p, **options)
    order = np.random.default_rng(0).permutation(67)
    for rows, threads in itertools.product((order, slice(0, 1), slice(5, 22)), (1, 3)):
        rlk.jit.configure(num_threads=threads)
        assert same(run(p.rows(rows), **options), [x[rows] for x in want])


@on_cuda_alone
@each_dtype
@pytest.mark.parametrize("vocab", [3333, 32768])
def test_a_row_has_its_bits_in_any_batch(vocab, dtype):
    """Few rows are cut into parts, many are not."""
    p = draw(1300, vocab, dtype)
    want = run(p)
    for rows in (slice(0, 1), slice(7, 20), slice(100, 700)):
        assert same(run(p.rows(rows)), [x[rows] for x in want])


@each_dtype
@pytest.mark.parametrize("options", [{}, OPTION_SETS[1], *OPTION_SETS[-2:]], ids=str)
def test_specialized_is_generic(device, options, dtype):
    for vocab in {"cpu": (1, 128, 333), "cuda": (3331,)}[device]:
        p = draw(6, vocab, dtype)
        rlk.jit.configure(specialize=False)
        want = (*run(p, **options), p.logp(**options))
        rlk.jit.configure(specialize=True, policy="sync")
        before = rlk.jit.cache_info().fallbacks
        assert same((*run(p, **options), p.logp(**options)), want)
        assert rlk.jit.cache_info().fallbacks == before
        explained = jit.explain(rlk.jit.logp, p.logits, p.target, **options, backward=True)
        assert f"V={vocab}" in explained.kernel
        assert explained.variant == "specialized"


@each_dtype
def test_layouts(dtype):
    """Strides, alignment, broadcast rows: torchtitan #3629."""
    for vocab in (130, 1536, 1537):
        p = draw((3, 4), vocab, dtype)
        want, unit = run(p), p.logits.itemsize
        moved = [view(p.logits) for view in LAYOUTS.values()]
        moved += [shifted(p.logits, offset) for offset in (unit, 2 * unit, 16 - unit)]
        moved += [np.ascontiguousarray(p.logits.swapaxes(0, 1)).swapaxes(0, 1)]
        for logits in moved:
            assert same(run(p.but(logits=logits)), want)
        strided = Logits(p.logits, transposed(p.target), transposed(p.upstream))
        assert same(run(strided), want)
    p = draw((4, 6), 130, dtype)
    check(Logits(p.logits[..., ::-1], 129 - p.target, p.upstream))
    check(p.but(logits=np.broadcast_to(p.logits[:1], p.logits.shape)))
    ids, upstream = (np.broadcast_to(x, (4, 6)) for x in (p.target[:1, :1], p.upstream[:1]))
    check(Logits(p.logits, ids, upstream))


@pytest.mark.parametrize("vocab", [1, 5, 300, 5003])
def test_log_p_is_never_positive(vocab):
    """maxtext #5231: nor is it rounded to the logits' type."""
    for dtype, scale in itertools.product(DTYPES, (1.0, 30.0)):
        p = draw(40, vocab, dtype, scale)
        p = p.but(target=as_float64(p.logits).argmax(-1))
        assert (p.logp() <= 0).all()
    if vocab == 1:
        assert not p.logp().any()


def test_masked_vocabulary():
    p = draw(6, 400).but(target=np.array([200, 399, 3, 160, 398, 250]))
    p.logits[:, :150] = p.logits[:, 399] = p.logits[1, 260:] = -np.inf
    check(p)
    found, grad = p.outputs(), p.grad()
    assert (found.log_prob[1:3] == -np.inf).all()
    assert np.isfinite(found.entropy).all()
    assert not grad[p.logits == -np.inf].any()
    assert np.isfinite(grad).all()


def test_rows_of_only_minus_infinity_and_nan_stay_alone():
    p = draw(6, 400)
    clean = (*p.outputs(), p.grad())
    p.logits[1] = -np.inf
    p.logits[3, 200] = np.nan
    p.logits[4, 17] = np.inf
    found = (*p.outputs(), p.grad())
    assert same([x[[0, 2, 5]] for x in found], [x[[0, 2, 5]] for x in clean])
    assert np.isnan(found[0][[1, 3, 4]]).all()
    assert np.isnan(found[3][1]).all()


def test_special_values():
    p = draw(7, 1000).but(target=np.array([800, 3, 3, 4, 5, 7, 9]))
    p.logits[0, :500] = p.logits[1] = -np.inf
    p.logits[2, 700] = np.nan
    p.logits[3, 5] = np.inf
    p.logits[4, 5] = 3e38
    p.logits[5, :200] = -1e30
    found = run(p)
    assert np.isnan(found[0][1:4]).all()
    for row in ([0], [4], [5], [6]):
        check(p.rows(row), [value[row] for value in found])
    assert not found[4][0, :500].any()
    assert p.but(target=np.full(7, 3)).logp()[0] == -np.inf


@pytest.mark.parametrize("shift", [-3e38, -1e30, -1e4, 1e4, 1e30, 3e38])
def test_extreme_logits(shift):
    p = draw(6, 400)
    p.logits[:, 7] = shift
    check(p)
    check(p.but(target=np.full(6, 7)))


def test_one_column_has_all_of_the_mass():
    p = draw(6, 400).but(target=np.full(6, 7))
    p.logits[:, 7] = 1e4
    found = p.outputs()
    assert not found.log_prob.any()
    assert not found.entropy.any()
    assert not p.grad().any()


@on_cpu_alone
@pytest.mark.parametrize("name", ["return_entropy", "return_lse", "inplace_backward"])
def test_switches(name):
    """As linear_logp's."""
    logits, target = np.zeros((2, 8), np.float32), np.zeros(2, np.int64)
    for wrong in ("yes", [1], np.zeros(2)):
        with pytest.raises(rlk.InvalidArgument, match=f"^logp: {name}: expected True or False"):
            rlk.jit.logp(logits, target, **{name: wrong})
