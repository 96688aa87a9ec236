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

import checked
from kept import MAIN, PEERS, ROOT, Run, Runs, error, mib, ratio, read, sizes, three

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACE = re.compile(r"(<!-- table: (\w+) -->\n\n).*?(\n\n<!-- end of table -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def backward_peers() -> str:
    """README: forward and backward at the main shape."""
    runs = Runs("backward_peers_h200", "backward_peers")
    rows = []
    for candidate, name in PEERS.items():
        run = runs.of(MAIN, candidate)
        cells = ratio(run["ratio"]), mib(run["extra_mib"]) + " MiB", error(run["max_error"])
        rows.append((name, *cells))
    head = ("4096 x 2048 x 131072", "time / g", "memory", "largest error of log p")
    return table(head, rows)


def backward_few_rows() -> str:
    """The same of few rows, whose whole budget is 64 MiB."""
    runs = Runs("backward_peers_h200", "backward_peers")
    shapes = [(rows, 4096, 128256) for rows in (256, 64)]
    rows = []
    for candidate in ("rlk", *list(PEERS)[3:], "verl chunked", "Liger selective"):
        cells = []
        for shape in shapes:
            run = runs.get(shape, candidate)
            cells += [ratio(run["ratio"]), mib(run["extra_mib"])] if run else ["", ""]
        rows.append(("rlk" if candidate == "rlk" else PEERS.get(candidate, candidate), *cells))
    head = ["4096 x 128256"]
    for shape in shapes:
        head += [f"{shape[0]} rows, / g", "MiB"]
    return table(head, rows)


def forward_readme() -> str:
    """README: the forward alone."""
    runs = Runs("forward_h100", "forward")
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
    return _forward("forward_h200", with_ignore_index=False, with_memory=False)


def forward_peers_h200() -> str:
    """Both passes of every candidate, by a build whose backward was another one."""
    runs = Runs("forward_h200", "main")
    names = {
        "rlk": "rlk",
        "torch.compile": "torch.compile",
        "torch eager, 16-bit": "torch eager, 16-bit",
        "torch eager, fp32 softmax": "torch eager, fp32 softmax",
        "CCE, exact": "cut-cross-entropy, exact",
        "CCE, filtered": "cut-cross-entropy, filtered",
        "verl": "verl",
        "Liger chunked": "Liger, chunked",
        "Liger selective": "Liger, selective",
    }
    rows = []
    for candidate, name in names.items():
        cells = [name]
        for which in ("fwd", "fwd+bwd"):
            run = runs.of(MAIN, candidate, which=which)
            cells += [ratio(run["ratio"]), f"{run['extra_mib']:.0f}"]
        largest = f"{runs.of(MAIN, candidate, which='fwd')['max_error']:.1e}"
        rows.append([*cells, re.sub("e-0", "e-", largest)])
    head = ("forward, / g", "extra MiB", "forward + backward, / g", "extra MiB", "largest error")
    return table((sizes(MAIN), *head), rows)


def forward_peers() -> str:
    """The forward of every candidate at the main shape, alone."""
    runs = Runs("forward_h200", "main")
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
    runs = Runs("backward_h200", "backward")

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
        "rlk": "one chunk, or three",
        "rlk, the default memory": "`workspace_mib` 768",
        "rlk, two ops": "linear_logp and its loss",
        "torch.compile": "`torch.compile`",
        "Liger GRPO, one chunk": "Liger GRPO",
        "Liger": "Liger",
        "CCE, exact": "CCE, exact",
    }
    runs = [run for run in read("linear_loss_h200")["runs"] if "ratio" in run]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for run in runs:
        sequences, length, dim, vocab = run["shape"]
        key = names[run["what"]], sizes((sequences * length, dim, vocab))
        cell = f"{ratio(run['ratio'])}, {mib(run['extra_mib'])} MiB"
        rows.setdefault(key, {})[run["candidate"]] = cell
    cells = ([*key, *(row.get(way, "") for way in ways)] for key, row in rows.items())
    return table(("loss", "N x D x V", *ways.values()), cells)


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


def training_step(name: str) -> str:
    """A GRPO step of a model, one row a head, of benchmarks/results/NAME.json."""
    kept = read(name)
    lengths = list(dict.fromkeys(run["tokens"] for run in kept["runs"]))
    rows: dict[str, list[str]] = {}
    for run in kept["runs"]:
        cells = rows.setdefault(run["candidate"], [run["candidate"]])
        if "ms" in run:
            cells += [three(run["ms"] / 1e3), three(run["head_ms"] / 1e3)]
            cells.append(f"{run['peak_gib']:.1f}")
        else:
            cells += [run["failed"], "", ""]
    head = [kept["model"]]
    for tokens in lengths:
        head += [f"{tokens} tokens, s a step", "of that head and loss", "peak, GiB"]
    if "longest" in kept:
        head.append("most tokens")
        for candidate, most in kept["longest"].items():
            rows[candidate].append(str(most))
    return table(head, rows.values())


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        backward_few_rows,
        backward_peers,
        det_gemm,
        figures_cpu,
        forward_h100,
        forward_h200,
        forward_peers,
        forward_peers_h200,
        forward_readme,
        kept_exponentials,
        linear_logp_h100,
        linear_loss,
        losses_h100,
        ppo_loss_h200,
        segments_h200,
        stats_h200,
        tensor_parallel,
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
