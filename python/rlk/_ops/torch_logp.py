# SPDX-License-Identifier: Apache-2.0
"""Autograd of linear_logp and logp for torch tensors. Imported at the first call that needs it."""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.torch_common import check_operands, once, refuse_options, restored, save
from rlk.errors import Fault, Unsupported, fail


class _LinearLogp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, arguments: Arguments) -> Any:
        return _forward(ctx, _core.linear_logp_forward, arguments)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        arguments = _backward_arguments(ctx, upstream)
        if arguments is None:
            return (None,) * 4

        def compute() -> Any:
            return _core.linear_logp_backward(arguments, *ctx.needs_input_grad[:3])

        operands = (arguments[name] for name in ("hidden", "weight", "bias"))
        return *once("linear_logp", compute, *upstream, *operands), None


class _Logp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, arguments: Arguments) -> Any:
        return _forward(ctx, _core.logp_forward, arguments)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        arguments = _backward_arguments(ctx, upstream)
        if arguments is None:
            return None, None
        logits, in_place = arguments["logits"], arguments["inplace_backward"]
        if in_place and torch.is_grad_enabled():
            raise Unsupported(
                Fault(
                    "logp",
                    "inplace_backward",
                    "a backward without create_graph=True, which needs the logits again",
                )
            )
        grad = once("logp", lambda: _core.logp_backward(arguments), *upstream, logits)
        if in_place:
            # Whoever saved the logits is told that they are gone: torch raises there.
            torch.autograd.graph.increment_version(logits)
            grad = logits.detach()
        return grad, None


def _forward(ctx: Any, forward: Any, arguments: Arguments) -> Any:
    log_prob, entropy, lse, row_max, row_log_sum = forward(arguments, True)
    save(ctx, arguments, {"row_max": row_max, "row_log_sum": row_log_sum, "entropy": entropy})
    ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
    return log_prob, entropy, lse


def _backward_arguments(ctx: Any, upstream: tuple[Any, ...]) -> Arguments | None:
    """None where no output has a gradient."""
    grad_output, grad_entropy, grad_lse = upstream
    if grad_output is grad_entropy is grad_lse is None:
        return None
    arguments = restored(ctx)
    arguments.update(grad_output=grad_output, grad_entropy=grad_entropy, grad_lse=grad_lse)
    return arguments


def linear_logp(arguments: Arguments) -> Any:
    """(log_prob, entropy, lse), None where not asked for."""
    operands = check_operands("linear_logp", arguments, ("hidden", "weight", "bias"))
    refuse_options("linear_logp", arguments)
    return _LinearLogp.apply(*operands, arguments)


def logp(arguments: Arguments) -> Any:
    """(log_prob, entropy, lse), None where not asked for."""
    (logits,) = check_operands("logp", arguments, ("logits",))
    refuse_options("logp", arguments)
    result = _Logp.apply(logits, arguments)
    # By now the core has seen that it is a flag.
    if arguments["inplace_backward"] and logits.requires_grad and logits.is_leaf:
        fail(
            "logp",
            "inplace_backward",
            "logits that an operation made",
            "a leaf, whose values would become its gradient",
        )
    return result
