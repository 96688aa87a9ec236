# SPDX-License-Identifier: Apache-2.0
"""Policy losses in float64, from the formulas of docs/ppo_loss.md; of rlk are the defaults alone.

A plain reading of the rules: where they say "selected", inactive tokens are left out of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from rlk import _rules

from .oracle import Bounded

Array = Any  # NumPy arrays
INF = float("inf")
ANYTHING = 1e30  # a bound; 0 times it is 0
UNDERFLOW = 2.0**-124  # an exponential below it may be 0: rlk's losses end at e^-86.6
TIE = 4e-6  # relative distance from a threshold within which fp32 may decide otherwise

DEFAULTS: Mapping[str, Any] = {
    **_rules.DEFAULTS,
    "kl_clamp": None,  # one that is given is of every estimator, the rules' own of k3 alone
    **dict.fromkeys(("max_seq_len", "samples_per_prompt", "group_boundaries")),
    **dict.fromkeys(("global_tokens", "global_sequences", "global_groups")),
}


@dataclass(frozen=True)
class LossAnswer:
    """Over all tokens, zeros in inactive ones; `ties` are tokens near a threshold."""

    loss: float
    grad: Array
    grad_entropy: Array
    grad_scale: Array  # sum of the magnitudes that grad is made of
    grad_lost: Array  # what of grad is 0 where its exponential underflows
    abs_loss_sum: float
    ties: Array
    counts: dict[str, int]
    terms: Array  # of the loss, whose sum it is
    through: Array  # what reaches grad as its mean over the sequence
    mean: Callable[[Array], Array]  # that mean, of each token
    sums: dict[str, float] = field(default_factory=dict)


def ppo_loss(
    log_probs: Array,
    old: Array,
    advantages: Array,
    mask: Array | None = None,
    *,
    rollout_logprobs: Array | None = None,
    ref_log_probs: Array | None = None,
    entropy: Array | None = None,
    importance_weights: Array | None = None,
    loss_weights: Array | None = None,
    cu_seqlens: Array | None = None,
    mean_log_probs: Array | None = None,
    **options: Any,
) -> LossAnswer:
    """Tokens [B, T], [T] or, with cu_seqlens, [N]; the rest as rlk.jit.ppo_loss takes it.
    `mean_log_probs` are those that a sequence's mean log-ratio is made of, if others."""
    o = {**DEFAULTS, **options}
    _fill_in(o)
    shape = np.shape(log_probs)
    sequence, num_sequences = _sequences(shape, cu_seqlens)
    active = np.ones(shape, bool) if mask is None else np.asarray(mask) != 0
    active = active.reshape(-1)
    s = sequence[active]

    def tokens(values: Any) -> Array:
        return np.asarray(values, np.float64).reshape(-1)[active]

    def per_token(values: Any) -> Array:
        wide = np.asarray(values, np.float64)
        return tokens(wide) if wide.shape == shape else wide.reshape(-1)[s]

    lp, p0, a = tokens(log_probs), tokens(old), per_token(advantages)
    n = np.bincount(s, minlength=num_sequences)
    with np.errstate(all="ignore"):
        if loss_weights is None:
            w = _weights(o["loss_reduction"], n, s, o)
            kl_name = o["loss_reduction"] if o["kl_reduction"] == "policy" else o["kl_reduction"]
            w_kl = _weights(kl_name, n, s, o)
        else:
            w = w_kl = per_token(loss_weights)
        if importance_weights is None:
            rho, u, ties, counts = _correction(o, p0, rollout_logprobs, tokens, s, n)
        else:
            rho, u = per_token(importance_weights), np.zeros(len(s))
            ties, counts = u != 0, {"num_tis_rejected": int((rho == 0).sum())}
        is_left = np.ones(len(s), bool)
        if (
            o["tis_rejected"] == "leave"
            and o["tis_mode"] != "truncate"
            and o["tis_level"] == "token"
        ):
            is_left = rho != 0
        num_left = np.maximum(_sum(1.0 * is_left, s, n), 1)

        def mean(values: Array) -> Array:
            """Of each token's sequence, over those left."""
            return (_sum(np.where(is_left, values, 0.0), s, n) / num_left)[s]

        own = delta = lp - p0
        clamp = o["log_ratio_clamp"]
        if o["ratio_level"] != "token":
            of_mean = delta if mean_log_probs is None else tokens(mean_log_probs) - p0
            delta, clamp = mean(of_mean), o["gspo_log_ratio_clamp"]
        if o["advantage_level"] == "sequence" and np.shape(advantages) == shape:
            a = mean(a)
        r, clipped_delta, moves, near = _ratio(delta, clamp)
        ties |= near
        value, slope, lost, near, more = _policy(o, a, r, lp, moves)
        ties |= near
        counts |= more
        value = np.where(rho == 0, 0.0, rho * value)
        slope, lost = (np.where(rho == 0, 0.0, rho * x) for x in (slope, lost))
        term, grad = w * value, w * slope
        scale, lost = np.abs(grad), np.abs(w * lost)
        sums = {"policy_loss": term.sum()}
        # What goes through the mean of the sequence, and its scale.
        through = np.zeros(len(s))
        if o["ratio_level"] == "sequence" and o["policy_loss"] not in ("cispo", "gpg"):
            through, grad = grad, through
        if o["kl_coef"] != 0:
            g, g_moves, g_means = np.ones(len(s)), np.zeros(len(s), bool), np.zeros(len(s), bool)
            if o["kl_weight"] == "ratio" and o["kl_ratio"] == "policy":
                g, is_mean = r, o["ratio_level"] == "sequence"
                g_moves, g_means = moves & (not is_mean), moves & is_mean
            elif o["kl_weight"] == "ratio":
                x = own if o["kl_ratio"] == "token" else lp - tokens(rollout_logprobs)
                g, _, g_moves, near = _ratio(x, o["log_ratio_clamp"])
                ties |= near
            k, k_slope, k_through, near = _kl(o, tokens(ref_log_probs) - lp, g, g_moves, g_means)
            ties |= near
            sums |= {"kl_sum": k.sum(), "kl_loss": (w_kl * k).sum()}
            c = w_kl * o["kl_coef"]
            term = term + c * k
            grad, through = grad + c * k_slope, through + c * k_through
            size = np.abs(c) * (np.abs(k_slope) + np.abs(k_through))
            scale, lost = scale + size, lost + np.where(g < UNDERFLOW, size, 0.0)
        if o["ratio_level"] == "sequence":
            grad = grad + np.where(is_left, mean(through), 0.0)
            scale = scale + np.where(is_left, mean(scale), 0.0)
            lost = lost + np.where(is_left, mean(lost), 0.0)
        if o["ratio_level"] == "sequence" or not is_left.all():
            # One token near a threshold may move all of its sequence.
            ties = _sum(1.0 * ties, s, n)[s] > 0
        grad_entropy = np.zeros(len(s))
        if o["entropy_coef"] != 0:
            h = tokens(entropy)
            sums["entropy_sum"] = h.sum()
            term = term - w * o["entropy_coef"] * h
            grad_entropy = -w * o["entropy_coef"]
        sums |= {
            "abs_loss_sum": np.abs(term).sum(),
            "ratio_sum": r.sum(),
            "ratio_sq_sum": (r * r).sum(),
            "approx_kl_sum": -clipped_delta.sum(),
            "approx_k3_sum": (np.expm1(clipped_delta) - clipped_delta).sum(),
            "ratio_max": r.max() if len(r) else 1.0,
            "ratio_min": r.min() if len(r) else 1.0,
        }
        if o["use_tis"] or importance_weights is not None:
            sums |= {
                "tis_sum": rho.sum(),
                "tis_sq_sum": (rho * rho).sum(),
                "tis_abs_log_sum": np.abs(u).sum(),
                "tis_abs_log_max": np.abs(u).max() if len(u) else 0.0,
            }
        counts |= {
            "num_active": len(s),
            "num_sequences": int((n > 0).sum()),
            "num_log_ratio_clamped": int((~moves).sum()),
        }

        def spread(values: Array) -> Array:
            return _spread(values, active, shape)

        def spread_mean(values: Array) -> Array:
            return spread(np.where(is_left, mean(values.reshape(-1)[active]), 0.0))

        return LossAnswer(
            float(term.sum()) if len(term) else 0.0,
            spread(grad),
            spread(grad_entropy),
            spread(scale),
            spread(lost),
            float(np.abs(term).sum()),
            spread(ties),
            counts,
            spread(term),
            spread(through),
            spread_mean,
            {name: float(total) for name, total in sums.items()},
        )


