# SPDX-License-Identifier: Apache-2.0
"""Autograd of ppo_loss for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk._metrics import make_metrics
from rlk._ops.common import Arguments
from rlk._ops.ppo_loss import Call, PpoLoss, forward, gradient
from rlk._ops.torch_common import check_operands, default_hooks, keeps_graph, once


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


def _gradient_in_place(given: Arguments) -> Any:
    # Not an in-place change as autograd counts them: nobody sees what was saved again.
    return gradient(given["grad_output"], given["saved"].data, given["like"], True)


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Any, entropy: Any, call: Call, written: list[Any]) -> Any:
        needs, needs_entropy = ctx.needs_input_grad[:2]
        loss, *written[:], grad, grad_entropy = forward(call, needs, needs_entropy)
        # The inputs for their dtype, and so that the gradient looks like a function of them.
        inputs = log_probs if needs else None, entropy if needs_entropy else None
        ctx.save_for_backward(grad, grad_entropy, *inputs)
        ctx.set_materialize_grads(False)
        # Hooks on saved tensors may hold the memory: those that are set now are told by torch, and
        # those that are set later give others back.
        is_own = default_hooks(False) is None
        ctx.owned = [x.data_ptr() if is_own and x is not None else 0 for x in (grad, grad_entropy)]
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        if upstream is None:
            return None, None, None, None
        *saved, log_probs, entropy = ctx.saved_tensors
        # What was saved becomes the gradient, where no other backward can ask for it.
        is_last = not (torch.is_grad_enabled() or keeps_graph())
        found: list[Any] = []
        for grad, of, owned in zip(saved, (log_probs, entropy), ctx.owned, strict=True):
            is_own = is_last and owned != 0 and grad.data_ptr() == owned
            run = _gradient_in_place if is_own else _gradient
            found.append(scaled(run, upstream, grad, of))
        return *found, None, None


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
