# SPDX-License-Identifier: Apache-2.0
"""return_stats of linear_logp: values, bits, special values, autograd."""

import numpy as np
import pytest
from devices import jit, on_cpu_alone, on_each_level, on_each_level_alone
from layouts import LAYOUTS
from problems import DIM, DTYPES, VOCAB, of_logits, only, problem, with_garbage
from reference import same_bits
from stats import FIELDS, STATS, check_stats, same_stats

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

OPTIONS = {"softcap": 1.5, "logit_scale": -0.75, "temperature": 0.7}
EVERY = {"return_entropy": True, "return_lse": True}
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
INF = np.inf


def stats_of(p, **options):
    return p.logp(**STATS, **options).stats


@on_each_level
@each_dtype
@pytest.mark.parametrize("options", [{}, {"softcap": 30.0}, {"temperature": 0.3}, OPTIONS], ids=str)
def test_values(dtype, options):
    p = problem(33, 72, 1203, dtype, scale=3.0, bias=dtype)
    check_stats(stats_of(p, **options), p.reference(**options))


# Around leaves of 128 and 192 columns, eight segments, and what a step of a merge joins.
@on_each_level
@pytest.mark.parametrize(
    "vocab", [1, 2, 7, 9, 17, 95, 127, 129, 191, 193, 385, 1025, 1537, 3331, 12289, 50257]
)
def test_odd_vocabularies(vocab):
    # No logit is above zero: what a padded column adds would show.
    p = problem(17, 5, vocab, seed=vocab)
    p = p.but(bias=np.full(vocab, -50, np.float32))
    for options in ({}, {"softcap": 100.0, "logit_scale": 0.5}):
        check_stats(stats_of(p, **options), p.reference(**options))


@each_dtype
@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 0), (3, 5), (300,)])
def test_shapes(lead, dtype):
    p = problem(lead, 24, 310, dtype)
    stats = stats_of(p)
    check_stats(stats, p.reference())
    assert isinstance(stats, rlk.jit.LogitStats)
    assert stats._fields == FIELDS


def test_what_is_returned():
    p = problem((2, 3))
    for options in ({}, {"return_entropy": True}, {"return_lse": True}, EVERY):
        found = p.logp(**STATS, **options)
        assert isinstance(found, rlk.jit.LogpStatsResult)
        assert (found.entropy is not None) == ("return_entropy" in options)
        assert (found.lse is not None) == ("return_lse" in options)
    assert isinstance(p.logp(return_stats=False), np.ndarray)
    with pytest.raises(rlk.InvalidArgument, match="return_stats: expected True or False, got"):
        p.logp(return_stats="yes")


@on_each_level
@each_dtype
def test_a_value_beside_others_has_the_same_bits(device, dtype):
    p = problem(130, 40, 1000, dtype, bias="float32")
    for specialize in (False, device == "cpu"):
        rlk.jit.configure(specialize=specialize)
        for options in ({}, OPTIONS):
            whole = p.outputs(**options, **STATS)
            assert same_bits(p.logp(**options), whole.log_prob)
            for one, other in zip(p.outputs(**options), whole, strict=False):
                assert same_bits(one, other)
            assert same_stats(stats_of(p, **options), whole.stats)


@on_each_level
@each_dtype
def test_generic_and_specialized_give_the_same_bits(device, dtype):
    sizes = {"cpu": (17, 20, 390), "cuda": (300, DIM, VOCAB)}[device]
    for options in ({}, OPTIONS, {**OPTIONS, **EVERY}):
        p = problem(*sizes, dtype, bias="float32")
        found = []
        for specialize in (False, True):
            rlk.jit.configure(specialize=specialize)
            found.append(stats_of(p, **options))
        explained = jit.explain(rlk.jit.linear_logp, *p.operands, **options, **STATS)
        assert (explained.variant, "stats=yes" in explained.kernel) == ("specialized", True)
        assert same_stats(*found)


@on_cpu_alone
def test_a_call_without_statistics_has_none_in_its_kernel():
    p = problem()
    rlk.jit.configure(specialize=True)
    for options in ({}, {"return_stats": False}, {**STATS, "backward": True}):
        assert "stats" not in jit.explain(rlk.jit.linear_logp, *p.operands, **options).kernel


@on_each_level
@each_dtype
def test_a_row_has_the_same_bits_in_every_batch(device, dtype):
    rows, *sizes = {"cpu": (131, 40, 390), "cuda": (531, DIM, VOCAB)}[device]
    p = problem(rows, *sizes, dtype, bias="float32")
    whole = stats_of(p)
    order = np.random.default_rng(0).permutation(rows)
    for some in (slice(0, 1), slice(5, 20), slice(128, 129), slice(None, None, -1), order):
        assert same_stats(stats_of(only(p, some)), [value[some] for value in whole]), some


