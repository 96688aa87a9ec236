# SPDX-License-Identifier: Apache-2.0
"""The tables of measured times in README.md and docs/, made from the runs in benchmarks/results.

    python benchmarks/tables.py

writes every table anew; a test asserts that this changes nothing.

A table stands in its page between two comments, the first of which names a function here:

    <!-- table: forward_h100 -->

    | ... |

    <!-- end of table -->
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any

import checked
from kept import (
    GPU,
    GPU_LOSS,
    MAIN,
    PEERS,
    ROOT,
    Run,
    Runs,
    error,
    few_rows,
    mib,
    ratio,
    read,
    sizes,
    three,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACE = re.compile(r"(<!-- table: (\w+) -->\n\n).*?(\n\n<!-- end of table -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def readme() -> str:
    """Every way at the main shape: forward, with backward, and from hidden states to a loss."""
    forward, both = Runs(GPU, "main"), Runs(GPU, "backward_peers")
    losses = {
        run["candidate"]: run
        for run in read(GPU_LOSS)["runs"]
        if run["what"] == "grpo" and run["shape"][2:] == list(MAIN[1:])
    }
    loss_of = {
        "Liger chunked": "Liger GRPO, one chunk",
        "Liger sm_90": "Liger sm_90 + torch",
    }

    def cells(run: Run | None) -> tuple[str, str]:
        return (ratio(run["ratio"]), mib(run["extra_mib"])) if run and "ratio" in run else ("", "")

    rows = []
    for candidate, name in PEERS.items():
        run = both.get(MAIN, candidate)
        if run is None:  # not there in that run
            continue
        alone = forward.get(MAIN, "rlk" if name.startswith("rlk") else candidate, which="fwd")
        loss = losses.get(loss_of.get(candidate, candidate))
        numbers = cells(alone)[0], *cells(run), *cells(loss)
        rows.append((name, *numbers, error(run.get("max_error"))))
    head = "forward", "forward + backward", "MiB", "GRPO loss, both", "MiB", "error of log p"
    return table((sizes(MAIN), *head), rows)


def backward_few_rows() -> str:
    """The same of few rows, whose whole budget is 64 MiB."""
    kept = few_rows()
    rows = []
    for candidate in ("rlk", *list(PEERS)[3:], "verl chunked", "Liger selective"):
        cells = []
        for shape, runs in kept.items():
            run = runs.get(shape, candidate)
            cells += [ratio(run["ratio"]), mib(run["extra_mib"])] if run else ["", ""]
        if not any(cells):
            continue
        rows.append(("rlk" if candidate == "rlk" else PEERS.get(candidate, candidate), *cells))
    head = ["4096 x 128256"]
    for shape in kept:
        head += [f"{shape[0]} rows, / g", "MiB"]
    return table(head, rows)


def forward_readme() -> str:
    """README: the forward alone."""
    runs = Runs(GPU, "forward")
    rows = []
    for shape in (MAIN, (8192, 3584, 152064), (4096, 2048, 50257), (64, 4096, 128256)):
        run = runs.of(shape, "rlk, no row ignored")
        name = sizes(shape) + (" (g: V padded)" if shape[2] % 64 else "")
        g = run["g_ms"]
        rows.append((name, f"{three(run['ms'])} ms", f"{three(g)} ms", ratio(run["ratio"])))
    return table(("N x D x V", "rlk", "g", "rlk / g"), rows)


def _forward(name: str, with_ignore_index: bool, with_memory: bool) -> str:
    runs = Runs(name, "forward")
    rows = []
    for shape in runs.shapes():
        own = runs.of(shape, "rlk, no row ignored")
        cells = [sizes(shape), f"{own['ms']:.3f}", f"{own['g_ms']:.3f}", ratio(own["ratio"])]
        if with_ignore_index:
            cells.append(ratio(runs.of(shape, "rlk, ignore_index")["ratio"]))
        for other in ("half of the rows masked", "entropy and log-sum-exp", "generic"):
            run = runs.get(shape, f"rlk, {other}")
            cells.append(ratio(run["ratio"] / own["ratio"]) if run else "")
        if with_memory:
            cells.append(f"{own['extra_mib']:.1f}")
        rows.append(cells)
    head = ["N x D x V", "ms", "g, ms", "/ g"]
    head += ["with ignore_index, / g"] * with_ignore_index
    head += ["half masked, x", "entropy + lse, x", "generic, x"]
    return table(head + ["extra MiB"] * with_memory, rows)


def forward_h100() -> str:
    return _forward("forward_h100", with_ignore_index=True, with_memory=True)


def forward_h200() -> str:
    return _forward(GPU, with_ignore_index=False, with_memory=False)


def forward_peers() -> str:
    """The forward of every candidate at the main shape, alone."""
    runs = Runs(GPU, "main")
    rows = []
    for candidate in ("rlk", *list(PEERS)[3:]):
        run = runs.get(MAIN, candidate, which="fwd")
        if run:
            name = "rlk" if candidate == "rlk" else PEERS[candidate]
            cells = ratio(run["ratio"]), mib(run["extra_mib"]) + " MiB", error(run["max_error"])
            rows.append((name, *cells))
    rows.sort(key=lambda cells: float(cells[1]))
    return table((sizes(MAIN), "time / g", "memory", "largest error of log p"), rows)


def kept_exponentials() -> str:
    """Forward and backward with nothing, the default and everything kept."""
    runs = Runs(GPU, "backward")

    def cell(run: Run) -> str:
        memory = run["extra_mib"]
        return ratio(run["ratio"]) + (f", {mib(memory)} MiB" if memory >= 1 else "")

    rows = []
    for shape in runs.shapes():
        default = runs.of(shape, "rlk")
        exponentials = shape[0] * shape[2] * 2 / 2**20  # MiB
        if exponentials <= 512:
            cells = [f"{cell(default)} (everything)", ""]
        else:
            everything = runs.of(shape, f"rlk, saved_mib={exponentials:.0f}")
            cells = [cell(default), cell(everything)]
            if exponentials / 2 > 512:
                cells[0] = f"{ratio(default['ratio'])} (half of E is {exponentials / 2:,.0f} MiB)"
        rows.append((sizes(shape), cell(runs.of(shape, "rlk, saved_mib=0")), *cells))
    return table(("N x D x V", "nothing", "512 MiB (the default)", "everything"), rows)


def tensor_parallel() -> str:
    """The vocabulary over ranks: forward and backward of each way."""
    runs = Runs("tensor_parallel_h200")
    ways = ("rlk", "verl", "torch, parallel softmax", "torch, gathered logits")
    rows = []
    for shape in runs.shapes():
        one = [runs.of(shape, f"one GPU, {which}", ranks=2)["ms"] for which in ("fwd", "fwd+bwd")]
        of = f"{shape[0]} x {shape[2]}"
        rows.append((of, "1", *map(three, one), "", "", ""))
        for ranks in sorted({r["ranks"] for r in runs.all}):
            both = [runs.of(shape, f"{way}, fwd+bwd", ranks=ranks) for way in ways]
            forward = three(runs.of(shape, "rlk, fwd", ranks=ranks)["ms"])
            cells = (f"{three(run['ms'])}, {mib(run['extra_mib'])} MiB" for run in both)
            rows.append(("", str(ranks), forward, *cells))
    head = ("N x V", "ranks", "rlk, forward", "forward + backward", "verl's kernel, the same")
    return table((*head, "torch, softmax over ranks", "torch, logits gathered"), rows)


def linear_loss() -> str:
    """From hidden states to a loss: time by the product's, and memory."""
    names = {
        "grpo": "GRPO",
        "half": "GRPO, half of the tokens without derivative",
        "ce": "cross entropy, mean",
    }
    ways = {
        "rlk": "rlk",
        "rlk, accumulate_into": "rlk, `accumulate_into`",
        "rlk, two ops": "linear_logp and its loss",
        "torch.compile": "`torch.compile`",
        "Liger GRPO, one chunk": "Liger",
        "Liger": "Liger",
        "Liger sm_90 + torch": "Liger, CuTe DSL",
        "Liger sm_90": "Liger, CuTe DSL",
        "QuACK, exponentials": "QuACK",
        "QuACK, logits": "QuACK, `use_scaled_exp=False`",
        "CCE, exact": "CCE, exact",
    }
    runs = [run for run in read(GPU_LOSS)["runs"] if "ratio" in run]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for run in runs:
        sequences, length, dim, vocab = run["shape"]
        key = names[run["what"]], sizes((sequences * length, dim, vocab))
        cell = f"{ratio(run['ratio'])}, {mib(run['extra_mib'])} MiB"
        row = rows.setdefault(key, {})
        if run["candidate"] in ways:
            row[ways[run["candidate"]]] = cell
    found = {column for row in rows.values() for column in row}
    columns = [column for column in dict.fromkeys(ways.values()) if column in found]
    cells = ([*key, *(row.get(column, "") for column in columns)] for key, row in rows.items())
    return table(("loss", "N x D x V", *columns), cells)


