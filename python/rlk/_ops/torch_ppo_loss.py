# SPDX-License-Identifier: Apache-2.0
"""Autograd of ppo_loss for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk._metrics import make_metrics
from rlk._ops.common import Arguments
from rlk._ops.ppo_loss import Call, PpoLoss, forward, gradient
from rlk._ops.torch_common import check_operands, once


def scaled(run: Any, upstream: Any, saved: Any, of: Any) -> Any:
    """The gradient of one input, None without `saved`; `run`: gradient or one of an operator."""
    if saved is None:
        return None
    given = {
        "grad_output": upstream,
        "saved": saved,
        "like": None if of.dtype == saved.dtype else of,
    }
    return once("ppo_loss", run, given, upstream, of)


def _gradient(given: Arguments) -> Any:
    return gradient(given["grad_output"], given["saved"], given["like"])


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Any, entropy: Any, call: Call, written: list[Any]) -> Any:
        needs, needs_entropy = ctx.needs_input_grad[:2]
        loss, *written[:], grad, grad_entropy = forward(call, needs, needs_entropy)
        # The inputs for their dtype, and so that the gradient looks like a function of them.
        inputs = log_probs if needs else None, entropy if needs_entropy else None
        ctx.save_for_backward(grad, grad_entropy, *inputs)
        ctx.set_materialize_grads(False)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        if upstream is None:
            return None, None, None, None
        grad, grad_entropy, log_probs, entropy = ctx.saved_tensors
        of_entropy = scaled(_gradient, upstream, grad_entropy, entropy)
        return scaled(_gradient, upstream, grad, log_probs), of_entropy, None, None


def operands_of(given: Arguments) -> tuple[Any, Any]:
    """log_probs and entropy, where autograd can take the call."""
    of_torch = isinstance(given["entropy"], torch.Tensor)
    check_operands("ppo_loss", given, ("log_probs", "entropy") if of_torch else ("log_probs",))
    return given["log_probs"], given["entropy"]


def ppo_loss(call: Call) -> PpoLoss:
    """`rlk.jit.ppo_loss` where log_probs or entropy need a gradient."""
    written: list[Any] = []  # beside autograd, which would look at each as at an output
    loss = _PpoLoss.apply(*operands_of(call.arguments), call, written)
    return PpoLoss(loss, make_metrics(*written))
