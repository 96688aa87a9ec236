# SPDX-License-Identifier: Apache-2.0
"""DTensors as arguments of each op: whole ones are read in place, others are refused by name."""

import pytest
import ranks
from ranks import torch
from reference import same_bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]


@pytest.fixture(scope="module")
def mesh():
    with ranks.pretended() as made:
        yield made


def placed(tensor, mesh, *placements):
    """A DTensor of the tensor's shape, whose values each rank has."""
    sizes = {"shape": tensor.shape, "stride": tensor.stride()}
    made = DTensor.from_local(tensor.detach(), mesh, placements, run_check=False, **sizes)
    return made.requires_grad_(tensor.requires_grad)


def head():
    torch.manual_seed(0)
    given = {"hidden": torch.randn(3, 4, 8), "weight": torch.randn(51, 8), "bias": torch.randn(51)}
    return given | {"target": torch.randint(51, (3, 4))}


def rows():
    torch.manual_seed(1)
    return {
        "policy_logits": torch.randn(4, 5, 51),
        "ref_logits": torch.randn(4, 5, 51),
        "action_ids": torch.randint(51, (4, 5)),
        "old_logps": torch.randn(4, 5),
    }


def tokens():
    torch.manual_seed(2)
    names = ("log_probs", "old_log_probs", "advantages", "entropy")
    return {name: torch.randn(4, 5) for name in names}


# A call of each op by its tensors, and those that have gradients.
OPS = {
    "linear_logp": (head, rlk.jit.linear_logp, ("hidden", "weight", "bias")),
    "logp": (
        lambda: {"logits": rows()["policy_logits"], "target": rows()["action_ids"]},
        rlk.jit.logp,
        ("logits",),
    ),
    "ratio_kl": (
        rows,
        lambda **t: rlk.jit.ratio_kl(**t, attention_mask=None),
        ("policy_logits",),
    ),
    "grpo_loss": (
        lambda: rows() | {"rewards": torch.randn(4)},
        lambda **t: rlk.jit.grpo_loss(**t, samples_per_prompt=2),
        ("policy_logits",),
    ),
    "ppo_loss": (
        tokens,
        lambda **t: rlk.jit.ppo_loss(**t, entropy_coef=0.1),
        ("log_probs", "entropy"),
    ),
    "group_advantages": (
        lambda: {"rewards": torch.randn(4)},
        lambda **t: rlk.jit.group_advantages(**t, samples_per_prompt=2),
        (),
    ),
    "det_gemm": (
        lambda: {"a": torch.randn(3, 8), "b": torch.randn(8, 5), "bias": torch.randn(5)},
        rlk.jit.det_gemm,
        ("a", "b", "bias"),
    ),
    "linear": (
        lambda: {"x": torch.randn(3, 8), "weight": torch.randn(5, 8), "bias": torch.randn(5)},
        rlk.jit.linear,
        ("x", "weight", "bias"),
    ),
}
each_op = pytest.mark.parametrize("op", OPS)


def first_of(found):
    return found if isinstance(found, torch.Tensor) else found[0]


@each_op
@pytest.mark.parametrize("grad_mode", [True, False])
def test_replicas_are_read_in_place(op, grad_mode, mesh):
    make, call, names = OPS[op]
    plain = make()
    for name in names:
        plain[name].requires_grad_()
    given = {name: placed(tensor, mesh, Replicate()) for name, tensor in plain.items()}
    with torch.set_grad_enabled(grad_mode):
        got, want = first_of(call(**given)), first_of(call(**plain))
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
def test_what_is_not_whole_is_refused(op, placement, mesh):
    make, call, names = OPS[op]
    for name, tensor in make().items():
        seen = placement
        if (op, name, placement) == ("linear", "weight", Shard(0)):  # which is read transposed
            seen = Shard(1)
        for needs in {False, name in names}:
            given = make()
            given[name] = placed(tensor.requires_grad_(needs), mesh, placement)
            with pytest.raises(rlk.Unsupported) as caught:
                call(**given)
            said = str(caught.value)
            assert said.startswith(f"{op}: {name}: expected a tensor that each rank has whole, got")
            assert f"a DTensor of placements ({seen!r},) on 2 ranks; with FSDP2" in said


def test_a_gradient_whose_reduction_is_not_known_is_refused(mesh):
    given = head()
    weight = placed(given["weight"].requires_grad_(), mesh, Replicate())
    with pytest.raises(rlk.Unsupported, match=r"weight: expected hidden as a DTensor.*Partial"):
        rlk.jit.linear_logp(**given | {"weight": weight})
    other = init_device_mesh("cpu", (1, 2))
    hidden = placed(given["hidden"], other, Replicate(), Replicate())
    with pytest.raises(rlk.Unsupported, match="weight: expected hidden as a DTensor"):
        rlk.jit.linear_logp(**given | {"weight": weight, "hidden": hidden})
    want = rlk.jit.linear_logp(**head())
    with torch.no_grad():
        assert same_bits(rlk.jit.linear_logp(**given | {"weight": weight}), want)
    assert same_bits(rlk.jit.linear_logp(**given | {"weight": weight.detach()}), want)


def test_a_shard_of_one_rank_is_whole(mesh):
    other = init_device_mesh("cpu", (1, 2))
    given = head()
    weight = placed(given["weight"].requires_grad_(), other, Shard(0), Replicate())
    hidden = placed(given["hidden"], other, Replicate(), Replicate())
    logp = rlk.jit.linear_logp(**given | {"weight": weight, "hidden": hidden})
    assert same_bits(logp, rlk.jit.linear_logp(**given))
    logp.sum().backward()
    assert weight.grad.placements == (Shard(0), Replicate())
    rlk.jit.linear_logp(**given).sum().backward()
    assert same_bits(weight.grad.to_local(), given["weight"].grad)


def test_logits_that_are_a_dtensor_are_not_written_over(mesh):
    logits = placed(torch.randn(4, 51, requires_grad=True), mesh, Replicate()) * 1
    with pytest.raises(rlk.InvalidArgument, match="inplace_backward: expected False for a DTensor"):
        rlk.jit.logp(logits, torch.zeros(4, dtype=torch.int64), inplace_backward=True)


def test_a_view_of_a_freed_storage_is_refused():
    given = head()
    flat = torch.zeros(1000)
    given["weight"] = flat[80:488].view(51, 8)
    flat.untyped_storage().resize_(0)
    with pytest.raises(rlk.InvalidArgument, match=r"weight: .* its storage is freed"):
        rlk.jit.linear_logp(**given)


@pytest.mark.parametrize("shape", [(0,), (204,)])
def test_a_flat_parameter_is_refused_by_name(shape):
    given = head() | {"weight": torch.nn.Parameter(torch.zeros(shape))}
    with pytest.raises(rlk.InvalidArgument, match=r"weight: .*\[V, 8\] .*FSDP.*GatheredParameters"):
        rlk.jit.linear_logp(**given)
