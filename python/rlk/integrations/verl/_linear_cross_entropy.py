# SPDX-License-Identifier: Apache-2.0
"""The fused kernel of verl, which SkyRL and slime have copies of, by `rlk.jit.linear_logp`."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from rlk import jit
from rlk.errors import fail, renamed, text
from rlk.integrations import hf
from rlk.integrations.verl._head import log_prob_and_entropy

Tensor = Any
#: What errors of the op call its arguments.
NAMES = {"target": "labels", "group": "dist_process_group"}


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
            found = jit.linear_logp(
                _SummedByTheCaller.apply(hidden, dist_process_group),
                weight,
                labels,
                temperature=temperature,
                return_entropy=True,
                compute_dtype=dtype,
                group=dist_process_group,
            )
    log_prob = found.log_prob
    if reduction.lower() != "none":
        log_prob = log_prob.sum() if reduction.lower() == "sum" else log_prob.mean()
    return log_prob, found.entropy


class _SummedByTheCaller(torch.autograd.Function):
    """Of a gradient that every rank has whole each rank gives its part of the rows, and zeros."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        rank, size = distributed.get_rank(ctx.group), distributed.get_world_size(ctx.group)
        rows = slice(rank * len(grad) // size, (rank + 1) * len(grad) // size)
        own = torch.zeros_like(grad)
        own[rows] = grad[rows]
        return own, None
