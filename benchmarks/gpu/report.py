# SPDX-License-Identifier: Apache-2.0
"""What a run on a GPU prints: tables of its parts, then each figure beside its bar."""

from __future__ import annotations

from typing import Any

import harness
from harness import Figure

from gpu.job import MAIN, ODD

Parts = dict[str, dict[str, Any]]
RLK, TRITON = "rlk", "Triton launch"
SHAPE = ("rows", "dim", "vocab")
ERROR_BAR = 1e-4  # benchmark_atol of rlk.check's contract


# --- Tables ---------------------------------------------------------------------------------------


def print_parts(parts: Parts) -> None:
    for name, part in parts.items():
        if "failed" in part:
            print(f"{name}: failed: {part['failed']}\n")
        if "runs" in part:
            print_runs(name, part["runs"])
    if "calls" in parts.get("host", {}):
        print_host(parts["host"])
    if "first_calls" in parts.get("first_call", {}):
        print_first_calls(parts["first_call"])


def print_runs(name: str, runs: list[dict[str, Any]]) -> None:
    """One table a shape and dtype, one line a candidate."""
    columns = ["candidate"]
    for words in ("fwd", "fwd+bwd"):
        columns += [f"{words} ms", "/ g", "extra MiB"]
    columns += ["error", "grad error", "note"]
    tables: dict[tuple[Any, ...], dict[str, dict[str, dict[str, Any]]]] = {}
    for run in runs:
        table = tables.setdefault(tuple(run[key] for key in (*SHAPE, "dtype")), {})
        table.setdefault(run["candidate"], {})[run["which"]] = run
    for key, table in tables.items():
        every = [run for passes in table.values() for run in passes.values()]
        g = next((f"{run['g_ms']:.3f} ms" for run in every if "g_ms" in run), "not measured")
        shape = "x".join(map(str, key[:3]))
        rows, why = [], {}
        for candidate, passes in table.items():
            if any("ms" in run for run in passes.values()):
                rows.append(run_cells(candidate, passes))
            else:
                why.setdefault(note(next(iter(passes.values()))), []).append(candidate)
        harness.print_table(f"{name}: {shape} (NxDxV), {key[3]}, g = {g}", columns, rows)
        for text, names in why.items():
            print(f"{', '.join(names)}: {text}\n")


def run_cells(candidate: str, passes: dict[str, dict[str, Any]]) -> list[object]:
    cells: list[object] = [candidate]
    for which in ("fwd", "fwd+bwd"):
        run = passes.get(which, {})
        cells += [run.get(key) for key in ("ms", "ratio", "extra_mib")]
    errors = [run["max_error"] for run in passes.values() if "max_error" in run]
    both = passes.get("fwd+bwd", {})
    grads = [value for key, value in both.items() if key.startswith("max_error_grad_")]
    notes = [text for text in map(note, passes.values()) if text]
    return [*cells, max(errors, default=None), max(grads, default=None), "; ".join(notes)]


def note(run: dict[str, Any]) -> str:
    for key in ("failed", "absent"):
        if key in run:
            return f"{key}: {run[key]}"[:100]
    if "same_bits" in run:
        return "same bits" if run["same_bits"] else "OTHER BITS"
    return ""


def print_host(part: dict[str, Any]) -> None:
    rows: list[list[object]] = [
        [name, times["median_us"], times["least_us"], ""] for name, times in part["calls"].items()
    ]
    rows += [[name, None, None, f"not run: {why}"[:60]] for name, why in part["not_run"].items()]
    harness.print_table("Host time of a warm call, us", ["call", "median", "least", "note"], rows)


def print_first_calls(part: dict[str, Any]) -> None:
    columns = [
        "what",
        "cache",
        "import",
        "preload",
        "forward",
        "warm",
        "then with backward",
        "warm",
    ]
    columns.append("note")
    keys = ("import_ms", "preload_ms", "forward_ms", "forward_warm_ms", "both_ms", "both_warm_ms")
    rows: list[list[object]] = []
    for what, found in part["first_calls"].items():
        if "failed" in found:
            rows.append([what, "", *[None] * len(keys), f"failed: {found['failed']}"[:60]])
            continue
        for cache, group in found.items():
            count = f"{len(group['processes'])} processes"
            rows.append([what, cache, *(group.get(key) for key in keys), count])
    shape = "x".join(map(str, part["shape"]))
    harness.print_table(f"First call of a process, {shape}, milliseconds", columns, rows)


# --- Figures --------------------------------------------------------------------------------------


