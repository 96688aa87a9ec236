# SPDX-License-Identifier: Apache-2.0
"""Time of ppo_loss, forward and backward, against PyTorch eager and torch.compile.

    python benchmarks/ppo_loss.py [--device cuda] [--shape 256x16384] [--json FILE]

On CUDA times are of bursts between events, on the CPU of single calls by the clock. Each burst runs
the candidates in turn. A burst of calls from Python is bound by the host where the kernels are
short, so each candidate is timed as a captured CUDA graph of several calls too: the GPU's own time.
"autograd alone" is a torch.autograd.Function that computes nothing: what the calls of none can go
below. Without --shape three rows are measured on CUDA, which have bars, and on the CPU one shape in
all cases. Exit status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from gpu.clock import Clock
from harness import Candidate, Figure

import rlk

CASES = {
    "clip": (False, False),
    "dual clip": (True, False),
    "TIS": (False, True),
    "dual clip + TIS": (True, True),
}
CPU_SHAPE = (128, 512)
LOW, HIGH, DUAL, CAP = 0.2, 0.2, 3.0, 10.0
FULL = "dual clip + TIS"
GRAPH = ", CUDA graph"
GRAPH_CALLS = 10  # in one graph: else the host's time of a replay shows
Row = tuple[tuple[int, int], str]  # shape, case
CUDA_ROWS: list[Row] = [((256, 16384), "clip"), ((256, 16384), FULL), ((128, 512), "clip")]


def draw(rows: int, length: int, device: str) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)

    def normal(scale: float) -> Any:
        return scale * torch.randn(rows, length, generator=g)

    log_probs = -torch.rand(rows, length, generator=g) * 3
    old = log_probs + normal(0.1)
    tensors = {
        "log_probs": log_probs,
        "old": old,
        "rollout": old + normal(0.05),
        "advantages": normal(1.0),
        "mask": torch.rand(rows, length, generator=g) < 0.9,
    }
    found = {name: tensor.to(device) for name, tensor in tensors.items()}
    found["log_probs"].requires_grad_()
    return found


def eager(t: dict[str, Any], dual: bool, tis: bool) -> tuple[Any, Any]:
    """Loss and clip ratio, as PyTorch users write them."""
    mask = t["mask"].float()
    advantages = t["advantages"]
    ratio = (t["log_probs"] - t["old"]).clamp(-20, 20).exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - LOW, 1 + HIGH)
    loss = torch.maximum(plain, clipped)
    if dual:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * DUAL), loss)
    if tis:
        loss = loss * (t["old"] - t["rollout"]).clamp(-20, 20).exp().clamp(max=CAP)
    count = mask.sum().clamp(min=1)
    return (loss * mask).sum() / count, ((clipped > plain).float() * mask).sum() / count


def ours(t: dict[str, Any], dual: bool, tis: bool) -> tuple[Any, Any]:
    loss, metrics = rlk.jit.ppo_loss(
        t["log_probs"],
        t["old"],
        t["advantages"],
        t["mask"],
        use_dual_clip=dual,
        use_tis=tis,
        rollout_logprobs=t["rollout"],
    )
    return loss, metrics.clip_ratio


def both_passes(
    loss_of: Callable[..., tuple[Any, Any]], t: dict[str, Any], dual: bool, tis: bool
) -> Callable[[], Any]:
    def run() -> Any:
        t["log_probs"].grad = None
        loss, clip_ratio = loss_of(t, dual, tis)
        loss.backward()
        return clip_ratio

    return run


class Nothing(torch.autograd.Function):
    """A loss whose value and gradient are there already."""

    @staticmethod
    def forward(ctx: Any, log_probs: Any, loss: Any, grad: Any) -> Any:
        ctx.save_for_backward(grad)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return ctx.saved_tensors[0], None, None


def graph_of(run: Callable[[], Any]) -> Callable[[], Any]:
    """Replays the kernels of GRAPH_CALLS calls."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            run()
    return graph.replay


