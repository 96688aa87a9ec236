# SPDX-License-Identifier: Apache-2.0
"""What the public functions of several ops use."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

Tensor = Any  # a torch tensor, NumPy array or DLPack producer


def needs_autograd(*tensors: Any) -> bool:
    """Whether one of these is a torch tensor that needs a gradient here, or may carry a tangent."""
    # A call with torch tensors has imported torch; rlk never does.
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    # Within forward_ad.dual_level() or torch.func.jvp a tensor may carry a tangent.
    # The level has no public name; a torch without it is taken to be outside.
    tangents = getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
    if not tangents and not torch.is_grad_enabled():
        return False
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and (tangents or tensor.requires_grad):
            return True
    return False


class Explanation(NamedTuple):
    """What a call would run, and why."""

    kernel: str  #: name of the kernel, as in ``rlk-jit list``
    key: str  #: its cache key, 32 hex digits
    variant: str  #: "specialized" or "generic"
    source: str  #: "loaded", "cache", "compile", or "none" where nothing can run
    reason: str  #: in words

    def __str__(self) -> str:
        return (
            f"{self.kernel}\n  {self.variant}, source: {self.source} ({self.reason})\n"
            f"  key {self.key}"
        )
