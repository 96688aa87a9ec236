# SPDX-License-Identifier: Apache-2.0
"""The parts of a run on a GPU, one process each, so that none takes the others along.

python benchmarks/linear_logp.py --device cuda [--only main,host] [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import harness

from gpu import report
from gpu.job import Job

# In the order of a run: what would be missed most comes first.
PARTS = (
    "card",
    "main",
    "forward",
    "first_call",
    "host",
    "odd",
    "budgets",
    "variants",
    "rows",
    "dtypes",
    "backward",
    "backward_peers",
)
MOST_TRIES = 4
MOST_SECONDS = 300.0  # of one try
PROGRAM = str(Path(__file__).resolve().parents[1] / "linear_logp.py")


def measurer(part: str) -> Callable[[Job], dict[str, Any]]:
    """What a part's process runs."""
    from gpu import backward, facts, first_call, forward, host, shapes

    return {
        "card": facts.measure,
        "main": shapes.main_shape,
        "forward": forward.measure,
        "first_call": first_call.measure,
        "host": host.measure,
        "odd": shapes.odd_vocab,
        "budgets": shapes.budgets,
        "variants": shapes.variants,
        "rows": shapes.by_rows,
        "dtypes": shapes.dtypes,
        "backward": backward.own,
        "backward_peers": backward.against_peers,
    }[part]


def run_part(order: str) -> None:
    """The other side of `ordered`: measures and writes JSON."""
    words = json.loads(order)
    job = Job(**words["job"])
    found = measurer(words["part"])(job)
    Path(words["result"]).write_text(json.dumps(found), encoding="utf-8")


def ordered(part: str, job: Job, scratch: Path, deadline: float) -> dict[str, Any]:
    """A part's result. A candidate that ends its process is left out of the next try."""
    result, progress = scratch / f"{part}.json", scratch / "progress"
    for _ in range(MOST_TRIES):
        progress.write_text("the start", encoding="utf-8")
        order = {
            "part": part,
            "job": asdict(replace(job, progress=str(progress))),
            "result": str(result),
        }
        seconds = min(MOST_SECONDS, max(20.0, deadline - time.monotonic()))
        status = in_a_process(json.dumps(order), scratch, seconds)
        if status is None and result.exists():
            found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return found
        culprit = progress.read_text(encoding="utf-8")
        why = status or "no result"
        print(f"{part}: {why} at {culprit}", file=sys.stderr, flush=True)
        if culprit in job.without or time.monotonic() > deadline:
            break
        job = replace(job, without=job.without | {culprit: why})
    return {"failed": f"{why} at {culprit}", "without": job.without}


def in_a_process(order: str, scratch: Path, seconds: float) -> str | None:
    """Runs the order; why it failed, or None. Its children end with it."""
    errors = scratch / "stderr"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, PROGRAM, "--device", "cuda", "--part", order],
            # An empty cache at the start: what lies in it at the end is this run's.
            env=os.environ | {"TMPDIR": str(scratch), "RLK_CACHE_DIR": str(scratch / "rlk")},
            stdout=file,
            stderr=file,
            process_group=0,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = errors.read_text(encoding="utf-8", errors="replace").strip()
    if status != 0 and said:
        print(said[-4000:], file=sys.stderr, flush=True)
    if status is None:
        return f"not done after {seconds:.0f} s"
    if status == 0:
        return None
    last = said.splitlines()[-1][:200] if said else ""
    return f"exit status {status}: {last}"


def kernels(scratch: Path) -> list[dict[str, Any]]:
    """Metadata of the kernels that the run compiled: registers, spills, time of the compile."""
    try:
        where = ("--cache-dir", str(scratch / "rlk"), "--json")
        listed = json.loads(harness.rlk_jit(*where, "list"))
        keys = [entry["key"] for entry in listed if entry["layer"] == "user"]
        return [json.loads(harness.rlk_jit(*where, "show", key))["metadata"] for key in keys]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        print(f"rlk-jit list: {error}", file=sys.stderr)
        return []


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cuda",))
    add("--only", metavar="PART,...", help=f"parts to run: {','.join(PARTS)}")
    add(
        "--quick",
        action="store_true",
        help="small sizes, few samples and peers: does all of it run?",
    )
    add("--rehearse", action="store_true", help="on the CPU, small sizes: no GPU is needed")
    add("--seconds", type=float, default=300.0, help="no part begins after that (300)")
    add("--out", type=Path, default=harness.ROOT / "benchmarks" / "results", metavar="DIR")
    add("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.only = options.only.split(",") if options.only else list(PARTS)
    unknown = set(options.only) - set(PARTS)
    if unknown:
        parser.error(f"--only: expected parts of {','.join(PARTS)}, got {','.join(unknown)}")
    return options


def file_name(parts: report.Parts, options: argparse.Namespace) -> str:
    """By card: linear_logp_h100.json."""
    words = parts.get("card", {}).get("card", "")
    model = re.search(r"[A-Z]+\d+\w*|RTX \w+", words.removeprefix("NVIDIA "))
    name = model.group().lower().replace(" ", "_") if model else "cuda"
    if options.rehearse:
        name = "rehearsal"
    return f"linear_logp_{name}{'_quick' if options.quick else ''}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.part:
        run_part(options.part)
        return 0
    job = Job("cpu" if options.rehearse else "cuda", options.quick)
    start = time.monotonic()
    facts = harness.environment() | {"command": " ".join(sys.argv[1:])}
    parts: report.Parts = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rlk-bench-") as scratch:
        for part in (part for part in PARTS if part in options.only):
            begun = time.monotonic()
            if begun - start > options.seconds:
                parts[part] = {"failed": f"not begun: {options.seconds:.0f} s were over"}
                continue
            deadline = start + options.seconds + 60
            parts[part] = ordered(part, job, Path(scratch), deadline)
            seconds[part] = round(time.monotonic() - begun, 1)
            print(f"{part}: {seconds[part]} s", file=sys.stderr, flush=True)
            # A run that is cut off leaves what it has.
            file = options.out / file_name(parts, options)
            content: dict[str, Any] = {"seconds": seconds, "parts": parts}
            harness.write_json(file, "linear_logp_cuda", facts, content)
        content["kernels"] = kernels(Path(scratch))
    report.print_parts(parts)
    card = parts.get("card", {}).get("card", "no card")
    title = f"{card}, torch {facts.get('torch', '?')}, {sum(seconds.values()):.0f} s"
    content["table"] = harness.print_figures(title, report.figures(parts, content["kernels"]))
    harness.write_json(file, "linear_logp_cuda", facts, content)
    return int(any("failed" in part for part in parts.values()))
