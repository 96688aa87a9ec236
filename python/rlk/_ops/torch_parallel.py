# SPDX-License-Identifier: Apache-2.0
"""linear_logp and logp of a vocabulary that ranks share: who has which ids, and the calls.
Imported at the first of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from rlk import _core
from rlk._ops import torch_logp
from rlk._ops.common import Arguments, logp_result
from rlk._ops.linear_logp import cast
from rlk._ops.torch_group import Agreement
from rlk._ops.torch_ranks import Ranks
from rlk._ops.torch_shards import Cut, Rows, Shards
from rlk.errors import Fault, Unsupported, fail, text

_SEGMENTS = 8  # of a vocabulary
_MOST_IDS = 2**31 - 1


class Spread(NamedTuple):
    """How a caller says that the vocabulary is spread: arguments of `rlk.jit.linear_logp`."""

    group: Any
    vocab_range: Any = None
    vocab_size: Any = None
    sequence_parallel: Any = False
    leaves_sum: bool = False


def linear_logp(given: Arguments, *how: Any, leaves_sum: bool = False) -> Any:
    """See `rlk.jit.linear_logp`; `leaves_sum`: the caller adds up hidden's gradient over ranks, of
    which each gives some rows, and zeros."""
    return _call("linear_logp", given, Spread(*how)._replace(leaves_sum=leaves_sum))


def logp(given: Arguments, *how: Any) -> Any:
    """See `rlk.jit.logp`."""
    return _call("logp", given, Spread(*how))


def explain(op: str, of_core: Any, given: Arguments, *how: Any) -> Any:
    """What `of_core` says of the arguments and of what runs the call: no other rank takes part."""
    given, spread = _spread(op, given, Spread(*how))
    ranks = Ranks(op, spread.group)
    return of_core(given, _core_of(ranks, given, spread, ranks.agreement(f"explain of {op}")))


def _call(op: str, given: Arguments, spread: Spread) -> Any:
    functions: Any = torch._C  # it has no public name
    if torch.compiler.is_compiling() or functions._are_functorch_transforms_active():
        expected = "None in torch.export and in a transform of torch.func"
        raise Unsupported(Fault(op, "group", expected, "ranks that share the vocabulary"))
    given, spread = _spread(op, given, spread)
    ranks = Ranks(op, spread.group)
    agreement = ranks.agreement(f"a call of {op}")
    with agreement.telling():
        core = _core_of(ranks, given, spread, agreement)
        differentiates = _core.needs_autograd(given)
        casts = given.get("compute_dtype") is not None or _core.is_autocast_enabled()
        if op == "linear_logp" and differentiates:
            found = torch_logp.linear_logp(given, casts, core)
        elif op == "linear_logp":
            found = core.linear_logp_forward(cast(given) if casts else given)
        elif differentiates:
            found = torch_logp.logp(given, core)
        else:
            found = core.logp_forward(given)
    return logp_result(given, found)


def _core_of(ranks: Ranks, given: Arguments, spread: Spread, agreement: Agreement) -> Any:
    """What runs the call: the core, or in its place one that shares the work among ranks."""
    op = ranks.op
    for name in ("hidden", "weight") if op == "linear_logp" else ("logits",):
        if not isinstance(given[name], torch.Tensor):
            fail(op, name, "a torch tensor with {group}", type(given[name]).__name__)
        if given[name].ndim == 0:
            fail(op, name, "a tensor of one axis or more", "a scalar")
        if name != "hidden" and hasattr(given[name], "placements"):
            expected = "this rank's part with {group}, as to_local() gives it"
            fail(op, name, expected, f"a DTensor of placements {given[name].placements}")
    if given.get("lora") is not None:
        raise Unsupported(Fault(op, "lora", "None with {group}", "an adapter"))
    cut = _cut(ranks, given, spread)
    if spread.sequence_parallel:
        _check_rows(ranks, given)
    elif ranks.size == 1:
        return _core
    return Shards(ranks, cut, Rows(spread.sequence_parallel, spread.leaves_sum), agreement)


def _check_rows(ranks: Ranks, given: Arguments) -> None:
    hidden, target = given["hidden"], given["target"]
    if hidden.ndim < 2:
        expected = "shape [rows, ..., D] of this rank's rows with {sequence_parallel}"
        fail(ranks.op, "hidden", expected, list(hidden.shape))
    rows = ranks.size * hidden.shape[:-1].numel()
    shape = tuple(getattr(target, "shape", ()))
    if torch.Size(shape).numel() != rows:
        expected = f"{rows} ids, one per row of {{hidden}} on each of {ranks.size} ranks"
        fail(ranks.op, "target", expected, f"shape {list(shape)}")


def _cut(ranks: Ranks, given: Arguments, spread: Spread) -> Cut:
    """Which ids this rank has, in the argument that has them."""
    op, (rank, size) = ranks.op, (ranks.rank, ranks.size)
    name, unit = ("weight", "rows") if op == "linear_logp" else ("logits", "columns")
    count = given[name].shape[0 if name == "weight" else -1]
    vocab = spread.vocab_size
    if vocab is None:
        if spread.vocab_range is not None:
            fail(op, "vocab_size", "the number of ids with {vocab_range}", "None")
        if count == 0:
            fail(op, name, f"{unit} on each rank without {{vocab_size}}", "none")
        vocab = size * count
    elif isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 1:
        fail(op, "vocab_size", "None or an int from 1 up", text(vocab))
    if vocab > _MOST_IDS:
        got = f"{vocab} on {size} ranks"
        fail(op, "vocab_size" if spread.vocab_size else name, "fewer than 2^31 ids", got)
    segment = -(-vocab // _SEGMENTS)
    node = None
    if _SEGMENTS % size == 0:
        node = _piece(_SEGMENTS // size * segment, rank, vocab)
    if spread.vocab_range is not None:
        begin, end = _range_of(op, spread.vocab_range, vocab)
    elif spread.vocab_size is None:
        begin, end = rank * count, (rank + 1) * count
    else:
        begin, end = node or _piece(-(-vocab // size), rank, vocab)
    if count != end - begin:
        expected = f"{end - begin} {unit}, ids [{begin}, {end}) of {vocab} on rank {rank} of {size}"
        fail(op, name, expected, count)
    is_even = spread.vocab_size is None
    return Cut(begin, end, vocab, segment if (begin, end) == node else 0, is_even)


def _piece(length: int, rank: int, vocab: int) -> tuple[int, int]:
    """The ids of a rank, where each before it has `length`."""
    return min(rank * length, vocab), min((rank + 1) * length, vocab)


def _range_of(op: str, given: Any, vocab: int) -> tuple[int, int]:
    expected = f"(begin, end) with 0 <= begin <= end <= {vocab}"
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        fail(op, "vocab_range", expected, text(given))
    begin, end = given
    are_ints = all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    if not are_ints or not 0 <= begin <= end <= vocab:
        fail(op, "vocab_range", expected, text(given))
    return begin, end


def _spread(op: str, given: Arguments, spread: Spread) -> tuple[Arguments, Spread]:
    """The call on this rank's tensors, and what is said of how the vocabulary is spread."""
    return (given, spread) if spread.group is not None else _of_dtensors(op, given, spread)


