# SPDX-License-Identifier: Apache-2.0
"""Includes go one way: python, cli -> jit -> {cache, runtime}."""

import re
from pathlib import Path

import pytest
from paths import ROOT

# Folder -> prefixes of our own headers that it may include, besides its own.
ALLOWED = {
    "runtime": (),
    "cache": ("runtime/error.hpp", "runtime/log.hpp"),
    "jit": ("cache/", "runtime/"),
    "templates": ("jit/op.hpp", "jit/specialization.hpp", "runtime/"),
    "cli": ("jit/", "cache/", "runtime/", "templates/"),
    "python": ("jit/", "cache/", "runtime/", "templates/"),
}
# Header of another project -> the only folder that may include it.
OUTSIDE = {"llvm/": "jit/llvm", "llvm-c/": "jit/llvm", "pybind11/": "python/bind"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)', re.MULTILINE)
SUFFIXES = {".cpp", ".hpp", ".h", ".cuh"}


def sources(root: Path) -> list[Path]:
    return [
        path
        for folder in ALLOWED
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in SUFFIXES
    ]


def wrong_includes(root: Path) -> list[str]:
    wrong = []
    for path in sources(root):
        here = path.relative_to(root)
        folder = here.parts[0]
        for quote, header in INCLUDE.findall(path.read_text()):
            if quote == '"':
                beside = (path.parent / header).resolve()
                name = str(beside.relative_to(root.resolve())) if beside.exists() else header
                known = name.split("/")[0] in ALLOWED
                if known and not name.startswith((f"{folder}/", *ALLOWED[folder])):
                    wrong.append(f"{here} includes {name}")
            for prefix, place in OUTSIDE.items():
                if header.startswith(prefix) and not str(here).startswith(f"{place}/"):
                    wrong.append(f"{here} includes {header}")
    return wrong


def test_includes_go_one_way() -> None:
    assert len(sources(ROOT)) > 20
    assert wrong_includes(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("runtime/a.cpp", '#include "cache/key.hpp"'),
        ("cache/a.cpp", '#include "runtime/target.hpp"'),
        ("cache/a.cpp", '#include "../jit/op.hpp"'),
        ("jit/a.cpp", '#include "templates/registry.hpp"'),
        ("jit/a.cpp", '#  include "python/bind/dlpack.hpp"'),
        ("jit/a.cpp", "#include <llvm/IR/Module.h>"),
        ("jit/a.cpp", "#include <pybind11/pybind11.h>"),
    ],
)
def test_a_wrong_include_is_found(tmp_path: Path, file: str, line: str) -> None:
    for path in (tmp_path / file, tmp_path / "jit/op.hpp"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (tmp_path / file).write_text(f"// head\n{line}\n")
    assert len(wrong_includes(tmp_path)) == 1
