# SPDX-License-Identifier: Apache-2.0
"""A small call of each op with torch tensors: for what holds of any op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import devices
import pytest
from tensors import torch

import rlk


@dataclass(frozen=True)
class Call:
    op: str
    shapes: dict[str, tuple[int, ...]]  # of its tensors; ids have a vocabulary for their last axis
    names: tuple[str, ...]  # of those that have gradients
    options: dict[str, Any]

    def tensors(self, needs: bool = False) -> dict[str, Any]:
        """The same for each call, on the current device."""
        drawn = torch.Generator().manual_seed(0)
        found = {}
        for name, shape in self.shapes.items():
            if name in ("target", "action_ids"):
                tensor = torch.randint(VOCAB, shape, generator=drawn)
            else:
                tensor = torch.randn(shape, generator=drawn)
            found[name] = tensor.to(devices.torch_name()).requires_grad_(
                needs and name in self.names
            )
        return found

    def __call__(self, **tensors: Any) -> Any:
        """What the op returns."""
        function: Callable[..., Any] = getattr(rlk.jit, self.op)
        return function(**tensors, **self.options)

    def value(self, **tensors: Any) -> Any:
        """Its first output."""
        found = self(**tensors)
        return found if isinstance(found, torch.Tensor) else found[0]


VOCAB, DIM, ROWS = 51, 8, (4, 5)
_LOGITS = (*ROWS, VOCAB)
_POLICY = {"policy_logits": _LOGITS, "ref_logits": _LOGITS, "action_ids": ROWS, "old_logps": ROWS}

CALLS = {
    call.op: call
    for call in (
        Call(
            "linear_logp",
            {"hidden": (*ROWS, DIM), "weight": (VOCAB, DIM), "bias": (VOCAB,), "target": ROWS},
            ("hidden", "weight", "bias"),
            {"return_entropy": True},
        ),
        Call("logp", {"logits": _LOGITS, "target": ROWS}, ("logits",), {"return_stats": True}),
        Call("ratio_kl", _POLICY, ("policy_logits",), {"attention_mask": None}),
        Call(
            "grpo_loss",
            _POLICY | {"rewards": ROWS[:1]},
            ("policy_logits",),
            {"samples_per_prompt": 2},
        ),
        Call(
            "ppo_loss",
            dict.fromkeys(("log_probs", "old_log_probs", "advantages", "entropy"), ROWS),
            ("log_probs", "entropy"),
            {"entropy_coef": 0.1},
        ),
        Call("group_advantages", {"rewards": ROWS[:1]}, (), {"samples_per_prompt": 2}),
        Call("det_gemm", {"a": (3, DIM), "b": (DIM, 5), "bias": (5,)}, ("a", "b", "bias"), {}),
        Call(
            "linear",
            {"x": (3, DIM), "weight": (5, DIM), "bias": (5,)},
            ("x", "weight", "bias"),
            {},
        ),
    )
}
each_op = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
each_op_with_gradients = pytest.mark.parametrize(
    "call", [pytest.param(c, id=name) for name, c in CALLS.items() if c.names]
)
