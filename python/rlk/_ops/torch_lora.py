# SPDX-License-Identifier: Apache-2.0
"""linear_logp with a LoRA adapter on a frozen weight, which is not merged.

With u = scale * (hidden A^T) the logits are [hidden, u] [weight, B]^T: the same product with some
more terms.
"""

from __future__ import annotations

from typing import Any

import torch

from rlk import _core
from rlk._loss_options import as_finite
from rlk._ops.common import Arguments
from rlk._ops.linear_logp import MOST_MIB
from rlk._ops.torch_common import check_operands, once, refuse_options, through_operators
from rlk._ops.torch_logp import _found, _results, backward_arguments
from rlk.errors import Fault, Unsupported, fail, text

#: Logits that a backward keeps at once for B's gradient, 256 MiB in 16 bits. Sums over rows are cut
#: there, so it is no setting.
_KEPT_LOGITS = 1 << 27
_STORED = (torch.float32, torch.bfloat16, torch.float16)
_PER_ROW = (
    "target",
    "mask",
    "temperature",
    "row_max",
    "row_log_sum",
    "log_prob",
    "grad_output",
    "grad_lse",
)
_ROOM = "rlk_lora_width"  # of a weight whose rows have room: elements from row to row


class _Columns:
    """Where the terms of an adapter lie: behind `dim` columns, those of u and, where it is of 16
    bits, those of what its rounding loses, then zeros up to 16 bytes."""

    def __init__(self, hidden: Any, rank: int) -> None:
        self.dim, self.rank = hidden.shape[-1], rank
        parts = 1 if hidden.dtype == torch.float32 else 2
        align = 16 // hidden.element_size()
        self.parts = [slice(self.dim + i * rank, self.dim + (i + 1) * rank) for i in range(parts)]
        self.width = -(-(self.dim + parts * rank) // align) * align

    def rows(self, hidden: Any, first: Any, scale: float) -> Any:
        """[hidden, u], ``[..., width]``."""
        u = _product(hidden, first.t()).mul_(scale)
        found = hidden.new_zeros((*hidden.shape[:-1], self.width))
        found[..., : self.dim] = hidden
        for part in self.parts:
            found[..., part] = u
            u = u - found[..., part]
        return found

    def matrix(self, weight: Any) -> Any:
        """[weight, ...], ``[V, width]``: weight's own memory where that has room, else a copy."""
        shape = (len(weight), self.width)
        has_room = getattr(weight, _ROOM, None) == self.width and weight.stride() == (self.width, 1)
        if has_room and weight.untyped_storage().nbytes() >= _bytes(weight, shape):
            # Of .data nobody counts the changes: what is written is not weight's.
            return weight.data.as_strided(shape, (self.width, 1))
        found = weight.new_zeros(shape)
        found[:, : self.dim] = weight
        return found

    def write(self, matrix: Any, second: Any) -> Any:
        """The matrix with B in it. For each pass anew: another call may have written its own, and
        trainers change parameters in ways that torch does not count."""
        for part in self.parts:
            matrix[:, part] = second
        matrix[:, self.parts[-1].stop :] = 0
        return matrix


#: (device, dtype) whose kernels were found to keep no exponentials.
_keep_none: set[tuple[Any, Any]] = set()


def _bytes(weight: Any, shape: tuple[int, int]) -> int:
    """Of a storage in which a matrix of this shape begins where weight does."""
    size: int = (weight.storage_offset() + shape[0] * shape[1]) * weight.element_size()
    return size


def make_room(weight: Any, rank: int) -> None:
    """See `rlk.jit.make_lora_room`."""

    def refuse(name: str, expected: str, got: Any) -> None:
        fail("make_lora_room", name, expected, got)

    if not isinstance(weight, torch.Tensor) or hasattr(weight, "device_mesh"):
        refuse("weight", "a plain torch tensor", type(weight).__name__)
    if weight.dim() != 2 or weight.dtype not in _STORED:
        expected = "shape [V, D] of float32, bfloat16 or float16"
        refuse("weight", expected, f"{list(weight.shape)} of {weight.dtype}")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        refuse("rank", "an int from 1 up", text(rank))
    columns = _Columns(weight, rank)
    with torch.no_grad():
        weight.data = columns.matrix(weight.detach())[:, : columns.dim]
    setattr(weight, _ROOM, columns.width)


def _product(a: Any, b: Any) -> Any:
    """a @ b in float32; a row has the same bits in every batch."""
    if a.shape[-1] == 0:
        return a.new_zeros((*a.shape[:-1], b.shape[1]), dtype=torch.float32)
    word = None if a.dtype == torch.float32 else "float32"
    return _core.det_gemm_forward({"a": a, "b": b, "bias": None, "out_dtype": word})


def _wide(
    columns: _Columns, hidden: Any, weight: Any, first: Any, second: Any, scale: float
) -> tuple[Any, Any]:
    """[hidden, u] and [weight, B]."""
    rows = columns.rows(hidden, first.to(hidden.dtype), scale)
    return rows, columns.write(columns.matrix(weight), second)


class _LoraLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Any,
        first: Any,
        second: Any,
        bias: Any,
        scale: float,
        arguments: Arguments,
    ) -> Any:
        ctx.columns, ctx.scale = _Columns(hidden, first.shape[0]), scale
        rows, ctx.matrix = _wide(ctx.columns, hidden, arguments["weight"], first, second, scale)
        if any(ctx.needs_input_grad):  # A's gradient reads the rows of all that are active
            rows.masked_fill_(_inactive(rows, arguments)[..., None], 0)
        given = {**arguments, "hidden": rows, "lora": None}
        found = _core.linear_logp_forward({**given, "weight": ctx.matrix}, True, False)
        saved = {"log_prob": found[0].clone(), "first": first, "second": second}
        return _results(ctx, "linear_logp", given, found, saved)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        arguments = backward_arguments(ctx, upstream)
        if arguments is None:
            return (None,) * 6
        columns = ctx.columns
        operands = [arguments[name] for name in ("hidden", "first", "second", "bias")]

        def compute(given: Arguments) -> Any:
            columns.write(ctx.matrix, given["second"])
            given = {**given, "weight": ctx.matrix}
            return _gradients(given, columns, ctx.scale, *ctx.needs_input_grad[:4])

        return *once("linear_logp", compute, arguments, *upstream[:3], *operands), None, None


