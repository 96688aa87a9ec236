# SPDX-License-Identifier: Apache-2.0
"""Arrays as they lie in memory: storage type, strides and offset over a flat buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FLOATS = ("float32", "float16", "bfloat16")
LAYOUTS = ("contiguous", "strided", "shifted", "transposed", "expanded")


# The smallest magnitude that rounds to infinity: half a step above the largest number.
OVERFLOW = {
    "float32": (2 - 2.0**-24) * 2.0**127,
    "float16": (2 - 2.0**-11) * 2.0**15,
    "bfloat16": (2 - 2.0**-8) * 2.0**127,
}


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values rounded to `dtype`, as the NumPy type that holds its bits (bfloat16: uint16)."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(dtype)
    single = np.array(values, np.float32, order="C")  # 0-d stays 0-d, unlike ascontiguousarray
    bits = single.view(np.uint32)  # the sum wraps for NaN alone
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """The values as float64 for floating types, as they are for others."""
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64) if dtype in FLOATS else raw.copy()


@dataclass(frozen=True)
class Stored:
    """One array over a flat buffer; strides and offset count elements.

    `base` is 1-D and holds bits (uint16 for bfloat16); gaps between elements hold junk that no
    kernel may read or write.
    """

    base: np.ndarray
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def raw(self) -> np.ndarray:
        """The elements' bits, a view with this layout."""
        if 0 in self.shape:
            return np.empty(self.shape, self.base.dtype)
        steps = tuple(step * self.base.itemsize for step in self.strides)
        return np.lib.stride_tricks.as_strided(self.base[self.offset :], self.shape, steps)

    def values(self) -> np.ndarray:
        """A contiguous float64 copy (integers and bool keep their type)."""
        return decode(np.array(self.raw(), order="C"), self.dtype)

    def clone(self) -> Stored:
        return Stored(self.base.copy(), self.dtype, self.shape, self.strides, self.offset)


def of_raw(raw: np.ndarray, dtype: str) -> Stored:
    """A contiguous array of these bits."""
    base = np.ascontiguousarray(raw).reshape(-1).copy()
    return Stored(base, dtype, raw.shape, _steps(raw.shape))


def of(values: Any, dtype: str, layout: str = "contiguous") -> Stored:
    """Values rounded to `dtype` and laid out in memory; `expanded` repeats the first slice."""
    return lay_out(encode(np.asarray(values), dtype), dtype, layout)


def lay_out(raw: np.ndarray, dtype: str, layout: str) -> Stored:
    """These bits in memory as `layout` says."""
    if layout == "contiguous" or raw.ndim == 0 or raw.size == 0:
        return of_raw(raw, dtype)
    if layout == "expanded":
        first = of_raw(raw[:1], dtype)
        return Stored(first.base, dtype, raw.shape, (0, *first.strides[1:]))
    if layout == "transposed":
        if raw.ndim == 1:
            return lay_out(raw, dtype, "strided")
        flipped = np.ascontiguousarray(np.swapaxes(raw, -1, -2))
        steps = _steps(flipped.shape)
        return Stored(flipped.reshape(-1), dtype, raw.shape, (*steps[:-2], steps[-1], steps[-2]))
    if layout == "strided":  # every second element of rows that are padded besides
        pitch = (*raw.shape[:-1], 2 * raw.shape[-1] + 3)
        base = _junk(int(np.prod(pitch)), raw.dtype, dtype)
        steps = _steps(pitch)
        stored = Stored(base, dtype, raw.shape, (*steps[:-1], 2))
    elif layout == "shifted":  # contiguous, one element off any alignment
        base = _junk(raw.size + 1, raw.dtype, dtype)
        stored = Stored(base, dtype, raw.shape, _steps(raw.shape), 1)
    else:
        raise ValueError(f"check: layout: expected one of {', '.join(LAYOUTS)}, got {layout}")
    stored.raw()[...] = raw
    return stored


def _junk(count: int, raw_type: np.dtype[Any], dtype: str) -> np.ndarray:
    if dtype in FLOATS:
        return np.full(count, encode(np.array(np.nan), dtype), raw_type)
    return np.full(count, 1, raw_type)


def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))
