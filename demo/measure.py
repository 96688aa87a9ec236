# SPDX-License-Identifier: Apache-2.0
"""One measurement in a process of its own: `python -m demo.measure WAY FILE` prints JSON.

WAY is rlk or numpy; FILE holds the arrays upstream, hidden, weight, target and bias.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def peak_bytes() -> int:
    """The most memory that this process has had, since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> int:
    """Start the peak anew, where that is allowed, and return it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def rlk_way() -> Callable[[dict[str, Any]], Any]:
    """Log-probs and all gradients by rlk."""
    import rlk.jit

    def call(a: dict[str, Any]) -> None:
        rlk.jit.linear_logp(a["hidden"], a["weight"], a["target"], a["bias"])
        rlk.jit.linear_logp_backward(
            a["upstream"], a["hidden"], a["weight"], a["target"], a["bias"]
        )

    return call


def numpy_way() -> Callable[[dict[str, Any]], Any]:
    """The same by NumPy."""
    from demo.numpy_way import logp_and_gradients

    return lambda a: logp_and_gradients(**a)


def main() -> None:
    """Measure the first call, the memory that a call adds, and the best of three calls."""
    way = {"rlk": rlk_way, "numpy": numpy_way}[sys.argv[1]]()
    arrays = dict(np.load(sys.argv[2]))
    few = {k: v if k in ("weight", "bias") else v[:16] for k, v in arrays.items()}
    start = time.perf_counter()
    way(few)
    first_s = time.perf_counter() - start

    before = forget_peak()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        way(arrays)
        seconds.append(time.perf_counter() - start)
    out: dict[str, Any] = {
        "first_s": first_s,
        "best_s": min(seconds),
        "extra_bytes": peak_bytes() - before,
    }
    if sys.argv[1] == "rlk":
        import rlk.jit

        out["cache"] = rlk.jit.cache_info()._asdict()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
