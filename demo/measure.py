# SPDX-License-Identifier: Apache-2.0
"""One measurement in a process of its own: `python -m demo.measure WAY PART FILE` prints JSON.

WAY is rlk or numpy, PART logp or gradients (which has both); FILE holds the arrays, by the names of
`rlk.jit.linear_logp_backward`.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[dict[str, Any]], Any]


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


def rlk_way(part: str) -> Call:
    """Log-probs, or log-probs and all gradients, by rlk."""
    import rlk.jit

    def call(a: dict[str, Any]) -> None:
        rlk.jit.linear_logp(a["hidden"], a["weight"], a["target"], a["bias"])
        if part == "gradients":
            rlk.jit.linear_logp_backward(**a)

    return call


def numpy_way(part: str) -> Call:
    """The same by NumPy."""
    from demo import numpy_way as way

    return lambda a: way.log_probs(a) if part == "logp" else way.log_probs_and_gradients(a)


def main() -> None:
    """Measure the first call, the memory that a call adds, and the best of three calls."""
    way, part, file = sys.argv[1:]
    call = {"rlk": rlk_way, "numpy": numpy_way}[way](part)
    arrays = dict(np.load(file))
    few = {k: v if k in ("weight", "bias") else v[:16] for k, v in arrays.items()}
    start = time.perf_counter()
    call(few)
    first_s = time.perf_counter() - start

    before = forget_peak()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        call(arrays)
        seconds.append(time.perf_counter() - start)
    out: dict[str, Any] = {
        "first_s": first_s,
        "best_s": min(seconds),
        "extra_bytes": peak_bytes() - before,
    }
    if way == "rlk":
        import rlk.jit

        out["cache"] = rlk.jit.cache_info()._asdict()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
