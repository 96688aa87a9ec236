# SPDX-License-Identifier: Apache-2.0
"""ppo_loss where tokens are inactive, wild or not finite; each public bug is named by its place."""

import numpy as np
import pytest
from losses import ALL_ON, FLOAT, OPTION_SETS, Batch, batch, check, mapped, same, same_metrics

pytestmark = pytest.mark.usefixtures("device", "generic")

POLICIES = ("ppo", "gspo", "cispo", "sapo", "gpg")
WILD = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 200.0, -200.0], FLOAT)


def one(log_ratio: float = 0.0, advantage: float = 1.0, **others: float) -> Batch:
    """A token of each sort that the arguments describe, beside a plain one."""
    lp = np.array([[-1.0, -1.0]], FLOAT)
    old = np.array([[-1.0 - log_ratio, -1.0]], FLOAT)
    tensors = {name: np.array([[value, -1.0]], FLOAT) for name, value in others.items()}
    return Batch(lp, old, np.array([[advantage, 0.0]], FLOAT), None, tensors)


def with_garbage(b: Batch, seed: int = 0) -> Batch:
    """Anything in the inactive tokens of every tensor."""
    rng = np.random.default_rng(seed)

    def wild(x: np.ndarray, _: float) -> np.ndarray:
        return np.where(b.mask, x, rng.choice(WILD, x.shape)).astype(FLOAT)

    return mapped(b, wild).but(mask=b.mask)


LEVELS = [
    {**ALL_ON, "policy_loss": policy, "use_dual_clip": policy == "ppo", "tis_level": level}
    for policy in POLICIES
    for level in ("token", "sequence", "geometric")
]


@pytest.mark.parametrize("options", [*LEVELS, *OPTION_SETS])
def test_inactive_tokens_may_hold_anything(options):
    """SkyRL 1633, OpenRLHF 1240, AReaL 1412, NeMo 4120, prime-rl 1329."""
    b = batch()
    plain, grads = b.loss(**options), b.grads(**options)
    for seed in range(3):
        wild = with_garbage(b, seed)
        got = wild.loss(**options)
        assert same(got.loss, plain.loss)
        assert same_metrics(got.metrics, plain.metrics)
        for a, c in zip(wild.grads(**options), grads, strict=True):
            assert a is c is None or same(a, c)


def test_any_byte_but_zero_is_true():
    b = batch()
    odd = np.where(b.mask, 104, 0).astype(np.uint8).view(bool)
    want = b.loss()
    for mask in (odd, np.repeat(odd, 2, axis=1)[:, ::2]):
        assert same(b.but(mask=mask).loss().loss, want.loss)


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean_valid", "token_sum"])
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (2, 0)])
def test_no_active_token(reduction, shape):
    """TRL 3248, unsloth-zoo 1262: loss 0, gradients exactly 0, finite metrics."""
    nan = np.full(shape, np.nan, FLOAT)
    others = dict.fromkeys(("rollout_logprobs", "ref_log_probs", "entropy"), nan)
    b = Batch(nan, nan, nan, np.zeros(shape, bool), others)
    got, grads = b.loss(loss_reduction=reduction, **ALL_ON), b.grads(**ALL_ON)
    assert same(got.loss, FLOAT(0))
    assert all(np.isfinite(m).all() for m in got.metrics)
    assert got.metrics.num_active == 0
    assert same(grads.log_probs, np.zeros(shape, FLOAT))
    assert same(grads.entropy, np.zeros(shape, FLOAT))


