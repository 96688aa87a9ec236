# SPDX-License-Identifier: Apache-2.0
"""Sets of real_dialects.json as a system's own function gets them, and what it must give."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from dialects import SETS, Set

import rlk

RTOL = 1e-5  # of the loss, of the largest gradient, and of a metric


def of(*frameworks: str) -> list[Set]:
    return [one for one in SETS if one.framework in frameworks]


def tensors(one: Set) -> dict[str, Any]:
    """The inputs as float32 tensors, ``[B, T]`` each; log_probs carries a gradient."""
    found = {name: torch.tensor(value, dtype=torch.float32) for name, value in one.inputs.items()}
    if found["advantages"].ndim == 1:
        found["advantages"] = found["advantages"][:, None].expand_as(found["log_probs"])
    found["log_probs"].requires_grad_()
    return found


def other_terms(one: Set, t: dict[str, Any], **options: Any) -> Any:
    """The KL term and entropy bonus that the system adds to its policy loss itself."""
    if not options.get("kl_coef") and not options.get("entropy_coef"):
        return 0.0
    call = (t["log_probs"], t["old_log_probs"], torch.zeros_like(t["log_probs"]), t["mask"])
    return rlk.jit.ppo_loss(*call, **options).loss * one.rlk_call.get("scale", 1.0)


def check(one: Set, t: dict[str, Any], loss: Any, metrics: dict[str, float]) -> None:
    """Loss, gradient and metrics are the system's."""
    want = one.result
    assert loss.item() == approx(want["loss"])
    (grad,) = torch.autograd.grad(loss, t["log_probs"])
    right = torch.tensor(want["grad"], dtype=torch.float64)
    assert (grad - right).abs().max() <= RTOL * right.abs().max()
    right_metrics = want.get("metrics", {})
    assert metrics.keys() == right_metrics.keys()
    for name, value in right_metrics.items():
        assert metrics[name] == approx(value), name


def approx(value: float) -> Any:
    import pytest

    return pytest.approx(value, rel=RTOL, abs=1e-6)


def make_modules(monkeypatch: Any, **contents: dict[str, Any]) -> None:
    """Modules and their parents by names that have ``__`` for the dots, with what they hold."""
    for name, values in contents.items():
        path = name.replace("__", ".")
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            here = ".".join(parts[:count])
            if here not in sys.modules:
                module = ModuleType(here)
                module.__path__ = []
                monkeypatch.setitem(sys.modules, here, module)
                if count > 1:
                    setattr(sys.modules[".".join(parts[: count - 1])], parts[count - 1], module)
        for key, value in values.items():
            setattr(sys.modules[path], key, value)
