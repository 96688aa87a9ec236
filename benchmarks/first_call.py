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
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

WARM_CALLS = 9


def first_and_warm(name: str, call: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of the first call, by the clock and of processor time, and of a warm one (the
    median). Processor time tells a slow compile from a busy machine."""
    start, start_cpu = time.perf_counter(), time.process_time()
    call()
    first, first_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    warm = []
    for _ in range(WARM_CALLS):
        start = time.perf_counter()
        call()
        warm.append(time.perf_counter() - start)
    return {
        f"{name}_first_ms": 1e3 * first,
        f"{name}_first_cpu_ms": 1e3 * first_cpu,
        f"{name}_warm_ms": 1e3 * sorted(warm)[WARM_CALLS // 2],
    }


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

    out |= first_and_warm("forward", lambda: rlk.jit.linear_logp(hidden, weight, target))
    # What lies between the import and the first call is there only because this script reports.
    out["first_result_ms"] = (rlk_ns - started_ns) / 1e6 + out["forward_first_ms"]

    ones = np.ones(1, np.float32)
    out |= first_and_warm(
        "backward", lambda: rlk.jit.linear_logp_backward(ones, hidden, weight, target)
    )
    # A second entry: the dispatcher, its threads and the compiler are there.
    out |= first_and_warm("second", lambda: rlk.jit.linear_logp(hidden, weight[:-1], target))

    maps = Path("/proc/self/maps").read_text()
    out["llvm_opened"] = "librlk_llvm" in maps
    out["torch_imported"] = "torch" in sys.modules
    print(json.dumps(out | rlk.jit.cache_info()._asdict()))


if __name__ == "__main__":
    main()