@dataclass(frozen=True)
class BoundedLoss:
    """A loss of log-probs that may be off, with its bounds."""

    answer: LossAnswer  # of the exact ones
    loss: Bounded
    grad: Bounded  # of each token's log-prob
    grad_entropy: Bounded
    clip_ratio: Bounded


def bounded_ppo_loss(
    c: Mapping[str, float],
    c_grad: Mapping[str, float],
    log_probs: Bounded,
    *operands: Any,
    ref: Bounded | None = None,
    entropy: Bounded | None = None,
    **options: Any,
) -> BoundedLoss:
    """The loss with the coefficients of class reduction and its gradient's. What is given with a
    bound is moved to every corner of it, so that a token which crosses a clip there may be on
    either side: how far its term and its derivative go is added to their own bounds. A sequence's
    mean log-ratio is moved apart from a token's own log-prob, and of a derivative that is a mean
    over the sequence each token's part by itself: they may go either way each."""
    loss: Callable[..., LossAnswer] = ppo_loss
    given = {"log_probs": log_probs, "ref_log_probs": ref, "entropy": entropy}
    moved = {name: one for name, one in given.items() if one is not None}
    level = {**DEFAULTS, **options}
    has_mean = level["ratio_level"] != "token" or level["policy_loss"] == "gspo"

    def at(sides: tuple[int, ...], mean_side: int = 0) -> LossAnswer:
        def to(one: Bounded, side: int) -> Array:
            return one.value + side * np.where(np.isfinite(one.value), one.bound, 0.0)

        own = {name: to(one, side) for side, (name, one) in zip(sides, moved.items(), strict=True)}
        of_mean = to(log_probs, mean_side)
        return loss(own.pop("log_probs"), *operands, **own, mean_log_probs=of_mean, **options)

    def own_grad(one: LossAnswer) -> Array:
        return one.grad - one.mean(one.through)

    with np.errstate(all="ignore"):
        middle = (0,) * len(moved)
        answer, corners, through = at(middle), [], np.zeros_like(log_probs.value)
        for mean_side in (1, -1) if has_mean else (0,):
            here = [at(sides, mean_side) for sides in product((1, -1), repeat=len(moved))]
            # The ratio is one for all of a sequence; the rest of each token goes its own way.
            base = at(middle, mean_side).through if has_mean else answer.through
            apart = np.max([np.abs(one.through - base) for one in here], axis=0)
            shared = np.abs(answer.mean(base - answer.through))
            through = np.maximum(through, shared + answer.mean(apart))
            corners += here
        away = np.max([np.abs(one.terms - answer.terms) for one in corners], axis=0)
        exact = own_grad(answer)
        bend = np.max([np.abs(own_grad(one) - exact) for one in corners], axis=0) + through
        lost = np.max([one.grad_lost for one in (answer, *corners)], axis=0)
        bound = c["weight_sum_rtol"] * answer.abs_loss_sum + away.sum() + 2.0**-60
        of_grad = c_grad["rtol"] * answer.grad_scale + lost + bend
        of_grad = np.where(answer.ties, ANYTHING, of_grad)
    clips, count = ("num_clip_high", "num_clip_low"), max(answer.counts["num_active"], 1)
    crossed = max(sum(abs(one.counts[n] - answer.counts[n]) for n in clips) for one in corners)
    return BoundedLoss(
        answer,
        Bounded(np.asarray(answer.loss), np.asarray(bound)),
        Bounded(answer.grad, of_grad),
        Bounded(answer.grad_entropy, c_grad["rtol"] * np.abs(answer.grad_entropy)),
        Bounded(
            np.asarray(sum(answer.counts[n] for n in clips) / count),
            np.asarray((crossed + int(answer.ties.sum())) / count + 2.0**-23),
        ),
    )


