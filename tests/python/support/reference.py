# SPDX-License-Identifier: Apache-2.0
"""Exact answers of every op in float64 and how far a kernel may be from them; only ppo_loss's are
the checker's (rlk.check.loss_oracle). Small, whole matrices.

The bounds are those of docs/checking.md: B for a log-prob, and what follows from it for gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlk.check import loss_oracle

UNIT = 2.0**-23
STORE = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}  # half an ulp, relative


def as_float64(array: Any) -> np.ndarray:
    """float64 copy of a NumPy array or torch tensor of any device; exact for the storage types."""
    if hasattr(array, "detach"):
        return array.detach().cpu().double().numpy()
    return np.asarray(array).astype(np.float64)


def dtype_name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Bounded:
    """An exact value and the error allowed at each element."""

    value: np.ndarray
    bound: np.ndarray


# --- Log-probs ------------------------------------------------------------------------------------


class Softmax:
    """Of each row's logits: x is scaled already, target and heat have an axis of 1 for V."""

    def __init__(self, x: np.ndarray, target: np.ndarray, heat: np.ndarray, softcap: Any = None):
        self.target, self.bent, self.slope = target, np.zeros_like(x), np.ones_like(x)
        with np.errstate(all="ignore"):
            if softcap is not None:
                cap = float(np.float32(softcap))
                self.bent = np.tanh(x / cap)
                self.slope = np.cosh(np.clip(x / cap, -350, 350)) ** -2.0
                x = cap * self.bent
            self.z = x / heat
            top = self.z.max(-1, keepdims=True)
            log_sum = np.log(np.exp(self.z - top).sum(-1, keepdims=True))
            self.logs = (self.z - top) - log_sum
            self.p = np.exp(self.logs)
            self.entropy = -np.where(self.p == 0, 0, self.p * self.logs).sum(-1)
            self.away = np.where(self.p == 0, 0, self.logs + self.entropy[..., None])
            self.lse = (top + log_sum)[..., 0]
        self.logp = np.take_along_axis(self.logs, target, -1)[..., 0]

    def gradient(self, g_logp: Any, g_entropy: Any, g_lse: Any) -> np.ndarray:
        """Of the logits before the cap; a target at -inf has none in its own column."""
        with np.errstate(all="ignore"):
            dz = self.p * (g_lse - g_logp - g_entropy * self.away)
            hit = np.arange(dz.shape[-1]) == self.target
            return dz + np.where(hit & (self.z != -np.inf), g_logp, 0.0)

    def parts(self, g_logp: Any, g_entropy: Any, g_lse: Any) -> np.ndarray:
        """The magnitudes that a gradient is made of."""
        return np.abs(g_logp) + np.abs(g_lse) + np.abs(g_entropy) * (np.abs(self.away) + 2)


def _heat(temperature: Any, lead: tuple[int, ...]) -> np.ndarray:
    heat = np.asarray(as_float64(temperature), np.float32).astype(np.float64)
    return np.broadcast_to(heat, lead)


