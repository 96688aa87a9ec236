# SPDX-License-Identifier: Apache-2.0
"""What sentences of the pages say of the runs in benchmarks/results.

Sentences are written by hand; a test looks for these words in them.
"""

from __future__ import annotations

from collections.abc import Iterable

from kept import GPU, MAIN, Runs, Shape, few_rows, ratio, read


def span(values: Iterable[float], digits: int = 2) -> str:
    least, *_, most = sorted(values)
    return f"{least:.{digits}f} to {most:.{digits}f}"


def readme_words() -> list[str]:
    """What the README's sentences say of the runs."""
    forward = Runs(GPU, "forward")
    half, more = [], []
    for shape in forward.shapes():
        plain = forward.of(shape, "rlk, no row ignored")["ratio"]
        if masked := forward.get(shape, "rlk, half of the rows masked"):
            half.append(100 * (1 - masked["ratio"] / plain))
        if entropy := forward.get(shape, "rlk, entropy and log-sum-exp"):
            more.append(100 * (entropy["ratio"] / plain - 1))
    one_row = forward.of((1, 4096, 128256), "rlk, no row ignored")["ratio"]
    others = [forward.of(s, "rlk, no row ignored")["ratio"] for s in forward.shapes() if s[0] > 1]
    h100 = Runs("forward_h100", "forward")
    on_h100 = [h100.of(s, "rlk, no row ignored")["ratio"] for s in h100.shapes()]

    of_256, of_64 = (
        [
            ratio(runs.of(shape, name)["ratio"])
            for name in ("rlk", "torch.compile", "torch eager, 16-bit")
        ]
        for shape, runs in few_rows().items()
    )
    cold = read("cold_start_h200")
    (case,) = cold["cases"]
    alone, both = (
        [run["total_ms"] / 1000 for run in case["processes"][kind]] for kind in ("forward", "both")
    )
    memory = forward.of(MAIN, "rlk, no row ignored")["extra_mib"]
    return [
        f"Entropy and log-sum-exp cost {span(more, 0)} % more.",
        f"saves {span(half, 0)} %.",
        f"takes {memory:.0f} MiB of memory at 4096 x 131072",
        f"All shapes take {span(others)} g, one row {one_row:.2f} g",
        f"an H100 gave [{span(on_h100)}]",
        f"256 rows take {of_256[0]} g (`torch.compile` {of_256[1]}, bf16 eager {of_256[2]})",
        f"64 rows {of_64[0]} ({of_64[1]}, {of_64[2]})",
        f"leave {span(share for shape, share in of_half().items() if shape[0] >= 4096)} of the",
        f"a forward took {span(alone)} s, forward and backward {span(both, 1)} s",
    ]


def of_half() -> dict[Shape, float]:
    """The backward's time with half of the rows without upstream gradient, of that with all."""
    runs = Runs(GPU, "backward")
    shares = {}
    for shape in runs.shapes():
        some = runs.get(shape, "rlk, half of the upstream gradient 0")
        if some:
            forward = runs.of(shape, "rlk, forward")["ratio"]
            whole = runs.of(shape, "rlk")["ratio"]
            shares[shape] = (some["ratio"] - forward) / (whole - forward)
    return shares


def linear_logp_words() -> list[str]:
    runs = Runs(GPU, "backward")
    first, second = of_half()[MAIN], of_half()[8192, 3584, 152064]
    few = (256, 4096, 128256)
    own, products = (ratio(runs.of(few, name)["ratio"]) for name in ("rlk", "the three products"))
    return [
        f"leave {first:.2f} of the backward's time at the first of these shapes and {second:.2f}",
        f"a frozen head the first takes {ratio(runs.of(MAIN, 'rlk, frozen head')['ratio'])} with",
        f"Beside {own} with 256 rows, cuBLAS's three products in turn take {products}.",
    ]


WORDS = {"README.md": readme_words, "docs/linear_logp.md": linear_logp_words}
