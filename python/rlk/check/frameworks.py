# SPDX-License-Identifier: Apache-2.0
"""Stored arrays as NumPy arrays or torch tensors and back, bit for bit, layout kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from .stored import FLOATS, Stored, of_raw

POISON = 0x7FA5  # as 16-bit halves a NaN in fp16, bf16 and fp32


class Failure(Exception):
    """A candidate failed a check: a short stable word, where, and what was measured."""

    def __init__(
        self,
        kind: str,
        message: str,
        place: dict[str, int] | None = None,
        measured: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.place = place
        self.measured = measured or {}


class Framework(ABC):
    """One way to hand arrays over."""

    name: str
    device: str

    @abstractmethod
    def give(self, stored: Stored) -> tuple[Any, Any]:
        """(array, base): a fresh copy of base and the view of it with the same layout."""

    def give_all(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, each Stored as an array."""
        return {n: self.give(v)[0] if isinstance(v, Stored) else v for n, v in arguments.items()}

    @abstractmethod
    def bits(self, base: Any) -> np.ndarray:
        """The base's bits, to see whether it was written."""

    @abstractmethod
    def take(self, value: Any) -> Stored:
        """A result as a contiguous Stored; raises Failure("dtype") for what is no array."""

    def gpu(self) -> str | None:
        """The name of the card that arrays lie on."""
        return None

    def poison_memory(self, sizes: list[int]) -> None:
        """Writes and frees blocks of these byte sizes: the next allocation of one holds poison.

        Best effort: it makes an unwritten output visible where a candidate allocates its own.
        """
        halves = [(size + 1) // 2 for size in sizes for _ in range(4)]
        blocks = [np.full(count, POISON, np.uint16) for count in halves]
        del blocks

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An output full of a NaN that no computation makes."""
        kind = np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(dtype)
        raw = np.full((*shape, kind.itemsize // 2), POISON, np.uint16)
        return self.give(of_raw(raw.view(kind).reshape(shape), dtype))[0]


class NumpyFramework(Framework):
    """NumPy arrays; bfloat16 through ml_dtypes."""

    name, device = "numpy", "cpu"

    def give(self, stored: Stored) -> tuple[Any, Any]:
        copy = stored.clone()
        if stored.dtype == "bfloat16":
            view = Stored(copy.base.view(_bfloat16()), *_layout(copy)).raw()
        else:
            view = copy.raw()
        return view, copy.base

    def bits(self, base: Any) -> np.ndarray:
        return np.asarray(base)

    def take(self, value: Any) -> Stored:
        if not isinstance(value, (np.ndarray, np.generic)):
            raise Failure("dtype", f"expected a NumPy array, got {type(value).__name__}")
        array = np.asarray(value)
        if array.dtype.name == "bfloat16":
            return of_raw(np.ascontiguousarray(array).view(np.uint16), "bfloat16")
        return of_raw(array, array.dtype.name)


class TorchFramework(Framework):
    """torch tensors on one device."""

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def give(self, stored: Stored) -> tuple[Any, Any]:
        import torch

        flat = stored.base.copy()
        if stored.dtype == "bfloat16":
            base = torch.from_numpy(flat.view(np.int16)).view(torch.bfloat16)
        else:
            base = torch.from_numpy(flat)
        base = base.to(self.device)
        return torch.as_strided(base, stored.shape, stored.strides, stored.offset), base

    def gpu(self) -> str | None:
        import torch

        return torch.cuda.get_device_name() if self.device == "cuda" else None

    def poison_memory(self, sizes: list[int]) -> None:
        if self.device == "cpu":
            return super().poison_memory(sizes)
        import torch

        halves = [(size + 1) // 2 for size in sizes for _ in range(4)]
        blocks = [torch.full((n,), POISON, dtype=torch.int16, device=self.device) for n in halves]
        del blocks

    def bits(self, base: Any) -> np.ndarray:
        return self.take(base).base

    def take(self, value: Any) -> Stored:
        import torch

        if not isinstance(value, torch.Tensor):
            raise Failure("dtype", f"expected a tensor, got {type(value).__name__}")
        tensor = value.detach().cpu().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "bfloat16":
            return of_raw(tensor.view(torch.int16).numpy().view(np.uint16), dtype)
        return of_raw(tensor.numpy(), dtype)


def is_poison(stored: Stored) -> np.ndarray:
    """Which elements still hold the poison, bool of the array's shape."""
    raw = np.ascontiguousarray(stored.raw())
    if stored.dtype not in FLOATS or raw.size == 0:
        return np.zeros(stored.shape, bool)
    halves = raw.reshape(-1, 1).view(np.uint16)
    return np.asarray((halves == POISON).all(axis=1).reshape(stored.shape))


def _layout(stored: Stored) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
    return stored.dtype, stored.shape, stored.strides, stored.offset


def _bfloat16() -> Any:
    try:
        import ml_dtypes
    except ImportError as error:
        message = "check: dtype: expected ml_dtypes for bfloat16 in NumPy, got no such package"
        raise ValueError(message) from error
    return ml_dtypes.bfloat16