class Reference:
    """linear_logp of one call, exactly; arguments as `rlk.jit.linear_logp` takes them."""

    def __init__(
        self,
        hidden,
        weight,
        target,
        bias=None,
        *,
        temperature=1.0,
        softcap=None,
        logit_scale=1.0,
        mask=None,
        ignore_index=-100,
    ):
        self.types = {"hidden": dtype_name(hidden), "weight": dtype_name(weight)}
        h, w = as_float64(hidden), as_float64(weight)
        self.lead = h.shape[:-1]
        t = _numpy(target).astype(np.int64).reshape(-1)
        self.active = np.ones(t.size, bool)
        if mask is not None:
            self.active &= as_float64(mask).reshape(-1) != 0
        if ignore_index is not None:
            self.active &= t != ignore_index
        h, t = h.reshape(-1, h.shape[-1])[self.active], t[self.active]
        b = np.zeros(w.shape[0])
        if bias is not None:
            self.types["bias"] = dtype_name(bias)
            b = as_float64(bias)
        heat = _heat(temperature, self.lead).reshape(-1)[self.active][:, None]
        scale = float(np.float32(logit_scale))
        self.h, self.w, self.factor = h, w, scale / heat
        # What scaling and capping round besides.
        more = 0 if softcap is None and logit_scale == 1.0 else 4
        chain = (h.shape[1] / 8 + 2 + more) * UNIT
        with np.errstate(invalid="ignore", over="ignore"):
            sizes = abs(scale) * (np.abs(h) @ np.abs(w).T + np.abs(b))
            self.rows = rows = Softmax(scale * (h @ w.T + b), t[:, None], heat, softcap)
            error = 2 * np.abs(rows.bent) * chain * sizes / float(np.float32(softcap or 1.0))
            self.slope_error = np.where(np.isfinite(sizes), error, 0)
            sizes = sizes / heat
        finite = np.isfinite(rows.z) & np.isfinite(sizes)
        self.logp, self.entropy, self.lse = rows.logp, rows.entropy, rows.lse
        self.rounding = chain * np.where(finite, sizes, 0).max(axis=1)
        # An error of each logit reaches the entropy by p (log p + H).
        self.entropy_rounding = self.rounding * (rows.p * np.abs(rows.away)).sum(axis=1)

    def forward(self) -> Bounded:
        return self.outputs()["log_prob"]

    def outputs(self) -> dict[str, Bounded]:
        """log_prob, entropy and lse."""
        found = {}
        for name, value, rounding in (
            ("log_prob", self.logp, self.rounding),
            ("entropy", self.entropy, self.entropy_rounding),
            ("lse", self.lse, self.rounding),
        ):
            size = np.where(np.isfinite(value), np.abs(value), 0)
            bound = 2e-5 + 1e-6 * size + rounding
            found[name] = Bounded(self._spread(value), self._spread(bound))
        return found

    def gradients(self, upstream, grad_entropy=None, grad_lse=None) -> dict[str, Bounded]:
        def of_rows(grad):
            if grad is None:
                return np.zeros((self.logp.size, 1))
            return as_float64(grad).reshape(-1)[self.active][:, None] * self.factor

        g, rows = tuple(map(of_rows, (upstream, grad_entropy, grad_lse))), self.rows
        flat = rows.gradient(*g)
        dz = flat * rows.slope
        num_rows, num_vocab = dz.shape
        size = np.abs(dz)
        over_vocab = (num_vocab / 8 + 2) * UNIT * size
        over_rows = (num_rows / 8 + 2) * UNIT * size
        rounded = 1 if self.types["hidden"] == "float32" else 2  # 16 bits: a kept factor, and dZ
        unit = rounded * STORE[self.types["hidden"]]
        floor = 2.0**-38 if self.types["hidden"] == "float16" else 2.0**-126
        finite = np.where(np.isfinite(self.logp), np.abs(self.logp), 0)
        of_p = (2e-5 + 1e-6 * finite + self.rounding)[:, None]
        if grad_entropy is not None:
            of_p = of_p + self.entropy_rounding[:, None]
        rounding = unit * size + rows.parts(*g) * (rows.slope * rows.p * of_p + floor)
        if self.slope_error.any():
            # 1 - tanh^2: of a capped logit's error, and as a difference.
            rounding = rounding + size * self.slope_error + 2.0**-22 * np.abs(flat)
        h, w = np.abs(self.h), np.abs(self.w)
        exact = {"hidden": dz @ self.w, "weight": dz.T @ self.h, "bias": dz.sum(axis=0)}
        error = {
            "hidden": (rounding + over_vocab) @ w,
            "weight": (rounding + over_rows).T @ h,
            "bias": (rounding + over_rows).sum(axis=0),
        }
        found = {}
        for name, dtype in self.types.items():
            tiny = 2.0**-25 if dtype == "float16" else 0.0  # half of fp16's smallest step
            value = exact[name]
            bound = error[name] + STORE[dtype] * np.abs(value) + tiny
            if name == "hidden":
                value, bound = self._spread(value), self._spread(bound)
            found[name] = Bounded(value, bound)
        return found

    def _spread(self, rows: np.ndarray) -> np.ndarray:
        """Active rows at their place; exact zero in the others."""
        full = np.zeros((self.active.size, *rows.shape[1:]))
        full[self.active] = rows
        return full.reshape((*self.lead, *rows.shape[1:]))


