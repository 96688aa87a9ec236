# SPDX-License-Identifier: Apache-2.0
"""logp under autograd, and its backward in place."""

import itertools

import numpy as np
import pytest
from logits import Logits, draw
from reference import Exact, assert_within, same_bits
from tensors import tensor, torch
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

OPTIONS = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}


def tensors(dtype="float32", lead=(3, 4), vocab=310) -> Logits:
    p = draw(lead, vocab)
    return Logits(tensor(p.logits, dtype), tensor(p.target), tensor(p.upstream))


def run(p: Logits, in_place: bool, **options):
    """The gradient through logits that an operation made."""
    leaf = p.logits.clone().requires_grad_()
    made = leaf * 1
    found = rlk.jit.logp(made, p.target, inplace_backward=in_place, **options)
    return leaf, made, found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "options"])
@pytest.mark.parametrize(
    "used", [u for k in (1, 2, 3) for u in itertools.combinations(range(3), k)], ids=str
)
def test_gradients_of_any_outputs(used, options, dtype):
    p = tensors(dtype)
    grads = [p.upstream + i if i in used else torch.zeros_like(p.upstream) for i in range(3)]
    exact = Exact(p, **options)
    for in_place in (False, True):
        leaf, _, found = run(p, in_place, **options, return_entropy=True, return_lse=True)
        assert isinstance(found, rlk.jit.LogpResult)
        for name, bounded in exact.outputs().items():
            assert_within(getattr(found, name), bounded, name)
        sum((found[i] * grads[i]).sum() for i in used).backward()
        assert leaf.grad.dtype == p.logits.dtype
        assert_within(leaf.grad, exact.gradient(*grads), "gradient")


def test_in_place_takes_no_memory_of_its_own():
    p = tensors()
    plain, _, out = run(p, False)
    (out * p.upstream).sum().backward()
    leaf, made, found = run(p, True)
    given = []
    made.register_hook(lambda grad: given.append(grad.data_ptr()))
    (found * p.upstream).sum().backward()
    assert given == [made.data_ptr()]
    assert same_bits(leaf.grad, plain.grad)
    assert same_bits(made.detach(), plain.grad)


@pytest.mark.parametrize("axes", [(0, 2), (0, 1), None])
def test_in_place_with_strides_and_inactive_rows(axes):
    for vocab in (310, 1537):
        p = tensors(vocab=vocab)
        mask = tensor(np.arange(12).reshape(3, 4) % 3 != 1)
        want = p.grad(mask=mask)
        leaf = p.logits.clone().requires_grad_()
        made = leaf.transpose(*axes).contiguous().transpose(*axes) if axes else leaf * 1
        assert made.is_contiguous() == (axes is None)
        rlk.jit.logp(made, p.target, mask=mask, inplace_backward=True).backward(p.upstream)
        assert same_bits(leaf.grad, want)
        assert same_bits(made.detach(), want)
        assert not leaf.grad[~mask].any()


def test_in_place_is_refused_where_it_would_be_wrong():
    p = tensors()
    leaf = p.logits.clone().requires_grad_()
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: inplace_backward: .*got a leaf"):
        rlk.jit.logp(leaf, p.target, inplace_backward=True)
    shared = (leaf[:1] * 1).expand(3, 4, 310)
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: inplace_backward: .*share no memory"):
        rlk.jit.logp(shared, p.target, inplace_backward=True)
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: inplace_backward: expected True or"):
        rlk.jit.logp(leaf * 1, p.target, inplace_backward=p.target)
    # The logits are gone after one backward.
    _, _, found = run(p, True)
    found.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
    # So they are for another node that saved them.
    _, made, found = run(p, True)
    other = made.sum() * 0 + (made * made).sum()
    first = torch.autograd.grad(found.sum(), made, retain_graph=True)
    assert len(first) == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()
    leaf, _, found = run(p, True)
    with pytest.raises(rlk.Unsupported, match=r"^logp: inplace_backward: .*create_graph"):
        torch.autograd.grad(found.sum(), leaf, create_graph=True)
    # Without a gradient nothing is written.
    kept = p.logits.clone()
    rlk.jit.logp(p.logits, p.target, inplace_backward=True)
    assert torch.equal(kept, p.logits)


def in_place(logits, target):
    return rlk.jit.logp(logits, target, inplace_backward=True).sum()


@pytest.mark.parametrize(
    "view",
    [
        lambda leaf: leaf.view(-1, 310),
        lambda leaf: leaf[1:],
        lambda leaf: leaf.view(4, 3, 310).transpose(0, 1)[0],
        lambda leaf: leaf.unbind()[1],
        lambda leaf: leaf.split([1, 2])[1].view(-1, 310),
        lambda leaf: leaf.as_strided((2, 310), (310, 1)),
        lambda leaf: leaf.detach().requires_grad_(),
    ],
    ids=["view", "slice", "transpose", "unbind", "split", "as_strided", "detach"],
)
def test_no_leaf_is_written_through_a_view(view):
    p = tensors()
    leaf = p.logits.clone().requires_grad_()
    logits = view(leaf)
    target = torch.zeros(logits.shape[:-1], dtype=torch.long, device=leaf.device)
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: inplace_backward: .*got a .*leaf"):
        in_place(logits, target)
    rlk.jit.logp(logits, target).sum().backward()
    assert torch.equal(leaf, p.logits)


