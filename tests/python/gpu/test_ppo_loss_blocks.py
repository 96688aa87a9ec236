# SPDX-License-Identifier: Apache-2.0
"""ppo_loss on a GPU: however tokens are cut into blocks and groups, and whatever was in its memory
before, the bits are those of wider rows that generic kernels take, and near float64's."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from losses import ALL_ON, FLOAT, Batch, batch, expect_near, mapped, same, same_metrics
from on_device import DEVICE, graph_of
from tensors import tensor, torch

import rlk

pytestmark = pytest.mark.gpu

OPTION_SETS = [
    {},
    {"use_dual_clip": True, "use_tis": True, "loss_reduction": "sequence_mean"},
    {"kl_coef": 0.1, "kl_reduction": "token_sum"},
    ALL_ON,
    {"policy_loss": "gspo"},
    {"policy_loss": "gspo", "ratio_level": "sequence", "loss_reduction": "sequence_mean"},
    {"log_ratio_clamp": 0.3, "use_tis": True, "tis_mode": "mask"},
]
NUM_SMS = torch.cuda.get_device_properties(DEVICE).multi_processor_count
TILE = 1024  # tokens of a block at least
WAVE = 2 * TILE * NUM_SMS  # of all blocks with one tile each
SIDES = (5, 46)  # columns before and behind, of no active token
SHAPES = [
    (1, 1),
    (1, 3),
    (3, TILE // 3),
    (1, TILE - 1),
    (1, TILE),
    (1, TILE + 1),
    (2, TILE),
    (7, 1001),
    (1024, 5),
    (1025, 4),
    (1, WAVE - 4),
    (4, WAVE // 4),
    (1, WAVE + 1),
    (2, WAVE + 1020),
]


@pytest.fixture(params=[True, False], ids=["specialized", "generic"], autouse=True)
def variant(request):
    rlk.jit.configure(specialize=request.param)


def drawn(rows: int, length: int) -> Batch:
    """Most tokens ordinary, some far out; a row of several without an active token."""
    b = batch(rows, length, spread=0.2)
    if rows == 1:
        b = b.but(mask=np.random.default_rng(1).random((rows, length)) < 0.9)
    return b


def upload(b: Batch, shift: int = 0) -> Batch:
    """Copies, each `shift` elements into memory of its own."""

    def put(array):
        room = torch.empty(array.size + shift, dtype=tensor(array[:0]).dtype, device=DEVICE)
        view = room[shift:].view(array.shape)
        view.copy_(tensor(array))
        return view

    others = {name: put(x) for name, x in b.others.items()}
    arrays = [put(x) for x in (b.log_probs, b.old, b.advantages)]
    arrays[0].requires_grad_()
    return Batch(*arrays, None if b.mask is None else put(b.mask), others)


def elsewhere(b: Batch, upstream: float = 1.0, **options):
    """What generic kernels make of the batch, every token at another place: in wider rows."""
    if b.mask is None:
        b = b.but(mask=np.ones(b.log_probs.shape, bool))
    wide = mapped(b, lambda x, fill: np.pad(x, [(0, 0), SIDES], constant_values=fill))
    specialize = rlk.jit.settings()["specialize"]
    rlk.jit.configure(specialize=False)
    found, grads = wide.loss(**options), wide.grads(upstream, **options)
    rlk.jit.configure(specialize=specialize)
    own = slice(SIDES[0], -SIDES[1])
    return found, grads._make(None if grad is None else grad[:, own] for grad in grads)


def wanted(b: Batch, upstream: float = 1.0, **options):
    """(loss, metrics) and the gradient of log_probs: the bits of elsewhere(), near float64's."""
    found, grads = elsewhere(b, upstream, **options)
    expect_near(found, grads, b, upstream, **options)
    return found, grads.log_probs


def step_of(t: Batch, **options):
    def step():
        loss, metrics = t.loss(**options)
        return (loss.detach(), *metrics, *torch.autograd.grad(loss, t.log_probs))

    return step


def expect_same(found, want, at=...) -> None:
    """`at`: where the wanted gradient has the tokens."""
    loss, *metrics, grad = found
    (want_loss, want_metrics), want_grad = want
    assert same(loss, want_loss)
    assert same_metrics(metrics, want_metrics)
    assert same(grad, want_grad[at])


@pytest.mark.parametrize("options", OPTION_SETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_around_a_block_and_a_wave(shape, options):
    b = drawn(*shape)
    expect_same(step_of(upload(b), **options)(), wanted(b, **options))


@pytest.mark.parametrize("options", OPTION_SETS[:3])
def test_without_a_mask(options):
    b = drawn(5, 3000).but(mask=None)
    expect_same(step_of(upload(b), **options)(), wanted(b, **options))


@pytest.mark.parametrize("options", OPTION_SETS[:4])
@pytest.mark.parametrize("shift", [1, 2, 4])
def test_views_that_begin_anywhere(shift, options):
    b = drawn(6, 1030)
    expect_same(step_of(upload(b, shift), **options)(), wanted(b, **options))


@pytest.mark.parametrize("options", OPTION_SETS[:4])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 64, 1000, 1023])
def test_packed_sequences_of_any_length(length, options):
    num = 5000
    starts = np.unique(np.append(np.arange(0, num, length), num)).astype(np.int64)
    is_token = np.arange(length) < np.diff(starts)[:, None]
    b = drawn(1, num)

    def to_rows(x, fill):
        rows = np.full(is_token.shape, fill, x.dtype)
        rows[is_token] = x[0]
        return rows

    want = wanted(mapped(b, to_rows), **options)
    packed = mapped(b, lambda x, _: x[0]).with_others(cu_seqlens=starts)
    expect_same(step_of(upload(packed), **options)(), want, is_token)


