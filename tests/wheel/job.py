# SPDX-License-Identifier: Apache-2.0
"""What the installed wheel is asked to do; runs by itself, with NumPy and rlk alone.

Forward and backward on the CPU, specialized and generic, against float64. Prints as JSON how the
kernels were found.
"""

import json
import sys

import numpy as np

import rlk

ROWS, VOCAB, DIM = 5, 301, 40


def expected(hidden, weight, target, grad):
    """Log-probs and gradients in float64."""
    h, w = hidden.astype(np.float64), weight.astype(np.float64)
    z = h @ w.T
    shifted = z - z.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(ROWS)
    dz = -np.exp(logs)
    dz[rows, target] += 1
    dz *= grad[:, None].astype(np.float64)
    return logs[rows, target], dz @ w, dz.T @ h


def main() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((ROWS, DIM), np.float32)
    weight = rng.standard_normal((VOCAB, DIM), np.float32)
    target = rng.integers(0, VOCAB, ROWS)
    grad = rng.standard_normal(ROWS, np.float32)
    right = expected(hidden, weight, target, grad)
    bits = []
    variants = []
    for specialize in (True, False):
        rlk.jit.configure(specialize=specialize)
        logp = rlk.jit.linear_logp(hidden, weight, target)
        grads = rlk.jit.linear_logp_backward(grad, hidden, weight, target)
        for ours, theirs in zip((logp, grads.hidden, grads.weight), right, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        bits.append([array.tobytes() for array in (logp, grads.hidden, grads.weight)])
        variants.append(rlk.jit.explain(rlk.jit.linear_logp, hidden, weight, target).variant)
    assert bits[0] == bits[1], "specialized and generic kernels differ"
    print(
        json.dumps(
            {
                **rlk.jit.cache_info()._asdict(),
                "variants": variants,
                "package": rlk.__file__,
                "imported": sorted({"torch"} & set(sys.modules)),
            }
        )
    )


if __name__ == "__main__":
    main()