@on_each_level_alone
def test_threads_do_not_matter():
    p = problem(700, 100, 1500, bias="float32")
    want = stats_of(p)
    for threads in (1, 2, 7):
        rlk.jit.configure(num_threads=threads)
        assert same_stats(stats_of(p), want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    p = problem(9, 24, 310)
    moved = p.but(hidden=LAYOUTS[layout](p.hidden), weight=LAYOUTS[layout](p.weight))
    assert same_stats(stats_of(moved), stats_of(p))


@each_dtype
@pytest.mark.parametrize("vocab", [310, 1537])
def test_inactive_rows_are_neutral_whatever_they_hold(vocab, dtype):
    p = problem(300, 24, vocab, dtype)
    active = np.arange(300) % 3 != 1
    wild = with_garbage(p, active)
    ignored = wild.but(target=np.where(active, wild.target, -100))
    for given, options in ((wild, {"mask": active}), (ignored, {})):
        stats = stats_of(given, **options)
        assert same_stats([value[active] for value in stats], stats_of(only(p, active)))
        assert (stats.argmax[~active] == -1).all()
        for name in ("max_logit", "mean_logit", "sum_p2"):
            value = getattr(stats, name)[~active]
            assert same_bits(value, np.zeros_like(value))


@on_each_level
@pytest.mark.parametrize("vocab", [3, 200, 2000])
def test_the_lowest_column_of_a_tie(vocab):
    rng = np.random.default_rng(vocab)
    z = rng.integers(-3, 3, (24, vocab)).astype(np.float32)  # many columns at the maximum
    z[0] = 1.0
    z[1, -1] = z[1, vocab // 2] = 5.0
    z[2], z[2, -1] = -0.0, 0.0  # equal
    stats = stats_of(of_logits(z, np.zeros(24, int)))
    assert same_bits(stats.argmax, z.argmax(-1))
    assert stats.max_logit.tolist() == z.max(-1).tolist()
    assert stats.mean_logit[0] == 1.0


@on_each_level
@pytest.mark.parametrize("vocab", [5, 1000])
def test_special_values(vocab):
    """A softmax of the logits themselves: hidden is the identity, and the bias has what is odd."""
    p = problem(9, 24, vocab)
    bias = np.zeros(vocab, np.float32)
    bias[: vocab // 2] = -INF  # whole leaves, the first ones
    masked = p.but(bias=bias)
    stats = stats_of(masked)
    check_stats(stats, masked.reference())
    assert (stats.argmax >= vocab // 2).all()
    assert (stats.mean_logit == -INF).all()

    nothing = stats_of(p.but(bias=np.full(vocab, -INF, np.float32)))
    assert (nothing.max_logit == -INF).all()
    assert (nothing.argmax == 0).all()
    assert (nothing.mean_logit == -INF).all()
    assert np.isnan(nothing.sum_p2).all()

    for column in (0, vocab - 1):
        for value, mean in ((np.nan, np.nan), (INF, INF)):
            bias = np.zeros(vocab, np.float32)
            bias[column] = value
            odd = stats_of(p.but(bias=bias))
            assert (odd.argmax == -1).all()
            assert np.isnan([odd.max_logit, odd.sum_p2]).all()
            np.testing.assert_array_equal(odd.mean_logit, np.full(9, mean))


def test_a_nan_stays_in_its_row():
    p = problem(9, 24, 1000)
    hidden = p.hidden.copy()
    hidden[4, 3] = np.nan
    stats, want = stats_of(p.but(hidden=hidden)), stats_of(p)
    others = np.arange(9) != 4
    assert same_stats([value[others] for value in stats], [value[others] for value in want])
    assert stats.argmax[4] == -1
    assert np.isnan([stats.max_logit[4], stats.mean_logit[4], stats.sum_p2[4]]).all()


@pytest.mark.torch
def test_no_gradient_flows_through_them():
    from tensors import leaves, make, torch

    sizes = ((3, 4), 16, 310)
    given, again = leaves(make(*sizes)), leaves(make(*sizes))
    found = rlk.jit.linear_logp(**given, **STATS, return_entropy=True)
    assert [value.requires_grad for value in found.stats] == [False] * 4
    assert found.log_prob.requires_grad
    check_stats(found.stats, make(*sizes).reference())
    (found.log_prob.sum() + found.entropy.sum()).backward()
    plain = rlk.jit.linear_logp(**again, return_entropy=True)
    (plain.log_prob.sum() + plain.entropy.sum()).backward()
    for name, tensor in given.items():
        if tensor.requires_grad:
            assert same_bits(tensor.grad, again[name].grad)
    with torch.no_grad():
        assert same_stats(rlk.jit.linear_logp(**given, **STATS).stats, found.stats)
