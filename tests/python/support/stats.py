# SPDX-License-Identifier: Apache-2.0
"""Statistics of logits (return_stats) against the exact logits of a reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from reference import Bounded, Exact, Reference, as_float64, assert_within, same_bits

FIELDS = ("max_logit", "argmax", "mean_logit", "sum_p2")
STATS = {"return_stats": True}


def rows_of(exact: Reference | Exact) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The logits z [rows, V] of active rows, how far each row's may be off, which are active."""
    active = exact.active.reshape(-1)
    z = exact.rows.z.reshape(-1, exact.rows.z.shape[-1])
    if isinstance(exact, Reference):
        return z, exact.rounding, active
    return z[active], exact.off.reshape(-1)[active], active


def check_stats(stats: Any, exact: Reference | Exact) -> None:
    """Every statistic is right, and that of an inactive row neutral. Where logits are exact, so is
    the column of the maximum; else its logit may be off as two of them may."""
    z, off, active = rows_of(exact)
    lead = stats.argmax.shape
    for name, dtype in zip(FIELDS, ("float32", "int64", "float32", "float32"), strict=True):
        value = getattr(stats, name)
        assert str(value.dtype).removeprefix("torch.") == dtype
        assert tuple(value.shape) == tuple(exact.lead)
    for name, rows in expected(z, off).items():
        full = [np.zeros(active.shape), np.zeros(active.shape)]
        full[0][active], full[1][active] = rows.value, rows.bound
        bounded = Bounded(full[0].reshape(lead), full[1].reshape(lead))
        assert_within(getattr(stats, name), bounded, name)
    argmax = as_float64(stats.argmax).astype(np.int64).reshape(-1)
    assert (argmax[~active] == -1).all()
    check_argmax(argmax[active], z, off)


def expected(z: np.ndarray, off: np.ndarray) -> dict[str, Bounded]:
    with np.errstate(all="ignore"):
        top = z.max(-1)
        p = np.exp(z - np.where(np.isinf(top), 0, top)[:, None])
        p = p / p.sum(-1, keepdims=True)
        sum_p2 = (p * p).sum(-1)
        finite = np.where(np.isfinite(z), np.abs(z), 0).mean(-1)
        odd = ~(top < np.inf)  # a row with NaN or +inf has no maximum
        return {
            "max_logit": Bounded(np.where(odd, np.nan, top), off + 0.0),
            "mean_logit": Bounded(z.mean(-1), off + 2e-6 * finite),
            "sum_p2": Bounded(np.where(odd, np.nan, sum_p2), sum_p2 * np.expm1(4 * off + 1e-5)),
        }


def check_argmax(argmax: np.ndarray, z: np.ndarray, off: np.ndarray) -> None:
    for row, (column, error) in enumerate(zip(argmax, off, strict=True)):
        top = z[row].max()
        if not top < np.inf:
            assert column == -1
        elif error == 0:
            assert column == z[row].argmax()
        else:
            assert 0 <= column < z.shape[1]
            assert z[row, column] == top or z[row, column] >= top - 2 * error


def same_stats(first: Any, second: Any) -> bool:
    return all(same_bits(one, other) for one, other in zip(first, second, strict=True))
