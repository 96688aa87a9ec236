# SPDX-License-Identifier: Apache-2.0
"""The metrics that TRL's GRPOTrainer logs of its loss, under TRL's names and by its definitions."""

from __future__ import annotations

from typing import Any

__all__ = ["append_metrics"]

Tensor = Any


def append_metrics(trainer: Any, batch: Any, log: Any) -> None:
    """Appends each to `log`, a dictionary of lists. One reduction over all ranks for the means."""
    import torch

    with torch.no_grad():
        mask = batch.mask
        means, extremes = _values(trainer, batch)
        parts = [part for value in means.values() for part in _sum_and_count(value, mask)]
        totals = trainer.accelerator.reduce(torch.stack(parts), reduction="sum").tolist()
        for name, total, count in zip(means, totals[::2], totals[1::2], strict=True):
            log[name].append(total / max(count, 1.0))
        for name, (value, pick) in extremes.items():
            # Sequences without an active token are NaN, and left out.
            of_sequences = value[:, 0] if value.shape[1] == 1 else _mean(value, mask)
            gathered = trainer.accelerator.gather(of_sequences)
            known = gathered[~gathered.isnan()]
            log[name].append(pick(known).item() if known.numel() else float("nan"))


def _values(trainer: Any, batch: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Of tokens, ``[B, T]``, or of sequences, ``[B, 1]``: (means, extremes of sequences' means)."""
    import torch

    log_probs = batch.log_probs.detach()
    ratio, low, high = _ratio(trainer, batch), 1 - trainer.epsilon_low, 1 + trainer.epsilon_high
    means: dict[str, Tensor] = {}
    if batch.ref is not None:
        away = batch.ref - log_probs
        kl = torch.exp(away) - away - 1
        means["kl"] = kl * ratio if trainer.args.use_bias_correction_kl else kl
    means["entropy"] = batch.entropies.detach()
    positive, negative = batch.advantages > 0, batch.advantages < 0
    if trainer.loss_type == "cispo":
        above = (ratio > trainer.epsilon_high) & positive
        return {**means, "cispo_clip_ratio": above.float()}, {}
    if trainer.loss_type == "vespo":
        return {**means, "vespo/phi_seq_mean": batch.phi}, {}
    if trainer.loss_type == "sapo":
        return means, {}
    if trainer.args.delta is not None:
        ratio = ratio.clamp(max=trainer.args.delta)
    below, above = (ratio < low) & negative, (ratio > high) & positive
    means["clip_ratio/low_mean"] = below.float()
    means["clip_ratio/high_mean"] = above.float()
    means["clip_ratio/region_mean"] = (below | above).float()
    return means, {
        "clip_ratio/low_min": (below.float(), torch.min),
        "clip_ratio/high_max": (above.float(), torch.max),
    }


def _ratio(trainer: Any, batch: Any) -> Tensor:
    """Of tokens, or of sequences by importance_sampling_level."""
    away = batch.log_probs.detach() - batch.old
    if trainer.importance_sampling_level == "token":
        return away.exp()
    mean = (away * batch.mask).sum(-1) / batch.mask.sum(-1).clamp(min=1.0)
    return mean.unsqueeze(-1).exp()


def _sum_and_count(value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    if value.shape[1] == 1:
        return value.sum(), value.new_tensor(float(value.shape[0]))
    return (value * mask).sum(), mask.sum().to(value.dtype)


def _mean(value: Tensor, mask: Tensor) -> Tensor:
    return (value * mask).sum(-1) / mask.sum(-1)
