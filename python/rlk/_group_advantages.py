# SPDX-License-Identifier: Apache-2.0
"""The op group_advantages: its Python side."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rlk import _core
from rlk.errors import InvalidArgument, text

NORMALIZE = ("std", "center", "rloo")  # codes are positions: templates/group_advantages/args.h
EPS_MODES = ("add", "max")
MOST = 1 << 40


def _fail(name: str, expected: str, got: Any) -> None:
    raise InvalidArgument(f"group_advantages: {name}: expected {expected}, got {text(got)}")


def _is_cuda(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cuda", False))


def _array(op: str, boundaries: Any) -> Any:
    try:
        return np.asarray(boundaries)
    except ValueError:  # rows of several lengths
        raise InvalidArgument(
            f"{op}: group_boundaries: expected a row of integers, got {text(boundaries)}"
        ) from None


def host_boundaries(op: str, boundaries: Any, end: int, like: Any) -> Any:
    """Boundaries given on the host, checked where the call runs on CUDA, and sent there."""
    if boundaries is None or _is_cuda(boundaries) or not _is_cuda(like):
        return _array(op, boundaries) if isinstance(boundaries, (list, tuple)) else boundaries
    found = _array(op, boundaries)
    good = found.ndim == 1 and found.size > 0 and found.dtype.kind in "iu"
    if not good or found[0] != 0 or found[-1] != end or (found[1:] <= found[:-1]).any():
        raise InvalidArgument(
            f"{op}: group_boundaries: expected integers that increase from 0 to {end}, "
            f"got {found.tolist()}"
        )
    return sys.modules["torch"].tensor(found.astype(np.int64), device=like.device)


def _arguments(
    rewards: Any,
    samples_per_prompt: int | None = None,
    group_boundaries: Any = None,
    normalize: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    eps_mode: str = "add",
    **unknown: Any,
) -> tuple[Any, ...]:
    """As the core takes them."""
    for name in unknown:
        raise TypeError(f"group_advantages: {name}: expected an option that exists")
    if not isinstance(normalize, str) or normalize not in NORMALIZE:
        _fail("normalize", ", ".join(NORMALIZE), normalize)
    if not isinstance(eps_mode, str) or eps_mode not in EPS_MODES:
        _fail("eps_mode", ", ".join(EPS_MODES), eps_mode)
    if isinstance(ddof, bool) or not isinstance(ddof, int) or ddof not in (0, 1):
        _fail("ddof", "0 or 1", ddof)
    # The most that a float holds: an int may be more.
    good = isinstance(eps, (int, float)) and not isinstance(eps, bool)
    if not good or not 0.0 <= eps <= sys.float_info.max:
        _fail("eps", "a finite number from 0 up", eps)
    if (samples_per_prompt is None) == (group_boundaries is None):
        got = "neither" if group_boundaries is None else "both"
        _fail("samples_per_prompt", "it or group_boundaries", got)
    size = 0 if samples_per_prompt is None else samples_per_prompt
    if samples_per_prompt is not None and (
        isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST
    ):
        _fail("samples_per_prompt", "an int from 1 up", samples_per_prompt)
    detach = getattr(rewards, "detach", None)
    if detach is not None:
        rewards = detach()
    if _is_cuda(rewards):
        rewards = rewards.contiguous()
        if _is_cuda(group_boundaries):
            group_boundaries = group_boundaries.long().contiguous()
    if group_boundaries is not None and _is_cuda(rewards):
        group_boundaries = host_boundaries(
            "group_advantages", group_boundaries, rewards.numel(), rewards
        )
    elif isinstance(group_boundaries, (list, tuple)):
        group_boundaries = _array("group_advantages", group_boundaries)
    return (
        rewards,
        group_boundaries,
        size,
        NORMALIZE.index(normalize),
        eps_mode == "max",
        ddof,
        eps,
    )


def group_advantages(rewards: Any, stream: int | None, **options: Any) -> Any:
    arguments = (*_arguments(rewards, **options), stream)
    return _core.group_advantages(*arguments)


def explain(rewards: Any, **options: Any) -> tuple[str, str, str, str, str]:
    return _core.group_advantages_explain(*_arguments(rewards, **options))