@pytest.mark.parametrize("place", ["log_probs", "old", "advantages", "rollout_logprobs", "entropy"])
def test_nan_in_an_active_token_shows_and_is_counted(place):
    """TRL 6297, 5413."""
    b = batch()
    at = tuple(np.argwhere(b.mask)[3])
    values = (b.others.get(place) if place in b.others else getattr(b, place)).copy()
    values[at] = np.nan
    b = b.with_others(**{place: values}) if place in b.others else b.but(**{place: values})
    got = b.loss(**ALL_ON)
    assert np.isnan(got.loss)
    assert got.metrics.num_nonfinite == 1
    assert np.isnan(got.metrics.abs_loss_sum)
    grads = b.grads(**ALL_ON).log_probs
    assert np.isnan(grads[at]) == (place != "entropy")
    assert np.isnan(grads).sum() == (place != "entropy")
    off = b.loss()
    assert np.isnan(off.loss) == (place in ("log_probs", "old", "advantages"))


def test_sequences_without_tokens_are_left_out():
    """verl 3915, open-instruct 1625."""
    b = batch(rows=5)
    assert not b.mask[2].any()
    kept = [0, 1, 3, 4]
    less = Batch(b.log_probs[kept], b.old[kept], b.advantages[kept], b.mask[kept])
    for reduction in ("sequence_mean_valid", "token_mean", "seq_mean_token_sum"):
        assert same(b.loss(loss_reduction=reduction).loss, less.loss(loss_reduction=reduction).loss)


@pytest.mark.parametrize("log_ratio", [21.0, 90.0, 1e3, -21.0, -1e3])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_log_ratios(log_ratio, advantage):
    """prime-rl 2085, RL-Kernel ratio_kl: clamped, counted, no gradient, never 0 * inf."""
    b = one(log_ratio, advantage)
    got, grads = b.loss(), b.grads()
    check(b)
    assert got.metrics.num_log_ratio_clamped == 1
    assert same(grads.log_probs, np.zeros((1, 2), FLOAT))
    free = b.grads(log_ratio_clamp=np.inf)
    if advantage > 0 or log_ratio < 0:  # clipped, or an underflow
        assert same(free.log_probs[0, 1], FLOAT(0))
        assert np.isfinite(free.log_probs).all()


def test_the_log_ratio_of_a_selected_token_at_minus_infinity():
    b = one().but(log_probs=np.array([[-np.inf, -1.0]], FLOAT))
    got, grads = b.loss(), b.grads()
    assert np.isfinite(got.loss)
    assert same(grads.log_probs[0, 0], FLOAT(0))
    assert (got.metrics.num_nonfinite, got.metrics.num_log_ratio_clamped) == (1, 1)


def test_a_rejected_token_has_weight_zero_whatever_its_ratio():
    """OpenRLHF 1314: inf * 0."""
    for clamp in (20.0, np.inf):
        b = one(rollout_logprobs=-201.0)
        options = {"use_tis": True, "tis_mode": "mask", "tis_log_clamp": clamp}
        got = b.loss(**options)
        assert got.loss == 0
        assert got.metrics.num_tis_rejected == 1
        assert same(b.grads(**options).log_probs[0, 0], FLOAT(0))


def test_an_overflowing_weight_is_capped_or_zero():
    """Cap in most systems, 0 in NeMo."""
    b = one(rollout_logprobs=-101.0)
    assert float(b.loss(use_tis=True).loss) == pytest.approx(-5.0)
    assert float(b.loss(use_tis=True, dialect="nemo").loss) == 0.0
    assert float(b.loss(use_tis=True, dialect="verl").loss) == pytest.approx(-1.0)


def test_a_long_sequence_of_small_mismatches():
    """TRL 4772: exp(8192 * 0.05)."""
    shape = (1, 8192)
    zero = np.zeros(shape, FLOAT)
    b = Batch(zero, zero, zero + 1, None, {"rollout_logprobs": zero - FLOAT(0.05)})
    got = b.loss(use_tis=True, tis_level="sequence", tis_imp_ratio_cap=3.0)
    assert float(got.loss) == pytest.approx(-3.0)
    assert got.metrics.num_tis_high == 8192


