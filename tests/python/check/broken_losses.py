# SPDX-License-Identifier: Apache-2.0
"""Correct fp32 losses in NumPy, and the same with one defect planted in each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlk.check.loss_oracle import DEFAULTS

Array = Any
F = np.float32


class Loss:
    """ppo_loss as the checker's candidate: (loss, clip_ratio), with `backward`. Takes ppo's own
    options and a k3 term; defects override one step each."""

    framework = "numpy"
    adapter = "by_name"

    def __call__(self, *tensors: Array, **options: Any) -> tuple[Array, Array]:
        terms, _, clipped, count = self.tokens(*named(tensors, options))
        return F(self.total(terms)), F(clipped / max(count, 1))

    def backward(
        self, grad_output: Array, *tensors: Array, needs: tuple[str, ...], **options: Any
    ) -> tuple[Array, ...]:
        lp, *others = named(tensors, options)
        _, slopes, _, _ = self.tokens(lp, *others)
        return ((F(grad_output) * slopes).astype(lp.dtype),)

    def total(self, terms: Array) -> float:
        return math.fsum(terms.reshape(-1).tolist()) if np.isfinite(terms).all() else np.sum(terms)

    def tokens(
        self, lp: Array, old: Array, a: Array, mask: Array, o: dict[str, Any]
    ) -> tuple[Array, Array, int, int]:
        """Terms, slopes, clipped tokens and active ones."""
        with np.errstate(all="ignore"):
            active = np.ones(lp.shape, bool) if mask is None else np.asarray(mask) != 0
            lp32, old32, a32 = (np.asarray(x, F) for x in (lp, old, a))
            d = self.masked(lp32 - old32, active)
            a32 = self.masked(a32, active)
            r = self.ratio(d, o["log_ratio_clamp"])
            moves = np.abs(d) <= o["log_ratio_clamp"]
            low, high = F(1 - o["eps_clip_low"]), F(1 + o["eps_clip_high"])
            plain, bounded = -a32 * r, -a32 * np.clip(r, low, high)
            value = np.maximum(plain, bounded)
            slope = self.slope(plain, bounded, moves)
            if o["use_dual_clip"]:
                most = -a32 * F(o["clip_ratio_c"])
                dual = self.is_bad(a32) & (value > most)
                value = np.where(dual, most, value)
                slope = np.where(dual, F(0), slope)
            value, slope = (np.where(a32 == 0, F(0), x) for x in (value, slope))
            slope = np.where(np.isnan(value), value, slope)
            count = int(active.sum())
            w = self.weight(active, o)
            terms, slopes = w * value, w * slope
            if o["kl_coef"] != 0:
                e = self.masked(np.asarray(o["ref_log_probs"], F) - lp32, active)
                inside, e = np.abs(e) <= 20, np.clip(e, F(-20), F(20))
                terms = terms + w * F(o["kl_coef"]) * self.k3(e)
                kl_slope = np.where(inside, -np.expm1(e), F(0))
                slopes = slopes + w * F(o["kl_coef"]) * kl_slope
            clipped = int((active & self.is_clipped(a32, r, low, high)).sum())
        return self.kept(terms, active), self.kept(slopes, active), clipped, count

    def masked(self, x: Array, active: Array) -> Array:
        return np.where(active, x, F(0))

    def kept(self, x: Array, active: Array) -> Array:
        return np.where(active, x, F(0)).astype(F)

    def ratio(self, d: Array, clamp: float) -> Array:
        # In fp64: NumPy's fp32 exp is as good as ours, but not on every machine.
        return np.exp(np.clip(d.astype(float), -clamp, clamp)).astype(F)

    def slope(self, plain: Array, bounded: Array, moves: Array) -> Array:
        return np.where((plain >= bounded) & moves, plain, F(0))

    def is_bad(self, a: Array) -> Array:
        return a < 0

    def is_clipped(self, a: Array, r: Array, low: Array, high: Array) -> Array:
        return ((a > 0) & (r > high)) | ((a < 0) & (r < low))

    def k3(self, e: Array) -> Array:
        wide = e.astype(float)
        return (np.expm1(wide) - wide).astype(F)

    def weight(self, active: Array, o: dict[str, Any]) -> Array:
        if o.get("loss_weights") is not None:
            return np.where(active, np.asarray(o["loss_weights"], F), F(0))
        return F(1.0 / max(o["global_tokens"] or int(active.sum()), 1))


def named(tensors: tuple[Array, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """The four operands and the options with their defaults."""
    names = ("log_probs", "old_log_probs", "advantages", "loss_mask")
    given = {**dict(zip(names, tensors, strict=False)), **options}
    lead = [given.pop(name, None) for name in names]
    return (*lead, {**DEFAULTS, **given})


class NaiveK3(Loss):
    def k3(self, e):
        return np.exp(e) - e - F(1)


class MaskAfterExp(Loss):
    """Multiplies by the mask: NaN * 0."""

    def masked(self, x, active):
        return x

    def kept(self, x, active):
        return (x * active).astype(F)


class WhereAfterExpInBackward(Loss):
    """0 * inf where autograd goes through a where behind the exp."""

    def ratio(self, d, clamp):
        return np.exp(d)

    def slope(self, plain, bounded, moves):
        return plain * (plain >= bounded)


class DualClipOnGoodTokens(Loss):
    def is_bad(self, a):
        return a != 0


class ClipMetricOfTheWrongSign(Loss):
    def is_clipped(self, a, r, low, high):
        return ((a < 0) & (r > high)) | ((a > 0) & (r < low))


class LocalDenominators(Loss):
    def weight(self, active, o):
        return super().weight(active, {**o, "global_tokens": None})


class SumInOrder(Loss):
    """fp32 in the order of memory: other bits with other neighbours."""

    def total(self, terms):
        return terms.reshape(-1).cumsum(dtype=F)[-1] if terms.size else F(0)


OPTIONS = {"normalize": "std", "ddof": 1, "eps": 1e-6, "eps_mode": "add", "group_of_one": "zero"}


def advantages(rewards: Array, samples_per_prompt: int, **options: Any) -> Array:
    """group_advantages, right."""
    o = {**OPTIONS, **options}
    if samples_per_prompt == 1 and o["group_of_one"] == "reward":
        return np.asarray(rewards, F)
    return _advantages(rewards, samples_per_prompt, o, np.float64)


def one_pass_variance(rewards: Array, samples_per_prompt: int, **options: Any) -> Array:
    """E[x^2] - E[x]^2 in fp32."""
    return _advantages(rewards, samples_per_prompt, {**OPTIONS, **options}, F)


def noise_of_equal_rewards(rewards: Array, samples_per_prompt: int, **options: Any) -> Array:
    """The mean's rounding over eps."""
    x = np.asarray(rewards, F).reshape(-1, samples_per_prompt)
    away = x - np.float32(x.sum(-1, keepdims=True) / F(samples_per_prompt)) * F(1 + 2**-23)
    return (away / F({**OPTIONS, **options}["eps"])).reshape(rewards.shape).astype(F)


