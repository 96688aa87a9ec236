# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group tell each other: tensors, gathered or summed in an order that is always
the same, and where asked to what each was called with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from rlk._ops.common import Arguments
from rlk._ops.torch_group import Agreement, collectives, gathered, process_group
from rlk.errors import fail

#: Arguments that may differ from rank to rank.
_OWN = {"saved_mib", "entropy_grad", "accumulate_into", "inplace_backward", "stream", "lora"}
#: What each rank has of its own, of which more is asked than that it is alike.
_NOT_ALIKE = ("vocab_range", "part")
_SAME_VALUES = ("target", "mask", "temperature")


#: Integers of as many bytes.
_BITS = {2: torch.int16, 4: torch.int32}


class Ranks:
    """The ranks of a call's group, of which this process is one."""

    def __init__(self, op: str, group: Any) -> None:
        self.op = op
        self.group = process_group(op, "group", group)
        self.rank, self.size = self.group.rank(), self.group.size()

    def agreement(self, what: str) -> Agreement:
        """Of this call or its backward, which `what` says."""
        return Agreement(self.op, "group", self.group, what)

    def gathered(self, part: Any) -> Any:
        """The parts ``[n, ...]`` of all ranks, ``[size, n, ...]``."""
        return gathered(self.op, "group", self.group, part.contiguous())

    def summed(self, partial: Any, dtype: torch.dtype) -> Any:
        """This rank's rows of the sum over ranks of float32 ``[rows, D]``, rounded once to `dtype`:
        as many as on each rank, the last ones fewer or none.

        Ranks add as the segments of a vocabulary do, ((0 + 1) + (2 + 3)) + ..., which an all-reduce
        would not.
        """
        lengths = [len(part) for part in self._parts(partial)]
        own, dim = lengths[self.rank], partial.shape[1]
        parts = partial.new_empty((self.size * own, dim))
        with collectives(self.op, "group", self.group):
            distributed.all_to_all_single(
                parts, partial, [own] * self.size, lengths, group=self.group
            )
        return _tree_sum(parts.view(self.size, own, dim).unbind()).to(dtype)

    def with_others(self, own: Any, rows: int) -> Any:
        """All `rows` rows, of which each rank has its own."""
        each = -(-rows // self.size)
        if len(own) < each:  # all gather parts of one size
            padded = own.new_zeros((each, own.shape[1]))
            padded[: len(own)] = own
            own = padded
        return self.gathered(own).flatten(0, 1)[:rows]

    def beside_zeros(self, own: Any, rows: int) -> Any:
        """The same with zeros for those of others."""
        found = own.new_zeros((rows, own.shape[1]))
        self._parts(found)[self.rank].copy_(own)
        return found

    def _parts(self, rows: Any) -> list[Any]:
        """What each rank has of some rows."""
        each = -(-len(rows) // self.size)
        return [rows[rank * each : (rank + 1) * each] for rank in range(self.size)]

    def agree(
        self, agreement: Agreement, arguments: Arguments, facts: Arguments, is_last: bool = True
    ) -> None:
        """Raises on every rank where ranks differ in what they were called with. `facts`: of its
        cut of the vocabulary."""
        found = {n: fact(n, value) for n, value in arguments.items() if n not in _OWN}
        agreement.reach({**found, **facts}, lambda told: _compare(self.op, told), is_last)


def _tree_sum(parts: Sequence[Any]) -> Any:
    """In pairs, as neighbours; what has none goes up as it is. Writes over the parts."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        sums = [left.add_(right) for left, right in pairs]
        parts = [*sums, parts[-1]] if len(parts) % 2 else sums
    return parts[0]


def fact(name: str, value: Any) -> str:
    """What ranks compare of an argument, in words."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    found = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if name in _SAME_VALUES:
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found += f" of CRC-32 {zlib.crc32(data.numpy().data):08x}"
    return found


def digest(matrix: Any) -> str | None:
    """Of the values of a matrix; None where they are all alike, and of none."""
    kind = _BITS.get(matrix.element_size())
    if matrix.numel() == 0 or kind is None:  # of another dtype, which the call refuses
        return None
    bits = matrix.detach().view(kind)
    if bool(bits.amin() == bits.amax()):
        return None
    sums = bits.sum(-1, dtype=torch.int64).cpu().reshape(-1)
    return f"{zlib.crc32(sums.numpy().data):08x}"


def _compare(op: str, told: Sequence[Arguments]) -> None:
    """Raises InvalidArgument where ranks differ; the ranges of ids must follow each other."""
    first = told[0]
    for rank, facts in enumerate(told[1:], 1):
        for name in first:
            got = facts.get(name)
            if name not in _NOT_ALIKE and got != first[name]:
                fail(op, name, f"{first[name]} as on rank 0", f"{got} on rank {rank}")
    if "vocab_range" not in first:  # of a backward
        return
    name, of_first = first.get("part", ("", None))
    if of_first is not None and all(facts["part"][1] == of_first for facts in told):
        expected = "this rank's part with {group}, of a whole that {vocab_size} says"
        fail(op, name, expected, f"the same values on all {len(told)} ranks")
    end = 0
    for rank, facts in enumerate(told):
        begin, next_end = facts["vocab_range"]
        if begin != end:
            got = f"({begin}, {next_end}) on rank {rank}"
            fail(op, "vocab_range", f"ids from {end} on, where those of the rank before end", got)
        end = next_end
    if end != first["vocab_size"]:
        expected = f"ids up to {first['vocab_size']} on the last rank"
        fail(op, "vocab_range", expected, f"ids up to {end}")
