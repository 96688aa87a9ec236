# SPDX-License-Identifier: Apache-2.0
"""Metrics of a loss: raw sums and counts, and adding them up over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rlk.errors import fail

Tensor = Any
NUM_SUMS = 13  # rows of `exact`
TERM_SUMS = 4  # of them in units of 2^-72; the others in 2^-40
MARK = -(1 << 63)  # a high word of no sum: the low one tells NaN (1), inf (2), -inf (4)


class Metrics(NamedTuple):
    """Sums, counts and extremes over active tokens, on the call's device.

    A tuple of the three tensors that the kernels write. Each metric is an attribute, a 0-d view of
    one of them that is made where it is read; `named()` has them all. `combine` adds up those of
    micro-batches or ranks; divide sums by `num_active` after that. Where the call's tensors were
    another framework's on CUDA, each is an `rlk.Array`.

    Example:
        >>> on_host = metrics._make(tensor.cpu() for tensor in metrics)
        >>> log = {name: value.item() for name, value in on_host.named().items()}
    """

    counts: Tensor  #: int64 [11], the metrics whose names begin with num_, in this order
    floats: Tensor  #: float32 [16], the others
    exact: Tensor  #: int64 [13, 2]: the loss and the sums as integers, high word first

    @property
    def num_active(self) -> Tensor:
        """Tokens."""
        return self.counts[0]

    @property
    def num_sequences(self) -> Tensor:
        """Sequences with an active token."""
        return self.counts[1]

    @property
    def num_clip_high(self) -> Tensor:
        """Tokens with A > 0 and a ratio above the upper bound."""
        return self.counts[2]

    @property
    def num_clip_low(self) -> Tensor:
        """Tokens with A < 0 and a ratio below the lower bound."""
        return self.counts[3]

    @property
    def num_dual_clip(self) -> Tensor:
        """Tokens whose loss use_dual_clip or delta sets."""
        return self.counts[4]

    @property
    def num_outside(self) -> Tensor:
        """Tokens with a ratio outside the bounds, whatever the sign of A."""
        return self.counts[5]

    @property
    def num_log_ratio_clamped(self) -> Tensor:
        """Tokens whose log ratio was clamped."""
        return self.counts[6]

    @property
    def num_tis_high(self) -> Tensor:
        """Tokens with an importance weight above its cap."""
        return self.counts[7]

    @property
    def num_tis_low(self) -> Tensor:
        """Tokens with an importance weight below its floor."""
        return self.counts[8]

    @property
    def num_tis_rejected(self) -> Tensor:
        """Tokens with an importance weight of 0."""
        return self.counts[9]

    @property
    def num_nonfinite(self) -> Tensor:
        """Tokens with a NaN or an infinity among their inputs."""
        return self.counts[10]

    @property
    def policy_loss(self) -> Tensor:
        """The loss without KL and entropy."""
        return self.floats[0]

    @property
    def abs_loss_sum(self) -> Tensor:
        """Sum of the terms' magnitudes: the scale of rounding errors."""
        return self.floats[1]

    @property
    def kl_loss(self) -> Tensor:
        """The KL term of the loss before kl_coef."""
        return self.floats[2]

    @property
    def ratio_sum(self) -> Tensor:
        """Sum of the ratios."""
        return self.floats[3]

    @property
    def ratio_sq_sum(self) -> Tensor:
        """Sum of the ratios' squares."""
        return self.floats[4]

    @property
    def approx_kl_sum(self) -> Tensor:
        """Sum of old - log_prob."""
        return self.floats[5]

    @property
    def approx_k3_sum(self) -> Tensor:
        """Sum of ratio - 1 - log ratio."""
        return self.floats[6]

    @property
    def tis_sum(self) -> Tensor:
        """Sum of the importance weights; ESS = tis_sum^2 / tis_sq_sum."""
        return self.floats[7]

    @property
    def tis_sq_sum(self) -> Tensor:
        """Sum of the importance weights' squares."""
        return self.floats[8]

    @property
    def tis_abs_log_sum(self) -> Tensor:
        """Sum of |old - rollout|."""
        return self.floats[9]

    @property
    def kl_sum(self) -> Tensor:
        """Sum of the KL of each token, without weights and kl_coef."""
        return self.floats[10]

    @property
    def entropy_sum(self) -> Tensor:
        """Sum of the entropies."""
        return self.floats[11]

    @property
    def ratio_max(self) -> Tensor:
        """The largest ratio, 1 without a token."""
        return self.floats[12]

    @property
    def ratio_min(self) -> Tensor:
        """The smallest ratio, 1 without a token."""
        return self.floats[13]

    @property
    def tis_abs_log_max(self) -> Tensor:
        """The largest |old - rollout|, 0 without a token."""
        return self.floats[14]

    @property
    def clip_ratio(self) -> Tensor:
        """(num_clip_high + num_clip_low) / num_active."""
        return self.floats[15]

    def named(self) -> dict[str, Tensor]:
        """The metrics by name, 0-d each, those of `counts` before those of `floats`."""
        return dict(zip(NAMES, (*self.counts, *self.floats), strict=True))