def _spread(values: Array, active: Array, shape: tuple[int, ...]) -> Array:
    full = np.zeros(len(active), values.dtype)
    full[active] = values
    return full.reshape(shape)


def _sequences(shape: tuple[int, ...], cu_seqlens: Array | None) -> tuple[Array, int]:
    """The sequence of each flattened token."""
    if cu_seqlens is not None:
        starts = np.asarray(cu_seqlens, np.int64)
        lengths = starts[1:] - starts[:-1]
        return np.repeat(np.arange(len(lengths)), lengths), len(lengths)
    if len(shape) == 2:
        return np.repeat(np.arange(shape[0]), shape[1]), shape[0]
    return np.zeros(shape[0], np.int64), 1


def _fill_in(o: dict[str, Any]) -> None:
    """What one option makes of another."""
    if o["policy_loss"] == "gspo" and o["ratio_level"] == "token":
        o["ratio_level"] = "sequence_token"
    if o["advantage_level"] == "ratio":
        o["advantage_level"] = "token" if o["ratio_level"] == "token" else "sequence"
    if o["kl_clamp"] is None:  # that of the defaults is of k3 alone
        o["kl_clamp"] = _rules.DEFAULTS["kl_clamp"] if o["kl_estimator"] == "k3" else INF


def _ratio(log_ratio: Array, clamp: Any) -> tuple[Array, Array, Array, Array]:
    """Its exponential within the clamp, it clamped, whether it moves there, and near ties."""
    low, high = clamp if isinstance(clamp, tuple) else (-clamp, clamp)
    moves = ~((log_ratio < low) | (log_ratio > high))
    free = np.exp(log_ratio)
    ties = _near(free, np.exp(low)) | _near(free, np.exp(high))
    clipped = np.clip(log_ratio, low, high)
    return np.exp(clipped), clipped, moves, ties