def ppo_loss_h200() -> str:
    return own("ppo_loss_h200")


def own(*names: str) -> str:
    """The tables that these runs printed, as one."""
    rows = []
    for name in names:
        rows += read(name)["table"]
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    return table(columns, ([row[column] for column in columns] for row in rows))


def figures_cpu() -> str:
    return own("figures_cpu")


def losses_h100() -> str:
    return own("logp_h100", "grpo_loss_h100")


def linear_logp_h100() -> str:
    return own("linear_logp_h100")


def segments_h200() -> str:
    """Two builds in turn, two processes each: the better median of both."""
    kept = read("segments_h200")
    calls = {call["call"]: call for call in kept["runs"][0]["calls"]}
    rows = []
    for call, name in (
        ("linear 1x4096x128256", "linear_logp 1 x 4096 x 128256"),
        ("linear 256x4096x128256", "linear_logp 256 x 4096 x 128256"),
        ("linear 4096x2048x131072", "linear_logp 4096 x 2048 x 131072"),
        ("linear entropy 4096x4096x128256", "linear_logp 4096 x 4096 x 128256, entropy"),
        ("linear 4096x2048x32768", "linear_logp 4096 x 2048 x 32768"),
        ("linear 4096x2048x50257", "linear_logp 4096 x 2048 x 50257"),
        ("logp 8192x131072 torch.float16", "logp fp16 8192 x 131072"),
        ("logp entropy 8192x131072 torch.float16", "the same, entropy"),
        ("logp 8192x131072 torch.float32", "logp fp32 8192 x 131072"),
        ("logp 8192x151936 torch.bfloat16", "logp bf16 8192 x 151936"),
        ("logp 128x131072 torch.float16", "logp fp16 128 x 131072"),
        ("grpo 32x256x131072", "grpo_loss fp16 32 x 256 x 131072, both passes"),
        ("grpo 32x256x151936", "grpo_loss fp16 32 x 256 x 151936, both passes"),
    ):
        times = (f"{min(calls[call][key]):.4g}" for key in ("before_ms", "after_ms"))
        rows.append((name, *times, f"{calls[call]['ratio']:.2f}"))
    return table(("call", "before, ms", "after, ms", "ratio"), rows)


