# SPDX-License-Identifier: Apache-2.0
"""accumulate_into: weight's gradient is added to a float32 tensor, unrounded, in place of .grad."""

import weakref

import numpy as np
import pytest
from devices import jit, on_cpu_alone
from problems import DTYPES, NAMES, problem
from reference import STORE, Reference, as_float64, same_bits
from tensors import leaves, tensor, torch, upload
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

SIZES = (12, 24, 331)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def operands(dtype="float32", seed=0, needs=NAMES):
    drawn = upload(problem(*SIZES, bias="float32", seed=seed), dtype)
    return leaves(drawn, needs), drawn.upstream


def zeros(given):
    return torch.zeros_like(given["weight"], dtype=torch.float32)


def plain(given, upstream, **options):
    """Gradients by name of a call without it."""
    wanted = [given[name] for name in NAMES]
    grads = torch.autograd.grad(rlk.jit.linear_logp(**given, **options), wanted, upstream)
    return dict(zip(NAMES, grads, strict=True))


def expect_others(given, wanted):
    assert given["weight"].grad is None
    for name in ("hidden", "bias"):
        assert same_bits(given[name].grad, wanted[name])


@each_dtype
@pytest.mark.parametrize("saved_mib", [0, 1])
def test_it_is_the_gradient_before_it_is_rounded(dtype, saved_mib):
    given, upstream = operands(dtype)
    wanted = plain(given, upstream, saved_mib=0)
    into = zeros(given)
    out = rlk.jit.linear_logp(**given, accumulate_into=into, saved_mib=saved_mib)
    out.backward(upstream)
    assert same_bits(into.to(given["weight"].dtype), wanted["weight"])
    assert dtype == "float32" or not same_bits(into, wanted["weight"].float())
    expect_others(given, wanted)


def test_each_backward_adds_once():
    given, upstream = operands()
    wanted = plain(given, upstream)
    into = tensor(np.random.default_rng(1).normal(size=given["weight"].shape), "float32")
    sums = into.clone()
    out = rlk.jit.linear_logp(**given, accumulate_into=into)
    assert same_bits(into, sums)
    for retain in (True, False):
        out.backward(upstream, retain_graph=retain)
        sums = sums + wanted["weight"]
        assert same_bits(into, sums)


@each_dtype
def test_sixteen_micro_batches(dtype):
    weight = operands(dtype)[0]["weight"]
    into = zeros({"weight": weight})
    exact = bound = 0.0
    for seed in range(16):
        given, upstream = operands(dtype, seed)
        given["weight"] = weight
        rlk.jit.linear_logp(**given, accumulate_into=into).backward(upstream)
        found = Reference(**given).gradients(upstream)["weight"]
        exact = exact + found.value
        # Nothing is rounded to the weight's dtype, and a sum in float32 is once a call.
        bound = bound + found.bound - STORE[dtype] * np.abs(found.value) + 2.0**-24 * np.abs(exact)
    assert weight.grad is None
    assert (np.abs(as_float64(into) - exact) <= bound + 2.0**-149).all()


def test_no_active_row_adds_nothing():
    given, upstream = operands()
    into = zeros(given) - 3.0
    mask = torch.zeros_like(given["target"], dtype=torch.bool)
    rlk.jit.linear_logp(**given, mask=mask, accumulate_into=into).backward(upstream)
    assert (into == -3.0).all()
    assert given["weight"].grad is None


def test_main_grad():
    given, upstream = operands("bfloat16")
    wanted = plain(given, upstream)
    weight = given["weight"]
    weight.main_grad = zeros(given)
    rlk.jit.linear_logp(**given, accumulate_into="main_grad").backward(upstream)
    assert same_bits(weight.main_grad.bfloat16(), wanted["weight"])
    assert not hasattr(weight, "grad_added_to_main_grad")
    expect_others(given, wanted)


def test_another_tensor_says_nothing_of_main_grad():
    given, upstream = operands("bfloat16")
    weight, into = given["weight"], zeros(given)
    weight.main_grad, weight.grad_added_to_main_grad = zeros(given), False
    rlk.jit.linear_logp(**given, accumulate_into=into).backward(upstream)
    assert weight.grad_added_to_main_grad is False
    assert weight.grad is None
    assert not weight.main_grad.any()
    assert into.any()


def test_a_weight_that_is_the_embedding_too():
    given, upstream = operands()
    ids = given["target"]
    wanted = plain(given, upstream)["weight"]
    into, weight = zeros(given), given["weight"]
    embedded = torch.nn.functional.embedding(ids, weight)
    out = rlk.jit.linear_logp(**given, accumulate_into=into)
    (out @ upstream + embedded.sum()).backward()
    assert same_bits(into, wanted)
    uses = torch.bincount(ids, minlength=SIZES[2]).float()
    assert same_bits(weight.grad, uses[:, None].expand_as(weight).contiguous())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_adds_once(use_reentrant):
    given, upstream = operands()
    wanted, into = plain(given, upstream), zeros(given)

    def head(hidden):
        return rlk.jit.linear_logp(**{**given, "hidden": hidden}, accumulate_into=into)

    checkpoint(head, given["hidden"], use_reentrant=use_reentrant).backward(upstream)
    assert same_bits(into, wanted["weight"])
    expect_others(given, wanted)


