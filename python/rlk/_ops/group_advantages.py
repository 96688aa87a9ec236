# SPDX-License-Identifier: Apache-2.0
"""The op group_advantages."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from rlk import _core
from rlk._loss_options import as_float, inf, is_integer
from rlk._ops.common import Arguments, Tensor
from rlk.errors import InvalidArgument, text
from rlk.losses import advantage_rules

# Codes are positions: templates/group_advantages/args.h.
NORMALIZE = ("std", "center", "rloo", "loo_std")
GROUPS_OF_ONE = ("zero", "reward", "error")
EPS_MODES = ("add", "max")
MOST = 1 << 40


def group_advantages(
    rewards: Tensor,
    *,
    samples_per_prompt: int | None = None,
    group_boundaries: Tensor | None = None,
    dialect: str = "rlk",
    normalize: str | None = None,
    ddof: int | None = None,
    eps: float | None = None,
    eps_mode: str | None = None,
    group_of_one: str | None = None,
    stream: int | None = None,
) -> Tensor:
    """Each reward against the mean of its group, as GRPO, Dr.GRPO and RLOO take it.

    ``(reward - mean) / denominator`` in two passes of float64, rounded once to float32. A group of
    equal rewards gives exactly 0. No gradient flows.

    Args:
        rewards: any shape and floating dtype, one a sequence; groups are neighbours in row-major
            order.
        samples_per_prompt: size of each group; divides the number of rewards.
        group_boundaries: ``[P + 1]`` integers in its place: group g is
            ``[boundaries[g], boundaries[g + 1])``. Starts at 0, ends at the number of rewards,
            strictly increases. On CUDA a device tensor that does not is raised by a later call or
            `check_errors`, unless validate="sync".
        dialect: rules of "rlk", "rl_kernel", "verl", "verl_old", "skyrl", "trl", "openrlhf",
            "nemo", "slime", "areal" or "liger" for what is None below: `rlk.losses.ADVANTAGES`.
        normalize: "std" (default): the standard deviation and eps; "center": 1 (Dr.GRPO); "rloo":
            the mean is that of the others; "loo_std": mean and standard deviation are, which
            divides only where it is above 0 (NeMo).
        ddof: 0 or 1 (default), of the standard deviation.
        eps: 1e-6, added to it (eps_mode "add", the default), or its least value ("max").
        group_of_one: advantage of a reward without others: "zero" (default), "reward": itself,
            "error": refused; NaN where boundaries in device memory have such a group.
        stream: as in `linear_logp`.

    Returns:
        float32 of rewards' shape.

    Raises:
        rlk.InvalidArgument: a shape, dtype, name or number is wrong, boundaries are none, or both
            group arguments are given (a ValueError).

    Example:
        >>> rlk.jit.group_advantages(np.float32([1, 0, 0, 1]), samples_per_prompt=2)
        array([ 0.70710576, -0.70710576, -0.70710576,  0.70710576], dtype=float32)

    The formula is that of GRPO (Shao et al. 2024), Dr.GRPO (Liu et al. 2025), RLOO (Ahmadian et
    al. 2024).
    """
    arguments = (
        *_arguments(
            rewards,
            samples_per_prompt,
            group_boundaries,
            dialect,
            normalize,
            ddof,
            eps,
            eps_mode,
            group_of_one,
        ),
        stream,
    )
    return _core.group_advantages(*arguments)


def explain(arguments: Arguments) -> tuple[str, str, str, str, str]:
    del arguments["backward"], arguments["stream"]
    return _core.group_advantages_explain(*_arguments(**arguments))


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
        raise InvalidArgument(
            f"group_advantages: samples_per_prompt: expected it or group_boundaries, got {got}"
        )
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
