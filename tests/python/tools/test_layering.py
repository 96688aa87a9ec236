# SPDX-License-Identifier: Apache-2.0
"""Includes go one way: python, cli -> jit -> {cache, runtime}. The package's modules import each
other without a circle."""

import ast
import graphlib
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


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path, name: str, modules: set[str]) -> set[str]:
    """Modules that this one imports anywhere; an autograd module counts where it is no other's."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [n if n in modules else base for n in names]
        found |= {n for n in names if n in modules}
    # An op imports its autograd, which is made of the op's parts, at the first call that needs it.
    return {n for n in found if not n.rpartition(".")[2].startswith("torch_")} - {name}


def circle(root: Path) -> list[str]:
    paths = {module_name(path, root): path for path in sorted((root / "rlk").rglob("*.py"))}
    modules = {*paths, "rlk._core"}  # compiled
    graph = {name: imports_of(path, name, modules) for name, path in paths.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_modules_import_without_a_circle() -> None:
    assert circle(ROOT / "python") == []


@pytest.mark.parametrize(
    "line", ["from rlk.b import x", "from .b import x", "from . import b", "def f(): import rlk.b"]
)
def test_a_circle_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "rlk").mkdir()
    for name, text in {"__init__": "", "a": line, "b": "from rlk import a"}.items():
        (tmp_path / "rlk" / f"{name}.py").write_text(text)
    assert set(circle(tmp_path)) == {"rlk.a", "rlk.b"}
