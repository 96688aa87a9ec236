# SPDX-License-Identifier: Apache-2.0
"""Small calls of the linear_logp kernels, to be run under compute-sanitizer.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck python sanitize_linear_logp.py
"""

from __future__ import annotations

import torch
from linear_logp_driver import Problem


def main() -> None:
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, dim, vocab, masked in (
            (3, 40, 193, False),
            (70, 33, 400, True),
            (300, 136, 800, True),
        ):
            hidden = torch.randn(n, dim, device="cuda").to(dtype)
            weight = torch.randn(vocab, dim, device="cuda").to(dtype)
            bias = torch.randn(vocab, device="cuda").to(dtype)
            target = torch.randint(0, vocab, (n,), device="cuda")
            mask = None
            if masked:
                mask = torch.rand(n, device="cuda") > 0.3
                target[0], mask[0] = vocab, True  # out of range
            problem = Problem(
                hidden, weight, target, bias=bias, mask=mask, temperature=0.7, strip_bytes=1,
                budget_bytes=n * dim * 4 + n * 192 * 2 * hidden.element_size(), specialized=False,
            )  # fmt: skip
            problem.forward()
            problem.backward(torch.randn(n, device="cuda"))
            torch.cuda.synchronize()
            print(dtype, n, dim, vocab, problem.error.tolist())


if __name__ == "__main__":
    main()
