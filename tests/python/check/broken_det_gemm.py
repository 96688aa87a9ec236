# SPDX-License-Identifier: Apache-2.0
"""det_gemm right in NumPy, and the same with one defect planted in each."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
F = np.float32


class Product:
    """As the checker's candidate, with `backward`; defects override one step each."""

    framework = "numpy"

    def __call__(self, a: Array, b: Array, bias: Array = None, out_dtype: Any = None) -> Array:
        found = self.product(a, b)
        found = found if bias is None else self.with_bias(found, np.asarray(bias, np.float64))
        return found.astype(a.dtype if out_dtype is None else np.dtype(out_dtype))

    def backward(
        self, grad_output: Array, a: Array, b: Array, bias: Array = None, *, needs: Any
    ) -> tuple[Array, ...]:
        g = np.asarray(grad_output, np.float64)
        rows, flat = a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])
        found = {
            "a": self.product(g, b.T).astype(a.dtype),
            "b": self.sum_of_tokens(rows, flat).astype(b.dtype),
        }
        if bias is not None:
            found["bias"] = self.sum_of_rows(flat).astype(bias.dtype)
        return tuple(found[name] for name in needs)

    def product(self, a: Array, b: Array) -> Array:
        """Row by row, so that no library's choice shows."""
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        rows = a.reshape(-1, a.shape[-1])
        found = [np.einsum("k,kn->n", row, b) for row in rows]
        return np.reshape(found, (*a.shape[:-1], b.shape[1]))

    def with_bias(self, found: Array, bias: Array) -> Array:
        return found + bias

    def sum_of_tokens(self, rows: Array, g: Array) -> Array:
        return np.einsum("mk,mn->kn", np.asarray(rows, np.float64), g)

    def sum_of_rows(self, g: Array) -> Array:
        return g.sum(0)


class Tf32(Product):
    """Operands of 10 bits."""

    def product(self, a: Array, b: Array) -> Array:
        def short(x: Array) -> Array:
            bits = np.array(x, F).view(np.uint32)
            return ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(F)

        return super().product(short(a), short(b))


class SplitOfFewRows(Product):
    """Few rows are summed in two parts: other bits than among many."""

    def product(self, a: Array, b: Array) -> Array:
        half = b.shape[0] // 2
        a, b = np.asarray(a, F), np.asarray(b, F)
        if a.reshape(-1, a.shape[-1]).shape[0] > 16 or half == 0:
            return super().product(a, b)
        first, second = (
            super(SplitOfFewRows, self).product(x, y).astype(F)
            for x, y in ((a[..., :half], b[:half]), (a[..., half:], b[half:]))
        )
        return first + second


class NoBias(Product):
    def with_bias(self, found: Array, bias: Array) -> Array:
        return found


class SumsOf16Bits(Product):
    """Partial sums are kept in half precision."""

    def product(self, a: Array, b: Array) -> Array:
        half = b.shape[0] // 2
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        first = super().product(a[..., :half], b[:half]).astype(np.float16)
        return first + super().product(a[..., half:], b[half:])


class MeanOfTokens(Product):
    def sum_of_tokens(self, rows: Array, g: Array) -> Array:
        return super().sum_of_tokens(rows, g) / max(len(g), 1)


class BiasOfOneRow(Product):
    def sum_of_rows(self, g: Array) -> Array:
        return g[:1].sum(0)


class LeavesNan(Product):
    """A NaN counts as 0."""

    def product(self, a: Array, b: Array) -> Array:
        return super().product(np.nan_to_num(np.asarray(a, np.float64)), b)


BROKEN: dict[type[Product], set[str]] = {
    Tf32: {"accuracy"},
    SplitOfFewRows: {"batch_variant"},
    NoBias: {"accuracy", "option_dead"},
    SumsOf16Bits: {"accuracy"},
    MeanOfTokens: {"grad_accuracy"},
    BiasOfOneRow: {"grad_accuracy"},
    LeavesNan: {"nonfinite"},
}