@pytest.mark.parametrize("options", OPTION_SETS)
def test_tokens_that_are_not_finite(options):
    b = drawn(4, 2048)
    good = wanted(b, **options)
    at = np.flatnonzero(b.mask.reshape(-1))
    for array, value, place in (
        (b.log_probs, np.nan, 5),
        (b.advantages, np.inf, 77),
        (b.old, -np.inf, 400),
        (b.others["rollout_logprobs"], np.nan, 500),
        (b.advantages, np.nan, 501),
    ):
        array.reshape(-1)[at[place]] = value
    for array in (b.log_probs, b.old, b.advantages, *b.others.values()):
        array[~b.mask] = np.nan
    found, grads = elsewhere(b, **options)
    expect_same(step_of(upload(b), **options)(), (found, grads.log_probs))
    assert found.metrics.num_nonfinite == 4 + options.get("use_tis", False)
    assert np.isnan(found.loss)
    rows = [2, 3]  # the others' bits, and zeros
    assert same(grads.log_probs[rows], good[1][rows])


@pytest.mark.parametrize("options", [OPTION_SETS[0], OPTION_SETS[5]])
@pytest.mark.parametrize("shape", [(2, 100), (64, 512), (1100, 300)])
def test_steps_wait_for_what_comes_before(shape, options):
    """A step may begin before the kernel before it has ended: here that one writes an input, and
    the next call writes over it."""
    batches = [drawn(*shape)]
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 0.1, shape).astype(FLOAT)
        mask = rng.random(shape) < 0.8
        batches.append(batches[0].but(old=batches[0].old + noise, mask=mask))
    want = [wanted(b, **options) for b in batches]
    sources = [upload(b) for b in batches]
    t = upload(batches[0])
    step = step_of(t, **options)

    def rounds():
        found = []
        for source in sources * 3:
            torch.square(torch.ones(1 << 22, device=DEVICE))  # keeps the card at work
            t.mask.copy_(source.mask)
            t.old.copy_(source.old)
            found.append(step())
            t.old.fill_(float("nan"))
        return found

    graph, captured = graph_of(rounds)
    for found in (rounds(), captured, captured):
        if found is captured:
            graph.replay()
        torch.cuda.synchronize()
        for each, expected in zip(found, want * 3, strict=True):
            expect_same(each, expected)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (3, 40)])
def test_without_an_active_token(shape):
    b = drawn(*shape) if all(shape) else Batch(*(np.zeros(shape, FLOAT) for _ in range(3)))
    b = b.but(mask=np.zeros(shape, bool))
    expect_same(step_of(upload(b))(), wanted(b))


def junk() -> None:
    """Leaves memory of many sizes full of what no kernel would find sane."""
    for size in (1 << 9, 1 << 12, 1 << 16, 1 << 20):
        for _ in range(8):
            torch.full((size,), 0xA5, dtype=torch.uint8, device=DEVICE)


@pytest.mark.parametrize("options", OPTION_SETS[:4])
def test_again_and_again_on_used_memory(options):
    batches = [drawn(2, 700), drawn(128, 512), drawn(1, WAVE + 5)]
    steps = [(step_of(upload(b), **options), wanted(b, **options)) for b in batches]
    for _ in range(20):
        for step, want in steps:
            junk()
            expect_same(step(), want)


def test_on_several_streams_at_once():
    b = drawn(128, 512)
    want = wanted(b)

    def work(_):
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            t = upload(b)
            found = [step_of(t)() for _ in range(30)]
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            for each in found:
                expect_same(each, want)


@pytest.mark.parametrize("options", OPTION_SETS[:5])
@pytest.mark.parametrize("shape", [(3, 100), (128, 512), (2, WAVE // 2 + 9)])
def test_a_graph_is_replayed_with_other_inputs(shape, options):
    b = drawn(*shape)
    t = upload(b)
    graph, found = graph_of(step_of(t, **options))
    for seed in range(4):
        other = batch(*shape, seed=seed, spread=0.3)
        with torch.no_grad():
            t.log_probs.copy_(tensor(other.log_probs))
            t.old.copy_(tensor(other.old))
            t.advantages.copy_(tensor(other.advantages))
            t.mask.copy_(tensor(other.mask))
            for name, x in other.others.items():
                t.others[name].copy_(tensor(x))
        for result in found:
            result.fill_(3)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        expect_same(found, wanted(other, **options))


@pytest.mark.parametrize("upstream", [1.0, -2.5])
def test_two_graphs_of_one_batch(upstream):
    """Each has memory of its own."""
    b = drawn(128, 512)
    t = upload(b)
    factor = torch.tensor(upstream, device=DEVICE)

    def step():
        return torch.autograd.grad(t.loss().loss, t.log_probs, factor)[0]

    graphs = [graph_of(step) for _ in range(2)]
    want = wanted(b, upstream)[1]
    for _ in range(3):
        for graph, grad in graphs:
            grad.fill_(9)
            graph.replay()
        torch.cuda.synchronize()
        for _, grad in graphs:
            assert same(grad, want)
