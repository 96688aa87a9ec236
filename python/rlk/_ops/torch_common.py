# SPDX-License-Identifier: Apache-2.0
"""What the autograd of several ops uses. Imported at the first call that needs a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import torch

from rlk import _core
from rlk._ops.common import PARAMETERS, Arguments
from rlk.errors import Fault, InvalidArgument, Unsupported, fail

#: Types of what is never sharded, the most frequent ones.
_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


_autograd: Any = torch._C._autograd  # what follows has no public names

#: The innermost hooks on saved tensors that are set, or None.
default_hooks: Any = _autograd._top_saved_tensors_default_hooks
#: Whether the backward that runs keeps its graph for another. Older torch does not say.
keeps_graph: Callable[[], bool] = getattr(
    _autograd, "_get_current_graph_task_keep_graph", lambda: True
)


def through_operators() -> bool:
    """Whether a call must be one of operators (torch_operators.py), as what follows it sees nothing
    else: torch.compile and export, modes, the transforms of torch.func, torch.jit.trace."""
    functions: Any = torch._C  # these have no public names
    return (
        torch.compiler.is_compiling()
        or functions._len_torch_dispatch_stack() > 0
        or functions._are_functorch_transforms_active()
        or functions._is_tracing()
    )


def refuse_vmap(op: str) -> NoReturn:
    expected = (
        "a call and its backward outside of torch.vmap, which jacrev and is_grads_batched=True are "
        "made of (no batching rule is there)"
    )
    raise Unsupported(Fault(op, "vmap", expected, "one inside"))


class Function(torch.autograd.Function):
    """One that torch.func.grad and vjp know. The op's name is its first input, and in ctx.op."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, op: str, *_: Any) -> NoReturn:
        refuse_vmap(op)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        expected = "a call outside of torch.func.jvp (no forward-mode derivative is there)"
        raise Unsupported(Fault(ctx.op, "jvp", expected, "one inside"))


class Gradients(Function):
    """The gradients as a function of their inputs, so that a second derivative is an error.

    torch's once_differentiable leaves it out without a word where grad_output is a constant.
    """

    @staticmethod
    def forward(op: str, compute: Callable[[Arguments], Any], given: Arguments, *_: Any) -> Any:
        return compute(given)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise Unsupported(
            Fault(ctx.op, "backward", "one derivative", "a second (create_graph=True)")
        )


def once(op: str, compute: Callable[[Arguments], Any], given: Arguments, *inputs: Any) -> Any:
    """compute(given), gradients of these inputs, a second derivative of which is an error."""
    try:
        if torch.is_grad_enabled():
            return Gradients.apply(op, compute, given, *inputs)
        return compute(given)
    except InvalidArgument:  # of no memory
        if any(isinstance(tensor, torch.Tensor) and _is_batched(tensor) for tensor in inputs):
            refuse_vmap(op)
        raise


def _is_batched(tensor: torch.Tensor) -> bool:
    """Whether it is one of vmap's, or of its forerunner's, which is_grads_batched=True takes."""
    functions: Any = torch._C  # this has no public name, and the forerunner's key none at all
    return "Batched" in str(functions._dispatch_keys(tensor))


def check_operands(op: str, arguments: Arguments, names: tuple[str, ...]) -> list[Any]:
    """The arguments that have gradients, where they are torch tensors (or None) that may have.

    In the place of a DTensor comes the tensor of this rank, in `arguments` too.
    """
    first = arguments[names[0]]
    for name in names:
        operand = arguments[name]
        if type(operand) in _PLAIN:
            continue
        if not isinstance(operand, torch.Tensor):
            fail(
                op,
                name,
                "a torch tensor where another argument is one that needs a gradient",
                type(operand).__name__,
            )
        if hasattr(operand, "device_mesh"):
            arguments[name] = _local(op, name, operand, names[0], first)
    refuse_tangents(op, arguments, names)
    return [arguments[name] for name in names]


def _local(op: str, name: str, operand: Any, of: str, first: Any) -> Any:
    """This rank's tensor of a DTensor, whose gradient comes as the DTensor lies."""
    mesh = operand.device_mesh
    local = _core.local_tensor(op, name, operand)
    if operand.requires_grad and mesh.size() > 1 and getattr(first, "device_mesh", None) != mesh:
        # Of rows that differ by rank it is a sum over ranks, of the same rows it is each rank's.
        expected = (
            f"{{{of}}} as a DTensor on its mesh, or its to_local(grad_placements=), which says "
            "whether ranks have rows of their own (Partial) or the same (Replicate)"
        )
        raise Unsupported(Fault(op, name, expected, "a DTensor that needs a gradient"))
    return local


def refuse_tangents(op: str, arguments: Arguments, names: Iterable[str]) -> None:
    forward_ad = torch.autograd.forward_ad
    if getattr(forward_ad, "_current_level", -1) < 0:
        return
    for name in names:
        operand = arguments[name]
        if not isinstance(operand, torch.Tensor):
            continue
        if forward_ad.unpack_dual(operand).tangent is not None:
            expected = "a tensor without a tangent (no forward-mode derivative is there)"
            raise Unsupported(Fault(op, name, expected, "one with it"))


#: The options of logits that are numbers, and what may be given for each.
_NUMBERS = {
    name: "tensor" if kind == "number_per_row" else "number"
    for name, (kind, _) in PARAMETERS["logp"].items()
    if "number" in kind
}


def refuse_options(op: str, arguments: Arguments) -> None:
    """Options of logits through which a gradient would have to flow."""
    refuse_tangents(op, arguments, _NUMBERS)
    for name, what in _NUMBERS.items():
        value = arguments[name]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            fail(op, name, f"a {what} that needs no gradient", "one that does")


def save(ctx: Any, op: str, *given: Arguments) -> None:
    """Keeps arguments, and what a forward made, for `restored`.

    Tensors are torch's to keep: it refuses a backward after an in-place change of one. Of NumPy's
    arrays, whose changes nobody counts, a copy is kept.
    """
    tensors: Arguments = {}
    others: Arguments = {}
    for arguments in given:
        _core.split_tensors(arguments, tensors, others)
    ctx.plain = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in others.items()}
    for name, saved in tensors.items():
        if saved.is_inference():  # torch saves none
            expected = "a tensor made outside of torch.inference_mode() (its clone() is one)"
            fail(op, name, expected, "one made inside")
    ctx.names = tuple(tensors)
    ctx.save_for_backward(*tensors.values())


def restored(ctx: Any) -> Arguments:
    """What was saved; on a backward the stream is torch's current one."""
    arguments = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
    arguments.update(ctx.plain)
    arguments["stream"] = None
    return arguments