def figures(parts: Parts, kernels: list[dict[str, Any]]) -> list[Figure]:
    """The bars that the CUDA path holds itself to."""
    found = []
    for part, which, bar, words in (
        ("main", "fwd", 0.98, "forward"),
        ("main", "fwd+bwd", 8.0, "forward + backward"),
        ("odd", "fwd", 1.0, "odd V, forward"),
    ):
        row = run_of(parts, part, which)
        sizes = MAIN if part == "main" else ODD
        shape = "x".join(str(row.get(key, sizes[i])) for i, key in enumerate(SHAPE))
        text = f"{row['ms']:.2f} ms, g {row['g_ms']:.2f} ms" if "ms" in row else note(row)
        best = best_peer(parts, part, which)
        text += f"; {best}" if best else ""
        found.append(Figure(f"{words} {shape}", row.get("ratio"), "g", bar, text, strict=False))
    row = run_of(parts, "main", "fwd+bwd")
    extra = row.get("extra_mib")
    what = "extra memory, forward + backward"
    found.append(Figure(what, extra, "MiB", 600, "beyond inputs, result, gradients", strict=False))
    errors = [run_of(parts, part, "fwd").get("max_error") for part in ("main", "odd")]
    error = max((e for e in errors if e is not None), default=None)
    what = "largest error of the log-probs, float64"
    found.append(Figure(what, error, "", ERROR_BAR, "benchmark inputs, all rows", strict=False))
    found += forward_figures(parts) + backward_figures(parts)
    found += first_call_figures(parts) + host_figures(parts) + bit_figures(parts)
    spilled = [kernel["spilled_bytes"] for kernel in kernels if "spilled_bytes" in kernel]
    what, text = "bytes spilled", f"{len(spilled)} kernels that the run compiled"
    return [*found, Figure(what, sum(spilled) if spilled else None, "", 0, text, strict=False)]


def run_of(parts: Parts, part: str, which: str, candidate: str = RLK) -> dict[str, Any]:
    """A row of a part; empty where it is not there."""
    for row in parts.get(part, {}).get("runs", []):
        if row["which"] == which and row["candidate"] == candidate:
            return dict(row)
    return {}


def best_peer(parts: Parts, part: str, which: str) -> str:
    """The fastest other implementation, in words."""
    rows = [
        row
        for row in parts.get(part, {}).get("runs", [])
        if row["which"] == which
        and "ratio" in row
        and not row["candidate"].startswith((RLK, "product", "the three"))
    ]
    if not rows:
        return ""
    best = min(rows, key=lambda row: row["ratio"])
    return f"best peer {best['candidate']} {best['ratio']:.2f} g"


def forward_figures(parts: Parts) -> list[Figure]:
    """Of the part "forward": each shape against the product, and options against none."""
    shapes: dict[str, dict[str, dict[str, Any]]] = {}
    for row in parts.get("forward", {}).get("runs", []):
        name = "x".join(str(row[key]) for key in SHAPE)
        shapes.setdefault(name, {})[row["candidate"]] = row
    found = []
    for name, rows in shapes.items():
        alone = next(row for row in rows.values() if "bar" in row)
        text = f"{alone['ms']:.3f} ms, g {alone['g_ms']:.3f} ms" if "ms" in alone else note(alone)
        if "ratio" in rows.get("rlk, ignore_index", {}):
            text += f"; with ignore_index {rows['rlk, ignore_index']['ratio']:.3f} g"
        found.append(Figure(f"forward {name}", alone.get("ratio"), "g", alone["bar"], text, False))
        if "ms" not in alone:
            continue
        if bound := alone["weight_bound_ms"]:
            what = f"forward {name} over one read of the weight"
            bar = 1.25 if alone["rows"] <= 64 else None  # more rows have products to do
            found.append(Figure(what, alone["ms"] / bound, "x", bar, f"{bound:.3f} ms", False))
        for other, row in rows.items():
            bar = {"rlk, half": 0.60, "rlk, entr": 1.05, "rlk, gene": 1.15}.get(other[:9])
            if "ratio" in row and row is not alone and other != "rlk, ignore_index":
                ratio = row["ratio"] / alone["ratio"]
                found.append(Figure(f"{other}, {name}", ratio, "x", bar, strict=False))
    memory = [row.get("extra_mib") for row in parts.get("forward", {}).get("runs", [])]
    most = max((mib for mib in memory if mib is not None), default=None)
    found.append(Figure("extra memory, forward, those shapes", most, "MiB", 64, strict=False))
    long = parts.get("forward", {}).get("memory_mib")
    found.append(Figure("the same, 131072 rows", long, "MiB", 64, strict=False))
    return found


