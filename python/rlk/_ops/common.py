# SPDX-License-Identifier: Apache-2.0
"""What the public functions of several ops use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rlk import _core

Tensor = Any  # a torch tensor, NumPy array or DLPack producer
Arguments = dict[str, Any]  # of a call, by name

#: The kind and the default of each parameter, by op and name.
PARAMETERS: Mapping[str, Mapping[str, tuple[str, Any]]] = {
    op: {name: (kind, default) for name, kind, default in _core.parameters(op)}
    for op in _core.ops()
}


def _is_compiling() -> bool:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and compiler.is_dynamo_compiling()


#: Whether torch.compile is following this call, which must then reach an operator before it calls
#: what is not Python. torch's own function where torch is there already: it takes less time.
is_compiling: Callable[[], bool] = getattr(
    getattr(_core.ready_torch(), "compiler", None), "is_dynamo_compiling", _is_compiling
)


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor of which ranks have parts."""
    if type(tensor).__name__ != "DTensor":  # a call without one need not import its module
        return False
    mesh, placements = tensor.device_mesh, tensor.placements
    return any(mesh.size(axis) > 1 and kind.is_shard() for axis, kind in enumerate(placements))


#: Options of how ranks share a vocabulary, in the order of torch_parallel's.
SPREAD = ("group", "vocab_range", "vocab_size", "sequence_parallel")


def over_ranks(compiles: bool) -> Any:
    """The module of calls whose vocabulary ranks share; `compiles`: torch.compile follows this one.
    It may follow parts of a call that it has given up, too."""
    if compiles or "torch._dynamo" in sys.modules:
        from rlk._ops import torch_uncompiled

        return torch_uncompiled
    from rlk._ops import torch_parallel

    return torch_parallel


def arguments_of(op: str, given: Arguments, names: Mapping[str, str]) -> Arguments:
    """The arguments of `op`, which a function that is made of it is given by these names."""
    own = {name: names.get(name, name) for name in (*PARAMETERS[op], "stream")}
    return {name: given[by] for name, by in own.items() if by in given}


def no_option(op: str, name: str, here: str | None = None) -> TypeError:
    """The error for an option that does not exist; `here`: what it is called here, if anything."""
    hint = f"see help(rlk.jit.{op})" if here is None else f"here it is {here}"
    return TypeError(f"{op}: {name}: expected an option that exists; {hint}")


def defaults(function: Any) -> Arguments:
    """Of a function's keywords."""
    found: Arguments = function.__kwdefaults__
    return found


def with_defaults(op: str, function: Any, given: Arguments, options: Arguments) -> Arguments:
    """What `function` would be given: its keywords' defaults, then `options`, which are some of
    these, then what is in `given`."""
    for name in options:
        if name not in defaults(function):
            raise no_option(op, name)
    return {**defaults(function), **options, **given}


class LogitStats(NamedTuple):
    """Statistics of each row's logits z, those that the softmax is taken of, ``[...]`` each; no
    gradient flows through them. Inactive rows have 0, and argmax -1."""

    max_logit: Tensor  #: float32, max z
    argmax: Tensor  #: int64, the lowest column of those whose z is the maximum; -1: none
    mean_logit: Tensor  #: float32, the mean of z over all columns
    sum_p2: Tensor  #: float32, sum p^2 over all columns, at least 1 / V


class LogpResult(NamedTuple):
    """What `linear_logp` and `logp` return where more than the log-prob is asked for, float32
    ``[...]`` each; None where not asked for."""

    log_prob: Tensor  #: log p of the target
    entropy: Tensor | None  #: -sum p log p over the vocabulary, in nats
    lse: Tensor | None  #: log(sum exp z), of the logits that the softmax is taken of


class LogpStatsResult(NamedTuple):
    """A `LogpResult` of a call with return_stats: its three, then the statistics."""

    log_prob: Tensor
    entropy: Tensor | None
    lse: Tensor | None
    stats: LogitStats  #: of the same logits


def logp_result(arguments: Arguments, found: Any) -> Any:
    """What a call returns, of what the core found: (log_prob, entropy, lse, ...), the statistics
    last where they are asked for; or the log-prob alone."""
    if not isinstance(found, tuple):
        return found
    log_prob, entropy, lse = found[:3]
    if arguments["return_stats"]:
        return LogpStatsResult(log_prob, entropy, lse, LogitStats(*found[-1]))
    asked = arguments["return_entropy"] or arguments["return_lse"]
    return LogpResult(log_prob, entropy, lse) if asked else log_prob


class Explanation(NamedTuple):
    """What a call would run, and why."""

    kernel: str  #: name of the kernel, as in ``rlk-jit list``
    key: str  #: its cache key, 32 hex digits
    variant: str  #: "specialized" or "generic"
    source: str  #: "loaded", "cache", "compile", or "none" where nothing can run
    reason: str  #: in words
    ranks: str | None = None  #: where ranks share the call: this one's ids, and what is exchanged

    def __str__(self) -> str:
        return (
            f"{self.kernel}\n  {self.variant}, source: {self.source} ({self.reason})\n"
            f"  key {self.key}"
        ) + ("" if self.ranks is None else f"\n  {self.ranks}")
