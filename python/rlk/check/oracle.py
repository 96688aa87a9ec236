# SPDX-License-Identifier: Apache-2.0
"""Exact answers in float64, in blocks of the vocabulary, and the sums that bounds are made of.

Independent of every kernel: NumPy alone, plain two-pass softmax, nothing shared with rlk's own
templates. The formulas of the bounds are derived in docs/checking.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
BLOCK_ELEMENTS = 1 << 21  # of one [rows, vocabulary block] array


@dataclass(frozen=True)
class Bounded:
    """An exact value and how far a correct kernel may be from it, element by element."""

    value: Array
    bound: Array


@dataclass(frozen=True)
class LinearRows:
    """A linear head's active rows in float64: hidden [N, D], weight [V, D], target and
    temperature [N], bias [V] or None."""

    hidden: Array
    weight: Array
    target: Array
    temperature: Array
    bias: Array | None

    def blocks(self) -> Iterator[tuple[slice, Array, Array]]:
        """(columns, logits, magnitudes a_v), a block of the vocabulary at a time."""
        rows, vocab = self.hidden.shape[0], self.weight.shape[0]
        width = max(1, BLOCK_ELEMENTS // max(rows, 1))
        magnitude = np.abs(self.hidden)
        for start in range(0, vocab, width):
            columns = slice(start, min(start + width, vocab))
            logits = self.hidden @ self.weight[columns].T
            sizes = magnitude @ np.abs(self.weight[columns]).T
            if self.bias is not None:
                logits = logits + self.bias[columns]
                sizes = sizes + np.abs(self.bias[columns])
            yield columns, logits / self.temperature[:, None], sizes / self.temperature[:, None]


@dataclass(frozen=True)
class LinearLogprob:
    """The forward's answer a row: log p, its bound B, and what the backward needs."""

    logp: Array
    bound: Array  # B with |log p|; for a target at -inf, B without that term
    maximum: Array
    log_sum: Array


def linear_logprob(rows: LinearRows, c: Mapping[str, float]) -> LinearLogprob:
    """log p of the targets and B, with the coefficients of class linear_logprob.

    B = atol + rtol * |log p| + (chain_slope * D + chain_constant) * chain_unit * max a_v, the max
    over the finite logits.
    """
    num_rows, depth = rows.hidden.shape
    maximum = np.full(num_rows, -np.inf)
    largest = np.zeros(num_rows)
    chosen = np.zeros(num_rows)
    with np.errstate(all="ignore"):
        for columns, logits, sizes in rows.blocks():
            maximum = np.maximum(maximum, logits.max(axis=1))
            finite = np.where(np.isfinite(logits), sizes, 0.0)
            largest = np.maximum(largest, finite.max(axis=1))
            here = (rows.target >= columns.start) & (rows.target < columns.stop)
            chosen[here] = logits[here, rows.target[here] - columns.start]
        total = np.zeros(num_rows)
        for _, logits, _ in rows.blocks():
            total += np.exp(logits - maximum[:, None]).sum(axis=1)
        log_sum = np.log(total)
        logp = (chosen - maximum) - log_sum
        distance = np.where(np.isfinite(logp), np.abs(logp), 0.0)
        bound = c["atol"] + c["rtol"] * distance + chain(c, depth) * largest
    return LinearLogprob(logp, bound, maximum, log_sum)


def linear_logprob_gradients(
    rows: LinearRows,
    upstream: Array,
    forward: LinearLogprob,
    c: Mapping[str, float],
    store: Mapping[str, Mapping[str, float]],
) -> dict[str, Bounded]:
    """Gradients for hidden [N, D], weight [V, D] and bias [V], with the coefficients of class
    linear_logprob_grad; `store` has those of each asked gradient's own storage type.

    |error| <= store_rtol * |x| + store_atol + sum of E * |other factor|, where
    E = factor_rtol * |dZ| + |g| * (p * B + probability_floor) + chain * |dZ|.
    """
    num_rows, depth = rows.hidden.shape
    vocab = rows.weight.shape[0]
    scale = upstream / rows.temperature
    hidden, hidden_error = np.zeros((num_rows, depth)), np.zeros((num_rows, depth))
    weight, weight_error = np.zeros((vocab, depth)), np.zeros((vocab, depth))
    bias, bias_error = np.zeros(vocab), np.zeros(vocab)
    magnitude = np.abs(rows.hidden)
    with np.errstate(all="ignore"):
        for columns, logits, _ in rows.blocks():
            p = np.exp(logits - forward.maximum[:, None] - forward.log_sum[:, None])
            factor = -p
            here = (rows.target >= columns.start) & (rows.target < columns.stop)
            where = (np.flatnonzero(here), rows.target[here] - columns.start)
            # A target at -inf has p = 0 and no gradient in its own column.
            factor[where] += np.where(logits[where] == -np.inf, 0.0, 1.0)
            dz = scale[:, None] * factor
            size = np.abs(dz)
            rounding = np.abs(scale)[:, None] * (
                p * forward.bound[:, None] + c["probability_floor"]
            )
            rounding += c["factor_rtol"] * size
            over_vocab = rounding + chain(c, vocab) * size
            over_rows = rounding + chain(c, num_rows) * size
            block = rows.weight[columns]
            hidden += dz @ block
            hidden_error += over_vocab @ np.abs(block)
            weight[columns] = dz.T @ rows.hidden
            weight_error[columns] = over_rows.T @ magnitude
            bias[columns] = dz.sum(axis=0)
            bias_error[columns] = over_rows.sum(axis=0)
    exact = {"hidden": hidden, "weight": weight, "bias": bias}
    errors = {"hidden": hidden_error, "weight": weight_error, "bias": bias_error}
    return {
        name: Bounded(
            exact[name],
            errors[name] + s["store_rtol"] * np.abs(exact[name]) + s["store_atol"],
        )
        for name, s in store.items()
    }


def chain(c: Mapping[str, float], length: int) -> float:
    """The relative error that a product of `length` terms, summed in fp32, may have."""
    return (c["chain_slope"] * length + c["chain_constant"]) * c["chain_unit"]
