# SPDX-License-Identifier: Apache-2.0
"""A correct fp32 linear_logp in NumPy, and the same with one defect planted in each.

A row's product runs by itself (one gemv a row), so that its bits do not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
TILE = 64


class Reference:
    """linear_logp as the checker's candidate: callable, with `backward`. Defects override one
    step each."""

    framework = "numpy"

    def __call__(
        self,
        hidden: Array,
        weight: Array,
        target: Array,
        bias: Array = None,
        return_entropy: bool = False,
        return_lse: bool = False,
        return_stats: bool = False,
        **options: Any,
    ) -> Any:
        rows = self.rows(hidden, weight, target, bias, **options)
        out, entropy, lse = np.zeros((3, len(rows.active)), np.float32)
        stats = Stats(len(rows.active))
        for row, place in enumerate(rows.places):
            z, _ = rows.logits(row)
            biggest, log_sum = self.max_and_log_sum(z, len(rows.places))
            out[place] = (z[rows.target[row]] - biggest) - log_sum
            lse[place] = self.log_sum_exp(biggest, log_sum)
            if return_entropy:
                entropy[place] = entropy_of(z, biggest, log_sum)
            if return_stats:
                stats.set(place, self.max_and_column(z), self.mean(z), self.sum_p2(z))
        log_prob = self.finish(out, rows).reshape(target.shape)
        if not return_entropy and not return_lse and not return_stats:
            return log_prob
        found = (
            log_prob,
            entropy.reshape(target.shape) if return_entropy else None,
            lse.reshape(target.shape) if return_lse else None,
        )
        return (*found, stats.shaped(target.shape)) if return_stats else found

    def backward(
        self,
        grad_output: Array,
        hidden: Array,
        weight: Array,
        target: Array,
        bias: Array = None,
        grad_entropy: Array = None,
        grad_lse: Array = None,
        needs: tuple[str, ...] = ("hidden", "weight", "bias"),
        **options: Any,
    ) -> tuple[Array, ...]:
        rows = self.rows(hidden, weight, target, bias, **options)
        dz = self.logit_gradients(rows, grad_output, grad_entropy, grad_lse)
        dhidden = np.zeros((len(rows.active), rows.weight.shape[1]), np.float32)
        for row, place in enumerate(rows.places):
            dhidden[self.gradient_row(place, len(rows.active))] = dz[row] @ rows.weight
        found = {
            "hidden": dhidden.reshape(hidden.shape).astype(hidden.dtype),
            "weight": self.weight_gradient(dz, rows).astype(weight.dtype),
            "bias": None if bias is None else dz.sum(axis=0, dtype=np.float32).astype(bias.dtype),
        }
        return tuple(found[name] for name in needs)

    def logit_gradients(
        self, rows: Rows, grad_output: Array, grad_entropy: Array, grad_lse: Array
    ) -> Array:
        """Of the raw logits, [active rows, V]."""
        g = self.upstream(np.ascontiguousarray(grad_output).reshape(-1))
        dz = np.zeros((len(rows.places), len(rows.weight)), np.float32)
        for row, place in enumerate(rows.places):
            z, slope = rows.logits(row)
            biggest, log_sum = self.max_and_log_sum(z, len(rows.places))
            logs = (z - biggest) - log_sum
            p = np.exp(logs)
            dz[row] = -g[place] * p
            if z[rows.target[row]] != -np.inf:
                dz[row, rows.target[row]] += g[place]
            if grad_lse is not None:
                dz[row] += grad_lse.reshape(-1)[place] * p
            if grad_entropy is not None:
                away = self.away(z, biggest, log_sum)
                dz[row] -= grad_entropy.reshape(-1)[place] * p * away
            dz[row] *= self.slope(slope) * self.backward_scale(rows, row)
        return dz

    # The steps that a defect replaces.

    def rows(self, *operands: Array, **options: Any) -> Rows:
        return Rows(self, *operands, **options)

    def read_target(self, target: Array) -> Array:
        return target.astype(np.int64)

    def upstream(self, g: Array) -> Array:
        return g

    def round_logits(self, z: Array) -> Array:
        return z

    def add_bias(self, z: Array, bias: Array) -> Array:
        return z + bias

    def scale(self, z: Array, inverse: np.float32) -> Array:
        return z * inverse

    def shape(
        self, x: Array, softcap: np.float32 | None, logit_scale: np.float32, inverse: np.float32
    ) -> tuple[Array, Array]:
        """Logits from the biased product, and the slope of their cap."""
        x, slope = self.cap(x * logit_scale, softcap)
        return self.scale(x, inverse), slope

    def cap(self, x: Array, softcap: np.float32 | None) -> tuple[Array, Array]:
        if softcap is None:
            return x, np.float32(1)
        bent = np.tanh(x / softcap)
        return bent * softcap, 1 - bent * bent

    def slope(self, slope: Array) -> Array:
        return slope

    def log_sum_exp(self, biggest: np.float32, log_sum: np.float32) -> np.float32:
        return biggest + log_sum if biggest != -np.inf else biggest

    def away(self, z: Array, biggest: np.float32, log_sum: np.float32) -> Array:
        """log p + H, 0 where p is 0."""
        logs = (z - biggest) - log_sum
        return np.where(z == -np.inf, np.float32(0), logs + entropy_of(z, biggest, log_sum))

    def backward_scale(self, rows: Rows, row: int) -> np.float32:
        return rows.inverse[row] * rows.logit_scale

    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        biggest = z.max()
        return biggest, np.log(np.exp(z - biggest).sum(dtype=np.float32))

    def max_and_column(self, z: Array) -> tuple[np.float32, int]:
        """A row with NaN or +inf has no maximum."""
        biggest = z.max()
        return (biggest, int(z.argmax())) if biggest < np.inf else (np.float32(np.nan), -1)

    def mean(self, z: Array) -> np.float32:
        return z.sum(dtype=np.float32) / np.float32(len(z))

    def sum_p2(self, z: Array) -> np.float32:
        terms = np.exp(z - z.max())
        return (terms * terms).sum(dtype=np.float32) / terms.sum(dtype=np.float32) ** 2

    def finish(self, out: Array, rows: Rows) -> Array:
        return out

    def gradient_row(self, place: int, num_rows: int) -> int:
        return place

    def weight_gradient(self, dz: Array, rows: Rows) -> Array:
        return dz.T @ rows.hidden


class Stats:
    """Statistics of a call's rows: neutral where they are not set."""

    def __init__(self, num_rows: int) -> None:
        self.max_logit, self.mean_logit, self.sum_p2 = np.zeros((3, num_rows), np.float32)
        self.argmax = np.full(num_rows, -1, np.int64)

    def set(
        self, row: int, biggest: tuple[np.float32, int], mean: np.float32, p2: np.float32
    ) -> None:
        self.max_logit[row], self.argmax[row] = biggest
        self.mean_logit[row], self.sum_p2[row] = mean, p2

    def shaped(self, shape: tuple[int, ...]) -> tuple[Array, ...]:
        values = (self.max_logit, self.argmax, self.mean_logit, self.sum_p2)
        return tuple(value.reshape(shape) for value in values)


