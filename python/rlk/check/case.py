# SPDX-License-Identifier: Apache-2.0
"""One case (which op, what sizes, what inputs), the inputs made from it, and pairs of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .stored import Stored, of_raw

SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Case:
    """Everything that inputs are made from; equal cases make equal bits.

    `lead` is the shape of the rows: (batch, seq), (rows,) or (). `sizes` are the op's own sizes,
    `kind` says how values are drawn, `options` are the op's options.
    """

    op: str
    dtype: str
    lead: tuple[int, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    kind: str = "random"
    layout: str = "contiguous"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator of its own for each purpose, so that one draw never shifts another."""
        return np.random.default_rng([self.seed, zlib.crc32(f"{self.text()}/{purpose}".encode())])

    def text(self) -> str:
        """The case in one line, as reports print it."""
        sizes = [f"{name[0].upper()}={size}" for name, size in self.sizes.items()]
        lead = "x".join(map(str, self.lead)) or "scalar"
        options = [f"{name}={value}" for name, value in sorted(self.options.items())]
        return " ".join([SHORT[self.dtype], lead, *sizes, self.kind, self.layout, *options])

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


@dataclass(frozen=True)
class Inputs:
    """Arguments by name (Stored, a Python number or None) and which of them have rows."""

    values: Mapping[str, Any]
    lead: tuple[int, ...]
    row_names: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        return int(np.prod(self.lead, dtype=np.int64))

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def but(self, **changes: Any) -> Inputs:
        return replace(self, values={**self.values, **changes})

    def rows(self, index: np.ndarray) -> Inputs:
        """Only the rows `index` of the flattened rows, in that order, contiguous, lead (n,)."""
        picked = {name: take_rows(self[name], len(self.lead), index) for name in self.row_names}
        return replace(self, values={**self.values, **picked}, lead=(len(index),))

    def active_rows(self, name: str, active: np.ndarray) -> np.ndarray:
        """In float64 the active rows of an input; a number, rounded to fp32, as one a row."""
        value = self[name]
        if isinstance(value, Stored):
            return np.asarray(value.values()[active])
        return np.full(int(active.sum()), float(np.float32(value)))


@dataclass(frozen=True)
class Liveness:
    """Two inputs that differ in one option, which must change what both calls give: all of it, or
    what `shows_in` names."""

    option: str
    without: Inputs
    with_option: Inputs
    shows_in: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Rejected:
    """Inputs that must raise, or give NaN at `place` of the flattened outputs (devices that cannot
    raise at once)."""

    label: str
    inputs: Inputs
    place: int


def flat_rows(stored: Stored, num_lead: int) -> np.ndarray:
    """The bits as [rows, ...], whatever the first `num_lead` dimensions are."""
    rows = int(np.prod(stored.shape[:num_lead], dtype=np.int64))
    return np.ascontiguousarray(stored.raw()).reshape(rows, *stored.shape[num_lead:])


def take_rows(stored: Stored, num_lead: int, index: np.ndarray) -> Stored:
    """The rows `index` of an array whose first `num_lead` dimensions are rows."""
    return of_raw(flat_rows(stored, num_lead)[index], stored.dtype)
