# SPDX-License-Identifier: Apache-2.0
"""Ops compiled for their shapes at the first call, cached on disk, launched from then on."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import as_float
from rlk._metrics import Metrics  # noqa: F401
from rlk._ops.common import (  # noqa: F401
    Explanation,
    LogitStats,
    LogpResult,
    LogpStatsResult,
    Tensor,
)
from rlk._ops.det_gemm import DetGemmGrads, det_gemm, det_gemm_backward, linear
from rlk._ops.explain import explain
from rlk._ops.group_advantages import group_advantages
from rlk._ops.grpo_loss import GrpoLoss, grpo_loss, grpo_loss_backward
from rlk._ops.linear_cross_entropy import linear_cross_entropy
from rlk._ops.linear_grpo_loss import linear_grpo_loss
from rlk._ops.linear_logp import (
    LinearLogpGrads,
    linear_logp,
    linear_logp_backward,
    make_lora_room,
)
from rlk._ops.linear_ppo_loss import linear_ppo_loss
from rlk._ops.logp import logp, logp_backward
from rlk._ops.ppo_loss import PpoLoss, PpoLossGrads, ppo_loss, ppo_loss_backward
from rlk._ops.ratio_kl import RatioKl, ratio_kl, ratio_kl_backward
from rlk._warm_and_preload import Preloaded, Warmed, preload, warm
from rlk.errors import fail, text

__all__ = [
    "CacheInfo",
    "DetGemmGrads",
    "Explanation",
    "GrpoLoss",
    "LinearLogpGrads",
    "LogitStats",
    "LogpResult",
    "LogpStatsResult",
    "PpoLoss",
    "PpoLossGrads",
    "Preloaded",
    "RatioKl",
    "Warmed",
    "cache_info",
    "check_errors",
    "configure",
    "det_gemm",
    "det_gemm_backward",
    "explain",
    "group_advantages",
    "grpo_loss",
    "grpo_loss_backward",
    "linear",
    "linear_cross_entropy",
    "linear_grpo_loss",
    "linear_logp",
    "linear_logp_backward",
    "linear_ppo_loss",
    "logp",
    "logp_backward",
    "make_lora_room",
    "ppo_loss",
    "ppo_loss_backward",
    "preload",
    "ratio_kl",
    "ratio_kl_backward",
    "settings",
    "wait",
    "warm",
]


class CacheInfo(NamedTuple):
    """Counters of this process."""

    memory_hits: int  #: calls whose kernel was loaded already
    disk_hits: int  #: kernels loaded from a cache layer
    compiles: int  #: kernels compiled
    fallbacks: int  #: calls that ran a generic kernel in place of a specialized one
    loaded: int  #: specialized kernels that are loaded
    alternatives: int  #: calls that ran a specialized kernel of another tile in place of theirs


def cache_info() -> CacheInfo:
    """Counters of this process: how its calls found their kernels.

    Example:
        >>> rlk.jit.cache_info().compiles
        1
    """
    return CacheInfo(*_core.cache_info())


def configure(
    *,
    policy: str | None = None,
    arch: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    log: str | None = None,
    specialize: bool | None = None,
    validate: str | None = None,
    workspace_mib: int | None = None,
    saved_mib: int | None = None,
    max_sms: int | None = None,
    tile: str | None = None,
) -> None:
    """Change settings of this process; what is None stays as it is.

    Args:
        policy: "sync" (a miss compiles), "async" (a miss runs the generic kernel, the same bits,
            and compiles in the background) or "off" (never compiles); environment: RLK_JIT.
        arch: targets to compile for, such as "x86-64-v3" or "sm_90a,x86-64-v4"; a backend
            that is not named takes what the device has; environment: RLK_ARCH.
        cache_dir: folder of the read-write cache layer; environment: RLK_CACHE_DIR.
        num_threads: threads of the CPU kernels; environment: RLK_NUM_THREADS. Results do not
            depend on it.
        log: trace, debug, info, warn, error or off; environment: RLK_LOG.
        specialize: False runs the generic variants alone. Results are the same bits.
        validate: "async" or "sync": on CUDA, look at targets, boundaries, masks, global counts and
            temperatures before each launch, which waits for the stream; ranks of a group compare
            what they were called with; environment: RLK_VALIDATE.
        workspace_mib: MiB of a CUDA backward's temporary memory, about; environment:
            RLK_WORKSPACE_MIB. Results do not depend on it.
        saved_mib: MiB that each differentiated forward of `linear_logp` may keep of its
            exponentials, which its backward then need not compute again; environment:
            RLK_SAVED_MIB. Results do not depend on it.
        max_sms: multiprocessors that a persistent CUDA kernel takes, so that others are left for
            communication, but two where its blocks work in pairs, and for which few rows are cut
            into parts; 0: all. Results do not depend on it.
        tile: tile of the CUDA kernels that have several, such as "64-static"; "tuned": what
            ``rlk-jit tune`` chose for this GPU and the number of rows, else a default. For
            measurements. Results do not depend on it.

    Raises:
        rlk.InvalidArgument: a value that the setting cannot have.
        TypeError: a value of another type.

    Example:
        >>> rlk.jit.configure(policy="off")
    """
    _core.configure(locals())


def settings() -> dict[str, Any]:
    """The settings in force: what `configure` takes, by name."""
    return _core.settings()


def check_errors(device: int | None = None) -> None:
    """Wait for CUDA devices, then raise what kernels found wrong in the values of earlier calls.

    Kernels cannot raise: a target out of range makes its row NaN, boundaries out of order are cut
    to what exists, and such an error is remembered, one a device, until this function or the next
    call on that device raises it, once.

    Args:
        device: CUDA device to look at; None: all that rlk ran on in this process.

    Raises:
        rlk.InvalidArgument: an active row's target was out of range (names op, row and id), or
            cu_seqlens or group_boundaries were out of order (names where); device is no number.

    Example:
        >>> loss.backward()
        >>> rlk.jit.check_errors()
    """
    is_number = isinstance(device, int) and not isinstance(device, bool)
    if device is not None and not (is_number and 0 <= device < 2**31):
        fail("check_errors", "device", "the number of a CUDA device, or None", text(device))
    _core.check_errors(device)


def wait(timeout_s: float | None = None) -> bool:
    """Wait until no kernel is compiled in the background, by policy "async" or for a backward.

    Args:
        timeout_s: seconds to wait at most; None: no limit.

    Returns:
        Whether nothing is left to compile. The next call of each op takes its new kernel.

    Raises:
        rlk.InvalidArgument: timeout_s is no number from 0 up.

    Example:
        >>> rlk.jit.configure(policy="async")
        >>> warm_up()
        >>> rlk.jit.wait()
        True
    """
    seconds = None if timeout_s is None else as_float(timeout_s)
    if timeout_s is not None and (seconds is None or not seconds >= 0):  # NaN is neither
        fail("wait", "timeout_s", "a number of seconds from 0 up, or None", text(timeout_s))
    return _core.wait(seconds)


# In help, reprs and pickles they are of here, wherever their file is. Metrics and Tensor are
# imported for the annotations of results, whose names are looked up here for that reason.
for _name in __all__:
    globals()[_name].__module__ = __name__