NAMES = tuple(name for name, member in vars(Metrics).items() if type(member) is property)
NUM_COUNTS = sum(name.startswith("num_") for name in NAMES)
NUM_FLOATS = len(NAMES) - NUM_COUNTS


def combine(parts: Iterable[Metrics]) -> tuple[Tensor, Metrics]:
    """The loss and metrics of all parts together, with the bits of one call over all of them.

    Parts are micro-batches (or ranks' shards, gathered) of calls with the same global counts or
    explicit weights: their losses then add up. No host synchronization.

    Args:
        parts: `Metrics` of torch tensors or NumPy arrays, at least one. Those of `rlk.Array` are
            made so by ``metrics._make(map(torch.from_dlpack, metrics))``.

    Returns:
        (loss, metrics), the loss float32 of 0 dimensions.

    Raises:
        rlk.InvalidArgument: no parts, what is no `Metrics`, one of other arrays, or both of torch's
            and NumPy's.

    Example:
        >>> loss, metrics = rlk.losses.combine([first.metrics, second.metrics])
    """
    # A Metrics is a tuple itself.
    found = list(parts) if isinstance(parts, Iterable) and not isinstance(parts, Metrics) else parts
    if not isinstance(found, list):
        fail("combine", "parts", "an iterable of Metrics", type(parts).__name__)
    for part in found:
        if not isinstance(part, Metrics):
            fail("combine", "parts", "Metrics", f"{type(part).__name__} among them")
    if not found:
        fail("combine", "parts", "at least one Metrics", "none")
    xp = _arrays(found[0].exact)
    for part in found:
        other = _arrays(part.exact)
        if other is not xp:
            got = f"{xp.__name__} and {other.__name__}"
            fail("combine", "parts", "metrics of one framework", got)
    counts = xp.stack([part.counts for part in found]).sum(0)
    exact = _add(xp, xp.stack([part.exact for part in found]))
    whole = Metrics(counts, None, exact)
    values = _values(xp, exact)
    floats = [values[row] for row in range(1, NUM_SUMS)]
    active = whole.num_active
    for name, pick in (("ratio_max", "maximum"), ("ratio_min", "minimum")):
        best = _neutral(xp, getattr(found[0], name), found[0].num_active, pick)
        for part in found[1:]:
            other = _neutral(xp, getattr(part, name), part.num_active, pick)
            best = getattr(xp, pick)(best, other)
        floats.append(xp.where(active > 0, best, _like(xp, best, 1.0)))
    most = found[0].tis_abs_log_max
    for part in found[1:]:
        most = xp.maximum(most, part.tis_abs_log_max)
    floats.append(most)
    clipped = _single(xp, whole.num_clip_high + whole.num_clip_low)
    floats.append(clipped / _single(xp, _at_least_one(xp, active)))
    return values[0], Metrics(counts, xp.stack(floats), exact)


