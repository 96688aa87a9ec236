# SPDX-License-Identifier: Apache-2.0
"""Gradients of tokens, the loss and the metrics keep their bits under order, padding, packing and
any split into micro-batches."""

import numpy as np
import pytest
from devices import call, on_cpu_alone
from layouts import LAYOUTS, shifted
from losses import ALL_ON, FLOAT, OPTION_SETS, Batch, batch, mapped, same, same_metrics

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

# What the weights are made of does not follow from a micro-batch.
GLOBALS = {"global_tokens": 1000, "global_sequences": 12}

options_sets = pytest.mark.parametrize("options", OPTION_SETS)


def run(b: Batch, **options):
    got, grads = b.loss(**options), b.grads(**options)
    return got, grads.log_probs, grads.entropy


def expect_same(a, b, at=lambda x: x):
    assert same(a[0].loss, b[0].loss)
    assert same_metrics(a[0].metrics, b[0].metrics)
    assert same(a[1], at(b[1]))
    if a[2] is not None:
        assert same(a[2], at(b[2]))


@options_sets
def test_permutation_of_sequences(options):
    b = batch(7)
    order = np.random.default_rng(1).permutation(7)
    moved = mapped(b, lambda x, _: x[order])
    expect_same(run(b, **options), run(moved, **options), lambda g: g[np.argsort(order)])


@options_sets
@pytest.mark.parametrize("sides", [(0, 3), (5, 0), (19, 46), (5, 700)])
def test_padding(options, sides):
    b = batch(7)
    before = sides[0]
    wide = mapped(b, lambda x, fill: np.pad(x, [(0, 0), sides], constant_values=fill))
    width = b.mask.shape[1]
    expect_same(run(b, **options), run(wide, **options), lambda g: g[:, before : before + width])


def test_rows_of_padding():
    b = batch(7)
    for options in (*OPTION_SETS[:3], *OPTION_SETS[4:]):
        more = mapped(b, lambda x, fill: np.pad(x, [(2, 3), (0, 0)], constant_values=fill))
        expect_same(run(b, **options), run(more, **options), lambda g: g[2:9])


@options_sets
def test_packing(options):
    """torchtitan 3347, prime-rl 605, 606: no token moves, none of a boundary is trained."""
    b = batch(7)
    lengths = np.array([37, 12, 5, 0, 37, 30, 1])
    keep = np.arange(37) < lengths[:, None]
    b = b.but(mask=b.mask & keep)
    packed = mapped(b, lambda x, _: x[keep])
    starts = np.concatenate([[0], lengths.cumsum()])
    want = run(b, **options)
    for kind in ("int32", "int64"):
        got = run(packed.with_others(cu_seqlens=starts.astype(kind)), **options)
        expect_same(
            (got[0], got[1], got[2]),
            (want[0], want[1][keep], want[2] if want[2] is None else want[2][keep]),
        )


def test_packed_without_a_mask_takes_every_token():
    b = batch(7)
    packed = mapped(b, lambda x, _: x[b.mask]).but(mask=None)
    starts = np.concatenate([[0], b.mask.sum(1).cumsum()])
    got = run(packed.with_others(cu_seqlens=starts), **ALL_ON)
    want = run(b, **ALL_ON)
    expect_same(got, (want[0], want[1][b.mask], want[2][b.mask]))


@options_sets
@pytest.mark.parametrize("parts", [2, 3, 12])
def test_micro_batches(options, parts):
    """verl 5625, 5877, 906, 3332, 3994; TRL 3021, 3231, 5619, 6024; NeMo 212; ms-swift 10116;
    verl 7321, 7200: the KL term too."""
    b = batch(12, seed=5)
    whole = run(b, **options, **GLOBALS)
    pieces = []
    for rows in np.array_split(np.random.default_rng(2).permutation(12), parts):
        part = run(mapped(b, lambda x, _, rows=rows: x[rows]), **options, **GLOBALS)
        assert same(part[1], whole[1][rows])
        pieces.append(part[0].metrics)
    loss, metrics = call(rlk.losses.combine, pieces)
    assert same(loss, whole[0].loss)
    assert same_metrics(metrics, whole[0].metrics)


def test_a_sequence_cut_in_two():
    """slime 429: context parallel shards, with weights from outside."""
    b = batch(4)
    weights = np.full((4, 37), 1 / 64, FLOAT)
    whole = run(b.with_others(loss_weights=weights), **ALL_ON)
    halves = []
    for part in (slice(0, 20), slice(20, 37)):
        half = mapped(b.with_others(loss_weights=weights), lambda x, _, part=part: x[:, part])
        got = run(half, **ALL_ON)
        assert same(got[1], whole[1][:, part])
        halves.append(got[0].metrics)
    loss, metrics = call(rlk.losses.combine, halves)
    assert same(loss, whole[0].loss)
    want = whole[0].metrics.named()
    for name, value in metrics.named().items():  # a sequence counts in each of its halves
        assert name == "num_sequences" or same(value, want[name]), name
    assert same(metrics.exact, whole[0].metrics.exact)


