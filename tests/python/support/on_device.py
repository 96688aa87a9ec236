# SPDX-License-Identifier: Apache-2.0
"""What tests of a GPU alone share. Modules that import it are skipped where there is none."""

from __future__ import annotations

import textwrap
from typing import Any

import devices
import pytest
from processes import Ended, run_python
from tensors import torch

if devices.KIND != "cuda" or not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA device", allow_module_level=True)

DEVICE = torch.device("cuda")
MIB = 1 << 20


def graph_of(step: Any) -> tuple[Any, Any]:
    """A CUDA graph of step(), and the results that its replays write."""
    torch.cuda.synchronize()  # the other stream would not wait for what step() reads
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found


def spaced(t: Any) -> Any:
    """The same values, every second of rows that are padded besides, NaN (or ones) in the gaps."""
    junk = float("nan") if t.is_floating_point() else 1
    shape = (*t.shape[:-1], 2 * t.shape[-1] + 3)
    room = torch.full(shape, junk, dtype=t.dtype, device=t.device)
    view = room[..., 1 : 1 + 2 * t.shape[-1] : 2]
    view.copy_(t)
    return view


def transposed(t: Any) -> Any:
    """The same values, the last two axes swapped in memory."""
    return spaced(t) if t.dim() < 2 else t.transpose(-1, -2).contiguous().transpose(-1, -2)


# What scripts in processes of their own begin with.
SCRIPT = """
import torch, rlk
DEVICE = "cuda"

def tensors(vocab=300, dim=40, rows=32, dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(vocab)
    hidden, weight = torch.randn(rows, dim, generator=g), torch.randn(vocab, dim, generator=g)
    target = torch.randint(vocab, (rows,), generator=g)
    return hidden.to(DEVICE, dtype), weight.to(DEVICE, dtype), target.to(DEVICE)
"""


def run_script(code: str, **environment: str) -> Ended:
    """Runs SCRIPT and code in a process of its own; see processes.run_python."""
    return run_python(SCRIPT + textwrap.dedent(code), **environment)
