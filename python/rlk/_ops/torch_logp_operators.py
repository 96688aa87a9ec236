# SPDX-License-Identifier: Apache-2.0
"""linear_logp and logp as operators of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from rlk import _core
from rlk._ops.common import Arguments
from rlk._ops.linear_logp import cast, linear_logp_backward
from rlk._ops.linear_logp import linear_logp as linear_logp_function
from rlk._ops.logp import logp as logp_function
from rlk._ops.logp import logp_backward
from rlk._ops.torch_cast import autocast_dtype
from rlk._ops.torch_common import save
from rlk._ops.torch_logp import (
    backward_arguments,
    linear_logp_gradients,
    linear_logp_operands,
    logp_gradient,
    logp_operands,
)
from rlk._ops.torch_operators import (
    Operator,
    Rules,
    differentiable,
    expect_shape,
    is_exporting,
    words_of,
)
from rlk.errors import DriverError, Fault, Unsupported, fail

_OPERANDS = ("hidden", "weight", "bias")
_FLAGS = (*(f"needs_{name}" for name in _OPERANDS), "sums_of_hidden", "sums_of_weight")
_ROWS = ("log_prob", "row_max", "row_log_sum", "entropy")  # saved for a backward
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _listed(arguments: Arguments, found: Any) -> list[Any]:
    """What a forward of the core has found, as an operator returns it."""
    if not isinstance(found, tuple):
        return [found]
    stats = found[-1] if arguments["return_stats"] else ()
    return [tensor for tensor in (*found[:3], *stats, *found[3:5]) if tensor is not None]


def _unlisted(arguments: Arguments, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """(log_prob, entropy, lse, *statistics, *saved) of such a list, None for what is not there."""
    others = iter(tensors)
    log_prob = next(others)
    entropy = next(others) if arguments["return_entropy"] else None
    lse = next(others) if arguments["return_lse"] else None
    return log_prob, entropy, lse, *others


def _empty(op: str, matrix: Any, arguments: Arguments) -> list[Any]:
    """The results of a forward without their values."""
    if matrix.ndim == 0 or matrix.dtype not in _DTYPES:
        name = next(name for name, value in arguments.items() if value is matrix)
        got = f"{str(matrix.dtype).removeprefix('torch.')} {list(matrix.shape)}"
        fail(op, name, "float32, bfloat16 or float16 of one axis or more", got)
    rows = matrix.shape[:-1]
    expect_shape(op, "target", arguments["target"], rows, "one id per row")
    if arguments["mask"] is not None:
        expect_shape(op, "mask", arguments["mask"], rows, "one value per row")
    kinds = [torch.float32] * (1 + arguments["return_entropy"] + arguments["return_lse"])
    if arguments["return_stats"]:
        kinds += [torch.float32, torch.int64, torch.float32, torch.float32]
    kinds += [torch.float32] * (2 * arguments["save"])
    return [matrix.new_empty(rows, dtype=kind) for kind in kinds]


def _keeping(arguments: Arguments) -> Arguments:
    """What the operator of a forward is told of the exponentials to keep for a backward, as an
    eager call would keep them: the target that makes them (-1: none are kept), which knows how they
    lie, their dtype, and the limits (rows and columns of the first, of the second)."""
    hidden, weight, mib = (arguments[name] for name in ("hidden", "weight", "saved_mib"))
    is_differentiated = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    # Of a vocabulary that is a symbol nobody knows the segments.
    has_sizes = weight.ndim == 2 and isinstance(weight.shape[0], int)
    if not is_differentiated or not has_sizes:
        return {}
    if arguments["softcap"] is not None or arguments["entropy_grad"]:
        return {}
    index = (hidden.device.index or 0) if hidden.device.type == "cuda" else None
    dtype = str(hidden.dtype).removeprefix("torch.")
    mib = _core.settings()["saved_mib"] if mib is None else mib
    try:
        found = _core.linear_logp_kept_limits(index, dtype, weight.shape[0], max(mib, 0))
    except (DriverError, Unsupported):  # fake tensors of a device that is not there
        return {}
    if found is None or not any(found[2][::2]):
        return {}
    return {"saved_mib": mib, **dict(zip(_KEEPING, found, strict=True))}


def _new_kept(arguments: Arguments) -> Any:
    """The tensor of what is kept, without values. Of too many rows it has no columns."""
    rows, columns = arguments["target"].numel(), 0
    limits = arguments["kept_limits"]
    for most_rows, of_limit in (limits[2:], limits[:2]):
        # An expression, so that nothing is asked of rows that are a symbol: one graph is for all.
        holds = torch.sym_min(most_rows // torch.sym_max(rows, 1), 1)
        columns = holds * of_limit + (1 - holds) * columns
    return arguments["hidden"].new_empty(
        (rows, columns), dtype=getattr(torch, arguments["kept_dtype"])
    )


def _forward(arguments: Arguments) -> list[Any]:
    keeps = arguments["kept_target"] >= 0
    found = _core.linear_logp_forward(arguments, arguments["save"], keeps)
    listed = _listed(arguments, found)
    if keeps:
        kept, target = found[5] or (None, None)
        if target != arguments["kept_target"]:
            # No element; or configure() has changed the target since the call was traced.
            kept = _new_kept(arguments).fill_(torch.nan)
        listed.append(kept)
    return listed


def _fake_forward(arguments: Arguments) -> list[Any]:
    hidden, weight, bias = (arguments[name] for name in _OPERANDS)
    if weight.dtype != hidden.dtype:
        own, got = (str(x.dtype).removeprefix("torch.") for x in (hidden, weight))
        hint = "of torch tensors compute_dtype or autocast casts both"
        fail("linear_logp", "weight", f"dtype {own} (that of {{hidden}}; {hint})", got)
    found = _empty("linear_logp", hidden, arguments)
    columns = weight.shape[:1] if weight.ndim else ("V",)
    expect_shape("linear_logp", "weight", weight, (*columns, hidden.shape[-1]), "that of {hidden}")
    if bias is not None:
        expect_shape("linear_logp", "bias", bias, columns, "one value per column")
    return [*found, _new_kept(arguments)] if arguments["kept_target"] >= 0 else found


def _is_there(arguments: Arguments) -> list[bool]:
    """Which gradients of hidden, weight and bias a backward returns."""
    accumulates = arguments["accumulate_into"] is not None
    needs = [arguments[f"needs_{name}"] for name in _OPERANDS]
    return [needs[0], needs[1] and not accumulates, needs[2]]


def _backward(arguments: Arguments) -> tuple[Any, ...]:
    kept = arguments["kept"]
    if kept is not None and not kept.numel():
        arguments["kept"] = None
    grads = _core.linear_logp_backward(arguments, *(arguments[name] for name in _FLAGS))
    nothing = arguments["hidden"].new_empty
    return tuple(nothing(0) if grad is None else grad for grad in grads)


def _fake_backward(arguments: Arguments) -> tuple[Any, ...]:
    # The core's gradients are dense, however what they are of lies.
    return tuple(
        arguments["hidden"].new_empty(0)
        if not is_there
        else arguments[name].new_empty(
            arguments[name].shape,
            dtype=torch.float32 if arguments.get(f"sums_of_{name}") else None,
        )
        for name, is_there in zip(_OPERANDS, _is_there(arguments), strict=True)
    )


def _flops(arguments: Arguments, products: int = 1) -> int:
    return 2 * products * prod(arguments["target"]) * prod(arguments["weight"])


def _backward_flops(arguments: Arguments) -> int:
    """Of gradients, not of logits that are made once more."""
    return _flops(arguments, arguments["needs_hidden"] + arguments["needs_weight"])


_SAVE = "bool save=False"
_KEEPING = ("kept_target", "kept_dtype", "kept_limits")
_KEEPING_WORDS = ["int kept_target=-1", "str? kept_dtype=None", "int[] kept_limits=[]"]
_SAVED = [f"Tensor? {name}=None" for name in _ROWS]

_run_linear_logp_forward = Operator(
    "_linear_logp_forward",
    "linear_logp",
    [*words_of(linear_logp_function), _SAVE, *_KEEPING_WORDS],
    "Tensor[]",
)
_run_linear_logp_forward.is_kernel(_forward, _fake_forward)
_run_linear_logp_forward.counts(_flops)
_run_linear_logp_backward, _run_accumulate = (
    Operator(
        f"_linear_logp_{name}",
        "linear_logp",
        [
            *words_of(linear_logp_backward),
            *_SAVED,
            "Tensor? kept=None",
            "int kept_target=-1",
            *(f"bool {name}=False" for name in _FLAGS),
        ],
        "(Tensor, Tensor, Tensor)",  # of no elements where not needed
        written,
    )
    for name, written in (("backward", None), ("accumulate", "accumulate_into"))
)
for _operator in (_run_linear_logp_backward, _run_accumulate):
    _operator.is_kernel(_backward, _fake_backward)
    _operator.counts(_backward_flops)
_run_logp_forward = Operator("_logp_forward", "logp", [*words_of(logp_function), _SAVE], "Tensor[]")
_run_logp_forward.is_kernel(
    lambda given: _listed(given, _core.logp_forward(given, given["save"])),
    lambda given: _empty("logp", given["logits"], given),
)
_run_logp_backward = Operator(
    "_logp_backward", "logp", [*words_of(logp_backward), *_SAVED], "Tensor"
)
_run_logp_backward.is_kernel(
    _core.logp_backward, lambda given: given["logits"].new_empty(given["logits"].shape)
)


def _save(ctx: Any, arguments: Arguments, found: tuple[Any, ...]) -> None:
    log_prob, entropy, _, *others = found
    ctx.mark_non_differentiable(*others)
    kept = others.pop() if arguments.get("kept_target", -1) >= 0 else None
    row_max, row_log_sum = others[-2:]
    rows = (log_prob, row_max, row_log_sum, entropy)
    save(ctx, ctx.op, arguments, dict(zip(_ROWS, rows, strict=True)), {"kept": kept})


def _linear_logp_gradients(ctx: Any, needs: Sequence[bool], *upstream: Any) -> Any:
    arguments = backward_arguments(ctx, upstream)
    if arguments is None:
        return (None,) * 3
    if arguments["grad_entropy"] is not None:
        arguments["kept"] = None

    def run(given: Arguments, *flags: bool) -> tuple[Any, ...]:
        asked = {**given, **dict(zip(_FLAGS, flags, strict=True))}
        accumulates = given["accumulate_into"] is not None
        grads = (_run_accumulate if accumulates else _run_linear_logp_backward)(asked)
        is_there = _is_there(asked)
        return tuple(grad if there else None for grad, there in zip(grads, is_there, strict=True))

    sums = arguments["sums_of_hidden"], arguments["sums_of_weight"]
    return linear_logp_gradients(run, arguments, needs, sums)


def _logp_gradients(ctx: Any, needs: Sequence[bool], *upstream: Any) -> Any:
    arguments = backward_arguments(ctx, upstream)
    return (None if arguments is None else logp_gradient(_run_logp_backward, arguments),)


_LINEAR_LOGP = Rules(
    "linear_logp",
    lambda given, save: _unlisted(given, _run_linear_logp_forward({**given, "save": save})),
    _save,
    _linear_logp_gradients,
)
_LOGP = Rules(
    "logp",
    lambda given, save: _unlisted(given, _run_logp_forward({**given, "save": save})),
    _save,
    _logp_gradients,
)


def _outputs(arguments: Arguments, found: tuple[Any, ...]) -> list[Any]:
    """Of what is found, what is no backward's alone."""
    count = 3 + 4 * arguments["return_stats"]
    return [tensor for tensor in found[:count] if tensor is not None]


