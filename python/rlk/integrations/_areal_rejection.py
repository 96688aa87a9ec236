# SPDX-License-Identifier: Apache-2.0
"""AReaL's rejection sampling: tokens or sequences that are too far from the policy that made them.

With u = proximal - old, a token's statistic is exp(u) ("ratio"), u ("kl_k1"), u^2 / 2 ("kl_k2") or
exp(-u) - 1 + u ("kl_k3"); a sequence's is the sum, mean or maximum of those, for the ratio in logs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rlk.errors import fail, text

Tensor = Any
inf = float("inf")
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "ratio": torch.exp,
    "kl_k1": lambda u: u,
    "kl_k2": lambda u: u.square() / 2,
    "kl_k3": lambda u: torch.exp(-u) - 1 + u,
}
WORDS = {
    "level": ("token", "sequence"),
    "action": ("mask", "clamp"),
    "metric": tuple(STATISTICS),
    "agg": ("sum", "mean", "max"),
}


class Sequences:
    """Which tokens are of one sequence: rows of ``[B, T]``, or pieces of ``[N]`` by boundaries."""

    def __init__(self, like: Tensor, boundaries: Tensor | None) -> None:
        self.is_packed = like.dim() == 1
        self.boundaries = boundaries if self.is_packed else None
        self._lengths: Tensor = None
        if not self.is_packed:
            self._lengths = torch.full((like.shape[0],), like.shape[1], device=like.device)
        elif boundaries is not None:
            self._lengths = boundaries.diff().long()

    def check(self, option: str) -> None:
        """Raises rlk.InvalidArgument where the boundaries that the option asks for are absent."""
        if self._lengths is None:
            fail("ppo_loss", "cu_seqlens", f"a tensor of packed tokens with {option}", "None")

    def total(self, values: Tensor, kind: str = "sum") -> Tensor:
        """The sum or the maximum over each sequence, at each of its tokens."""
        initial = 0.0 if kind == "sum" else -inf
        flat = values.reshape(-1)
        each = torch.segment_reduce(flat, kind, lengths=self._lengths, initial=initial, unsafe=True)
        return each.repeat_interleave(self._lengths, output_size=flat.numel()).view_as(values)

    def mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """Over the active tokens of each sequence, at each of its tokens. Of 16 bits in float32."""
        values = torch.where(mask, values, 0.0)
        values = values.float() if values.itemsize < 4 else values
        return self.total(values) / self.total(mask.to(values.dtype)).clamp(min=1)


class Rejection(NamedTuple):
    """What is left, and with which weights; all of the tokens' shape but the last, a number."""

    mask: Tensor
    weights: Tensor
    filtered_fraction: float


def reject(
    proximal: Tensor, old: Tensor, mask: Tensor, sequences: Sequences, config: Any
) -> Rejection:
    """What a RejectionSamplingConfig leaves of the tokens of `mask`.

    Raises rlk.InvalidArgument for an unknown word, and for packed tokens without boundaries.
    """
    by_sequence = config.level == "sequence"
    for name, words in WORDS.items():
        word = getattr(config, name)
        if word not in words and (name != "agg" or by_sequence):
            fail("ppo_loss", f"rejection_sampling.{name}", ", ".join(words), text(word))
    with torch.no_grad():
        u = proximal.float() - old.float()
        finite = torch.where(torch.isfinite(u), u, 0.0)
        is_ratio = config.metric == "ratio"
        weights = finite.exp()
        statistic = weights if is_ratio else STATISTICS[config.metric](u)
        if by_sequence:
            sequences.check("rejection_sampling.level='sequence'")
            each = torch.where(mask, finite if is_ratio else statistic, 0.0)
            statistic = _aggregate(config.agg, each, mask, sequences)
            if is_ratio:
                weights, statistic = sequences.mean(finite, mask).exp(), statistic.exp()
        low = -inf if config.lower is None else config.lower
        inside = (statistic >= low) & (statistic <= config.upper)
        left = mask
        changed = mask & ~inside
        if config.action == "mask":
            left = mask & inside
        else:
            clamped = weights.clamp(config.lower or 0.0, config.upper)
            if by_sequence:  # those of a sequence that is inside stay
                clamped = torch.where(inside, weights, clamped)
            changed = mask & (clamped != weights)
            weights = clamped
        share = changed.sum() / mask.sum().clamp(min=1)
        return Rejection(left, torch.where(left, weights, 0.0), share.item())


def _aggregate(kind: str, each: Tensor, mask: Tensor, sequences: Sequences) -> Tensor:
    if kind == "mean":
        return sequences.mean(each, mask)
    if kind == "sum":
        return sequences.total(each)
    most = sequences.total(torch.where(mask, each, -inf), "max")
    return torch.where(most == -inf, 0.0, most)  # without active tokens
