# SPDX-License-Identifier: Apache-2.0
"""Exact answers in float64, in blocks of the vocabulary, and the sums that bounds are made of.

Independent of every kernel: NumPy alone, plain two-pass softmax, nothing shared with rlk's own
templates. The formulas of the bounds are derived in docs/checking.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .stored import Stored

Array = np.ndarray
BLOCK_ELEMENTS = 1 << 21  # of one [rows, vocabulary block] array


@dataclass(frozen=True)
class Bounded:
    """An exact value and how far a correct kernel may be from it, element by element."""

    value: Array
    bound: Array

    def spread(self, active: Array, neutral: float = 0.0) -> Bounded:
        """Of active rows, at their place among all; the others are exactly the neutral value."""

        def full(rows: Array, fill: float) -> Array:
            found = np.full((*active.shape, *rows.shape[1:]), fill)
            found[active] = rows
            return found

        return Bounded(full(self.value, neutral), full(self.bound, 0.0))


@dataclass(frozen=True)
class Expected:
    """Exact outputs with their bounds, and the gradients for an upstream gradient of each output
    that has one (of `needs(inputs)`, by name)."""

    outputs: Mapping[str, Bounded]
    gradients: Callable[[Mapping[str, Stored]], Mapping[str, Bounded]]


@dataclass(frozen=True)
class Block:
    """A block of the vocabulary: [rows, columns] each."""

    columns: slice
    logits: Array  # z
    sizes: Array  # a_v, the magnitudes that z was summed from
    inside: Array | None  # x / softcap, what the tanh is taken of; None without a softcap


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Active rows in float64: target and temperature [N], softcap or None, logit_scale."""

    target: Array
    temperature: Array
    softcap: float | None = None
    logit_scale: float = 1.0

    def block(self, columns: slice, raw: Array, sizes: Array) -> Block:
        """From the biased product and the magnitudes that it was summed from."""
        raw, sizes = raw * self.logit_scale, sizes * abs(self.logit_scale)
        inside = None
        if self.softcap is not None:
            inside = raw / self.softcap
            raw = np.tanh(inside) * self.softcap
        heat = self.temperature[:, None]
        return Block(columns, raw / heat, sizes / heat, inside)


