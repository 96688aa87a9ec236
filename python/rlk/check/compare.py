# SPDX-License-Identifier: Apache-2.0
"""Measured against exact: normalised errors within a bound, and bits against bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .frameworks import Failure, is_poison
from .oracle import Bounded
from .stored import OVERFLOW, Stored


@dataclass(frozen=True)
class Deviation:
    """How far a value is from the exact one. `worst` is the largest error / bound, at `index`."""

    worst: float = 0.0
    index: tuple[int, ...] = ()
    max_abs: float = 0.0
    mean_abs: float = 0.0
    max_rel: float = 0.0


def expect_form(name: str, got: Stored, shape: tuple[int, ...], dtype: str, prefix: str) -> None:
    """Raises Failure for another shape or dtype, or for elements never written."""
    if got.shape != shape:
        raise Failure(f"{prefix}shape", f"{name}: expected shape {shape}, got {got.shape}")
    if got.dtype != dtype:
        raise Failure(f"{prefix}dtype", f"{name}: expected {dtype}, got {got.dtype}")
    poison = is_poison(got)
    if poison.any():
        where = tuple(int(i) for i in np.argwhere(poison)[0])
        raise Failure("unwritten", f"{name}: {int(poison.sum())} elements unwritten, first {where}")


def deviation(got: np.ndarray, exact: Bounded, dtype: str) -> Deviation:
    """Errors in units of the bound: 0 where both are the same NaN or infinity, inf where only
    one is, and 0/0 is 0. An infinity in place of a number stands for the numbers that round to
    it in `dtype`, that of `got`: the nearest of them counts."""
    if got.size == 0:
        return Deviation()
    if dtype in OVERFLOW:
        least = np.copysign(np.maximum(np.abs(exact.value), OVERFLOW[dtype]), got)
        got = np.where(np.isinf(got) & np.isfinite(exact.value), least, got)
    with np.errstate(all="ignore"):
        error = np.abs(got - exact.value)
        ratio = np.where(error == 0, 0.0, error / exact.bound)
        relative = np.where(exact.value != 0, error / np.abs(exact.value), 0.0)
    odd = ~np.isfinite(got) | ~np.isfinite(exact.value)
    same = (got == exact.value) | (np.isnan(got) & np.isnan(exact.value))
    ratio = np.where(odd, np.where(same, 0.0, np.inf), ratio)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    index = np.unravel_index(int(ratio.argmax()), ratio.shape)
    finite = error[~odd]
    return Deviation(
        float(ratio[index]),
        tuple(int(i) for i in index),
        float(finite.max()) if finite.size else 0.0,
        float(finite.mean()) if finite.size else 0.0,
        float(relative[~odd].max()) if finite.size else 0.0,
    )


def same_bits(first: Stored, second: Stored) -> tuple[int, ...] | None:
    """None where shape, dtype and bits agree (any NaN equals any NaN), else the first index."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return ()
    a, b = (np.ascontiguousarray(s.raw()) for s in (first, second))
    if a.size == 0:
        return None
    bits = np.dtype(f"u{a.itemsize}")
    differs = np.atleast_1d(a).view(bits) != np.atleast_1d(b).view(bits)
    nan = np.isnan(np.atleast_1d(first.values())) & np.isnan(np.atleast_1d(second.values()))
    differs &= ~nan
    return tuple(int(i) for i in np.argwhere(differs)[0]) if differs.any() else None
