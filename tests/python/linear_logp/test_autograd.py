# SPDX-License-Identifier: Apache-2.0
"""torch's autograd over linear_logp."""

import itertools

import numpy as np
import pytest
from problems import DTYPES, problem
from reference import Reference, assert_within, same_bits

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]

NAMES = ("hidden", "weight", "bias")
SIZES = ((3, 4), 16, 310)


def operands(dtype="float32", needs=(), bias="float32", sizes=SIZES):
    """hidden, weight, target, bias as torch tensors; those named in `needs` ask for gradients."""
    p = problem(*sizes, bias="float32")
    kind = getattr(torch, dtype)
    tensors = {
        "hidden": torch.from_numpy(p.hidden).to(kind),
        "weight": torch.from_numpy(p.weight).to(kind),
        "target": torch.from_numpy(p.target),
        "bias": torch.from_numpy(p.bias).to(getattr(torch, bias)),
    }
    for name in needs:
        tensors[name].requires_grad_(True)
    return tensors


def upstream_of(sizes=SIZES):
    return torch.from_numpy(problem(*sizes).upstream)


def exact(tensors, upstream, **options):
    reference = Reference(**{n: t.detach() for n, t in tensors.items()}, **options)
    return reference.forward(), reference.gradients(upstream)


@pytest.mark.parametrize("bias", ["float32", "same"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probs_and_gradients(dtype, bias):
    tensors = operands(dtype, NAMES, dtype if bias == "same" else bias)
    logp = rlk.jit.linear_logp(**tensors, temperature=0.7)
    assert logp.dtype == torch.float32
    assert logp.shape == (3, 4)
    upstream = upstream_of()
    logp.backward(upstream)
    value, grads = exact(tensors, upstream, temperature=0.7)
    assert_within(logp, value)
    for name in NAMES:
        assert tensors[name].grad.dtype == tensors[name].dtype
        assert_within(tensors[name].grad, grads[name], name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_torch(dtype):
    tensors = operands(dtype, NAMES)
    mine = rlk.jit.linear_logp(**tensors)
    mine.backward(upstream_of())
    wide = {n: t.detach().double() if n != "target" else t for n, t in tensors.items()}
    for name in NAMES:
        wide[name].requires_grad_(True)
    logits = torch.nn.functional.linear(wide["hidden"], wide["weight"]) + wide["bias"]
    theirs = logits.log_softmax(-1).gather(-1, wide["target"][..., None])[..., 0]
    theirs.backward(upstream_of().double())
    rtol = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}[dtype]
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-5)
    for name in NAMES:
        torch.testing.assert_close(
            tensors[name].grad.double(), wide[name].grad, rtol=rtol, atol=rtol * 0.1
        )


@pytest.mark.parametrize("needs", [n for k in range(4) for n in itertools.combinations(NAMES, k)])
def test_only_the_asked_gradients_are_computed(needs, monkeypatch):
    asked = []
    backward = rlk._core.linear_logp_backward

    def spy(*arguments):
        asked.append(tuple(itertools.compress(NAMES, arguments[-3:])))
        result = backward(*arguments)
        assert tuple(grad is not None for grad in result) == arguments[-3:]
        return result

    monkeypatch.setattr(rlk._core, "linear_logp_backward", spy)
    tensors = operands(needs=needs)
    logp = rlk.jit.linear_logp(**tensors)
    assert logp.requires_grad == bool(needs)
    _, grads = exact(tensors, upstream_of())
    if needs:
        logp.backward(upstream_of())
        assert asked == [needs]
    for name in NAMES:
        if name in needs:
            assert_within(tensors[name].grad, grads[name], name)
        else:
            assert tensors[name].grad is None


def test_only_the_inputs_asked_of_grad_are_computed():
    tensors = operands(needs=NAMES)
    logp = rlk.jit.linear_logp(**tensors)
    (grad,) = torch.autograd.grad(logp, tensors["weight"], upstream_of())
    assert_within(grad, exact(tensors, upstream_of())[1]["weight"])
    assert tensors["hidden"].grad is None


def test_without_a_bias():
    tensors = operands(needs=("hidden", "weight"))
    del tensors["bias"]
    rlk.jit.linear_logp(**tensors).backward(upstream_of())
    _, grads = exact(tensors, upstream_of())
    assert_within(tensors["hidden"].grad, grads["hidden"])
    assert_within(tensors["weight"].grad, grads["weight"])


def expanded(upstream):
    return torch.tensor(0.25).expand(3, 4)


def strided(upstream):
    room = torch.full((3, 9), float("nan"))
    room[:, 1::2] = upstream
    return room[:, 1::2]


def transposed(upstream):
    return upstream.t().contiguous().t()


@pytest.mark.parametrize("layout", [expanded, strided, transposed])
def test_upstream_gradients_of_any_layout(layout):
    upstream = layout(upstream_of())
    assert not upstream.is_contiguous()
    tensors = operands(needs=NAMES)
    rlk.jit.linear_logp(**tensors).backward(upstream)
    _, grads = exact(tensors, upstream)
    for name in NAMES:
        assert_within(tensors[name].grad, grads[name], name)


@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_reductions_hand_down_expanded_scalars(reduce):
    tensors = operands(needs=NAMES)
    reduce(rlk.jit.linear_logp(**tensors)).backward()
    scale = 1.0 if reduce is torch.sum else 1 / 12
    _, grads = exact(tensors, torch.full((3, 4), scale))
    for name in NAMES:
        assert_within(tensors[name].grad, grads[name], name)


def test_backward_twice_gives_the_same_bits():
    tensors = operands(needs=NAMES)
    logp = rlk.jit.linear_logp(**tensors)
    logp.backward(upstream_of(), retain_graph=True)
    first = {name: tensors[name].grad.clone() for name in NAMES}
    for name in NAMES:
        tensors[name].grad = None
    logp.backward(upstream_of(), retain_graph=True)
    for name in NAMES:
        assert same_bits(tensors[name].grad, first[name])
    logp.backward(upstream_of())  # and a third time, added to what is there
    for name in NAMES:
        assert same_bits(tensors[name].grad, first[name] * 2)
    with pytest.raises(RuntimeError, match="second time"):
        logp.backward(upstream_of())


def test_gradients_are_added_to_those_of_other_uses():
    # Tied weights: the embedding is the head.
    tensors = operands(needs=("weight",))
    weight = tensors["weight"]
    logp = rlk.jit.linear_logp(**tensors)
    (logp.sum() + 3 * weight.sum()).backward()
    alone = torch.autograd.grad(rlk.jit.linear_logp(**tensors).sum(), weight)[0]
    assert same_bits(weight.grad, alone + 3)


def test_parameters_of_a_module():
    head = torch.nn.Linear(16, 310)
    hidden = torch.randn(7, 16)
    target = torch.arange(7)
    logp = rlk.jit.linear_logp(hidden, head.weight, target, head.bias)
    assert type(logp) is torch.Tensor
    logp.mean().backward()
    mine = head.weight.grad.clone(), head.bias.grad.clone()
    head.zero_grad()
    torch.nn.functional.cross_entropy(head(hidden), target).neg().backward()
    torch.testing.assert_close(mine[0], head.weight.grad)
    torch.testing.assert_close(mine[1], head.bias.grad)


def test_a_training_step_lowers_the_loss():
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 50)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    hidden, target = torch.randn(64, 16), torch.randint(50, (64,))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = -rlk.jit.linear_logp(hidden, head.weight, target, head.bias).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.5


