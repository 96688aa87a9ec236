# SPDX-License-Identifier: Apache-2.0
"""The runs in benchmarks/results, and how the pages write their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"

Run = dict[str, Any]
Shape = tuple[int, int, int]

MAIN = (4096, 2048, 131072)
# What the README and the pages of the ops quote: of one commit, on one card.
GPU, GPU_LOSS = "linear_logp_h200", "linear_loss_h200"
# Peers of few rows: that run had no time left for 64.
FEW_ROWS = {(256, 4096, 128256): GPU, (64, 4096, 128256): "linear_logp_64_rows_h200"}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


class Runs:
    """The runs of one part of a kept file: found by shape, candidate and pass."""

    def __init__(self, name: str, part: str | None = None) -> None:
        kept = read(name)
        self.all: list[Run] = kept["runs"] if part is None else kept["parts"][part]["runs"]

    def get(self, shape: Shape, candidate: str, **others: Any) -> Run | None:
        wanted = dict(zip(("rows", "dim", "vocab"), shape, strict=True))
        wanted |= {"candidate": candidate, **others}
        found = [r for r in self.all if all(r.get(k) == v for k, v in wanted.items())]
        assert len(found) <= 1, wanted
        return found[0] if found and "ms" in found[0] else None

    def of(self, shape: Shape, candidate: str, **others: Any) -> Run:
        found = self.get(shape, candidate, **others)
        assert found is not None, (shape, candidate, others)
        return found

    def shapes(self) -> list[Shape]:
        return list(dict.fromkeys((r["rows"], r["dim"], r["vocab"]) for r in self.all))


def few_rows() -> dict[Shape, Runs]:
    """The peers' runs of few rows, by shape."""
    return {shape: Runs(name, "backward_peers") for shape, name in FEW_ROWS.items()}


def sizes(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def three(value: float) -> str:
    """Three digits: 0.361, 3.65, 12.0."""
    return f"{value:#.3g}"


def ratio(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def mib(value: float) -> str:
    return f"{value:,.0f}"


def error(value: float | None) -> str:
    if value is None:  # of a loss alone
        return ""
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


# What the pages call the candidates of the runs on a GPU.
PEERS = {
    "rlk, saved_mib=0": "rlk, `saved_mib=0`",
    "rlk": "rlk, the default (512)",
    "rlk, saved_mib=1024": "rlk, `saved_mib=1024`",
    "rlk, a sum": "rlk, the sum, all kept",
    "torch.compile": "`torch.compile`",
    "torch eager, fp32 softmax": "torch eager, fp32 softmax",
    "torch eager, 16-bit": "torch eager, bf16 softmax",
    "Liger sm_90": "Liger, CuTe DSL kernel for sm_90",
    "QuACK, exponentials, a sum": "QuACK, the sum",
    "QuACK, logits, a sum": "QuACK, the sum, `use_scaled_exp=False`",
    "CCE, filtered": "cut-cross-entropy, filtered",
    "verl": "verl",
    "CCE, exact": "cut-cross-entropy, exact",
    "Liger chunked": "Liger, chunked",
}
