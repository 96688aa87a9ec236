# SPDX-License-Identifier: Apache-2.0
"""What torch's graph does around linear_logp: modes, changes in place, a second derivative."""

import pytest
from problems import problem
from reference import same_bits

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]

NAMES = ("hidden", "weight", "bias")


def operands(needs=()):
    p = problem((3, 4), 16, 310, bias="float32")
    tensors = {
        name: torch.from_numpy(getattr(p, name)) for name in ("hidden", "weight", "target", "bias")
    }
    for name in needs:
        tensors[name].requires_grad_(True)
    return tensors


def upstream_of():
    return torch.linspace(-1, 2, 12).reshape(3, 4)


@pytest.mark.parametrize("name", ["hidden", "weight", "bias", "target", "temperature", "mask"])
def test_a_change_in_place_before_the_backward_is_refused(name):
    tensors = operands(needs=NAMES)
    tensors["temperature"] = torch.ones(3, 4)
    tensors["mask"] = torch.ones(3, 4)
    logp = rlk.jit.linear_logp(**tensors)
    with torch.no_grad():
        tensors[name].mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.backward(upstream_of())


def test_no_grad_and_grad_forwards_have_the_same_bits():
    with_grad = rlk.jit.linear_logp(**operands(needs=NAMES))
    plain = rlk.jit.linear_logp(**operands())
    with torch.no_grad():
        without = rlk.jit.linear_logp(**operands(needs=NAMES))
    with torch.inference_mode():
        inference = rlk.jit.linear_logp(**operands())
    assert with_grad.requires_grad
    for other in (plain, without, inference):
        assert not other.requires_grad
        assert other.abs().sum() > 0
        assert same_bits(other, with_grad)


def test_inference_tensors_without_gradients():
    with torch.inference_mode():
        tensors = operands()
    logp = rlk.jit.linear_logp(**tensors)  # outside of the mode, tensors from inside
    assert same_bits(logp, rlk.jit.linear_logp(**operands()))


@pytest.mark.parametrize("upstream", ["constant", "variable"])
@pytest.mark.parametrize("name", NAMES)
def test_a_second_derivative_is_refused_clearly(name, upstream):
    tensors = operands(needs=NAMES)
    logp = rlk.jit.linear_logp(**tensors)
    loss = logp.sum() if upstream == "constant" else logp.square().sum()
    (grad,) = torch.autograd.grad(loss, tensors[name], create_graph=True)
    plain = torch.autograd.grad(loss, tensors[name])[0]
    assert same_bits(grad, plain)  # the first is as ever
    with pytest.raises(rlk.Unsupported, match="linear_logp: backward: expected one derivative"):
        grad.square().sum().backward()
