# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: interleaved timing, peak memory, facts of the machine, reports."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20


@dataclass(frozen=True)
class Candidate:
    """Something to time. `prepare` runs before each sample, outside the clock."""

    name: str
    run: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None
    calls: int = 1  # of one sample; the sample is their mean


def interleave(
    candidates: Sequence[Candidate], rounds: int, warmup: int = 1, pause_s: float = 0.005
) -> dict[str, list[float]]:
    """Seconds a call of each candidate, one sample a round; warmup rounds are dropped.

    Each round runs every candidate once, beginning with another one each time, so that drifts of
    the machine hit all alike. The pause lets the threads of the last candidate stop spinning.
    """
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for number in range(warmup + rounds):
        first = number % len(candidates)
        for candidate in [*candidates[first:], *candidates[:first]]:
            candidate.prepare()
            time.sleep(pause_s)
            start = time.perf_counter()
            for _ in range(candidate.calls):
                result = candidate.run()
            elapsed = time.perf_counter() - start
            del result
            if number >= warmup:
                seconds[candidate.name].append(elapsed / candidate.calls)
    return seconds


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median of the ratios of samples that were taken in the same round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def rounds_for(seconds: float, candidates: Sequence[Candidate], most: int) -> int:
    """How many rounds fit into `seconds`, at least 3; runs each candidate once to find out."""
    one_round = sum(times[0] for times in interleave(candidates, 1, warmup=0).values())
    return max(3, min(most, int(seconds / max(one_round, 1e-3))))


# --- The FMA peak ---------------------------------------------------------------------------------


class FmaPeak:
    """Fused multiply-adds on registers alone, on `num_threads` threads at once (fma_peak.cpp)."""

    def __init__(self, library: Path, num_threads: int) -> None:
        self._function = ctypes.CDLL(str(library)).rlk_fma_flops
        self._function.argtypes = [ctypes.c_int64]
        self._function.restype = ctypes.c_double
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads)

    def run(self) -> float:
        """Operations done, a multiply-add counted as two; takes some 10 ms."""
        return sum(self._pool.map(self._function, [1 << 22] * self._num_threads))


def built(name: str) -> Path | None:
    """A program or library of benchmarks/CMakeLists.txt: in $RLK_BENCH_DIR, or beside the package
    that ./dev has built."""
    import rlk

    folder = os.environ.get("RLK_BENCH_DIR") or Path(rlk.__file__).parents[2] / "benchmarks"
    path = Path(folder) / name
    return path if path.exists() else None


# --- Memory ---------------------------------------------------------------------------------------


def peak_bytes() -> int:
    """The most resident memory that this process has had, since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> int:
    """Give free memory back, start the peak anew where that is allowed, and return it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def run_child(arguments: Sequence[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON on the last line of a fresh Python process; RuntimeError with its stderr."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip() or f"exit status {done.returncode}")[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rlk_jit(*arguments: str) -> str:
    """What `rlk-jit ARGUMENTS` prints, on stderr where stdout is empty; any exit status."""
    command = [sys.executable, "-m", "rlk._cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout or done.stderr


# --- Facts and reports ----------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """What a figure depends on and a reader cannot see in it."""
    import numpy

    import rlk

    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "rlk": rlk.__version__,
        "commit": _commit(),
        "arch": rlk.jit.settings().get("arch"),
        "load_at_start": os.getloadavg()[0],
    }
    if "torch" in sys.modules:
        facts["torch"] = sys.modules["torch"].__version__
    return facts


def _commit() -> str:
    """Of the tree, or where git knows none the one that ./dev gpu-pack noted."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    noted = ROOT / "gpu_pack" / "commit"
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return noted.read_text().strip() if noted.exists() else ""


def write_json(file: Path, name: str, facts: dict[str, Any], content: dict[str, Any]) -> None:
    """One run as JSON: benchmark, environment, then `content`."""
    facts = facts | {"load_at_end": os.getloadavg()[0]}
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": name, "environment": facts} | content
    file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {file}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Figure:
    """A measured value beside its bar."""

    what: str
    value: float | None  # None: not measured in this run
    unit: str
    bar: float | None = None  # None: to be shown only
    note: str = ""
    strict: bool = True  # below the bar; else at most the bar
    missed: bool = False  # by another measure, whatever the value; the note says which

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return "shown"
        if self.value is None:
            return "not run"
        below = self.value < self.bar or (not self.strict and self.value == self.bar)
        return "yes" if below and not self.missed else "no"

    def cells(self) -> list[object]:
        bar = "" if self.bar is None else f"{'<' if self.strict else '<='} {self.bar:g} {self.unit}"
        value = "-" if self.value is None else f"{number(self.value)} {self.unit}"
        return [self.what, value.strip(), bar.strip(), self.verdict, self.note]


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout: by rich on a terminal, where it is installed, else plain."""
    cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    right = [all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            return _print_rich(title, columns, cells, right)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    print(title)
    for row in [columns, ["-" * width for width in widths], *cells]:
        padded = (
            cell.rjust(width) if on_right else cell.ljust(width)
            for cell, width, on_right in zip(row, widths, right, strict=True)
        )
        print("  ".join(padded).rstrip())
    print(flush=True)
    return None


def print_figures(title: str, figures: Iterable[Figure]) -> list[dict[str, object]]:
    """Each figure beside its bar, and the same table for JSON."""
    columns = ["what", "measured", "bar", "reached", "note"]
    rows = [figure.cells() for figure in figures]
    print_table(title, columns, rows)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _print_rich(
    title: str, columns: Sequence[str], cells: list[list[str]], right: list[bool]
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column, on_right in zip(columns, right, strict=True):
        table.add_column(column, justify="right" if on_right else "left")
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def number(value: object) -> str:
    """A number with two to four significant digits; "-" for what was not measured."""
    if value is None:
        return "-"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.{max(0, 3 - len(str(int(abs(value)))))}f}"


def median_and_range(values: Iterable[float]) -> str:
    """3.23 (3.00 to 3.50)."""
    ordered = sorted(map(float, values))
    middle = number(statistics.median(ordered))
    return f"{middle} ({number(ordered[0])} to {number(ordered[-1])})"


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or cell[0].isdigit()
