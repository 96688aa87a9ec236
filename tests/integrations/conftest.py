# SPDX-License-Identifier: Apache-2.0
"""Tests with the real packages, which `./dev integrations` installs: not part of `./dev test`."""

import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

import pytest

_cache = tempfile.TemporaryDirectory(prefix="rlk-tests-")
os.environ["RLK_CACHE_DIR"] = _cache.name
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"
sys.path.insert(0, str(Path(__file__).parent))


def version(package):
    """The package's name with its version; a source in a folder is named with its commit."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def pytest_terminal_summary(terminalreporter):
    """What was tried with which version: the rows of the table in docs/integrations.md."""
    tried = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "tried":
                tried.setdefault(value, 0)
                tried[value] += 1
    if not tried:
        return
    terminalreporter.section("tried")
    terminalreporter.write_line("| what | with | tests |")
    terminalreporter.write_line("|---|---|---|")
    for (what, packages), number in sorted(tried.items()):
        versions = ", ".join(map(version, packages))
        terminalreporter.write_line(f"| {what} | {versions} | {number} |")


@pytest.fixture(autouse=True)
def note_what_is_tried(request, record_property):
    """Of a test with the marker `tried(what, *packages)`, a package being one that is installed, or
    the name and commit of a source."""
    marker = request.node.get_closest_marker("tried")
    if marker is not None:
        record_property("tried", (marker.args[0], marker.args[1:]))
