# SPDX-License-Identifier: Apache-2.0
"""Autograd of linear_logp and logp for torch tensors. Imported at the first call that needs it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.linear_logp import cast
from rlk._ops.torch_common import (
    check_operands,
    default_hooks,
    once,
    refuse_options,
    restored,
    save,
    through_operators,
)
from rlk.errors import Fault, Unsupported, fail, text


class _Claim:
    """Held while a backward is still to write over a tensor's memory."""


# By the tensor that has the memory, of which logits may be a view.
_claims: Any = WeakTensorKeyDictionary()


class _LinearLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, arguments: Arguments, core: Any
    ) -> Any:
        keep = any(ctx.needs_input_grad[:2])
        found = core.linear_logp_forward(arguments, True, keep)
        ctx.core = core
        log_prob = found[0]
        kept, target = found[5] or (None, None)
        # Of the log-prob a copy: callers may write over what they were given.
        saved = {"log_prob": log_prob.clone(), "kept": kept}
        ctx.kept = _Kept(kept, target)
        # What gradients are added to is no value of the graph, which hooks would see and torch
        # would find changed by every other backward.
        ctx.accumulate_into = arguments["accumulate_into"]
        ctx.weight = None if ctx.accumulate_into is None else weakref.ref(weight)
        # Gradients of what was cast are the float32 sums, which autograd rounds if need be.
        ctx.sums = hidden is not arguments["hidden"], weight is not arguments["weight"]
        return _results(ctx, "linear_logp", {**arguments, "accumulate_into": None}, found, saved)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        if ctx.core is _core or all(grad is None for grad in upstream[:3]):
            return _LinearLogp.gradients(ctx, upstream)
        with ctx.core.telling(ctx.needs_input_grad[0]):
            return _LinearLogp.gradients(ctx, upstream)

    @staticmethod
    def gradients(ctx: Any, upstream: Any) -> Any:
        arguments = backward_arguments(ctx, upstream)
        if arguments is None:
            return (None,) * 5
        kept = arguments.pop("kept")
        if arguments["grad_entropy"] is None:
            arguments.update(ctx.kept.take(kept))
        arguments["accumulate_into"] = ctx.accumulate_into

        needs = ctx.needs_input_grad[:3]
        run = ctx.core.linear_logp_backward
        hidden, weight, bias = linear_logp_gradients(run, arguments, needs, ctx.sums)
        if ctx.accumulate_into is not None:
            torch.autograd.graph.increment_version(ctx.accumulate_into)
            weight = megatron_placeholder(ctx.weight(), ctx.accumulate_into)
        return hidden, weight, bias, None, None


class _Kept:
    """What becomes of the exponentials that a forward keeps: a backward writes over them if their
    memory is this call's alone, and those after it have none."""

    def __init__(self, kept: Any, target: int | None) -> None:
        self._is_spent = False
        self._target = target
        # Hooks on saved tensors may hold the memory. Those that are set now are told by torch, and
        # those that are set later give other objects back.
        self._owns = default_hooks(False) is None
        if kept is not None:
            kept.rlk_owner = self

    def take(self, kept: Any) -> Arguments:
        """Arguments of a backward, which is given what autograd has kept."""
        if kept is None or self._is_spent:
            return {}
        self._is_spent = self._owns and getattr(kept, "rlk_owner", None) is self
        return {"kept": kept, "kept_target": self._target, "may_overwrite_kept": self._is_spent}


def megatron_placeholder(weight: Any, accumulated: Any) -> Any:
    """As Megatron-LM's own layers: where its hook on the parameter waits for a gradient, one that
    the hook throws away, or adds to those of the parameter's other uses (zero_out_wgrad)."""
    is_main = getattr(weight, "main_grad", None) is accumulated
    if not is_main or not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    is_added = getattr(weight, "zero_out_wgrad", False)
    return (torch.zeros_like if is_added else torch.empty_like)(weight, requires_grad=False)


class _Logp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, arguments: Arguments, core: Any) -> Any:
        found = _results(ctx, "logp", arguments, core.logp_forward(arguments, True, True), {})
        ctx.core = core
        # By now the core has seen that it is a flag.
        if arguments["inplace_backward"] and ctx.needs_input_grad[0]:
            ctx.claim = _claim(logits, arguments)
        return found

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        arguments = backward_arguments(ctx, upstream)
        if arguments is None:
            return None, None, None
        logits, in_place = arguments["logits"], arguments["inplace_backward"]
        if in_place and torch.is_grad_enabled():
            raise Unsupported(
                Fault(
                    "logp",
                    "inplace_backward",
                    "a backward without create_graph=True, which needs the logits again",
                )
            )
        grad = logp_gradient(ctx.core.logp_backward, arguments)
        if in_place:
            # Whoever saved the logits is told that they are gone: torch raises there.
            torch.autograd.graph.increment_version(logits)
            grad = logits.detach()
            ctx.claim = None
        return grad, None, None


def _is_of_many(view: Any) -> bool:
    autograd: Any = torch._C._autograd
    of = getattr(autograd, "_get_creation_meta", None)  # has no public name
    return of is not None and of(view) == autograd.CreationMeta.MULTI_OUTPUT_NODE


def _runs_again() -> bool:
    """Whether this is a forward within a backward, which a checkpoint runs for the same call."""
    of = getattr(torch._C, "_current_graph_task_id", None)  # has no public name
    return of is not None and of() != -1


