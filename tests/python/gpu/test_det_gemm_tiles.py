# SPDX-License-Identifier: Apache-2.0
"""Every tile of det_gemm, and every number of multiprocessors, gives the same bits."""

import pytest
from devices import expected_target
from on_device import DEVICE, transposed
from reference import same_bits
from tensors import torch

import rlk
from rlk import _core
from rlk.integrations import batch_invariant

pytestmark = pytest.mark.gpu

TILES = (
    "128x192", "128x256", "64x128", "64x32", "64x64", "256x128", "128x128", "128x192-cluster",
)  # fmt: skip
#: M, K, N: ends within tiles, boxes and chunks of 16 bytes, and one tile or less.
SIZES = [(700, 1032, 776), (130, 77, 301), (385, 264, 97), (3, 200, 5000), (1, 8, 1)]


def draw(m: int, k: int, n: int, dtype: str):
    generator = torch.Generator().manual_seed(m)
    sizes = ((m, k), (k, n), (m, n))
    a, b, g = (torch.randn(s, generator=generator).to(DEVICE, getattr(torch, dtype)) for s in sizes)
    a[m // 2] = 0.0
    return a, b, g, torch.randn(n, generator=generator).to(DEVICE)


def results(a, b, g, bias) -> list:
    into = torch.ones(a.shape[1], g.shape[1], device=DEVICE)
    _core.det_gemm_accumulate({"a": a, "grad_output": g, "into": into})
    wide = rlk.jit.det_gemm(a, b, bias, out_dtype="float32")
    return [rlk.jit.det_gemm(a, b), wide, *rlk.jit.det_gemm_backward(g, a, b, bias), into]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_tile_gives_the_same_bits(dtype, sizes):
    a, b, g, bias = draw(*sizes, dtype)
    rlk.jit.configure(tile="tuned", specialize=False)
    want = results(a, b, g, bias)
    rlk.jit.configure(specialize=True)
    for tile in ("tuned", *TILES):
        for max_sms in (0, 7):
            rlk.jit.configure(tile=tile, max_sms=max_sms)
            for x, y in ((a, b), (transposed(a), b), (a, transposed(b))):
                for number, (one, other) in enumerate(
                    zip(results(x, y, g, bias), want, strict=True)
                ):
                    assert same_bits(one, other), (tile, max_sms, number)


@pytest.mark.skipif(expected_target("cuda") != "sm_90a", reason="the tiles are those of sm_90a")
def test_a_tile_is_taken_by_the_size():
    w = torch.zeros(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    for rows, tile in ((1, "64x32"), (64, "64x32"), (256, "64x128"), (4096, "128x256")):
        kernel = rlk.jit.explain(rlk.jit.linear, w[:rows], w).kernel
        assert f"tile={tile}" in kernel, rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_thousand_numbers_of_tokens_load_no_more_kernels_than_tiles(dtype):
    a, b, g, _ = draw(1000, 64, 2048, dtype)

    def run(tokens: int, terms: int = 64) -> set[str]:
        x, w, grad = a[:tokens, :terms], b[:terms], g[:tokens]
        rlk.jit.det_gemm(x, w)
        rlk.jit.det_gemm_backward(grad, x, w)  # the terms of b's gradient are the tokens
        torch.mm(x, w)
        return {rlk.jit.explain(rlk.jit.det_gemm, x, w).kernel}

    before = rlk.jit.cache_info()
    with batch_invariant.mode():
        kernels = set().union(*(run(tokens) for tokens in range(1, 1001)))
        after = rlk.jit.cache_info()
        for terms in range(8, 64, 8):  # K is an argument too
            assert run(1000, terms) <= kernels
    assert rlk.jit.cache_info().compiles == after.compiles
    # Of the product, and of the gradients of a and of b, whose operands run along other sides.
    assert 1 <= len(kernels) <= len(TILES)
    assert after.compiles - before.compiles <= 3 * len(TILES)
    assert after.loaded - before.loaded <= 3 * len(TILES)