def _near(x: Array, threshold: float) -> Array:
    # What is infinite bounds nothing, and is as near to everything.
    return (np.abs(x - threshold) <= TIE * abs(threshold)) & np.isfinite(threshold)


def _mean(values: Array, s: Array, n: Array) -> Array:
    return _sum(values, s, n) / np.maximum(n, 1)


def _sum(values: Array, s: Array, n: Array) -> Array:
    return np.bincount(s, values, minlength=len(n))


def _groups(o: Mapping[str, Any], num_sequences: int) -> Array:
    """Boundaries of groups of sequences."""
    if o["group_boundaries"] is not None:
        return np.asarray(o["group_boundaries"], np.int64)
    return np.arange(0, num_sequences + 1, o["samples_per_prompt"] or 1)


def _weights(name: str, n: Array, s: Array, o: Mapping[str, Any]) -> Array:
    """Section "Reductions": a weight a token."""
    num_tokens = o["global_tokens"] or n.sum()
    num_all = o["global_sequences"] or len(n)
    num_valid = o["global_sequences"] or (n > 0).sum()
    if name in ("prompt_mean", "rollout_mean"):
        starts = _groups(o, len(n))
        group = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        num_groups = o["global_groups"] or len(starts) - 1
        size = np.bincount(group, n, minlength=len(starts) - 1)
        return 1.0 / (num_groups * size[group[s]])
    length = o["max_seq_len"]
    denominators: dict[str, Any] = {
        "token_mean": num_tokens,
        "token_sum": 1.0,
        "sequence_mean": num_all * n[s],
        "sequence_mean_valid": num_valid * n[s],
        "seq_mean_token_sum": num_valid,
        "seq_mean_token_sum_norm": num_all * (length or 0),
        "seq_mean_token_sum_norm_valid": num_valid * (length or 0),
        "token_sum_over_L": length,
        "sequence_sum": num_all,
    }
    return np.broadcast_to(1.0 / denominators[name], s.shape)


def _ratio_bounds(o: Mapping[str, Any]) -> tuple[float, float]:
    if o["policy_loss"] == "cispo" and o["cispo_bounds"] == "eps":
        return -INF, o["eps_clip_high"]
    if o["policy_loss"] == "cispo" and o["cispo_bounds"] != "1+eps":
        low, high = o["cispo_bounds"]
        return low, high
    return 1.0 - o["eps_clip_low"], 1.0 + o["eps_clip_high"]