def _of_dtensors(op: str, given: Arguments, spread: Spread) -> tuple[Arguments, Spread]:
    """The call on this rank's tensors, where DTensors say how the vocabulary is spread."""
    for option, none in spread._field_defaults.items():
        value = getattr(spread, option)
        if value is not none and value != none:
            fail(op, option, f"{none} without {{group}}", text(value))
    from torch.distributed.tensor import DTensor, Replicate, Shard

    name, first = ("weight", "hidden") if op == "linear_logp" else ("logits", "logits")
    matrix, rows = given[name], given[first]
    vocab_axis = 0 if name == "weight" else matrix.ndim - 1
    mesh = matrix.device_mesh
    axes = [axis for axis in range(mesh.ndim) if mesh.size(axis) > 1]
    if len(axes) != 1 or matrix.placements[axes[0]] != Shard(vocab_axis):
        _core.local_tensor(op, name, matrix)
    if getattr(rows, "device_mesh", None) != mesh:
        # Of FSDP such tensors come too, to ranks with rows of their own.
        try:
            _core.local_tensor(op, name, matrix)
        except Unsupported as error:
            fault: Any = error.fault
            ways = "hidden as a DTensor of its mesh, or weight.to_local() and group"
            got = f"{fault.got}; with tensor parallel pass {ways}"
            raise Unsupported(fault._replace(got=got)) from None
    axis = axes[0]
    size, rank, vocab = mesh.size(axis), mesh.get_local_rank(axis), matrix.shape[vocab_axis]
    found = {**given, name: matrix.to_local()}
    has_own_rows = False
    if first != name:
        placed = rows.placements[axis]
        has_own_rows = placed == Shard(0) and rows.ndim > 1
        if not has_own_rows and placed != Replicate():
            expected = "placement Replicate() or Shard(0), of rows, beside {weight} of Shard(0)"
            fail(op, first, expected, placed)
        if has_own_rows and rows.shape[0] % size:
            fail(op, first, f"a first axis of which {size} ranks have like parts", rows.shape[0])
        found[first] = rows.to_local()
    for other in ("bias", "accumulate_into"):
        value = given.get(other)
        if isinstance(value, DTensor):
            if (value.device_mesh, value.placements) != (mesh, matrix.placements):
                fail(op, other, f"placements {matrix.placements} (as {{weight}})", value.placements)
            found[other] = value.to_local()
    cut = _piece(-(-vocab // size), rank, vocab)  # as torch.chunk
    return found, Spread(mesh.get_group(axis), cut, vocab, has_own_rows)
