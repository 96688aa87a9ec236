# SPDX-License-Identifier: Apache-2.0
"""rlk's ops over ranks, and the same with one defect planted in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import rlk
from rlk.check.ranks import Ranks

Array = Any


class AddedInAChain(Ranks):
    """((0 + 1) + 2) + 3, as a ring may add."""

    def total(self, partials: list[Array], hidden: Array) -> Array:
        total = partials[0]
        for partial in partials[1:]:
            total = total + partial
        return total


class RoundedBeforeTheSum(Ranks):
    def total(self, partials: list[Array], hidden: Array) -> Array:
        rounded = [self.rounded(partial, hidden).astype(np.float32) for partial in partials]
        return super().total(rounded, hidden)


class IdsOffByTheBegin(Ranks):
    """A rank looks for ids of the whole among its own."""

    def shard(self, given: Mapping[str, Any], begin: int, end: int) -> tuple[int, int, int]:
        return 0, *super().shard(given, begin, end)[1:]


class JoinedInAnotherOrder(Ranks):
    """The same parts, other neighbours."""

    def in_order(self, parts: list[Array]) -> Array:
        return super().in_order(parts[::2] + parts[1::2])


class SegmentsOfTheRank(Ranks):
    """A rank cuts its own ids into eight, not the whole vocabulary."""

    def shard(self, given: Mapping[str, Any], begin: int, end: int) -> tuple[int, int, int]:
        return *super().shard(given, begin, end)[:2], 0


class LastRankLeftOut(Ranks):
    def total(self, partials: list[Array], hidden: Array) -> Array:
        return super().total(partials[:-1] or partials, hidden)


#: Defect -> the op and the type of inputs in which it is to be found.
BROKEN: dict[type[Ranks], tuple[str, str]] = {
    AddedInAChain: ("linear_logp", "float32"),
    RoundedBeforeTheSum: ("linear_logp", "bfloat16"),
    IdsOffByTheBegin: ("linear_logp", "float32"),
    JoinedInAnotherOrder: ("linear_logp", "float32"),
    SegmentsOfTheRank: ("linear_logp", "float32"),
    LastRankLeftOut: ("linear_logp", "float32"),
}
OF_LOGITS = (IdsOffByTheBegin, JoinedInAnotherOrder, SegmentsOfTheRank)


def candidate(op: str, ranks: Ranks) -> Any:
    """rlk's op on NumPy arrays, over ranks of this kind."""

    def function(**arguments: Any) -> Any:
        return getattr(rlk.jit, op)(**arguments)

    def backward(grad: Any, **arguments: Any) -> Any:
        if op == "linear_logp":
            return rlk.jit.linear_logp_backward(grad, **arguments)
        del arguments["needs"]
        return (rlk.jit.logp_backward(grad, **arguments),)

    function.framework = "numpy"  # type: ignore[attr-defined]
    function.backward = backward  # type: ignore[attr-defined]
    function.over_ranks = ranks  # type: ignore[attr-defined]
    return function