@dataclass(frozen=True, kw_only=True)
class LinearRows(Rows):
    """Of a linear head: hidden [N, D], weight [V, D], bias [V] or None."""

    hidden: Array
    weight: Array
    bias: Array | None

    @property
    def has_options(self) -> bool:
        return self.softcap is not None or self.logit_scale != 1.0

    def blocks(self) -> Iterator[Block]:
        """The logits, a block of the vocabulary at a time."""
        rows, vocab = self.hidden.shape[0], self.weight.shape[0]
        width = max(1, BLOCK_ELEMENTS // max(rows, 1))
        magnitude = np.abs(self.hidden)
        for start in range(0, vocab, width):
            columns = slice(start, min(start + width, vocab))
            raw = self.hidden @ self.weight[columns].T
            sizes = magnitude @ np.abs(self.weight[columns]).T
            if self.bias is not None:
                raw = raw + self.bias[columns]
                sizes = sizes + np.abs(self.bias[columns])
            yield self.block(columns, raw, sizes)

    @property
    def depth(self) -> int:
        """Terms of a logit's sum."""
        return int(self.hidden.shape[1])


@dataclass(frozen=True, kw_only=True)
class LogitRows(Rows):
    """Of logits [N, V] that are given."""

    logits: Array
    depth: int = 0

    @property
    def has_options(self) -> bool:
        is_scaled = self.logit_scale != 1.0 or bool((self.temperature != 1.0).any())
        return is_scaled or self.softcap is not None

    def blocks(self) -> Iterator[Block]:
        """The logits as one block."""
        yield self.block(slice(0, self.logits.shape[1]), self.logits, np.abs(self.logits))


def hits(target: Array, columns: slice) -> tuple[Array, Array]:
    """(row, column in the block) of each target that is in these columns."""
    here = (target >= columns.start) & (target < columns.stop)
    return np.flatnonzero(here), target[here] - columns.start


@dataclass(frozen=True)
class LinearLogprob:
    """The forward's answers a row with their bounds, and what the backward needs."""

    logp: Array
    bound: Array  # B with |log p|; for a target at -inf, B without that term
    maximum: Array
    log_sum: Array
    lse: Array
    lse_bound: Array
    entropy: Array
    entropy_bound: Array
    entropy_rounding: Array  # the part of entropy_bound that is the logits'
    logit_rtol: float  # error of a logit, in units of a_v


def linear_logprob(
    rows: LinearRows | LogitRows, c: Mapping[str, float], with_entropy: bool = False
) -> LinearLogprob:
    """log p of the targets, log-sum-exp and entropy (0 where it is not asked for), with the
    coefficients of class linear_logprob, or logprob for logits.

    B = atol + rtol * |value| + (chain_slope * D + chain_constant) * chain_unit * max a_v, the max
    over the finite logits; options add option_constant. The last term of the entropy's bound is
    times sum p |log p + H|, which is how far an error of the logits reaches.
    """
    num_rows = rows.target.shape[0]
    rtol = (chain(c, rows.depth) if rows.depth else 0.0) + (
        c["option_constant"] * c["chain_unit"] if rows.has_options else 0.0
    )
    maximum = np.full(num_rows, -np.inf)
    largest, chosen = np.zeros(num_rows), np.zeros(num_rows)
    total, entropy, reach = np.zeros(num_rows), np.zeros(num_rows), np.zeros(num_rows)

    def bound(value: Array, rounding: Array) -> Array:
        distance = np.where(np.isfinite(value), np.abs(value), 0.0)
        return np.asarray(c["atol"] + c["rtol"] * distance + rounding)

    with np.errstate(all="ignore"):
        for block in rows.blocks():
            maximum = np.maximum(maximum, block.logits.max(axis=1))
            finite = np.isfinite(block.logits) & np.isfinite(block.sizes)
            largest = np.maximum(largest, np.where(finite, block.sizes, 0.0).max(axis=1))
            hit = hits(rows.target, block.columns)
            chosen[hit[0]] = block.logits[hit]
        for block in rows.blocks():
            total += np.exp(block.logits - _finite_base(maximum)).sum(axis=1)
        log_sum = np.log(total)
        lse = maximum + log_sum
        if with_entropy:
            for block in rows.blocks():
                logs = block.logits - maximum[:, None] - log_sum[:, None]
                entropy -= np.where(logs == -np.inf, 0.0, np.exp(logs) * logs).sum(axis=1)
            for block in rows.blocks():
                logs = block.logits - maximum[:, None] - log_sum[:, None]
                away = np.abs(logs + entropy[:, None])
                reach += np.where(logs == -np.inf, 0.0, np.exp(logs) * away).sum(axis=1)
        logp = (chosen - maximum) - log_sum
        rounding = rtol * largest
        return LinearLogprob(
            logp,
            bound(logp, rounding),
            maximum,
            log_sum,
            lse,
            bound(lse, rounding),
            entropy,
            bound(entropy, rounding * reach),
            rounding * reach,
            rtol,
        )


def linear_logprob_gradients(
    rows: LinearRows,
    upstream: Mapping[str, Array],
    forward: LinearLogprob,
    c: Mapping[str, float],
    store: Mapping[str, Mapping[str, float]],
    off: Mapping[str, Array] | None = None,
) -> dict[str, Bounded]:
    """Gradients for hidden [N, D], weight [V, D] and bias [V] of the outputs (logp, entropy, lse)
    that `upstream` has, with the coefficients of class linear_logprob_grad; `store` has those of
    each asked gradient's own storage type, and `off` says how far each upstream gradient may be off
    itself.

    |error| <= store_rtol * |x| + store_atol + sum of E * |other factor|, where
    E = factor_rtol * |dZ| + G * (slope * p * B + probability_floor) + underflow + chain * |dZ|,
    slope is that of the softcap, and G = |g| + |g_lse| + |g_entropy| (|log p + H| + 2); a softcap
    adds |dZ| * (error of its slope) + slope_atol * |dZ before the softcap|. An upstream gradient
    that is off adds the dZ of how far, with its own E. The weight's has |dZ| times what
    `_shifted_off` says besides.
    """
    num_rows, depth = rows.hidden.shape
    vocab = rows.weight.shape[0]
    g, g_entropy, g_lse = _raw_upstream(rows, upstream)
    # A row whose upstream gradients are all 0 has none, whatever it holds.
    more = [_raw_upstream(rows, {name: one}) for name, one in (off or {}).items()]
    live = np.any([one != 0 for part in ((g, g_entropy, g_lse), *more) for one in part], axis=0)
    states = np.where(live, rows.hidden, 0.0)
    hidden, hidden_error = np.zeros((num_rows, depth)), np.zeros((num_rows, depth))
    weight, weight_error = np.zeros((vocab, depth)), np.zeros((vocab, depth))
    bias, bias_error = np.zeros(vocab), np.zeros(vocab)
    magnitude = np.abs(states)
    with np.errstate(all="ignore"):
        shifted_off = _shifted_off(rows, upstream, off or {}, forward, magnitude, c["shifted_atol"])
        for block in rows.blocks():
            dz, rounding = _logit_gradients(rows, block, (g, g_entropy, g_lse), forward, c)
            size = np.abs(dz)
            for part in more:
                away, its_own = _logit_gradients(rows, block, part, forward, c)
                size, rounding = size + np.abs(away), rounding + np.abs(away) + its_own
            dz, rounding, size = (np.where(live, x, 0.0) for x in (dz, rounding, size))
            rounding += c["factor_rtol"] * size + np.where(live, c["underflow"], 0.0)
            over_vocab = rounding + chain(c, vocab) * size
            over_rows = rounding + chain(c, num_rows) * size
            columns = block.columns
            hidden += dz @ rows.weight[columns]
            hidden_error += over_vocab @ np.abs(rows.weight[columns])
            weight[columns] = dz.T @ states
            weight_error[columns] = over_rows.T @ magnitude + size.T @ shifted_off
            bias[columns] = dz.sum(axis=0)
            bias_error[columns] = over_rows.sum(axis=0)
    exact = {"hidden": hidden, "weight": weight, "bias": bias}
    errors = {"hidden": hidden_error, "weight": weight_error, "bias": bias_error}
    found = {
        name: Bounded(
            exact[name],
            errors[name] + s["store_rtol"] * np.abs(exact[name]) + s["store_atol"],
        )
        for name, s in store.items()
    }
    if "hidden" in found:
        found["hidden"].bound[~live[:, 0]] = 0.0
    return found


def _shifted_off(
    rows: LinearRows,
    upstream: Mapping[str, Array],
    off: Mapping[str, Array],
    forward: LinearLogprob,
    magnitude: Array,
    atol: float,
) -> Array:
    """How far a hidden state may be off that was made smaller for the weight's gradient: each row's
    dZ is brought near fp16's largest number by a power of two, and where that is 2^k times the
    power of the row with the largest gradient, the row's states are divided by 2^k and rounded: by
    `atol` if not to nothing. 2^k follows from the bound |g| + |g_lse| + |g_entropy| (H + 1) of
    |dZ|, with what is off on either side."""
    if atol == 0.0:
        return np.zeros_like(magnitude)
    most, least = np.zeros(len(magnitude)), np.zeros(len(magnitude))
    for name, one in upstream.items():
        factor = np.abs(rows.logit_scale / rows.temperature)
        factor = factor * (forward.entropy + 1 if name == "entropy" else 1.0)
        most += factor * (np.abs(one) + off.get(name, 0.0))
        least += factor * np.maximum(np.abs(one) - off.get(name, 0.0), 0.0)
    largest = np.max(most, initial=0.0, where=np.isfinite(most))
    # The bounds are fp32's; those of one binary exponent have one power of two.
    steps = np.frexp(largest * (1 + 2.0**-20))[1] - np.frexp(least * (1 - 2.0**-20))[1]
    steps = np.where(least > 0, np.maximum(steps, 0), 1000)
    away = np.where(steps > 0, atol * np.exp2(steps), 0.0)
    return np.asarray(np.minimum(away[:, None], magnitude))


def _logit_gradients(
    rows: LinearRows | LogitRows,
    block: Block,
    upstream: tuple[Array, Array, Array],
    forward: LinearLogprob,
    c: Mapping[str, float],
) -> tuple[Array, Array]:
    """dZ of a block and how far its factors may be off; upstream is that of the raw logits."""
    g, g_entropy, g_lse = upstream
    off = (forward.bound + forward.entropy_rounding)[:, None]
    logs = block.logits - forward.maximum[:, None] - forward.log_sum[:, None]
    p = np.exp(logs)
    away = np.where(logs == -np.inf, 0.0, logs + forward.entropy[:, None])
    dz = p * (g_lse - g - g_entropy * away)
    hit = hits(rows.target, block.columns)
    # A target at -inf has p = 0 and no gradient in its own column.
    dz[hit] += np.where(block.logits[hit] == -np.inf, 0.0, g[hit[0], 0])
    parts = np.abs(g) + np.abs(g_lse) + np.abs(g_entropy) * (np.abs(away) + 2)
    rounding = parts * c.get("probability_floor", c.get("upstream_atol", 0.0))
    if block.inside is None:
        rounding += parts * p * off
    else:
        slope = np.cosh(np.clip(block.inside, -350.0, 350.0)) ** -2.0
        rounding += parts * slope * p * off + c["slope_atol"] * np.abs(dz)
        dz = dz * slope
        sizes = block.sizes * rows.temperature[:, None] / rows.softcap
        error = 2 * np.abs(np.tanh(block.inside)) * forward.logit_rtol * sizes
        rounding += np.where(np.isfinite(sizes), error * np.abs(dz), 0.0)
    return dz, rounding


def logit_gradient(
    rows: LogitRows, upstream: Mapping[str, Array], forward: LinearLogprob, c: Mapping[str, float]
) -> Bounded:
    """Gradient of the logits [N, V], with the coefficients of class logprob_grad.

    |error| <= (rtol + store_rtol) * |x| + store_atol + G * (slope * p * B + upstream_atol), and
    underflow where x is not 0, with G, B and what a softcap adds as in linear_logprob_gradients.
    """
    g = _raw_upstream(rows, upstream)
    (block,) = rows.blocks()
    with np.errstate(all="ignore"):
        dz, rounding = _logit_gradients(rows, block, g, forward, c)
    rounding += (c["rtol"] + c["store_rtol"]) * np.abs(dz) + c["store_atol"]
    return Bounded(dz, rounding + np.where(dz != 0, c["underflow"], 0.0))


def _raw_upstream(
    rows: LinearRows | LogitRows, upstream: Mapping[str, Array]
) -> tuple[Array, Array, Array]:
    """Upstream gradients of logp, entropy and lse as those of the raw logits, 0 where absent."""
    factor = rows.logit_scale / rows.temperature
    g, g_entropy, g_lse = (
        (upstream[name] * factor if name in upstream else np.zeros(rows.target.shape[0]))[:, None]
        for name in ("logp", "entropy", "lse")
    )
    return g, g_entropy, g_lse


def _finite_base(maximum: Array) -> Array:
    """The maximum of a row, 0 where all of it is -inf: its sum is 0, not NaN."""
    return np.where(maximum == -np.inf, 0.0, maximum)[:, None]


def chain(c: Mapping[str, float], length: int) -> float:
    """The relative error that a product of `length` terms, summed in fp32, may have."""
    return (c["chain_slope"] * length + c["chain_constant"]) * c["chain_unit"]
