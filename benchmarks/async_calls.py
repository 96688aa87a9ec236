# SPDX-License-Identifier: Apache-2.0
"""Policy async on a cold cache: the first call, and calls while others compile in the background.

Each round is a fresh process with an empty cache, one thread for kernels and so one spare core on a
machine of two. All times of a round are compared with the generic kernel's warm time in it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

ROWS, DIM, VOCAB = 512, 1024, 32000
NUM_OTHERS = 24  # shapes that compile meanwhile
WARM_CALLS = 5


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def one_round() -> dict[str, Any]:
    import numpy as np

    import rlk

    rng = np.random.default_rng(1)
    hidden = 0.5 * rng.standard_normal((ROWS, DIM), np.float32)
    weight = rng.standard_normal((VOCAB, DIM), np.float32) / np.float32(DIM**0.5)
    target = rng.integers(0, VOCAB, ROWS)

    def call() -> object:
        return rlk.jit.linear_logp(hidden, weight, target)

    first_ms = milliseconds(call)
    fallbacks = rlk.jit.cache_info().fallbacks
    rlk.jit.wait()
    rlk.jit.configure(specialize=False)
    generic_ms = [milliseconds(call) for _ in range(WARM_CALLS)]

    rlk.jit.configure(specialize=True)
    for i in range(1, 1 + NUM_OTHERS):
        rlk.jit.linear_logp(hidden[:1], weight[:-i], target[:1] % 1000)
    rlk.jit.configure(specialize=False)
    meanwhile_ms = []
    while not rlk.jit.wait(0):
        meanwhile_ms.append(milliseconds(call))
    return {
        "first_ms": first_ms,
        "first_was_generic": fallbacks == 1,
        "generic_ms": generic_ms,
        "meanwhile_ms": meanwhile_ms,
        "compiles": rlk.jit.cache_info().compiles,
    }


def run_rounds(num_rounds: int) -> list[dict[str, Any]]:
    rounds = []
    for _ in range(num_rounds):
        with tempfile.TemporaryDirectory() as cache:
            env = {"RLK_JIT": "async", "RLK_CACHE_DIR": cache, "RLK_NUM_THREADS": "1"}
            rounds.append(harness.run_child([__file__, "--round"], env))
    return rounds


def figures(rounds: list[dict[str, Any]]) -> list[harness.Figure]:
    generic = [statistics.median(each["generic_ms"]) for each in rounds]
    ratio = statistics.median(
        each["first_ms"] / warm for each, warm in zip(rounds, generic, strict=True)
    )
    over = [
        ms - warm for each, warm in zip(rounds, generic, strict=True) for ms in each["meanwhile_ms"]
    ]
    idle = [max(each["generic_ms"]) - warm for each, warm in zip(rounds, generic, strict=True)]
    return [
        harness.Figure(
            "first call over the generic kernel's warm one",
            ratio,
            "x",
            1.2,
            strict=False,
            missed=not all(each["first_was_generic"] for each in rounds),
        ),
        harness.Figure(
            "slowest call while others compile, less a warm one",
            max(over),
            "ms",
            20,
            f"{len(over)} calls",
            strict=False,
        ),
        harness.Figure("median of these", statistics.median(over), "ms"),
        harness.Figure(
            "slowest warm call, less the median", max(idle), "ms", note="nothing compiles"
        ),
        harness.Figure("the generic kernel's warm call", statistics.median(generic), "ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all samples there")
    parser.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.round:
        print(json.dumps(one_round()))
        return
    os.environ["RLK_NUM_THREADS"] = "1"
    facts = harness.environment()
    rounds = run_rounds(options.rounds)
    found = figures(rounds)
    title = (
        f"RLK_JIT=async, N={ROWS} D={DIM} V={VOCAB} float32, one thread, {options.rounds} rounds"
    )
    harness.print_figures(title, found)
    if options.json:
        harness.write_json(options.json, "async_calls", facts, {"rounds": rounds})


if __name__ == "__main__":
    sys.exit(main())
