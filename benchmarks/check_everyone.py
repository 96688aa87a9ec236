# SPDX-License-Identifier: Apache-2.0
"""rlk-check on every implementation by name: accuracy, bits, odd V, special values, known bugs.

    python benchmarks/check_everyone.py --out FILE [--seconds 280] [--devices 0,1,2,3] [--jobs 6]

Each candidate takes each group of cases in a process of its own with a time limit. A process that
ends at a case starts anew behind it, so that a crash is that case's result. docs/peers_checked.md
is made of FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import harness

import rlk.check
from rlk.check.peers import PEERS, peer_ops
from rlk.check.report import versions

SIZES = {"batch": 2, "seq": 64, "vocab": 4096, "hidden": 256, "grad": True}
FEW = {**SIZES, "seq": 8}
PLAIN: dict[str, Any] = {"bias": "none"}
DTYPES = ("bf16", "fp16", "fp32")
ODD = (1, 2, 17, 1535, 4099, 50257)
KINDS = (
    *("flat", "offset", "negative", "neg_inf", "neg_inf_target", "neg_inf_row", "dominant"),
    *("garbage", "nan_row", "zero_upstream"),
)
CANDIDATES = ("rlk", "torch", *PEERS)
PROGRAM = __file__
MOST_RESTARTS = 6
GROUP_S = 200.0  # that one group of a candidate may take


def op_of(candidate: str) -> str:
    """The op that stands for a candidate: linear_logp, else the loss."""
    has = peer_ops(candidate) if candidate in PEERS else ("linear_logp",)
    return "linear_logp" if "linear_logp" in has else "linear_cross_entropy"


def groups(op: str) -> dict[str, list[dict[str, Any]]]:
    """What rlk.check.run is asked for, by group."""
    plain = PLAIN if op == "linear_logp" else {**PLAIN, "reduction": "sum"}
    options = [{"bias": "same"}, {**PLAIN, "softcap": 30.0}]
    if op == "linear_logp":
        options += [{**PLAIN, "temperature": 0.7, "return_entropy": True}]
        options += [{**PLAIN, "temperature": "row", "mask": "bool"}]
    return {
        "accuracy": [
            {**SIZES, "dtype": dtype, "input_mode": mode, "options": plain}
            for dtype in DTYPES
            for mode in ("random", "benchmark")
        ],
        "options": [{**SIZES, "dtype": "bf16", "options": {**plain, **one}} for one in options],
        "bits": [{**SIZES, "seq": 65, "dtype": "bf16", "invariance": True, "options": plain}],
        "odd V": [{**FEW, "dtype": "bf16", "vocab": v, "options": plain} for v in ODD],
        "special": [
            {**FEW, "dtype": "bf16", "input_mode": kind, "options": plain} for kind in KINDS
        ],
        "bugs": [
            {"corpus": bug.name} for bug in rlk.check.corpus.known_bugs("all") if bug.op == op
        ],
    }


# --- One process ----------------------------------------------------------------------------------


def child(candidate: str, device: str, group: str, first: int) -> None:
    """Prints one JSON line where a call starts, and one for each result."""

    def say(**content: Any) -> None:
        print(json.dumps(content), flush=True)

    op = op_of(candidate)
    for number, given in enumerate(groups(op)[group]):
        if number < first:
            continue
        say(call=number)
        variant = "generic" if candidate == "rlk" else None
        report = rlk.check.run(op, candidate, device=device, variant=variant, **given)
        for result in report.to_json()["results"]:
            say(call=number, result=kept(result))
    say(done=True)


def kept(result: dict[str, Any]) -> dict[str, Any]:
    """What the page needs of a result."""
    case = result["case"]
    names = ("check", "status", "failure", "message", "worst", "errors")
    found = {name: result[name] for name in names}
    if found["message"] is not None:
        found["message"] = found["message"][:160]
    line = {name: case[name] for name in ("dtype", "kind", "lead", "sizes", "options")}
    return {**line, **{name: value for name, value in found.items() if value not in (None, {})}}


# --- All of them ----------------------------------------------------------------------------------


@dataclass
class Task:
    """A candidate's group, and what came of it."""

    candidate: str
    group: str
    results: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def run(self, device: str, card: str | None, end: float) -> None:
        """Until all calls are through or the time is over."""
        limit = min(end, time.monotonic() + GROUP_S)
        first = 0
        for _ in range(MOST_RESTARTS):
            if time.monotonic() >= limit:
                self.stopped.append("out of time")
                return
            lines, how = self._process(device, card, first, limit)
            self.results += [line["result"] for line in lines if "result" in line]
            if any("done" in line for line in lines):
                return
            calls = [line["call"] for line in lines if "call" in line]
            if not calls or how == "out of time":
                self.stopped.append(how)
                return
            self.stopped.append(f"{how} at {self._told(calls[-1])}")
            first = calls[-1] + 1

    def _told(self, call: int) -> str:
        given = groups(op_of(self.candidate))[self.group][call]
        names = ("dtype", "input_mode", "vocab", "corpus")
        return " ".join(str(given[name]) for name in names if name in given)

    def _process(
        self, device: str, card: str | None, first: int, limit: float
    ) -> tuple[list[dict[str, Any]], str]:
        """The lines of one process, and how it ended."""
        order = json.dumps([self.candidate, device, self.group, first])
        env = os.environ | ({"CUDA_VISIBLE_DEVICES": card} if card is not None else {})
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                [sys.executable, PROGRAM, "--child", order],
                env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(max(limit - time.monotonic(), 0.1))
                how = f"exit status {status}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                how = "out of time"
            out.seek(0)
            log.seek(0)
            said = [line for line in log.read().splitlines() if line.strip()]
            if how.startswith("exit status") and how != "exit status 0" and said:
                how += f" ({said[-1][:160]})"
            return [found for line in out.read().splitlines() if (found := _read(line))], how


