# SPDX-License-Identifier: Apache-2.0
"""torch's autograd over linear_logp: gradients of any outputs, and what its graph does."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from devices import get, on_cpu_alone, put, torch_name
from layouts import padded, spaced, transposed
from problems import DTYPES, NAMES, problem, with_garbage
from reference import Reference, assert_within, same_bits
from tensors import leaves, make, tensor, torch, upload

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

SIZES = ((3, 4), 16, 310)
OPTIONS = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}
EVERY = {"return_entropy": True, "return_lse": True}
COMBINATIONS = [needs for k in range(4) for needs in itertools.combinations(NAMES, k)]
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def operands(dtype="float32", needs=NAMES, bias="float32", sizes=SIZES):
    """hidden, weight, target, bias as torch tensors; those named in `needs` ask for gradients."""
    return leaves(make(*sizes, dtype, bias=bias), needs)


def upstream_of(index: int = 0):
    """Random, one a row: what reduction="none" hands down."""
    return tensor(problem(*SIZES, seed=index).upstream)


def expect_gradients(given, *upstream, needs=NAMES, **options) -> None:
    exact = Reference(**given, **options).gradients(*upstream)
    for name in (name for name in NAMES if name in given):
        if name in needs:
            assert given[name].grad.dtype == given[name].dtype
            assert given[name].grad.device == given[name].device
            assert_within(given[name].grad, exact[name], name)
        else:
            assert given[name].grad is None


@pytest.mark.parametrize("bias", ["float32", "same"])
@each_dtype
def test_log_probs_and_gradients(dtype, bias):
    given = operands(dtype, bias=bias)
    logp = rlk.jit.linear_logp(**given, temperature=0.7)
    assert (logp.dtype, logp.shape) == (torch.float32, (3, 4))
    assert logp.device.type == torch_name()
    assert_within(logp, Reference(**given, temperature=0.7).forward())
    logp.backward(upstream_of())
    expect_gradients(given, upstream_of(), temperature=0.7)


@each_dtype
def test_agrees_with_torch(dtype):
    for sizes, temperature in ((SIZES, 1.0), ((40, 64, 500), 0.7)):
        p = make(*sizes, dtype, bias="float32")
        given = leaves(p)
        mine = rlk.jit.linear_logp(**given, temperature=temperature)
        mine.backward(p.upstream)
        wide = {n: t.double().requires_grad_() for n, t in leaves(p, ()).items() if n != "target"}
        z = torch.nn.functional.linear(wide["hidden"], wide["weight"]) + wide["bias"]
        logs = (z / temperature).log_softmax(-1)
        theirs = logs.gather(-1, p.target[..., None])[..., 0]
        theirs.backward(p.upstream.double())
        rtol = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}[dtype]
        rtol *= 10 if sizes is not SIZES and dtype == "float32" else 1
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-5)
        for name in NAMES:
            got, want = given[name].grad.double(), wide[name].grad
            if torch_name() == "cuda" and dtype != "float32":  # its dZ is of 16 bits
                assert (got - want).norm() / want.norm() < 8e-3, name
            else:
                torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * 0.1)


@pytest.mark.parametrize("needs", COMBINATIONS, ids="-".join)
@each_dtype
def test_only_the_asked_gradients_are_computed(needs, dtype, monkeypatch):
    asked = []
    backward = rlk._core.linear_logp_backward

    def spy(*arguments):
        result = backward(*arguments)
        asked.append(tuple(itertools.compress(NAMES, arguments[1:4])))
        assert tuple(grad is not None for grad in result) == arguments[1:4]
        return result

    monkeypatch.setattr(rlk._core, "linear_logp_backward", spy)
    given = operands(dtype, needs)
    logp = rlk.jit.linear_logp(**given)
    assert logp.requires_grad == bool(needs)
    if needs:
        logp.backward(upstream_of())
        assert asked == [needs]
    expect_gradients(given, upstream_of(), needs=needs)


def test_only_the_inputs_asked_of_grad_are_computed():
    given = operands()
    logp = rlk.jit.linear_logp(**given)
    (grad,) = torch.autograd.grad(logp, given["weight"], upstream_of())
    assert_within(grad, Reference(**given).gradients(upstream_of())["weight"])
    assert given["hidden"].grad is None


def test_without_a_bias():
    given = operands(bias=None)
    rlk.jit.linear_logp(**given).backward(upstream_of())
    expect_gradients(given, upstream_of())


UPSTREAMS = {
    "expanded": lambda g: torch.tensor(0.25, device=g.device).expand(3, 4),
    "expanded_first": lambda g: g[0, 0].expand(g.shape),
    "narrow": lambda g: torch.cat([g, g], -1)[:, ::2],
    **{
        view.__name__: lambda g, view=view: put(view(get(g)))
        for view in (spaced, padded, transposed)
    },
}


@pytest.mark.parametrize("layout", UPSTREAMS)
def test_upstream_gradients_of_any_layout(layout):
    upstream = UPSTREAMS[layout](upstream_of())
    assert not upstream.is_contiguous()
    given = operands()
    rlk.jit.linear_logp(**given).backward(upstream)
    expect_gradients(given, upstream)


@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_reductions_hand_down_expanded_scalars(reduce):
    given = operands()
    reduce(rlk.jit.linear_logp(**given)).backward()
    expect_gradients(given, torch.full((3, 4), 1.0 if reduce is torch.sum else 1 / 12))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_backward_twice_gives_the_same_bits(dtype):
    given = operands(dtype)
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
    with pytest.raises(RuntimeError, match="second time"):
        logp.backward(upstream_of())


# Segments of 33 leaves, of all of which, of half or of none exponentials are kept. A graph that is
# retained leaves them as they are, so that dZ is written beside them: 1 MiB holds it for a half of
# a segment's leaves.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_no_budget_changes_a_second_backward(dtype):
    sizes = ((300,), 16, 50_257)
    upstream = upload(problem(300, 16, 50_257)).upstream
    first = None
    for workspace_mib in (1, 512):
        rlk.jit.configure(workspace_mib=workspace_mib)
        for saved_mib in (0, 20, 40, 512):
            given = operands(dtype, sizes=sizes)
            logp = rlk.jit.linear_logp(**given, saved_mib=saved_mib)
            for retain_graph in (True, False):
                grads = torch.autograd.grad(
                    logp, [given[name] for name in NAMES], upstream, retain_graph=retain_graph
                )
                first = first or grads
                for got, want in zip(grads, first, strict=True):
                    assert same_bits(got, want), (workspace_mib, saved_mib, retain_graph)


@each_dtype
def test_no_grad_and_grad_forwards_have_the_same_bits(dtype):
    with_grad = rlk.jit.linear_logp(**operands(dtype))
    assert with_grad.requires_grad
    with torch.no_grad():
        without = rlk.jit.linear_logp(**operands(dtype))
    with torch.inference_mode():
        tensors = operands(dtype, ())
        inference = rlk.jit.linear_logp(**tensors)
    outside = rlk.jit.linear_logp(**tensors)  # outside of the mode, tensors from inside
    for other in (rlk.jit.linear_logp(**operands(dtype, ())), without, inference, outside):
        assert not other.requires_grad
        assert other.abs().sum() > 0
        assert same_bits(other, with_grad)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_saved_forward_and_a_second_one_give_the_same_gradient(dtype):
    # linear_logp_backward runs the forward again; autograd keeps two values a row of it.
    given = operands(dtype)
    rlk.jit.linear_logp(**given).backward(upstream_of())
    again = rlk.jit.linear_logp_backward(upstream_of(), **operands(dtype, ()))
    for name, grad in zip(NAMES, again, strict=True):
        assert same_bits(grad, given[name].grad)


def test_gradients_are_added_to_those_of_other_uses():
    # Tied weights: the embedding is the head.
    given = operands(needs=("weight",))
    weight = given["weight"]
    (rlk.jit.linear_logp(**given).sum() + 3 * weight.sum()).backward()
    (alone,) = torch.autograd.grad(rlk.jit.linear_logp(**given).sum(), weight)
    assert same_bits(weight.grad, alone + 3)


def test_parameters_of_a_module():
    head = torch.nn.Linear(16, 310, device=torch_name())
    hidden, target = torch.randn(7, 16, device=torch_name()), torch.arange(7, device=torch_name())
    logp = rlk.jit.linear_logp(hidden, head.weight, target, head.bias)
    assert type(logp) is torch.Tensor
    logp.mean().backward()
    mine = head.weight.grad.clone(), head.bias.grad.clone()
    head.zero_grad()
    torch.nn.functional.cross_entropy(head(hidden), target).neg().backward()
    torch.testing.assert_close(mine, (head.weight.grad, head.bias.grad))


def test_a_training_step_lowers_the_loss():
    torch.manual_seed(0)
    kind = {"device": torch_name()}
    embedding, head = torch.nn.Embedding(30, 16, **kind), torch.nn.Linear(16, 50, **kind)
    tokens, target = torch.randint(30, (64,), **kind), torch.randint(50, (64,), **kind)
    fixed = torch.randn(64, 16, **kind)
    for trains_hidden, least in ((True, 0.2), (False, 0.5)):
        parameters = [*embedding.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            hidden = embedding(tokens).tanh() if trains_hidden else fixed
            loss = -rlk.jit.linear_logp(hidden, head.weight, target, head.bias).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0] - least


def test_hidden_states_from_a_graph():
    torch.manual_seed(0)
    kind = {"device": torch_name()}
    embedding, head = torch.nn.Embedding(30, 16, **kind), torch.randn(310, 16, **kind)
    target = torch.arange(12, **kind)
    logp = rlk.jit.linear_logp(embedding(target).tanh(), head, target)
    logp.sum().backward()
    mine = embedding.weight.grad.clone()
    embedding.zero_grad()
    logits = embedding(target).tanh() @ head.t()
    logits.log_softmax(-1).gather(-1, target[:, None]).sum().backward()
    torch.testing.assert_close(mine, embedding.weight.grad, rtol=1e-4, atol=1e-5)


def test_masks_and_ignored_targets():
    given = operands()
    given["target"][0] = -100
    mask = torch.ones(3, 4, device=torch_name())
    mask[1, ::2] = 0
    inactive = (given["target"] == -100) | (mask == 0)
    with torch.no_grad():
        given["hidden"][inactive] = float("nan")
    logp = rlk.jit.linear_logp(**given, mask=mask)
    logp.backward(upstream_of())
    assert not logp[inactive].any()
    assert not given["hidden"].grad[inactive].any()
    expect_gradients(given, upstream_of(), mask=mask)


def test_inactive_rows_have_the_gradients_of_backward():
    active = np.arange(1300) % 3 != 1
    p = upload(with_garbage(problem(1300, 16, 310, bias="float32"), active), "bfloat16")
    mask, given = tensor(active), leaves(p)
    rlk.jit.linear_logp(**given, mask=mask).backward(p.upstream)
    for name, want in zip(NAMES, p.grads(mask=mask), strict=True):
        assert same_bits(given[name].grad, want)


@pytest.mark.parametrize("kind", ["all masked", "no rows"])
def test_nothing_to_do(kind):
    rows = (3, 4) if kind == "all masked" else (0, 4)
    given = operands(sizes=(rows, 16, 310))
    logp = rlk.jit.linear_logp(**given, mask=torch.zeros(rows, device=torch_name()))
    logp.sum().backward()
    assert not logp.any()
    for name in NAMES:
        assert given[name].grad.shape == given[name].shape
        assert not given[name].grad.any()


def test_temperature_tensors():
    heat = torch.linspace(0.3, 1.5, 12, device=torch_name()).reshape(3, 4)
    given = operands()
    rlk.jit.linear_logp(**given, temperature=heat).backward(upstream_of())
    expect_gradients(given, upstream_of(), temperature=heat)


@on_cpu_alone
def test_torch_and_numpy_have_the_same_bits():
    p, given = problem(*SIZES, bias="float32"), operands()
    logp = rlk.jit.linear_logp(**given)
    logp.backward(upstream_of())
    assert same_bits(logp, p.logp())
    for name, grad in zip(NAMES, p.grads(), strict=True):
        assert same_bits(given[name].grad, grad)


@on_cpu_alone
def test_a_numpy_operand_beside_one_that_needs_a_gradient():
    given = operands(needs=("hidden",))
    message = "linear_logp: weight: expected a torch tensor where .* gradient, got ndarray"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.linear_logp(given["hidden"], given["weight"].numpy(), given["target"])


def test_errors_are_the_same_under_autograd():
    rlk.jit.configure(validate="sync")
    given = operands()
    given["target"][2, 1] = 310
    with pytest.raises(rlk.InvalidArgument, match=r"target: .* got 310 in row 9"):
        rlk.jit.linear_logp(**given)


def test_gradients_of_calls_in_several_threads():
    def grads(_):
        given = operands("bfloat16")
        rlk.jit.linear_logp(**given).backward(upstream_of())
        return [given[name].grad for name in NAMES]

    want = rlk.jit.linear_logp_backward(upstream_of(), **operands("bfloat16", ()))
    with ThreadPoolExecutor(4) as pool:
        for some in pool.map(grads, range(16)):
            assert all(same_bits(one, first) for one, first in zip(some, want, strict=True))


def test_results_are_tensors_and_no_arrays():
    given = operands(needs=())
    grads = rlk.jit.linear_logp_backward(upstream_of(), **given)
    for result in (rlk.jit.linear_logp(**given), *grads):
        assert isinstance(result, torch.Tensor)
        assert not isinstance(result, np.ndarray)


@pytest.mark.parametrize("name", [*NAMES, "target", "temperature", "mask"])
def test_a_change_in_place_before_the_backward_is_refused(name):
    ones = {other: torch.ones(3, 4, device=torch_name()) for other in ("temperature", "mask")}
    given = operands() | ones
    logp = rlk.jit.linear_logp(**given)
    with torch.no_grad():
        given[name].mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.backward(upstream_of())


def test_an_entropy_changed_in_place_is_found():
    # The backward reads it.
    found = rlk.jit.linear_logp(**operands(), return_entropy=True)
    loss = found.entropy.sum()
    with torch.no_grad():
        found.entropy.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_log_prob_may_be_changed_in_place():
    # The backward makes 1 - p of the target from it, and has its own.
    given = operands()
    inputs = [given[name] for name in NAMES]
    want = torch.autograd.grad(rlk.jit.linear_logp(**given), inputs, upstream_of())
    logp = rlk.jit.linear_logp(**given)
    again = logp.clone()
    with torch.no_grad():
        logp.zero_()
    for got, exact in zip(torch.autograd.grad(again, inputs, upstream_of()), want, strict=True):
        assert same_bits(got, exact)


@pytest.mark.parametrize("made", ["constant", "variable", "entropy"])
@pytest.mark.parametrize("name", NAMES)
def test_a_second_derivative_is_refused_clearly(name, made):
    given = operands()
    found = rlk.jit.linear_logp(**given, return_entropy=True)
    losses = {"constant": found.log_prob, "variable": found.log_prob.square()}
    loss = losses.get(made, found.entropy).sum()
    (grad,) = torch.autograd.grad(loss, given[name], create_graph=True)
    assert same_bits(grad, torch.autograd.grad(loss, given[name])[0])  # the first is as ever
    with pytest.raises(rlk.Unsupported, match="linear_logp: backward: expected one derivative"):
        grad.square().sum().backward()


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "options"])
@pytest.mark.parametrize(
    "used", [u for k in (1, 2, 3) for u in itertools.combinations(range(3), k)], ids=str
)
def test_gradients_of_any_outputs(used, options):
    given = operands()
    found = rlk.jit.linear_logp(**given, **options, **EVERY)
    assert isinstance(found, rlk.jit.LogpResult)
    grads = [upstream_of(i) if i in used else None for i in range(3)]
    sum((found[i] * grads[i]).sum() for i in used).backward()
    for name, bounded in Reference(**given, **options).outputs().items():
        assert_within(getattr(found, name), bounded, name)
    expect_gradients(given, *grads, **options)
    of_more = {"grad_entropy": grads[1], "grad_lse": grads[2]}
    again = rlk.jit.linear_logp_backward(grads[0], **operands(needs=()), **options, **of_more)
    for name, grad in zip(NAMES, again, strict=True):
        assert same_bits(grad, given[name].grad)


@pytest.mark.parametrize(("sizes", "dtype"), [(SIZES, "float32"), ((40, 64, 500), "bfloat16")])
def test_all_outputs_against_torch_in_float64(sizes, dtype):
    p = make(*sizes, dtype, bias="float32")
    given = leaves(p)
    found = rlk.jit.linear_logp(**given, **OPTIONS, **EVERY)
    weights = [torch.randn(p.target.shape).to(p.hidden.device) for _ in found]
    sum((one * g).sum() for one, g in zip(found, weights, strict=True)).backward()
    wide = {n: t.double().requires_grad_() for n, t in leaves(p, ()).items() if n != "target"}
    x = 0.75 * (wide["hidden"] @ wide["weight"].mT + wide["bias"])
    z = 1.5 * torch.tanh(x / 1.5) / 0.7
    logs = z.log_softmax(-1)
    log_prob = logs.gather(-1, p.target[..., None])[..., 0]
    exact = (log_prob, -(logs.exp() * logs).sum(-1), z.logsumexp(-1))
    for got, want in zip(found, exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    sum((one * g).sum() for one, g in zip(exact, weights, strict=True)).backward()
    for name, want in wide.items():
        got = given[name].grad.double()
        if dtype == "float32":
            torch.testing.assert_close(got, want.grad, rtol=1e-4, atol=1e-5)
        assert (got - want.grad).norm() / want.grad.norm() < 8e-3, name


def test_an_output_without_a_gradient_costs_no_entropy_kernel(monkeypatch):
    given = []
    backward = rlk._core.linear_logp_backward
    monkeypatch.setattr(
        rlk._core, "linear_logp_backward", lambda *a: given.append(a[0]) or backward(*a)
    )
    found = rlk.jit.linear_logp(**operands(), **EVERY)
    found.log_prob.sum().backward()
    assert given[0]["grad_output"] is not None
    assert given[0]["grad_entropy"] is given[0]["grad_lse"] is None


def test_only_what_is_asked_for_is_there():
    given = operands()
    entropy = rlk.jit.linear_logp(**given, return_entropy=True)
    assert entropy.lse is None
    assert entropy.entropy.requires_grad
    lse = rlk.jit.linear_logp(**given, return_lse=True)
    assert lse.entropy is None
    assert lse.lse.requires_grad
    with torch.no_grad():
        found = rlk.jit.linear_logp(**given, **EVERY)
    assert not any(value.requires_grad for value in found)
    for name in ("log_prob", "entropy"):
        assert same_bits(getattr(found, name), getattr(entropy, name).detach())


@pytest.mark.parametrize("name", ["softcap", "logit_scale"])
def test_a_number_that_needs_a_gradient_is_refused(name):
    given, value = operands(needs=()), torch.tensor(2.0, requires_grad=True)
    with pytest.raises(rlk.InvalidArgument, match=f"{name}: expected a number that needs no"):
        rlk.jit.linear_logp(**given, **{name: value})
    detached, number = (rlk.jit.linear_logp(**given, **{name: x}) for x in (value.detach(), 2.0))
    assert same_bits(detached, number)


def test_inactive_rows_of_all_outputs():
    given = operands()
    mask = torch.ones(3, 4, device=torch_name())
    mask[1] = 0
    with torch.no_grad():
        given["hidden"][1] = float("nan")
    found = rlk.jit.linear_logp(**given, **OPTIONS, mask=mask, **EVERY)
    sum(value.sum() for value in found).backward()
    assert not any(value[1].any() for value in found)
    assert not given["hidden"].grad[1].any()
    assert all(torch.isfinite(given[name].grad).all() for name in NAMES)
