# SPDX-License-Identifier: Apache-2.0
"""Batches for tests of the losses, and the bounds that a right answer keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from devices import get, jit

from rlk.check import loss_oracle

FLOAT = np.float32
LOSS_RTOL, GRAD_RTOL = 4e-6, 1e-5  # of sum |w l|, of the magnitudes that a gradient is made of
TENSORS = ("rollout_logprobs", "ref_log_probs", "entropy")


@dataclass(frozen=True)
class Batch:
    """Arguments of ppo_loss; `others` by name."""

    log_probs: Any
    old: Any
    advantages: Any
    mask: Any = None
    others: dict[str, Any] = field(default_factory=dict)

    def loss(self, **options: Any) -> Any:
        return jit.ppo_loss(
            self.log_probs, self.old, self.advantages, self.mask, **{**self.others, **options}
        )

    def grads(self, upstream: float = 1.0, **options: Any) -> Any:
        return jit.ppo_loss_backward(
            np.asarray(upstream, FLOAT),
            self.log_probs,
            self.old,
            self.advantages,
            self.mask,
            **{**self.others, **options},
        )

    def answer(self, **options: Any) -> loss_oracle.LossAnswer:
        return loss_oracle.ppo_loss(
            self.log_probs, self.old, self.advantages, self.mask, **{**self.others, **options}
        )

    def but(self, **changes: Any) -> Batch:
        return replace(self, **changes)

    def with_others(self, **others: Any) -> Batch:
        return replace(self, others={**self.others, **others})


def batch(rows: int = 6, length: int = 37, seed: int = 0, spread: float = 0.6) -> Batch:
    """Log-ratios of that standard deviation, some far out; ragged, with an empty row."""
    rng = np.random.default_rng(seed)
    shape = (rows, length)
    log_probs = -rng.exponential(1.5, shape)
    far = np.where(rng.random(shape) < 0.03, 25.0 * rng.normal(size=shape), 0.0)
    drift = {
        name: log_probs + rng.normal(0, spread, shape) + far
        for name in ("old", "rollout_logprobs", "ref_log_probs")
    }
    lengths = rng.integers(1, length + 1, rows)
    lengths[rows // 2] = 0
    mask = np.arange(length) < lengths[:, None]
    mask &= rng.random(shape) < 0.9
    return Batch(
        log_probs.astype(FLOAT),
        drift["old"].astype(FLOAT),
        rng.normal(size=shape).astype(FLOAT),
        mask,
        {
            "rollout_logprobs": drift["rollout_logprobs"].astype(FLOAT),
            "ref_log_probs": drift["ref_log_probs"].astype(FLOAT),
            "entropy": rng.exponential(1.0, shape).astype(FLOAT),
        },
    )


def check(b: Batch, upstream: float = 1.0, **options: Any) -> None:
    """Loss, gradients, counts and sums against float64."""
    found = b.loss(**options), b.grads(upstream, **options)
    expect_near(*found, b, upstream, **options)


def expect_near(got: Any, grads: Any, b: Batch, upstream: float = 1.0, **options: Any) -> None:
    """What calls of this batch gave, against float64."""
    want = b.answer(**options)
    assert abs(float(got.loss) - want.loss) <= LOSS_RTOL * want.abs_loss_sum + 1e-20
    error = np.abs(grads.log_probs - upstream * want.grad)
    allowed = GRAD_RTOL * np.abs(upstream) * want.grad_scale + 1e-30
    assert (error <= allowed)[~want.ties].all(), (error / allowed)[~want.ties].max()
    assert not grads.log_probs[~active(b)].any()
    if grads.entropy is not None:
        np.testing.assert_allclose(grads.entropy, upstream * want.grad_entropy, rtol=1e-6)
    slack = int(want.ties.sum())
    for name, count in want.counts.items():
        assert abs(int(getattr(got.metrics, name)) - count) <= slack, name
    for name, total in want.sums.items():
        value = float(getattr(got.metrics, name))
        assert np.isclose(value, total, rtol=2e-5, atol=1e-4 * want.abs_loss_sum + 1e-6), name


def active(b: Batch) -> np.ndarray:
    return np.ones(b.log_probs.shape, bool) if b.mask is None else np.asarray(b.mask) != 0


def same(a: Any, b: Any) -> bool:
    """The same bits; any NaN equals any NaN."""
    a, b = (np.asarray(get(x)) for x in (a, b))
    signs = (np.signbit(np.nan_to_num(x, nan=1.0)) for x in (a, b))
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(*signs)


def same_metrics(a: Any, b: Any) -> bool:
    return all(same(x, y) for x, y in zip(a, b, strict=True))


def mapped(b: Batch, change: Any) -> Batch:
    """Every tensor of one value per token changed alike; `change` also gets what fills a gap."""
    others = {name: change(x, np.nan) for name, x in b.others.items()}
    arrays = (change(x, np.nan) for x in (b.log_probs, b.old, b.advantages))
    return Batch(*arrays, change(b.mask, False), others)


ALL_ON = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}
OPTION_SETS = [
    {},
    ALL_ON,
    {"policy_loss": "gspo", "use_tis": True, "tis_level": "sequence"},
    {"policy_loss": "sapo", "kl_coef": 0.1, "kl_reduction": "sequence_mean"},
    {"loss_reduction": "sequence_mean_valid", "use_tis": True, "tis_level": "geometric"},
    {"policy_loss": "cispo", "loss_reduction": "sequence_mean_valid"},
    {"delta": 1.1, "eps_clip_high": 0.28},
    {"policy_loss": "gpg", "use_tis": True, "tis_level": "geometric", "tis_mode": "band"},
    {"use_tis": True, "tis_mode": "mask", "tis_imp_ratio_cap": 1.5, "kl_coef": 1.0},
    {"kl_coef": 0.3, "kl_gradient": "unbiased", "kl_weight": "ratio", "kl_output_clamp": 5.0},
]
