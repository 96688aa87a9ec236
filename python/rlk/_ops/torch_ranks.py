# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group tell each other: tensors, gathered or summed in an order that is always
the same, and where asked to what each was called with."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import distributed

from rlk import _core, errors
from rlk._ops.common import Arguments
from rlk._ops.torch_group import collectives, gathered, process_group
from rlk.errors import Fault, fail

#: Arguments that may differ from rank to rank.
_OWN = {"saved_mib", "entropy_grad", "accumulate_into", "inplace_backward", "stream", "lora"}
_SAME_VALUES = ("target", "mask", "temperature")


class Ranks:
    """The ranks of a call's group, of which this process is one."""

    def __init__(self, op: str, group: Any) -> None:
        self.op = op
        self.group = process_group(op, "group", group)
        self.rank, self.size = self.group.rank(), self.group.size()
        # Whether errors of one rank are told to all.
        self._tells = self.size > 1 and _core.settings()["validate"] == "sync"

    def gathered(self, part: Any) -> Any:
        """The parts ``[n, ...]`` of all ranks, ``[size, n, ...]``."""
        return gathered(self.op, "group", self.group, part.contiguous())

    def summed(self, partial: Any, dtype: torch.dtype, keeps_own: bool) -> Any:
        """The sum over ranks of float32 ``[rows, D]``, rounded once to `dtype`; with `keeps_own`
        this rank's rows of it, of ``rows / size`` each.

        Ranks add as the segments of a vocabulary do, ((0 + 1) + (2 + 3)) + ..., which an all-reduce
        would not.
        """
        rows, dim = partial.shape
        each = -(-rows // self.size)
        lengths = [min(each, max(0, rows - rank * each)) for rank in range(self.size)]
        own = lengths[self.rank]
        parts = partial.new_empty((self.size * own, dim))
        with collectives(self.op, "group", self.group):
            distributed.all_to_all_single(
                parts, partial, [own] * self.size, lengths, group=self.group
            )
        total = _tree_sum(parts.view(self.size, own, dim).unbind()).to(dtype)
        if keeps_own:
            return total
        if own < each:  # all gather parts of one size
            padded = total.new_zeros((each, dim))
            padded[:own] = total
            total = padded
        return self.gathered(total).flatten(0, 1)[:rows]

    def agree(self, arguments: Arguments, facts: Arguments, is_last: bool = True) -> None:
        """Where `validate` is "sync", raises on every rank what one has raised, or where ranks
        differ in what they were called with. `facts`: of its cut of the vocabulary."""
        if self._tells:
            self._tells = not is_last
            found = {n: fact(n, value) for n, value in arguments.items() if n not in _OWN}
            self._exchange((None, {"group": f"a call of {self.op}", **found, **facts}))

    @contextmanager
    def telling(self) -> Iterator[None]:
        """An error of this rank is told to the others, which are to agree before they go on."""
        try:
            yield
        except Exception as error:
            if self._tells:
                self._tells = False
                fault = getattr(error, "fault", None)
                told = type(error).__name__, tuple(fault) if fault else str(error)
                # What is no error of an argument stays here what it is.
                with suppress(errors.Error) if fault is None else nullcontext():
                    self._exchange((told, {}))
            raise

    def _exchange(self, own: Any) -> None:
        told: list[Any] = [None] * self.size
        with collectives(self.op, "group", self.group):
            distributed.all_gather_object(told, own, group=self.group)
        for rank, (error, _) in enumerate(told):
            if error is not None:
                self._tells = False
                raise _error_of(self.op, rank, *error)
        try:
            _compare(self.op, [facts for _, facts in told])
        except errors.InvalidArgument:
            self._tells = False
            raise


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


def _error_of(op: str, rank: int, kind: str, what: Any) -> Exception:
    """The error that a rank has raised, in the words of all."""
    if isinstance(what, str):
        return errors.Error(f"{op}: group: rank {rank} raised {kind}: {what}")
    fault = Fault(*what)
    made: Exception = getattr(errors, kind)(
        fault._replace(got=f"{fault.got} on rank {rank}".lstrip())
    )
    return made


def _compare(op: str, told: Sequence[Arguments]) -> None:
    """Raises InvalidArgument where ranks differ; the ranges of ids must follow each other."""
    first = told[0]
    for rank, facts in enumerate(told[1:], 1):
        for name in first:
            got = facts.get(name)
            if name != "vocab_range" and got != first[name]:
                fail(op, name, f"{first[name]} as on rank 0", f"{got} on rank {rank}")
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
