# SPDX-License-Identifier: Apache-2.0
"""The figures that rlk holds itself to: one run, each measured value beside its bar.

    ./dev bench figures [--json benchmarks/results/NAME.json]

Exit status 1 where a bar is missed. docs/benchmarks.md says how each figure is made.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import call_overhead
import comparison
import harness
from comparison import RLK, Case
from harness import MIB, Candidate, Figure

from rlk import jit

MAIN = Case(512, 1024, 32000)
LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")

Measured = tuple[list[Figure], dict[str, Any]]


def against_eager(threads: int, seconds: float) -> Measured:
    """Forward and both passes against torch eager, with memory and error."""
    figures, raw = [], {}
    for which, bar in (("fwd", 1.0), ("fwd+bwd", 1.3)):
        case = Case(MAIN.rows, MAIN.dim, MAIN.vocab, "float32", which, threads)
        rows, not_run = comparison.compare(case, ("torch eager",), seconds=seconds)
        raw[which] = {"runs": rows, "not_run": not_run}
        by_name = {row["candidate"]: row for row in rows}
        rlk, eager, product = (by_name[name] for name in (RLK, "torch eager", comparison.PRODUCT))
        words = f"{rlk['median_ms']:.0f} against {eager['median_ms']:.0f} ms"
        if "peak_share" in product:
            words += (
                f"; {100 * rlk['peak_share']:.0f} % of the FMA peak, "
                f"bare product {100 * product['peak_share']:.0f} %"
            )
        name = {"fwd": "forward", "fwd+bwd": "forward + backward, recomputing"}[which]
        what = f"{name}, N=512 D=1024 V=32000, over torch eager"
        figures.append(Figure(what, eager["rlk_ratio"], "x", bar, words, strict=False))
        if which == "fwd":
            words = f"torch eager {eager['extra_bytes'] / MIB:.0f} MiB"
            extra = rlk["extra_bytes"] / MIB
            figures.insert(0, Figure("extra memory, forward", extra, "MiB", 16, words))
    return [figures[1], figures[2], figures[0]], raw


def side_by_side(
    calls: dict[str, tuple[Case, str | None]], seconds: float
) -> dict[str, list[float]]:
    """Samples of rlk's forward on several cases or levels, interleaved."""
    candidates = []
    for name, (case, arch) in calls.items():
        prepare = functools.partial(comparison.use, case, arch)
        candidates.append(Candidate(name, comparison.call_of(RLK, case), prepare))
    return harness.interleave(candidates, harness.rounds_for(seconds, candidates, most=15))


def dtype_and_odd_vocab(threads: int, seconds: float) -> Measured:
    dtypes = {
        dtype: (Case(512, 1024, 32000, dtype, "fwd", threads), None)
        for dtype in ("float32", "bfloat16")
    }
    vocabs = {
        str(vocab): (Case(512, 256, vocab, "float32", "fwd", threads), None)
        for vocab in (50257, 50176)
    }
    one, other = side_by_side(dtypes, seconds), side_by_side(vocabs, seconds)
    bf16 = harness.paired_ratio(one["bfloat16"], one["float32"])
    odd = harness.paired_ratio(other["50257"], other["50176"]) * 50176 / 50257
    figures = [
        Figure("bf16, forward, over fp32", bf16, "x", 1.05, _medians(one), strict=False),
        Figure(
            "odd V = 50257, D = 256, time per logit over V = 50176",
            odd,
            "x",
            1.1,
            _medians(other),
            strict=False,
        ),
    ]
    return figures, {"dtypes_s": one, "vocabs_s": other}


def levels(threads: int, seconds: float) -> Measured:
    """The same forward compiled for each level that this processor has."""
    case = Case(MAIN.rows, MAIN.dim, MAIN.vocab, "float32", "fwd", threads)
    host = jit.settings()["arch"]
    if host not in LEVELS:
        return [], {}
    have = LEVELS[LEVELS.index(host) :]
    samples = side_by_side({level: (case, level) for level in have}, seconds)
    comparison.use(case, host)
    figures = [
        Figure(
            f"forward, {level} over {host}",
            harness.paired_ratio(samples[level], samples[host]),
            "x",
            note=_medians({level: samples[level], host: samples[host]}),
        )
        for level in have[1:]
    ]
    return figures, {"levels_s": samples}


