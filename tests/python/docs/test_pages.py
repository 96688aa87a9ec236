# SPDX-License-Identifier: Apache-2.0
"""The pages as a whole: links and anchors lead somewhere, the menu has each page, tables are those
of benchmarks/results, and Markdown reads the same in the site as on a forge."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def without_code(text: str) -> str:
    """What is not in a fenced block; lines keep their numbers."""
    fenced = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
    return fenced.sub(lambda found: "\n" * found[0].count("\n"), text)


def without_code_spans(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "``", text)


def anchors(page: Path) -> set[str]:
    """As forges make them: in lower case, punctuation left out, each space a hyphen."""
    found: set[str] = set()
    for heading in HEADING.findall(without_code(page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{base}-{number}"
        found.add(anchor)
    return found


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead to no file or to no heading of theirs."""
    bad = []
    for target in LINK.findall(without_code_spans(without_code(text))):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        goal = (page.parent / name).resolve() if name else page
        inside = goal.is_relative_to(ROOT) and goal.is_file()
        if not inside or (anchor and anchor not in anchors(goal)):
            bad.append(target)
    return bad


@by_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_seen() -> None:
    page = ROOT / "docs/faq.md"
    text = "[a](logp.md#bits) [b](none.md) [c](logp.md#none) [d](#none) [e](../../x) `[f](none)`\n"
    fenced = "```\n[g](none.md)\n```\n"
    assert broken(page, text + fenced) == ["none.md", "logp.md#none", "#none", "../../x"]


@by_page
def test_every_run_that_a_page_names_is_kept(page: Path) -> None:
    words = re.findall(r"[\w/.]*?(\w+_(?:h100|h200|cpu)\.(?:json|txt))", page.read_text())
    kept = {path.name for path in (ROOT / "benchmarks/results").iterdir()}
    assert set(words) <= kept


def test_the_menu_of_the_site_has_every_page() -> None:
    menu = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)["nav"]

    def files(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        children = entry.values() if isinstance(entry, dict) else entry
        return [file for child in children for file in files(child)]

    listed = [file for file in files(menu) if not file.startswith("reference/")]
    assert sorted(listed) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_the_readme_has_every_page() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in PAGES if page.parent.name == "docs"} <= linked


def misread(text: str) -> list[str]:
    """Lines of lists and tables that the site's Markdown would take for something else.

    It wants an empty line before a list or a table, and 4 spaces before what is inside of an item.
    """
    item = re.compile(r" *(?:[-*]|\d+\.) ")
    bad = []
    for block in re.split(r"\n\n+", without_code(text)):
        lines = [line for line in block.splitlines() if line.strip()]
        for line in lines:
            is_table = line.lstrip().startswith("|")
            if not (is_table or item.match(line)):
                continue
            begins = lines[0].lstrip().startswith("|") if is_table else item.match(lines[0])
            if not begins or len(line) - len(line.lstrip()) not in (0, 4):
                bad.append(line)
    return bad


@by_page
def test_lists_and_tables_read_the_same_everywhere(page: Path) -> None:
    assert misread(page.read_text(encoding="utf-8")) == []


def test_what_is_misread_is_seen() -> None:
    good = "- a\n  b\n- c\n\n1. d\n\n    | e |\n    |---|\n"
    assert misread(good) == []
    assert misread("text\n- a\n") == ["- a"]
    assert misread("text\n| a |\n") == ["| a |"]
    assert misread("1. a\n\n   | b |\n") == ["   | b |"]
    assert misread("1. a\n\n    b\n2. c\n") == ["2. c"]


@pytest.fixture(scope="module")
def kept():
    """The modules of benchmarks/ that read the kept runs."""
    names = ("kept", "tables", "sentences")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def tables(kept):
    return kept.tables


@pytest.mark.parametrize("page", ["README.md", *sorted(p.name for p in PAGES if "docs" in p.parts)])
def test_the_tables_are_those_of_the_kept_runs(page: str, tables) -> None:
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    text = path.read_text(encoding="utf-8")
    assert tables.written(text) == text, "run: python benchmarks/tables.py"
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->")


def test_every_table_is_on_one_page(tables) -> None:
    texts = [path.read_text(encoding="utf-8") for path in tables.PAGES]
    used = [name for text in texts for _, name, _ in tables.PLACE.findall(text)]
    assert sorted(used) == sorted(tables.TABLES)


@pytest.mark.parametrize("page", ["README.md", "docs/linear_logp.md"])
def test_the_sentences_are_those_of_the_kept_runs(page: str, kept) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [words for words in kept.sentences.WORDS[page]() if words not in text] == []


def by_hand(text: str) -> list[str]:
    """Runs that the paragraph right above a table names which no function of tables.py has made."""
    blocks = re.split(r"\n\n+", without_code(text))
    return [
        name
        for above, block in pairwise(blocks)
        if block.startswith("|")
        for name in re.findall(r"(\w+_(?:h100|h200|cpu))\.json", above)
    ]


@by_page
def test_no_table_of_a_kept_run_is_written_by_hand(page: Path) -> None:
    # That of ppo_loss has figures of several of its run's parts in one cell.
    assert {n for n in by_hand(page.read_text()) if not n.startswith("ppo_loss_")} == set()


def test_a_table_by_hand_is_seen() -> None:
    table = "| a |\n|---|\n"
    assert by_hand(f"Of `logp_h100.json`:\n\n{table}") == ["logp_h100"]
    made = f"Of `logp_h100.json`:\n\n<!-- table: x -->\n\n{table}\n<!-- end of table -->\n"
    assert by_hand(made) == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("linear_logp_h200", "kept_exponentials"),
        ("linear_logp_h200", "readme"),
        ("tensor_parallel_h200", "tensor_parallel"),
        ("linear_logp_h200", "forward_readme"),
    ],
)
def test_another_run_makes_another_table(file, name, kept, monkeypatch, tmp_path) -> None:
    made = kept.tables.TABLES[name]
    before = made()
    run = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())

    def slower(value: object) -> object:
        if isinstance(value, list):
            return [slower(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            k: 1.5 * v if k in ("ms", "ratio") and isinstance(v, float) else slower(v)
            for k, v in value.items()
        }

    for other in (ROOT / "benchmarks/results").glob("*.json"):
        (tmp_path / other.name).symlink_to(other)
    (tmp_path / f"{file}.json").unlink()
    (tmp_path / f"{file}.json").write_text(json.dumps(slower(run)))
    monkeypatch.setattr(kept.kept, "RESULTS", tmp_path)
    after = made()
    assert len(after.splitlines()) == len(before.splitlines())
    assert after != before


def parameters_without_a_name(text: str) -> list[str]:
    """Of a docstring's Args: the first lines that have no colon, which the site would leave out."""
    body = inspect.cleandoc(text).partition("\nArgs:\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (?! )(?!.*:).*$", body, re.MULTILINE)


@pytest.mark.parametrize(
    "source", sorted((ROOT / "python/rlk").rglob("*.py")), ids=lambda path: path.name
)
def test_names_of_parameters_stand_on_one_line(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert parameters_without_a_name(ast.get_docstring(node) or "") == [], node.name


def test_names_of_parameters_on_two_lines_are_seen() -> None:
    text = (
        "A.\n\nArgs:\n    a: one\n        more.\n    b, c,\n        d: three.\n\nReturns:\n    e\n"
    )
    assert parameters_without_a_name(text) == ["    b, c,"]
