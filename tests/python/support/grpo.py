# SPDX-License-Identifier: Apache-2.0
"""Problems of ratio_kl and grpo_loss, and their exact answers in float64."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from devices import jit
from logits import Exact, Logits
from problems import numpy_type
from reference import Bounded, as_float64

import rlk
from rlk.check import loss_oracle

LOGP = ("temperature", "softcap", "logit_scale")
GROUPS = ("samples_per_prompt", "group_boundaries", "normalize", "ddof", "eps", "eps_mode")


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
    log_probs = Exact(Logits(policy, ids, None)).logp
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


def two_columns(log_probs) -> np.ndarray:
    """Logits whose first column has these log-probs; those above 0 are of inactive tokens."""
    x = np.asarray(log_probs, np.float64)
    rest = np.log(-np.expm1(np.minimum(x, -1e-3)))
    return np.stack([x, rest], -1).astype(np.float32)


class Exactly:
    """Both ops of one call in float64."""

    def __init__(self, p: Tokens, **options: Any) -> None:
        self.options = options
        o = {name: options[name] for name in LOGP if name in options}
        ids, policy, ref = (_numpy(x) for x in (p.ids, p.policy, p.ref))
        active = np.ones(ids.shape, bool) if p.mask is None else as_float64(p.mask) != 0
        self.active = active & (ids != options.get("ignore_index", -100))
        self.policy = Exact(Logits(policy, ids, None), **o, active=self.active)
        self.old, self.rewards = as_float64(p.old), as_float64(p.rewards)
        if "ref_logps" in options:
            self.ref = as_float64(options["ref_logps"])
        else:
            self.ref = Exact(Logits(ref, ids, None), **o, active=self.active).logp

    def outputs(self) -> tuple[Bounded, Bounded]:
        """ratio, kl: from logits a ratio errs by 3e-5 of it, k3 by 1e-9 + 2e-5 |expm1(e)|."""
        ratio, _, kl, slope = self._tokens()
        one, zero = np.where(self.active, ratio, 1.0), np.where(self.active, kl, 0.0)
        kl_bound = 1e-9 + 3e-5 * np.abs(slope) + 1e-5 * np.abs(kl) + 1e-9 * np.abs(ratio)
        return (
            Bounded(one, np.where(self.active, 3e-5 * ratio, 0.0)),
            Bounded(zero, np.where(self.active, kl_bound, 0.0)),
        )

    def ratio_kl_grad(self, g_ratio: Any, g_kl: Any) -> Bounded:
        _, ratio_slope, _, kl_slope = self._tokens()
        with np.errstate(all="ignore"):
            c = np.where(self.active, g_ratio * ratio_slope + g_kl * kl_slope, 0.0)
            size = np.abs(g_ratio * ratio_slope) + np.abs(g_kl) * (np.abs(kl_slope) + 1)
        return self._with_factor_error(c, 3e-5 * np.where(self.active, size, 0.0))

    def loss(self) -> loss_oracle.LossAnswer:
        o = {k: v for k, v in self.options.items() if k not in (*LOGP, *GROUPS, "ignore_index")}
        o["kl_coef"] = o.pop("beta", 0.04)
        clip = o.pop("clip_eps", 0.2)
        o = {"eps_clip_low": clip, "eps_clip_high": clip, **o}
        o.pop("ref_logps", None)
        if o.get("loss_reduction") == "prompt_mean":
            o["samples_per_prompt"] = self.options["samples_per_prompt"]
        logp = np.where(self.active, self.policy.logp, 0.0)
        return loss_oracle.ppo_loss(
            logp, self.old, self.advantages(), self.active, ref_log_probs=self.ref, **o
        )

    def loss_grad(self, upstream: float = 1.0) -> Bounded:
        answer = self.loss()
        size = np.where(answer.ties, np.inf, 5e-5 * (answer.grad_scale + 1e-3))
        return self._with_factor_error(upstream * answer.grad, np.abs(upstream) * size)

    def advantages(self) -> np.ndarray:
        """Of a group's rewards in float64, rounded to float32 as the op rounds them."""
        rewards, o = np.asarray(self.rewards, np.float64), self.options
        size = o.get("samples_per_prompt")
        starts = o.get("group_boundaries", np.arange(0, len(rewards) + 1, size or 1))
        groups = np.split(rewards, as_float64(starts).astype(int)[1:-1])
        return as_float64(np.concatenate([self._advantages_of(g) for g in groups]).astype("f4"))

    def _advantages_of(self, rewards: np.ndarray) -> np.ndarray:
        o = self.options
        away = rewards - rewards.mean()
        if not np.ptp(rewards):
            return np.zeros_like(rewards)
        if o.get("normalize") == "center":
            return away
        if o.get("normalize") == "rloo":
            return away * len(rewards) / (len(rewards) - 1)
        std, eps = rewards.std(ddof=o.get("ddof", 1)), o.get("eps", 1e-6)
        return away / (max(std, eps) if o.get("eps_mode") == "max" else std + eps)

    def _tokens(self) -> tuple[np.ndarray, ...]:
        """ratio, its slope, kl, its slope."""
        o = self.options
        most, bound = o.get("log_ratio_clamp", 20.0), o.get("kl_clamp", 20.0)
        with np.errstate(all="ignore"):
            logp = self.policy.logp
            delta, e = (np.where(self.active, x, 0) for x in (logp - self.old, self.ref - logp))
            ratio = np.exp(np.clip(delta, -most, most))
            ratio_slope = np.where(np.abs(delta) > most, 0.0, ratio)
            clipped, beyond = np.clip(e, -bound, bound), np.abs(e) > bound
            value, slope = {
                "k1": (-e, np.ones_like(e)),
                "abs": (np.abs(e), -np.sign(e)),
                "k2": (e * e / 2, -e),
                "k3": (np.expm1(clipped) - clipped, np.where(beyond, 0.0, -np.expm1(clipped))),
            }[o.get("kl", "k3")]
            if o.get("kl_gradient", "pathwise") != "pathwise":
                cut = (
                    beyond
                    & (o["kl_gradient"] == "unbiased_clamped")
                    & (o.get("kl") in (None, "k3"))
                )
                slope = np.where(cut, 0.0, -e)
        return ratio, ratio_slope, value, slope

    def _with_factor_error(self, factor: np.ndarray, off: np.ndarray) -> Bounded:
        found = self.policy.gradient(factor)
        unit = np.abs(self.policy.gradient(np.where(self.active, 1.0, 0.0)).value)
        return Bounded(found.value, found.bound + np.where(unit > 0, off[..., None], 0.0) * unit)


def _numpy(x: Any) -> np.ndarray:
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
