# SPDX-License-Identifier: Apache-2.0
"""What kinds of torch tensors linear_logp takes, and how it refuses others."""

import pytest
from devices import torch_name
from problems import DTYPES, problem
from reference import Reference, assert_within, same_bits

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]
on_each_device = pytest.mark.usefixtures("device")


def tensors(dtype="float32", rows=(3, 4), dim=12, vocab=301):
    p = problem(rows, dim, vocab)
    kind = getattr(torch, dtype)
    hidden, weight, target = map(torch.from_numpy, (p.hidden, p.weight, p.target))
    device = torch_name()
    return hidden.to(device, kind), weight.to(device, kind), target.to(device)


def test_the_expanded_input_gets_the_sum_of_gradients():
    hidden, weight, target = tensors()
    one = hidden[0, 0].clone().requires_grad_(True)
    rlk.jit.linear_logp(one.expand(3, 4, 12), weight, target).sum().backward()
    full = one.detach().expand(3, 4, 12).clone().requires_grad_(True)
    rlk.jit.linear_logp(full, weight, target).sum().backward()
    torch.testing.assert_close(one.grad, full.grad.sum((0, 1)))


def test_a_view_whose_sign_is_still_to_be_applied():
    hidden, weight, target = tensors()
    lazy = torch.imag(torch.complex(hidden, hidden).conj())
    assert lazy.is_neg()
    want = rlk.jit.linear_logp(-hidden, weight, target)
    assert same_bits(rlk.jit.linear_logp(lazy, weight, target), want)
    lazy_weight = torch.imag(torch.complex(weight, weight).conj())
    assert same_bits(rlk.jit.linear_logp(-hidden, -lazy_weight, target), want)
    assert same_bits(rlk.jit.linear_logp(hidden, lazy_weight, target), want)


def test_temperatures():
    hidden, weight, target = tensors()
    want = rlk.jit.linear_logp(hidden, weight, target, temperature=0.5)
    for heat in (
        torch.tensor(0.5),
        torch.full((3, 4), 0.5),
        torch.full((3, 4), 0.5).double(),
        torch.tensor(0.5).expand(3, 4),
    ):
        assert same_bits(rlk.jit.linear_logp(hidden, weight, target, temperature=heat), want)


def refused(message, hidden, weight, target, **options):
    with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {message}$") as caught:
        rlk.jit.linear_logp(hidden, weight, target, **options)
    assert "\n" not in str(caught.value)  # no stack trace of a framework


@pytest.mark.parametrize("kind", [torch.float64, torch.complex64, torch.int64, torch.bool])
def test_other_dtypes(kind):
    hidden, weight, target = tensors()
    name = str(kind).removeprefix("torch.")
    refused(
        f"hidden: expected dtype float32, bfloat16 or float16, got {name}",
        hidden.to(kind),
        weight.to(kind),
        target,
    )


# torch's float8 may be wrapped by DLPack or not, by version; it is refused either way.
def test_float8():
    hidden, weight, target = tensors()
    refused(
        "hidden: expected .*float32, bfloat16 or float16.*",
        hidden.to(torch.float8_e4m3fn),
        weight,
        target,
    )


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ["hidden", "weight"])
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors(layout, name):
    hidden, weight, target = tensors(rows=(5,))
    operands = {"hidden": hidden, "weight": weight}
    dense = operands[name]
    operands[name] = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    refused(
        f"{name}: expected a dense tensor in memory, of a dtype that DLPack knows, got .*",
        **operands,
        target=target,
    )


def test_tensors_without_memory():
    hidden, weight, target = tensors()
    refused("weight: expected a dense tensor in memory.*meta.*", hidden, weight.to("meta"), target)


def test_an_operand_of_another_framework():
    # Without gradients both are only memory; the result is of hidden's kind.
    hidden, weight, target = tensors()
    want = rlk.jit.linear_logp(hidden, weight, target)
    mixed = rlk.jit.linear_logp(hidden, weight.numpy(), target.numpy())
    assert isinstance(mixed, torch.Tensor)
    assert same_bits(mixed, want)
    mixed = rlk.jit.linear_logp(hidden.numpy(), weight, target)
    assert not isinstance(mixed, torch.Tensor)
    assert same_bits(mixed, want)


def test_subclasses_of_tensor():
    class Named(torch.Tensor):
        pass

    hidden, weight, target = tensors()
    want = rlk.jit.linear_logp(hidden, weight, target)
    named = weight.as_subclass(Named)
    assert same_bits(rlk.jit.linear_logp(hidden, named, target).as_subclass(torch.Tensor), want)


def test_many_classes_of_tensors():
    # More classes than rlk remembers, each gone after its use.
    hidden, weight, target = tensors()
    want = rlk.jit.linear_logp(hidden, weight, target)
    for number in range(20):
        kind = type(f"Class{number}", (torch.Tensor,), {})
        assert same_bits(rlk.jit.linear_logp(hidden, weight.as_subclass(kind), target), want)


