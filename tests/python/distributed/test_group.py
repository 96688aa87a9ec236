# SPDX-License-Identifier: Apache-2.0
"""What is taken for a group of ranks, and whose a collective is that fails."""

import pytest
import ranks
from ranks import torch
from torch.distributed.device_mesh import init_device_mesh

import rlk
from rlk._ops.torch_group import collectives, process_group

pytestmark = pytest.mark.torch

EXPECTED = (
    r"^op: group: expected a ProcessGroup of torch\.distributed, or a DeviceMesh of one dimension"
)


@pytest.fixture
def mesh():
    with ranks.pretended() as mesh:
        yield mesh


def test_a_group_and_a_mesh(mesh):
    group = mesh.get_group()
    assert process_group("op", "group", group) is group
    assert process_group("op", "group", mesh) is group
    world = torch.distributed.group.WORLD
    assert process_group("op", "group", world) is world


@pytest.mark.parametrize("value", [2, "world", [0, 1], True])
def test_what_is_no_group_is_refused(mesh, value):
    with pytest.raises(rlk.InvalidArgument, match=f"{EXPECTED}, got "):
        process_group("op", "group", value)


def test_a_mesh_of_two_dimensions_is_refused(mesh):
    square = init_device_mesh("cpu", (1, ranks.SIZE), mesh_dim_names=("a", "b"))
    with pytest.raises(rlk.InvalidArgument, match=r"got a DeviceMesh of 2 dimensions$"):
        process_group("op", "group", square)
    assert process_group("op", "group", square["b"]).size() == ranks.SIZE


def test_a_group_of_others_is_refused(mesh):
    message = "^op: group: expected a group that this rank is in, got one without rank 0$"
    with pytest.raises(rlk.InvalidArgument, match=message):
        process_group("op", "group", torch.distributed.new_group([1]))


def test_without_torchs_groups():
    with pytest.raises(rlk.InvalidArgument, match=f"{EXPECTED}, after init_process_group, got "):
        process_group("op", "group", object())


def test_a_failed_collective_names_its_op(mesh):
    group = mesh.get_group()
    message = r"^op: group: a collective over the ranks \[0, 1\] failed: no answer$"
    with pytest.raises(rlk.DriverError, match=message), collectives("op", "group", group):
        raise torch.distributed.DistBackendError("no answer")
    with pytest.raises(ZeroDivisionError), collectives("op", "group", group):
        raise ZeroDivisionError
