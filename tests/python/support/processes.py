# SPDX-License-Identifier: Apache-2.0
"""Runs Python code in a process of its own, with its own environment and, if asked, few rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rlk

HERE = Path(__file__).resolve().parent
PACKAGE = Path(rlk._core.__file__).parent  # with the libraries and the built-in layer

# What every script may use. `call` runs one forward with a spec of its own; `report` is the answer.
PRELUDE = """
import json, os, sys
import numpy as np

def operands(vocab=50, dim=8, rows=4):
    rng = np.random.default_rng([vocab, dim, rows])
    return (rng.standard_normal((rows, dim), np.float32),
            rng.standard_normal((vocab, dim), np.float32), rng.integers(0, vocab, rows))

def call(*sizes):
    import rlk
    return rlk.jit.linear_logp(*operands(*sizes)).tolist()

def report(**values):
    import rlk
    print(json.dumps({**rlk.jit.cache_info()._asdict(), **values}), flush=True)

def maps_llvm():
    with open("/proc/self/maps") as maps:
        return "librlk_llvm" in maps.read()
"""

# One call, and what it was.
CALL = "logp = call(); report(logp=logp, llvm=maps_llvm())"


def entries(folder: Path) -> list[str]:
    """Names of the cache entries in a folder."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".rlk"))


def leftovers(folder: Path) -> list[str]:
    """Names of what no folder of entries should hold, such as temp files."""
    return sorted(
        {*os.listdir(folder)} - {*entries(folder), ".lock", ".swept", "manifest.json", ".usage"}
    )


@dataclass(frozen=True)
class Ended:
    """A process that exited with 0: what it reported, and its lines on stderr."""

    reports: list[dict[str, Any]]
    stderr: list[str]

    @property
    def report(self) -> dict[str, Any]:
        (only,) = self.reports
        return only

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.stderr if line.startswith("rlk: ")]


def run_python(
    code: str,
    *,
    without: tuple[str, ...] = (),
    unprivileged: bool = False,
    package: Path | None = None,
    timeout: float = 120,
    **environment: str,
) -> Ended:
    """Runs PRELUDE and code; a non-zero exit fails the test with the process's own words.

    Args:
        without: variables to take out of the environment.
        unprivileged: as a user who may read everything and write only what all may.
        package: a copy of the package to import instead.
        environment: variables to set.
    """
    env = {name: value for name, value in os.environ.items() if name not in without}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", **environment}
    paths = [str(package.parent) if package else "", str(HERE), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    rights = "import privileges; privileges.drop()\n" if unprivileged else ""
    done = subprocess.run(
        [sys.executable, "-c", rights + PRELUDE + textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return Ended(reports, done.stderr.splitlines())
