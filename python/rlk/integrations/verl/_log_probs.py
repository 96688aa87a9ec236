# SPDX-License-Identifier: Apache-2.0
"""verl's log-probs from logits by `rlk.jit.logp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlk import jit

Tensor = Any


def make_logprobs_from_logits(_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return logprobs_from_logits


def logprobs_from_logits(
    logits: Tensor, labels: Tensor, inplace_backward: bool | None = None
) -> Tensor:
    """Log-probs of labels, float32 whatever the logits' dtype.

    Args:
        logits: ``[..., V]``, already divided by the temperature.
        labels: ``[...]``.
        inplace_backward: True: the backward writes over the logits. verl says so where nothing else
            reads them; where it says nothing its entropy may, so that None is False.

    Example:
        >>> log_probs = logprobs_from_logits(logits / temperature, labels)
    """
    return jit.logp(logits, labels, inplace_backward=bool(inplace_backward))
