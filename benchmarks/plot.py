# SPDX-License-Identifier: Apache-2.0
"""Draws a run as SVG: of `linear_logp.py --device cuda` time by N, time and memory at one shape, of
`training_step.py` time of trunk and head, and memory.

python benchmarks/plot.py benchmarks/results/linear_logp_h100.json docs
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

PASSES = {"fwd": "forward", "fwd+bwd": "forward + backward"}
STEP_PARTS = ("trunk_ms", "head_ms", "peak_gib")
RLK = "rlk"
COLOURS = {
    RLK: "#c1121f",
    "torch eager, fp32 softmax": "#7f7f7f",
    "torch eager, 16-bit": "#bdbdbd",
    "torch.compile": "#1f77b4",
    "Liger chunked": "#2ca02c",
    "Liger selective": "#98df8a",
    "Liger sm_90": "#006d2c",
    "CCE, exact": "#9467bd",
    "CCE, filtered": "#c5b0d5",
    "verl": "#ff7f0e",
}


def measured(run: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """Rows of rlk and its peers that have a time."""
    rows = run["parts"].get(part, {}).get("runs", [])
    return [row for row in rows if "ms" in row and row["candidate"] in COLOURS]


def by_rows(run: dict[str, Any]) -> Any:
    """Time over the plain product's, one line a candidate."""
    rows = measured(run, "rows")
    if not rows:
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
    for panel, (which, words) in zip(axes, PASSES.items(), strict=True):
        for candidate, colour in COLOURS.items():
            points = sorted(
                (row["rows"], row["ratio"])
                for row in rows
                if row["which"] == which and row["candidate"] == candidate
            )
            if points:
                width = 2.5 if candidate == RLK else 1.2
                x, y = zip(*points, strict=True)
                panel.plot(x, y, color=colour, linewidth=width, marker="o", label=candidate)
        panel.set(xscale="log", yscale="log", xlabel="N", title=words)
        panel.set_xticks(sorted({row["rows"] for row in rows}))
        panel.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
        panel.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        panel.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        panel.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("time / plain product")
    axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    shape = rows[0]
    figure.suptitle(f"D = {shape['dim']}, V = {shape['vocab']}, bf16, {card(run)}")
    return figure


def at_one_shape(run: dict[str, Any]) -> Any:
    """Time and extra memory of both passes, one bar a candidate."""
    rows = measured(run, "main")
    if not rows:
        return None
    panels = [("ratio", which) for which in PASSES] + [("extra_mib", "fwd+bwd")]
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
    names = [name for name in COLOURS if any(row["candidate"] == name for row in rows)]
    for panel, (key, which) in zip(axes, panels, strict=True):
        values = {row["candidate"]: row.get(key) for row in rows if row["which"] == which}
        widths = [values.get(name) or 0.0 for name in names]
        bars = panel.barh(names, widths, color=[COLOURS[name] for name in names])
        number = "{:.1f}" if key == "ratio" else "{:.0f}"
        words = ["-" if values.get(n) is None else number.format(values[n]) for n in names]
        panel.bar_label(bars, words, padding=2, fontsize=8)
        panel.margins(x=0.15)
        what = "time / plain product" if key == "ratio" else "extra memory, MiB"
        panel.set(xlabel=what, title=PASSES[which])
    axes[0].invert_yaxis()
    shape = "x".join(str(rows[0][key]) for key in ("rows", "dim", "vocab"))
    figure.suptitle(f"{shape} (NxDxV), bf16, {card(run)}")
    return figure


def training_step(run: dict[str, Any]) -> Any:
    """Trunk and head of a GRPO step in one bar, and the most memory, one column a length."""
    lengths = list(dict.fromkeys(row["tokens"] for row in run["runs"]))
    names = list(dict.fromkeys(row["candidate"] for row in run["runs"]))
    width = 2.0 + 3.6 * len(lengths)
    figure, axes = pyplot.subplots(
        2, len(lengths), figsize=(width, 5.2), layout="constrained", sharey=True, squeeze=False
    )
    for column, tokens in enumerate(lengths):
        rows = [row for row in run["runs"] if row["tokens"] == tokens]
        upper, lower = axes[0][column], axes[1][column]
        trunk, head, peak = ([row.get(key, 0.0) for row in rows] for key in STEP_PARTS)
        upper.barh(names, trunk, color=COLOURS["torch eager, 16-bit"], label="trunk")
        bars = upper.barh(names, head, left=trunk, color=COLOURS[RLK], label="head and loss")
        words = [f"{row['ms']:.0f}" if "ms" in row else row["failed"][:24] for row in rows]
        upper.bar_label(bars, words, padding=2, fontsize=8)
        upper.set(xlabel="ms a step", title=f"{tokens} tokens")
        bars = lower.barh(names, peak, color=COLOURS["torch eager, fp32 softmax"])
        words = [f"{row['peak_gib']:.1f}" if "ms" in row else row["failed"][:24] for row in rows]
        lower.bar_label(bars, words, padding=2, fontsize=8)
        lower.set(xlabel="peak memory, GiB")
        for panel in (upper, lower):
            panel.margins(x=0.2)
    axes[0][0].invert_yaxis()
    axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(f"GRPO step, {run['model']}, {run['environment'].get('card', 'no GPU')}")
    return figure


def card(run: dict[str, Any]) -> str:
    return str(run["parts"].get("card", {}).get("card", "no GPU"))


def drawings(run: dict[str, Any]) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """By the name of the file."""
    if run["benchmark"] == "training_step":
        return {f"training_step_{run['model'].lower()}": training_step}
    return {"linear_logp_cuda_by_rows": by_rows, "linear_logp_cuda_at_one_shape": at_one_shape}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the JSON of a run")
    parser.add_argument("folder", type=Path, help="where the SVG files go")
    options = parser.parse_args()
    run = json.loads(options.run.read_text(encoding="utf-8"))
    # Text as text, and the same bytes for the same run.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rlk"})
    for name, draw in drawings(run).items():
        figure = draw(run)
        if figure is None:
            print(f"{name}: not drawn: the run lacks that part", file=sys.stderr)
            continue
        file = options.folder / f"{name}.svg"
        figure.savefig(file, metadata={"Date": None})
        print(f"written: {file}", file=sys.stderr)


if __name__ == "__main__":
    main()
