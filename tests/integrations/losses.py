# SPDX-License-Identifier: Apache-2.0
"""Random batches, options, and the comparison of a system's loss with rlk's."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import rlk

rlk.jit.configure(specialize=False)  # the same bits without a compile for each set of options
B, T = 5, 9


class Found(NamedTuple):
    loss: Any
    metrics: dict[str, Any]


def batch(seed: int, spread: float = 0.4) -> SimpleNamespace:
    """[B, T] of multiples of 2^-10, float32: the same numbers in float64. Row 2 has one token."""
    g = torch.Generator().manual_seed(seed)

    def rounded(x: Any) -> Any:
        return torch.round(x * 1024) / 1024

    log_probs = rounded(-torch.rand(B, T, generator=g) * 3 - 0.1)
    near = {
        name: rounded(log_probs + spread * torch.randn(B, T, generator=g))
        for name in ("old", "rollout", "ref", "other")
    }
    mask = torch.rand(B, T, generator=g) < 0.8
    mask[2] = torch.arange(T) == 4
    mask[3, 0] = True
    return SimpleNamespace(
        log_probs=log_probs,
        **near,
        mask=mask,
        advantages=rounded(torch.randn(B, 1, generator=g)),
        token_advantages=rounded(torch.randn(B, T, generator=g)),
        weights=rounded(torch.rand(B, T, generator=g) * 2),
        entropy=rounded(torch.rand(B, T, generator=g) * 2),
        rewards=torch.tensor([1.0, 0.0, 1.0, -1.0, 0.0]),
    )


def doubled(b: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(
        **{n: x.double() if x.is_floating_point() else x for n, x in vars(b).items()}
    )


def picked(choices: dict[str, tuple[Any, ...]], seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    return {name: draw.choice(values) for name, values in choices.items()}


def alone(choices: dict[str, tuple[Any, ...]]) -> Any:
    """A parametrization of options: the defaults, which are the first choices, and each other
    choice alone."""
    first = {name: values[0] for name, values in choices.items()}
    flips = [(n, v) for n, values in choices.items() for v in values[1:]]
    cases = [pytest.param({**first, n: v}, id=f"{n}={v}") for n, v in flips]
    return pytest.mark.parametrize("options", [pytest.param(first, id="defaults"), *cases])


def outcome(run: Callable[..., Found], options: dict[str, Any], b: SimpleNamespace) -> Any:
    """(loss, gradients, metrics) as numbers, or the error that was raised."""
    leaves = [getattr(b, n).clone().requires_grad_() for n in ("log_probs", "entropy")]
    given = SimpleNamespace(**{**vars(b), "log_probs": leaves[0], "entropy": leaves[1]})
    try:
        found = run(options, given)
    except (AssertionError, ValueError, NotImplementedError) as error:
        return error
    if found.loss.requires_grad:
        found.loss.backward()
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
    return found.loss.item(), torch.stack(grads).double(), found.metrics


def far(ours: Any, theirs: Any) -> dict[str, float]:
    """How far apart, by name: of the loss, of the largest gradient, of each metric."""
    scale = max(1.0, abs(theirs[0]))
    worst = {"loss": abs(ours[0] - theirs[0]) / scale}
    worst["grad"] = float((ours[1] - theirs[1]).abs().max() / (theirs[1].abs().max() + 1e-12))
    assert ours[2].keys() == theirs[2].keys()
    for name, want in theirs[2].items():
        got, want = (torch.as_tensor(x).detach().double() for x in (ours[2][name], want))
        same = (got == want) | (got.isnan() & want.isnan())
        gap = torch.where(same, 0.0, (got - want).abs() / want.abs().clamp(min=1.0))
        worst[name] = float(gap.max()) if gap.numel() else 0.0
    return worst


def compare(theirs: Any, ours: Any, options: dict[str, Any], seed: int) -> dict[str, float] | None:
    """How far apart they are; None where both refuse the options.

    Raises AssertionError where that is too far or ours takes what theirs refuses, and what ours
    raises where theirs does not.
    """
    b = batch(seed)
    want, got = outcome(theirs, options, doubled(b)), outcome(ours, options, b)
    if isinstance(want, Exception):
        assert isinstance(got, Exception), (want, options)
        return None
    if isinstance(got, Exception):
        raise got
    worst = far(got, want)
    wrong = {n: x for n, x in worst.items() if not x <= 1e-5}  # NaN is wrong
    assert not wrong, (wrong, options)
    return worst


def together(theirs: Any, ours: Any, choices: dict[str, tuple[Any, ...]], seed: int) -> None:
    """Compares the first of the random options of this seed that theirs does not refuse."""
    tries = (picked(choices, 1000 * seed + i) for i in range(200))
    assert any(compare(theirs, ours, options, seed) is not None for options in tries)