def _inactive(rows: Any, arguments: Arguments) -> Any:
    found = torch.zeros(rows.shape[:-1], dtype=torch.bool, device=rows.device)
    if arguments["mask"] is not None:
        found |= torch.as_tensor(arguments["mask"], device=rows.device) == 0
    if arguments["ignore_index"] is not None:
        target = torch.as_tensor(arguments["target"], device=rows.device).long()
        found |= target == arguments["ignore_index"]
    return found


def _gradients(
    arguments: Arguments,
    columns: _Columns,
    scale: float,
    needs_hidden: bool,
    needs_first: bool,
    needs_second: bool,
    needs_bias: bool,
) -> tuple[Any, Any, Any, Any]:
    rows, first, second = arguments["hidden"], arguments.pop("first"), arguments.pop("second")
    needs_rows = needs_hidden or needs_first
    found = _by_parts(arguments, columns, needs_rows, needs_bias) if needs_second else None
    if found is None:
        found = _core.linear_logp_backward(arguments, needs_rows, needs_second, needs_bias)
    of_rows, of_weight, of_bias = found
    of_hidden = of_first = of_second = None
    if needs_second:
        sums = [
            of_weight[:, part.start - columns.width :][:, : columns.rank].float()
            for part in columns.parts
        ]
        of_second = sum(sums[1:], sums[0]).to(second.dtype)
    if needs_rows:
        own, of_u = of_rows[..., : columns.dim], of_rows[..., columns.parts[0]]
    if needs_hidden:
        of_hidden = _product(of_u, first.to(rows.dtype)).mul_(scale).add_(own).to(rows.dtype)
    if needs_first:
        flat = rows[..., : columns.dim].reshape(-1, columns.dim)
        of_first = _product(of_u.reshape(-1, columns.rank).t(), flat).mul_(scale).to(first.dtype)
    return of_hidden, of_first, of_second, of_bias


