# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks as arguments: what is one, whose a collective is that fails, and what ranks tell
each other of a call before its collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from torch import distributed

from rlk import _core, errors
from rlk.errors import DriverError, Fault, fail, text


def process_group(op: str, argument: str, group: Any) -> Any:
    """torch's ProcessGroup of an argument, which may be a DeviceMesh of one dimension.

    Raises:
        rlk.InvalidArgument: it is neither, or this rank is not in it.
    """
    expected = "a ProcessGroup of torch.distributed, or a DeviceMesh of one dimension"
    if not distributed.is_available() or not distributed.is_initialized():
        fail(op, argument, f"{expected}, after init_process_group", type(group).__name__)
    if isinstance(group, distributed.ProcessGroup):
        try:
            rank = distributed.get_rank(group)
        except ValueError:  # torch has destroyed it
            fail(op, argument, "a group that torch.distributed has", "one that it no longer has")
        if rank < 0:
            _not_in(op, argument)
        return group
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            fail(op, argument, expected, f"a DeviceMesh of {group.ndim} dimensions")
        if group.get_coordinate() is None:
            _not_in(op, argument)
        return process_group(op, argument, group.get_group())
    # What new_group gives to a rank that is not in it is a number.
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        _not_in(op, argument)
    fail(op, argument, expected, text(group))


def _not_in(op: str, argument: str) -> None:
    fail(op, argument, "a group that this rank is in", f"one without rank {distributed.get_rank()}")


@contextmanager
def collectives(op: str, argument: str, group: Any) -> Iterator[None]:
    """Errors of collectives over the group of this argument, with their names.

    Raises:
        rlk.DriverError: one failed.
    """
    try:
        yield
    except RuntimeError as error:  # torch.distributed.DistError is one
        ranks = distributed.get_process_group_ranks(group)
        raise DriverError(
            f"{op}: {argument}: a collective over the ranks {ranks} failed: {error}"
        ) from error


#: torch calls it so from 2.13 on.
_all_gather: Any = getattr(distributed, "all_gather_single", None) or getattr(
    distributed, "all_gather_into_tensor", None
)


def gathered(op: str, argument: str, group: Any, own: Any) -> Any:
    """``[ranks, ...]`` of each rank's contiguous ``[...]``, in their order; all of one shape."""
    found = own.new_empty((group.size() * own.shape[0], *own.shape[1:]))
    with collectives(op, argument, group):
        _all_gather(found, own, group=group)
    return found.view(group.size(), *own.shape)


class Agreement:
    """What the ranks of a group tell each other before a call's collectives, where `validate` is
    "sync": what each was called with, or the error that one has raised. `what`: the call."""

    def __init__(self, op: str, argument: str, group: Any, what: str) -> None:
        self._op, self._argument, self._group = op, argument, group
        self._what = what
        #: Whether the others wait to be told.
        self.is_due = group.size() > 1 and _core.validates_sync()

    def reach(
        self,
        facts: dict[str, Any],
        compare: Callable[[Sequence[dict[str, Any]]], None],
        is_last: bool = True,
    ) -> None:
        """Raises, on every rank alike, what one has raised, or what `compare` says of all ranks'
        facts; `is_last`: no more is to be told of this call."""
        compare([told for _, _, told in self._exchange(None, facts)])
        self.is_due = not is_last

    @contextmanager
    def telling(self) -> Iterator[None]:
        """An error of this rank is told to the others, which are to agree before they go on."""
        try:
            yield
        except Exception as error:
            if self.is_due:
                fault = getattr(error, "fault", None)
                told = type(error).__name__, tuple(fault) if fault else str(error)
                # What is no error of an argument stays here what it is.
                with suppress(errors.Error) if fault is None else nullcontext():
                    self._exchange(told, {})
            raise

    def _exchange(self, error: Any, facts: dict[str, Any]) -> list[Any]:
        self.is_due = False  # what is raised from here on every rank raises
        told: list[Any] = [None] * self._group.size()
        with collectives(self._op, self._argument, self._group):
            distributed.all_gather_object(told, (self._what, error, facts), group=self._group)
        for rank, (_, its_error, _) in enumerate(told):
            if its_error is not None:
                raise self._error_of(rank, *its_error)
        for rank, (what, _, _) in enumerate(told):
            if what != told[0][0]:
                expected = f"{told[0][0]} as on rank 0"
                fail(self._op, self._argument, expected, f"{what} on rank {rank}")
        return told

    def _error_of(self, rank: int, kind: str, what: Any) -> Exception:
        """The error that a rank has raised, in the words of all."""
        if isinstance(what, str):
            return errors.Error(f"{self._op}: {self._argument}: rank {rank} raised {kind}: {what}")
        fault = Fault(*what)
        got = f"{fault.got} on rank {rank}".lstrip()
        made: Exception = getattr(errors, kind)(fault._replace(got=got))
        return made
