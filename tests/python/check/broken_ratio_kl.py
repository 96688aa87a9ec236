# SPDX-License-Identifier: Apache-2.0
"""ratio_kl right in NumPy, and the same with one defect planted in each."""

from __future__ import annotations

from typing import Any

import numpy as np
from broken import added_in_one_chain

Array = Any
F = np.float32


class RatioKl:
    """As the checker's candidate: (ratio, kl), with `backward`. k3, pathwise; defects override one
    step each."""

    framework = "numpy"
    adapter = "by_name"

    def __call__(self, policy_logits: Array, ref_logits: Array, *rest: Array, **o: Any) -> Any:
        _, active, delta, e = self.tokens(policy_logits, ref_logits, rest, o)
        with np.errstate(all="ignore"):
            ratio, kl = self.ratio(delta), self.k3(np.clip(e, -20, 20))
            return self.kept(ratio, active, 1.0), self.kept(kl, active, 0.0)

    def backward(
        self, grad_ratio: Array, policy_logits: Array, ref_logits: Array, *rest: Array, **o: Any
    ) -> tuple[Array]:
        grad_kl, _ = o.pop("grad_kl"), o.pop("needs")
        p, active, delta, e = self.tokens(policy_logits, ref_logits, rest, o)
        ids = self.named(rest, o)["action_ids"]
        with np.errstate(all="ignore"):
            c = self.slope(np.float64(grad_ratio), delta)
            c = c + np.where(np.abs(e) <= 20, -grad_kl * np.expm1(e), 0.0)
            c = self.kept(c, active, 0.0)[..., None]
            hit = np.arange(p.shape[-1]) == np.asarray(ids)[..., None]
            grad = np.where(active[..., None], c * (hit - p) * self.scale(o), 0.0)
        return (grad.astype(policy_logits.dtype),)

    def named(self, rest: tuple[Array, ...], o: dict[str, Any]) -> dict[str, Any]:
        names = ("action_ids", "attention_mask", "old_logps")
        return {"attention_mask": None, **o, **dict(zip(names, rest, strict=False))}

    def tokens(
        self, policy: Array, ref: Array, rest: tuple[Array, ...], o: dict[str, Any]
    ) -> tuple[Array, Array, Array, Array]:
        """Probabilities, active tokens, log-ratios and distances to the reference."""
        given = self.named(rest, o)
        ids, mask = np.asarray(given["action_ids"]), given["attention_mask"]
        active = np.ones(ids.shape, bool) if mask is None else np.asarray(mask) != 0
        ignored = o.get("ignore_index", -100)
        active &= True if ignored is None else ids != ignored
        if (ids[active] < 0).any():
            raise IndexError("ids below 0 would count from the end")
        found = []
        with np.errstate(all="ignore"):
            for logits in (policy, ref):
                x = np.where(active[..., None], np.asarray(logits, np.float64), 0.0)
                x = x * RatioKl.scale(self, o)
                away = x - x.max(-1, keepdims=True)
                found.append(away - np.log(self.total(np.exp(away))[..., None]))
            at = np.where(active, ids, 0).astype(np.int64)[..., None]
            log_prob, reference = (np.take_along_axis(x, at, -1)[..., 0] for x in found)
            delta = log_prob - np.asarray(given["old_logps"], np.float64)
            delta, e = self.masked(delta, active), self.masked(reference - log_prob, active)
        return np.exp(found[0]), active, delta, e

    def total(self, terms: Array) -> Array:
        return terms.sum(-1)

    def masked(self, x: Array, active: Array) -> Array:
        return np.where(active, x, 0.0)

    def kept(self, x: Array, active: Array, neutral: float) -> Array:
        return np.where(active, x, neutral).astype(F)

    def ratio(self, delta: Array) -> Array:
        return np.exp(np.clip(delta, -20, 20))

    def slope(self, upstream: Array, delta: Array) -> Array:
        return np.where(np.abs(delta) <= 20, upstream * self.ratio(delta), 0.0)

    def k3(self, e: Array) -> Array:
        return np.expm1(e) - e

    def scale(self, o: dict[str, Any]) -> Array:
        return 1.0 / np.asarray(o.get("temperature", 1.0), F).astype(float)[..., None]


class MaskAfterExp(RatioKl):
    """Multiplies by the mask: NaN * 0."""

    def masked(self, x, active):
        return x

    def kept(self, x, active, neutral):
        return (x * active + neutral * ~active).astype(F)


class LeavesInOneChain(RatioKl):
    def total(self, terms):
        return added_in_one_chain(terms.astype(F))


class NaiveK3(RatioKl):
    def k3(self, e):
        return np.exp(F(1) * e.astype(F)) - F(1) - e.astype(F)


class WhereAfterExpInBackward(RatioKl):
    """0 * inf where autograd goes through a where behind the exp."""

    def slope(self, upstream, delta):
        return upstream * (np.abs(delta) <= 20) * np.exp(delta.astype(F))


class GradientWithoutTemperature(RatioKl):
    def scale(self, o):
        return 1.0


class RatioOfZeroWhereInactive(RatioKl):
    def kept(self, x, active, neutral):
        return super().kept(x, active, 0.0)


# Defect -> failure words, one of which the checker must say.
BROKEN: dict[type[RatioKl], tuple[str, ...]] = {
    MaskAfterExp: ("inactive", "batch_variant"),
    LeavesInOneChain: ("accuracy",),
    NaiveK3: ("accuracy",),
    WhereAfterExpInBackward: ("grad_nonfinite",),
    GradientWithoutTemperature: ("grad_accuracy",),
    RatioOfZeroWhereInactive: ("inactive",),
}
