# SPDX-License-Identifier: Apache-2.0
"""SkyRL's log-probs from logits by `rlk.jit.logp`.

Its model wrapper always allows the backward to write over the logits. An entropy bonus reads them
too, so that the wrapper notes here whether the entropy carries a gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from rlk import jit

Tensor = Any
_keeps_logits: ContextVar[bool] = ContextVar("rlk_skyrl_keeps_logits", default=False)


def make_logprobs_from_logits(_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return logprobs_from_logits


def logprobs_from_logits(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:
    """Log-probs of labels, float32 whatever the logits' dtype.

    Args:
        logits: ``[..., V]``, already divided by the temperature.
        labels: ``[...]``.
        inplace_backward: the backward writes over the logits. Inside of a model wrapper whose
            entropy carries a gradient it does not, whatever is given.

    Example:
        >>> log_probs = logprobs_from_logits(logits / temperature, labels)
    """
    inplace = inplace_backward and not _keeps_logits.get()
    return jit.logp(logits, labels, inplace_backward=inplace)


def make_forward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """HFModelWrapper.forward, which notes whether its entropy reads the logits again."""
    signature = inspect.signature(theirs)

    @wraps(theirs)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        asks = given.arguments
        token = _keeps_logits.set(bool(asks["compute_entropy"] and asks["entropy_requires_grad"]))
        try:
            return theirs(self, *args, **kwargs)
        finally:
            _keeps_logits.reset(token)

    return forward
