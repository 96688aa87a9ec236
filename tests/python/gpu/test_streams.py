# SPDX-License-Identifier: Apache-2.0
"""Streams, threads, devices: a call is work on the caller's stream and waits for nothing."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from on_device import torch
from problems import DIM, NAMES, VOCAB, Problem
from reference import same_bits
from tensors import leaves, make

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

LATE = 200_000_000  # clock cycles, about a tenth of a second


def late_copy(t):
    """A tensor of zeros that the current stream fills with t's values a while from now."""
    found = torch.zeros_like(t)
    torch.cuda._sleep(LATE)
    found.copy_(t)
    return found


def test_a_side_stream_orders_producer_call_and_consumer():
    p = make(300, 40, 500, "bfloat16", bias="float32")
    want, grads = p.logp(), p.grads()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = Problem(late_copy(p.hidden), p.weight, p.target, p.bias, p.upstream)
        logp, found = late.logp(), late.grads()
        copies = [t.clone() for t in (logp, *found)]
    stream.synchronize()
    for got, exact in zip((logp, *found), (want, *grads), strict=True):
        assert same_bits(got, exact)
    for got, exact in zip(copies, (want, *grads), strict=True):
        assert same_bits(got, exact)


def test_autograd_runs_on_the_stream_of_the_forward():
    p = make(300, 40, 500, "bfloat16", bias="float32")
    want = p.grads()
    stream = torch.cuda.Stream()
    given = leaves(p)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        given["hidden"] = late_copy(p.hidden).requires_grad_()
        rlk.jit.linear_logp(**given).backward(late_copy(p.upstream))
    stream.synchronize()
    for name in NAMES:
        assert same_bits(given[name].grad, getattr(want, name)), name


def test_a_copied_operand_is_ready_too():
    # Strides that need a copy first, the rows compacted, all behind the late producer.
    p = make(300, 37, 500, "bfloat16")
    mask = torch.arange(300, device=p.hidden.device) % 3 != 0
    want = p.logp(mask=mask)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        weight = late_copy(p.weight.t().contiguous()).t()
        logp = rlk.jit.linear_logp(p.hidden, weight, p.target, mask=late_copy(mask))
    stream.synchronize()
    assert same_bits(logp, want)


def test_a_call_does_not_wait_for_the_device():
    p = make(300, 40, 500, "bfloat16", bias="float32")
    mask = torch.arange(300, device=p.hidden.device) % 3 != 0

    def calls():
        given = leaves(p)
        rlk.jit.linear_logp(**given, mask=mask).backward(p.upstream)
        return p.logp(mask=mask)

    calls()
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * LATE)
    asleep = torch.cuda.Event()
    asleep.record()
    calls()
    assert not asleep.query()


def test_a_stream_beside_torch_tensors_is_refused():
    p = make(4, 8, 50)
    for call in (p.logp, p.grads):
        with pytest.raises(rlk.InvalidArgument, match="linear_logp: stream: expected"):
            call(stream=torch.cuda.Stream().cuda_stream)


def test_threads_with_streams_of_their_own():
    problems = [make(100 + i, 40, 500, "bfloat16", seed=i) for i in range(4)]
    want = [(p.logp(), p.grads().weight) for p in problems]
    torch.cuda.synchronize()

    def calls(number):
        stream, p = torch.cuda.Stream(), problems[number]
        with torch.cuda.stream(stream):
            found = [(p.logp(), p.grads().weight) for _ in range(25)]
        stream.synchronize()
        return found

    with ThreadPoolExecutor(4) as pool:
        for found, (logp, grad) in zip(pool.map(calls, range(4)), want, strict=True):
            assert all(same_bits(one, logp) and same_bits(other, grad) for one, other in found)


def test_one_compile_for_a_first_call_in_many_threads():
    rlk.jit.configure(specialize=True)
    p = make(33, 40, 503, "bfloat16")  # a shape of this test alone
    before = rlk.jit.cache_info().compiles
    torch.cuda.synchronize()

    def call(_):
        with torch.cuda.stream(torch.cuda.Stream()):
            logp = p.logp()
            torch.cuda.current_stream().synchronize()
        return logp

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, range(4)))
    assert rlk.jit.cache_info().compiles == before + 1
    assert all(same_bits(logp, found[0]) for logp in found)


def other_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second CUDA device")
    return torch.device("cuda:1")


def moved(p: Problem, device) -> Problem:
    return Problem(*(t if t is None else t.to(device) for t in (*p.operands, p.upstream)))


@pytest.mark.parametrize("specialize", [False, True])
def test_a_device_that_is_not_current(specialize):
    rlk.jit.configure(specialize=specialize)
    there = other_device()
    p = make(300, DIM, VOCAB, "bfloat16", bias="float32")
    want, grads = p.logp(), p.grads()
    q = moved(p, there)
    given = leaves(q)
    logp = rlk.jit.linear_logp(**given)
    logp.backward(q.upstream)
    assert torch.cuda.current_device() == 0
    assert logp.device == there
    assert same_bits(logp, want)
    for name in NAMES:
        assert given[name].grad.device == there
        assert same_bits(given[name].grad, getattr(grads, name))
    assert same_bits(p.logp(), want)


def test_the_current_stream_of_the_other_device():
    there = other_device()
    p = make(300, 40, 500, "bfloat16")
    want = p.logp()
    q = moved(p, there)
    stream = torch.cuda.Stream(there)
    torch.cuda.synchronize(there)
    with torch.cuda.device(there), torch.cuda.stream(stream):
        hidden = late_copy(q.hidden)
        with torch.cuda.device(0):  # current is device 0, with the other's stream still set
            logp = rlk.jit.linear_logp(hidden, q.weight, q.target)
    stream.synchronize()
    assert same_bits(logp, want)


def test_two_devices_in_one_call():
    there = other_device()
    p = make(4, 8, 50)
    with pytest.raises(rlk.InvalidArgument, match=r"weight: expected device cuda:0 .*, got cuda:1"):
        rlk.jit.linear_logp(p.hidden, p.weight.to(there), p.target)


def test_errors_of_two_devices():
    there = other_device()
    p = make(4, 8, 50)
    q = moved(p, there)
    q.target[2] = 50
    q.logp()
    p.logp()
    torch.cuda.synchronize(there)
    p.logp()  # this device's calls are its own
    rlk.jit.check_errors(0)
    with pytest.raises(rlk.InvalidArgument, match="got 50 in row 2"):
        rlk.jit.check_errors(1)
    rlk.jit.check_errors()