def _advantages(rewards, size, o, kind):
    x = np.asarray(rewards, kind).reshape(-1, size)
    mean = x.mean(-1, keepdims=True, dtype=kind)
    if kind is F:
        squares = (x * x).mean(-1, keepdims=True, dtype=F) - mean * mean
        squares = np.maximum(squares, 0) * size
    else:
        squares = ((x - mean) ** 2).sum(-1, keepdims=True)
    std = np.sqrt(squares / max(size - o["ddof"], 1))
    if o["normalize"] == "loo_std":
        return _without_each(x, o).reshape(rewards.shape).astype(F)
    below = {
        "std": _denominator(std, o),
        "center": np.ones_like(std),
        "rloo": np.full_like(std, max(size - 1, 1) / size),
    }[o["normalize"]]
    equal = (x == x[:, :1]).all(-1, keepdims=True)
    return np.where(equal, 0, (x - mean) / below).reshape(rewards.shape).astype(F)


def _denominator(std, o):
    return std + o["eps"] if o["eps_mode"] == "add" else np.maximum(std, o["eps"])


def _without_each(x, o):
    found = np.zeros_like(x)
    for j in range(x.shape[1]):
        others = np.delete(x, j, 1)
        away = x[:, j] - others.mean(1) if others.size else 0 * x[:, j]
        ties = (others == others[:, :1]).all(1)
        ddof = min(o["ddof"], max(others.shape[1] - 1, 0))
        own = _denominator(others.std(1, ddof=ddof) if others.size else away, o)
        found[:, j] = np.where((x == x[:, :1]).all(1), 0, away / np.where(ties, 1, own))
    return found


for _function in (advantages, one_pass_variance, noise_of_equal_rewards):
    _function.framework = "numpy"  # type: ignore[attr-defined]

# Defect -> failure words, one of which the checker must say.
BROKEN: dict[type[Loss], tuple[str, ...]] = {
    NaiveK3: ("accuracy", "grad_accuracy"),
    MaskAfterExp: ("nonfinite", "grad_nonfinite", "batch_variant"),
    WhereAfterExpInBackward: ("grad_nonfinite", "grad_accuracy", "nonfinite", "accuracy"),
    DualClipOnGoodTokens: ("accuracy",),
    ClipMetricOfTheWrongSign: ("accuracy",),
    LocalDenominators: ("accuracy",),
    SumInOrder: ("batch_variant",),
}
