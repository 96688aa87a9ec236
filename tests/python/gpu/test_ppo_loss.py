# SPDX-License-Identifier: Apache-2.0
"""ppo_loss and group_advantages on the device: the CPU's cases against float64, and bits."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from losses import (
    GRAD_RTOL,
    LOSS_RTOL,
    Batch,
    active,
    batch,
    expected_advantages,
    same,
    same_metrics,
)
from on_device import DEVICE, cuda_only, shifted, spaced, tensor, torch, transposed

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

ALL_ON = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}
OPTION_SETS = [
    {},
    ALL_ON,
    {"policy_loss": "gspo", "use_tis": True, "tis_level": "sequence"},
    {"policy_loss": "sapo", "kl_coef": 0.1, "kl_reduction": "sequence_mean"},
    {"policy_loss": "cispo", "loss_reduction": "sequence_mean_valid"},
    {"delta": 1.1, "eps_clip_high": 0.28},
    {"policy_loss": "gpg", "use_tis": True, "tis_level": "geometric", "tis_mode": "band"},
    {"use_tis": True, "tis_mode": "mask", "tis_imp_ratio_cap": 1.5, "kl_coef": 1.0},
    {"kl_coef": 0.3, "kl_gradient": "unbiased", "kl_weight": "ratio", "kl_output_clamp": 5.0},
]
GLOBALS = {"global_tokens": 1000, "global_sequences": 12}
option_sets = pytest.mark.parametrize("options", OPTION_SETS)


class Ran(NamedTuple):
    loss: Any
    metrics: Any
    grad: Any
    grad_entropy: Any

    def host(self) -> "Ran":
        return Ran(*(tuple(m.cpu() for m in x) if isinstance(x, tuple) else cpu(x) for x in self))


def cpu(x: Any) -> Any:
    return None if x is None else x.detach().cpu()


def upload(b: Batch, move: Any = lambda x: x, dtype: str | None = None) -> Batch:
    """The batch on the device; `move` lays each tensor out anew."""

    def put(x: Any) -> Any:
        if x is None:
            return None
        found = tensor(x)
        if dtype is not None and found.is_floating_point():
            found = found.to(getattr(torch, dtype))
        return move(found) if found.dim() > 0 else found

    others = {name: put(x) for name, x in b.others.items()}
    return Batch(*(put(x) for x in (b.log_probs, b.old, b.advantages, b.mask)), others)


def run(t: Batch, upstream: float = 1.0, **options: Any) -> Ran:
    """Forward and backward on the device, taken to the host."""
    leaf = t.log_probs.detach().requires_grad_()
    others = dict(t.others)
    if "entropy" in others:
        others["entropy"] = others["entropy"].detach().requires_grad_()
    loss, metrics = t.but(log_probs=leaf, others=others).loss(**options)
    (loss * upstream).backward()
    entropy = others.get("entropy")
    return Ran(loss, metrics, leaf.grad, None if entropy is None else entropy.grad).host()


def expect_same(a: Ran, b: Ran, at: Any = lambda x: x) -> None:
    assert same(a.loss, b.loss)
    assert same_metrics(a.metrics, b.metrics)
    assert same(a.grad, at(b.grad))
    if a.grad_entropy is not None:
        assert same(a.grad_entropy, at(b.grad_entropy))


def mapped(b: Batch, change: Any) -> Batch:
    others = {name: change(x, np.nan) for name, x in b.others.items()}
    arrays = (change(b.log_probs, np.nan), change(b.old, np.nan), change(b.advantages, np.nan))
    return Batch(*arrays, change(b.mask, False), others)


@option_sets
@pytest.mark.parametrize("shape", [(6, 37), (3, 4099), (300, 7)])
def test_values(options, shape):
    b = batch(*shape, spread=0.8)
    got, want = run(upload(b), -2.0, **options), b.answer(**options)
    assert abs(float(got.loss) - want.loss) <= LOSS_RTOL * want.abs_loss_sum
    error = np.abs(got.grad.numpy() + 2.0 * want.grad)
    allowed = GRAD_RTOL * 2.0 * want.grad_scale + 1e-30
    assert (error <= allowed)[~want.ties].all()
    assert not got.grad.numpy()[~active(b)].any()
    slack = int(want.ties.sum())
    for name, count in want.counts.items():
        value = int(got.metrics[got_index(name)])
        assert abs(value - count) <= slack, name
    for name, total in want.sums.items():
        value = float(got.metrics[got_index(name)])
        assert np.isclose(value, total, rtol=2e-5, atol=1e-4 * want.abs_loss_sum + 1e-6), name


def got_index(name: str) -> int:
    return rlk.losses.Metrics._fields.index(name)


@option_sets
def test_specialized_is_generic_bit_for_bit(options):
    t = upload(batch(9, 301))
    want = run(t, **options)
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info().fallbacks
    expect_same(want, run(t, **options))
    assert rlk.jit.cache_info().fallbacks == before


@option_sets
def test_inactive_tokens_may_hold_anything(options):
    b = batch()
    wild = np.array([np.nan, np.inf, -np.inf, 1e30, 200.0], np.float32)
    rng = np.random.default_rng(0)
    garbage = mapped(b, lambda x, _: np.where(b.mask, x, rng.choice(wild, x.shape)).astype(x.dtype))
    expect_same(run(upload(b), **options), run(upload(garbage.but(mask=b.mask)), **options))


@option_sets
def test_permutation_padding_and_packing(options):
    b = batch(7, 61)
    want = run(upload(b), **options)
    order = np.random.default_rng(1).permutation(7)
    moved = mapped(b, lambda x, _: x[order])
    expect_same(want, run(upload(moved), **options), lambda g: g[np.argsort(order)])
    wide = mapped(b, lambda x, fill: np.pad(x, [(0, 0), (5, 700)], constant_values=fill))
    expect_same(want, run(upload(wide), **options), lambda g: g[:, 5:66])
    starts = np.concatenate([[0], b.mask.sum(1).cumsum()])
    packed = mapped(b, lambda x, _: x[b.mask]).with_others(cu_seqlens=starts.astype(np.int32))
    got = run(upload(packed), **options)
    assert same(got.loss, want.loss)
    assert same_metrics(got.metrics, want.metrics)
    assert same(got.grad, want.grad[torch.tensor(b.mask)])


@option_sets
def test_micro_batches(options):
    b = batch(12, seed=5)
    whole = run(upload(b), **options, **GLOBALS)
    parts = []
    for rows in np.array_split(np.random.default_rng(2).permutation(12), 3):
        part = upload(mapped(b, lambda x, _, rows=rows: x[rows]))
        got = run(part, **options, **GLOBALS)
        assert same(got.grad, whole.grad[rows])
        parts.append(part.loss(**options, **GLOBALS).metrics)
    loss, metrics = rlk.losses.combine(parts)
    assert loss.device.type == DEVICE.type
    assert same(loss.cpu(), whole.loss)
    assert same_metrics([m.cpu() for m in metrics], whole.metrics)


@pytest.mark.parametrize("move", [lambda t: shifted(t, 4 * t.element_size()), spaced, transposed])
def test_layouts(move):
    b = batch(9, 129)
    expect_same(run(upload(b), **ALL_ON), run(upload(b, move), **ALL_ON))


@pytest.mark.parametrize("kind", ["bool", "int8", "int64", "int32", "float32", "bfloat16"])
def test_a_mask_of_any_type(kind):
    b = batch()
    t = upload(b)
    expect_same(run(t), run(t.but(mask=tensor(b.mask, kind))))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes(dtype):
    b = upload(batch(spread=0.3), dtype=dtype)
    single = Batch(b.log_probs.float(), b.old.float(), b.advantages.float(), b.mask)
    single = single.but(others={name: x.float() for name, x in b.others.items()})
    got, want = run(b, **ALL_ON), run(single, **ALL_ON)
    assert same(got.loss, want.loss)
    assert got.grad.dtype == getattr(torch, dtype)
    assert same(got.grad.float(), want.grad.to(got.grad.dtype).float())


@pytest.mark.parametrize("count", [1, 255, 256, 257, 4096, 131072 * 5 + 3])
def test_sizes(count):
    rng = np.random.default_rng(count)
    lp = -rng.exponential(1.0, count).astype(np.float32)
    b = Batch(
        lp,
        lp + rng.normal(0, 0.2, count).astype(np.float32),
        rng.normal(size=count).astype(np.float32),
    )
    got, want = run(upload(b)), b.answer()
    assert abs(float(got.loss) - want.loss) <= LOSS_RTOL * want.abs_loss_sum
    assert int(got.metrics[0]) == count


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (2, 0)])
def test_no_active_token(shape):
    nan = np.full(shape, np.nan, np.float32)
    got = run(upload(Batch(nan, nan, nan, np.zeros(shape, bool))))
    assert same(got.loss, np.float32(0))
    assert same(got.grad, np.zeros(shape, np.float32))
    assert all(m.isfinite().all() for m in got.metrics)


def test_nan_in_an_active_token_shows_and_is_counted():
    b = batch()
    at = tuple(np.argwhere(b.mask)[3])
    lp = b.log_probs.copy()
    lp[at] = np.nan
    got = run(upload(b.but(log_probs=lp)), **ALL_ON)
    assert got.loss.isnan()
    assert int(got.metrics[got_index("num_nonfinite")]) == 1
    assert np.argwhere(np.isnan(got.grad.numpy())).tolist() == [list(at)]


@pytest.mark.parametrize("size", [7.99, 8.0, 1e3, 1e12, 2.0**46, 1e20])
def test_large_terms(size):
    zero = np.zeros((1, 33), np.float32)
    a = zero.copy()
    a[0, 5] = -size
    t = upload(Batch(zero, zero, a))
    want = np.float32(size) if size < 2.0**54 else np.inf
    for sign in (1, -1):
        got = t.but(advantages=sign * t.advantages).loss(loss_reduction="token_sum").loss
        assert float(got) == sign * want


def test_the_sum_is_exact():
    a = np.where(np.arange(4096) % 2, 1.0, -1.0).astype(np.float32)
    a[:64] = np.float32(2.0**-60)
    a[64:128] = 0
    zero = np.zeros((1, 4096), np.float32)
    got = upload(Batch(zero, zero, a[None])).loss(loss_reduction="token_sum").loss
    assert float(got) == -64 * 2.0**-60


def test_global_counts_as_tensors():
    t = upload(batch())
    got = t.loss(global_tokens=torch.tensor(777, device=DEVICE)).loss
    assert torch.equal(got, t.loss(global_tokens=777).loss)


@pytest.mark.parametrize(
    "reduction", ["prompt_mean", "token_sum_over_L", "seq_mean_token_sum_norm"]
)
def test_reductions(reduction):
    b = batch()
    starts = np.array([0, 2, 3, 6])
    options = {"loss_reduction": reduction, "max_seq_len": 40, "group_boundaries": starts}
    want = b.answer(**options)
    options["group_boundaries"] = tensor(starts)
    got = run(upload(b), **options)
    assert abs(float(got.loss) - want.loss) <= LOSS_RTOL * want.abs_loss_sum
    for name in ("loss_weights", "advantages"):
        row = np.random.default_rng(3).normal(size=6).astype(np.float32)
        own = b.with_others(loss_weights=row) if name == "loss_weights" else b.but(advantages=row)
        got, want = run(upload(own)), own.answer()
        assert abs(float(got.loss) - want.loss) <= LOSS_RTOL * want.abs_loss_sum


def reported(match: str) -> None:
    """By check_errors, once."""
    with pytest.raises(rlk.InvalidArgument, match=match):
        rlk.jit.check_errors()
    rlk.jit.check_errors()


WRONG_STARTS = ([0, 1 << 40, -7, 64], [5, 20, 30, 64], [0, 20, 30, 63], [0, 30, 20, 64])


@cuda_only
@pytest.mark.parametrize("starts", WRONG_STARTS)
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_wrong_boundaries_lead_nowhere_and_are_reported(starts, dtype):
    b = batch(2, 64)  # its last row is empty
    flat = mapped(b, lambda x, _: x[0])
    starts = np.array(starts) if dtype == "int64" else np.array(starts) % (1 << 20)
    upload(flat.with_others(cu_seqlens=starts.astype(dtype))).loss()
    reported(r"ppo_loss: cu_seqlens: expected to start at 0, not to decrease and end")
    groups = {"loss_reduction": "prompt_mean", "group_boundaries": tensor(np.array([0, 2, 2, 3]))}
    good = flat.with_others(cu_seqlens=np.array([0, 20, 20, 64]))
    upload(good).loss(**groups)
    torch.cuda.synchronize()
    next_call = upload(good)
    with pytest.raises(rlk.InvalidArgument, match=r"group_boundaries: .* got 2 to 2 at 1"):
        next_call.loss()
    upload(good).loss()
    rlk.jit.check_errors()


@cuda_only
@pytest.mark.parametrize("groups", [[1, 3, 6], [0, 3, 5], [0, 3, 3, 6], [0, 5, 3, 6], [0, 1 << 40]])
def test_wrong_groups_of_rewards_are_reported(groups):
    rewards = tensor(np.arange(6.0))
    rlk.jit.group_advantages(rewards, group_boundaries=tensor(np.array(groups)))
    reported("group_advantages: group_boundaries: expected to start at 0, to increase and end")
    rlk.jit.group_advantages(rewards, group_boundaries=tensor(np.array([0, 3, 6])))
    rlk.jit.check_errors()


@cuda_only
def test_sync_validation_looks_at_them_before_the_launch():
    b = batch(2, 64)  # its last row is empty
    flat = mapped(b, lambda x, _: x[0])
    good = upload(flat.with_others(cu_seqlens=np.array([0, 20, 20, 64])))
    want = good.loss()
    rlk.jit.configure(validate="sync")
    assert same(good.loss().loss.cpu(), want.loss.cpu())
    for starts, why in ((WRONG_STARTS[0], "got -7 after"), (WRONG_STARTS[1], "start at 0, got 5")):
        wrong = upload(flat.with_others(cu_seqlens=np.array(starts)))
        with pytest.raises(rlk.InvalidArgument, match=f"ppo_loss: cu_seqlens: .*{why}"):
            wrong.loss()
    groups = {"loss_reduction": "prompt_mean", "group_boundaries": tensor(np.array([0, 2, 2, 3]))}
    with pytest.raises(rlk.InvalidArgument, match=r"ppo_loss: group_boundaries: .*got 2 after 2"):
        good.loss(**groups)
    mask = tensor(2 * b.mask[0].astype(np.int32))
    with pytest.raises(rlk.InvalidArgument, match=r"ppo_loss: loss_mask: expected 0 or 1, got 2"):
        good.but(mask=mask).loss()
    with pytest.raises(
        rlk.InvalidArgument, match="ppo_loss: global_tokens: expected a number abov"
    ):
        good.loss(global_tokens=torch.tensor(0, device=DEVICE))
    rewards, given = tensor(np.arange(6.0)), tensor(np.array([0, 5]))
    with pytest.raises(rlk.InvalidArgument, match=r"group_advantages: .*end at 6, got 5"):
        rlk.jit.group_advantages(rewards, group_boundaries=given)
    rlk.jit.check_errors()  # nothing was launched that could report


@cuda_only
def test_a_graph_captures_it():
    t = upload(batch(16, 300))
    leaf = t.log_probs.detach().requires_grad_()
    t = t.but(log_probs=leaf)
    want = run(t, **ALL_ON)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            leaf.grad = None
            t.loss(**ALL_ON).loss.backward()
    torch.cuda.synchronize()
    leaf.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, metrics = t.loss(**ALL_ON)
        loss.backward()
    leaf.grad.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert same(loss.detach().cpu(), want.loss)
    assert same_metrics([m.cpu() for m in metrics], want.metrics)
    assert same(leaf.grad.cpu(), want.grad)


@pytest.mark.parametrize("normalize", ["std", "center", "rloo", "loo_std"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_group_advantages(normalize, dtype):
    starts = [0, 1, 3, 10, 40, 41, 140, 5000]
    rewards = tensor(np.random.default_rng(0).normal(size=5000), dtype)
    exact = rewards.double().cpu().numpy()
    for given in (starts, tensor(np.array(starts)), tensor(np.array(starts), "int32")):
        got = rlk.jit.group_advantages(rewards, group_boundaries=given, normalize=normalize).cpu()
        want = expected_advantages(exact, starts, normalize)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    for wrong in ([2, 5000], [0, 10], [0, 9, 9, 5000]):
        with pytest.raises(rlk.InvalidArgument, match="group_boundaries"):
            rlk.jit.group_advantages(rewards, group_boundaries=wrong)
    same_rewards = tensor(np.full(64, 0.1), dtype)
    assert not rlk.jit.group_advantages(same_rewards, samples_per_prompt=8, eps=1e-9).any()


@pytest.mark.parametrize("dialect", rlk.losses.ADVANTAGES)
def test_group_advantages_of_dialects(dialect):
    rules = dict(vars(rlk.losses.ADVANTAGES[dialect]))
    starts = [0, 2, 10, 18] if dialect == "openrlhf" else [0, 1, 3, 10, 18]
    rewards = np.random.default_rng(0).normal(size=18)
    rewards[10:17] = 0.95  # others that tie
    got = rlk.jit.group_advantages(tensor(rewards), group_boundaries=starts, dialect=dialect).cpu()
    np.testing.assert_allclose(got, expected_advantages(rewards, starts, **rules), rtol=1e-5)
    alone = rlk.jit.group_advantages(
        tensor(rewards), samples_per_prompt=1, dialect=dialect, group_of_one="reward"
    )
    np.testing.assert_array_equal(alone.cpu(), rewards.astype(np.float32))


@cuda_only
def test_a_group_of_one_is_refused():
    rewards = tensor(np.arange(6.0))
    options = {"group_of_one": "error"}
    with pytest.raises(rlk.InvalidArgument, match="increase by at least 2 from 0 to 6"):
        rlk.jit.group_advantages(rewards, group_boundaries=[0, 5, 6], **options)
    given = tensor(np.array([0, 5, 6]))  # seen by the kernel alone
    got = rlk.jit.group_advantages(rewards, group_boundaries=given, **options)
    assert got.isnan().tolist() == [False] * 5 + [True]
    rlk.jit.configure(validate="sync")
    with pytest.raises(rlk.InvalidArgument, match="to increase by at least 2, got 6 after 5"):
        rlk.jit.group_advantages(rewards, group_boundaries=given, **options)


@pytest.mark.parametrize("normalize", ["std", "center", "rloo", "loo_std"])
@pytest.mark.parametrize("size", [1.7e308, 1e200, 1e-200, 4e-323])
def test_rewards_at_the_ends_of_float64(normalize, size):
    plain = np.array([-1.0, 1.0, 1.0, 0.0])
    options = {"samples_per_prompt": 4, "normalize": normalize, "eps": 0.0}
    got = rlk.jit.group_advantages(tensor(size * plain), **options).cpu().numpy()
    want = rlk.jit.group_advantages(tensor(plain), **options).cpu().numpy()
    if normalize in ("center", "rloo"):
        with np.errstate(over="ignore"):
            want = (size * want.astype(float)).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6)