def _arrays(sample: Tensor) -> Any:
    """The module of functions for these arrays: torch or numpy."""
    kind = type(sample)
    if kind.__module__.partition(".")[0] == "torch":
        import torch

        return torch
    import numpy

    if not isinstance(sample, numpy.ndarray):
        got = f"those of {kind.__module__}.{kind.__name__}; torch.from_dlpack takes them"
        fail("combine", "parts", "metrics of torch tensors or NumPy arrays", got)
    return numpy


def _like(xp: Any, sample: Tensor, value: float) -> Tensor:
    return xp.full_like(sample, value)


def _neutral(xp: Any, value: Tensor, active: Tensor, pick: str) -> Tensor:
    """A part without tokens says nothing about the extremes."""
    nothing = float("-inf") if pick == "maximum" else float("inf")
    return xp.where(active > 0, value, _like(xp, value, nothing))


def _single(xp: Any, x: Tensor) -> Tensor:
    return x.to(xp.float32) if xp.__name__ == "torch" else xp.float32(x)


def _double(xp: Any, x: Tensor) -> Tensor:
    return x.to(xp.float64) if xp.__name__ == "torch" else x.astype(xp.float64)


def _at_least_one(xp: Any, x: Tensor) -> Tensor:
    return xp.maximum(x, _like(xp, x, 1))


def _add(xp: Any, exact: Tensor) -> Tensor:
    """[k, rows, 2] added to [rows, 2]. The low word is unsigned: it goes in two halves."""
    high, low = exact[..., 0], exact[..., 1]
    marked = high == MARK
    zero = _like(xp, high, 0)
    flags = xp.where(marked, low, zero)
    special = zero[0]
    for flag in (1, 2, 4):
        special = special | xp.where((flags & flag).sum(0) > 0, _like(xp, special, flag), zero[0])
    low = xp.where(marked, zero, low)
    half = (1 << 32) - 1
    bottom = (low & half).sum(0)
    top = ((low >> 32) & half).sum(0) + (bottom >> 32)
    word = (top << 32) | (bottom & half)
    total = xp.where(marked, zero, high).sum(0) + (top >> 32)
    return xp.stack(
        [
            xp.where(special > 0, _like(xp, total, MARK), total),
            xp.where(special > 0, special, word),
        ],
        -1,
    )


def _values(xp: Any, exact: Tensor) -> Tensor:
    """The sums as float32 [rows], rounded as the kernels round them."""
    high, low = exact[..., 0], exact[..., 1]
    marked = high == MARK
    # A negative sum without its sign: else the words of a small one all but cancel, rounded.
    negative = (high < 0) & ~marked
    low = xp.where(negative, -low, low)
    high = xp.where(negative, ~high + (low == 0), high)
    # An unsigned word as a double: the halves' sum is rounded once, as the conversion is.
    unsigned = _double(xp, (low >> 32) & ((1 << 32) - 1)) * 2.0**32 + _double(
        xp, low & ((1 << 32) - 1)
    )
    units = xp.full_like(unsigned, 2.0**-40)
    units[:TERM_SUMS] = 2.0**-72
    sums = (_double(xp, high) * 2.0**64 + unsigned) * units
    sums = xp.where(negative, -sums, sums)
    nan = ((low & 1) > 0) | ((low & 6) == 6)
    infinity = xp.where(
        (low & 2) > 0, _like(xp, sums, float("inf")), _like(xp, sums, -float("inf"))
    )
    special = xp.where(nan, _like(xp, sums, float("nan")), infinity)
    sums = xp.where(marked, special, sums)
    return sums.to(xp.float32) if xp.__name__ == "torch" else sums.astype(xp.float32)
