# SPDX-License-Identifier: Apache-2.0
"""Autograd of ppo_loss for torch tensors. Imported at the first call that needs a gradient."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._metrics import Metrics
from rlk._ops.common import Arguments
from rlk._ops.ppo_loss import Call, PpoLoss, forward
from rlk._ops.torch_common import check_operands, default_hooks, keeps_graph, once


def scaled(run: Any, upstream: Any, saved: Any, of: Any) -> Any:
    """The gradient of one input, None without `saved`; `run`: the core's or an operator."""
    if saved is None:
        return None
    given = {
        "saved": saved,
        "grad_output": upstream,
        "log_probs": None if of.dtype is saved.dtype else of,
    }
    return once("ppo_loss", run, given, upstream, of)


def _in_place(given: Arguments) -> Any:
    # Not an in-place change as autograd counts them: nobody sees what was saved again.
    given["saved"] = given["saved"].data
    return _core.ppo_loss_backward(given, True)


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Any, entropy: Any, call: Call, written: list[Any]) -> Any:
        needs, needs_entropy, _, _ = ctx.needs_input_grad
        loss, *written[:], grad, grad_entropy = forward(call, needs, needs_entropy)
        # The inputs for their dtype, and so that the gradient looks like a function of them.
        inputs = log_probs if needs else None, entropy if needs_entropy else None
        ctx.save_for_backward(grad, grad_entropy, *inputs)
        ctx.set_materialize_grads(False)
        # Hooks on saved tensors may hold the memory: those that are set now are told by torch, and
        # those that are set later give others back.
        is_own = default_hooks(False) is None
        ctx.owned = (
            grad.data_ptr() if is_own and needs else 0,
            grad_entropy.data_ptr() if is_own and needs_entropy else 0,
        )
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        if upstream is None:
            return None, None, None, None
        grad, grad_entropy, log_probs, entropy = ctx.saved_tensors
        # What was saved becomes the gradient, where no other backward can ask for it.
        is_last = not (torch.is_grad_enabled() or keeps_graph())
        owned, owned_entropy = ctx.owned if is_last else (0, 0)
        return (
            _gradient(upstream, grad, log_probs, owned),
            _gradient(upstream, grad_entropy, entropy, owned_entropy),
            None,
            None,
        )


#: Function.apply without its questions about transforms of torch.func: no call comes here in one.
_apply = super(torch.autograd.Function, _PpoLoss).apply


def _gradient(upstream: Any, saved: Any, of: Any, owned: int) -> Any:
    """`owned`: where the saved tensor lies if its memory may become the gradient, else 0."""
    if saved is None:
        return None
    is_own = owned != 0 and saved.data_ptr() == owned
    return scaled(_in_place if is_own else _core.ppo_loss_backward, upstream, saved, of)


def operands_of(given: Arguments) -> tuple[Any, Any]:
    """log_probs and entropy, where autograd can take the call."""
    of_torch = isinstance(given["entropy"], torch.Tensor)
    check_operands("ppo_loss", given, ("log_probs", "entropy") if of_torch else ("log_probs",))
    return given["log_probs"], given["entropy"]


def ppo_loss(call: Call) -> PpoLoss:
    """`rlk.jit.ppo_loss` where log_probs or entropy need a gradient."""
    written: list[Any] = []  # beside autograd, which would look at each as at an output
    loss = _apply(*operands_of(call.arguments), call, written)
    return PpoLoss(loss, Metrics(*written))
