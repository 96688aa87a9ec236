# SPDX-License-Identifier: Apache-2.0
"""Problems of linear_logp as torch tensors on the current device (devices.py)."""

from __future__ import annotations

from typing import Any

import devices
import numpy as np
import pytest
from problems import NAMES, Problem, problem

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def tensor(array: Any, dtype: str | None = None) -> Any:
    """A contiguous copy on the device, rounded to `dtype` where given."""
    found = torch.tensor(np.ascontiguousarray(array)).reshape(np.shape(array))
    found = found.to(devices.torch_name())
    return found if dtype is None else found.to(getattr(torch, dtype))


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
    seed: int = 0,
) -> Problem:
    """problems.problem() on the device."""
    drawn = problem(rows, dim, vocab, bias=bias and "float32", seed=seed)
    return upload(drawn, dtype, bias or "float32")


def leaves(p: Problem, needs: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """hidden, weight, target and bias by name, fresh; those in `needs` ask for a gradient."""
    given = {"hidden": p.hidden, "weight": p.weight, "target": p.target, "bias": p.bias}
    found = {name: value.detach().clone() for name, value in given.items() if value is not None}
    for name in needs:
        if name in found:
            found[name].requires_grad_(True)
    return found
