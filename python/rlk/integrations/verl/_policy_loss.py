# SPDX-License-Identifier: Apache-2.0
"""verl's policy losses by `rlk.jit.ppo_loss`: its arguments, its options, its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rlk import jit
from rlk._loss_options import as_float
from rlk.errors import fail, renamed, text
from rlk.integrations._config import clip_low, get

__all__ = ["KINDS", "Version", "make_policy_loss"]

Tensor = Any
PolicyLoss = Callable[..., tuple[Tensor, dict[str, float]]]
#: Policy loss by the name it is registered under.
KINDS = {
    "rlk": "ppo",
    "rlk_gspo": "gspo",
    "rlk_sapo": "sapo",
    "rlk_cispo": "cispo",
    "rlk_gpg": "gpg",
}
NEEDS_COUNT = {
    "token-mean": "batch_num_tokens",
    "seq-mean-token-sum": "global_batch_size",
    "seq-mean-token-mean": "global_batch_size",
    "seq-mean-token-sum-norm": "global_batch_size",
}
BATCH_INFO = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
#: What errors of the op call its arguments.
NAMES = {
    "log_probs": "log_prob",
    "old_log_probs": "old_log_prob",
    "loss_mask": "response_mask",
    "importance_weights": "rollout_is_weights",
    "loss_reduction": "loss_agg_mode",
    "eps_clip_low": "config.clip_ratio_low",
    "eps_clip_high": "config.clip_ratio_high",
    "clip_ratio_c": "config.clip_ratio_c",
    "sapo_tau_pos": "config.tau_pos",
    "sapo_tau_neg": "config.tau_neg",
    "global_tokens": "config.global_batch_info.batch_num_tokens",
    "global_sequences": "config.global_batch_info.global_batch_size",
    "max_seq_len": "config.global_batch_info.loss_scale_factor",
}


class Version(NamedTuple):
    """In what verl's versions differ."""

    dialect: str = "verl"  #: "verl_old": seq-mean-token-sum-norm is of the sum, on every rank
    #: Losses that are reduced by seq-mean-token-mean whatever loss_agg_mode says.
    by_sequence: tuple[str, ...] = ("gspo", "sapo")


LATEST = Version()


def make_policy_loss(kind: str, version: Version = LATEST) -> PolicyLoss:
    """The function that verl's registry takes, for a policy loss of `rlk.jit.ppo_loss`.

    Args:
        kind: "ppo" (verl's vanilla), "gspo", "sapo", "cispo" or "gpg".
        version: the rules of the verl it is for.

    Returns:
        A function of verl's signature. It raises rlk.InvalidArgument for an option or a count that
        it cannot honour, by verl's name of it.

    Example:
        >>> loss, metrics = make_policy_loss("gspo")(old, log_prob, advantages, mask, config=config)
    """

    def policy_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        if config is None:
            fail("policy_loss", "config", "the actor's config", "None")
        _check_correction(config)
        options = _options(kind, config)
        if kind in version.by_sequence:
            loss_agg_mode = "seq-mean-token-mean"
        counts, scale = _reduction(version.dialect, loss_agg_mode, config, response_mask)
        tensors = (log_prob, old_log_prob, advantages)
        options |= {"dialect": version.dialect, "loss_reduction": loss_agg_mode, **counts}
        with renamed("policy_loss", NAMES):
            loss, found = jit.ppo_loss(
                *tensors, response_mask, importance_weights=rollout_is_weights, **options
            )
        return loss * scale, _metrics(kind, found, tensors, response_mask)

    policy_loss.__name__ = policy_loss.__qualname__ = f"{kind}_policy_loss"
    return policy_loss


def _check_correction(config: Any) -> None:
    """With bypass_mode nothing but verl's own loss of that name rejects, or weighs a reinforce."""
    section = "config.policy_loss.rollout_correction"
    found = get("policy_loss", get("policy_loss", config, "config.policy_loss", {}), section, {})
    if not get("policy_loss", found, f"{section}.bypass_mode", False):
        return
    for name, known in (("rollout_rs", None), ("loss_type", "ppo_clip")):
        value = get("policy_loss", found, f"{section}.{name}", known)
        if value != known:
            expected = f"{known} with bypass_mode; another with loss_mode=bypass_mode alone"
            fail("policy_loss", f"{section}.{name}", expected, text(value))


