# SPDX-License-Identifier: Apache-2.0
"""A GRPO step of a language model on one GPU: time of trunk and of head, and memory, by head.

    python benchmarks/training_step.py --model Qwen3-0.6B --tokens 8192 32768 --out FILE.json
    python benchmarks/training_step.py --model Qwen3-4B --memory-gib 79 --longest torch.compile rlk
        # the longest alone; with --tokens both
    python benchmarks/training_step.py --model tiny --tokens 128 --sequence 32 --device cpu

The models are those of transformers with random weights in bf16 and the sizes of the published
configurations, so nothing is downloaded. A step has log-probs of the rollout (the policy without
gradient) and of the reference (a frozen copy), and one update, forward and backward, of all tokens
at once: the clipped loss with a KL term, activations checkpointed by layer. There is no optimizer
step: its time and memory are the same for every head. The batch is [B, T], sequences of one length
without padding, as many as make --tokens; the first --prompt tokens of each are masked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import harness
import torch
from gpu import peers
from gpu.heads import MAKERS, Head, made
from gpu.step import MODELS, OUT_OF_MEMORY, PHASES, Meter, Step, attempt

GIB = 1 << 30


# --- Measuring ------------------------------------------------------------------------------------


def summary(taken: list[tuple[float, Meter]]) -> dict[str, Any]:
    """Of all steps of a head: medians of the phases, the most memory."""
    samples = [meter.ms() for _, meter in taken]
    phases = dict(zip(PHASES, map(statistics.median, zip(*samples, strict=True)), strict=True))
    head = sum(ms for phase, ms in phases.items() if "head" in phase)
    in_head = [i for i, phase in enumerate(PHASES) if "head" in phase]
    return {
        "ms": statistics.median(map(sum, samples)),
        "trunk_ms": sum(phases.values()) - head,
        "head_ms": head,
        "phases_ms": phases,
        "peak_gib": max(max(meter.peak_bytes) for _, meter in taken) / GIB,
        "head_gib": max(meter.added_bytes[i] for _, meter in taken for i in in_head) / GIB,
        "loss": taken[0][0],
        "samples_ms": [sum(sample) for sample in samples],
    }


def measure(
    step: Step, heads: dict[str, Head], tokens: int, seconds: float, most: int = 5
) -> list[dict[str, Any]]:
    """A row a head. One step each compiles and is dropped, then each has one a round, in turn, as
    long as `seconds` allow, at least 2."""
    batch = step.batch(tokens)
    torch.compiler.reset()  # compiled for another length
    failed: dict[str, str] = {}
    taken: dict[str, list[tuple[float, Meter]]] = {name: [] for name in heads}
    for number in range(most + 1):
        if number == 1:
            start = time.perf_counter()
        if number > 2 and time.perf_counter() - start > seconds:
            break
        for name in (name for name in heads if name not in failed):
            found = attempt(step, heads[name], batch)
            if isinstance(found, str):
                failed[name] = found
            elif number > 0:
                taken[name].append(found)
    return [
        {"tokens": tokens, "candidate": name}
        | ({"failed": failed[name]} if name in failed else summary(taken[name]))
        for name in heads
    ]


def longest(step: Step, head: Head, start: int, most: int) -> int:
    """The most tokens of one step: from `start` on doubled until memory ends, then halved between,
    three times."""

    def fits(tokens: int) -> bool:
        found = attempt(step, head, step.batch(tokens))
        if isinstance(found, str) and found != OUT_OF_MEMORY:
            raise RuntimeError(found)
        return not isinstance(found, str)

    good, bad = 0, start
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    sequence = step.batch(start).ids.shape[1]
    for _ in range(3 if bad <= most else 0):
        between = (good + bad) // 2 // sequence * sequence
        if between <= good:
            break
        good, bad = (between, bad) if fits(between) else (good, between)
    return good


# --- The program ----------------------------------------------------------------------------------

COLUMNS = ("tokens", "head and loss by", "step ms", "trunk ms", "head ms", "peak GiB", "head GiB")


def cells(row: dict[str, Any]) -> list[object]:
    start: list[object] = [row["tokens"], row["candidate"]]
    if "failed" in row:
        short = OUT_OF_MEMORY if row["failed"] == OUT_OF_MEMORY else "failed"
        return [*start, short, None, None, None, None]
    return [*start, *(row[key] for key in ("ms", "trunk_ms", "head_ms", "peak_gib", "head_gib"))]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="Qwen3-0.6B", choices=MODELS)
    add("--tokens", type=int, nargs="+", metavar="N", help="of one step (8192 32768)")
    add("--candidates", nargs="+", default=list(MAKERS), choices=MAKERS, metavar="NAME")
    add("--sequence", type=int, default=4096, metavar="T", help="length of a sequence (4096)")
    add("--prompt", type=int, help="masked tokens at its start (an eighth of it)")
    add("--seconds", type=float, default=25.0, help="for the samples of one length (25)")
    add("--longest", nargs="+", choices=MAKERS, metavar="NAME", help="search their most tokens")
    add("--most", type=int, default=1 << 20, metavar="N", help="where that search ends (2^20)")
    add("--memory-gib", type=float, help="as on a smaller card: what torch may take in all")
    add("--device", default="cuda", choices=("cpu", "cuda"))
    add("--out", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    if options.prompt is None:
        options.prompt = options.sequence // 8
    if options.tokens is None:
        options.tokens = [] if options.longest else [8192, 32768]
    shortest = min([*options.tokens, options.sequence])
    if not 1 <= options.prompt < shortest - 1:
        parser.error(f"--prompt: expected 1 to {shortest - 2}, got {options.prompt}")
    for tokens in options.tokens:
        if tokens > options.sequence and tokens % options.sequence:
            parser.error(f"--tokens: expected a multiple of {options.sequence}, got {tokens}")
    if options.device == "cpu" and (options.memory_gib or options.longest):
        parser.error("--memory-gib and --longest: expected --device cuda, got cpu")
    return options


def main() -> int:
    options = parse()
    # As trainers do: what one length leaves behind must not be in the way of the next.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    facts = harness.environment() | {"versions": peers.versions()}
    facts["torch"] = torch.__version__
    if options.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
        if options.memory_gib:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, options.memory_gib * GIB / total))
    content: dict[str, Any] = {
        key: getattr(options, key) for key in ("model", "sequence", "prompt", "memory_gib")
    }
    content["sizes"] = MODELS[options.model][1]
    heads, content["absent"] = made(options.candidates)
    step = Step(options.model, options.device, options.sequence, options.prompt)
    facts["versions"]["transformers"] = sys.modules["transformers"].__version__
    runs: list[dict[str, Any]] = []
    for tokens in options.tokens:
        runs += measure(step, heads, tokens, options.seconds)
    content["runs"] = runs
    where = f"{options.model}, {facts.get('card', facts['cpu'])}"
    if runs:
        harness.print_table(where, COLUMNS, map(cells, runs))
    for name, reason in content["absent"].items():
        print(f"{name}: absent: {reason}")
    for row in runs:
        if row.get("failed", OUT_OF_MEMORY) != OUT_OF_MEMORY:
            print(f"{row['candidate']}, {row['tokens']} tokens: {row['failed']}")
    if options.longest:
        start = max(options.tokens, default=2 * options.sequence)
        most = content["longest"] = {
            name: longest(step, heads[name], start, options.most)
            for name in options.longest
            if name in heads
        }
        harness.print_table(f"{where}: most tokens", ["head and loss by", "tokens"], most.items())
    if options.out:
        harness.write_json(options.out, "training_step", facts, content)
    found = any("ms" in row for row in runs) or any(content.get("longest", {}).values())
    return int(not found)


if __name__ == "__main__":
    sys.exit(main())
