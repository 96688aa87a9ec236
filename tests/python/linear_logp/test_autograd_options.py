# SPDX-License-Identifier: Apache-2.0
"""Autograd through log-prob, entropy and log-sum-exp, alone and together."""

import itertools

import pytest
from problems import problem
from reference import Reference, assert_within, same_bits

torch = pytest.importorskip("torch")

import rlk  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]

INPUTS = ("hidden", "weight", "bias")
OPTIONS = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}


def operands() -> dict:
    p = problem((3, 4), 16, 310, bias="float32")
    tensors = {name: torch.from_numpy(getattr(p, name).copy()) for name in (*INPUTS, "target")}
    return {n: t.requires_grad_() if n in INPUTS else t for n, t in tensors.items()}


def upstream_of(index: int):
    return torch.randn((3, 4), generator=torch.Generator().manual_seed(index))


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "options"])
@pytest.mark.parametrize(
    "used", [u for k in (1, 2, 3) for u in itertools.combinations(range(3), k)], ids=str
)
def test_gradients_of_any_outputs(used, options):
    tensors = operands()
    found = rlk.jit.linear_logp(**tensors, **options, return_entropy=True, return_lse=True)
    assert isinstance(found, rlk.jit.LinearLogpResult)
    grads = [upstream_of(i) if i in used else None for i in range(3)]
    sum((found[i] * grads[i]).sum() for i in used).backward()
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    exact = Reference(**detached, **options)
    for name, bounded in exact.outputs().items():
        assert_within(getattr(found, name), bounded, name)
    for name, bounded in exact.gradients(*grads).items():
        assert_within(tensors[name].grad, bounded, name)
    again = rlk.jit.linear_logp_backward(
        grads[0], **detached, **options, grad_entropy=grads[1], grad_lse=grads[2]
    )
    for name in INPUTS:
        assert same_bits(getattr(again, name), tensors[name].grad)


def test_against_torch_in_float64():
    tensors = operands()
    found = rlk.jit.linear_logp(**tensors, **OPTIONS, return_entropy=True, return_lse=True)
    sum((one * upstream_of(i)).sum() for i, one in enumerate(found)).backward()
    wide = {n: tensors[n].detach().double().requires_grad_() for n in INPUTS}
    x = 0.75 * (wide["hidden"] @ wide["weight"].t() + wide["bias"])
    logs = (1.5 * torch.tanh(x / 1.5) / 0.7).log_softmax(-1)
    z = 1.5 * torch.tanh(x / 1.5) / 0.7
    log_prob = logs.gather(-1, tensors["target"][..., None])[..., 0]
    exact = (log_prob, -(logs.exp() * logs).sum(-1), z.logsumexp(-1))
    for got, want in zip(found, exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    sum((one * upstream_of(i)).sum() for i, one in enumerate(exact)).backward()
    for name in INPUTS:
        torch.testing.assert_close(
            tensors[name].grad.double(), wide[name].grad, rtol=1e-4, atol=1e-5
        )


def test_an_output_without_a_gradient_costs_no_entropy_kernel(monkeypatch):
    given = []
    backward = rlk._core.linear_logp_backward
    monkeypatch.setattr(
        rlk._core, "linear_logp_backward", lambda *a: given.append(a[:3]) or backward(*a)
    )
    found = rlk.jit.linear_logp(**operands(), return_entropy=True, return_lse=True)
    found.log_prob.sum().backward()
    assert given[0][0] is not None
    assert given[0][1:] == (None, None)


def test_only_what_is_asked_for_is_there():
    tensors = operands()
    entropy = rlk.jit.linear_logp(**tensors, return_entropy=True)
    assert entropy.lse is None
    assert entropy.entropy.requires_grad
    lse = rlk.jit.linear_logp(**tensors, return_lse=True)
    assert lse.entropy is None
    assert lse.lse.requires_grad
    with torch.no_grad():
        found = rlk.jit.linear_logp(**tensors, return_entropy=True, return_lse=True)
    assert not any(value.requires_grad for value in found)
    for name in ("log_prob", "entropy"):
        assert same_bits(getattr(found, name), getattr(entropy, name).detach())


def test_no_second_derivative():
    found = rlk.jit.linear_logp(**(tensors := operands()), return_entropy=True)
    (grad,) = torch.autograd.grad(found.entropy.sum(), tensors["hidden"], create_graph=True)
    with pytest.raises(rlk.Unsupported, match="one derivative"):
        grad.sum().backward()


def test_an_entropy_changed_in_place_is_found():
    # The backward reads it.
    found = rlk.jit.linear_logp(**operands(), return_entropy=True)
    loss = found.entropy.sum()
    with torch.no_grad():
        found.entropy.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", ["softcap", "logit_scale"])
def test_a_number_that_needs_a_gradient_is_refused(name):
    tensors = {key: tensor.detach() for key, tensor in operands().items()}
    value = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(rlk.InvalidArgument, match=f"{name}: expected a number that needs no"):
        rlk.jit.linear_logp(**tensors, **{name: value})
    assert same_bits(
        rlk.jit.linear_logp(**tensors, **{name: value.detach()}),
        rlk.jit.linear_logp(**tensors, **{name: 2.0}),
    )


def test_inactive_rows():
    tensors = operands()
    mask = torch.ones(3, 4)
    mask[1] = 0
    with torch.no_grad():
        tensors["hidden"][1] = float("nan")
    found = rlk.jit.linear_logp(
        **tensors, **OPTIONS, mask=mask, return_entropy=True, return_lse=True
    )
    sum(value.sum() for value in found).backward()
    for value in found:
        assert not value[1].any()
    assert not tensors["hidden"].grad[1].any()
    for name in INPUTS:
        assert torch.isfinite(tensors[name].grad).all()
