# SPDX-License-Identifier: Apache-2.0
"""Ratios and advantages of a sequence, weights that are given, and those of the KL term."""

import numpy as np
import pytest
from losses import FLOAT, active, batch, check, same

pytestmark = pytest.mark.usefixtures("device", "generic")

SEQUENCE = {"ratio_level": "sequence"}
TIS = {"use_tis": True, "tis_imp_ratio_cap": 1.5, "tis_imp_ratio_floor": 0.6}
LEVELS = ("token", "sequence", "sequence_token")


@pytest.mark.parametrize("policy", ["ppo", "cispo", "sapo", "gpg"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weight", ["policy", "token", "rollout", None])
def test_every_loss_at_every_level(policy, level, weight):
    kl = {"kl_coef": 0.3, "kl_weight": "ratio", "kl_ratio": weight} if weight else {}
    b = batch(spread=0.3)
    check(b, policy_loss=policy, ratio_level=level, **kl)
    check(b, policy_loss=policy, ratio_level=level, loss_reduction="sequence_mean", **kl, **TIS)


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
@pytest.mark.parametrize("gradient", ["pathwise", "unbiased", "importance"])
@pytest.mark.parametrize("level", LEVELS)
def test_every_kl_term_of_a_sequences_ratio(estimator, gradient, level):
    options = {"kl_estimator": estimator, "kl_gradient": gradient, "kl_weight": "ratio"}
    check(batch(spread=0.3), kl_coef=0.3, ratio_level=level, kl_output_clamp=0.5, **options)


@pytest.mark.parametrize("options", [{"use_dual_clip": True, "clip_ratio_c": 1.1}, {"delta": 1.05}])
def test_caps_of_a_sequences_ratio(options):
    b = batch(spread=1.0)
    for level in LEVELS:
        check(b, ratio_level=level, **options)
    assert int(b.loss(policy_loss="gspo", **options).metrics.num_dual_clip) > 0


@pytest.mark.parametrize("mode", ["truncate", "mask", "band"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("rejected", ["stay", "leave"])
def test_rejected_tokens_in_the_means(mode, level, rejected):
    means = {"ratio_level": "sequence", "advantage_level": "sequence", "tis_rejected": rejected}
    b = batch()
    check(b, tis_mode=mode, tis_level=level, **means, **TIS)
    check(b, tis_mode=mode, tis_level=level, advantage_level="sequence", **TIS)


def test_advantages_of_a_sequence_are_a_mean_over_active_tokens():
    b = batch()
    on = active(b)
    mean = np.where(on, b.advantages, 0.0).sum(1) / np.maximum(on.sum(1), 1)
    got = b.loss(advantage_level="sequence")
    want = b.but(advantages=mean.astype(FLOAT)).loss()
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    assert same(b.loss(advantage_level="ratio").loss, b.loss().loss)
    ratio = b.loss(advantage_level="ratio", policy_loss="gspo").loss
    assert same(ratio, b.loss(advantage_level="sequence", policy_loss="gspo").loss)
    given = b.but(advantages=b.advantages[:, 0])
    assert same(given.loss(advantage_level="sequence").loss, given.loss().loss)


@pytest.mark.parametrize("shape", [(6, 37), (6, 1), (6,)])
@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_are_given(shape, level):
    weights = np.random.default_rng(2).exponential(1.0, shape).astype(FLOAT)
    weights[weights < 0.3] = 0.0
    b = batch(spread=0.4).but(others={})
    check(b, importance_weights=weights, ratio_level=level, use_dual_clip=True)
    plain = b.loss(use_dual_clip=True, ratio_level=level).metrics
    got = b.loss(importance_weights=weights, ratio_level=level, use_dual_clip=True).metrics
    for name in ("num_clip_high", "num_clip_low", "num_dual_clip", "num_outside"):
        assert same(getattr(got, name), getattr(plain, name)), name


def test_weights_that_are_given_beside_those_of_tokens():
    """Neither hides the other."""
    rng = np.random.default_rng(5)
    rho, w = (rng.exponential(1.0, (6, 37)).astype(FLOAT) for _ in range(2))
    b = batch().but(others={})
    check(b, importance_weights=rho, loss_weights=w)
    both = b.loss(importance_weights=rho, loss_weights=w).loss
    assert not same(both, b.loss(loss_weights=w).loss)


def test_given_weights_are_those_of_use_tis():
    b = batch()
    u = (b.old - b.others["rollout_logprobs"]).astype("f8")
    weights = np.clip(np.exp(np.clip(u, -20, 20)), 0.6, 1.5).astype(FLOAT)
    got, want = b.loss(importance_weights=weights, dialect="verl"), b.loss(**TIS, dialect="verl")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)


def test_a_token_without_weight_has_no_term():
    """Whatever its own loss is: infinite here."""
    b = batch().but(others={})
    weights = np.ones((6, 37), FLOAT)
    weights[0, :5] = 0.0
    log_probs = b.log_probs.copy()
    log_probs[0, :5] += 300.0
    b = b.but(log_probs=log_probs, old=b.old)
    options = {"importance_weights": weights, "log_ratio_clamp": np.inf}
    assert np.isfinite(float(b.loss(**options).loss))
    assert not b.grads(**options).log_probs[0, :5].any()


@pytest.mark.parametrize("options", [SEQUENCE, {**SEQUENCE, "kl_coef": 0.1, "kl_weight": "ratio"}])
def test_bits_of_a_sequence_do_not_follow_its_place(options):
    b = batch(rows=6)
    grads = b.grads(loss_reduction="token_sum", **options).log_probs
    order = np.array([3, 0, 5, 1, 4, 2])
    others = {name: x[order] for name, x in b.others.items()}
    arrays = (b.log_probs[order], b.old[order], b.advantages[order], b.mask[order], others)
    moved = type(b)(*arrays).grads(loss_reduction="token_sum", **options).log_probs
    assert same(moved, grads[order])
    tokens = np.random.default_rng(0).permutation(37)
    others = {name: x[:, tokens] for name, x in b.others.items()}
    arrays = (x[:, tokens] for x in (b.log_probs, b.old, b.advantages, b.mask))
    moved = type(b)(*arrays, others).grads(loss_reduction="token_sum", **options).log_probs
    assert same(moved, grads[:, tokens])


def test_a_nan_stays_in_its_sequence():
    b = batch()
    log_probs = b.log_probs.copy()
    row = int(np.flatnonzero(active(b).sum(1) > 3)[0])
    place = int(np.flatnonzero(active(b)[row])[0])
    log_probs[row, place] = np.nan
    grads = b.but(log_probs=log_probs).grads(**SEQUENCE).log_probs
    assert np.isnan(grads[row][active(b)[row]]).all()
    assert np.isfinite(np.delete(grads, row, 0)).all()
