# SPDX-License-Identifier: Apache-2.0
"""The errors that rlk raises. Messages read ``op: argument: expected ..., got ...``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any


class Error(Exception):
    """Base of all errors of rlk."""


class InvalidArgument(Error, ValueError):
    """A tensor or value that was passed is wrong; the message names the argument."""


class Unsupported(Error, NotImplementedError):
    """Nothing here can run this call: device, target or dtype; the message says what would help."""


class CompileError(Error, RuntimeError):
    """The kernel compiler refused its source."""


class DriverError(Error, RuntimeError):
    """A driver call failed."""


class LoadError(Error, ImportError):
    """A library, or a symbol in one, is missing."""


def check_needs(op: str, needs: object, names: tuple[str, ...]) -> tuple[str, ...]:
    """`needs` as a tuple, where it is an iterable of some of `names`. Raises InvalidArgument."""
    found: list[Any] = [None]
    if not isinstance(needs, str):
        with suppress(TypeError, RuntimeError):  # no iterable, or a tensor that refuses to be one
            found = list(needs)  # type: ignore[call-overload]
    if all(isinstance(name, str) and name in names for name in found):
        return tuple(found)
    expected = ", ".join(repr(name) for name in names)
    raise InvalidArgument(f"{op}: needs: expected a tuple of {expected}, got {text(needs)}")


def shape_of(tensor: Any) -> tuple[int, ...] | None:
    """None for what tells none: the core says what is wrong with it."""
    try:
        return tuple(tensor.shape)
    except (AttributeError, TypeError, RuntimeError):  # the last: torch's nested tensors
        return None


def text(value: object) -> str:
    """A value in a message; an int of thousands of digits has no decimal form."""
    try:
        return repr(value)
    except ValueError:
        return "an int of too many digits"


@contextmanager
def renamed(op: str, names: Mapping[str, str], on_cuda: bool = False) -> Iterator[None]:
    """Errors of an op that `op` is made of, as those of `op`: its arguments by the names here.

    On CUDA a target out of range is told late: it may be of any call, so it is told as it is.
    """
    try:
        yield
    except (InvalidArgument, Unsupported, TypeError) as error:
        found = re.fullmatch(r"\w+: (\w+): (.*)", str(error), re.DOTALL)
        if found is None:
            raise
        argument, message = found.groups()
        if on_cuda and argument == "target" and message.startswith("expected ids in "):
            raise
        named = r"(?<=that of )\w+|(?<=with )\w+"
        message = re.sub(named, lambda m: names.get(m[0], m[0]), message)
        raise type(error)(f"{op}: {names.get(argument, argument)}: {message}") from None