class Exact:
    """logp of one call (logits.Logits): outputs and gradients."""

    def __init__(self, p: Any, *, temperature=1.0, softcap=None, logit_scale=1.0, active=True):
        x = as_float64(p.logits)
        self.dtype, self.lead = dtype_name(p.logits), x.shape[:-1]
        self.active = np.broadcast_to(np.asarray(active), self.lead)
        target = np.where(self.active, as_float64(p.target), 0).astype(np.int64)[..., None]
        heat = _heat(temperature, self.lead)[..., None]
        self.factor = np.where(self.active[..., None], np.float32(logit_scale) / heat, 0.0)
        with np.errstate(all="ignore"):
            x = np.where(self.active[..., None], x, 0.0) * float(np.float32(logit_scale))
            self.rows = Softmax(x, target, heat, softcap)
            sizes = np.abs(x) / heat
        plain = softcap is None and logit_scale == 1.0 and np.all(heat == 1.0)
        finite = np.where(np.isfinite(sizes), sizes, 0.0)
        self.off = (0.0 if plain else 6 * UNIT) * finite.max(-1)
        self.logp = self.rows.logp

    def outputs(self) -> dict[str, Bounded]:
        def bounded(value, rounding):
            size = np.where(np.isfinite(value), np.abs(value), 0)
            bound = 1e-5 + 5e-7 * size + rounding
            return Bounded(np.where(self.active, value, 0.0), np.where(self.active, bound, 0.0))

        with np.errstate(invalid="ignore"):
            away = np.abs(self.rows.p * self.rows.away).sum(-1)
        return {
            "log_prob": bounded(self.logp, self.off),
            "entropy": bounded(self.rows.entropy, self.off * (1 + away)),
            "lse": bounded(self.rows.lse, self.off),
        }

    def gradient(self, g_logp=0.0, g_entropy=0.0, g_lse=0.0) -> Bounded:
        def of_rows(g):
            g = np.broadcast_to(as_float64(g), self.lead)
            return np.where(self.active, g, 0.0)[..., None] * self.factor

        g = tuple(map(of_rows, (g_logp, g_entropy, g_lse)))
        with np.errstate(all="ignore"):
            off = self.rows.parts(*g) * (2e-6 + self.rows.p * self.off[..., None])
            dz = self.rows.gradient(*g) * self.rows.slope
            value = np.where(self.active[..., None], dz, 0.0)
            bound = off + (2e-5 + STORE[self.dtype]) * np.abs(value)
            bound = bound + (2.0**-24 if self.dtype == "float16" else 0)
        return Bounded(value, np.where(self.active[..., None], bound, 0.0))


# --- Losses ---------------------------------------------------------------------------------------

LOGP = ("temperature", "softcap", "logit_scale")
GROUPS = ("samples_per_prompt", "group_boundaries", "normalize", "ddof", "eps", "eps_mode")


def leave_one_out(x, ddof, eps, eps_mode):
    """Each against the others, one by one: un-normalised where their std is 0 or none."""
    found = np.zeros(len(x))
    for j in range(len(x)):
        others = np.delete(x, j)
        found[j] = x[j] - others.mean()
        if len(others) > ddof and (others != others[0]).any():
            std = others.std(ddof=ddof)
            found[j] /= std + eps if eps_mode == "add" else max(std, eps)
    return found


def expected_advantages(
    rewards, starts, normalize="std", ddof=1, eps=1e-6, eps_mode="add", group_of_one="zero"
):
    """In float64, group by group."""
    rewards = np.asarray(rewards, np.float64)
    found = np.zeros(len(rewards))
    for first, last in pairwise(starts):
        x = rewards[first:last]
        if len(x) == 1 and group_of_one == "reward":
            found[first] = x[0]
        if (x == x[0]).all():
            continue
        if normalize == "loo_std":
            found[first:last] = leave_one_out(x, ddof, eps, eps_mode)
            continue
        std = np.sqrt(((x - x.mean()) ** 2).sum() / max(len(x) - ddof, 1))
        below = {
            "std": std + eps if eps_mode == "add" else max(std, eps),
            "center": 1.0,
            "rloo": (len(x) - 1) / len(x),
        }[normalize]
        found[first:last] = (x - x.mean()) / below
    return found


