# SPDX-License-Identifier: Apache-2.0
"""Kept exponentials of compiled calls: as many as an eager call keeps, and the same gradients."""

import devices
import pytest
from operator_cases import fresh_compiler  # noqa: F401
from reference import same_bits
from tensors import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("device", "generic", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of its compiler
]
DIM, VOCAB = 16, 1153
each_backend = pytest.mark.parametrize("backend", ["aot_eager", "inductor"])


@pytest.fixture(autouse=True)
def dtype(device):
    """One of which the device keeps exponentials."""
    if devices.torch_name() == "cpu":
        return torch.float32
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("keeps nothing")
    return torch.bfloat16


def operands(rows, dtype):
    kind = {"generator": torch.Generator().manual_seed(rows)}
    hidden, weight = torch.randn((rows, DIM), **kind), torch.randn((VOCAB, DIM), **kind)
    place = {"device": devices.torch_name(), "dtype": dtype}
    leaves = hidden.to(**place).requires_grad_(), torch.nn.Parameter(weight.to(**place))
    return *leaves, torch.randint(VOCAB, (rows,), **kind).to(devices.torch_name())


def call(hidden, weight, target, **options):
    found = rlk.jit.linear_logp(hidden, weight, target, **options)
    return found if isinstance(found, torch.Tensor) else found[:2]


class Run:
    """A call's log-probs and gradients, and how many columns it has kept; None: no tensor of it."""

    def __init__(self, function, rows, dtype, unpack=lambda saved: saved, **options):
        hidden, weight, target = operands(rows, dtype)
        self.columns = None

        def is_kept(saved):
            return saved.dim() == 2 and saved.shape[0] == rows and saved.shape[1] != DIM

        def pack(saved):
            if is_kept(saved):
                self.columns = saved.shape[1]
            return saved

        with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda saved: unpack(saved) if is_kept(saved) else saved
        ):
            out = function(hidden, weight, target, **options)
        upstream = torch.linspace(-1, 2, rows, device=hidden.device)
        if isinstance(out, tuple):
            (out[0] @ upstream + out[1].sum()).backward()
            out = out[0]
        else:
            out.backward(upstream)
        self.found = out.detach(), hidden.grad, weight.grad


def compiled(backend="aot_eager", **options):
    return torch.compile(call, backend=backend, fullgraph=True, **options)


def expect_same(got, want):
    assert all(same_bits(one, other) for one, other in zip(got.found, want.found, strict=True))


@each_backend
@pytest.mark.parametrize("dynamic", [False, True])
def test_as_many_as_an_eager_call(backend, dynamic, dtype):
    whole = compiled(backend, dynamic=dynamic)
    found = set()
    for rows in (40, 300, 700, 1500, 24, 0) if dynamic else (40, 300, 700):
        got, want = (Run(f, rows, dtype, saved_mib=1) for f in (whole, call))
        expect_same(got, want)
        assert (got.columns or 0) == (want.columns or 0) or rows == 0
        found.add(got.columns)
    assert len(found) == 3  # all, half, none
    # Of sizes that are symbols: one graph that keeps, one that does not, one of no rows.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


def test_a_vocabulary_that_is_a_symbol_keeps_nothing(dtype):
    hidden, weight, target = operands(40, dtype)
    got = compiled(dynamic=True)(hidden, weight.detach().requires_grad_(), target, saved_mib=1)
    assert same_bits(got.detach(), call(hidden, weight, target).detach())
    assert all(saved.shape[-1:] != (1536,) for saved in got.grad_fn.saved_tensors)


def test_the_backward_reads_them(dtype):
    read = Run(compiled(), 40, dtype, lambda kept: kept * torch.nan, saved_mib=1)
    assert read.found[2].isnan().any()
    # A gradient of the entropy cannot.
    options = {"saved_mib": 1, "return_entropy": True}
    got = Run(compiled(), 40, dtype, lambda kept: kept * torch.nan, **options)
    assert got.columns is None
    expect_same(got, Run(call, 40, dtype, **options))


def test_where_nothing_is_kept(dtype):
    for options in (
        {"saved_mib": 0},
        {"softcap": 3.0},
        {"return_entropy": True, "entropy_grad": True},
    ):
        got, want = (Run(f, 9, dtype, **options) for f in (compiled(), call))
        assert got.columns is None, options
        expect_same(got, want)
    rlk.jit.configure(saved_mib=0)
    torch._dynamo.reset()
    assert Run(compiled(), 9, dtype).columns is None


def test_the_setting_is_that_of_the_time_of_the_trace(dtype):
    whole = compiled()
    want = Run(whole, 40, dtype)
    assert want.columns
    rlk.jit.configure(saved_mib=0)
    got = Run(whole, 40, dtype)
    assert got.columns == want.columns
    expect_same(got, want)


def test_a_second_backward_and_none(dtype):
    hidden, weight, target = operands(40, dtype)
    out = compiled()(hidden, weight, target, saved_mib=1).sum()
    first = torch.autograd.grad(out, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(out, (hidden, weight))
    assert all(same_bits(one, other) for one, other in zip(first, second, strict=True))
    with torch.no_grad():
        got = compiled()(hidden, weight, target, saved_mib=1)
        assert same_bits(got, call(hidden, weight, target))


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_drops_them(outside, use_reentrant, dtype):
    """Around a compiled call, and within what is compiled."""

    def head(function):
        return lambda *given, **options: checkpoint(
            lambda *inner: function(*inner, **options), *given, use_reentrant=use_reentrant
        )

    if outside:
        function = head(compiled())
    else:
        function = torch.compile(head(call), backend="aot_eager", fullgraph=True)
    got, want = (Run(f, 40, dtype, saved_mib=1) for f in (function, call))
    assert want.columns
    assert got.columns is None
    expect_same(got, want)


def test_fake_tensors_of_a_device_that_is_not_there(dtype, monkeypatch):
    def there_is_none(*_):
        raise rlk.Unsupported("device: expected a machine with a CUDA driver")

    # torch without CUDA ends the process where autograd meets such a tensor.
    monkeypatch.setattr(rlk._core, "linear_logp_kept_limits", there_is_none)
    with FakeTensorMode() as mode:
        hidden, weight, target = (mode.from_tensor(tensor) for tensor in operands(6, dtype))
        call(hidden, weight, target).sum().backward()
        assert hidden.grad.shape == hidden.shape
        assert weight.grad.dtype == weight.dtype


def test_another_target_is_not_read():
    if devices.torch_name() != "cpu":
        pytest.skip("configure(arch=) there is for another card")
    whole = compiled()
    want = Run(whole, 40, torch.float32, saved_mib=1)
    rlk.jit.configure(arch="x86-64-v2")
    got = Run(whole, 40, torch.float32, saved_mib=1)
    for one, other in zip(got.found, want.found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