class Rows:
    """The active rows of one call, in fp32, with what the call computes from them."""

    def __init__(
        self,
        op: Reference,
        hidden: Array,
        weight: Array,
        target: Array,
        bias: Array,
        temperature: Any = 1.0,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        mask: Array = None,
        ignore_index: int | None = -100,
    ) -> None:
        self.op = op
        self.given_hidden = hidden
        flat = np.ascontiguousarray(op.read_target(target)).reshape(-1)
        self.active = np.ones(len(flat), bool)
        if mask is not None:
            self.active &= np.ascontiguousarray(mask).reshape(-1) != 0
        if ignore_index is not None:
            self.active &= flat != ignore_index
        self.places = np.flatnonzero(self.active)
        self.all_hidden = single(hidden).reshape(len(flat), hidden.shape[-1])
        self.hidden = self.all_hidden[self.places]
        self.weight = single(weight)
        self.bias = None if bias is None else single(bias)
        self.target = flat[self.places]
        wrong = self.target[(self.target < 0) | (self.target >= len(self.weight))]
        if wrong.size:
            raise ValueError(f"linear_logp: target: expected 0 to V - 1, got {wrong[0]}")
        heat = np.broadcast_to(np.asarray(temperature, np.float32), target.shape).reshape(-1)
        self.inverse = np.float32(1) / heat[self.places]
        self.softcap = None if softcap is None else np.float32(softcap)
        self.logit_scale = np.float32(logit_scale)

    def logits(self, row: int) -> tuple[Array, Array]:
        z = self.op.round_logits(self.weight @ np.ascontiguousarray(self.hidden[row]))
        if self.bias is not None:
            z = self.op.add_bias(z, self.bias)
        return self.op.shape(z, self.softcap, self.logit_scale, self.inverse[row])


def entropy_of(z: Array, biggest: np.float32, log_sum: np.float32) -> np.float32:
    distance = z - biggest
    terms = np.exp(distance)
    moment = (terms * np.where(distance == -np.inf, 0, distance)).sum(dtype=np.float32)
    return log_sum - moment / terms.sum(dtype=np.float32)


