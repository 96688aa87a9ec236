# SPDX-License-Identifier: Apache-2.0
"""Systems whose loss is imported without the rest: what they import besides becomes a stand-in."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class _Kind(type):
    """Classes with any attribute, that may be called, subscripted and used as decorators."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _kind(name)
        setattr(cls, name, made)
        return made

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def _kind(name: str) -> Any:
    return _Kind(
        name,
        (),
        {
            "__init__": lambda self, *args, **options: None,
            "__call__": lambda self, *args, **o: args[0] if args and callable(args[0]) else self,
            "__class_getitem__": classmethod(lambda cls, item: cls),
        },
    )


class _StandIn(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "0"
        if name.startswith("__"):
            raise AttributeError(name)
        made = _kind(name)
        setattr(self, name, made)
        return made


class _Finder:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if any(name == n or name.startswith(f"{n}.") for n in self._names):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def load(name: str, absent: str, folder: str | None = None, inner: tuple[str, ...] = ("",)) -> Any:
    """The module `name`; `absent`: names of what is left out.

    `folder` is the environment's name of the source's folder, for what PyPI does not have; without
    one named, the tests are skipped. `inner`: where its packages are in that folder.
    """
    if folder is not None:
        if not os.environ.get(folder):
            pytest.skip(f"{folder} names no folder with its source", allow_module_level=True)
        sys.path[:0] = [os.path.join(os.environ[folder], part) for part in inner]
    sys.meta_path.insert(0, _Finder(tuple(absent.split())))  # type: ignore[arg-type]
    return importlib.import_module(name)


def without_init(beside: Any, *packages: str) -> None:
    """Makes packages of a source without running their ``__init__``, which import the rest of it.

    `beside`: a module of the same source that is imported already.
    """
    depth = beside.__name__.count(".")
    root = Path(beside.__file__).parents[depth]
    for name in packages:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")))]
