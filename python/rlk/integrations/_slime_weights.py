# SPDX-License-Identifier: Apache-2.0
"""Which tokens are of one sample, and weights: of slime's reductions, of TIS and of OPSM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from rlk.errors import fail

Tensor = Any
Reducer = Callable[[Tensor], Tensor]


def weights_of(reduce: Reducer, like: Tensor) -> Tensor:
    """The weights that a linear reduction of values by token gives each of them."""
    values = torch.zeros_like(like, dtype=torch.float32).requires_grad_()
    with torch.enable_grad():
        total = reduce(values)
        if not isinstance(total, torch.Tensor) or not total.requires_grad:  # of no tokens
            return torch.zeros_like(values.detach())
        return torch.autograd.grad(total, values)[0]


def reducer_of(path: str, args: Any, batch: Any, masks: Any) -> Reducer:
    """The custom reducer of the policy's term."""
    from slime.utils.misc import load_function

    make: Callable[..., Reducer] = load_function(path)
    lengths = (batch["total_lengths"], batch["response_lengths"])
    return make(*lengths, masks, args.calculate_per_token_loss)


class Samples:
    """The tokens' samples, one after the other."""

    def __init__(self, batch: Any, log_probs: Sequence[Tensor]) -> None:
        self._lengths = [x.numel() for x in log_probs]
        self._is_whole = self._lengths == [x.numel() for x in batch["loss_masks"]]
        self._device = batch["advantages"][0].device

    @property
    def boundaries(self) -> Tensor:
        lengths = torch.tensor([0, *self._lengths], device=self._device)
        return lengths.cumsum(0, dtype=torch.int32)

    def split(self, *values: Tensor) -> list[tuple[Tensor, ...]]:
        return list(zip(*(x.split(self._lengths) for x in values), strict=True))

    def mean(self, values: Tensor, mask: Tensor, option: str) -> Tensor:
        """Over the active tokens of each sample, at each of its tokens.

        Raises rlk.InvalidArgument where tokens are a rank's part of each sample.
        """
        if not self._is_whole:
            expected = f"whole samples with {option}: no context parallelism"
            fail("ppo_loss", "log_probs", expected, "a part of each sample")
        values = torch.where(mask, values, 0.0)
        parts = self.split(values, mask)
        return torch.cat([(x.sum() / n.sum().clamp(min=1)).expand_as(x) for x, n in parts])


def opsm(
    args: Any, log_ratio: Tensor, advantages: Tensor, mask: Tensor, samples: Samples
) -> tuple[Tensor, Tensor]:
    """0 for tokens with A < 0 of samples that moved too far, else 1; and the number of such samples
    (by tokens over active ones, as slime counts)."""
    moved = samples.mean(-log_ratio, mask, "use_opsm") > args.opsm_delta
    dropped = ((advantages < 0) & moved).float()
    counts = [d.sum() / m.sum().clamp(min=1) for d, m in samples.split(dropped, mask)]
    return 1.0 - dropped, torch.stack(counts).sum()


class Correction(NamedTuple):
    """Importance weights by token, what they leave, and what is logged by token."""

    weights: Tensor
    masks: Any
    reduce: Reducer
    logged: dict[str, Tensor]


def correction(args: Any, batch: Any, old: Sequence[Tensor], reduce: Reducer) -> Correction:
    """slime's TIS, or what a custom function makes of a loss of ones."""
    if not batch.get("rollout_log_probs"):
        fail("ppo_loss", "rollout_log_probs", "tensors with use_tis", "none")
    own = torch.cat(list(old), dim=0)
    masks = batch["loss_masks"]
    if args.custom_tis_function_path is None:
        ratio = (own - torch.cat(batch["rollout_log_probs"], dim=0)).exp()
        weights = ratio.clamp(args.tis_clip_low, args.tis_clip)
        clipped = (weights != ratio).float()
        logged = {"tis": ratio, "tis_clipfrac": clipped, "tis_abs": (ratio - 1).abs()}
        return Correction(weights, masks, reduce, logged)
    from slime.utils.misc import load_function

    lengths = {name: batch[name] for name in ("total_lengths", "response_lengths")}
    weights, left, logged = load_function(args.custom_tis_function_path)(
        args=args,
        pg_loss=torch.ones_like(own),
        train_log_probs=old,
        rollout_log_probs=batch["rollout_log_probs"],
        loss_masks=masks,
        **lengths,
    )
    if left is not masks:
        from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean

        sums = batch["rollout_mask_sums"]
        reduce = get_sum_of_sample_mean(
            *lengths.values(), left, sums, args.calculate_per_token_loss
        )
    return Correction(weights.detach(), left, reduce, dict(logged))
