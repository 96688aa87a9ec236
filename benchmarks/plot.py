# SPDX-License-Identifier: Apache-2.0
"""Draws a run of `linear_logp.py --device cuda` as SVG, time by N, time and memory at one shape, or
runs of `training_step.py` as a PNG, for each model one with times and one of `--longest`.

python benchmarks/plot.py benchmarks/results/linear_logp_h100.json docs
python benchmarks/plot.py benchmarks/results/training_step_*_h200.json docs
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
STEP_COLOURS = {
    "torch eager": "#7f7f7f",
    "torch.compile": COLOURS["torch.compile"],
    "rlk linear_ppo_loss": COLOURS[RLK],
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


def training_step(runs: list[dict[str, Any]]) -> Any:
    """A GRPO step by head, a group of bars a model: most tokens, time of head and loss, memory."""
    most = {run["model"]: run["longest"] for run in runs if "longest" in run}
    runs = [run for run in runs if run["runs"]]
    models = [run["model"] for run in runs]
    if not models or set(models) != set(most):
        raise SystemExit(f"training_step: expected times and --longest of each model, got {models}")
    lengths = [{row["tokens"] for row in run["runs"] if "ms" in row} for run in runs]
    tokens = max(set.intersection(*lengths))
    names = [name for name in STEP_COLOURS if name in most[models[0]]]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="constrained")

    def draw(panel: Any, title: str, value: Callable[[dict[str, Any], str], float | None]) -> None:
        for number, name in enumerate(names):
            places = [place + (number - (len(names) - 1) / 2) * 0.27 for place in range(len(runs))]
            found = [value(run, name) for run in runs]
            heights = [height or 0 for height in found]
            bars = panel.bar(places, heights, 0.25, color=STEP_COLOURS[name], label=name)
            words = ["memory" if x is None else f"{x:,.{x < 100 and x % 1 > 0:d}f}" for x in found]
            panel.bar_label(bars, words, padding=2, fontsize=7)
        panel.set_xticks(range(len(models)), models)
        panel.set_title(title, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)

    def of_row(key: str) -> Callable[[dict[str, Any], str], float | None]:
        def value(run: dict[str, Any], name: str) -> float | None:
            rows = (row for row in run["runs"] if row["tokens"] == tokens)
            found: float | None = next(row for row in rows if row["candidate"] == name).get(key)
            return found

        return value

    draw(axes[0], "most tokens of a step", lambda run, name: most[run["model"]][name])
    draw(axes[1], f"head and loss of {tokens:,} tokens, ms", of_row("head_ms"))
    draw(axes[2], f"memory of {tokens:,} tokens, GiB at most", of_row("peak_gib"))
    axes[0].legend(fontsize=8)
    memory = runs[0]["memory_gib"]
    where = (
        f"{runs[0]['environment'].get('card', 'no GPU')}, of which torch may take {memory:g} GiB"
    )
    figure.suptitle(f"GRPO step, {where}", fontsize=11)
    return figure


def card(run: dict[str, Any]) -> str:
    return str(run["parts"].get("card", {}).get("card", "no GPU"))


def drawings(runs: list[dict[str, Any]]) -> dict[str, Callable[[], Any]]:
    """By the name of the file."""
    if runs[0]["benchmark"] == "training_step":
        return {"training_step.png": lambda: training_step(runs)}
    (run,) = runs
    return {
        "linear_logp_cuda_by_rows.svg": lambda: by_rows(run),
        "linear_logp_cuda_at_one_shape.svg": lambda: at_one_shape(run),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="+", help="the JSON of a run")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    options = parser.parse_args()
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in options.run]
    # Text as text, and the same bytes for the same run.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rlk"})
    for name, draw in drawings(runs).items():
        figure = draw()
        if figure is None:
            print(f"{name}: not drawn: the run lacks that part", file=sys.stderr)
            continue
        file = options.folder / name
        options_of_kind = {"metadata": {"Date": None}} if file.suffix == ".svg" else {"dpi": 110}
        figure.savefig(file, **options_of_kind)
        print(f"written: {file}", file=sys.stderr)


if __name__ == "__main__":
    main()