def test_parts_of_one_tensor_are_written_one_after_another():
    p = tensors()
    target = p.target.view(-1)
    leaf = p.logits.view(-1, 310).clone().requires_grad_()
    want = torch.autograd.grad(rlk.jit.logp(leaf, target).sum(), leaf)[0]
    for parts in (lambda made: (made[:6], made[6:]), lambda made: (made, made)):
        first, second = parts(leaf * 1)
        pending = in_place(first, target[: len(first)])
        with pytest.raises(
            rlk.InvalidArgument, match=r"^logp: inplace_backward: .*is still to write over"
        ):
            in_place(second, target[: len(second)])
        del pending  # a graph that is dropped writes nothing
        if first is second:
            continue
        for part, ids in ((first, target[:6]), (second, target[6:])):
            in_place(part, ids).backward(retain_graph=True)
    assert same_bits(leaf.grad, want)


def test_an_argument_in_the_memory_that_is_written():
    p = tensors()
    made = p.logits.clone().requires_grad_() * 1
    heat = made.detach()[..., 3].abs_()
    with pytest.raises(rlk.InvalidArgument, match=r"inplace_backward: .*temperature shares"):
        rlk.jit.logp(made, p.target, temperature=heat, inplace_backward=True)
    rlk.jit.logp(made, p.target, temperature=heat).sum().backward()


def test_in_place_within_a_checkpoint():
    """The forward that is run once more has the memory of the first."""
    p = tensors()
    leaf = p.logits.clone().requires_grad_()
    want = torch.autograd.grad(rlk.jit.logp(leaf, p.target).sum(), leaf)[0]
    checkpoint(in_place, leaf * 1, p.target, use_reentrant=False).backward()
    assert same_bits(leaf.grad, want)


def test_views_that_torch_lets_nobody_write():
    p = tensors()
    made = p.logits.clone().requires_grad_() * 1
    target = torch.zeros(4, dtype=torch.long, device=made.device)
    for part in (made.unbind()[0], made.chunk(3)[1], made.split(1)[2].view(4, 310)):
        with pytest.raises(rlk.InvalidArgument, match=r"^logp: inplace_backward: .*chunk, split"):
            in_place(part, target.view(part.shape[:-1]))
    (whole,) = made.unsqueeze(0).unbind()  # of one, and all of its memory
    in_place(whole, p.target).backward()


def test_in_place_through_views_of_what_an_operation_made():
    p = tensors()
    leaf = p.logits.clone().requires_grad_()
    want = torch.autograd.grad(rlk.jit.logp(leaf, p.target)[:, :-1].sum(), leaf)[0]
    in_place((leaf * 1)[:, :-1], p.target[:, :-1]).backward()
    assert same_bits(leaf.grad, want)
    leaf.grad = None
    kept = in_place((leaf * 1).view(-1, 310), p.target.view(-1))
    kept.backward()
    want = torch.autograd.grad(rlk.jit.logp(leaf, p.target).sum(), leaf)[0]
    assert same_bits(leaf.grad, want)


def test_a_change_between_the_passes_is_found():
    p = tensors()
    _, made, found = run(p, False)
    with torch.no_grad():
        made.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_twice_through_one_graph():
    p = tensors()
    leaf, _, found = run(p, False)
    found.sum().backward(retain_graph=True)
    first = leaf.grad.clone()
    leaf.grad = None
    found.sum().backward()
    assert same_bits(first, leaf.grad)


def test_no_second_derivative():
    p = tensors()
    leaf, _, found = run(p, False)
    (grad,) = torch.autograd.grad(found.sum(), leaf, create_graph=True)
    with pytest.raises(rlk.Unsupported, match=r"^logp: backward: expected one derivative"):
        grad.sum().backward()


def test_what_needs_no_gradient():
    p = tensors()
    assert not rlk.jit.logp(p.logits, p.target).requires_grad
    for name in ("temperature", "softcap", "logit_scale"):
        value = torch.tensor(2.0, requires_grad=True)
        with pytest.raises(rlk.InvalidArgument, match=f"^logp: {name}: .*needs no gradient"):
            rlk.jit.logp(p.logits, p.target, **{name: value})
    heat = tensor(np.ones((3, 4), np.float32)).requires_grad_()
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: logits: expected a torch tensor"):
        rlk.jit.logp(p.logits.cpu().numpy(), p.target.cpu().numpy(), temperature=heat)


def test_in_place_on_a_view_whose_sign_is_still_to_be_applied_is_refused():
    p = tensors()
    whole = torch.complex(p.logits, p.logits).requires_grad_()
    lazy = (whole * 1).conj().imag
    assert lazy.is_neg()
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: inplace_backward: .*sign"):
        rlk.jit.logp(lazy, p.target, inplace_backward=True)


def test_shifted_targets():
    """prime-rl #1525: position t predicts token t + 1."""
    p = tensors(lead=(3, 5))
    ids = p.target
    found = rlk.jit.logp(p.logits[:, :-1], ids[:, 1:])
    want = p.logits[:, :-1].double().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