def test_graphs_that_live_at_once():
    given, upstream = operands()
    wanted, into = plain(given, upstream)["weight"], zeros(given)
    with torch.autograd.graph.save_on_cpu():
        outs = [rlk.jit.linear_logp(**given, accumulate_into=into) for _ in range(3)]
    version = into._version
    for out in outs:
        out.backward(upstream)
    assert same_bits(into, wanted + wanted + wanted)
    assert into._version > version


def test_a_second_derivative_is_refused():
    given, upstream = operands()
    into = zeros(given)
    out = rlk.jit.linear_logp(**given, accumulate_into=into)
    (grad,) = torch.autograd.grad(out, given["hidden"], upstream, create_graph=True)
    with pytest.raises(rlk.Unsupported, match="one derivative"):
        grad.sum().backward()


def test_the_function_without_autograd():
    p = problem(*SIZES, bias="float32")
    wanted = p.grads()
    into = np.full(p.weight.shape, 0.5, np.float32)
    if type(jit.linear_logp(*p.operands)) is not np.ndarray:
        pytest.skip("arrays of this device are copies")
    given = leaves(upload(p), ())
    there = tensor(into)
    found = rlk.jit.linear_logp_backward(tensor(p.upstream), **given, accumulate_into=there)
    assert found.weight is None
    assert same_bits(there, into + wanted.weight)
    assert same_bits(found.hidden, wanted.hidden)


@on_cpu_alone
def test_numpy_arrays():
    p = problem(*SIZES)
    into = np.full(p.weight.shape, 0.5, np.float32)
    wanted = into + p.grads().weight
    found = rlk.jit.linear_logp_backward(p.upstream, *p.operands, accumulate_into=into)
    assert found.weight is None
    assert same_bits(into, wanted)
    into.flags.writeable = False
    message = "^linear_logp: accumulate_into: expected a tensor that can be written"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.linear_logp_backward(p.upstream, *p.operands, accumulate_into=into)
    with pytest.raises(rlk.InvalidArgument, match="expected None without autograd"):
        rlk.jit.linear_logp(*p.operands, accumulate_into=into)


def test_what_the_function_without_autograd_refuses():
    given, upstream = operands()
    given = {name: value.detach() for name, value in given.items()}
    for options, message in (
        ({"needs": ("hidden",)}, "expected None where weight's gradient is not asked for"),
        ({"accumulate_into": zeros(given).requires_grad_()}, "that needs no gradient, got one"),
    ):
        options = {"accumulate_into": zeros(given), **options}
        with pytest.raises(
            rlk.InvalidArgument, match=f"^linear_logp: accumulate_into: .*{message}"
        ):
            rlk.jit.linear_logp_backward(upstream, **given, **options)


def test_torch_sees_that_the_function_without_autograd_has_changed_it():
    given, upstream = operands()
    into, factor = zeros(given), torch.ones_like(zeros(given)).requires_grad_()
    loss = (factor * into).sum()
    given = {name: value.detach() for name, value in given.items()}
    rlk.jit.linear_logp_backward(upstream, **given, accumulate_into=into)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_is_not_held_beyond_its_graph():
    given, upstream = operands()
    leaf = given["weight"]
    given["weight"] = leaf * 1
    seen = weakref.ref(given["weight"])
    out = rlk.jit.linear_logp(**given, accumulate_into=zeros(given))
    out.backward(upstream)
    del given["weight"]
    assert seen() is None
    assert out.shape == upstream.shape


def refused(change, message, needs=NAMES):
    given, _ = operands(needs=needs)
    into = change(given)
    with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: accumulate_into: {message}"):
        rlk.jit.linear_logp(**given, accumulate_into=into)


def test_errors():
    refused(lambda g: zeros(g).bfloat16(), "expected dtype float32, got bfloat16")
    refused(lambda g: zeros(g).double(), "expected dtype float32, got float64")
    refused(lambda g: zeros(g)[1:], r"expected shape \[331, 24\] \(that of weight\)")
    refused(lambda g: zeros(g).T.contiguous().T, "expected a contiguous tensor, got strides")
    refused(lambda g: zeros(g)[:1].expand(331, 24), "expected a contiguous tensor, got strides")
    refused(lambda g: zeros(g).requires_grad_(), "expected a tensor that needs no gradient")
    refused(lambda g: g["weight"].detach(), "expected memory that weight does not share")
    refused(lambda g: "main_grad", "expected a float32 tensor, or main_grad of a weight that has")
    refused(lambda g: "grad", "expected a float32 tensor, or main_grad of a weight that has it")
    refused(zeros, "expected None where weight needs no gradient", needs=("hidden",))
    refused(lambda g: torch.empty(331, 24, device="meta"), "expected ")
    expected = r"expected a torch tensor, as weight is one, got ndarray float32 \[331, 24\]$"
    refused(lambda g: np.zeros((331, 24), np.float32), expected)


def test_a_forward_alone_leaves_it_as_it_is():
    given, _ = operands()
    into = zeros(given)
    with torch.no_grad():
        rlk.jit.linear_logp(**given, accumulate_into=into)
    assert not into.any()
