# SPDX-License-Identifier: Apache-2.0
"""Problems of ratio_kl and grpo_loss."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from devices import jit
from problems import numpy_type
from reference import Exact, as_float64

import rlk

PAIRS = {"samples_per_prompt": 2}


@dataclass(frozen=True)
class Tokens:
    """Arguments of both ops: NumPy arrays or torch tensors."""

    policy: Any
    ref: Any
    ids: Any
    mask: Any
    old: Any
    rewards: Any

    def ratio_kl(self, **options: Any) -> rlk.jit.RatioKl:
        return jit.ratio_kl(*self._with_ref(options), self.ids, self.mask, self.old, **options)

    def ratio_kl_grad(self, g_ratio: Any, g_kl: Any, **options: Any) -> Any:
        logits = self._with_ref(options)
        return jit.ratio_kl_backward(
            g_ratio, *logits, self.ids, self.mask, self.old, grad_kl=g_kl, **options
        )

    def loss(self, **options: Any) -> rlk.jit.GrpoLoss:
        return jit.grpo_loss(*self._grpo(options), **options)

    def grad(self, upstream: float = 1.0, **options: Any) -> Any:
        return jit.grpo_loss_backward(
            np.asarray(upstream, np.float32), *self._grpo(options), **options
        )

    def _with_ref(self, options: dict[str, Any]) -> tuple[Any, Any]:
        return self.policy, None if "ref_logps" in options else self.ref

    def _grpo(self, options: dict[str, Any]) -> tuple[Any, ...]:
        return (*self._with_ref(options), self.ids, self.old, self.rewards, self.mask)

    def but(self, **changes: Any) -> Tokens:
        return replace(self, **changes)

    def map(self, change: Any) -> Tokens:
        """Every argument through `change`, None left as it is."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return Tokens(**{k: None if v is None else change(v) for k, v in found.items()})


def draw(
    rows: int = 6, length: int = 9, vocab: int = 210, dtype: str = "float32", seed: int = 0
) -> Tokens:
    """Ragged; some tokens far beyond the clamps; a sequence without active tokens."""
    rng = np.random.default_rng([seed, vocab])
    lead = (rows, length)
    policy = (2 * rng.standard_normal((*lead, vocab))).astype(numpy_type(dtype))
    ref = (as_float64(policy) + 0.3 * rng.standard_normal((*lead, vocab))).astype(policy.dtype)
    ids = rng.integers(0, vocab, lead)
    ids[:, 0] = min(3, vocab - 1)  # which tests ignore
    log_probs = Exact(SimpleNamespace(logits=policy, target=ids)).logp
    far = np.where(rng.random(lead) < 0.1, 25.0 * rng.choice([-1, 1], lead), 0.0)
    lengths = rng.integers(1, length + 1, rows)
    lengths[rows // 2] = 0
    mask = (np.arange(length) < lengths[:, None]) & (rng.random(lead) < 0.9)
    return Tokens(
        policy,
        ref,
        ids,
        mask,
        (log_probs + rng.normal(0, 0.3, lead) + far).astype(np.float32),
        rng.standard_normal(rows).astype(np.float32),
    )


def filled(x: np.ndarray, off: np.ndarray) -> np.ndarray:
    """x with anything where `off`."""
    x = x.copy()
    with np.errstate(all="ignore"):
        wild = np.resize([np.nan, np.inf, -np.inf, 1e30, -1e4], x[off].shape)
        x[off] = wild.astype(x.dtype)
    return x


def with_garbage(p: Tokens) -> Tokens:
    """Anything in the inactive tokens of every argument."""
    off = ~p.mask
    ids = p.ids.copy()
    ids[off] = np.resize([-100, 210, 2**62, -1, 2**40], off.sum())
    wild = {name: filled(getattr(p, name), off) for name in ("policy", "ref", "old")}
    return p.but(ids=ids, **wild)


def with_nan(p: Tokens) -> tuple[Tokens, tuple[int, ...], np.ndarray]:
    """NaN in a logit of an active token; its place, and where all the others are."""
    at = tuple(np.argwhere(p.mask)[0])
    policy, others = p.policy.copy(), np.ones_like(p.mask)
    policy[at], others[at] = np.nan, False
    return p.but(policy=policy), at, others


def two_columns(log_probs) -> np.ndarray:
    """Logits whose first column has these log-probs; those above 0 are of inactive tokens."""
    x = np.asarray(log_probs, np.float64)
    rest = np.log(-np.expm1(np.minimum(x, -1e-3)))
    return np.stack([x, rest], -1).astype(np.float32)