@pytest.mark.parametrize("e", [200.0, -200.0, 21.0])
def test_extreme_kl(e):
    """TRL 3015, 6550, 6637, NeMo 2958."""
    b = one(advantage=0.0, ref_log_probs=-1.0 + e)
    check(b, kl_coef=0.5)
    assert b.grads(kl_coef=0.5).log_probs[0, 0] == 0
    assert b.grads(kl_coef=0.5, dialect="nemo").log_probs[0, 0] == 0
    unbiased = b.grads(kl_coef=0.5, kl_gradient="unbiased").log_probs[0, 0]
    assert unbiased == pytest.approx(0.25 * -e)


def test_the_kl_term_pulls_towards_the_reference():
    """Logic-RL 58, OpenRLHF 773."""
    b = one(advantage=0.0, ref_log_probs=-1.5)
    for estimator in ("abs", "k2", "k3"):
        options = {"kl_coef": 0.1, "kl_estimator": estimator}
        assert b.grads(**options).log_probs[0, 0] > 0  # log p above ref: descent lowers it
        assert b.loss(**options).metrics.kl_sum > 0


def test_products_are_summed_and_not_sums_multiplied():
    """prime-rl 1391."""
    b = batch(spread=1.0)
    check(b, kl_coef=1.0, kl_weight="ratio", kl_estimator="k2")


def test_dual_clip_bounds_the_loss_of_bad_tokens_alone():
    """verl 783, tianshou 433."""
    bad = one(5.0, -1.0)
    assert float(bad.loss(use_dual_clip=True, loss_reduction="token_sum").loss) == 3.0
    assert float(bad.loss(loss_reduction="token_sum").loss) > 100
    good = one(-5.0, 1.0)
    assert same(good.loss(use_dual_clip=True).loss, good.loss().loss)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "high", "low"),
    [(1, 1, 1, 0), (1, -1, 0, 0), (-1, 1, 0, 0), (-1, -1, 0, 1)],
)
def test_two_of_four_quadrants_are_clipped(log_ratio, advantage, high, low):
    """TRL 3032, 3144, 3175; pytorch/rl 2021, RL-Kernel's sign-agnostic one: both definitions are
    returned."""
    m = one(log_ratio, advantage).loss().metrics
    assert (m.num_clip_high, m.num_clip_low, m.num_outside) == (high, low, 1)
    assert m.clip_ratio == FLOAT((high + low) / 2)


def test_no_advantage_no_gradient():
    b = one(30.0, 0.0)
    for policy in POLICIES:
        for clamp in (20.0, np.inf):
            options = {"policy_loss": policy, "log_ratio_clamp": clamp}
            assert b.loss(**options).loss == 0
            assert same(np.abs(b.grads(**options).log_probs), np.zeros((1, 2), FLOAT))


def test_ties_count_as_not_clipped():
    """The full gradient at r = 1 exactly, with eps 0."""
    b = one(0.0, 1.0)
    m = b.loss(eps_clip_low=0.0, eps_clip_high=0.0).metrics
    assert m.num_clip_high == 0
    assert b.grads(eps_clip_low=0.0, eps_clip_high=0.0).log_probs[0, 0] == FLOAT(-0.5)


def test_rejection_changes_no_denominator():
    """AReaL 1088, slime 657."""
    b = batch()
    options = {"use_tis": True, "tis_mode": "mask", "tis_imp_ratio_cap": 1.0}
    kept = b.grads(**options).log_probs
    plain = b.grads(use_tis=True, tis_imp_ratio_cap=1e6).log_probs
    where = kept != 0
    assert where.any()
    np.testing.assert_array_equal(kept[where], plain[where])


def test_the_sampler_ties_the_ratio_to_the_old_policy():
    """SkyRL 1859: with old recomputed every ratio is 1 and no clip acts; the metrics tell."""
    b = batch().but(old=batch().log_probs)
    m = b.loss(policy_loss="cispo").metrics
    assert (m.ratio_max, m.ratio_min, m.num_outside) == (1, 1, 0)