def backward_figures(parts: Parts) -> list[Figure]:
    """Of the parts "backward" and "backward_peers": forward and backward against the product, one
    line a shape; rlk's other candidates, or the fastest peer, in words."""
    found = []
    for part in ("backward", "backward_peers"):
        runs = parts.get(part, {}).get("runs", [])
        for shape in dict.fromkeys(tuple(run[key] for key in SHAPE) for run in runs):
            rows = [run for run in runs if tuple(run[key] for key in SHAPE) == shape]
            of_shape: Parts = {part: {"runs": rows}}
            row = run_of(of_shape, part, "fwd+bwd") or rows[0]
            text = f"{row['ms']:.3f} ms, g {row['g_ms']:.3f} ms" if "ms" in row else note(row)
            text += f", {row['extra_mib']:.0f} MiB" if row.get("extra_mib") is not None else ""
            best = best_peer(of_shape, part, "fwd+bwd")
            others = [best] if best else other_ratios(rows)
            what = f"forward + backward {'x'.join(map(str, shape))}"
            what += ", beside peers" if part == "backward_peers" else ""
            words = "; ".join(filter(None, [text, *others]))
            found.append(Figure(what, row.get("ratio"), "g", note=words))
    return found


def other_ratios(rows: list[dict[str, Any]]) -> list[str]:
    """rlk's candidates besides the plain one."""
    own = "rlk, "
    named = {run["candidate"].removeprefix(own): run for run in rows if own in run["candidate"]}
    return [f"{name}: {run['ratio']:.2f} g" for name, run in named.items() if "ratio" in run]


def first_call_figures(parts: Parts) -> list[Figure]:
    calls = parts.get("first_call", {}).get("first_calls", {})

    def get(what: str, cache: str, key: str) -> float | None:
        return calls.get(what, {}).get(cache, {}).get(key)

    def both(what: str, cache: str) -> float | None:
        times = [get(what, cache, key) for key in ("import_ms", "forward_ms")]
        if what == RLK:
            times.append(get(what, cache, "preload_ms"))
        return None if None in times else sum(t for t in times if t is not None)

    found = []
    for cache, bar, words in (
        ("cold", 1200, "first call, empty cache, forward"),
        ("warm", 60, "first result of a process, warm cache, forward"),
    ):
        others = [(what, get(what, cache, "forward_ms")) for what in ("Triton", "torch.compile")]
        texts = [
            "with import rlk and preload",
            *(f"{what} {ms:.0f} ms" for what, ms in others if ms),
        ]
        found.append(Figure(words, both(RLK, cache), "ms", bar, "; ".join(texts)))
    others = {what: both(what, "warm") for what in calls if what not in (RLK, "torch eager")}
    least = min((ms for ms in others.values() if ms is not None), default=None)
    ours = both(RLK, "warm")
    ratio = ours / least if ours is not None and least is not None else None
    texts = [f"{what} {ms:.0f} ms" for what, ms in others.items() if ms is not None]
    if eager := both("torch eager", "warm"):
        texts.append(f"torch eager {eager:.0f} ms")
    words = "preload and first call over the fastest compiled peer's, warm caches"
    found.append(Figure(words, ratio, "x", 1, "; ".join(texts)))
    for cache in ("cold", "warm"):
        what = f"then forward + backward, {cache} cache"
        found.append(Figure(what, get(RLK, cache, "both_ms"), "ms"))
    return found


def host_figures(parts: Parts) -> list[Figure]:
    calls = parts.get("host", {}).get("calls", {})
    medians = {name: times["median_us"] for name, times in calls.items()}
    ours = [name for name in medians if name.startswith("rlk, no autograd ")]
    value = max((medians[name] for name in ours), default=None)
    bar = medians.get(TRITON, 17.6)
    text = "" if TRITON in medians else "Triton's launch not measured; that of another run; "
    text += f"CuPy RawKernel {harness.number(medians.get('CuPy RawKernel'))} us"
    return [Figure("host time of a warm call, no autograd", value, "us", round(bar, 2), text)]


def bit_figures(parts: Parts) -> list[Figure]:
    found = []
    for part, words in (("budgets", "of each workspace"), ("variants", "specialized, generic")):
        rows = [row for row in parts.get(part, {}).get("runs", []) if "same_bits" in row]
        others = sum(not row["same_bits"] for row in rows)
        value = float(others) if rows else None
        what = f"results with other bits, {words}"
        found.append(Figure(what, value, "", 0, f"{len(rows)} compared", strict=False))
    return found
