# SPDX-License-Identifier: Apache-2.0
"""Host time of rlk.jit.linear_logp: warm calls, a process's first results, cold compiles.

    ./dev bench call_overhead [--json FILE]

docs/benchmarks.md says how each figure is made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
from harness import Candidate

# V=1, D=1: the kernel has next to nothing to do, so all of the call bounds its overhead from above.
SHAPES = ((1, 1), (256, 64))
FIRST_CALL_SHAPES = {"load": (1000, 64), "compile": (2000, 1024)}
FIRST_CALL = str(Path(__file__).with_name("first_call.py"))


# --- Warm calls -----------------------------------------------------------------------------------


def warm_candidates(shapes: Sequence[tuple[int, int]]) -> list[Candidate]:
    """One row, by torch with and without autograd and by NumPy, and the parts that they share."""
    import torch

    from rlk import jit

    torch.manual_seed(1)
    found = []
    for vocab, dim in shapes:
        hidden, weight = torch.randn(1, dim), torch.randn(vocab, dim)
        target = torch.zeros(1, dtype=torch.int64)
        leaf = weight.clone().requires_grad_()
        arrays = (hidden.numpy(), weight.numpy(), target.numpy())
        ways: dict[str, Callable[[], Any]] = {
            "torch": lambda h=hidden, w=weight, t=target: jit.linear_logp(h, w, t),
            "torch, autograd": lambda h=hidden, w=leaf, t=target: jit.linear_logp(h, w, t),
            "NumPy": lambda a=arrays: jit.linear_logp(*a),
        }
        found += [Candidate(f"{name} {vocab}x{dim}", run) for name, run in ways.items()]
    found += floor_candidates()
    return found


def floor_candidates() -> list[Candidate]:
    """What PyTorch and pybind11 cost by themselves: no part of any bar, shown to compare."""
    import torch

    from rlk import _core

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Any, weight: Any, *others: Any) -> Any:
            ctx.save_for_backward(hidden, weight)
            return hidden.detach()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None, None, None, None, None, None

    hidden, leaf = torch.randn(1), torch.randn(1).requires_grad_()
    nothing = (None,) * 5
    return [
        Candidate("floor: an autograd.Function", lambda: Identity.apply(hidden, leaf, *nothing)),
        Candidate("floor: torch.empty", lambda: torch.empty(1)),
        Candidate("floor: a bound function", _core.cache_info),
    ]


def warm_calls(seconds: float = 15.0) -> dict[str, dict[str, float]]:
    """Microseconds a call: median, and the least of all samples."""
    candidates = []
    for candidate in warm_candidates(SHAPES):
        for _ in range(50):
            candidate.run()
        start = time.perf_counter()
        for _ in range(20):
            candidate.run()
        one = max((time.perf_counter() - start) / 20, 1e-7)
        calls = max(10, min(2000, int(0.01 / one)))  # samples of about 10 ms
        candidates.append(Candidate(candidate.name, candidate.run, calls=calls))
    samples = harness.interleave(
        candidates, harness.rounds_for(seconds, candidates, most=101), warmup=2, pause_s=0.001
    )
    return {
        name: {"median_us": 1e6 * statistics.median(times), "least_us": 1e6 * min(times)}
        for name, times in samples.items()
    }


# --- The C++ side ---------------------------------------------------------------------------------


def cpp_times() -> dict[str, dict[str, float]] | None:
    """What rlk_bench_dispatch measures, medians in ns; None where it is not built."""
    program = harness.built("rlk_bench_dispatch")
    if program is None:
        return None
    done = subprocess.run(
        [
            str(program),
            "--benchmark_repetitions=9",
            "--benchmark_min_time=0.05",
            "--benchmark_format=json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for run in json.loads(done.stdout)["benchmarks"]:
        if run.get("aggregate_name") == "median":
            keys = {"real_time": "ns", "kernel_ns": "kernel_ns", "allocations": "allocations"}
            found[run["run_name"]] = {new: run[key] for key, new in keys.items() if key in run}
    return found


def overheads(
    warm: dict[str, dict[str, float]], cpp: dict[str, dict[str, float]] | None
) -> dict[str, float | None]:
    """Microseconds of each warm call less the kernel functions' own time at that shape."""
    out: dict[str, float | None] = {}
    for vocab, dim in SHAPES:
        kernel = cpp.get(f"launch/{vocab}/{dim}", {}).get("kernel_ns") if cpp else None
        for way in ("torch", "torch, autograd", "NumPy"):
            name = f"{way} {vocab}x{dim}"
            out[name] = None if kernel is None else warm[name]["median_us"] - kernel / 1e3
    return out


