# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks as arguments: what is one, and whose a collective is that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed

from rlk.errors import DriverError, fail, text


def process_group(op: str, argument: str, group: Any) -> Any:
    """torch's ProcessGroup of an argument, which may be a DeviceMesh of one dimension.

    Raises:
        rlk.InvalidArgument: it is neither, or this rank is not in it.
    """
    expected = "a ProcessGroup of torch.distributed, or a DeviceMesh of one dimension"
    if not distributed.is_available() or not distributed.is_initialized():
        fail(op, argument, f"{expected}, after init_process_group", type(group).__name__)
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            fail(op, argument, expected, f"a DeviceMesh of {group.ndim} dimensions")
        if group.get_coordinate() is None:
            _not_in(op, argument)
        return group.get_group()
    # What new_group gives to a rank that is not in it is a number.
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        _not_in(op, argument)
    if not isinstance(group, distributed.ProcessGroup):
        fail(op, argument, expected, text(group))
    if distributed.get_rank(group) < 0:
        _not_in(op, argument)
    return group


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