def _policy(
    o: Mapping[str, Any], a: Array, r: Array, lp: Array, moves: Array
) -> tuple[Array, Array, Array, Array, dict[str, int]]:
    """Value and slope, what of the slope is lost where an exponential underflows, near ties
    and counts."""
    low, high = _ratio_bounds(o)
    clipped = np.clip(r, low, high)
    ties = _near(r, low) | _near(r, high)
    dual, lost = np.zeros(len(a), bool), np.zeros(len(a))
    kind = o["policy_loss"]
    if kind == "gpg":
        value, slope = -a * lp, -a
    elif kind == "cispo":
        value, slope = -clipped * a * lp, -clipped * a
    elif kind == "sapo":
        tau = np.where(a > 0, o["sapo_tau_pos"], o["sapo_tau_neg"])
        z = np.exp(-tau * (r - 1))
        soft = 1 / (1 + z)
        value, slope = -a * 4 / tau * soft, -a * 4 * soft * (z * soft) * r * moves
        lost = np.where(z < UNDERFLOW, np.abs(slope), 0.0)
    else:
        plain, bounded = -a * r, -a * clipped
        is_plain, moves_plain = plain >= bounded, np.ones(len(a), bool)
        if o["delta"] is not None:
            delta = o["delta"]
            plain, moves_plain = -a * np.minimum(r, delta), r <= delta
            dual = ~moves_plain & (plain > bounded) & (a != 0)
            is_plain = plain >= bounded
            ties |= _near(r, delta)
        value = np.maximum(plain, bounded)
        inside = (r >= low) & (r <= high)
        slope = np.where(np.where(is_plain, moves_plain, inside) & moves, -a * r, 0.0)
        if o["use_dual_clip"]:
            c = o["clip_ratio_c"]
            dual = (a < 0) & (value > -a * c)
            ties |= (a < 0) & _near(r, c)
            value = np.where(dual, -a * c, value)
            slope = np.where(dual, 0.0, slope)
    slope = np.where(np.isnan(value), np.nan, slope)
    lost = np.where(r < UNDERFLOW, np.abs(slope), lost)
    none = a == 0
    counts = {
        "num_clip_high": int(((a > 0) & (r > high)).sum()),
        "num_clip_low": int(((a < 0) & (r < low)).sum()),
        "num_dual_clip": int(dual.sum()),
        "num_outside": int(((r > high) | (r < low)).sum()),
    }
    value, slope, lost = (np.where(none, 0.0, x) for x in (value, slope, lost))
    return value, slope, lost, ties, counts


def _correction(
    o: Mapping[str, Any], old: Array, rollout: Any, tokens: Any, s: Array, n: Array
) -> tuple[Array, Array, Array, dict[str, int]]:
    no = np.zeros(len(s), bool)
    if not o["use_tis"]:
        return np.ones(len(s)), np.zeros(len(s)), no, {}
    u = old - tokens(rollout)
    statistic = u
    if o["tis_level"] == "sequence":
        statistic = _sum(u, s, n)[s]
    elif o["tis_level"] == "geometric":
        statistic = _mean(u, s, n)[s]
    bound = o["tis_log_clamp"]
    low, high = o["tis_imp_ratio_floor"], o["tis_imp_ratio_cap"]
    overflow = (statistic > 88.72283) if o["tis_overflow"] == "zero" else no
    rho = np.exp(np.clip(statistic, -bound, bound))
    above, below = (rho > high) & ~overflow, rho < low
    ties = _near(rho, low) | _near(rho, high)
    if o["tis_mode"] == "truncate":
        rejected = overflow
        rho = np.clip(rho, low, high)
    else:
        rejected = overflow | above | below
        if o["tis_mode"] == "band":
            rho = np.exp(np.clip(u, -bound, bound))
    counts = {
        "num_tis_high": int(above.sum()),
        "num_tis_low": int(below.sum()),
        "num_tis_rejected": int(rejected.sum()),
    }
    return np.where(rejected, 0.0, rho), u, ties, counts


def _kl(
    o: Mapping[str, Any], e: Array, g: Array, moves: Array, means: Array
) -> tuple[Array, Array, Array, Array]:
    """Value of the estimate times its weight g, derivatives with respect to the policy's log-prob
    and to the mean log-ratio, and near ties. g moves with the own log-prob, or with the mean."""
    bound, most = o["kl_clamp"], o["kl_output_clamp"]
    x, inside = np.clip(e, -bound, bound), ~(np.abs(e) > bound)  # NaN is not clamped
    terms: dict[str, tuple[Array, Array]] = {
        "k1": (-x, np.ones_like(x)),
        "abs": (np.abs(x), -np.sign(x)),
        "k2": (x * x / 2, -x),
        "k3": (np.expm1(x) - x, -np.expm1(x)),
    }
    k, slope = terms[o["kl_estimator"]]
    slope = np.where(inside, slope, 0.0)
    value = g * k
    free = ~(np.abs(value) > most)
    ties = _near(np.abs(e), bound) | _near(np.abs(value), most)
    no = np.zeros_like(e)
    if o["kl_gradient"] == "unbiased":
        grad, through = -g * e, no
    elif o["kl_gradient"] == "importance":
        grad, through = np.where(free & inside, g * (k + slope), 0.0), no
    else:
        grad = np.where(free, g * (slope + np.where(moves, k, 0.0)), 0.0)
        through = np.where(free & means, value, 0.0)
    return np.clip(value, -most, most), grad, through, ties
