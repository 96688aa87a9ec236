# SPDX-License-Identifier: Apache-2.0
"""Triton kernels to compare host times with: a small fused log-prob, and one that does nothing."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _logp(
    hidden,
    weight,
    target,
    logp,
    num_rows,
    dim,
    vocab,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    wanted = tl.load(target + rows, mask=inside, other=0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    chosen = tl.zeros((ROWS,), tl.float32)
    for first in range(0, vocab, COLS):
        cols = first + tl.arange(0, COLS)
        logits = tl.zeros((ROWS, COLS), tl.float32)
        for start in range(0, dim, DEPTH):
            depth = start + tl.arange(0, DEPTH)
            a = tl.load(
                hidden + rows[:, None].to(tl.int64) * dim + depth[None, :],
                mask=inside[:, None] & (depth < dim)[None, :],
                other=0.0,
            )
            b = tl.load(
                weight + cols[None, :].to(tl.int64) * dim + depth[:, None],
                mask=(cols < vocab)[None, :] & (depth < dim)[:, None],
                other=0.0,
            )
            logits = tl.dot(a, b, logits)
        logits = tl.where((cols < vocab)[None, :], logits, float("-inf"))
        chosen += tl.sum(tl.where(cols[None, :] == wanted[:, None], logits, 0.0), 1)
        higher = tl.maximum(best, tl.max(logits, 1))
        total = total * tl.exp(best - higher) + tl.sum(tl.exp(logits - higher[:, None]), 1)
        best = higher
    tl.store(logp + rows, chosen - best - tl.log(total), mask=inside)


def linear_logp(hidden: Any, weight: Any, target: Any) -> Any:
    """Forward alone, [N, D] and [V, D] contiguous."""
    logp = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
    grid = (triton.cdiv(len(hidden), 64),)
    _logp[grid](
        hidden,
        weight,
        target,
        logp,
        *hidden.shape,
        len(weight),
        ROWS=64,
        COLS=128,
        DEPTH=64,
        num_warps=4,
        num_stages=3,
    )
    return logp


@triton.jit
def nothing(
    hidden, weight, target, mask, logp, row_max, row_log_sum,
    num_rows, dim, vocab, hidden_pitch, weight_pitch, target_stride, ignore_index,
    inverse_temperature,
):  # fmt: skip
    """As many arguments as a plain log-prob kernel has; returns at once."""
    if num_rows < 0:
        tl.store(logp, inverse_temperature)
