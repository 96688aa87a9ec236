# SPDX-License-Identifier: Apache-2.0
"""The same loss the NumPy way: all logits [N, V] formed. The reference and the peer of the demo."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Result(NamedTuple):
    """Log-probs [N] and the gradients of their sum weighted by `upstream`."""

    logp: Array
    hidden: Array
    weight: Array
    bias: Array


def logp_and_gradients(
    upstream: Array, hidden: Array, weight: Array, target: Array, bias: Array
) -> Result:
    """Log-prob of each target and the gradients, in the dtype of the arguments.

    Args:
        upstream: [N], the weight of each log-prob.
        hidden: [N, D].
        weight: [V, D].
        target: [N], integers.
        bias: [V].
    """
    rows = np.arange(len(target))
    z = hidden @ weight.T
    z += bias
    z -= z.max(1, keepdims=True)
    at_target = z[rows, target]
    np.exp(z, out=z)
    total = z.sum(1, keepdims=True)
    z *= -upstream[:, None] / total  # now the gradient of the logits, less its target column
    z[rows, target] += upstream
    return Result(at_target - np.log(total[:, 0]), z @ weight, z.T @ hidden, z.sum(0))