def test_combine_without_tokens_and_with_nan():
    empty = batch(3).but(mask=np.zeros((3, 37), bool)).loss(**GLOBALS)
    full = batch(3).loss(**GLOBALS)
    loss, metrics = call(rlk.losses.combine, [empty.metrics, full.metrics, empty.metrics])
    assert same(loss, full.loss)
    assert same_metrics(metrics, full.metrics)
    b = batch(3)
    bad = b.but(log_probs=np.where(b.mask, np.nan, b.log_probs).astype(FLOAT)).loss(**GLOBALS)
    loss, metrics = call(rlk.losses.combine, [full.metrics, bad.metrics])
    assert np.isnan(loss)
    again, _ = call(rlk.losses.combine, [metrics, full.metrics])
    assert np.isnan(again)


@options_sets
def test_layouts(options):
    b = batch(9, 701)
    want = run(b, **options)
    for view in (*LAYOUTS.values(), lambda x: shifted(x, 4 * x.itemsize)):
        expect_same(want, run(mapped(b, lambda x, _, view=view: view(x)), **options))


@on_cpu_alone
@options_sets
def test_threads(options):
    big = batch(64, 701)
    first = run(big, **options)
    for threads in (1, 2, 5):
        rlk.jit.configure(num_threads=threads)
        expect_same(first, run(big, **options))


@options_sets
def test_specialized_is_generic_bit_for_bit(options):
    b = batch(9, 301)
    want = run(b, **options)
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info()
    expect_same(want, run(b, **options))
    after = rlk.jit.cache_info()
    assert after.fallbacks == before.fallbacks


def test_the_sum_is_exact():
    """Terms of 1 and -1 beside ones of 2^-60: no order of float additions keeps them."""
    count = 4096
    a = np.where(np.arange(count) % 2, 1.0, -1.0).astype(FLOAT)
    a[:64] = FLOAT(2.0**-60)
    a[64:128] = 0
    zero = np.zeros((1, count), FLOAT)
    got = Batch(zero, zero, a[None]).loss(loss_reduction="token_sum").loss
    assert got == FLOAT(-64 * 2.0**-60)


@pytest.mark.parametrize("size", [7.99, 8.0, 1e3, 1e12, 2.0**46, 1e20])
def test_large_terms(size):
    """Around the width of the fast path, and beyond what the integers hold."""
    zero = np.zeros((1, 33), FLOAT)
    a = zero.copy()
    a[0, 5] = -size
    got = Batch(zero, zero, a).loss(loss_reduction="token_sum")
    want = FLOAT(size) if size < 2.0**54 else np.inf
    assert got.loss == want
    assert Batch(zero, zero, -a).loss(loss_reduction="token_sum").loss == -want


def test_terms_beyond_of_both_signs_are_nan():
    """As infinities are, in any order and over micro-batches; gradients stay."""
    zero = np.zeros((1, 4), FLOAT)
    b = Batch(zero, zero, np.array([[1e20, -1e20, 1, 0]], FLOAT))
    assert np.isnan(b.loss(loss_reduction="token_sum").loss)
    assert np.array_equal(b.grads(loss_reduction="token_sum").log_probs, -b.advantages)
    parts = [
        Batch(zero[:, :1], zero[:, :1], b.advantages[:, i : i + 1]).loss(loss_reduction="token_sum")
        for i in range(4)
    ]
    assert [float(part.loss) for part in parts] == [-np.inf, np.inf, -1, 0]
    assert np.isnan(call(rlk.losses.combine, [part.metrics for part in parts])[0])


@on_cpu_alone
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [1e-18, 1e-16, 3e-13, 1e-7, 1.0])
def test_a_small_sum_keeps_its_bits_whatever_its_sign(sign, size):
    """Of one term each: the loss, sums of metrics and combine, NumPy and torch."""
    size = FLOAT(sign * size)
    zero = np.zeros((1, 1), FLOAT)
    loss, metrics = rlk.jit.ppo_loss(zero, zero, zero - size, loss_reduction="token_sum")
    unit = 2.0**-72
    want = FLOAT(np.rint(np.float64(size) / unit) * unit)
    assert same(loss, want)
    assert same(metrics.policy_loss, want)
    assert same(call(rlk.losses.combine, [metrics])[0], want)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    part = metrics._make(torch.as_tensor(np.asarray(x)) for x in metrics)
    assert same(call(rlk.losses.combine, [part])[0], want)
    ratio = rlk.jit.ppo_loss(zero, zero + size, zero).metrics.approx_kl_sum
    unit = 2.0**-40
    assert same(ratio, FLOAT(np.rint(np.float64(size) / unit) * unit + 0.0))
