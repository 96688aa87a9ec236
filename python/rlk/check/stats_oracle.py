# SPDX-License-Identifier: Apache-2.0
"""Statistics of logits in float64, with bounds as those of a log-prob."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .oracle import Array, Bounded, LinearLogprob, LinearRows, LogitRows

NAMES = ("max_logit", "argmax", "mean_logit", "sum_p2")


def logit_stats(
    rows: LinearRows | LogitRows, forward: LinearLogprob, c: Mapping[str, float]
) -> dict[str, Bounded]:
    """Of active rows, by name; c as in `linear_logprob`, whose answer `forward` is.

    With r, how far a logit may be off, the bounds are rtol |max| + r of the maximum, atol + rtol *
    mean |z| + r of the mean, and expm1(4 (atol + r)) sum_p2 of the sum of p^2, whose logarithm
    moves by four times what moves every logit. The column of the maximum is exact where r is 0;
    else it is one whose logit is within 2 r of the maximum.
    """
    num_rows, top = rows.target.shape[0], forward.maximum
    largest, total, size, sum_p2 = np.zeros((4, num_rows))
    vocab, column = 0, np.full(num_rows, -1)
    lowest, highest = np.full(num_rows, -1), np.full(num_rows, -1)
    odd = ~(top < np.inf)  # a row with NaN or +inf has no maximum
    with np.errstate(all="ignore"):
        for block in rows.blocks():
            finite = np.isfinite(block.logits) & np.isfinite(block.sizes)
            largest = np.maximum(largest, np.where(finite, block.sizes, 0.0).max(axis=1))
            size += np.where(finite, np.abs(block.logits), 0.0).sum(axis=1)
            total += block.logits.sum(axis=1)
            sum_p2 += np.exp(2 * (block.logits - top[:, None] - forward.log_sum[:, None])).sum(
                axis=1
            )
            vocab = block.columns.stop
        rounding = forward.logit_rtol * largest
        for block in rows.blocks():
            start = block.columns.start
            column = _or_first(column, block.logits == top[:, None], start)
            # inf - inf is no number: a row of only -inf has the maximum everywhere.
            near = (block.logits >= (top - 2 * rounding)[:, None]) | (block.logits == top[:, None])
            lowest = _or_first(lowest, near, start)
            last = near.shape[1] - 1 - near[:, ::-1].argmax(axis=1)
            highest = np.where(near.any(axis=1), start + last, highest)
        off = np.where(rounding > 0, np.maximum(column - lowest, highest - column), 0)
        scale = c["atol"] + c["rtol"] * size / vocab + rounding
        return {
            "max_logit": Bounded(np.where(odd, np.nan, top), c["rtol"] * np.abs(top) + rounding),
            "argmax": Bounded(np.where(odd, -1, column), np.where(odd, 0, off)),
            "mean_logit": Bounded(total / vocab, scale),
            "sum_p2": Bounded(sum_p2, sum_p2 * np.expm1(4 * (c["atol"] + rounding))),
        }


def _or_first(found: Array, here: Array, start: int) -> Array:
    """The column found so far, or the first of this block that is."""
    first = np.where(here.any(axis=1), start + here.argmax(axis=1), -1)
    return np.where(found < 0, first, found)


def spread(name: str, rows: Bounded, active: Array) -> Bounded:
    return rows.spread(active, -1.0 if name == "argmax" else 0.0)
