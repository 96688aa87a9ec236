# SPDX-License-Identifier: Apache-2.0
"""What a public bug is made of: inputs that show it, and where it was reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .case import Case, Inputs
from .stored import Stored, of

BOTH = ("forward", "gradient")


@dataclass(frozen=True)
class Known:
    """A bug that somebody reported, as inputs that show it.

    `what` went wrong there; `threads` are issues and pull requests as owner/name#number, or a file
    as owner/name:path where the code was read. `case` are the case's lead, sizes, kind, layout and
    options; `edit` sets what no kind draws. `checks` are the checker's, by the names of a report.
    """

    name: str
    op: str
    what: str
    threads: tuple[str, ...]
    case: Mapping[str, Any]
    dtype: str = "float32"
    checks: tuple[str, ...] = BOTH
    edit: Callable[[Inputs], Inputs] | None = field(default=None, repr=False)

    def made(self, seed: int) -> Case:
        """The case, whose line says which bug it is."""
        options = {**self.case.get("options", {}), "bug": self.name}
        return Case(self.op, self.dtype, seed=seed, **{**self.case, "options": options})

    def links(self) -> list[str]:
        """Where to read about it."""
        return [link(thread) for thread in self.threads]


def link(thread: str) -> str:
    """owner/name#number as the address of the issue, or of the pull request that has the number."""
    place, mark, rest = thread.partition("#")
    if mark:
        return f"https://github.com/{place}/issues/{rest}"
    place, _, path = thread.partition(":")
    return f"https://github.com/{place}/blob/HEAD/{path}"


def replaced(**values: Any) -> Callable[[Inputs], Inputs]:
    """An edit that gives arguments other values: numbers, or arrays of the argument's shape."""

    def edit(inputs: Inputs) -> Inputs:
        changed = {}
        for name, value in values.items():
            old = inputs[name]
            if isinstance(old, Stored):
                raw = old.values()
                raw[...] = value(raw) if callable(value) else value
                changed[name] = of(raw, old.dtype)
            else:
                changed[name] = value
        return inputs.but(**changed)

    return edit
