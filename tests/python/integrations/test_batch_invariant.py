# SPDX-License-Identifier: Apache-2.0
"""torch's products by det_gemm: bits of rows, gradients, what is left to torch, on and off."""

from __future__ import annotations

import pytest
from tensors import tensor, torch

import rlk
from rlk.integrations import batch_invariant

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]
DTYPES = ["float32", "bfloat16", "float16"]


def draw(*sizes: int, dtype: str = "float32"):
    generator = torch.Generator().manual_seed(sum(sizes))
    return tensor(torch.randn(sizes, generator=generator).numpy(), dtype)


@pytest.fixture(autouse=True)
def off_again():
    yield
    batch_invariant.unpatch()


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_det_gemms(dtype):
    x, w, bias = draw(2, 5, 48, dtype=dtype), draw(24, 48, dtype=dtype), draw(24, dtype=dtype)
    with batch_invariant.mode():
        found = [
            torch.nn.functional.linear(x, w, bias),
            torch.addmm(bias, x[0], w.T),
            torch.mm(x[0], w.T),
            x @ w.T,
            x.reshape(-1, 48) @ w.T,
        ]
    want = [
        rlk.jit.linear(x, w, bias),
        rlk.jit.linear(x[0], w, bias),
        rlk.jit.linear(x[0], w),
        rlk.jit.linear(x, w),
        rlk.jit.linear(x.reshape(-1, 48), w),
    ]
    for one, other in zip(found, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone(dtype):
    """The test that batch_invariant_ops ships, at a smaller size."""
    a = torch.linspace(-100, 100, 256 * 512, dtype=torch.float32)
    a = tensor(a.reshape(256, 512).numpy(), dtype)
    b = tensor(torch.linspace(-100, 100, 512 * 512).reshape(512, 512).numpy(), dtype)
    with batch_invariant.mode():
        assert torch.equal(torch.mm(a[:1], b), torch.mm(a, b)[:1])


def test_gradients_are_such_products():
    x, w, bias, g = draw(6, 40), draw(16, 40), draw(16), draw(6, 16)
    leaves = [t.clone().requires_grad_() for t in (x, w, bias)]
    with batch_invariant.mode():
        torch.nn.functional.linear(*leaves).backward(g)
    own = [t.clone().requires_grad_() for t in (x, w, bias)]
    rlk.jit.linear(*own).backward(g)
    assert torch.equal(leaves[0].grad, own[0].grad)
    assert torch.equal(leaves[1].grad, own[1].grad)
    torch.testing.assert_close(leaves[2].grad, own[2].grad)


def test_scaled_sums_and_outputs():
    a, b, c = draw(7, 24), draw(24, 10), draw(7, 10)
    want = 0.5 * c + 2.0 * (a @ b)
    out, own = torch.empty(0, device=a.device), c.clone()
    with batch_invariant.mode():
        torch.testing.assert_close(torch.addmm(c, a, b, beta=0.5, alpha=2.0), want)
        torch.addmm(c, a, b, beta=0.5, alpha=2.0, out=out)
        own.addmm_(a, b, beta=0.5, alpha=2.0)
        nothing = torch.addmm(c * float("nan"), a, b, beta=0)
        assert torch.equal(torch.mm(a, b, out=torch.empty_like(c)), torch.mm(a, b))
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(own, want)
    torch.testing.assert_close(nothing, a @ b)


def test_blocks_of_several_threads_may_overlap():
    first, second = batch_invariant.mode(), batch_invariant.mode()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert batch_invariant.is_patched()
    with batch_invariant.mode(False):
        assert not batch_invariant.is_patched()
    assert batch_invariant.is_patched()
    second.__exit__(None, None, None)
    assert not batch_invariant.is_patched()
    batch_invariant.patch()
    with batch_invariant.mode(False), batch_invariant.mode():
        assert batch_invariant.is_patched()
    assert batch_invariant.is_patched()


def test_an_output_of_another_dtype_is_refused():
    a, b, c = draw(3, 4), draw(4, 5), draw(3, 5)
    out = torch.empty(3, 5, dtype=torch.int32, device=a.device)
    with batch_invariant.mode():
        for run in (lambda: torch.mm(a, b, out=out), lambda: torch.addmm(c, a, b, out=out)):
            with pytest.raises(rlk.InvalidArgument, match="out: expected dtype float32, got int32"):
                run()


def test_the_rest_is_torchs():
    a, b = draw(3, 4), draw(4, 5)
    with batch_invariant.mode():
        assert torch.equal(
            a.double() @ b.double(), torch.bmm(a.double()[None], b.double()[None])[0]
        )
        ints = torch.arange(6).reshape(2, 3)
        assert (ints @ ints.T).tolist() == [[5, 14], [14, 50]]
        assert (a[:, :0] @ b[:0]).tolist() == [[0.0] * 5] * 3
        added = torch.addmm(draw(5).double(), a.double(), b.double())
        assert added.dtype == torch.float64


def test_it_goes_on_and_off():
    assert not batch_invariant.is_patched()
    with batch_invariant.mode():
        assert batch_invariant.is_patched()
        with batch_invariant.mode(False):
            assert not batch_invariant.is_patched()
        assert batch_invariant.is_patched()
    for wrong in ("x", 1, None):
        expected = "^batch_invariant: enabled: expected True or False"
        with pytest.raises(rlk.InvalidArgument, match=expected), batch_invariant.mode(wrong):
            pass
    assert not batch_invariant.is_patched()
    batch_invariant.patch()
    batch_invariant.patch()
    assert batch_invariant.is_patched()
    batch_invariant.unpatch()
    batch_invariant.unpatch()
    assert not batch_invariant.is_patched()


def test_any_size_runs_the_same_kernel():
    rlk.jit.configure(specialize=True)
    x, w = draw(40, 64), draw(64, 64)
    with batch_invariant.mode():
        torch.mm(x, w)
        before = rlk.jit.cache_info()
        for size in range(1, 40):
            torch.mm(x[:size], w)
            torch.mm(x[:, :size], w[:size])
    assert rlk.jit.cache_info().compiles == before.compiles
