# SPDX-License-Identifier: Apache-2.0
"""The table of settings, and what is written by hand beside it: configure and docs/settings.md."""

import inspect
import re
from pathlib import Path

import rlk
from rlk import _core

TABLE = _core.settings_table()
BY_NAME = {row["name"]: row for row in TABLE if row["name"]}


def page_row(row: dict[str, str]) -> str:
    variable = f"`{row['variable']}`" if row["variable"] else ""
    argument = f"`{row['name']}=`" if row["name"] else ""
    return f"| {variable} | {argument} | {row['values']} | {row['default']} | {row['meaning']} |"


def test_the_page_has_the_table():
    page = (Path(__file__).parents[3] / "docs/settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert rows[0] == "| variable | `configure` | what it may be | default | meaning |"
    assert rows[2:] == [page_row(row) for row in TABLE]


def test_configure_takes_what_the_table_has():
    parameters = inspect.signature(rlk.jit.configure).parameters.values()
    assert {p.name: p.annotation for p in parameters} == {
        name: f"{row['type']} | None" for name, row in BY_NAME.items()
    }
    assert {(p.kind, p.default) for p in parameters} == {(inspect.Parameter.KEYWORD_ONLY, None)}


def test_configure_tells_of_each_setting_and_its_variable():
    (told,) = re.findall(r"Args:\n(.*?)\n\n", inspect.getdoc(rlk.jit.configure), re.DOTALL)
    parts = re.split(r"^    (\w+): ", told, flags=re.MULTILINE)[1:]
    variables = {
        name: re.findall(r"RLK_\w+", text)
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
    assert variables == {
        name: [row["variable"]] if row["variable"] else [] for name, row in BY_NAME.items()
    }


def test_what_is_in_force_is_what_configure_takes():
    assert set(rlk.jit.settings()) == set(BY_NAME)
