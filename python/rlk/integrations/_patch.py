# SPDX-License-Identifier: Apache-2.0
"""Replacing functions of another package: in one call, once, reversibly, and never past a change.

An integration lists what it replaces as `Seam`s of one `Patch`, and has `patch` and `unpatch` of
its own that call `Patch.on` and `Patch.off`. Nothing of the package is imported before `on`.

    PATCH = Patch("trl", since="1.16.0", before="1.17", seams=(
        Seam("trl.trainer.utils:selective_log_softmax", make_logp, "logits, index"),
    ))
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from rlk.errors import Fault, LoadError, Unsupported, check_flag

__all__ = ["Patch", "Seam"]

_lock = threading.RLock()
_ABSENT: Any = object()


class Seam(NamedTuple):
    """A function, method or class that is replaced.

    `path` is "package.module:Name" or "package.module:Class.method". `make` takes what stands there
    and gives what replaces it; None: the name is only checked. `parameters` are the names that its
    signature is known to have, "a, b, c", or several such texts for several versions; None: any.
    An `optional` seam may be absent. Modules that imported a function or class by name have it
    replaced too.
    """

    path: str
    make: Callable[[Any], Any] | None = None
    parameters: str | tuple[str, ...] | None = None
    optional: bool = False


class _Change(NamedTuple):
    owner: Any
    name: str
    old: Any  # _ABSENT: it was inherited
    new: Any


class Patch:
    """What `patch()` and `unpatch()` of one integration do.

    Args:
        package: the package that is imported, which messages name.
        since, before: the versions this was tried with: from since on, and below before.
        seams: what is replaced. All are checked before the first is touched.
        distribution: whose version counts, where it is not named as the package is.
        extra: pairs of functions: called by `on` after the replacements, by `off` before they are
            undone, as for entries of a registry.
    """

    def __init__(
        self,
        package: str,
        *,
        since: str,
        before: str,
        seams: tuple[Seam, ...] = (),
        distribution: str | None = None,
        extra: tuple[tuple[Callable[[], None], Callable[[], None]], ...] = (),
    ) -> None:
        self.package, self.since, self.before, self.seams = package, since, before, seams
        self._distribution = distribution or package
        self._extra = extra
        self._changes: list[_Change] = []
        self._is_on = False

    @property
    def is_on(self) -> bool:
        return self._is_on

    def on(self, *, allow_untried: bool = False) -> None:
        """Replaces what the seams name; nothing where that is done already.

        Raises:
            rlk.LoadError: the package, or a module of a seam, cannot be imported.
            rlk.Unsupported: the version is not one of those that were tried (allow_untried goes
                on), or a name is absent or has other parameters (nothing goes on then).
        """
        allow_untried = check_flag(self.package, "allow_untried", allow_untried)
        with _lock:
            if self._is_on:
                return
            _import(self.package, self.package)
            if not allow_untried:
                self.check_version()
            found = [place for seam in self.seams if (place := self._check(seam)) is not None]
            done = 0
            try:
                for place in found:
                    self._replace(*place)
                for enable, _ in self._extra:
                    enable()
                    done += 1
            except BaseException:
                self._undo(done)
                raise
            self._is_on = True

    def off(self) -> None:
        """Puts back what `on` replaced, also where it was imported from there since.

        Raises:
            rlk.Unsupported: something has replaced a name again, which stays as it is; everything
                else is put back.
        """
        with _lock:
            if not self._is_on:
                return
            self._is_on = False
            lost = self._undo(len(self._extra))
            if lost:
                self._fail(lost[0], "what patch() had put there", "what was put there since")

    def check_version(self) -> None:
        """Raises rlk.Unsupported for a version outside of the range that was tried."""
        version = self.version()
        if version is None or not _key(self.since) <= _key(version) < _key(self.before):
            wanted = f"{self.since} or later, below {self.before}"
            hint = "; patch(allow_untried=True) goes on with another"
            self._fail("version", wanted + hint, version or "none that the package tells")

    def version(self) -> str | None:
        """The installed version; None where none is told."""
        try:
            return importlib.metadata.version(self._distribution)
        except importlib.metadata.PackageNotFoundError:
            found = getattr(sys.modules.get(self.package), "__version__", None)
            return found if isinstance(found, str) else None

    def _fail(self, argument: str, expected: str, got: str) -> None:
        raise Unsupported(Fault(self.package, argument, expected, got))

    def _check(self, seam: Seam) -> tuple[Seam, Any, str, Any] | None:
        """(seam, owner, name, what stands there); None where there is nothing to replace."""
        module_name, _, names = seam.path.partition(":")
        *outer, name = names.split(".")
        try:
            owner: Any = _import(module_name, self.package)
        except LoadError as error:
            if seam.optional and isinstance(error.__cause__, ModuleNotFoundError):
                return None
            raise
        for part in outer:
            owner = getattr(owner, part, _ABSENT)
        found = getattr(owner, name, _ABSENT)
        if found is _ABSENT:
            if not seam.optional:
                self._fail(seam.path, "what this replaces or calls", "nothing of that name")
            return None
        if seam.parameters is not None:
            wanted = (seam.parameters,) if isinstance(seam.parameters, str) else seam.parameters
            got = ", ".join(inspect.signature(found).parameters)
            if got not in wanted:
                self._fail(seam.path, "parameters " + " or ".join(map(repr, wanted)), repr(got))
        return None if seam.make is None else (seam, owner, name, found)

    def _replace(self, seam: Seam, owner: Any, name: str, found: Any) -> None:
        assert seam.make is not None
        new = seam.make(found)
        old = vars(owner).get(name, _ABSENT)
        wrap = type(old) if isinstance(old, staticmethod | classmethod) else None
        self._set(owner, name, old, new if wrap is None else wrap(new))
        if inspect.ismodule(owner):
            for module, other in _references(found):
                self._set(module, other, found, new)

    def _set(self, owner: Any, name: str, old: Any, new: Any) -> None:
        setattr(owner, name, new)
        self._changes.append(_Change(owner, name, old, new))

    def _undo(self, num_extra: int) -> list[str]:
        """Names that could not be put back. Of errors of `extra` the first is raised at the end."""
        errors = []
        for _, disable in reversed(self._extra[:num_extra]):
            try:
                disable()
            except Exception as error:
                errors.append(error)
        lost = []
        for owner, name, old, new in reversed(self._changes):
            if vars(owner).get(name, _ABSENT) is not new:
                lost.append(f"{getattr(owner, '__name__', owner)}.{name}")
            elif old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
        for owner, _, old, new in self._changes:
            if inspect.ismodule(owner):
                for module, other in _references(new):  # imported from there since
                    setattr(module, other, old)
        self._changes.clear()
        if errors:
            raise errors[0]
        return lost


def _import(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        expected = "a module that can be imported"
        raise LoadError(
            Fault(package, name, expected, f"{type(error).__name__}: {error}")
        ) from error


def _references(value: Any) -> list[tuple[Any, str]]:
    """Where modules but rlk's own hold this very object under a name."""
    modules = {  # by identity: one may have two names, as __main__ and __mp_main__
        id(module): module
        for name, module in list(sys.modules.items())
        if inspect.ismodule(module) and name != "rlk" and not name.startswith("rlk.")
    }
    return [
        (module, key)
        for module in modules.values()
        for key, held in list(vars(module).items())
        if held is value
    ]


def _key(version: str) -> tuple[int, ...]:
    """Its leading numbers: "1.16.0.dev0" counts as 1.16.0; zeros at the end do not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
