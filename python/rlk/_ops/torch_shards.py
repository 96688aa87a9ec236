# SPDX-License-Identifier: Apache-2.0
"""A core for calls whose vocabulary ranks share: each function computes this rank's part, and the
ranks make the whole of their parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.torch_ranks import Ranks, fact


class Cut(NamedTuple):
    """The ids [begin, end) of [0, vocab_size) that a rank has. `segment`: columns of a segment of
    the whole vocabulary where the rank has its node of the segments' tree, else 0; `is_even`: all
    ranks are to have as many ids."""

    begin: int
    end: int
    vocab_size: int
    segment: int
    is_even: bool


class Shards:
    """Has functions of the core, with their arguments and results; all ranks call each alike."""

    def __init__(self, ranks: Ranks, cut: Cut, gathers_rows: bool) -> None:
        self._ranks = ranks
        self._cut = cut
        self._gathers_rows = gathers_rows  # of hidden, of which each rank has its own
        # Calls of a rank without ids have one column, which counts for nothing.
        self._is_empty = cut.begin == cut.end
        self._shard = (0 if self._is_empty else cut.begin), cut.vocab_size, cut.segment

    def linear_logp_forward(
        self, arguments: Arguments, save: bool = False, keep: bool = False
    ) -> tuple[Any, ...]:
        if self._gathers_rows:
            self._agree(arguments, "weight", save, is_last=False)
        given = self._with_all_rows(arguments)
        if self._is_empty:
            given["weight"] = given["weight"].new_zeros((1, given["weight"].shape[-1]))
            given["bias"] = None
            parts, kept = (
                _nothing(_core.linear_logp_forward(given, save, False, self._shard)),
                None,
            )
        else:
            parts, kept = _core.linear_logp_forward(given, save, keep, self._shard)
        self._agree(arguments, "weight", save)
        found = _core.linear_logp_join(given, self._ranks.gathered(parts), self._shard)
        return (*found[:5], kept, *found[6:])

    def linear_logp_backward(
        self,
        arguments: Arguments,
        needs_hidden: bool,
        needs_weight: bool,
        needs_bias: bool,
        sums_of_hidden: bool = False,
        sums_of_weight: bool = False,
    ) -> tuple[Any, Any, Any]:
        given = self._with_all_rows(arguments)
        if self._is_empty:
            kind = torch.float32 if sums_of_weight else None
            shape = given["hidden"].shape
            hidden = given["hidden"].new_zeros(shape, dtype=torch.float32)
            weight = bias = None
            if needs_weight and given["accumulate_into"] is None:
                weight = torch.empty_like(given["weight"], dtype=kind)
            if needs_bias:
                bias = torch.empty_like(given["bias"])
        else:
            hidden, weight, bias = _core.linear_logp_backward(
                given, needs_hidden, needs_weight, needs_bias, True, sums_of_weight, self._shard
            )
        if needs_hidden:
            own = arguments["hidden"]
            kind = torch.float32 if sums_of_hidden else own.dtype
            partial = hidden.view(-1, own.shape[-1])
            hidden = self._ranks.summed(partial, kind, self._gathers_rows).view(own.shape)
        return hidden if needs_hidden else None, weight, bias

    def logp_forward(
        self, arguments: Arguments, save: bool = False, differentiated: bool = False
    ) -> tuple[Any, ...]:
        given = arguments
        if self._is_empty:
            logits = given["logits"]
            given = {**given, "logits": logits.new_zeros((*logits.shape[:-1], 1))}
            parts = _nothing(_core.logp_forward(given, save, False, self._shard))
        else:
            parts, _ = _core.logp_forward(given, save, differentiated, self._shard)
        self._agree(arguments, "logits", save)
        found: tuple[Any, ...] = _core.logp_join(given, self._ranks.gathered(parts), self._shard)
        return found

    def logp_backward(self, arguments: Arguments) -> Any:
        if self._is_empty:
            return torch.empty_like(arguments["logits"])
        return _core.logp_backward(arguments, shard=self._shard)

    def _with_all_rows(self, arguments: Arguments) -> Arguments:
        if not self._gathers_rows:
            return dict(arguments)
        own = arguments["hidden"]
        rows = self._ranks.gathered(own.reshape(-1, own.shape[-1]))
        return {**arguments, "hidden": rows.view(*arguments["target"].shape, own.shape[-1])}

    def _agree(self, arguments: Arguments, name: str, save: bool, is_last: bool = True) -> None:
        cut, matrix = self._cut, arguments[name]
        sizes: list[Any] = list(matrix.shape)
        if not cut.is_even:
            sizes[0 if name == "weight" else -1] = "V"
        facts = {
            name: f"{str(matrix.dtype).removeprefix('torch.')} {sizes}",
            "bias": "None" if arguments.get("bias") is None else "a tensor",
            "sequence_parallel": self._gathers_rows,
            "vocab_size": cut.vocab_size,
            "vocab_range": (cut.begin, cut.end),
        }
        hidden = arguments.get("hidden")
        if save and hidden is not None and hidden.requires_grad:  # its gradient is a sum over ranks
            facts["hidden"] = f"{fact('hidden', hidden)} with a gradient"
        self._ranks.agree(arguments, facts, is_last)


def _nothing(found: tuple[Any, Any]) -> Any:
    """The parts of no columns, in the place of others."""
    parts = found[0]
    parts.zero_()
    parts[1] = -torch.inf  # the maximum
    return parts