def _read(line: str) -> dict[str, Any] | None:
    """A line of a child's: a package may print others."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def run_all(options: argparse.Namespace) -> list[Task]:
    """Every group of every candidate, so many at once on each card. Groups that take long first."""
    end = time.monotonic() + options.seconds
    tasks = [Task(name, group) for group in options.group for name in options.candidate]
    cards: Queue[str | None] = Queue()
    for card in options.devices.split(",") if options.device == "cuda" else [None]:
        for _ in range(options.jobs):
            cards.put(card)

    def one(task: Task) -> None:
        card = cards.get()
        try:
            start = time.monotonic()
            task.run(options.device, card, end)
            counts = {s: sum(r["status"] == s for r in task.results) for s in ("passed", "failed")}
            took = f"{time.monotonic() - start:.0f} s"
            print(task.candidate, task.group, counts, task.stopped or "", took, flush=True)
        finally:
            cards.put(card)

    with ThreadPoolExecutor(cards.qsize()) as pool:
        list(pool.map(one, tasks))
    return tasks


def document(tasks: list[Task]) -> dict[str, Any]:
    names = list(dict.fromkeys(task.candidate for task in tasks))
    packages = {p for name in names if name in PEERS for p in PEERS[name].packages}
    return {
        "packages": versions(sorted(packages)),
        "candidates": [
            {
                "candidate": name,
                "op": op_of(name),
                "groups": {
                    task.group: {"stopped": task.stopped, "results": task.results}
                    for task in tasks
                    if task.candidate == name
                },
            }
            for name in names
        ],
    }


def card_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    every = tuple(groups("linear_logp"))
    add("--out", type=Path, metavar="FILE", help="where the results go, as JSON")
    add("--seconds", type=float, default=280.0, help="for all, at most (280)")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--devices", default="0", metavar="0,1", help="cards to spread over (0)")
    add("--jobs", type=int, default=6, help="processes at once on a card (6)")
    add("--candidate", nargs="+", default=list(CANDIDATES), choices=CANDIDATES)
    add("--group", nargs="+", default=list(every), choices=every)
    add("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.child:
        child(*json.loads(options.child))
        return 0
    tasks = run_all(options)
    if options.out:
        import torch

        facts = harness.environment() | {"card": card_name(), "torch": torch.__version__}
        harness.write_json(options.out, "check_everyone", facts, document(tasks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
