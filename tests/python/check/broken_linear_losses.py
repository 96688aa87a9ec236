# SPDX-License-Identifier: Apache-2.0
"""rlk's own losses from hidden states with one defect planted in how chunks of rows hang
together. Each is a context in which calls have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from rlk import _core
from rlk._ops import torch_linear_chunks as chunks

Chunk = dict[str, Any]  # what chunks share, and which one of them it is


@contextmanager
def changed(change: Callable[[Chunk], Chunk | None]) -> Iterator[None]:
    """What a backward knows of the chunks before it."""
    own = _core.linear_logp_backward

    def backward(*arguments: Any, chunk: Chunk | None = None, **options: Any) -> Any:
        return own(*arguments, chunk=None if chunk is None else change(chunk), **options)

    with mock.patch.object(_core, "linear_logp_backward", backward):
        yield


def zeroed(*names: str) -> Callable[[Chunk], Chunk]:
    """Memory that a later chunk does not find as the one before left it."""

    def change(chunk: Chunk) -> Chunk:
        for name in names:
            if name in chunk and not chunk["is_first"]:
                chunk[name].zero_()
        return chunk

    return change


def sums_dropped() -> Any:
    """Of all rows before the last chunk."""
    return changed(zeroed("weight_sums"))


def bias_sums_dropped() -> Any:
    return changed(zeroed("bias_sums"))


def carried_rows_lost() -> Any:
    """Those that one chunk leaves to the next."""
    return changed(zeroed("chunk_hidden", "chunk_state"))


def each_the_first() -> Any:
    return changed(lambda chunk: {**chunk, "is_first": True})


def derivatives_of_the_first() -> Any:
    """A token's derivative from the advantage and the mask of one as far into the first chunk."""
    own = chunks.Tokens.derivatives

    def derivatives(self: Any, first: int, scores: Any) -> Any:
        return own(self, 0, scores)

    return mock.patch.object(chunks.Tokens, "derivatives", derivatives)


def loss_of_the_last() -> Any:
    """Of the totals of all chunks."""
    own = chunks.Tokens.result

    def result(self: Any) -> Any:
        del self._totals[:-1]
        return own(self)

    return mock.patch.object(chunks.Tokens, "result", result)


def upstream_ignored() -> Any:
    """Gradients of the forward, which are those of an upstream gradient of 1, for another."""
    own = _core.linear_logp_backward

    def backward(*arguments: Any, unless_one: Any = None, **options: Any) -> Any:
        one = None if unless_one is None else unless_one.new_ones(unless_one.shape)
        return own(*arguments, unless_one=one, **options)

    return mock.patch.object(_core, "linear_logp_backward", backward)


BROKEN = (
    sums_dropped,
    bias_sums_dropped,
    carried_rows_lost,
    each_the_first,
    derivatives_of_the_first,
    loss_of_the_last,
    upstream_ignored,
)