class Exactly:
    """ratio_kl and grpo_loss of one call (grpo.Tokens)."""

    def __init__(self, p: Any, **options: Any) -> None:
        self.options = options
        o = {name: options[name] for name in LOGP if name in options}
        ids, policy, ref = (_numpy(x) for x in (p.ids, p.policy, p.ref))
        active = np.ones(ids.shape, bool) if p.mask is None else as_float64(p.mask) != 0
        self.active = active & (ids != options.get("ignore_index", -100))
        self.policy = Exact(SimpleNamespace(logits=policy, target=ids), **o, active=self.active)
        self.old, self.rewards = as_float64(p.old), as_float64(p.rewards)
        if "ref_logps" in options:
            self.ref = as_float64(options["ref_logps"])
        else:
            self.ref = Exact(SimpleNamespace(logits=ref, target=ids), **o, active=self.active).logp

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
        """Rounded to float32 as the op rounds them."""
        size = self.options.get("samples_per_prompt")
        starts = as_float64(
            self.options.get("group_boundaries", np.arange(0, len(self.rewards) + 1, size or 1))
        )
        own = {k: self.options[k] for k in GROUPS[2:] if k in self.options}
        found = expected_advantages(self.rewards, starts.astype(int), **own)
        return as_float64(found.astype("f4"))

    def _tokens(self) -> tuple[np.ndarray, ...]:
        """ratio, its slope, kl, its slope."""
        o = self.options
        kl = o.get("kl", "k3")
        most = o.get("log_ratio_clamp", 20.0)
        bound = o.get("kl_clamp", 20.0 if kl == "k3" else np.inf)
        with np.errstate(all="ignore"):
            logp = self.policy.logp
            delta, e = (np.where(self.active, x, 0) for x in (logp - self.old, self.ref - logp))
            ratio = np.exp(np.clip(delta, -most, most))
            ratio_slope = np.where(np.abs(delta) > most, 0.0, ratio)
            clipped, beyond = np.clip(e, -bound, bound), np.abs(e) > bound
            value, slope = {
                "k1": (-clipped, np.ones_like(e)),
                "abs": (np.abs(clipped), -np.sign(e)),
                "k2": (clipped * clipped / 2, -e),
                "k3": (np.expm1(clipped) - clipped, -np.expm1(clipped)),
            }[kl]
            if o.get("kl_gradient") == "importance":
                slope = value + slope
            slope = np.where(beyond, 0.0, slope)
            if o.get("kl_gradient") == "unbiased":
                slope = -e
        return ratio, ratio_slope, value, slope

    def _with_factor_error(self, factor: np.ndarray, off: np.ndarray) -> Bounded:
        found = self.policy.gradient(factor)
        unit = np.abs(self.policy.gradient(np.where(self.active, 1.0, 0.0)).value)
        return Bounded(found.value, found.bound + np.where(unit > 0, off[..., None], 0.0) * unit)


# --- Comparison ----------------------------------------------------------------------------------


def worst(got: Any, exact: Bounded) -> float:
    """Largest error / bound; NaN matches NaN and an infinity itself, all else there is inf."""
    value = as_float64(got)
    assert value.shape == exact.value.shape, (value.shape, exact.value.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(value - exact.value)
        ratio = np.where(error == 0, 0, error / exact.bound)
    odd = ~(np.isfinite(value) & np.isfinite(exact.value))
    same = (value == exact.value) | (np.isnan(value) & np.isnan(exact.value))
    ratio = np.where(odd, np.where(same, 0, np.inf), ratio)
    return float(ratio.max(initial=0))


def assert_within(got: Any, exact: Bounded, what: str = "") -> None:
    ratio = worst(got, exact)
    assert ratio <= 1, f"{what}: error is {ratio:.3g} times its bound"


def same_bits(first: Any, second: Any) -> bool:
    """Equal shape, dtype and bits (so that -0.0 is not 0.0, and NaN is NaN)."""
    a, b = (np.ascontiguousarray(_numpy(x)) for x in (first, second))
    same_type = dtype_name(first) == dtype_name(second)
    return same_type and a.shape == b.shape and a.tobytes() == b.tobytes()


def _numpy(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.view(dtype=_bits_type(array)) if array.element_size() == 2 else array
        return array.numpy()
    return np.asarray(array)


def _bits_type(tensor: Any) -> Any:
    import torch

    return torch.int16