def host_side(num_processes: int) -> Measured:
    """Compiles, loads, warm calls and the dispatcher."""
    found = call_overhead.measure(num_processes)
    compiled, loaded, cpp = found["compile"], found["load"], found["cpp"] or {}
    opened = "LLVM opened" if loaded["llvm_opened"] else "LLVM not opened"
    dispatch = cpp.get("stages_2_to_4", {})
    ns = dispatch.get("ns")
    allocations = dispatch.get("allocations")
    words = "" if ns is None else f"{allocations:g} allocations"
    bound = found["warm_calls"]
    figures = [
        Figure(
            "specialized compile, forward (LLVM opened, cold)",
            compiled["forward_added_ms"],
            "ms",
            400,
            f"first call of a process; processor time {compiled['forward_first_cpu_ms']:.0f} ms",
        ),
        Figure(
            "specialized compile, backward",
            compiled["backward_added_ms"],
            "ms",
            400,
            f"LLVM was opened before; processor time {compiled['backward_first_cpu_ms']:.0f} ms",
        ),
        Figure(
            "warm disk, new process: load of one entry",
            loaded["forward_added_ms"],
            "ms",
            1,
            f"{opened}; first call of a process, all its stages; "
            f"one more entry {harness.number(loaded['second_added_ms'])} ms",
            missed=bool(loaded["llvm_opened"]),
        ),
    ]
    for way, bar in (("torch", 15), ("torch, autograd", 40)):
        name = f"{way} 256x64"
        upper = bound[f"{way} 1x1"]["median_us"]
        figures.append(
            Figure(
                f"warm call, N=1, {way}, less the kernel's own",
                upper,
                "us",
                bar,
                f"all of a call with V=1, D=1; V=256, D=64: "
                f"{harness.number(bound[name]['median_us'])} us less kernel "
                f"{harness.number(found['overhead_us'][name])} us",
            )
        )
    what = "C++ dispatcher alone, stages 2 to 4"
    figures.append(Figure(what, ns, "ns", 300, words, missed=bool(allocations)))
    return figures, found


def fresh_clone_test() -> Measured:
    """`./dev test` in a fresh clone; the system's packages are taken as they are."""
    with tempfile.TemporaryDirectory(prefix="rlk-clone-") as folder:
        clone = Path(folder, "rlk")
        subprocess.run(["git", "clone", "-q", str(harness.ROOT), str(clone)], check=True)
        start = time.perf_counter()
        done = subprocess.run([str(clone / "dev"), "test"], check=False)
        minutes = (time.perf_counter() - start) / 60
    status = done.returncode
    what = "./dev test from a fresh clone"
    figure = Figure(what, minutes, "min", 20, f"exit status {status}", missed=status != 0)
    return [figure], {"exit_status": status, "minutes": minutes}


def _medians(samples: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {1e3 * statistics.median(s):.0f} ms" for name, s in samples.items())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--threads", type=int, default=jit.settings()["num_threads"], help="(all cores)")
    add("--seconds", type=float, default=30.0, help="time for one comparison's samples (30)")
    add("--processes", type=int, default=7, help="fresh processes a median (7)")
    add("--dev-test", action="store_true", help="time ./dev test in a fresh clone as well")
    add("--json", type=Path, metavar="FILE", help="write table and samples here")
    options = parser.parse_args()
    facts = harness.environment() | {"threads": options.threads}

    parts: dict[str, Callable[[], Measured]] = {
        "against_eager": lambda: against_eager(options.threads, options.seconds),
        "dtype_and_odd_vocab": lambda: dtype_and_odd_vocab(options.threads, options.seconds),
        "levels": lambda: levels(options.threads, options.seconds),
        "host_side": lambda: host_side(options.processes),
    }
    if options.dev_test:
        parts["fresh_clone_test"] = fresh_clone_test
    figures: list[Figure] = []
    raw = {}
    for name, measure in parts.items():
        print(f"measuring: {name}", file=sys.stderr)
        found, raw[name] = measure()
        figures += found
    if not options.dev_test:
        figures.append(Figure("./dev test from a fresh clone", None, "min", 20, "--dev-test"))

    title = f"{facts['cpu']}, {options.threads} threads, {facts['arch']}"
    table = harness.print_figures(title, figures)
    if options.json:
        harness.write_json(options.json, "figures", facts, {"table": table, "raw": raw})
    return int(any(figure.verdict == "no" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
