# SPDX-License-Identifier: Apache-2.0
"""verl's fused head by `rlk.jit.linear_logp`, with the softcap, scale and bias of the model.

verl hands its head the weight alone, and so drops what else the model's head does. Here the
forwards that verl gives a model note which model they run, and the head looks there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from rlk import jit
from rlk.integrations import hf

Tensor = Any
_running: ContextVar[Any] = ContextVar("rlk_verl_model", default=None)


def model_of_head(patch_forward: Callable[..., None]) -> Callable[..., None]:
    """verl's patch_forward_with_backends, whose forwards note the model."""

    @wraps(patch_forward)
    def patch_forward_with_backends(
        model: Any, use_fused_kernels: bool = False, fused_kernels_backend: str | None = None
    ) -> None:
        before = type(model).forward
        patch_forward(
            model,
            use_fused_kernels=use_fused_kernels,
            fused_kernels_backend=fused_kernels_backend,
        )
        after = type(model).forward
        if after is not before and not hasattr(after, "_notes_model"):
            type(model).forward = _noting(after)

    return patch_forward_with_backends


def _noting(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _running.set(self)
        try:
            return forward(self, *args, **kwargs)
        finally:
            _running.reset(token)

    noting._notes_model = True  # type: ignore[attr-defined]
    return noting


def head_of_model(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """FusedLinearForPPO.forward."""

    @wraps(theirs)
    def forward(
        self: Any,
        hidden_states: Tensor,
        vocab_weights: Tensor,
        input_ids: Tensor,
        temperature: float | Tensor = 1.0,
    ) -> Any:
        if getattr(self, "impl_backend", "torch") != "torch":
            return theirs(self, hidden_states, vocab_weights, input_ids, temperature)
        out = log_prob_and_entropy(hidden_states, vocab_weights, input_ids, temperature)
        return out.log_prob, out.entropy

    return forward


def log_prob_and_entropy(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float | Tensor
) -> Any:
    """By the head of the model that runs; where none is known, by its weight alone."""
    options: dict[str, Any] = {"temperature": temperature, "return_entropy": True}
    model = _running.get()
    if model is not None:
        return hf.linear_logp(model, hidden, ids, **options)
    weight, _, dtype = hf.in_one_dtype(hidden, weight)
    return jit.linear_logp(hidden, weight, ids, compute_dtype=dtype, **options)
