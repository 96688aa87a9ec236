# SPDX-License-Identifier: Apache-2.0
"""Backwards of linear_logp over chunks of rows, beside one over all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from devices import torch_name
from problems import problem
from tensors import tensor, torch, upload

from rlk import _core

SAVED = ("log_prob", "row_max", "row_log_sum")
PER_ROW = ("hidden", "target", "mask", "temperature", "grad_output", "grad_lse", *SAVED)
GARBAGE = float("nan")


def call_of(
    dtype: str = "bfloat16",
    sizes: tuple[int, int, int] = (1000, 40, 1153),
    bias: str | None = "float32",
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Arguments of a backward but what its forward gives; `sizes`: N, D, V."""
    drawn = upload(problem(*sizes, bias=bias and "float32", seed=seed), dtype, bias or "float32")
    given = {"hidden": drawn.hidden, "weight": drawn.weight, "target": drawn.target}
    return {**given, "bias": drawn.bias, "grad_output": drawn.upstream, **options}


def forward(call: dict[str, Any], **options: Any) -> tuple[dict[str, Any], Any]:
    """The arguments with what a backward takes of the forward, and (kept, its target)."""
    found = _core.linear_logp_forward(call, True, **options)
    return {**call, **dict(zip(SAVED, (found[0], *found[3:5]), strict=True))}, found[5]


def garbage(like: Any, dtype: Any = None) -> Any:
    """NaN of a tensor's shape, on the device; `dtype`: another than its own."""
    return torch.full(like.shape, GARBAGE, dtype=dtype or like.dtype, device=torch_name())


def memory_of(call: dict[str, Any], rows: int) -> dict[str, Any]:
    """What chunks of at most `rows` rows share."""
    made = _core.linear_logp_chunk_memory(call, rows)
    found = {}
    for name, (shape, dtype) in made.items():
        value = -(2**62) if dtype == "int64" else GARBAGE
        dtype = getattr(torch, dtype)
        found[name] = torch.full(shape, value, dtype=dtype, device=torch_name())
    return found


@dataclass
class Gradients:
    hidden: Any
    weight: Any
    bias: Any

    def expect(self, wanted: Gradients) -> None:
        """The same bits, but that 0 may have any sign."""
        for name in ("hidden", "weight", "bias"):
            got, want = getattr(self, name), getattr(wanted, name)
            assert (got is None) == (want is None), name
            assert got is None or (got.dtype == want.dtype and torch.equal(got, want)), name


def at_once(call: dict[str, Any], sums: bool = False) -> Gradients:
    """`sums`: those of hidden and weight are float32."""
    call, _ = forward(call)
    has_bias = call["bias"] is not None
    return Gradients(*_core.linear_logp_backward(call, True, True, has_bias, sums, sums))


class Chunks:
    """A call by chunks of `size` rows, whose memory is there."""

    def __init__(self, call: dict[str, Any], size: int, sums: bool = False) -> None:
        self.call, self.size = call, size
        self.memory = memory_of(call, size)
        self.kept = self.memory.pop("kept")
        dtype = torch.float32 if sums else None
        self.made = Gradients(
            garbage(call["hidden"], dtype),
            garbage(call["weight"], dtype),
            None if call["bias"] is None else garbage(call["bias"]),
        )

    def run(self, weight_is_sums: bool = False, accumulate_into: Any = None) -> Gradients:
        """The gradients. `weight_is_sums`: the memory of sums is weight's."""
        rows, made = len(self.call["hidden"]), self.made
        for begin in range(0, rows, self.size):
            end = min(begin + self.size, rows)
            is_last = end == rows
            own = {
                name: value[begin:end]
                if name in PER_ROW and isinstance(value, torch.Tensor)
                else value
                for name, value in self.call.items()
            }
            own, (own["kept"], own["kept_target"]) = forward(own, keep=True, kept=self.kept)
            if is_last:
                own["accumulate_into"] = accumulate_into
            gives_weight = is_last and not weight_is_sums and accumulate_into is None
            _core.linear_logp_backward(
                own,
                True,
                True,
                made.bias is not None,
                chunk={**self.memory, "is_first": begin == 0, "is_last": is_last},
                into=(
                    made.hidden[begin:end],
                    made.weight if gives_weight else None,
                    made.bias if is_last else None,
                ),
            )
        if weight_is_sums:
            made.weight = self.memory["weight_sums"]
        return made


def by_chunks(call: dict[str, Any], size: int, sums: bool = False, **options: Any) -> Gradients:
    """The gradients, from memory full of NaN."""
    return Chunks(call, size, sums).run(**options)


def upstream_of(pattern: str, size: int, rows: int = 1000) -> Any:
    """Random, and 0 in some of the rows; `size`: of chunks."""
    found = np.random.default_rng(3).standard_normal(rows).astype(np.float32)
    at = np.arange(rows)
    zero = {
        "none": at < 0,
        "half": np.random.default_rng(5).random(rows) < 0.5,
        "one chunk": at // size == 1,
        "the first chunk": at // size == 0,
        "the last chunk": at // size == (rows - 1) // size,
        "all but 3": ~np.isin(at, (2, rows // 2, rows - 2)),
        "all but 3 at the end": at < rows - 3,
        "5 of each chunk": at % size < 5,
        "all but 5 of each chunk": at % size >= 5,
        "one of each chunk": at % size == 7,
        "all": at >= 0,
    }[pattern]
    found[zero] = 0
    return tensor(found)
