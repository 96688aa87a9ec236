# SPDX-License-Identifier: Apache-2.0
"""The op group_advantages: its Python side."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from rlk import _core
from rlk._loss_options import as_float, inf, is_integer
from rlk.errors import InvalidArgument, text
from rlk.losses import advantage_rules

# Codes are positions: templates/group_advantages/args.h.
NORMALIZE = ("std", "center", "rloo", "loo_std")
GROUPS_OF_ONE = ("zero", "reward", "error")
EPS_MODES = ("add", "max")
MOST = 1 << 40


def _fail(name: str, expected: str, got: Any) -> None:
    raise InvalidArgument(f"group_advantages: {name}: expected {expected}, got {text(got)}")


def _word(name: str, words: tuple[str, ...], word: Any) -> None:
    if not isinstance(word, str) or word not in words:
        _fail(name, ", ".join(words), word)


def _is_cuda(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cuda", False))


def _array(op: str, boundaries: Any) -> Any:
    try:
        return np.asarray(boundaries)
    except ValueError:  # rows of several lengths
        raise InvalidArgument(
            f"{op}: group_boundaries: expected a row of integers, got {text(boundaries)}"
        ) from None


def host_boundaries(op: str, boundaries: Any, end: int, like: Any, least: int = 1) -> Any:
    """Boundaries given on the host, checked where the call runs on CUDA, and sent there. A group
    has at least `least`."""
    if boundaries is None or _is_cuda(boundaries) or not _is_cuda(like):
        return _array(op, boundaries) if isinstance(boundaries, (list, tuple)) else boundaries
    found = _array(op, boundaries)
    good = found.ndim == 1 and found.size > 0 and found.dtype.kind in "iu"
    good = good and found[0] == 0 and found[-1] == end and (found[1:] > found[:-1]).all()
    if not good or (np.diff(found) < least).any():
        by = f" by at least {least}" if least > 1 else ""
        raise InvalidArgument(
            f"{op}: group_boundaries: expected integers that increase{by} from 0 to {end}, "
            f"got {found.tolist()}"
        )
    return sys.modules["torch"].tensor(found.astype(np.int64), device=like.device)


def _arguments(
    rewards: Any,
    samples_per_prompt: int | None = None,
    group_boundaries: Any = None,
    dialect: str = "rlk",
    normalize: str | None = None,
    ddof: int | None = None,
    eps: float | None = None,
    eps_mode: str | None = None,
    group_of_one: str | None = None,
    **unknown: Any,
) -> tuple[Any, ...]:
    """As the core takes them."""
    for name in unknown:
        raise TypeError(f"group_advantages: {name}: expected an option that exists")
    own: dict[str, Any] = {
        "normalize": normalize,
        "ddof": ddof,
        "eps": eps,
        "eps_mode": eps_mode,
        "group_of_one": group_of_one,
    }
    dialects = advantage_rules(dialect)
    r = replace(dialects, **{name: value for name, value in own.items() if value is not None})
    _word("normalize", NORMALIZE, r.normalize)
    if "std" not in r.normalize:  # of a standard deviation that is not taken: they may be anything
        r = replace(r, ddof=dialects.ddof, eps=dialects.eps, eps_mode=dialects.eps_mode)
    _word("eps_mode", EPS_MODES, r.eps_mode)
    _word("group_of_one", GROUPS_OF_ONE, r.group_of_one)
    if not is_integer(r.ddof) or r.ddof not in (0, 1):
        _fail("ddof", "0 or 1", r.ddof)
    added = as_float(r.eps)
    if added is None or not 0.0 <= added < inf:
        _fail("eps", "a finite number from 0 up", r.eps)
    if (samples_per_prompt is None) == (group_boundaries is None):
        got = "neither" if group_boundaries is None else "both"
        _fail("samples_per_prompt", "it or group_boundaries", got)
    size = 0 if samples_per_prompt is None else samples_per_prompt
    if samples_per_prompt is not None and not (is_integer(size) and 1 <= size <= MOST):
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
            "group_advantages",
            group_boundaries,
            rewards.numel(),
            rewards,
            2 if r.group_of_one == "error" else 1,
        )
    elif isinstance(group_boundaries, (list, tuple)):
        group_boundaries = _array("group_advantages", group_boundaries)
    return (
        rewards,
        group_boundaries,
        int(size),
        NORMALIZE.index(r.normalize),
        r.eps_mode == "max",
        int(r.ddof),
        added,
        GROUPS_OF_ONE.index(r.group_of_one),
    )


def group_advantages(rewards: Any, stream: int | None, **options: Any) -> Any:
    arguments = (*_arguments(rewards, **options), stream)
    return _core.group_advantages(*arguments)


def explain(rewards: Any, **options: Any) -> tuple[str, str, str, str, str]:
    return _core.group_advantages_explain(*_arguments(rewards, **options))
