# SPDX-License-Identifier: Apache-2.0
"""The op group_advantages."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from rlk import _core
from rlk._loss_options import as_float, is_integer
from rlk._ops.common import Arguments, Tensor, is_compiling
from rlk._rules import advantage_rules, inf
from rlk.errors import fail, text

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
    arguments = {
        "rewards": rewards,
        "samples_per_prompt": samples_per_prompt,
        "group_boundaries": group_boundaries,
        "dialect": dialect,
        "normalize": normalize,
        "ddof": ddof,
        "eps": eps,
        "eps_mode": eps_mode,
        "group_of_one": group_of_one,
        "stream": stream,
    }
    if is_compiling() or _core.is_watched(arguments):
        from rlk._ops import torch_loss_operators

        return torch_loss_operators.group_advantages(arguments)
    return forward(arguments)


def forward(given: Arguments) -> Tensor:
    return _core.group_advantages(_arguments(given))


def explain(arguments: Arguments) -> tuple[str, str, str, str, str]:
    return _core.group_advantages_explain(_arguments(arguments))


def _fail(name: str, expected: str, got: Any) -> NoReturn:
    fail("group_advantages", name, expected, text(got))


def _is_cuda(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cuda", False))


def _array(op: str, boundaries: Any) -> Any:
    with suppress(ValueError):  # rows of several lengths
        return np.asarray(boundaries)
    fail(op, "group_boundaries", "a row of integers", text(boundaries))


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
        expected = f"integers that increase{by} from 0 to {end}"
        fail(op, "group_boundaries", expected, text(found.tolist()))
    return _core.ready_torch().tensor(found.astype(np.int64), device=like.device)


def _arguments(given: Arguments) -> Arguments:
    """As the core takes them."""
    defaults = vars(advantage_rules(given["dialect"]))
    r = {n: value if given[n] is None else given[n] for n, value in defaults.items()}
    if isinstance(r["normalize"], str) and "std" not in r["normalize"]:
        # Of a standard deviation that is not taken: they may be anything.
        r |= {name: defaults[name] for name in ("ddof", "eps", "eps_mode")}
    if not is_integer(r["ddof"]) or r["ddof"] not in (0, 1):
        _fail("ddof", "0 or 1", r["ddof"])
    eps = as_float(r["eps"])
    if eps is None or not 0.0 <= eps < inf:
        _fail("eps", "a finite number from 0 up", r["eps"])
    size, boundaries = given["samples_per_prompt"], given["group_boundaries"]
    if (size is None) == (boundaries is None):
        got = "neither" if boundaries is None else "both"
        fail("group_advantages", "samples_per_prompt", "it or {group_boundaries}", got)
    if size is not None and not (is_integer(size) and 1 <= size <= MOST):
        _fail("samples_per_prompt", "an int from 1 up", size)
    rewards = given["rewards"]
    detach = getattr(rewards, "detach", None)
    if detach is not None:
        rewards = detach()
    if _is_cuda(rewards):
        rewards = rewards.contiguous()
        if _is_cuda(boundaries):
            boundaries = boundaries.long().contiguous()
    if boundaries is not None and _is_cuda(rewards):
        least = 2 if r["group_of_one"] == "error" else 1
        boundaries = host_boundaries(
            "group_advantages", boundaries, rewards.numel(), rewards, least
        )
    elif isinstance(boundaries, (list, tuple)):
        boundaries = _array("group_advantages", boundaries)
    return {
        **r,
        "ddof": int(r["ddof"]),
        "eps": eps,
        "rewards": rewards,
        "samples_per_prompt": None if size is None else int(size),
        "group_boundaries": boundaries,
        "stream": given["stream"],
    }
