# SPDX-License-Identifier: Apache-2.0
"""Problems of logp, and its exact answers in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from devices import jit
from problems import numpy_type
from reference import STORE, Bounded, as_float64, dtype_name

UNIT = 2.0**-23


@dataclass(frozen=True)
class Logits:
    """Arguments of logp."""

    logits: Any
    target: Any
    upstream: Any

    def logp(self, **options: Any) -> Any:
        return jit.logp(self.logits, self.target, **options)

    def outputs(self, **options: Any) -> Any:
        return self.logp(**{"return_entropy": True, "return_lse": True, **options})

    def grad(self, **options: Any) -> Any:
        return jit.logp_backward(self.upstream, self.logits, self.target, **options)

    def rows(self, rows: Any) -> Logits:
        """These rows in a call of their own."""
        return Logits(self.logits[rows], self.target[rows], self.upstream[rows])

    def but(self, **changed: Any) -> Logits:
        return replace(self, **changed)


def draw(
    lead: int | tuple[int, ...] = 7,
    vocab: int = 300,
    dtype: str = "float32",
    scale: float = 2.0,
    seed: int = 0,
) -> Logits:
    rng = np.random.default_rng([seed, vocab])
    lead = (lead,) if isinstance(lead, int) else lead
    return Logits(
        np.asarray(rng.standard_normal((*lead, vocab)) * scale).astype(numpy_type(dtype)),
        np.asarray(rng.integers(0, vocab, lead)),
        np.asarray(rng.standard_normal(lead), np.float32),
    )


class Exact:
    """logp of one call: outputs and gradients with how far a kernel may be from them."""

    def __init__(self, p: Logits, *, temperature=1.0, softcap=None, logit_scale=1.0, active=True):
        x = as_float64(p.logits)
        self.dtype, self.lead = dtype_name(p.logits), x.shape[:-1]
        self.active = np.broadcast_to(np.asarray(active), self.lead)
        self.target = np.where(self.active, as_float64(p.target), 0).astype(np.int64)[..., None]
        heat = np.asarray(as_float64(temperature), np.float32).astype(np.float64)
        heat = np.broadcast_to(heat, self.lead)[..., None]
        self.factor = np.where(self.active[..., None], np.float32(logit_scale) / heat, 0.0)
        with np.errstate(all="ignore"):
            x = np.where(self.active[..., None], x, 0.0) * float(np.float32(logit_scale))
            sizes, self.slope = np.abs(x), np.ones_like(x)
            if softcap is not None:
                self.slope = np.cosh(np.clip(x / softcap, -350, 350)) ** -2.0
                x = softcap * np.tanh(x / softcap)
            z = x / heat
            top = z.max(-1, keepdims=True)
            log_sum = np.log(np.exp(z - top).sum(-1, keepdims=True))
            self.z, self.logs = z, (z - top) - log_sum
            self.p = np.exp(self.logs)
            self.entropy = -np.where(self.p == 0, 0, self.p * self.logs).sum(-1)
            plain = softcap is None and logit_scale == 1.0 and np.all(heat == 1.0)
            finite = np.where(np.isfinite(sizes / heat), sizes / heat, 0.0)
            self.off = (0.0 if plain else 6 * UNIT) * finite.max(-1)
            self.lse = (top + log_sum)[..., 0]
        self.logp = np.take_along_axis(self.logs, self.target, -1)[..., 0]

    def _bounded(self, value, rounding):
        size = np.where(np.isfinite(value), np.abs(value), 0)
        bound = 1e-5 + 5e-7 * size + rounding
        return Bounded(np.where(self.active, value, 0.0), np.where(self.active, bound, 0.0))

    def outputs(self) -> dict[str, Bounded]:
        with np.errstate(invalid="ignore"):
            away = np.abs(self.p * (self.logs + self.entropy[..., None]))
            away = np.where(self.p == 0, 0, away)
        return {
            "log_prob": self._bounded(self.logp, self.off),
            "entropy": self._bounded(self.entropy, self.off * (1 + away.sum(-1))),
            "lse": self._bounded(self.lse, self.off),
        }

    def gradient(self, g_logp=0.0, g_entropy=0.0, g_lse=0.0) -> Bounded:
        def rows(g):
            g = np.broadcast_to(as_float64(g), self.lead)
            return np.where(self.active, g, 0.0)[..., None] * self.factor

        g_logp, g_entropy, g_lse = rows(g_logp), rows(g_entropy), rows(g_lse)
        with np.errstate(all="ignore"):
            away = np.where(self.p == 0, 0.0, self.logs + self.entropy[..., None])
            dz = self.p * (g_lse - g_logp - g_entropy * away)
            hit = np.arange(dz.shape[-1]) == self.target
            dz = dz + np.where(hit & (self.z != -np.inf), g_logp, 0.0)
            parts = np.abs(g_logp) + np.abs(g_lse) + np.abs(g_entropy) * (np.abs(away) + 2)
            off = parts * (2e-6 + self.p * self.off[..., None])
            value = np.where(self.active[..., None], dz * self.slope, 0.0)
            bound = off + (2e-5 + STORE[self.dtype]) * np.abs(value)
            bound = bound + (2.0**-24 if self.dtype == "float16" else 0)
        return Bounded(value, np.where(self.active[..., None], bound, 0.0))
