# SPDX-License-Identifier: Apache-2.0
"""DTensors as arguments of each op: whole ones are read in place, others are refused by name."""

import pytest
import ranks
from calls import CALLS, each_op
from ranks import torch
from reference import same_bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]


HEAD = CALLS["linear_logp"]


@pytest.fixture(scope="module")
def mesh():
    with ranks.pretended() as made:
        yield made


def placed(tensor, mesh, *placements):
    """A DTensor of the tensor's shape, whose values each rank has."""
    sizes = {"shape": tensor.shape, "stride": tensor.stride()}
    made = DTensor.from_local(tensor.detach(), mesh, placements, run_check=False, **sizes)
    return made.requires_grad_(tensor.requires_grad)


@each_op
@pytest.mark.parametrize("grad_mode", [True, False])
def test_replicas_are_read_in_place(call, grad_mode, mesh):
    names, plain = call.names, call.tensors(needs=True)
    given = {name: placed(tensor, mesh, Replicate()) for name, tensor in plain.items()}
    with torch.set_grad_enabled(grad_mode):
        got, want = call.value(**given), call.value(**plain)
    assert type(got) is torch.Tensor
    assert same_bits(got.detach(), want.detach())
    assert got.requires_grad == want.requires_grad == (grad_mode and bool(names))
    if not got.requires_grad:
        return
    got.sum().backward()
    want.sum().backward()
    for name in names:
        grad = given[name].grad
        assert isinstance(grad, DTensor)
        assert (grad.placements, grad.shape) == ((Replicate(),), plain[name].shape)
        assert same_bits(grad.to_local(), plain[name].grad)


@each_op
@pytest.mark.parametrize("placement", [Shard(0), Partial()], ids=["shard", "partial"])
def test_what_is_not_whole_is_refused(call, placement, mesh):
    for name, tensor in call.tensors().items():
        seen = placement
        if (call.op, name, placement) == ("linear", "weight", Shard(0)):  # which is read transposed
            seen = Shard(1)
        for needs in {False, name in call.names}:
            given = call.tensors()
            given[name] = placed(tensor.requires_grad_(needs), mesh, placement)
            with pytest.raises(rlk.Unsupported) as caught:
                call(**given)
            said = str(caught.value)
            assert said.startswith(
                f"{call.op}: {name}: expected a tensor that each rank has whole, got"
            )
            assert f"a DTensor of placements ({seen!r},) on 2 ranks; with FSDP2" in said


def test_a_gradient_whose_reduction_is_not_known_is_refused(mesh):
    given = HEAD.tensors()
    weight = placed(given["weight"].requires_grad_(), mesh, Replicate())
    with pytest.raises(rlk.Unsupported, match=r"weight: expected hidden as a DTensor.*Partial"):
        HEAD.value(**given | {"weight": weight})
    other = init_device_mesh("cpu", (1, 2))
    hidden = placed(given["hidden"], other, Replicate(), Replicate())
    with pytest.raises(rlk.Unsupported, match="weight: expected hidden as a DTensor"):
        HEAD.value(**given | {"weight": weight, "hidden": hidden})
    want = HEAD.value(**HEAD.tensors())
    with torch.no_grad():
        assert same_bits(HEAD.value(**given | {"weight": weight}), want)
    assert same_bits(HEAD.value(**given | {"weight": weight.detach()}), want)


def test_a_shard_of_one_rank_is_whole(mesh):
    other = init_device_mesh("cpu", (1, 2))
    given = HEAD.tensors()
    weight = placed(given["weight"].requires_grad_(), other, Shard(0), Replicate())
    hidden = placed(given["hidden"], other, Replicate(), Replicate())
    logp = HEAD.value(**given | {"weight": weight, "hidden": hidden})
    assert same_bits(logp, HEAD.value(**given))
    logp.sum().backward()
    assert weight.grad.placements == (Shard(0), Replicate())
    HEAD.value(**given).sum().backward()
    assert same_bits(weight.grad.to_local(), given["weight"].grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_takes_replicas(dtype, mesh):
    plain = {n: x.detach() for n, x in HEAD.tensors().items()}
    plain |= {n: plain[n].to(dtype).requires_grad_() for n in ("hidden", "weight")}
    given = {name: placed(tensor, mesh, Replicate()) for name, tensor in plain.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = HEAD.value(**given), HEAD.value(**plain)
        with torch.no_grad():
            assert same_bits(HEAD.value(**given), want.detach())
    assert same_bits(got.detach(), want.detach())
    got.sum().backward()
    want.sum().backward()
    for name in ("hidden", "weight"):
        assert given[name].grad.dtype == dtype
        assert same_bits(given[name].grad.to_local(), plain[name].grad)


@pytest.mark.parametrize("autocasts", [False, True])
def test_a_storage_that_was_freed_is_refused_in_autocast_too(autocasts):
    given = HEAD.tensors(needs=True)
    given["weight"].untyped_storage().resize_(0)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocasts),
        pytest.raises(rlk.InvalidArgument, match=r"weight: .* its storage is freed"),
    ):
        HEAD.value(**given)


def test_logits_that_are_a_dtensor_are_not_written_over(mesh):
    logits = placed(torch.randn(4, 51, requires_grad=True), mesh, Replicate()) * 1
    with pytest.raises(rlk.InvalidArgument, match="inplace_backward: expected False for a DTensor"):
        rlk.jit.logp(logits, torch.zeros(4, dtype=torch.int64), inplace_backward=True)


# Addresses that nothing has, and one as the heap may have.
@pytest.mark.parametrize(("offset", "vocab"), [(80, 51), (1 << 28, 1 << 13)])
def test_a_view_of_a_freed_storage_is_refused(offset, vocab):
    given = HEAD.tensors() | {"bias": torch.zeros(vocab)}
    flat = torch.empty(offset + 8 * vocab)
    given["weight"] = flat[offset:].view(vocab, 8)
    flat.untyped_storage().resize_(0)
    with pytest.raises(rlk.InvalidArgument, match=r"weight: .* its storage is freed"):
        HEAD.value(**given)


@pytest.mark.parametrize("shape", [(0,), (204,)])
def test_a_flat_parameter_is_refused_by_name(shape):
    given = HEAD.tensors() | {"weight": torch.nn.Parameter(torch.zeros(shape))}
    with pytest.raises(rlk.InvalidArgument, match=r"weight: .*\[V, 8\] .*FSDP.*GatheredParameters"):
        HEAD.value(**given)
