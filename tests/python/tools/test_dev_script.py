# SPDX-License-Identifier: Apache-2.0
"""./dev says in one line what is wrong, on a copy of the script with few tools on PATH."""

import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

DEV = ROOT / "dev"
TOOLS = ("bash", "cat", "cksum", "dirname", "env", "flock", "mkdir", "readlink")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a space in its name that holds ./dev and, in bin/, a few tools."""
    folder = tmp_path / "a tree"
    (folder / "bin").mkdir(parents=True)
    shutil.copy2(DEV, folder / "dev")
    lend(folder, *TOOLS)
    return folder


def lend(tree: Path, *tools: str) -> None:
    """Put tools of this machine into bin/, as scripts: a link could be written through."""
    for tool in tools:
        found = shutil.which(tool)
        if found:
            stub(tree, tool, f'exec {found} "$@"')


def run(tree: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(tree / "dev"), *arguments],
        env={"PATH": str(tree / "bin"), "HOME": str(tree), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd="/",
    )


def stub(tree: Path, name: str, body: str) -> None:
    path = tree / "bin" / name
    path.unlink(missing_ok=True)  # else a link to the real tool would be written through
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def test_help_lists_the_commands(tree: Path) -> None:
    done = run(tree, "help")
    assert done.returncode == 0
    for command in (
        "demo",
        "test",
        "exec",
        "torch",
        "integrations",
        "bench",
        "docs",
        "format",
        "lint",
        "asan",
        "wheel",
        "release",
        "gpu-test",
    ):
        assert f"\n  {command}" in done.stdout


def test_an_unknown_command_is_named(tree: Path) -> None:
    done = run(tree, "tset")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "dev: unknown command: tset"


def test_an_unknown_set_of_integrations_is_named_before_anything_is_built(tree: Path) -> None:
    done = run(tree, "integrations", "--help")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("dev: integrations: no set --help; there are: hf trl verl ")


def test_a_release_is_of_a_commit(tree: Path) -> None:
    stub(tree, "git", "echo ' M README.md'")
    assert run(tree, "release").stderr.splitlines() == [
        "dev: release: expected a commit, got a tree with changes; git status lists them"
    ]
    stub(tree, "git", "exit 128")
    done = run(tree, "release")
    assert done.returncode == 1
    assert done.stderr == "dev: release: expected a clone of the repository\n"


def test_without_apt_the_first_missing_tool_is_named(tree: Path) -> None:
    done = run(tree, "demo")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("dev: no apt-get here and no g++: install ")


def test_a_wrong_interpreter_is_refused(tree: Path) -> None:
    stub(tree, "python-old", "exit 1")
    done = run(tree, "demo", RLK_PYTHON="python-old")
    assert done.returncode == 1
    assert "RLK_PYTHON=python-old: expected CPython 3.11 or later" in done.stderr


def test_a_failed_install_shows_the_log_and_one_line(tree: Path) -> None:
    lend(tree, "grep", "sed", "tail", "sleep", "wc")
    stub(tree, "dpkg-query", "exit 1")
    stub(tree, "apt-get", "echo 'E: no such archive'; exit 100")
    stub(tree, "sudo", 'while [[ $1 == -* ]]; do shift; done; exec "$@"')
    done = run(tree, "demo")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "    E: no such archive" in lines
    assert lines[-1].startswith("dev: could not install: ca-certificates g++ ")
