# SPDX-License-Identifier: Apache-2.0
"""linear_logp in float64 on the device, in blocks of the vocabulary.

Log-probs of all rows; gradients of some rows and of some vocabulary ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

BLOCK_ELEMENTS = 1 << 25  # of one [N, block] array
MOST_COLUMNS = 1 << 14
NUM_SAMPLED = 64


@dataclass(frozen=True)
class Exact:
    logp: Any  # [N]
    rows: Any  # rows whose grad_hidden follows
    grad_hidden: Any
    ids: Any  # vocabulary ids whose grad_weight follows
    grad_weight: Any

    def errors(self, result: tuple[Any, ...]) -> dict[str, float]:
        """Largest and mean distance of the log-probs; the gradients' largest, relative to the
        largest exact entry, as far as the result has them. NaN where anything is NaN."""
        found = {}
        if result[0] is not None:
            distance = (result[0].detach().double() - self.logp).abs()
            found = {"max_error": float(distance.max()), "mean_error": float(distance.mean())}
        parts = (
            ("hidden", self.rows, self.grad_hidden),
            ("weight", self.ids, self.grad_weight),
        )
        for (name, where, want), got in zip(parts, result[1:], strict=False):
            largest = (got[where].double() - want).abs().max() / want.abs().max()
            found[f"max_error_grad_{name}"] = float(largest)
        return found


def solve(drawn: dict[str, Any]) -> Exact:
    """The exact answers for the stored (rounded) inputs."""
    hidden, weight = drawn["hidden"].double(), drawn["weight"]
    target, upstream = drawn["target"], drawn["upstream"].double()
    num_rows, vocab = len(hidden), len(weight)
    width = max(1, min(MOST_COLUMNS, BLOCK_ELEMENTS // num_rows))
    blocks = [slice(start, start + width) for start in range(0, vocab, width)]

    lse = torch.full((num_rows,), -torch.inf, dtype=torch.float64, device=hidden.device)
    for block in blocks:
        logits = hidden @ weight[block].double().T
        lse = torch.logaddexp(lse, torch.logsumexp(logits, 1))
    logp = (hidden * weight[target].double()).sum(1) - lse

    rows = _sample(num_rows, hidden.device)
    grad_hidden = upstream[rows, None] * weight[target[rows]].double()
    for block in blocks:
        columns = weight[block].double()
        p = torch.exp(hidden[rows] @ columns.T - lse[rows, None])
        grad_hidden -= (upstream[rows, None] * p) @ columns

    # Half of the ids are targets, whose gradient is the larger one.
    half = NUM_SAMPLED // 2
    ids = torch.cat([target[rows[:half]], _sample(vocab, hidden.device)[:half]]).unique()
    p = torch.exp(hidden @ weight[ids].double().T - lse[:, None])
    factor = upstream[:, None] * ((target[:, None] == ids).double() - p)
    return Exact(logp, rows, grad_hidden, ids, factor.T @ hidden)


def _sample(count: int, device: Any) -> Any:
    random = torch.Generator().manual_seed(2)
    return torch.randperm(count, generator=random)[:NUM_SAMPLED].to(device)
