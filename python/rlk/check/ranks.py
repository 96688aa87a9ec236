# SPDX-License-Identifier: Apache-2.0
"""rlk's ops as ranks that share the vocabulary compute them, one after another in one process.

Each rank has its node of the tree of eight segments. The methods are the steps in which ranks
could differ from one device; tests plant their defects there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rlk import _core

from .options import options_of

Array = Any  # of NumPy or torch
SEGMENTS = 8  # of a vocabulary


class Ranks:
    """A call of `op`, linear_logp or logp, on so many ranks: `Candidate.over_ranks`."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._matrix = "weight" if op == "linear_logp" else "logits"
        self._defaults = {**options_of(op), "stream": None, "accumulate_into": None}
        self._forward, self._join, self._backward = (
            getattr(_core, f"{op}_{step}") for step in ("forward", "join", "backward")
        )

    def __call__(
        self,
        num_ranks: int,
        arguments: Mapping[str, Any],
        grads: Mapping[str, Array],
        needs: Sequence[str],
    ) -> dict[str, Any]:
        """Outputs and gradients of the whole, by name.

        Args:
            num_ranks: 1, 2, 4 or 8.
            arguments: of the op, by name; those at their defaults may be left out.
            grads: gradients of the outputs, by the names that a backward takes them by.
            needs: the arguments that a gradient is asked for.
        """
        given = {**self._defaults, "bias": None, **arguments}
        cuts = self.cuts(given, num_ranks)
        own = [self.own(given, *cut) for cut in cuts]
        shards = [self.shard(given, *cut) for cut in cuts]
        parts, kept = [], []
        for one, shard, (begin, end) in zip(own, shards, cuts, strict=True):
            part, keeps = self.part(one, shard, begin == end)
            parts.append(part)
            kept.append(keeps)
        joined = self._join(own[0], self.in_order(parts), shards[0], True)
        log_prob, entropy, lse, row_max, row_log_sum = joined[:5]
        found = {"logp": log_prob, "entropy": entropy, "lse": lse}
        if given["return_stats"]:
            names = ("max_logit", "argmax", "mean_logit", "sum_p2")
            found |= dict(zip(names, joined[-1], strict=True))
        if not needs:
            return found
        rows = {
            **dict.fromkeys(("grad_output", "grad_entropy", "grad_lse")),
            **grads,
            "row_max": row_max,
            "row_log_sum": row_log_sum,
            "entropy": entropy,
            "log_prob": log_prob,
        }
        of_ranks = [
            self.gradients({**one, **rows}, keeps, needs, shard)
            for one, keeps, shard, (begin, end) in zip(own, kept, shards, cuts, strict=True)
            if begin < end
        ]
        for name in needs:
            each = [one[name] for one in of_ranks]
            if name == "hidden":
                found[name] = self.rounded(self.total(each, given[name]), given[name])
            else:
                found[name] = _module_of(each[0]).concatenate(each, -1 if name == "logits" else 0)
        return found

    # The steps that a defect replaces.

    def cuts(self, given: Mapping[str, Any], num_ranks: int) -> list[tuple[int, int]]:
        """[begin, end) of each rank's ids."""
        vocab = _vocab(given, self._matrix)
        each = SEGMENTS // num_ranks * -(-vocab // SEGMENTS)
        starts = [min(rank * each, vocab) for rank in range(num_ranks + 1)]
        return list(pairwise(starts))

    def shard(self, given: Mapping[str, Any], begin: int, end: int) -> tuple[int, int, int]:
        """What the core is told of a rank: its first id, the number of all, those of a segment."""
        vocab = _vocab(given, self._matrix)
        return 0 if begin == end else begin, vocab, -(-vocab // SEGMENTS)

    def part(self, own: Mapping[str, Any], shard: Any, is_empty: bool) -> tuple[Array, Any]:
        """A rank's part of the outputs, and what its forward keeps."""
        found = self._forward(own, True, shard=shard, **_keep(self._op, not is_empty))
        part, kept = found
        if is_empty:  # it had one column, which counts for nothing
            part[...] = 0
            part[1] = -float("inf")  # the maximum
        return part, kept

    def in_order(self, parts: list[Array]) -> Array:
        """The parts as the join takes them, [ranks, values, rows]."""
        return _module_of(parts[0]).stack(parts)

    def total(self, partials: list[Array], hidden: Array) -> Array:
        """The ranks' float32 sums of hidden's gradient, added as the tree of segments is."""
        while len(partials) > 1:
            odd = partials[len(partials) // 2 * 2 :]  # those behind it have no ids
            partials = [a + b for a, b in zip(partials[::2], partials[1::2], strict=False)] + odd
        return partials[0]

    def rounded(self, total: Array, hidden: Array) -> Array:
        """In the dtype of hidden."""
        if hasattr(total, "astype"):
            return total.astype(hidden.dtype)
        return total.to(hidden.dtype)

    # The rest.

    def own(self, given: Mapping[str, Any], begin: int, end: int) -> dict[str, Any]:
        """The arguments of a rank; one that has no ids has one column, of zeros."""
        matrix, bias = given[self._matrix], given["bias"]
        part = slice(begin, end) if begin < end else slice(0, 1)
        cut = matrix[part] if self._matrix == "weight" else matrix[..., part]
        if begin == end:
            cut = cut * 0
        return {**given, self._matrix: cut, "bias": None if bias is None else bias[part]}

    def gradients(
        self, arguments: dict[str, Any], kept: Any, needs: Sequence[str], shard: Any
    ) -> dict[str, Array]:
        """A rank's gradients by name, of hidden its float32 sums."""
        if self._op == "logp":
            return {"logits": self._backward(arguments, shard=shard)}
        if kept is not None and arguments["grad_entropy"] is None:
            memory, target = kept
            arguments |= {"kept": memory, "kept_target": target, "may_overwrite_kept": True}
        wanted = [name in needs for name in ("hidden", "weight", "bias")]
        hidden, weight, bias = self._backward(arguments, *wanted, True, False, shard)
        return {"hidden": hidden, "weight": weight, "bias": bias}


def _keep(op: str, keeps: bool) -> dict[str, bool]:
    return {"keep": keeps} if op == "linear_logp" else {}


def _vocab(given: Mapping[str, Any], matrix: str) -> int:
    return int(given[matrix].shape[0 if matrix == "weight" else -1])


def _module_of(array: Array) -> Any:
    import numpy

    if isinstance(array, numpy.ndarray):
        return numpy
    import torch

    return torch