def stats_h200() -> str:
    """Two builds in turn, three processes each: medians."""
    kept = read("stats_and_ratio_level_h200")

    def median(build: str, call: str, options: dict[str, bool]) -> str:
        times = (one[build][f"{call} {options} [ms]"] for one in kept["rounds"])
        return f"{statistics.median(times):.3f}"

    rows = []
    for call, name, entropy in (
        ("linear_logp 4096 2048 131072", "linear_logp 4096 x 2048 x 131072", False),
        ("linear_logp 4096 2048 131072", "the same, entropy", True),
        ("linear_logp 4096 896 151936", "linear_logp 4096 x 896 x 151936", False),
        ("logp 4096x131072", "logp 4096 x 131072", False),
        ("logp 4096x131072", "the same, entropy", True),
    ):
        options = {"return_entropy": True} if entropy else {}
        both = [median(build, call, options) for build in ("before", "after")]
        rows.append((name, *both, median("after", call, options | {"return_stats": True})))
    return table(("call", "before, ms", "after, ms", "with `return_stats`"), rows)


def first_step() -> str:
    """The first GRPO step of a process, with an empty cache and with a release's kernels."""
    rows = []
    for kept in read("first_step_h200")["heads"]:
        cells = [f"`{kept['head']}`"]
        for kind, unit in (("empty", 1e-3), ("pack", 1.0)):
            for key in ("log_probs_ms", "step_ms"):
                value = statistics.median(one[key] for one in kept["processes"][kind])
                cells.append(f"{three(value * unit)} {'s' if unit < 1 else 'ms'}")
        rows.append(cells)
    return table(("", "empty: log-probs", "whole step", "pack: log-probs", "whole step"), rows)