# --- Fresh processes ------------------------------------------------------------------------------


def first_calls(kind: str, num_processes: int) -> dict[str, float | bool]:
    """Medians over fresh processes: kind "load" with its entries on disk, "compile" without.

    Differences are taken within a process: a first call less a warm one.
    """
    shape = [str(size) for size in FIRST_CALL_SHAPES[kind]]
    runs = []
    with tempfile.TemporaryDirectory(prefix="rlk-bench-") as folder:

        def run(cache: str) -> dict[str, Any]:
            arguments = [FIRST_CALL, str(time.monotonic_ns()), *shape]
            return harness.run_child(arguments, {"RLK_CACHE_DIR": cache})

        if kind == "load":
            run(folder)  # compiles and stores
        for number in range(num_processes):
            found = run(folder if kind == "load" else f"{folder}/{number}")
            for part in ("forward", "backward", "second"):
                found[f"{part}_added_ms"] = found[f"{part}_first_ms"] - found[f"{part}_warm_ms"]
            expected = {"load": (0, 3), "compile": (3, 0)}[kind]
            if (found["compiles"], found["disk_hits"]) != expected:
                raise RuntimeError(f"expected {expected} compiles and disk hits, got {found}")
            runs.append(found)
    medians: dict[str, float | bool] = {
        name: statistics.median(run[name] for run in runs)
        for name, value in runs[0].items()
        if isinstance(value, float)
    }
    medians["llvm_opened"] = any(run["llvm_opened"] for run in runs)
    medians["torch_imported"] = any(run["torch_imported"] for run in runs)
    return medians


# --- Report ---------------------------------------------------------------------------------------


def measure(num_processes: int) -> dict[str, Any]:
    """Everything, as it stands in the JSON."""
    warm = warm_calls()
    cpp = cpp_times()
    return {
        "warm_calls": warm,
        "cpp": cpp,
        "overhead_us": overheads(warm, cpp),
        "load": first_calls("load", num_processes),
        "compile": first_calls("compile", num_processes),
    }


def print_report(found: dict[str, Any]) -> None:
    harness.print_table(
        "A warm call, one row (V x D), microseconds",
        ["call", "median", "least", "less the kernel's own"],
        [
            [name, times["median_us"], times["least_us"], found["overhead_us"].get(name)]
            for name, times in found["warm_calls"].items()
        ],
    )
    if found["cpp"] is None:
        print("C++ side: not run: rlk_bench_dispatch is not built (./dev bench builds it)\n")
    else:
        harness.print_table(
            "C++ side, nanoseconds a call",
            ["call", "all", "kernel's own", "allocations"],
            [
                [name, times["ns"], times.get("kernel_ns"), times.get("allocations")]
                for name, times in found["cpp"].items()
            ],
        )
    titles = {
        "load": "A new process, entries on disk, milliseconds",
        "compile": "A new process, empty cache, milliseconds",
    }
    parts = {
        "interpreter_ms": "start of the interpreter",
        "import_numpy_ms": "import numpy",
        "import_rlk_ms": "import rlk",
        "first_result_ms": "process start to first result",
        "forward_added_ms": "first forward, less a warm one",
        "backward_added_ms": "first backward, less a warm one",
        "second_added_ms": "forward of another shape, less a warm one",
    }
    for kind, title in titles.items():
        vocab, dim = FIRST_CALL_SHAPES[kind]
        rows: list[list[object]] = [[text, found[kind][name]] for name, text in parts.items()]
        rows.append(["LLVM opened", "yes" if found[kind]["llvm_opened"] else "no"])
        harness.print_table(f"{title} (V={vocab} D={dim})", ["what", "median"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=7, help="fresh processes a median (7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    options = parser.parse_args()
    import torch  # noqa: F401  # its version is a fact of the run

    facts = harness.environment()
    found = measure(options.processes)
    print_report(found)
    if options.json:
        harness.write_json(options.json, "call_overhead", facts, found)


if __name__ == "__main__":
    main()
