# SPDX-License-Identifier: Apache-2.0
"""A correct fp32 logp in NumPy, and the same with one defect planted in each. Rows, options and
formulas are those of broken.Reference; what it multiplies out is here already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from broken import Array, Reference, Rows, added_in_one_chain

LEAF = 128


class LogitRows(Rows):
    def logits(self, row: int) -> tuple[Array, Array]:
        return self.op.shape(self.hidden[row], self.softcap, self.logit_scale, self.inverse[row])


def head_of(logits: Array) -> Array:
    """Of no columns: it tells V."""
    return np.empty((logits.shape[-1], 0), np.float32)


class Logp(Reference):
    """logp as the checker's candidate: callable, with `backward`."""

    def __call__(self, logits: Array, target: Array, **options: Any) -> Any:  # type: ignore[override]
        return super().__call__(logits, head_of(logits), target, **options)

    def backward(  # type: ignore[override]
        self,
        grad_output: Array,
        logits: Array,
        target: Array,
        grad_entropy: Array = None,
        grad_lse: Array = None,
        needs: tuple[str, ...] = ("logits",),
        **options: Any,
    ) -> tuple[Array, ...]:
        rows = self.rows(logits, head_of(logits), target, None, **options)
        found = np.zeros(rows.all_hidden.shape, np.float32)
        found[rows.places] = self.logit_gradients(rows, grad_output, grad_entropy, grad_lse)
        return (found.reshape(logits.shape).astype(logits.dtype),)

    def rows(self, *operands: Array, **options: Any) -> Rows:
        return LogitRows(self, *operands, **options)


class LogProbInBf16(Logp):
    def finish(self, out: Array, rows: Rows) -> Array:
        return out.astype(ml_dtypes.bfloat16).astype(np.float32)


class LogProbInFp16(Logp):
    def finish(self, out: Array, rows: Rows) -> Array:
        return out.astype(np.float16).astype(np.float32)


class NoTemperatureInGradient(Logp):
    def backward_scale(self, rows: Rows, row: int) -> np.float32:
        return rows.logit_scale


class NoSlopeOfTheCap(Logp):
    def slope(self, slope: Array) -> Array:
        return np.float32(1)


class NoScaleInGradient(Logp):
    def backward_scale(self, rows: Rows, row: int) -> np.float32:
        return rows.inverse[row]


class ExpWithoutMax(Logp):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        return np.float32(0), np.log(np.exp(z).sum(dtype=np.float32))


class ExpSummedInBf16(Logp):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        terms = np.exp(z - z.max()).astype(ml_dtypes.bfloat16).astype(np.float32)
        return z.max(), np.log(terms.sum(dtype=np.float32))


def unmasked(logits: Array, target: Array, mask: Array, ignore_index: int | None) -> Any:
    """Which rows are active, and targets that all of them may have."""
    kept = np.ones(target.shape, bool) if mask is None else np.asarray(mask) != 0
    if ignore_index is not None:
        kept = kept & (target != ignore_index)
    return kept, np.clip(target, 0, logits.shape[-1] - 1).astype(np.int64)


class MaskAfterExp(Logp):
    """Every row is computed, then multiplied by its mask: NaN * 0."""

    def __call__(
        self,
        logits: Array,
        target: Array,
        mask: Array = None,
        ignore_index: int | None = -100,
        **options: Any,
    ) -> Any:
        kept, safe = unmasked(logits, target, mask, ignore_index)
        found = super().__call__(logits, safe, ignore_index=None, **options)
        if not isinstance(found, tuple):
            return found * kept.astype(np.float32)
        return tuple(None if x is None else x * kept.astype(np.float32) for x in found)


class GradientOfInactiveRows(Logp):
    def backward(  # type: ignore[override]
        self,
        grad_output: Array,
        logits: Array,
        target: Array,
        mask: Array = None,
        ignore_index: int | None = -100,
        **options: Any,
    ) -> tuple[Array, ...]:
        _, safe = unmasked(logits, target, mask, ignore_index)
        return super().backward(grad_output, logits, safe, ignore_index=None, **options)


class LastLeafDropped(Logp):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        whole = len(z) // LEAF * LEAF
        return super().max_and_log_sum(z[:whole] if whole else z, num_rows)


class PartsFollowTheRows(Logp):
    """A row is cut into more parts where the batch is small."""

    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        biggest, total = z.max(), np.float32(0)
        for part in np.array_split(np.exp(z - biggest), 1 if num_rows > 16 else 4):
            total = total + part.sum(dtype=np.float32)
        return biggest, np.log(total)


class LeavesInOneChain(Logp):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        biggest = z.max()
        return biggest, np.log(added_in_one_chain(np.exp(z - biggest)))


class HighestColumnOfATie(Logp):
    def max_and_column(self, z: Array) -> tuple[np.float32, int]:
        biggest, column = super().max_and_column(z)
        return biggest, len(z) - 1 - int(z[::-1].argmax()) if column >= 0 else column


class GradientOverTheLogits(Logp):
    """In place without being asked."""

    def logit_gradients(self, rows: Rows, *upstream: Array) -> Array:
        found = super().logit_gradients(rows, *upstream)
        if rows.given_hidden.size:
            rows.given_hidden[...] = 0
        return found


# Defect -> the failure kinds that may name it first; the suite must find one of them.
BROKEN: dict[Callable[[], Logp], set[str]] = {
    LogProbInBf16: {"accuracy"},
    LogProbInFp16: {"accuracy"},
    NoTemperatureInGradient: {"grad_accuracy"},
    NoSlopeOfTheCap: {"grad_accuracy"},
    NoScaleInGradient: {"grad_accuracy"},
    ExpWithoutMax: {"nonfinite"},
    ExpSummedInBf16: {"accuracy"},
    MaskAfterExp: {"inactive"},
    GradientOfInactiveRows: {"grad_inactive"},
    LastLeafDropped: {"accuracy"},
    PartsFollowTheRows: {"batch_variant"},
    LeavesInOneChain: {"accuracy"},
    HighestColumnOfATie: {"accuracy"},
    GradientOverTheLogits: {"input_changed"},
}