def _by_parts(
    arguments: Arguments, columns: _Columns, needs_rows: bool, needs_bias: bool
) -> tuple[Any, Any, Any] | None:
    """Gradients of the rows, of the weight's columns from `dim` on, and of the bias, without the
    product for the other columns; None where no exponentials can be kept.

    Some rows at a time: one more forward keeps their exponentials, of which dZ is made for each of
    the gradients. Kept exponentials know no terms, so a call whose hidden states are u alone finds
    the gradient of B.
    """
    rows, matrix, bias = arguments["hidden"], arguments["weight"], arguments["bias"]
    kind = (rows.device, rows.dtype)
    has_none = arguments["grad_entropy"] is not None or arguments["softcap"] is not None
    if has_none or kind in _keep_none:
        return None
    lead = rows.shape[:-1]
    # Here is none of an entropy, whatever the call said.
    flat = dict(arguments, hidden=rows.reshape(-1, columns.width), entropy_grad=False)
    if bias is not None:
        flat["bias"] = bias.float()
    tail = slice(columns.dim, columns.width)
    count, step = flat["hidden"].shape[0], max(256, _KEPT_LOGITS // matrix.shape[0] // 128 * 128)
    of_rows = torch.empty_like(flat["hidden"]) if needs_rows else None
    of_bias = None if bias is None or not needs_bias else torch.zeros_like(flat["bias"])
    of_weight = matrix.new_zeros(
        (matrix.shape[0], columns.width - columns.dim), dtype=torch.float32
    )
    per_row = {name for name in _PER_ROW if _is_per_row(arguments[name], lead)} | {"hidden"}
    for name in per_row - {"hidden"}:
        flat[name] = flat[name].reshape(-1)
    for begin in range(0, count, step):
        part = {
            name: value[begin : begin + step] if name in per_row else value
            for name, value in flat.items()
        }
        asked = {"return_entropy": False, "return_lse": False, "return_stats": False}
        kept = _core.linear_logp_forward({**part, **asked, "saved_mib": MOST_MIB}, True, True)[5]
        if kept is None:
            _keep_none.add(kind)
            return None
        part |= {"kept": kept[0], "kept_target": kept[1], "may_overwrite_kept": False}
        if needs_rows or of_bias is not None:
            found = _core.linear_logp_backward(part, needs_rows, False, of_bias is not None)
            if of_rows is not None:
                of_rows[begin : begin + step] = found[0]
            if of_bias is not None:
                of_bias += found[2]
        terms = {"hidden": part["hidden"][:, tail], "weight": matrix[:, tail]}
        part |= {**terms, "accumulate_into": of_weight, "may_overwrite_kept": True}
        _core.linear_logp_backward(part, False, True, False)
    if of_rows is not None:
        of_rows = of_rows.reshape(rows.shape)
    return of_rows, of_weight, None if of_bias is None else of_bias.to(bias.dtype)


def _is_per_row(value: Any, lead: Any) -> bool:
    return hasattr(value, "reshape") and tuple(value.shape) == tuple(lead)


def _check(arguments: Arguments) -> tuple[Any, Any, float]:
    """(A, B, scale), of the shapes and dtypes that hidden and weight ask for."""

    def refuse(expected: str, got: Any) -> None:
        fail("linear_logp", "lora", expected, got)

    given, hidden, weight = arguments["lora"], arguments["hidden"], arguments["weight"]
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        got = f"{len(given)} values" if isinstance(given, (tuple, list)) else type(given).__name__
        refuse("(A, B, scale)", got)
    first, second, scale = given
    if as_finite(scale) is None:
        refuse("a finite number of float32 as scale", text(scale))
    for name, tensor in (("hidden", hidden), ("weight", weight)):
        if not isinstance(tensor, torch.Tensor):
            fail("linear_logp", name, "a torch tensor with {lora}", type(tensor).__name__)
    if hidden.dtype not in _STORED:
        fail("linear_logp", "hidden", "dtype float32, bfloat16 or float16", hidden.dtype)
    dim = hidden.shape[-1] if hidden.dim() else -1
    if weight.dim() != 2 or weight.shape[1] != dim or 0 in weight.shape:
        expected = f"shape [V, {dim}] with V and D at least 1"
        fail("linear_logp", "weight", expected, list(weight.shape))
    if weight.dtype != hidden.dtype or weight.device != hidden.device:
        expected = f"dtype {hidden.dtype} on {hidden.device} (as {{hidden}})"
        fail("linear_logp", "weight", expected, f"{weight.dtype} on {weight.device}")
    if weight.requires_grad and torch.is_grad_enabled():
        refuse("a weight that needs no gradient (it is frozen)", "one that does")
    if arguments["accumulate_into"] is not None:
        refuse("None with {accumulate_into}", "an adapter")
    rank = first.shape[0] if isinstance(first, torch.Tensor) and first.dim() == 2 else 0
    for name, tensor, shape in (("A", first, [rank, dim]), ("B", second, [len(weight), rank])):
        if not isinstance(tensor, torch.Tensor):
            refuse(f"a torch tensor as {name}", type(tensor).__name__)
        letters = "[r, D]" if name == "A" else "[V, r]"
        if rank < 1:
            refuse("A of shape [r, D] with r at least 1", list(tensor.shape))
        if list(tensor.shape) != shape:
            refuse(f"{name} of shape {letters}, here {shape}", list(tensor.shape))
        if tensor.dtype not in (hidden.dtype, torch.float32):
            refuse(f"{name} of {{hidden}}'s dtype or float32", tensor.dtype)
        if tensor.device != hidden.device:
            refuse(f"{name} on {hidden.device}", tensor.device)
        if hasattr(tensor, "device_mesh"):
            refuse(f"{name} as a plain tensor", "a DTensor")
    return first, second, float(scale)


def linear_logp(arguments: Arguments) -> Any:
    if through_operators():
        expected = "None in torch.compile, in a transform of torch.func and in a mode"
        raise Unsupported(Fault("linear_logp", "lora", expected, "an adapter"))
    names = ("hidden", "weight", "bias")
    for name in names:
        value = arguments[name]
        if value is not None and not isinstance(value, torch.Tensor):
            fail("linear_logp", name, "a torch tensor with {lora}", type(value).__name__)
    hidden, _, bias = check_operands("linear_logp", arguments, names)
    refuse_options("linear_logp", arguments)
    first, second, scale = _check(arguments)
    operands = hidden, first, second, bias
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands):
        return _found(_LoraLogp.apply(*operands, scale, arguments))
    # Nothing is saved, which in inference mode nothing could be.
    columns = _Columns(hidden, first.shape[0])
    rows, matrix = _wide(columns, hidden, arguments["weight"], first, second, scale)
    return _core.linear_logp_forward({**arguments, "hidden": rows, "weight": matrix, "lora": None})


def widened(arguments: Arguments) -> Arguments:
    """With stand-ins of the shapes that the core is given, for `explain`."""
    first, _, _ = _check(arguments)
    width = _Columns(arguments["hidden"], first.shape[0]).width
    sizes = {"hidden": arguments["hidden"].shape[:-1], "weight": arguments["weight"].shape[:1]}
    wide = {n: arguments[n].new_zeros(1).expand(*size, width) for n, size in sizes.items()}
    return {**arguments, **wide}
