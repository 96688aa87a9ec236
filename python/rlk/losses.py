# SPDX-License-Identifier: Apache-2.0
"""Policy losses of other systems as rules that `rlk.jit.ppo_loss` takes, side by side.

`DIALECTS` is the table: what each system's loss does where they disagree. `ADVANTAGES` is that of
`rlk.jit.group_advantages`. `diff` prints the rules in which two of them differ, and the loss and
gradient under each. `combine` adds up micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import zip_longest
from typing import Any

import numpy as np

from rlk._metrics import Metrics, combine
from rlk._ops.grpo_loss import check_options
from rlk._ops.ppo_loss import INPUTS, OPTIONS, ppo_loss, ppo_loss_backward
from rlk._rules import (
    ADVANTAGES,
    DIALECTS,
    POLICY_LOSSES,
    REDUCTIONS,
    AdvantageRules,
    Rules,
    advantage_rules,
    rules,
)
from rlk.errors import fail

__all__ = [
    "ADVANTAGES",
    "DIALECTS",
    "POLICY_LOSSES",
    "REDUCTIONS",
    "AdvantageRules",
    "Metrics",
    "Rules",
    "advantage_rules",
    "combine",
    "diff",
    "rules",
]


def diff(a: str, b: str, batch: Mapping[str, Any] | None = None, **options: Any) -> str:
    """The rules in which two dialects differ, a line each, and what the loss is under each.

    Those of the advantages come after those of the loss. Losses that agree may have gradients that
    do not, so with a batch there are both: the loss, the gradient's largest entry, and the largest
    difference of two entries as a part of it.

    Args:
        a, b: names in `DIALECTS`.
        batch: arguments of `rlk.jit.ppo_loss` by name (log_probs, old_log_probs, advantages,
            loss_mask, ...); None: rules alone.
        options: options of `ppo_loss` for both losses, such as policy_loss="gspo"; with a batch.

    Returns:
        The text; print it.

    Raises:
        rlk.InvalidArgument: an unknown dialect, options without a batch, or as `ppo_loss`.
        TypeError: an option that does not exist.

    Example:
        >>> print(rlk.losses.diff("verl", "trl"))
        rule                           verl           trl
        use_dual_clip                  True           False
        ...
        group_advantages.group_of_one  reward         zero
    """
    rows: list[tuple[str, ...]] = [("rule", a, b)]
    pairs: list[tuple[str, Any, Any]] = [("", rules(a), rules(b))]
    pairs.append(("group_advantages.", advantage_rules(a), advantage_rules(b)))
    for place, first, second in pairs:
        for field in fields(first):
            values = (getattr(first, field.name), getattr(second, field.name))
            if values[0] != values[1]:
                sides = (_texts(value) for value in values)
                rows += zip_longest([place + field.name], *sides, fillvalue="")
    check_options("ppo_loss", options, OPTIONS.difference({"dialect"}).union(INPUTS), {})
    if batch is None and options:
        fail("ppo_loss", "batch", f"one with {next(iter(options))}", "None")
    if batch is not None:
        if not isinstance(batch, Mapping):
            fail("ppo_loss", "batch", "a dict of arguments by name", type(batch).__name__)
        rows += _outcomes(a, b, {**batch, **options})
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{r[0]:<{widths[0]}}  {r[1]:<{widths[1]}}  {r[2]}" for r in rows]
    return "\n".join(map(str.rstrip, lines))


def _outcomes(a: str, b: str, arguments: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the loss and of the gradient of log_probs under two dialects."""
    losses, grads = [], []
    tensors = {k: v.detach() if hasattr(v, "detach") else v for k, v in arguments.items()}
    for dialect in (a, b):
        loss = ppo_loss(**tensors, dialect=dialect).loss
        one = loss.new_ones(()) if hasattr(loss, "new_ones") else np.ones((), np.float32)
        found = ppo_loss_backward(one, **tensors, dialect=dialect, needs=("log_probs",))
        grad: Any = found.log_probs
        losses.append(float(loss))
        grad = grad.cpu().double() if hasattr(grad, "cpu") else grad
        grads.append(np.asarray(grad, np.float64))
    largest = [float(np.abs(grad).max(initial=0.0)) for grad in grads]
    off = float(np.abs(grads[0] - grads[1]).max(initial=0.0))
    part = off / max(*largest, np.finfo(np.float64).tiny)
    return [
        ("loss", *(f"{loss:.9g}" for loss in losses)),
        ("largest gradient", *(f"{size:.9g}" for size in largest)),
        ("gradients differ by", f"{part:.3g}", "of the largest"),
    ]


def _texts(value: Any) -> list[str]:
    """A value in lines: pairs one a line."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return [f"{name}: {meaning}" for name, meaning in value]
    if isinstance(value, tuple) and all(isinstance(word, str) for word in value):
        return [", ".join(value) or "-"]
    return [str(value)]