def test_hidden_states_from_a_graph():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(30, 16)
    head = torch.randn(310, 16)
    target = torch.arange(12)
    logp = rlk.jit.linear_logp(embedding(torch.arange(12)).tanh(), head, target)
    logp.sum().backward()
    mine = embedding.weight.grad.clone()
    embedding.zero_grad()
    logits = embedding(torch.arange(12)).tanh() @ head.t()
    logits.log_softmax(-1).gather(-1, target[:, None]).sum().backward()
    torch.testing.assert_close(mine, embedding.weight.grad, rtol=1e-4, atol=1e-5)


def test_masks_and_ignored_targets():
    tensors = operands(needs=NAMES)
    tensors["target"][0] = -100
    mask = torch.ones(3, 4)
    mask[1, ::2] = 0
    inactive = (tensors["target"] == -100) | (mask == 0)
    with torch.no_grad():
        tensors["hidden"][inactive] = float("nan")
    logp = rlk.jit.linear_logp(**tensors, mask=mask)
    logp.backward(upstream_of())
    assert not logp[inactive].any()
    assert not tensors["hidden"].grad[inactive].any()
    _, grads = exact(tensors, upstream_of(), mask=mask)
    for name in NAMES:
        assert_within(tensors[name].grad, grads[name], name)


@pytest.mark.parametrize("kind", ["all masked", "no rows"])
def test_nothing_to_do(kind):
    rows = (3, 4) if kind == "all masked" else (0, 4)
    tensors = operands(needs=NAMES, sizes=(rows, 16, 310))
    mask = torch.zeros(rows)
    logp = rlk.jit.linear_logp(**tensors, mask=mask)
    logp.sum().backward()
    assert not logp.any()
    for name in NAMES:
        assert tensors[name].grad.shape == tensors[name].shape
        assert not tensors[name].grad.any()


