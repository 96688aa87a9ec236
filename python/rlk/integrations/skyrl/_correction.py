# SPDX-License-Identifier: Apache-2.0
"""SkyRL's off_policy_correction: importance weights, and masks of tokens and sequences.

u = old - rollout, the ratio exp(u), u clamped to +-20. In SkyRL's order: sequences with an outlier
token, tokens out of bounds, the weight (its sum by sequence and its metric are over the tokens that
are left), sequences out of bounds. What is masked has weight 0 and stays in the denominators.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from rlk._loss_options import as_float
from rlk.errors import fail, text
from rlk.integrations._config import get

Tensor = Any
SECTION = "config.off_policy_correction"
#: The bounds of a sequence's statistic, by sequence_mask_metric: what their names begin with.
METRICS = {"geometric": "geo", "product": "product"}
# Of versions that the rules here are not of.
UNKNOWN = ("token_mask_eps_low", "token_mask_eps_high")


class Correction(NamedTuple):
    """What config.off_policy_correction asks for; None: that is off."""

    level: str | None = None  #: of the weights, "token" or "sequence"
    cap: float | None = None
    outlier_low: float | None = None
    outlier_high: float | None = None
    token_bounds: tuple[float, float] | None = None
    sequence_metric: str | None = None
    sequence_bounds: tuple[float, float] = (0.0, float("inf"))

    @property
    def masks(self) -> bool:
        parts = (self.outlier_low, self.outlier_high, self.token_bounds, self.sequence_metric)
        return any(part is not None for part in parts)

    @property
    def is_on(self) -> bool:
        return self.level is not None or self.masks


def read(config: Any) -> Correction:
    """Of config.off_policy_correction. Raises rlk.InvalidArgument by the name in the config."""
    section = get("ppo_loss", config, SECTION, {})
    level = _word(section, "tis_ratio_type", ("token", "sequence"))
    metric = _word(section, "sequence_mask_metric", tuple(METRICS))
    for name in UNKNOWN:
        value = get("ppo_loss", section, f"{SECTION}.{name}", None)
        if value is not None:
            _fail(name, "None; token_mask_is_threshold_low and _high are the bounds", value)
    low, high = (_number(section, f"token_mask_is_threshold_{side}") for side in ("low", "high"))
    if (low is None) != (high is None):
        absent, other = ("low", "high") if low is None else ("high", "low")
        other = f"token_mask_is_threshold_{other}"
        _fail(f"token_mask_is_threshold_{absent}", f"a number with {other}, which needs both", None)
    cap = None if level is None else _number(section, f"{level}_tis_ratio_clip_high")
    if cap is not None and not cap >= 0:
        _fail(f"{level}_tis_ratio_clip_high", "a number from 0 up", cap)
    found = Correction(
        level=level,
        cap=cap,
        outlier_low=_number(section, "outlier_token_is_threshold_low"),
        outlier_high=_number(section, "outlier_token_is_threshold_high"),
        token_bounds=None if low is None or high is None else (low, high),
    )
    if metric is None:
        return found
    least, most = (_number(section, f"{METRICS[metric]}_mask_{side}") for side in ("low", "high"))
    if least is None or most is None:
        absent = "low" if least is None else "high"
        _fail(f"{METRICS[metric]}_mask_{absent}", f"a number with {metric}", None)
    return found._replace(sequence_metric=metric, sequence_bounds=(least, most))


def apply(
    c: Correction, cap: float, old: Tensor, rollout: Tensor, mask: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weights of the policy's terms, and SkyRL's metrics by its names.

    Args:
        cap: of the weights: c's, or that of the dialect.
        old, rollout, mask: ``[B, T]`` torch tensors.

    Returns:
        (weights, float32 ``[B, T]``; 0-d tensors by name).
    """
    import torch

    active = torch.ones_like(old, dtype=torch.bool) if mask is None else mask != 0
    u = torch.where(active, old.detach() - rollout.detach(), 0.0).float()
    ratio = _ratio(u)
    metrics = _of_all(ratio, active)
    left = active
    if c.outlier_low is not None or c.outlier_high is not None:
        over = ratio > (float("inf") if c.outlier_high is None else c.outlier_high)
        under = ratio < (float("-inf") if c.outlier_low is None else c.outlier_low)
        left = left & _within(metrics, "outlier_seq", over & left, under & left)
    if c.token_bounds is not None:
        low, high = c.token_bounds
        inside = (ratio >= low) & (ratio <= high)
        metrics["token_mask_ratio"] = _share(left & ~inside, left)
        left = left & inside
    weights = torch.ones_like(u)
    total = torch.where(left, u, 0.0).sum(-1, keepdim=True)
    if c.level == "token":
        metrics["tis_token_clip_high_ratio"] = _share((ratio > cap) & left, left)
        weights = ratio.clamp(max=cap)
    elif c.level == "sequence":
        metrics["tis_seq_clip_high_ratio"] = (_ratio(total) > cap).float().mean()
        weights = _ratio(total).clamp(max=cap).expand_as(u)
    if c.sequence_metric is not None:
        if c.sequence_metric == "geometric":
            total = total / left.sum(-1, keepdim=True).clamp(min=1)
        low, high = c.sequence_bounds
        statistic, name = _ratio(total), f"{METRICS[c.sequence_metric]}_sequence_mask"
        left = left & _within(metrics, name, statistic > high, statistic < low)
    return torch.where(left, weights, 0.0), metrics


def _ratio(u: Tensor) -> Tensor:
    return u.clamp(-20.0, 20.0).exp()


def _of_all(ratio: Tensor, active: Tensor) -> dict[str, Tensor]:
    """SkyRL's is_ratio_*: inactive tokens count as 0 in all but the mean."""
    import torch

    known = torch.where(active, ratio, 0.0)
    return {
        "is_ratio_mean": known.sum() / active.sum().clamp(min=1),
        "is_ratio_std": known.std() if known.numel() else known.sum(),
        "is_ratio_max": known.max() if known.numel() else known.sum(),
        "is_ratio_min": known.min() if known.numel() else known.sum(),
    }


def _within(metrics: dict[str, Tensor], name: str, over: Tensor, under: Tensor) -> Tensor:
    """Sequences of which nothing is over or under, ``[B, 1]``, and what the metrics say of them."""
    over, under = over.any(-1, keepdim=True), under.any(-1, keepdim=True)
    metrics[f"{name}_masked_ratio"] = (over | under).float().mean()
    metrics[f"{name}_over_high_ratio"] = over.float().mean()
    metrics[f"{name}_under_low_ratio"] = under.float().mean()
    return ~(over | under)


def _share(part: Tensor, of: Tensor) -> Tensor:
    return part.sum() / of.sum().clamp(min=1)


def _word(section: Any, name: str, words: tuple[str, ...]) -> str | None:
    value = get("ppo_loss", section, f"{SECTION}.{name}", None)
    if value is not None and (not isinstance(value, str) or value not in words):
        _fail(name, f"{', '.join(words)} or None", value)
    return value


def _number(section: Any, name: str) -> float | None:
    value = get("ppo_loss", section, f"{SECTION}.{name}", None)
    number = as_float(value)
    if value is not None and (number is None or number != number):
        _fail(name, "a number or None", value)
    return number


def _fail(name: str, expected: str, got: Any) -> NoReturn:
    fail("ppo_loss", f"{SECTION}.{name}", expected, text(got))
