# SPDX-License-Identifier: Apache-2.0
"""The errors that rlk raises. Messages read ``op: argument: expected ..., got ...``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

import numpy as np

from rlk import _core


class Fault(NamedTuple):
    """What is wrong with an argument. Reads ``op: argument: expected ..., got ...``.

    In `expected`, another argument of the op is named in braces.
    """

    op: str
    argument: str
    expected: str
    got: str = ""

    def __str__(self) -> str:
        return _core.fault_text(*self)

    def renamed(self, op: str, names: Mapping[str, str]) -> Fault:
        """As a fault of `op`, whose arguments have these names."""
        parts = [part.partition("}") for part in self.expected.split("{")]
        first, *others = parts
        expected = first[0] + "".join(f"{{{names.get(n, n)}}}{rest}" for n, _, rest in others)
        return Fault(op, names.get(self.argument, self.argument), expected, self.got)


class Error(Exception):
    """Base of all errors of rlk. It has no `__init__`, which torch.compile could not follow: its
    own error, of a call that must not break the graph, then has the words of this one."""

    @property
    def fault(self) -> Fault | None:
        """What is wrong, as data; None where the error is of no argument."""
        content = self.args[0] if self.args else None
        return content if isinstance(content, Fault) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class InvalidArgument(Error, ValueError):
    """A tensor or value that was passed is wrong; the message names the argument."""


class Unsupported(Error, NotImplementedError):
    """Nothing here can run this call: device, target or dtype; the message says what would help."""


class CompileError(Error, RuntimeError):
    """The kernel compiler refused its source."""


class DriverError(Error, RuntimeError):
    """A call of the driver, or a collective of torch's over ranks, failed."""


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
    fail(op, "needs", f"a tuple of {expected}", text(needs))


def check_flag(op: str, argument: str, value: object) -> bool:
    """`value` as a bool, where it is Python's or NumPy's. Raises InvalidArgument."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    fail(op, argument, "True or False", text(value))


def shape_of(tensor: Any) -> tuple[int, ...] | None:
    """None for what tells none: the core says what is wrong with it."""
    try:
        return tuple(tensor.shape)
    except (AttributeError, TypeError, RuntimeError):  # the last: torch's nested tensors
        return None


def text(value: object) -> str:
    """A value in a message, of an array what it is: its numbers are many and may be on a device."""
    if shape := shape_of(value):
        return f"{type(value).__name__} {getattr(value, 'dtype', '')} {list(shape)}"
    try:
        return repr(value)
    except ValueError:
        return "an int of too many digits"  # thousands have no decimal form


def fail(op: str, argument: str, expected: str, got: Any) -> NoReturn:
    """Raises InvalidArgument."""
    raise InvalidArgument(Fault(op, argument, expected, str(got)))


@contextmanager
def renamed(op: str, names: Mapping[str, str], on_cuda: bool = False) -> Iterator[None]:
    """Errors of an op that `op` is made of, as those of `op`: its arguments by the names here.

    On CUDA a target out of range is told late: it may be of any call, so it is told as it is.
    """
    try:
        yield
    except (InvalidArgument, Unsupported) as error:
        fault = error.fault
        is_late = on_cuda and fault is not None and fault.argument == "target"
        if fault is None or (is_late and fault.expected.startswith("ids in ")):
            raise
        raise type(error)(fault.renamed(op, names)) from None