def _options(kind: str, config: Any) -> dict[str, Any]:
    """Of the actor's config: what this loss reads of it."""
    options: dict[str, Any] = {"policy_loss": kind}
    if kind in ("ppo", "gspo", "cispo"):
        low, high = (_clip(config, f"clip_ratio_{side}") for side in ("low", "high"))
        if kind == "cispo":  # its lower bound may be below 0, which says that there is none
            options["cispo_bounds"] = (1.0 - low, 1.0 + high)
        else:
            options |= {"eps_clip_low": clip_low(low), "eps_clip_high": high}
    if kind == "ppo":
        cap = get("policy_loss", config, "config.clip_ratio_c", 3.0)
        number = as_float(cap)
        if number is None or not number > 1.0:
            fail("policy_loss", "config.clip_ratio_c", "a number above 1", text(cap))
        options["clip_ratio_c"] = number
    if kind == "sapo":
        for side in ("pos", "neg"):
            tau = get("policy_loss", config, f"config.tau_{side}", None)
            options[f"sapo_tau_{side}"] = tau
    return options


def _clip(config: Any, name: str) -> float:
    """clip_ratio_low or clip_ratio_high; clip_ratio where it is None."""
    value = get("policy_loss", config, f"config.{name}", None)
    if value is None:
        name = "clip_ratio"
        value = get("policy_loss", config, "config.clip_ratio", None)
    number = as_float(value)
    if number is None or not number >= 0.0:
        fail("policy_loss", f"config.{name}", "a number from 0 up", text(value))
    return number


def _reduction(dialect: str, mode: Any, config: Any, mask: Tensor) -> tuple[dict[str, Any], float]:
    """What a reduction reads of config.global_batch_info, and what the loss is multiplied by."""
    info = get("policy_loss", config, "config.global_batch_info", {})
    name = "config.global_batch_info"
    if not isinstance(info, Mapping):
        fail("policy_loss", name, "a dictionary", type(info).__name__)
    for key in info:
        if key not in BATCH_INFO:
            fail("policy_loss", name, ", ".join(BATCH_INFO), text(key))
    num_ranks = info.get("dp_size", 1)
    ranks = as_float(num_ranks)
    if ranks is None or not ranks >= 1:
        fail("policy_loss", f"{name}.dp_size", "a number from 1 up", text(num_ranks))
    needs = NEEDS_COUNT.get(mode) if isinstance(mode, str) else None
    counts: dict[str, Any] = {}
    length = info.get("loss_scale_factor")
    if mode == "seq-mean-token-sum-norm":
        counts["max_seq_len"] = mask.shape[-1] if length is None else length
        if dialect == "verl_old":
            return counts, 1.0
    if needs is not None:
        count = info.get(needs)
        if count is None and ranks > 1 and dialect == "verl":
            fail("policy_loss", f"{name}.{needs}", f"a number with {mode} on {ranks:g} ranks", None)
        if count is not None:
            of_op = "global_tokens" if needs == "batch_num_tokens" else "global_sequences"
            counts[of_op] = _count(count)
    return counts, ranks


def _count(count: Any) -> Any:
    """An int for a number; no batch has less than 1 token that any loss is of."""
    number = as_float(count)
    if number is None or not number.is_integer():
        return count  # the op takes a tensor, and says what is wrong with others
    return max(int(number), 1)


def _metrics(kind: str, found: Any, tensors: tuple[Tensor, ...], mask: Tensor) -> dict[str, float]:
    """verl's, by its names. One wait for the device."""
    if kind == "gpg":
        return {}
    import torch

    log_prob, old_log_prob, _ = tensors
    away = found.approx_kl_sum
    if kind == "gspo":  # of the tokens, not of the clamped mean
        away = torch.where(mask.bool(), (old_log_prob - log_prob).detach(), 0.0).sum()
    outside = found.num_clip_high + found.num_clip_low
    if kind in ("cispo", "sapo"):
        outside = found.num_outside
    parts = (found.num_active, outside, away, found.num_dual_clip)
    active, clipped, kl, dual = torch.stack([part.double() for part in parts]).tolist()
    active = max(active, 1.0)
    return {
        "actor/pg_clipfrac": 0.0 if kind == "sapo" else clipped / active,
        "actor/ppo_kl": kl / active,
        "actor/pg_clipfrac_lower": dual / active,
    }
