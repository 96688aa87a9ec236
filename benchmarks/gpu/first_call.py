# SPDX-License-Identifier: Apache-2.0
"""The first call of a process, with an empty cache and with a filled one; each in a fresh process.

The processes are started together and wait, torch and CUDA up, until it is their turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpu.clock import said
from gpu.job import SMALL, Job

PROGRAM = str(Path(__file__).with_name("fresh_process.py"))
# What, processes with an empty cache, processes with the first one's cache.
PLAN = {
    "rlk": (3, 5),
    "Triton": (2, 3),
    "CCE": (1, 2),
    "verl": (1, 2),
    "CuPy, target's logit": (1, 3),
    "torch.compile": (1, 1),
    "torch eager": (1, 2),
}


@dataclass
class Fresh:
    """A process that waits for its turn. stderr goes to a file, so that no pipe can fill up."""

    what: str
    cache: str  # "cold" or "warm"
    process: subprocess.Popen[str]
    errors: IO[str]

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"exit status {self.process.returncode}")
        found: dict[str, Any] = json.loads(text)
        return found

    def go(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.line()


def environment(folder: Path) -> dict[str, str]:
    """Every cache that a first call could find filled lies in `folder`."""
    return {
        "RLK_CACHE_DIR": str(folder / "rlk"),
        "RLK_CACHE_PATH": "",
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "CUDA_CACHE_PATH": str(folder / "driver"),
        "CUPY_CACHE_DIR": str(folder / "cupy"),
    }


def start(what: str, cache: str, folder: Path, job: Job) -> Fresh:
    shape = map(str, job.sized(SMALL))
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # measure() closes it
    process = subprocess.Popen(
        [sys.executable, PROGRAM, what, job.device, *shape],
        env=os.environ | environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    return Fresh(what, cache, process, errors)


def started(what: str, folder: Path, job: Job, num_cold: int, num_warm: int) -> list[Fresh]:
    """The cold ones first; the warm ones have the first one's cache."""
    processes = [start(what, "cold", folder / str(i), job) for i in range(num_cold)]
    return processes + [start(what, "warm", folder / "0", job) for _ in range(num_warm)]


def measure(job: Job) -> dict[str, Any]:
    """Medians by what and cache, and every process's figures."""
    plan = {what: counts for what, counts in PLAN.items() if what not in job.without}
    if job.quick or job.device == "cpu":
        plan = {what: (1, min(warm, 1)) for what, (_, warm) in plan.items()}
    found: dict[str, Any] = {name: {"failed": why} for name, why in job.without.items()}
    with tempfile.TemporaryDirectory(prefix="rlk-bench-") as root:
        waiting = {what: started(what, Path(root, what), job, *plan[what]) for what in plan}
        for what, processes in waiting.items():
            job.begin(what)
            try:
                found[what] = turns(processes)
            except Exception as error:
                found[what] = {"failed": said(error)}
            finally:
                for fresh in processes:
                    fresh.process.kill()
                    fresh.process.wait()
                    fresh.errors.close()
    return {"shape": job.sized(SMALL), "first_calls": found}


def turns(waiting: list[Fresh]) -> dict[str, Any]:
    """One after the other, the cold ones first."""
    for fresh in waiting:
        fresh.line()  # ready
    found: dict[str, Any] = {}
    for fresh in waiting:
        figures = fresh.go()
        wrong = unexpected(fresh, figures)
        if wrong:
            raise RuntimeError(wrong)
        found.setdefault(fresh.cache, {}).setdefault("processes", []).append(figures)
    for group in found.values():
        runs = group["processes"]
        for key in runs[0]:
            if key.endswith("_ms"):
                group[key] = statistics.median(run[key] for run in runs)
    return found


def unexpected(fresh: Fresh, figures: dict[str, Any]) -> str:
    """A cold process must have compiled, a warm one must not; else the figure is another's."""
    if fresh.what != "rlk":
        return ""
    cold = fresh.cache == "cold"
    if (figures["compiles"] > 0) == cold and figures["fallbacks"] == 0:
        return ""
    counters = {key: figures[key] for key in ("compiles", "disk_hits", "fallbacks")}
    return f"{fresh.cache} process: expected {'some' if cold else 'no'} compiles, got {counters}"