def candidates(t: dict[str, Any], dual: bool, tis: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Calls by name, each run once, and why one is missing."""
    made = torch.zeros_like(t["log_probs"]).detach(), torch.zeros((), device=t["old"].device)

    def nothing(t: dict[str, Any], *_: bool) -> tuple[Any, Any]:
        return Nothing.apply(t["log_probs"], made[1], made[0]), None

    makers = {"rlk": ours, "torch eager": eager, "torch.compile": torch.compile(eager)}
    runs = {name: both_passes(function, t, dual, tis) for name, function in makers.items()}
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}

    def attempt(name: str, make: Callable[[], Callable[[], Any]]) -> None:
        try:
            run = make()
            run()
            found[name] = run
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]

    for name, run in runs.items():
        attempt(name, lambda run=run: run)
    attempt("autograd alone", lambda: both_passes(nothing, t, dual, tis))
    if t["old"].is_cuda:
        for name in [*runs]:
            if name in found:
                attempt(name + GRAPH, lambda name=name: graph_of(runs[name]))
    return found, missing


def measure(device: str, row: Row, rounds: int) -> dict[str, Any]:
    """Milliseconds a call by candidate: all samples, medians, ratios to rlk."""
    clock = Clock(device)
    shape, case = row
    dual, tis = CASES[case]
    t = draw(*shape, device)
    torch.compiler.reset()
    runs, missing = candidates(t, dual, tis)
    samples: dict[str, list[float]]
    if device == "cuda":
        samples = {name: [] for name in runs}
        calls = {name: clock.calls_for(run) for name, run in runs.items()}
        for number in range(rounds):
            names = list(runs)[number % len(runs) :] + list(runs)[: number % len(runs)]
            for name in names:
                per_run = GRAPH_CALLS if name.endswith(GRAPH) else 1
                samples[name].append(clock.burst_ms(runs[name], calls[name]) / per_run)
    else:
        order = [Candidate(name, run, calls=20) for name, run in runs.items()]
        samples = {
            name: [1e3 * s for s in seconds]
            for name, seconds in harness.interleave(order, rounds).items()
        }
    with torch.no_grad():
        error = abs(float(ours(t, dual, tis)[0]) - float(eager(t, dual, tis)[0]))
    return {
        "shape": shape,
        "case": case,
        "ms": {name: statistics.median(s) for name, s in samples.items()},
        "ratio": {
            name: harness.paired_ratio(samples["rlk" + GRAPH * name.endswith(GRAPH)], s)
            for name, s in samples.items()
        },
        "samples_ms": samples,
        "not_run": missing,
        "loss_differs_by": error,
    }


def figures_of(device: str, found: dict[str, Any]) -> list[Figure]:
    """What is told of a row."""
    rows, length = found["shape"]
    words = f"ppo_loss, forward + backward, {rows} x {length}, {found['case']}"
    ms, ratio, missing = found["ms"], found["ratio"], found["not_run"]
    name = "torch.compile"

    def against(other: str) -> str:
        mine = "rlk" + GRAPH * other.endswith(GRAPH)
        if other not in ms or mine not in ms:
            return str(missing.get(other, missing.get(mine, "")))
        return f"{ms[mine]:.4f} against {ms[other]:.4f} ms"

    if device == "cpu":
        if found["case"] != FULL:
            return []
        eager_ratio = ratio["torch eager"]
        note = against("torch eager")
        return [
            Figure(f"{words}, over torch eager", eager_ratio, "x", 0.5, note, strict=False),
            Figure(f"{words}, over {name}", ratio.get(name), "x"),
        ]
    graph, is_barred = name + GRAPH, (found["shape"], found["case"]) in CUDA_ROWS
    return [
        Figure(
            f"{words}, over {graph}",
            ratio.get(graph),
            "x",
            1.0 if is_barred else None,
            against(graph),
            strict=False,
        ),
        Figure(
            f"{words}, calls over {name}",
            ratio.get(name),
            "x",
            0.40 if is_barred else None,
            against(name),
            strict=False,
        ),
        Figure(f"{words}, calls over torch eager", ratio["torch eager"], "x"),
        Figure(f"{words}, calls of autograd alone", ms.get("autograd alone"), "ms"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--shape", metavar="BxT", help="all cases of this shape")
    add("--rounds", type=int, default=25, help="samples a candidate (25)")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    all_rows = CUDA_ROWS if options.device == "cuda" else [(CPU_SHAPE, case) for case in CASES]
    if options.shape:
        rows, length = map(int, options.shape.split("x"))
        all_rows = [((rows, length), case) for case in CASES]
    facts = harness.environment()
    if options.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
    results = []
    for row in all_rows:
        found = measure(options.device, row, options.rounds)
        results.append(found)
        (rows, length), case = row
        harness.print_table(
            f"{case}, {rows} x {length} fp32, forward + backward, {options.device}",
            ["candidate", "median ms", "rlk / it"],
            ([name, ms, found["ratio"][name]] for name, ms in found["ms"].items()),
        )
        for name, reason in found["not_run"].items():
            print(f"{name}: not run: {reason}\n")
    listed = [figure for found in results for figure in figures_of(options.device, found)]
    table = harness.print_figures(f"ppo_loss on {facts.get('card', facts['cpu'])}", listed)
    if options.json:
        content = {"results": results, "table": table}
        harness.write_json(options.json, "ppo_loss", facts, content)
    return int(any(figure.verdict == "no" for figure in listed))


if __name__ == "__main__":
    sys.exit(main())
