# SPDX-License-Identifier: Apache-2.0
"""A core for calls whose vocabulary ranks share: each function computes this rank's part, and the
ranks make the whole of their parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.torch_group import Agreement
from rlk._ops.torch_ranks import Ranks, digest, fact
from rlk.errors import fail


class Cut(NamedTuple):
    """The ids [begin, end) of [0, vocab_size) that a rank has. `segment`: columns of a segment of
    the whole vocabulary where the rank has its node of the segments' tree, else 0; `is_even`: all
    ranks are to have as many ids."""

    begin: int
    end: int
    vocab_size: int
    segment: int
    is_even: bool


class Rows(NamedTuple):
    """Which rows of hidden a rank has, and of its gradient is to have."""

    are_own: bool = False  # of both its own alone, which are gathered for each pass
    others_are_zero: bool = False  # of the gradient: the caller adds up all ranks'


class Shards:
    """Has functions of the core, with their arguments and results; all ranks call each alike."""

    def __init__(self, ranks: Ranks, cut: Cut, rows: Rows, agreement: Agreement) -> None:
        self._ranks = ranks
        self._cut = cut
        self._rows = rows
        self._agreement = agreement  # of the pass that runs
        # Calls of a rank without ids have one column, which counts for nothing.
        self._is_empty = cut.begin == cut.end
        self._shard = (0 if self._is_empty else cut.begin), cut.vocab_size, cut.segment

    @contextmanager
    def telling(self, needs_hidden: bool) -> Iterator[None]:
        """Around a backward of linear_logp, whose errors are told where others wait for them."""
        if not needs_hidden and not self._rows.are_own:
            yield
            return
        self._agreement = self._ranks.agreement(f"a backward of {self._ranks.op}")
        with self._agreement.telling():
            yield

    def linear_logp_forward(
        self, arguments: Arguments, save: bool = False, keep: bool = False
    ) -> tuple[Any, ...]:
        if self._rows.are_own:
            self._agree(arguments, "weight", save, is_last=False)
        given = self._with_ids(self._with_all_rows(arguments), "weight")
        keep = keep and not self._is_empty
        parts, kept = _core.linear_logp_forward(given, save, keep, self._shard)
        self._agree(arguments, "weight", save)
        found = _core.linear_logp_join(given, self._gathered(parts), self._shard, save)
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
        if self._rows.are_own:
            self._agree_on_upstream(arguments, is_last=not needs_hidden)
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
        if not needs_hidden:
            return None, weight, bias
        self._agree_on_upstream(arguments)
        own = arguments["hidden"]
        partial = hidden.view(-1, own.shape[-1])
        found = self._ranks.summed(partial, torch.float32 if sums_of_hidden else own.dtype)
        if self._rows.others_are_zero:
            found = self._ranks.beside_zeros(found, len(partial))
        elif not self._rows.are_own:
            found = self._ranks.with_others(found, len(partial))
        return found.view(own.shape), weight, bias

    def logp_forward(
        self, arguments: Arguments, save: bool = False, differentiated: bool = False
    ) -> tuple[Any, ...]:
        given = self._with_ids(arguments, "logits")
        parts, _ = _core.logp_forward(given, save, differentiated, self._shard)
        self._agree(arguments, "logits", save)
        found: tuple[Any, ...] = _core.logp_join(given, self._gathered(parts), self._shard, save)
        return found

    def logp_backward(self, arguments: Arguments) -> Any:
        if self._is_empty:
            return torch.empty_like(arguments["logits"])
        return _core.logp_backward(arguments, shard=self._shard)

    def linear_logp_explain(self, arguments: Arguments) -> tuple[str, ...]:
        given = dict(arguments)
        if self._rows.are_own:
            own, rows = given["hidden"], given["target"].shape
            given["hidden"] = own.new_empty((*rows, own.shape[-1]))
        found: tuple[str, ...] = _core.linear_logp_explain(
            self._with_ids(given, "weight"), self._shard
        )
        return (*found, self._in_words(arguments, "hidden"))

    def logp_explain(self, arguments: Arguments) -> tuple[str, ...]:
        found: tuple[str, ...] = _core.logp_explain(
            self._with_ids(arguments, "logits"), self._shard
        )
        return (*found, self._in_words(arguments, "logits"))

    def _in_words(self, arguments: Arguments, name: str) -> str:
        """This rank's ids, and what ranks exchange."""
        cut, (rank, size) = self._cut, (self._ranks.rank, self._ranks.size)
        by = f"segments of {cut.segment}" if cut.segment else "eight segments of its own"
        words = f"rank {rank} of {size}: ids [{cut.begin}, {cut.end}) of {cut.vocab_size} in {by}"
        values = 3 + arguments["return_entropy"] + 3 * arguments["return_stats"]
        exchanged = [f"all-gather of {values} float32 a row, then the step join"]
        if arguments["backward"]:
            exchanged = []
            if name == "hidden":
                dim = arguments["hidden"].shape[-1]
                exchanged = [f"all-to-all of {dim} float32 a row, whose sums are of hidden's dtype"]
                if not self._rows.are_own:
                    exchanged.append(f"all-gather of these, {dim} a row")
        if self._rows.are_own:
            exchanged.insert(0, "all-gather of hidden's rows")
        return "; ".join([words, *(exchanged or ["nothing is exchanged"])])

    def _gathered(self, parts: Any) -> Any:
        if self._is_empty:  # the part of no columns, in the place of one's
            parts.zero_()
            parts[1] = -torch.inf  # the maximum
        return self._ranks.gathered(parts)

    def _with_ids(self, arguments: Arguments, name: str) -> Arguments:
        if not self._is_empty:
            return arguments
        matrix = arguments[name]
        if name == "logits":
            return {**arguments, name: matrix.new_zeros((*matrix.shape[:-1], 1))}
        dim = arguments["hidden"].shape[-1]
        for part, shape in (("weight", (0, dim)), ("bias", (0,)), ("accumulate_into", (0, dim))):
            got = getattr(arguments[part], "shape", shape)
            if tuple(got) != shape:
                expected = f"shape {list(shape)}, as this rank has no ids"
                fail(self._ranks.op, part, expected, list(got))
        one = {name: matrix.new_zeros((1, dim)), "bias": None, "accumulate_into": None}
        return {**arguments, **one}

    def _with_all_rows(self, arguments: Arguments) -> Arguments:
        if not self._rows.are_own:
            return dict(arguments)
        own = arguments["hidden"]
        rows = self._ranks.gathered(own.reshape(-1, own.shape[-1]))
        return {**arguments, "hidden": rows.view(*arguments["target"].shape, own.shape[-1])}

    def _agree(self, arguments: Arguments, name: str, save: bool, is_last: bool = True) -> None:
        if not self._agreement.is_due:
            return
        cut, matrix, owns_rows = self._cut, arguments[name], self._rows.are_own
        sizes: list[Any] = list(matrix.shape)
        if not cut.is_even:
            sizes[0 if name == "weight" else -1] = "V"
        facts: Arguments = {
            name: f"{str(matrix.dtype).removeprefix('torch.')} {sizes}",
            "bias": "None" if arguments.get("bias") is None else "a tensor",
            "sequence_parallel": owns_rows,
            "vocab_size": cut.vocab_size,
            "vocab_range": (cut.begin, cut.end),
        }
        if cut.is_even:
            facts["part"] = (name, digest(matrix))
        hidden = arguments.get("hidden")
        if save and hidden is not None and hidden.requires_grad:  # its gradient is a sum over ranks
            facts["hidden"] = f"{fact('hidden', hidden)} with a gradient"
        if save and owns_rows:  # which a backward gathers, of whatever it is
            facts["sequence_parallel"] = f"{owns_rows} with a backward"
        self._ranks.agree(self._agreement, arguments, facts, is_last)

    def _agree_on_upstream(self, arguments: Arguments, is_last: bool = True) -> None:
        """Of a backward."""
        if self._agreement.is_due:
            upstream = ("grad_output", "grad_entropy", "grad_lse")
            given = {name: arguments[name] for name in upstream}
            self._ranks.agree(self._agreement, given, {}, is_last)
