# SPDX-License-Identifier: Apache-2.0
"""Arrays of other frameworks: CuPy, JAX, anything that speaks DLPack. Results are rlk.Array."""

import gc
import os

import numpy as np
import pytest
from losses import Batch, batch, same, same_metrics
from on_device import DEVICE
from problems import NAMES, Problem
from reference import same_bits
from tensors import make, tensor, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

LATE = 200_000_000  # clock cycles, about a tenth of a second
SIZES = {"rows": 70, "dim": 40, "vocab": 300}


class Producer:
    """A torch tensor that only speaks DLPack, and remembers for which stream it was asked."""

    def __init__(self, tensor):
        self._tensor, self.streams = tensor, []

    def __dlpack__(self, *, stream=None, **newer):
        self.streams.append(stream)
        return self._tensor.__dlpack__(stream=stream, **newer)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def foreign(p: Problem) -> Problem:
    return Problem(*(None if t is None else Producer(t) for t in (*p.operands, p.upstream)))


def back(array):
    """An rlk.Array as a torch tensor."""
    assert type(array) is rlk.Array
    return torch.from_dlpack(array)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_any_producer(dtype):
    p = make(**SIZES, dtype=dtype, bias="same")
    logp = foreign(p).logp()
    assert logp.shape == (70,)
    assert logp.dtype == "float32"
    assert logp.device == f"cuda:{torch.cuda.current_device()}"
    assert logp.__dlpack_device__() == (2, torch.cuda.current_device())
    torch.cuda.synchronize()
    assert same_bits(back(logp), p.logp())
    grads = foreign(p).grads()
    torch.cuda.synchronize()
    for name, want in zip(NAMES, p.grads(), strict=True):
        got = getattr(grads, name)
        assert (got.shape, got.dtype) == (tuple(want.shape), dtype)
        assert same_bits(back(got), want)


def test_the_producer_is_asked_for_the_stream_of_the_call():
    p = make(**SIZES)
    given = foreign(p)
    given.logp()
    assert given.hidden.streams[-1] in (None, 1)  # the legacy default stream, as DLPack says it
    side = torch.cuda.Stream()
    given.logp(stream=side.cuda_stream)
    assert given.hidden.streams[-1] == side.cuda_stream
    assert given.target.streams[-1] == side.cuda_stream


def test_work_is_on_the_given_stream():
    p = make(**SIZES)
    want, grads = p.logp(), p.grads()
    side = torch.cuda.Stream()
    late = torch.zeros_like(p.hidden)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE)
        late.copy_(p.hidden)
    # As a framework of its own order: nothing of torch's says where the copy runs.
    given = Problem(*map(Producer, (late, p.weight, p.target)), None, Producer(p.upstream))
    logp = given.logp(stream=side.cuda_stream)
    found = given.grads(stream=side.cuda_stream)
    side.synchronize()
    assert same_bits(back(logp), want)
    assert same_bits(back(found.hidden), grads.hidden)
    assert same_bits(back(found.weight), grads.weight)


@pytest.mark.parametrize("bad", ["side", 1.5, -1])
def test_what_is_no_stream(bad):
    with pytest.raises((rlk.InvalidArgument, TypeError), match="stream"):
        foreign(make(**SIZES)).logp(stream=bad)


def test_a_result_outlives_its_array():
    p = make(**SIZES)
    array = foreign(p).logp()
    torch.cuda.synchronize()
    first, second = torch.from_dlpack(array), torch.from_dlpack(array)
    assert first.data_ptr() == second.data_ptr()  # no copy
    want = p.logp()
    del array, second
    gc.collect()
    for _ in range(50):  # memory given back would be handed out again
        foreign(make(**SIZES, seed=1)).logp()
    torch.cuda.synchronize()
    assert same_bits(first, want)


def test_results_are_arguments_again():
    p = make(**SIZES)
    upstream = foreign(p).logp()
    got = rlk.jit.linear_logp_backward(upstream, *foreign(p).operands)
    torch.cuda.synchronize()
    want = rlk.jit.linear_logp_backward(p.logp(), *p.operands)
    assert same_bits(back(got.weight), want.weight)


