# SPDX-License-Identifier: Apache-2.0
"""rlk-jit warm over many models and targets: does it use all cores?

Each round fills an empty folder by one run with a job a core, and by as many independent runs at
once, each with one job and its share of the models; the order alternates. What the runs reach is
what the machine gives; the ratio says how much of that one run gets. Only forwards of linear_logp
are compiled: models share kernels of logits, which independent runs would compile twice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import harness

from rlk._program import command


def heads() -> list[str]:
    """V=..,D=.. of the models that a release has kernels for, as rlk-jit takes a model."""
    lines = (harness.ROOT / "release/heads.txt").read_text().splitlines()
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def warm(models: list[str], archs: list[str], jobs: int, folder: Path) -> list[str]:
    targets = [word for arch in archs for word in ("--arch", arch)]
    kernels = ["--op", "linear_logp", "--pass", "fwd"]
    options = ["--jobs", str(jobs), "--cache-dir", str(folder), "--json"]
    return command(["warm", *targets, *kernels, *options, "--", *models])


def seconds(commands: list[list[str]]) -> tuple[float, int]:
    """Until all have ended, and how many kernels they have compiled together."""
    start = time.perf_counter()
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for words in commands]
    said = [process.communicate()[0] for process in running]
    elapsed = time.perf_counter() - start
    for process in running:
        if process.returncode != 0:  # it has said why
            raise subprocess.CalledProcessError(process.returncode, process.args)
    outcomes = [kernel["outcome"] for text in said for kernel in json.loads(text)["kernels"]]
    return elapsed, outcomes.count("compiled")


def one_round(archs: list[str], models: list[str], number: int) -> dict[str, float]:
    cores = len(os.sched_getaffinity(0))
    found: dict[str, float] = {}
    num_compiled = {}
    kinds = ["one run", "independent runs"]
    for kind in kinds if number % 2 == 0 else kinds[::-1]:
        with tempfile.TemporaryDirectory() as root:
            if kind == "one run":
                commands = [warm(models, archs, cores, Path(root, "one"))]
            else:
                shares = [models[i::cores] for i in range(min(cores, len(models)))]
                commands = [
                    warm(share, archs, 1, Path(root, str(i))) for i, share in enumerate(shares)
                ]
            found[kind], num_compiled[kind] = seconds(commands)
    if len(set(num_compiled.values())) != 1:
        raise RuntimeError(f"expected the same kernels of both, compiled {num_compiled}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--arch", nargs="+", default=["sm_80", "sm_90a", "sm_100"])
    parser.add_argument("--json", type=Path, help="write all samples there")
    options = parser.parse_args()
    facts = harness.environment()
    models = heads()[: options.models]
    rounds = [one_round(options.arch, models, number) for number in range(options.rounds)]
    one = [each["one run"] for each in rounds]
    independent = [each["independent runs"] for each in rounds]
    ratio = harness.paired_ratio(independent, one)
    found = [
        harness.Figure("speed-up over that of independent runs", ratio, "x", note="at least 0.9",
                       missed=ratio < 0.9),
        harness.Figure("one run, all cores", statistics.median(one), "s"),
        harness.Figure("independent runs at once", statistics.median(independent), "s"),
    ]  # fmt: skip
    title = (
        f"rlk-jit warm, {len(models)} models x {len(options.arch)} targets, forward, "
        f"{facts['cores']} cores, {options.rounds} rounds"
    )
    harness.print_figures(title, found)
    if options.json:
        harness.write_json(
            options.json,
            "warm_models",
            facts,
            {"models": models, "archs": options.arch, "rounds": rounds},
        )


if __name__ == "__main__":
    main()
