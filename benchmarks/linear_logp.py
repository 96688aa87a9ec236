# SPDX-License-Identifier: Apache-2.0
"""Time, memory and error of linear_logp against PyTorch and the bare matrix product.

    ./dev bench [linear_logp] [--shape 512x1024x32000] [--pass both] [--json FILE] [--plot FILE]
    python benchmarks/linear_logp.py --device cuda [--help]: another program, gpu/run.py

docs/benchmarks.md says how each figure is made.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
from comparison import PEAK, PEERS, Case, compare
from harness import MIB

import rlk

DEFAULT_SHAPES = ("512x1024x32000", "512x256x50257")
PLOT_SHAPES = tuple(f"512x512x{vocab}" for vocab in (4000, 8000, 16000, 32000, 64000, 128000))
PASSES = ("fwd", "fwd+bwd")


def print_rows(title: str, rows: list[dict[str, Any]], not_run: dict[str, str]) -> None:
    def cells(row: dict[str, Any]) -> list[object]:
        share, extra = row.get("peak_share"), row.get("extra_bytes")
        return [
            row["candidate"],
            row["median_ms"],
            row["least_ms"],
            row.get("rlk_ratio"),
            row["gflops"],
            None if share is None else f"{100 * share:.0f} %",
            None if extra is None else extra / MIB,
            row.get("max_error"),
            row.get("mean_error"),
        ]

    columns = ["candidate", "median ms", "least ms", "rlk / it", "GFLOP/s", "of peak", "extra MiB"]
    harness.print_table(title, [*columns, "max error", "mean error"], map(cells, rows))
    for name, reason in not_run.items():
        print(f"{name}: not run: {reason}\n")


def plot(file: Path, rows: list[dict[str, Any]]) -> None:
    """Time and memory over V, one line a candidate (and pass, dtype, threads where several)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    def say(row: dict[str, Any], key: str) -> str:
        return str(row[key]) if key in ("dtype", "which") else f"{key} {row[key]}"

    keys = ("rows", "dim", "dtype", "which", "threads")
    varying = [key for key in keys if len({row[key] for row in rows}) > 1]
    lines: dict[tuple[str, str], list[tuple[int, float, float | None]]] = {}
    for row in rows:
        if row["candidate"] != PEAK:
            words = ", ".join(say(row, key) for key in varying)
            point = (row["vocab"], row["median_ms"], row.get("extra_bytes"))
            lines.setdefault((row["candidate"], words), []).append(point)
    # One colour a candidate, one style a case.
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(name for name, _ in lines))}
    styles = dict.fromkeys(words for _, words in lines)
    styles = dict(zip(styles, itertools.cycle(("-", "--", ":", "-.")), strict=False))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for (name, words), points in lines.items():
        vocab, ms, extra = zip(*sorted(points), strict=True)
        look = {"color": colours[name], "linestyle": styles[words], "marker": "o"}
        look["label"] = ", ".join(filter(None, (name, words)))
        left.plot(vocab, ms, **look)
        if extra[0] is not None:
            right.plot(vocab, [value / MIB for value in extra], **look)
    for axes, what in ((left, "median time, ms"), (right, "extra memory of a call, MiB")):
        axes.set(xlabel="V", ylabel=what, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    fixed = (say(rows[0], key) for key in keys if key not in varying)
    figure.suptitle("linear_logp: " + ", ".join(fixed))
    figure.savefig(file, dpi=150)
    print(f"written: {file}", file=sys.stderr)


def asks_for_cuda(arguments: Sequence[str]) -> bool:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--device")
    return parser.parse_known_args(arguments)[0].device == "cuda"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shape", action="append", metavar="NxDxV", help=f"repeatable ({DEFAULT_SHAPES})")
    add("--dtype", nargs="+", default=["float32"], choices=("float32", "bfloat16", "float16"))
    add("--threads", nargs="+", type=int, help="one comparison each (all cores)")
    add("--pass", dest="which", default="both", choices=(*PASSES, "both"))
    add(
        "--arch", action="append", metavar="LEVEL", help="CPU level of rlk; repeatable, first = rlk"
    )
    add("--peer", nargs="*", default=list(PEERS), choices=PEERS)
    add("--device", default="cpu", choices=("cpu", "cuda"), help="cuda: see --device cuda --help")
    add("--rounds", type=int, default=15, help="most samples a candidate (15)")
    add("--seconds", type=float, default=30.0, help="time for one comparison's samples (30)")
    add("--no-errors", action="store_true", help="leave out the comparison with float64")
    add("--json", type=Path, metavar="FILE")
    add("--plot", type=Path, metavar="FILE", help=f"over V; default shapes then {PLOT_SHAPES}")
    options = parser.parse_args(arguments)
    words = options.shape or (PLOT_SHAPES if options.plot else DEFAULT_SHAPES)
    try:
        options.shape = [tuple(map(int, word.split("x", 2))) for word in words]
    except ValueError:
        parser.error(f"--shape: expected NxDxV such as 512x1024x32000, got {' '.join(words)}")
    return options


def main() -> int:
    if asks_for_cuda(sys.argv[1:]):
        from gpu import run

        return run.main()
    options = parse()
    threads = options.threads or [rlk.jit.settings()["num_threads"]]
    facts = harness.environment()
    rows, absent = [], {}
    for shape in options.shape:
        for dtype in options.dtype:
            for num in threads:
                for which in PASSES if options.which == "both" else (options.which,):
                    case = Case(*shape, dtype, which, num)
                    found, not_run = compare(
                        case,
                        options.peer,
                        options.arch or (),
                        options.seconds,
                        options.rounds,
                        not options.no_errors,
                    )
                    title = f"{which} {case.shape} (NxDxV) {dtype}, {num} threads"
                    print_rows(title, found, not_run)
                    rows += found
                    absent |= not_run
    if options.json:
        harness.write_json(options.json, "linear_logp", facts, {"runs": rows, "not_run": absent})
    if options.plot:
        plot(options.plot, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