def test_masks_temperatures_and_strides():
    p = make(**SIZES)
    mask = torch.arange(70, device=DEVICE) % 3 != 0
    heat = torch.linspace(0.5, 2, 70, device=DEVICE)
    want = p.logp(mask=mask, temperature=heat)
    hidden = Producer(p.hidden.t().contiguous().t())
    weight, target = Producer(p.weight), Producer(p.target)
    got = rlk.jit.linear_logp(
        hidden, weight, target, mask=Producer(mask), temperature=Producer(heat)
    )
    torch.cuda.synchronize()
    assert same_bits(back(got), want)


def test_a_bad_id_is_reported():
    p = make(**SIZES)
    p.target[5] = 300
    foreign(p).logp()
    with pytest.raises(rlk.InvalidArgument, match=r"linear_logp: target: .*got 300 in row 5"):
        rlk.jit.check_errors()


def test_a_numpy_array_among_them_is_refused():
    p = make(**SIZES)
    with pytest.raises(rlk.InvalidArgument, match="linear_logp: target: expected device cuda"):
        rlk.jit.linear_logp(Producer(p.hidden), Producer(p.weight), p.target.cpu().numpy())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cupy(dtype):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    p = make(**SIZES, dtype=dtype, bias="same")
    want, grads = p.logp(), p.grads()
    torch.cuda.synchronize()
    given = Problem(*(cupy.from_dlpack(t) for t in (*p.operands, p.upstream)))
    late = cupy.zeros_like(given.hidden)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(LATE)
    with stream:
        late[...] = given.hidden
        delayed = Problem(late, given.weight, given.target, given.bias, given.upstream)
        logp, found = delayed.logp(stream=stream.ptr), delayed.grads(stream=stream.ptr)
        assert type(logp) is rlk.Array
        doubled = cupy.from_dlpack(logp) * 2
    stream.synchronize()
    assert doubled.dtype == np.float32
    assert same_bits(doubled.get(), want * 2)
    for name, exact in zip(NAMES, grads, strict=True):
        assert same_bits(cupy.from_dlpack(getattr(found, name)).get(), exact)
    on_default = given.logp()
    assert same_bits(cupy.from_dlpack(on_default).get(), want)


@pytest.mark.filterwarnings("ignore")  # JAX's own
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax(dtype):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes most of the card
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    p = make(**SIZES, dtype=dtype, bias="same")
    want, grads = p.logp(), p.grads()
    torch.cuda.synchronize()
    # JAX has 32-bit ids unless told otherwise, and runs behind its own streams.
    tensors = (p.hidden, p.weight, p.target.int(), p.bias, p.upstream)
    given = Problem(*(jax.dlpack.from_dlpack(t) for t in tensors))
    given = Problem(given.hidden + 0, *given.operands[1:], given.upstream)
    logp, found = given.logp(), given.grads()
    assert type(logp) is rlk.Array
    torch.cuda.synchronize()
    mine = jax.dlpack.from_dlpack(logp)
    assert mine.dtype == np.float32
    assert same_bits(np.asarray(mine), want)
    assert same_bits(np.asarray(mine * 2), want * 2)
    for name, exact in zip(NAMES, grads, strict=True):
        got = np.asarray(jax.dlpack.from_dlpack(getattr(found, name)))
        assert same_bits(got, exact)


def test_metrics_of_a_loss():
    b = batch()
    arrays = (b.log_probs, b.old, b.advantages)
    loss, metrics = rlk.jit.ppo_loss(
        *(Producer(tensor(x)) for x in arrays), Producer(tensor(b.mask))
    )
    torch.cuda.synchronize()
    assert all(type(m) is rlk.Array for m in metrics)
    assert all(type(m) is rlk.Array and m.shape == () for m in metrics.named().values())
    want = Batch(*(tensor(x) for x in arrays), tensor(b.mask)).loss()
    with pytest.raises(
        rlk.InvalidArgument, match=r"combine: .*rlk.*Array; torch\.from_dlpack takes"
    ):
        rlk.losses.combine([metrics])
    on_torch = metrics._make(map(torch.from_dlpack, metrics))
    assert same_metrics([m.cpu() for m in on_torch], [m.cpu() for m in want.metrics])
    assert same(rlk.losses.combine([on_torch])[0].cpu(), torch.from_dlpack(loss).cpu())