def _linear_logp(given: Arguments) -> list[Any]:
    operands = linear_logp_operands(given)
    arguments = cast(given)
    # Gradients of what was cast are the float32 sums, which autograd rounds if need be.
    sums = {f"sums_of_{n}": given[n] is not arguments[n] for n in ("hidden", "weight")}
    arguments = {**arguments, **sums, **_keeping(arguments)}
    return _outputs(given, differentiable(_LINEAR_LOGP, arguments, *operands))


def _logp(arguments: Arguments) -> list[Any]:
    if arguments["inplace_backward"]:
        expected = "False in a compiled or transformed call, in which torch owns the memory"
        raise Unsupported(Fault("logp", "inplace_backward", expected, "True"))
    return _outputs(arguments, differentiable(_LOGP, arguments, *logp_operands(arguments)))


_linear_logp_operator = Operator(
    "linear_logp", "linear_logp", words_of(linear_logp_function), "Tensor[]"
)
_linear_logp_operator.is_composite(_linear_logp)
_logp_operator = Operator("logp", "logp", words_of(logp_function), "Tensor[]")
_logp_operator.is_composite(_logp)


#: The setting, as an argument: torch keeps compiled graphs by the arguments of their calls.
_saved_mib: Callable[[], int] = torch.compiler.assume_constant_result(
    lambda: max(_core.settings()["saved_mib"], 0)
)


def linear_logp(arguments: Arguments) -> tuple[Any, ...]:
    """(log_prob, entropy, lse, *statistics), None for what is not asked for."""
    into = arguments["accumulate_into"]
    if into is not None and hasattr(arguments["weight"], "grad_added_to_main_grad"):
        expected = "None in torch.compile and the like where Megatron-LM's hook is to be told"
        raise Unsupported(Fault("linear_logp", "accumulate_into", expected, "a tensor"))
    if arguments["compute_dtype"] is None:
        arguments = {**arguments, "compute_dtype": autocast_dtype(arguments["hidden"])}
    if arguments["saved_mib"] is None and not is_exporting():
        arguments = {**arguments, "saved_mib": _saved_mib()}
    return _unlisted(arguments, _linear_logp_operator(arguments))


def logp(arguments: Arguments) -> tuple[Any, ...]:
    return _unlisted(arguments, _logp_operator(arguments))
