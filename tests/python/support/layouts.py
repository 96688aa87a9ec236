# SPDX-License-Identifier: Apache-2.0
"""The same values of a NumPy array, laid out otherwise in memory, NaN around them."""

from __future__ import annotations

import numpy as np


def nan_like(shape, array: np.ndarray) -> np.ndarray:
    """NaN, or 77 where the array's type has none."""
    return np.full(shape, 77 if array.dtype.kind in "iub" else np.nan).astype(array.dtype)


def spaced(array: np.ndarray) -> np.ndarray:
    """The same values with strides that are no multiple of anything, garbage between them."""
    room = nan_like([2 * n + 3 for n in array.shape], array)
    view = room[tuple(slice(1, 1 + 2 * n, 2) for n in array.shape)]
    view[...] = array
    return view


def padded(array: np.ndarray) -> np.ndarray:
    """In longer rows."""
    room = nan_like((*array.shape[:-1], array.shape[-1] + 5), array)
    room[..., : array.shape[-1]] = array
    return room[..., : array.shape[-1]]


def transposed(array: np.ndarray) -> np.ndarray:
    """The last two axes swapped in memory."""
    if array.ndim < 2:
        return spaced(array)
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def turned(array: np.ndarray) -> np.ndarray:
    """The first axis last in memory."""
    moved = np.ascontiguousarray(np.moveaxis(array, 0, -1))
    return moved.transpose(-1, *range(array.ndim - 1))


def one_off(array: np.ndarray) -> np.ndarray:
    """At an address one element off."""
    return np.r_[array.reshape(-1)[:1], array.reshape(-1)][1:].reshape(array.shape)


def shifted(array: np.ndarray, offset_bytes: int) -> np.ndarray:
    """The same values that many bytes behind an aligned address, NaN around them."""
    room = np.full(array.nbytes + offset_bytes + 80, 0xFF, np.uint8)
    first = -room.ctypes.data % 64 + offset_bytes
    view = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


LAYOUTS = {
    "spaced": spaced,
    "padded": padded,
    "transposed": transposed,
    "one_off": one_off,
    "fortran": np.asfortranarray,
    "reversed": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "upside_down": lambda a: np.ascontiguousarray(a[::-1])[::-1],
}
