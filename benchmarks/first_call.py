# SPDX-License-Identifier: Apache-2.0
"""The first calls of a process, for call_overhead.py: `first_call.py STARTED_NS V D` prints JSON.

STARTED_NS is the monotonic clock of the parent just before it started this process. What lies in
the cache decides whether the first calls load or compile.
"""

import sys
import time

ready_ns = time.monotonic_ns()

import numpy as np  # noqa: E402

numpy_ns = time.monotonic_ns()

import rlk.jit  # noqa: E402

rlk_ns = time.monotonic_ns()

import json  # noqa: E402
from pathlib import Path  # noqa: E402

WARM_CALLS = 9


def first_and_warm(call) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Milliseconds of the first call, and of a warm one (the median)."""
    ms = []
    for _ in range(1 + WARM_CALLS):
        start = time.perf_counter()
        call()
        ms.append(1e3 * (time.perf_counter() - start))
    return ms[0], sorted(ms[1:])[WARM_CALLS // 2]


def main() -> None:
    """One row against a weight of one stored row, seen V times: no time goes into memory."""
    started_ns, vocab, dim = map(int, sys.argv[1:])
    hidden = np.full((1, dim), 0.1, np.float32)
    weight = np.broadcast_to(np.full(dim, 0.1, np.float32), (vocab, dim))
    target = np.zeros(1, np.int64)
    out = {
        "interpreter_ms": (ready_ns - started_ns) / 1e6,
        "import_numpy_ms": (numpy_ns - ready_ns) / 1e6,
        "import_rlk_ms": (rlk_ns - numpy_ns) / 1e6,
    }

    begin_ns = time.monotonic_ns()
    rlk.jit.linear_logp(hidden, weight, target)
    end_ns = time.monotonic_ns()
    # Less what came between only because this script reports.
    out["first_result_ms"] = (end_ns - begin_ns + rlk_ns - started_ns) / 1e6
    first = (end_ns - begin_ns) / 1e6
    _, warm = first_and_warm(lambda: rlk.jit.linear_logp(hidden, weight, target))
    out |= {"forward_first_ms": first, "forward_warm_ms": warm}

    ones = np.ones(1, np.float32)
    first, warm = first_and_warm(lambda: rlk.jit.linear_logp_backward(ones, hidden, weight, target))
    out |= {"backward_first_ms": first, "backward_warm_ms": warm}

    # A second entry: the dispatcher, its threads and the compiler are there.
    first, warm = first_and_warm(lambda: rlk.jit.linear_logp(hidden, weight[:-1], target))
    out |= {"second_first_ms": first, "second_warm_ms": warm}

    maps = Path("/proc/self/maps").read_text()
    out["llvm_opened"] = "librlk_llvm" in maps
    out["torch_imported"] = "torch" in sys.modules
    print(json.dumps(out | rlk.jit.cache_info()._asdict()))


if __name__ == "__main__":
    main()
