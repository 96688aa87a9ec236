# SPDX-License-Identifier: Apache-2.0
"""The fused kernel of verl, which SkyRL and slime have copies of, by `rlk.jit.linear_logp`."""

from __future__ import annotations

from typing import Any

import torch

from rlk import jit
from rlk._ops.common import SPREAD, defaults, is_compiling, over_ranks
from rlk.errors import fail, renamed, text
from rlk.integrations import hf
from rlk.integrations.verl._head import log_prob_and_entropy

Tensor = Any
#: What errors of the op call its arguments.
NAMES = {"target": "labels", "group": "dist_process_group"}
_OPTIONS = {n: value for n, value in defaults(jit.linear_logp).items() if n not in SPREAD}
_DEFAULTS = {"bias": None, **_OPTIONS}


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float | Tensor = 1.0,
    reduction: str = "none",
    dist_process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy of labels, as `verl.utils.kernel.linear_cross_entropy` gives them.

    Args:
        hidden: ``[..., D]``, the same on every rank of the group; N is the product of its leading
            dimensions.
        weight: ``[V, D]``, or with a group this rank's rows ``[V / ranks, D]`` of it.
        labels: N ids of the whole vocabulary, in any shape. Rows with -100 have the log-prob and
            the entropy 0, and no gradient.
        temperature: divides the logits: a number, or N of them.
        reduction: "none", "sum" or "mean" of the log-probs (log p, not -log p).
        dist_process_group: the ranks among whom the vocabulary is cut, in equal parts.

    Returns:
        (log-probs, entropy), float32: ``[N]`` and ``[N]``; with a reduction ``[]`` and ``[N]``.
        The gradient of weight is this rank's. As with verl's kernel, the caller sums the gradient
        of hidden over the group, as the backward of Megatron's gather_from_sequence_parallel_region
        does. Each rank has the gradient of some rows and 0 in the others, so that this sum
        rounds nothing.

    Raises:
        rlk.InvalidArgument: for reduction, and as `rlk.jit.linear_logp`.

    Example:
        >>> log_probs, entropy = linear_cross_entropy(hidden, weight, labels, 0.7, "none", group)
    """
    op = "linear_cross_entropy"
    reductions = ("none", "sum", "mean")
    if not isinstance(reduction, str) or reduction.lower() not in reductions:
        fail(op, "reduction", "none, sum or mean", text(reduction))
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    if isinstance(temperature, torch.Tensor) and temperature.ndim:
        temperature = temperature.reshape(-1)
    with renamed(op, NAMES):
        if dist_process_group is None:
            found = log_prob_and_entropy(hidden, weight, labels, temperature)
        else:
            weight, _, dtype = hf.in_one_dtype(hidden, weight)
            given = {
                **_DEFAULTS,
                "hidden": hidden,
                "weight": weight,
                "target": labels,
                "temperature": temperature,
                "return_entropy": True,
                "compute_dtype": dtype,
            }
            ranks = over_ranks(is_compiling())
            found = ranks.linear_logp(given, dist_process_group, leaves_sum=True)
    log_prob = found.log_prob
    if reduction.lower() != "none":
        log_prob = log_prob.sum() if reduction.lower() == "sum" else log_prob.mean()
    return log_prob, found.entropy
