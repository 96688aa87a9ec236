# SPDX-License-Identifier: Apache-2.0
"""What torch's autocast and compute_dtype say of a product's operands. Imported at the first call
that one of them is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rlk._ops.common import Arguments
from rlk._ops.torch_common import through_operators
from rlk.errors import fail, text

#: Autocast leaves others as they are.
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_CASTABLE = frozenset(_DTYPES.values())


class _NoRows(torch.Tensor):
    """Rows whose product is not computed: its result is the other operand, as it arrives there."""

    # (class, function, types, arguments, keywords)
    __torch_dispatch__: Any = classmethod(lambda *given: given[3][1].detach())


def cast(op: str, given: Arguments, names: tuple[str, str], compute_dtype: Any = None) -> Arguments:
    """The arguments with these two matrices in the dtype that the product is computed in, where
    `compute_dtype` or autocast says so; those that are in it are the same objects.

    The second is the weight: autocast's own cache has its copy, one a region, which the layers of
    torch that use this weight share.
    """
    asked = _dtype_of_region(given[names[0]])
    dtype = asked if compute_dtype is None else _dtype_of(op, compute_dtype)
    if dtype is None or dtype not in _CASTABLE:
        return given
    cast_arguments = dict(given)
    is_traced = through_operators()  # tensors that stand for others: no memory and no cache
    for name in names:
        matrix = given[name]
        if not isinstance(matrix, torch.Tensor) or matrix.dtype not in _CASTABLE:
            continue
        if is_traced or _has_memory(matrix):
            is_cached = name == names[1] and dtype == asked and not is_traced
            cast_arguments[name] = _cached(matrix, dtype) if is_cached else matrix.to(dtype)
    bias = given["bias"]
    if isinstance(bias, torch.Tensor) and bias.dtype in _CASTABLE and bias.dtype != dtype:
        cast_arguments["bias"] = bias.float()  # exact: it is added in float32
    return cast_arguments


def autocast_dtype(matrix: Any) -> torch.dtype | None:
    """What autocast says for this device, as a compute_dtype: an exported program has an operator's
    arguments, but need not have the region that it was called in."""
    dtype = _dtype_of_region(matrix)
    return dtype if dtype in _CASTABLE else None


#: torch's own, which torch.compile of torch 2.11 does not follow.
_has_autocast: Callable[[str], bool] = torch.compiler.assume_constant_result(
    lambda kind: torch.amp.is_autocast_available(kind)
)


def _dtype_of_region(matrix: Any) -> torch.dtype | None:
    """Autocast's for the matrix's device, None where it is off, or there is none (meta)."""
    kind = matrix.device.type
    is_on = _has_autocast(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else None


def _dtype_of(op: str, given: Any) -> torch.dtype:
    name = given if isinstance(given, str) else str(given).removeprefix("torch.")
    if name not in _DTYPES or not isinstance(given, (str, torch.dtype)):
        fail(op, "compute_dtype", "None, bfloat16, float16 or float32", text(given))
    return _DTYPES[name]


def _cached(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weight as a product in this autocast region takes it.

    The cache has no function of its own: what it holds is asked for by a product of no rows.
    """
    base = weight._base
    if base is not None and _is_transposed(weight, base):  # of views there are no copies
        return _cached(base, dtype).T
    if weight.dtype != torch.float32 or weight.ndim != 2 or not _is_plain(weight):
        return weight.to(dtype)
    rows = weight.new_empty((0, weight.shape[0]), dtype=dtype)
    # Nobody else's hooks see the rows, which the product saves.
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        copy = torch.mm(rows.as_subclass(_NoRows), weight)
    # A region around this one may have cached it in its own dtype.
    return copy if copy.dtype == dtype else weight.to(dtype)


def _itself(saved: Any) -> Any:
    return saved


def _is_plain(tensor: torch.Tensor) -> bool:
    """Not a DTensor or the like."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _has_memory(tensor: torch.Tensor) -> bool:
    """False for a shard whose storage was freed: the core says what to do with it."""
    return not _is_plain(tensor) or not tensor.numel() or tensor.untyped_storage().nbytes() > 0


def _is_transposed(view: torch.Tensor, base: torch.Tensor) -> bool:
    if base.ndim != 2 or base.dtype != view.dtype or base.data_ptr() != view.data_ptr():
        return False
    return (*view.shape, *view.stride()) == (*base.shape[::-1], *base.stride()[::-1])
