# SPDX-License-Identifier: Apache-2.0
"""Exact linear_logp in float64 and how far a kernel may be from it. Small, whole matrices, no rlk.

The bounds are those of docs/checking.md: B for a log-prob, and what follows from it for gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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
        active = np.ones(t.size, bool)
        if mask is not None:
            active &= as_float64(mask).reshape(-1) != 0
        if ignore_index is not None:
            active &= t != ignore_index
        self.active = active
        h, t = h.reshape(-1, h.shape[-1])[active], t[active]
        b = np.zeros(w.shape[0])
        if bias is not None:
            self.types["bias"] = dtype_name(bias)
            b = as_float64(bias)
        heat = np.asarray(as_float64(temperature), np.float32).astype(np.float64)
        heat = np.broadcast_to(heat, self.lead).reshape(-1)[active][:, None]
        scale = float(np.float32(logit_scale))
        self.factor = scale / heat
        self.h, self.w, self.t = h, w, t
        # What scaling and capping round besides.
        more = 0 if softcap is None and logit_scale == 1.0 else 4
        self.chain = (h.shape[1] / 8 + 2 + more) * UNIT
        with np.errstate(invalid="ignore", over="ignore"):
            x = scale * (h @ w.T + b)
            sizes = abs(scale) * (np.abs(h) @ np.abs(w).T + np.abs(b))
            self.slope, self.slope_error = np.ones_like(x), np.zeros_like(x)
            if softcap is not None:
                cap = float(np.float32(softcap))
                bent = np.tanh(x / cap)
                self.slope = 1 / np.cosh(np.clip(x / cap, -350, 350)) ** 2
                x = cap * bent
                error = 2 * np.abs(bent) * self.chain * sizes / cap
                self.slope_error = np.where(np.isfinite(sizes), error, 0)
            z = x / heat
            sizes = sizes / heat
            top = z.max(axis=1, keepdims=True)
            e = np.exp(z - top)
            total = e.sum(axis=1, keepdims=True)
            self.p = e / total
            self.logs = (z - top) - np.log(total)
            self.z_target = z[np.arange(t.size), t]
            self.logp = self.logs[np.arange(t.size), t]
            self.lse = top[:, 0] + np.log(total[:, 0])
            terms = np.where(self.logs == -np.inf, 0, -self.p * self.logs)
            self.entropy = terms.sum(axis=1)
            away = np.where(self.logs == -np.inf, 0, self.logs + self.entropy[:, None])
            self.away = away
        largest = np.where(np.isfinite(z) & np.isfinite(sizes), sizes, 0).max(axis=1)
        self.rounding = self.chain * largest
        # An error of each logit reaches the entropy by p (log p + H).
        self.entropy_rounding = self.rounding * (self.p * np.abs(away)).sum(axis=1)
        self.bound = self._bound(self.logp, self.rounding)

    @staticmethod
    def _bound(value, rounding):
        return 2e-5 + 1e-6 * np.where(np.isfinite(value), np.abs(value), 0) + rounding

    def forward(self) -> Bounded:
        return Bounded(self._spread(self.logp), self._spread(self.bound))

    def outputs(self) -> dict[str, Bounded]:
        """log_prob, entropy and lse."""
        entropy_bound = self._bound(self.entropy, self.entropy_rounding)
        return {
            "log_prob": self.forward(),
            "entropy": Bounded(self._spread(self.entropy), self._spread(entropy_bound)),
            "lse": Bounded(
                self._spread(self.lse), self._spread(self._bound(self.lse, self.rounding))
            ),
        }

    def gradients(self, upstream, grad_entropy=None, grad_lse=None) -> dict[str, Bounded]:
        def rows(grad):
            if grad is None:
                return np.zeros((self.t.size, 1))
            return as_float64(grad).reshape(-1)[self.active][:, None] * self.factor

        g, g_entropy, g_lse = rows(upstream), rows(grad_entropy), rows(grad_lse)
        dz = self.p * (g_lse - g - g_entropy * self.away)
        # A target at -inf has p = 0 and no gradient in its own column.
        dz[np.arange(self.t.size), self.t] += np.where(self.z_target == -np.inf, 0.0, g[:, 0])
        flat = np.abs(dz)
        dz *= self.slope
        num_vocab, num_rows = self.w.shape[0], self.t.size
        size = np.abs(dz)
        over_vocab = (num_vocab / 8 + 2) * UNIT * size
        over_rows = (num_rows / 8 + 2) * UNIT * size
        unit = STORE[self.types["hidden"]]
        floor = 2.0**-38 if self.types["hidden"] == "float16" else 2.0**-126
        parts = np.abs(g) + np.abs(g_lse) + np.abs(g_entropy) * (np.abs(self.away) + 2)
        of_p = self.bound[:, None]
        if grad_entropy is not None:
            of_p = of_p + self.entropy_rounding[:, None]
        rounding = unit * size + parts * (self.slope * self.p * of_p + floor)
        if self.slope_error.any():
            # 1 - tanh^2: of a capped logit's error, and as a difference.
            rounding = rounding + size * self.slope_error + 2.0**-22 * flat
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
            bound = error[name] + STORE[dtype] * np.abs(exact[name]) + tiny
            value = exact[name]
            if name == "hidden":
                value, bound = self._spread(value), self._spread(bound)
            found[name] = Bounded(value, bound)
        return found

    def _spread(self, rows: np.ndarray) -> np.ndarray:
        """Active rows at their place; exact zero in the others."""
        full = np.zeros((self.active.size, *rows.shape[1:]))
        full[self.active] = rows
        return full.reshape((*self.lead, *rows.shape[1:]))


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