def det_gemm() -> str:
    kept = read("det_gemm_h200")["times"]
    by_name = {run["what"]: run for run in kept}
    both = "the same, gradients of a and b"
    rows = []
    for digits, name, *parts in (
        (4, "1 x 4096 x 4096", "1x4096x4096 bf16 cold"),
        (4, "16 x 4096 x 4096", "16x4096x4096 bf16 cold"),
        (4, "64 x 4096 x 4096", "64x4096x4096 bf16 cold"),
        (4, "256 x 4096 x 4096", "256x4096x4096 bf16 cold"),
        (4, "256 x 4096 x 12288", "256x4096x12288 bf16 cold"),
        (3, "4096 x 4096 x 4096", "4096x4096x4096 bf16"),
        (3, "8192 x 4096 x 14336", "8192x4096x14336 bf16"),
        (3, both, "8192x4096x14336 bf16 dA", "8192x4096x14336 bf16 dB"),
        (3, "4096 x 4096 x 12288", "4096x4096x12288 bf16"),
        (3, both, "4096x4096x12288 bf16 dA", "4096x4096x12288 bf16 dB"),
        (3, "the same, float32 result", "4096x4096x12288 float32 out"),
        (3, "the same, gradient of b added to float32", "4096x4096x12288 dB accumulated"),
        (3, "4096 x 4096 x 4096, fp16", "4096x4096x4096 fp16"),
        (3, "4096 x 4096 x 4096, fp32 (cuBLAS without TF32)", "4096x4096x4096 fp32"),
    ):
        runs = [by_name[part] for part in parts]
        own, cublas = sum(r["ms"] for r in runs), sum(r["cublas_ms"] for r in runs)
        over = runs[0]["ratio"] if len(runs) == 1 else own / cublas
        rows.append((name, f"{own:.{digits}f} ms", f"{cublas:.{digits}f} ms", f"{over:.2f}"))
    return table(("M x K x N", "det_gemm", "cuBLAS", "ratio"), rows)


def steps() -> list[dict[str, Any]]:
    """The runs of training_step.py, smallest model first, each with what --longest found alone."""
    models = "qwen3-0.6b", "llama-3.2-1b", "qwen3-4b"
    return [
        read(f"training_step_{model}_h200")
        | {"longest": read(f"training_step_longest_{model}_h200")["longest"]}
        for model in models
    ]


def training_step() -> str:
    """README: what a model's GRPO step gains."""
    heads = "torch eager", "torch.compile", "rlk linear_ppo_loss"
    rows = []
    for kept in steps():
        row = [kept["model"], *(f"{kept['longest'][head]:,}" for head in heads)]
        for head in heads:
            run = next(r for r in kept["runs"] if (r["tokens"], r["candidate"]) == (32768, head))
            row.append(f"{run['peak_gib']:.1f} GiB, {run['head_ms']:.0f} ms")
        rows.append(row)
    names = [head.removesuffix(" linear_ppo_loss") for head in heads]
    head = (f"most tokens, {names[0]}", *names[1:], f"32,768 tokens, {names[0]}", *names[1:])
    return table(("", *head), rows)


def training_step_heads() -> str:
    """Every head of every model."""
    rows = []
    for kept in steps():
        for run in kept["runs"]:
            cells = [kept["model"], f"{run['tokens']:,}", run["candidate"]]
            if "ms" in run:
                cells += [f"{run[key]:,.0f}" for key in ("ms", "trunk_ms", "head_ms")]
                cells += [f"{run[key]:.1f}" for key in ("peak_gib", "head_gib")]
            else:
                cells += [run["failed"].partition(":")[0], "", "", "", ""]
            rows.append(cells)
    columns = "step ms", "trunk ms", "head ms", "peak GiB", "head GiB"
    return table(("", "tokens", "head and loss by", *columns), rows)


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        backward_few_rows,
        det_gemm,
        figures_cpu,
        first_step,
        forward_h100,
        forward_h200,
        forward_peers,
        forward_readme,
        kept_exponentials,
        linear_logp_h100,
        linear_loss,
        losses_h100,
        ppo_loss_h200,
        readme,
        segments_h200,
        stats_h200,
        tensor_parallel,
        training_step,
        training_step_heads,
    )
} | checked.made(table)


def written(page: str) -> str:
    """The text of a page with every table in it made anew."""
    return PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def main() -> int:
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = written(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