def _span(tensor: Any) -> range:
    """Addresses of the bytes from the first element's to the last one's."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())


def _shares(tensor: Any, other: Any) -> bool:
    """Whether a tensor, if it is one, may have memory of the other."""
    if not isinstance(tensor, torch.Tensor) or 0 in (tensor.numel(), other.numel()):
        return False
    own, its = _span(tensor), _span(other)
    return own.start < its.stop and its.start < own.stop


def _claim(logits: Any, arguments: Arguments) -> _Claim:
    """The right to write over logits, which a backward gives back."""
    owner = logits if logits._base is None else logits._base
    got = None
    if owner.is_leaf and owner.requires_grad:
        kind = "a leaf" if owner is logits else "a view of a leaf"
        got = f"{kind}, whose values would become its gradient"
    elif owner.numel() != logits.numel() and _is_of_many(logits):
        # torch refuses any use of the others once the memory of one is written.
        got = "one of the views that one operation made (chunk, split, unbind; a slice would do)"
    elif logits.is_neg():
        got = "a view whose sign is still to be applied (its resolve_neg() has memory of its own)"
    elif (other := _claims.get(owner)) and other() and not _runs_again():
        got = "a view of what the backward of another call is still to write over"
    for name, value in arguments.items():
        if name != "logits" and _shares(value, logits):
            got = f"memory that {name} shares"
    if got is not None:
        fail("logp", "inplace_backward", "logits that an operation made, for this call alone", got)
    claim = _Claim()
    _claims[owner] = weakref.ref(claim)
    return claim


def _results(ctx: Any, op: str, arguments: Arguments, found: Any, saved: Arguments) -> Any:
    """The outputs of what a forward has found; `saved`: for the backward besides."""
    log_prob, entropy, lse, row_max, row_log_sum = found[:5]
    stats = found[-1] if arguments["return_stats"] else ()
    ctx.mark_non_differentiable(*stats)
    rows = {"row_max": row_max, "row_log_sum": row_log_sum, "entropy": entropy}
    save(ctx, op, arguments, rows, saved)
    ctx.set_materialize_grads(False)  # an output that the loss has not stays without a gradient
    return log_prob, entropy, lse, *stats


def backward_arguments(ctx: Any, upstream: tuple[Any, ...]) -> Arguments | None:
    """None where no output has a gradient."""
    grad_output, grad_entropy, grad_lse = upstream[:3]  # statistics have none
    if grad_output is grad_entropy is grad_lse is None:
        return None
    arguments = restored(ctx)
    arguments.update(grad_output=grad_output, grad_entropy=grad_entropy, grad_lse=grad_lse)
    return arguments


_UPSTREAM = ("grad_output", "grad_entropy", "grad_lse")


def linear_logp_gradients(
    run: Any, arguments: Arguments, needs: Sequence[bool], sums: Sequence[bool]
) -> Any:
    """Those that are needed of hidden, weight and bias; `run`: the core's function or one of an
    operator; `sums`: of hidden and of weight the gradient is to be float32."""
    inputs = (arguments[name] for name in (*_UPSTREAM, "hidden", "weight", "bias"))
    return once("linear_logp", lambda given: run(given, *needs, *sums), arguments, *inputs)


def logp_gradient(run: Any, arguments: Arguments) -> Any:
    """That of the logits."""
    inputs = (arguments[name] for name in (*_UPSTREAM, "logits"))
    return once("logp", run, arguments, *inputs)


def _found(outputs: Any) -> Any:
    """(log_prob, entropy, lse), None where not asked for, and the statistics where they are."""
    return outputs if len(outputs) == 3 else (*outputs[:3], outputs[3:])


def linear_logp(given: Arguments, casts: bool, core: Any = _core) -> Any:
    """`casts`: operands may be cast; their gradients are those of what is given. `core`: what runs
    the call, the core or what has its functions."""
    if core is _core and through_operators():
        from rlk._ops import torch_logp_operators

        return _found(torch_logp_operators.linear_logp(given))
    operands = linear_logp_operands(given)
    arguments = cast(given) if casts else given
    into = arguments["accumulate_into"]
    for name in ("hidden", "weight", "bias"):
        # The core sees the copy alone.
        if given[name] is not arguments[name] and _shares(into, given[name]):
            expected = f"memory that {{{name}}} does not share"
            fail("linear_logp", "accumulate_into", expected, "some of it")
    return _found(_LinearLogp.apply(*operands, arguments, core))


def linear_logp_operands(arguments: Arguments) -> list[Any]:
    """hidden, weight and bias, where autograd can take the call."""
    operands = check_operands("linear_logp", arguments, ("hidden", "weight", "bias"))
    refuse_options("linear_logp", arguments)
    into = arguments["accumulate_into"]
    if into is not None and not arguments["weight"].requires_grad:
        fail("linear_logp", "accumulate_into", "None where weight needs no gradient", "a tensor")
    if into is not None and not isinstance(into, torch.Tensor):
        fail("linear_logp", "accumulate_into", "a torch tensor, as weight is one", text(into))
    return operands


def logp(arguments: Arguments, core: Any = _core) -> Any:
    if core is _core and through_operators():
        from rlk._ops import torch_logp_operators

        return _found(torch_logp_operators.logp(arguments))
    return _found(_Logp.apply(*logp_operands(arguments), arguments, core))


def logp_operands(arguments: Arguments) -> list[Any]:
    """The logits, where autograd can take the call."""
    given = arguments["logits"]
    operands = check_operands("logp", arguments, ("logits",))
    if operands[0] is not given and arguments["inplace_backward"]:
        fail("logp", "inplace_backward", "False for a DTensor", "True")
    refuse_options("logp", arguments)
    return operands