def test_temperature_tensors():
    heat = torch.linspace(0.3, 1.5, 12).reshape(3, 4)
    tensors = operands(needs=NAMES)
    rlk.jit.linear_logp(**tensors, temperature=heat).backward(upstream_of())
    _, grads = exact(tensors, upstream_of(), temperature=heat)
    for name in NAMES:
        assert_within(tensors[name].grad, grads[name], name)


def test_a_saved_forward_and_a_second_one_give_the_same_gradient():
    # linear_logp_backward runs the forward again; autograd keeps two values a row of it.
    tensors = operands(needs=NAMES)
    rlk.jit.linear_logp(**tensors).backward(upstream_of())
    again = rlk.jit.linear_logp_backward(upstream_of(), **operands())
    for name in NAMES:
        assert same_bits(getattr(again, name), tensors[name].grad)


def test_torch_and_numpy_have_the_same_bits():
    p = problem(*SIZES, bias="float32")
    tensors = operands(needs=NAMES)
    logp = rlk.jit.linear_logp(**tensors)
    logp.backward(upstream_of())
    assert same_bits(logp, p.logp())
    for name in NAMES:
        assert same_bits(tensors[name].grad, getattr(p.grads(), name))


def test_a_numpy_operand_beside_one_that_needs_a_gradient():
    tensors = operands(needs=("hidden",))
    message = "linear_logp: weight: expected a torch tensor where .* gradient, got ndarray"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.linear_logp(tensors["hidden"], tensors["weight"].numpy(), tensors["target"])


def test_errors_are_the_same_under_autograd():
    tensors = operands(needs=NAMES)
    tensors["target"][2, 1] = 310
    with pytest.raises(rlk.InvalidArgument, match=r"target: .* got 310 in row 9"):
        rlk.jit.linear_logp(**tensors)


def test_gradients_of_calls_in_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    def grads(_):
        tensors = operands(needs=NAMES)
        rlk.jit.linear_logp(**tensors).backward(upstream_of())
        return [tensors[name].grad for name in NAMES]

    with ThreadPoolExecutor(4) as pool:
        all_grads = list(pool.map(grads, range(16)))
    for some in all_grads:
        for one, first in zip(some, all_grads[0], strict=True):
            assert same_bits(one, first)


def test_numpy_is_not_the_type_of_anything():
    tensors = operands()
    for result in (
        rlk.jit.linear_logp(**tensors),
        *rlk.jit.linear_logp_backward(upstream_of(), **tensors),
    ):
        assert isinstance(result, torch.Tensor)
        assert not isinstance(result, np.ndarray)
