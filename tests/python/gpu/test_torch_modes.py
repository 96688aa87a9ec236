# SPDX-License-Identifier: Apache-2.0
"""What torch wraps around a call: compile, checkpointing, deterministic algorithms."""

import pytest
from on_device import DEVICE
from problems import NAMES
from reference import same_bits
from tensors import leaves, make, torch
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("generic"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of its compiler and of autocast
]

P = {"rows": (3, 4), "dim": 16, "vocab": 310, "dtype": "bfloat16", "bias": "float32"}


def loss_of(given):
    """Something before and something after the call."""
    hidden = given["hidden"] * 2
    logp = rlk.jit.linear_logp(hidden, given["weight"], given["target"], given["bias"])
    return (logp.exp() * torch.linspace(-1, 2, 12, device=DEVICE).reshape(3, 4)).sum()


def expect_same_gradients(run) -> None:
    """run(loss_of, leaves) gives the loss and the gradients that a plain call gives, to the bit."""
    plain, wrapped = leaves(make(**P)), leaves(make(**P))
    want = loss_of(plain)
    want.backward()
    got = run(loss_of, wrapped)
    got.backward()
    torch.testing.assert_close(got, want)
    for name in NAMES:
        torch.testing.assert_close(wrapped[name].grad, plain[name].grad)
        assert wrapped[name].grad.any()


def test_compile():
    torch._dynamo.reset()
    compiled = torch.compile(loss_of, backend="inductor")
    expect_same_gradients(lambda _, given: compiled(given))
    given = leaves(make(**P), ())
    with torch.no_grad():
        torch.testing.assert_close(compiled(given), loss_of(given))
    torch._dynamo.reset()


def test_compiled_whole_into_cuda_graphs():
    torch._dynamo.reset()
    compiled = torch.compile(loss_of, mode="reduce-overhead", fullgraph=True)

    def run(_, given):
        for number in range(3):  # the first calls warm up and capture
            torch.compiler.cudagraph_mark_step_begin()
            for name in NAMES:
                given[name].grad = None
            found = compiled(given)
            if number < 2:
                found.backward()
        return found

    expect_same_gradients(run)
    torch._dynamo.reset()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    def run(function, given):
        hidden = given["hidden"]

        def part(hidden):
            return function({**given, "hidden": hidden})

        return checkpoint(part, hidden, use_reentrant=use_reentrant)

    expect_same_gradients(run)


@pytest.mark.parametrize("fill", [True, False])
def test_deterministic_algorithms(fill):
    p = make(**P)
    want = p.logp(), *p.grads()
    settings = torch.utils.deterministic
    before = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = fill  # fresh memory then holds NaN
    try:
        got = p.logp(), *p.grads()
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = before
    assert all(same_bits(one, other) for one, other in zip(got, want, strict=True))


def test_inference_mode():
    p = make(**P)
    want = p.logp()
    with torch.inference_mode():
        inside = make(**P)
        assert same_bits(inside.logp(), want)
        assert same_bits(p.logp(), want)
    assert same_bits(inside.logp(), want)  # outside of the mode, tensors from inside


def test_tensors_of_another_default():
    p = make(**P)
    want = p.logp()
    torch.set_default_dtype(torch.float64)
    try:
        assert same_bits(p.logp(), want)
        assert p.logp().dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
