# SPDX-License-Identifier: Apache-2.0
"""make_stub.py MODULE STUB: writes the type stub of a compiled module from its docstrings.

pybind11 begins the docstring of a function with its signature.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# As checkers see them: an object may be any tensor, and numbers are passed as such.
TYPES = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "_core.": "",
    "object": "Any",
    "dict": "dict[str, Any]",
    "list": "list[Any]",
    "tuple": "tuple[Any, ...]",
}


def typed(signature: str) -> str:
    for theirs, ours in TYPES.items():
        end = r"(?![\w\[])" if theirs.isalpha() else ""
        signature = re.sub(rf"\b{re.escape(theirs)}{end}", ours, signature)
    return signature


def lines(name: str, value: object) -> Iterator[str]:
    if isinstance(value, type):
        yield f"class {name}:"
        parts = [line for each in vars(value).items() for line in lines(*each)]
        yield from [f"    {line}" for line in parts] or ["    ..."]
    elif isinstance(value, property):
        yield "@property"
        result = value.fget.__doc__.strip().rpartition(" -> ")[2]
        yield f"def {name}(self) -> {typed(result)}: ..."
    elif match := re.match(rf"{name}(\(.*\) -> .*)", getattr(value, "__doc__", None) or ""):
        yield f"def {name}{typed(match[1])}: ..."


def main(module_file: str, stub_file: str) -> None:
    spec = importlib.util.spec_from_file_location("_core", module_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [line for each in sorted(vars(module).items()) for line in lines(*each)]
    head = ["import collections.abc", "import typing", "from typing import Any", "__version__: str"]
    stub = Path(stub_file)
    stub.unlink(missing_ok=True)  # a link to a tracked file, in build folders of earlier versions
    stub.write_text("\n".join([*head, *found]) + "\n")


main(*sys.argv[1:])
