# SPDX-License-Identifier: Apache-2.0
"""The device that the tests of this folder run on, and problems whose arrays lie there."""

from __future__ import annotations

import os
import textwrap
from typing import Any

import numpy as np
import pytest
from problems import Problem, problem
from processes import Ended, run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

DEVICE = torch.device(os.environ.get("RLK_TEST_DEVICE", "cuda"))
CUDA = DEVICE.type == "cuda"
if CUDA and not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA device", allow_module_level=True)

cuda_only = pytest.mark.skipif(not CUDA, reason="RLK_TEST_DEVICE is not a CUDA device")
NAMES = ("hidden", "weight", "bias")
# Tests of specialized kernels share these sizes: each others would cost seconds to compile.
DIM, VOCAB = 200, 3331
MIB = 1 << 20

TARGETS = {
    (8, 0): "sm_80",
    (8, 6): "sm_86",
    (8, 9): "sm_89",
    (9, 0): "sm_90a",
    (10, 0): "sm_100",
    (10, 3): "sm_100",
    (12, 0): "sm_120",
    (12, 1): "sm_120",
}


def expected_target() -> str:
    """The target that a kernel must name: the forced one, else the device's own."""
    if forced := os.environ.get("RLK_TEST_ARCH"):
        return forced
    if CUDA:
        return TARGETS.get(torch.cuda.get_device_capability(DEVICE), "compute_80")
    import rlk

    return rlk.jit.settings()["arch"]


def tensor(array: Any, dtype: str | None = None) -> Any:
    """A contiguous copy on the device, rounded to `dtype` where given."""
    found = torch.tensor(np.ascontiguousarray(array)).reshape(np.shape(array)).to(DEVICE)
    return found if dtype is None else found.to(getattr(torch, dtype))


def graph_of(step: Any) -> tuple[Any, Any]:
    """A CUDA graph of step(), and the results that its replays write."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found


def upload(p: Problem, dtype: str = "float32", bias: str = "float32") -> Problem:
    """The problem as tensors on the device; `bias` is a dtype, or "same" for that of weight."""
    return Problem(
        tensor(p.hidden, dtype),
        tensor(p.weight, dtype),
        tensor(p.target),
        None if p.bias is None else tensor(p.bias, dtype if bias == "same" else bias),
        tensor(p.upstream),
    )


def make(
    rows: int | tuple[int, ...] = 7,
    dim: int = 24,
    vocab: int = 300,
    dtype: str = "float32",
    *,
    bias: str | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> Problem:
    """problems.problem() on the device."""
    drawn = problem(rows, dim, vocab, bias=bias and "float32", scale=scale, seed=seed)
    return upload(drawn, dtype, bias or "float32")


def leaves(p: Problem, needs: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """hidden, weight, target and bias by name, fresh; those in `needs` ask for a gradient."""
    given = {"hidden": p.hidden, "weight": p.weight, "target": p.target, "bias": p.bias}
    found = {name: value.detach().clone() for name, value in given.items() if value is not None}
    for name in needs:
        if name in found:
            found[name].requires_grad_(True)
    return found


def host(p: Problem) -> Problem:
    """Float32 problems back as NumPy arrays."""
    arrays = (*p.operands, p.upstream)
    return Problem(*(None if a is None else a.cpu().numpy() for a in arrays))


def shifted(t: Any, offset_bytes: int) -> Any:
    """The same values that many bytes behind an aligned address, NaN (or ones) around them."""
    offset, odd = divmod(offset_bytes, t.element_size())
    assert not odd
    junk = float("nan") if t.is_floating_point() else 1
    room = torch.full((t.numel() + offset + 8,), junk, dtype=t.dtype, device=t.device)
    view = room[offset : offset + t.numel()].view(t.shape)
    view.copy_(t)
    assert view.data_ptr() % 16 == offset_bytes % 16
    return view


def spaced(t: Any) -> Any:
    """The same values, every second of rows that are padded besides, NaN (or ones) in the gaps."""
    junk = float("nan") if t.is_floating_point() else 1
    shape = (*t.shape[:-1], 2 * t.shape[-1] + 3)
    room = torch.full(shape, junk, dtype=t.dtype, device=t.device)
    view = room[..., 1 : 1 + 2 * t.shape[-1] : 2]
    view.copy_(t)
    return view


def padded(t: Any) -> Any:
    """The same values in longer rows, NaN behind each."""
    room = torch.full((*t.shape[:-1], t.shape[-1] + 5), float("nan"), dtype=t.dtype).to(t.device)
    view = room[..., : t.shape[-1]]
    view.copy_(t)
    return view


def transposed(t: Any) -> Any:
    """The same values, the last two axes swapped in memory."""
    return spaced(t) if t.dim() < 2 else t.transpose(-1, -2).contiguous().transpose(-1, -2)


# What scripts in processes of their own begin with.
SCRIPT = f"""
import torch, rlk
DEVICE = {str(DEVICE)!r}

def tensors(vocab=300, dim=40, rows=32, dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(vocab)
    hidden, weight = torch.randn(rows, dim, generator=g), torch.randn(vocab, dim, generator=g)
    target = torch.randint(vocab, (rows,), generator=g)
    return hidden.to(DEVICE, dtype), weight.to(DEVICE, dtype), target.to(DEVICE)
"""


def run_script(code: str, **environment: str) -> Ended:
    """Runs SCRIPT and code in a process of its own; see processes.run_python."""
    return run_python(SCRIPT + textwrap.dedent(code), **environment)
