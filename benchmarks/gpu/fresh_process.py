# SPDX-License-Identifier: Apache-2.0
"""The first calls of a process, for first_call.py.

`fresh_process.py WHAT DEVICE N D V` prints JSON.

Torch, CUDA and autograd are up before it says "ready"; it goes on at a line on stdin.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # peers.py imports from there

NUM_WARM = 5


def timed_ms(device: str, call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = call()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    del result
    return 1e3 * elapsed


def rlk_function() -> Any:
    import rlk.jit

    return rlk.jit.linear_logp


def triton_function() -> Any:
    import triton_kernels

    return triton_kernels.linear_logp


def eager_function() -> Any:
    def logp(hidden: Any, weight: Any, target: Any) -> Any:
        logits = torch.nn.functional.linear(hidden, weight).float()
        return torch.log_softmax(logits, -1).gather(-1, target[:, None])[:, 0]

    return logp


def compiled_function() -> Any:
    import torch._dynamo
    import torch._inductor.compile_fx

    return torch.compile(eager_function(), dynamic=False)


def cce_function() -> Any:
    import peers

    return peers.cut_cross_entropy("high")


def verl_function() -> Any:
    import peers

    return peers.verl()


def cupy_function() -> Any:
    """A kernel of a few lines on the same inputs: what CuPy takes for any kernel, at least."""
    import cupy

    module = cupy.RawModule(code=CUPY_SOURCE, options=("-std=c++17",))
    kernel = module.get_function("first_of_row")

    def logp(hidden: Any, weight: Any, target: Any) -> Any:
        result = torch.empty(len(target), device=hidden.device)
        pointers = (hidden.data_ptr(), weight.data_ptr(), target.data_ptr(), result.data_ptr())
        sizes = (hidden.shape[0], hidden.shape[1])
        kernel((len(target) // 256 + 1,), (256,), (*pointers, *sizes))
        return result

    return logp


CUPY_SOURCE = r"""
extern "C" __global__ void first_of_row(const unsigned short* hidden, const unsigned short* weight,
                                        const long long* target, float* result, long long num_rows,
                                        long long dim) {
  const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (row >= num_rows) return;
  float sum = 0;
  for (long long i = 0; i < dim; ++i) {
    sum += __int_as_float(hidden[row * dim + i] << 16) *
           __int_as_float(weight[target[row] * dim + i] << 16);
  }
  result[row] = sum;
}
"""

# The target's logit alone, no sum over the vocabulary, no gradient.
FORWARD_ALONE = ("Triton", "CuPy, target's logit")

MAKERS = {
    "rlk": rlk_function,
    "CCE": cce_function,
    "verl": verl_function,
    "CuPy, target's logit": cupy_function,
    "Triton": triton_function,
    "torch.compile": compiled_function,
    "torch eager": eager_function,
}


def main() -> None:
    what, device = sys.argv[1:3]
    rows, dim, vocab = map(int, sys.argv[3:])
    real = functools.partial(torch.randn, dtype=torch.bfloat16, device=device)
    hidden, weight = real(rows, dim), real(vocab, dim)
    target = torch.randint(vocab, (rows,), device=device)
    upstream = torch.randn(rows, device=device)
    leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
    # A kernel, and autograd's own first use, which imports for a second.
    timed_ms(device, lambda: torch.autograd.grad(leaves[0] + 1, leaves[0], hidden))
    say({"ready": True})
    if not sys.stdin.readline():
        return  # whoever waits for this process is gone

    start = time.perf_counter()
    function = MAKERS[what]()
    found: dict[str, Any] = {"import_ms": 1e3 * (time.perf_counter() - start)}

    if what == "rlk":
        names = f"V={vocab},D={dim}"
        found["preload_ms"] = timed_ms(device, lambda: sys.modules["rlk.jit"].preload(names))

    def forward() -> Any:
        with torch.no_grad():
            return function(hidden, weight, target)

    def both() -> Any:
        return torch.autograd.grad(function(*leaves, target), leaves, upstream)

    found["forward_ms"] = timed_ms(device, forward)
    found["forward_warm_ms"] = least(device, forward)
    if what not in FORWARD_ALONE:
        found["both_ms"] = timed_ms(device, both)
        found["both_warm_ms"] = least(device, both)
    if what == "rlk":
        import rlk.jit

        found |= rlk.jit.cache_info()._asdict()
        folder = Path(os.environ["RLK_CACHE_DIR"])
        found["entries_bytes"] = [f.stat().st_size for f in sorted(folder.rglob("*.rlk"))]
    say(found)


def least(device: str, call: Callable[[], Any]) -> float:
    return min(timed_ms(device, call) for _ in range(NUM_WARM))


def say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