@on_each_device
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_the_same_after_a_call(dtype):
    hidden, weight, target = (t.requires_grad_(t.is_floating_point()) for t in tensors(dtype))
    kind = {"device": torch_name()}
    # Views, as a trainer slices them from a batch.
    heat, mask = torch.full((3, 5), 0.7, **kind)[:, 1:], torch.ones((3, 5), **kind)[:, :4]
    inputs = (hidden, weight, target, heat, mask, torch.ones(3, 4, **kind))
    before = [t.detach().clone() for t in inputs]
    options = {"temperature": heat, "mask": mask}
    rlk.jit.linear_logp(hidden, weight, target, **options).backward(inputs[-1])
    given = (inputs[-1], hidden.detach(), weight.detach(), target)
    rlk.jit.linear_logp_backward(*given, bias=weight.detach()[:, 0].contiguous(), **options)
    for now, then in zip(inputs, before, strict=True):
        assert same_bits(now, then)


@on_each_device
def test_weights_changed_in_place_are_seen():
    hidden, weight, target = tensors("bfloat16")
    before = rlk.jit.linear_logp(hidden, weight, target)
    weight.mul_(1.5)
    after = rlk.jit.linear_logp(hidden, weight, target)
    assert not same_bits(before, after)
    assert_within(after, Reference(hidden, weight, target).forward())


@on_each_device
def test_results_do_not_share_memory():
    first = rlk.jit.linear_logp(*tensors())
    copy = first.clone()
    other = rlk.jit.linear_logp(*tensors(vocab=300))
    assert first.data_ptr() != other.data_ptr()
    assert same_bits(first, copy)


def test_temperature_that_needs_a_gradient_is_refused():
    hidden, weight, target = tensors()
    heat = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(rlk.InvalidArgument, match="temperature: expected a tensor that needs no"):
        rlk.jit.linear_logp(hidden, weight, target, temperature=heat)


def test_torch_without_the_exchange_api_is_refused():
    class Tensor:  # as torch's before 2.10: a capsule would lose the gradient
        requires_grad = True

        def __dlpack__(self, **_):
            raise AssertionError("not to be asked")

    _, weight, target = tensors()
    with pytest.raises(rlk.Unsupported, match=r"hidden: expected torch 2\.10 or later"):
        rlk.jit.linear_logp(Tensor(), weight, target)


def without_memory(tensor):
    """What FSDP leaves of a sharded parameter: the shape, and a storage of no bytes."""
    freed = tensor.clone()
    freed.untyped_storage().resize_(0)
    return freed


@pytest.mark.parametrize("name", ["hidden", "weight", "target"])
def test_a_freed_storage_is_refused(name):
    hidden, weight, target = tensors()
    given = {"hidden": hidden, "weight": weight, "target": target}
    given[name] = without_memory(given[name])
    with pytest.raises(rlk.InvalidArgument, match=f"linear_logp: {name}: .* its storage is freed"):
        rlk.jit.linear_logp(**given)


def test_tensors_that_stand_for_others_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    hidden, weight, target = tensors()
    mode = FakeTensorMode()
    fake = mode.from_tensor(hidden), mode.from_tensor(weight), mode.from_tensor(target)
    # Outside of their mode; within it the call gives fake results.
    with pytest.raises(rlk.InvalidArgument, match="expected a tensor with memory"):
        rlk.jit.linear_logp(*fake)
    with pytest.raises(rlk.InvalidArgument, match="expected a tensor with memory"):
        rlk.jit.linear_logp(torch._efficientzerotensor(3, 4, 12), weight, target)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in dual_level
@pytest.mark.parametrize("name", ["hidden", "weight", "bias", "temperature"])
@pytest.mark.parametrize("grad_mode", [True, False])
def test_a_tangent_is_refused_and_never_lost(name, grad_mode):
    hidden, weight, target = tensors()
    given = {"hidden": hidden, "weight": weight}
    given |= {"bias": torch.zeros(301), "temperature": torch.ones(3, 4)}
    forward_ad = torch.autograd.forward_ad
    want = rlk.jit.linear_logp(target=target, **given)
    with torch.set_grad_enabled(grad_mode), forward_ad.dual_level():
        assert same_bits(rlk.jit.linear_logp(target=target, **given), want)
        given[name] = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
        with pytest.raises(rlk.Unsupported, match=f"linear_logp: {name}: .* without a tangent"):
            rlk.jit.linear_logp(target=target, **given)


@pytest.mark.parametrize("name", ["target", "mask", "temperature"])
def test_a_change_of_an_array_between_the_passes_is_not_seen(name):
    hidden, weight, target = tensors()
    given = {"target": target, "mask": torch.ones(3, 4), "temperature": torch.ones(3, 4)}
    array = given[name].numpy().copy()
    grads = []
    for options in (given, {**given, name: array}):
        leaf = hidden.clone().requires_grad_()
        found = rlk.jit.linear_logp(leaf, weight, **options).sum()
        if options is not given:
            array[...] = name == "target"
        found.backward()
        grads.append(leaf.grad)
    assert same_bits(*grads)
