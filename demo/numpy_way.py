# SPDX-License-Identifier: Apache-2.0
"""The same loss the NumPy way: all logits [N, V] formed. The reference and the peer of the demo.

`a` holds grad_output [N], hidden [N, D], weight [V, D], target [N] and bias [V]; results have its
dtype.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Gradients(NamedTuple):
    """Gradients of the sum of the log-probs, each times its grad_output."""

    hidden: Array
    weight: Array
    bias: Array


def log_probs(a: dict[str, Array]) -> Array:
    """The log-prob of each target, [N]."""
    return _softmax(a)[0]


def log_probs_and_gradients(a: dict[str, Array]) -> tuple[Array, Gradients]:
    """The log-probs [N] and the gradients."""
    logp, z, total = _softmax(a)
    upstream = a["grad_output"]
    z *= -upstream[:, None] / total  # now the gradient of the logits, less its target column
    z[np.arange(len(z)), a["target"]] += upstream
    return logp, Gradients(z @ a["weight"], z.T @ a["hidden"], z.sum(0))


def _softmax(a: dict[str, Array]) -> tuple[Array, Array, Array]:
    """The log-probs [N], exp(logits - max) [N, V] and its sum [N, 1]; one [N, V] array in all."""
    z = a["hidden"] @ a["weight"].T
    z += a["bias"]
    z -= z.max(1, keepdims=True)
    at_target = z[np.arange(len(z)), a["target"]]
    np.exp(z, out=z)
    total = z.sum(1, keepdims=True)
    return at_target - np.log(total[:, 0]), z, total