def single(values: Array) -> Array:
    return np.array(values, np.float32, order="C")


class LogitsInBf16(Reference):
    def round_logits(self, z: Array) -> Array:
        return z.astype(ml_dtypes.bfloat16).astype(np.float32)


class LogitsInFp16(Reference):
    def round_logits(self, z: Array) -> Array:
        return z.astype(np.float16).astype(np.float32)


class TileDroppedAtOddV(Reference):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        odd = len(z) % 2 == 1 and len(z) > TILE
        return super().max_and_log_sum(z[: len(z) // TILE * TILE] if odd else z, num_rows)


class MaxStartsAtZero(Reference):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        biggest = np.maximum(z.max(), np.float32(0))
        return biggest, np.log(np.exp(z - biggest).sum(dtype=np.float32))


class TemperatureTwice(Reference):
    def scale(self, z: Array, inverse: np.float32) -> Array:
        return z * inverse * inverse


class NoTemperatureInBackward(Reference):
    def backward_scale(self, rows: Rows, row: int) -> np.float32:
        return np.float32(1)


class WeightGradientInBf16(Reference):
    def weight_gradient(self, dz: Array, rows: Rows) -> Array:
        total = np.zeros(rows.weight.shape, ml_dtypes.bfloat16)
        for row in range(len(dz)):
            total = (total + np.outer(dz[row], rows.hidden[row])).astype(ml_dtypes.bfloat16)
        return total.astype(np.float32)


class GradientOffByOneRow(Reference):
    def gradient_row(self, place: int, num_rows: int) -> int:
        return (place + 1) % num_rows


class TargetNarrowedToInt32(Reference):
    def read_target(self, target: Array) -> Array:
        return target.astype(np.int64).astype(np.int32).astype(np.int64)


class SplitDependsOnN(Reference):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        biggest = z.max()
        parts = np.array_split(np.exp(z - biggest), 1 if num_rows > 16 else 4)
        total = np.float32(0)
        for part in parts:
            total = total + part.sum(dtype=np.float32)
        return biggest, np.log(total)


def added_in_one_chain(terms: Array) -> Array:
    """A row's leaves of 128 columns, one after another: roundings of like terms have one sign."""
    starts = np.arange(0, terms.shape[-1], 128)
    leaves = np.add.reduceat(terms, starts, axis=-1, dtype=np.float32)
    return leaves.cumsum(-1, dtype=np.float32)[..., -1]


class LeavesInOneChain(Reference):
    def max_and_log_sum(self, z: Array, num_rows: int) -> tuple[np.float32, np.float32]:
        biggest = z.max()
        return biggest, np.log(added_in_one_chain(np.exp(z - biggest)))


class TailUnwritten(Reference):
    def __call__(self, *args: Array, out: Array, **kwargs: Array) -> Array:
        computed = super().__call__(*args, **kwargs)
        num_written = computed.size // 4 * 4  # whole vectors of four only
        out.reshape(-1)[:num_written] = computed.reshape(-1)[:num_written]
        return out


class InputChanged(Reference):
    def finish(self, out: Array, rows: Rows) -> Array:
        if rows.given_hidden.size:
            rows.given_hidden[...] = rows.given_hidden * 2  # as a scale applied in place
        return out


class AccumulatorReused(Reference):
    def __init__(self) -> None:
        self.total: dict[tuple[int, ...], Array] = {}

    def weight_gradient(self, dz: Array, rows: Rows) -> Array:
        before = self.total.get(rows.weight.shape, np.float32(0))
        total = before + super().weight_gradient(dz, rows)
        self.total[rows.weight.shape] = total
        return total


class BiasTwice(Reference):
    def add_bias(self, z: Array, bias: Array) -> Array:
        return z + bias + bias


class MaskedRowLeaksIntoWeight(Reference):
    def weight_gradient(self, dz: Array, rows: Rows) -> Array:
        full = np.zeros((len(rows.active), dz.shape[1]), np.float32)
        full[rows.places] = dz
        with np.errstate(invalid="ignore"):
            return full.T @ rows.all_hidden  # 0 * NaN


class GradientOfSumOnly(Reference):
    def upstream(self, g: Array) -> Array:
        return np.full_like(g, g[0]) if g.size else g


class NoCapInBackward(Reference):
    def slope(self, slope: Array) -> Array:
        return np.float32(1)


class ScaleAfterCap(Reference):
    def shape(
        self, x: Array, softcap: np.float32 | None, logit_scale: np.float32, inverse: np.float32
    ) -> tuple[Array, Array]:
        x, slope = self.cap(x, softcap)
        return self.scale(x * logit_scale, inverse), slope


class CapAfterTemperature(Reference):
    def shape(
        self, x: Array, softcap: np.float32 | None, logit_scale: np.float32, inverse: np.float32
    ) -> tuple[Array, Array]:
        return self.cap(self.scale(x * logit_scale, inverse), softcap)


class CapClips(Reference):
    def cap(self, x: Array, softcap: np.float32 | None) -> tuple[Array, Array]:
        if softcap is None:
            return x, np.float32(1)
        return np.clip(x, -softcap, softcap), np.float32(np.abs(x) < softcap)


class NoScaleInBackward(Reference):
    def backward_scale(self, rows: Rows, row: int) -> np.float32:
        return rows.inverse[row]


class NoEntropyGradient(Reference):
    def away(self, z: Array, biggest: np.float32, log_sum: np.float32) -> Array:
        return np.zeros_like(z)


class EntropyOfTheLogProbAlone(Reference):
    def away(self, z: Array, biggest: np.float32, log_sum: np.float32) -> Array:
        return np.where(z == -np.inf, np.float32(0), (z - biggest) - log_sum)  # without H


class LogSumAsLse(Reference):
    def log_sum_exp(self, biggest: np.float32, log_sum: np.float32) -> np.float32:
        return log_sum


class TupleEvenWhereOneIsAsked(Reference):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = super().__call__(*args, **kwargs)
        return found if isinstance(found, tuple) else (found, None, None)


class ColumnOffByALeaf(Reference):
    def max_and_column(self, z: Array) -> tuple[np.float32, int]:
        biggest, column = super().max_and_column(z)
        return biggest, column + TILE if 0 <= column < len(z) - TILE else column


class MeanOverPaddedColumns(Reference):
    def mean(self, z: Array) -> np.float32:
        return z.sum(dtype=np.float32) / np.float32(-(-len(z) // TILE) * TILE)


class SquaresNotMoved(Reference):
    """Tiles about their own maxima, added as they are."""

    def sum_p2(self, z: Array) -> np.float32:
        tiles = np.split(z, range(TILE, len(z), TILE))
        terms = [np.exp(tile - max(tile.max(), np.float32(-1e30))) for tile in tiles]
        squares = sum((part * part).sum(dtype=np.float32) for part in terms)
        return squares / np.exp(z - z.max()).sum(dtype=np.float32) ** 2


class StatisticsOfInactiveRows(Reference):
    """Zeros, of the argmax too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = super().__call__(*args, **kwargs)
        if kwargs.get("return_stats"):
            argmax = found[3][1]
            argmax[argmax < 0] = 0
        return found


class LogProbRoundedBesideEntropy(Reference):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = super().__call__(*args, **kwargs)
        if not kwargs.get("return_entropy"):
            return found
        return np.nextafter(found[0], np.float32(-np.inf)), *found[1:]  # within every bound


REFERENCE = Reference()  # for MODULE:FUNCTION

# Defect -> the failure kinds that may name it first; the suite must find one of them.
BROKEN: dict[Callable[[], Reference], set[str]] = {
    LogitsInBf16: {"accuracy"},
    LogitsInFp16: {"accuracy"},
    TileDroppedAtOddV: {"accuracy"},
    MaxStartsAtZero: {"nonfinite"},
    TemperatureTwice: {"accuracy"},
    NoTemperatureInBackward: {"grad_accuracy"},
    WeightGradientInBf16: {"grad_accuracy"},
    GradientOffByOneRow: {"grad_accuracy"},
    TargetNarrowedToInt32: {"bad_input_accepted"},
    SplitDependsOnN: {"batch_variant"},
    LeavesInOneChain: {"accuracy"},
    TailUnwritten: {"unwritten"},
    InputChanged: {"input_changed"},
    AccumulatorReused: {"nondeterministic"},
    BiasTwice: {"accuracy"},
    MaskedRowLeaksIntoWeight: {"grad_nonfinite"},
    GradientOfSumOnly: {"grad_accuracy"},
    NoCapInBackward: {"grad_accuracy"},
    ScaleAfterCap: {"accuracy"},
    CapAfterTemperature: {"accuracy"},
    CapClips: {"accuracy"},
    NoScaleInBackward: {"grad_accuracy"},
    NoEntropyGradient: {"grad_accuracy"},
    EntropyOfTheLogProbAlone: {"grad_accuracy"},
    LogSumAsLse: {"accuracy"},
    TupleEvenWhereOneIsAsked: {"arity"},
    ColumnOffByALeaf: {"accuracy"},
    MeanOverPaddedColumns: {"accuracy"},
    SquaresNotMoved: {"accuracy"},
    StatisticsOfInactiveRows: {"inactive"},
    LogProbRoundedBesideEntropy: {"beside_variant"},
}
