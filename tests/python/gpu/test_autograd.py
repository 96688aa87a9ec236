# SPDX-License-Identifier: Apache-2.0
"""torch's autograd over linear_logp."""

import itertools

import pytest
from on_device import DEVICE, NAMES, leaves, make, padded, torch, transposed
from problems import DTYPES
from reference import Reference, assert_within, same_bits

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

SIZES = ((3, 4), 16, 310)
COMBINATIONS = [needs for k in range(4) for needs in itertools.combinations(NAMES, k)]


def upstream_of():
    return make(*SIZES).upstream


def expect_gradients(given, upstream, needs=NAMES, **options) -> None:
    exact = Reference(**given, **options).gradients(upstream)
    for name in NAMES:
        if name in needs:
            assert given[name].grad.dtype == given[name].dtype
            assert given[name].grad.device == given[name].device
            assert_within(given[name].grad, exact[name], name)
        else:
            assert given[name].grad is None


@pytest.mark.parametrize("bias", ["same", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probs_and_gradients(dtype, bias):
    given = leaves(make(*SIZES, dtype, bias=bias))
    logp = rlk.jit.linear_logp(**given, temperature=0.7)
    assert logp.dtype == torch.float32
    assert logp.device.type == DEVICE.type
    assert_within(logp, Reference(**given, temperature=0.7).forward())
    logp.backward(upstream_of())  # random, one a row: what reduction="none" hands down
    expect_gradients(given, upstream_of(), temperature=0.7)


@pytest.mark.parametrize("needs", COMBINATIONS, ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_asked_gradients_are_computed(needs, dtype, monkeypatch):
    given = leaves(make(*SIZES, dtype, bias="float32"), needs)
    asked = []
    backward = rlk._core.linear_logp_backward

    def spy(*arguments, **options):
        result = backward(*arguments, **options)
        asked.append(tuple(n for n, grad in zip(NAMES, result, strict=True) if grad is not None))
        return result

    monkeypatch.setattr(rlk._core, "linear_logp_backward", spy)
    logp = rlk.jit.linear_logp(**given)
    assert logp.requires_grad == bool(needs)
    if needs:
        logp.backward(upstream_of())
        assert asked == [needs]
    expect_gradients(given, upstream_of(), needs)


def test_without_a_bias():
    given = leaves(make(*SIZES))
    rlk.jit.linear_logp(**given).backward(upstream_of())
    exact = Reference(**given).gradients(upstream_of())
    for name in ("hidden", "weight"):
        assert_within(given[name].grad, exact[name], name)


LAYOUTS = {
    "expanded": lambda g: g[0, 0].expand(g.shape),
    "padded": padded,
    "transposed": transposed,
    "narrow": lambda g: padded(torch.cat([g, g], -1))[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_upstream_gradients_of_any_layout(layout):
    upstream = LAYOUTS[layout](upstream_of())
    assert not upstream.is_contiguous()
    given = leaves(make(*SIZES, bias="float32"))
    rlk.jit.linear_logp(**given).backward(upstream)
    expect_gradients(given, upstream)


@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_reductions_hand_down_expanded_scalars(reduce):
    given = leaves(make(*SIZES, bias="float32"))
    reduce(rlk.jit.linear_logp(**given)).backward()
    scale = 1.0 if reduce is torch.sum else 1 / 12
    expect_gradients(given, torch.full((3, 4), scale))


def test_backward_twice_gives_the_same_bits():
    given = leaves(make(*SIZES, "bfloat16", bias="float32"))
    logp = rlk.jit.linear_logp(**given)
    logp.backward(upstream_of(), retain_graph=True)
    first = {name: given[name].grad.clone() for name in NAMES}
    for name in NAMES:
        given[name].grad = None
    logp.backward(upstream_of(), retain_graph=True)
    for name in NAMES:
        assert same_bits(given[name].grad, first[name])
    logp.backward(upstream_of())  # and a third time, added to what is there
    for name in NAMES:
        assert same_bits(given[name].grad, first[name] * 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_grad_and_grad_forwards_have_the_same_bits(dtype):
    p = make(*SIZES, dtype, bias="float32")
    with_grad = rlk.jit.linear_logp(**leaves(p))
    assert with_grad.requires_grad
    with torch.no_grad():
        without = rlk.jit.linear_logp(**leaves(p))
    with torch.inference_mode():
        inference = rlk.jit.linear_logp(**leaves(p, ()))
    for other in (rlk.jit.linear_logp(**leaves(p, ())), without, inference):
        assert not other.requires_grad
        assert other.abs().sum() > 0
        assert same_bits(other, with_grad)


def test_a_saved_forward_and_a_second_one_give_the_same_gradient():
    p = make(*SIZES, "float16", bias="float32")
    given = leaves(p)
    rlk.jit.linear_logp(**given).backward(p.upstream)
    for name, again in zip(NAMES, p.grads(), strict=True):
        assert same_bits(again, given[name].grad)


def test_gradients_are_added_to_those_of_other_uses():
    # Tied weights: the embedding is the head.
    given = leaves(make(*SIZES), ("weight",))
    weight = given["weight"]
    (rlk.jit.linear_logp(**given).sum() + 3 * weight.sum()).backward()
    (alone,) = torch.autograd.grad(rlk.jit.linear_logp(**given).sum(), weight)
    assert same_bits(weight.grad, alone + 3)


@pytest.mark.parametrize("name", ["hidden", "weight", "bias", "target", "temperature", "mask"])
def test_a_change_in_place_before_the_backward_is_refused(name):
    given = leaves(make(*SIZES, bias="float32"))
    given["temperature"] = torch.ones(3, 4, device=DEVICE)
    given["mask"] = torch.ones(3, 4, device=DEVICE)
    logp = rlk.jit.linear_logp(**given)
    with torch.no_grad():
        given[name].mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.backward(upstream_of())


def test_a_second_derivative_is_refused():
    given = leaves(make(*SIZES, bias="float32"))
    loss = rlk.jit.linear_logp(**given).square().sum()
    (grad,) = torch.autograd.grad(loss, given["hidden"], create_graph=True)
    with pytest.raises(rlk.Unsupported, match="linear_logp: backward: expected one derivative"):
        grad.square().sum().backward()


def test_a_training_step_lowers_the_loss():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(30, 16, device=DEVICE)
    head = torch.nn.Linear(16, 50, device=DEVICE)
    parameters = [*embedding.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    tokens = torch.randint(30, (64,), device=DEVICE)
    target = torch.randint(50, (64,), device=DEVICE)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        hidden = embedding(tokens).tanh()
        loss = -rlk.jit.linear_logp(hidden, head.weight, target, head.bias).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.2


def test_gradients_of_calls_in_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    p = make(*SIZES, "bfloat16", bias="float32")
    want = p.grads()

    def grads(_):
        given = leaves(p)
        rlk.jit.linear_logp(**given).backward(p.upstream)
        return [given[name].grad for name in NAMES]

    with ThreadPoolExecutor(4) as pool:
        for some in pool.map(grads, range(16)):
            assert all(same_bits(one, first) for one, first in zip(some, want, strict=True))
