# SPDX-License-Identifier: Apache-2.0
"""Drop-in policy losses for SkyRL: its names, arguments and results.

from skyrl_train.utils.ppo_utils import PolicyLossRegistry
from rlk.integrations import skyrl

skyrl.register(PolicyLossRegistry)      # then trainer.algorithm.policy_loss_type="ppo_fused"

A SkyRL that has scaled the advantages by its reduction and whose losses return (loss, metrics as a
dictionary) takes `register(PolicyLossRegistry, return_metrics=True)`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from rlk import jit
from rlk._loss_options import NEEDS_LENGTH, as_float
from rlk.errors import fail, text
from rlk.losses import POLICY_LOSSES

__all__ = ["fused_ppo_loss", "ppo_policy_loss_fused", "ppo_policy_loss_metrics", "register"]

Tensor = Any
NAME = "ppo_fused"
# Policy losses of SkyRL that are none here. A name that is neither one of these nor one of
# `rlk.losses.POLICY_LOSSES` is ppo: "regular", "dual_clip", or that of the registration.
NOT_OURS = ("rollout_is", "clip_cov", "kl_cov", "cross_entropy", "importance_sampling", "dppo")
MISSING = "???"
# Of config.off_policy_correction: what rejects tokens or sequences, which no option here does.
REJECTIONS = (
    "sequence_mask_metric",
    "outlier_token_is_threshold_low",
    "outlier_token_is_threshold_high",
    "token_mask_eps_low",
    "token_mask_eps_high",
)


def fused_ppo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    eps_clip_low: float = 0.2,
    eps_clip_high: float = 0.2,
    use_dual_clip: bool = False,
    clip_ratio_c: float = 3.0,
    use_tis: bool = False,
    rollout_logprobs: Tensor | None = None,
    tis_imp_ratio_cap: float = 10.0,
    *,
    loss_reduction: str = "token_mean",
    max_seq_len: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The policy loss by plain arguments, under SkyRL's rules.

    Args:
        log_probs, old_log_probs, advantages, loss_mask, rollout_logprobs: ``[B, T]``.
        tis_imp_ratio_cap: the fused loss's 10, not the 2 of ``dialect="skyrl"``.
        Others: as `rlk.jit.ppo_loss`, which takes ``options`` too.

    Returns:
        (loss, clip_ratio), float32 of 0 dimensions; clip_ratio carries no gradient.

    Raises:
        rlk.InvalidArgument: as `rlk.jit.ppo_loss`.

    Example:
        >>> loss, clip_ratio = fused_ppo_loss(log_probs, old, advantages, loss_mask=mask,
        ...                                   use_dual_clip=True, clip_ratio_c=3.0)
    """
    loss, metrics = jit.ppo_loss(
        log_probs,
        old_log_probs,
        advantages,
        loss_mask,
        **{
            "dialect": "skyrl",
            "rollout_logprobs": rollout_logprobs,
            "eps_clip_low": eps_clip_low,
            "eps_clip_high": eps_clip_high,
            "use_dual_clip": use_dual_clip,
            "clip_ratio_c": clip_ratio_c,
            "use_tis": use_tis,
            "tis_imp_ratio_cap": tis_imp_ratio_cap,
            "loss_reduction": loss_reduction,
            "max_seq_len": max_seq_len,
            **options,
        },
    )
    return loss, metrics.clip_ratio


def ppo_policy_loss_fused(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    config: Any,
    loss_mask: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The policy loss as SkyRL's registry calls it: options come from the algorithm's config.

    Args:
        log_probs, old_log_probs, advantages, loss_mask, rollout_logprobs: ``[B, T]``.
        config: an object or mapping with policy_loss_type, loss_reduction, eps_clip_low,
            eps_clip_high, clip_ratio_c, use_tis, tis_imp_ratio_cap, max_seq_len,
            cispo.cispo_eps_clip_low, cispo.cispo_eps_clip_high, cispo.cispo_anchor, sapo.tau_pos,
            sapo.tau_neg, off_policy_correction.tis_ratio_type,
            off_policy_correction.token_tis_ratio_clip_high and sequence_tis_ratio_clip_high; what
            it lacks is `fused_ppo_loss`'s default. What a switch that is off would read may be
            anything.

    Returns:
        (loss, clip_ratio), float32 of 0 dimensions.

    Raises:
        rlk.InvalidArgument: a policy_loss_type that is none of ours, a mask of
            off_policy_correction (it rejects tokens, which no option here does), a value that is
            read and still ``???``, or as `rlk.jit.ppo_loss`.

    Example:
        >>> loss, clip_ratio = ppo_policy_loss_fused(log_probs, old, advantages, config, mask)
    """
    options = _options(config, old_log_probs, rollout_logprobs)
    # The fixed reductions of gspo and sapo are the dialect's.
    if options["policy_loss"] in ("gspo", "sapo"):
        options["loss_reduction"] = None
    else:
        options["loss_reduction"] = _get(config, "loss_reduction", "token_mean")
    if options["loss_reduction"] in NEEDS_LENGTH:
        options["max_seq_len"] = _get(config, "max_seq_len", None)
    return fused_ppo_loss(log_probs, advantages=advantages, loss_mask=loss_mask, **options)


def ppo_policy_loss_metrics(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    config: Any,
    loss_mask: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The policy loss for a SkyRL whose losses sum and return a dictionary.

    There the trainer has scaled the advantages by its loss_reduction: the loss is the plain sum
    over active tokens, and config.loss_reduction is not read.

    Args:
        All: as `ppo_policy_loss_fused`.

    Returns:
        (loss, {"clip_ratio": a number}), which waits for the device. SkyRL's clip ratio: that of
        both signs of A for cispo, 0 for sapo.

    Raises:
        rlk.InvalidArgument: as `ppo_policy_loss_fused`.

    Example:
        >>> loss, metrics = ppo_policy_loss_metrics(log_probs, old, advantages, config, mask)
    """
    options = _options(config, old_log_probs, rollout_logprobs)
    options["loss_reduction"] = "token_sum"
    loss, metrics = jit.ppo_loss(
        log_probs, advantages=advantages, loss_mask=loss_mask, dialect="skyrl", **options
    )
    clip_ratio = float(metrics.clip_ratio)
    if options["policy_loss"] == "cispo":
        clip_ratio = float(metrics.num_outside) / max(float(metrics.num_active), 1.0)
    return loss, {"clip_ratio": 0.0 if options["policy_loss"] == "sapo" else clip_ratio}


def register(registry: Any, name: str = NAME, *, return_metrics: bool = False) -> None:
    """Makes `ppo_policy_loss_fused` the policy loss `name` of a PolicyLossRegistry.

    Args:
        registry: SkyRL's PolicyLossRegistry, or anything with its ``register(name, function)``.
        return_metrics: `ppo_policy_loss_metrics` in its place: for a SkyRL whose losses return
            (loss, dictionary).

    Example:
        >>> register(PolicyLossRegistry)
    """
    registry.register(name, ppo_policy_loss_metrics if return_metrics else ppo_policy_loss_fused)


def _options(config: Any, old_log_probs: Tensor, rollout_logprobs: Tensor | None) -> dict[str, Any]:
    """Of the config: arguments of `fused_ppo_loss` but the loss's own tensors and its reduction."""
    if config is None or hasattr(config, "__dlpack__"):  # a mask in its place, say
        got = type(config).__name__
        fail("ppo_loss", "config", "the algorithm's config", got)
    kind = _get(config, "policy_loss_type", "regular")
    if not isinstance(kind, str) or kind in NOT_OURS:
        expected = ", ".join(("regular", "dual_clip", *POLICY_LOSSES, "or a registered name"))
        _fail("policy_loss_type", expected, kind)
    policy_loss = kind if kind in POLICY_LOSSES else "ppo"
    options: dict[str, Any] = {"policy_loss": policy_loss, "old_log_probs": old_log_probs}
    defaults = {"eps_clip_low": 0.2, "eps_clip_high": 0.2, "use_tis": False}
    # The fused loss has a switch of its own; SkyRL's other names say it.
    defaults["use_dual_clip"] = kind == "dual_clip"
    options |= {name: _get(config, name, value) for name, value in defaults.items()}
    if options["use_dual_clip"]:
        options["clip_ratio_c"] = _get(config, "clip_ratio_c", 3.0)
    options["tis_imp_ratio_cap"] = 10.0
    if options["use_tis"]:
        options["tis_imp_ratio_cap"] = _get(config, "tis_imp_ratio_cap", 10.0)
    options |= _correction(_get(config, "off_policy_correction", {}))
    if kind == "sapo":
        sapo = _get(config, "sapo", {})
        options["sapo_tau_pos"] = _get(sapo, "sapo.tau_pos", None)
        options["sapo_tau_neg"] = _get(sapo, "sapo.tau_neg", None)
    if kind == "cispo":
        options |= _cispo(_get(config, "cispo", {}), options["use_tis"], rollout_logprobs)
    if options["use_tis"] and rollout_logprobs is None:
        switches = "config.use_tis or config.off_policy_correction.tis_ratio_type"
        fail("ppo_loss", "rollout_logprobs", f"a tensor with {switches}", "None")
    options["rollout_logprobs"] = rollout_logprobs
    return options


def _correction(config: Any) -> dict[str, Any]:
    """Of config.off_policy_correction, whose switches are two of its fields."""
    of = "off_policy_correction"
    level = _get(config, f"{of}.tis_ratio_type", None)
    if level is None and _get(config, f"{of}.sequence_mask_metric", None) is None:
        return {}
    for name in REJECTIONS:
        value = _get(config, f"{of}.{name}", None)
        if value is not None:
            _fail(f"{of}.{name}", "None", value)
    if level not in ("token", "sequence"):
        _fail(f"{of}.tis_ratio_type", "token, sequence or None", level)
    # None: the dialect's.
    cap = _get(config, f"{of}.{level}_tis_ratio_clip_high", None)
    return {"use_tis": True, "tis_level": level, "tis_imp_ratio_cap": cap}


def _cispo(config: Any, use_tis: bool, rollout_logprobs: Tensor | None) -> dict[str, Any]:
    """Of config.cispo: bounds as distances from 1, and whose ratio it is of."""
    low = _distance(config, "cispo_eps_clip_low", 1.0)
    high = _distance(config, "cispo_eps_clip_high", 4.0)
    found: dict[str, Any] = {"cispo_bounds": (1.0 - low, 1.0 + high)}
    anchor = _get(config, "cispo.cispo_anchor", "old")
    if anchor == "old":
        return found
    if anchor != "rollout":
        _fail("cispo.cispo_anchor", "old, rollout", anchor)
    if use_tis:
        _fail("cispo.cispo_anchor", "'old' with importance weights, which it counts too", anchor)
    if rollout_logprobs is None:
        switch = "config.cispo.cispo_anchor='rollout'"
        fail("ppo_loss", "rollout_logprobs", f"a tensor with {switch}", "None")
    return {**found, "old_log_probs": rollout_logprobs}


def _distance(config: Any, name: str, default: float) -> float:
    value = _get(config, f"cispo.{name}", default)
    number = as_float(value)
    if number is None:
        _fail(f"cispo.{name}", "a number", value)
    return number


def _fail(name: str, expected: str, got: Any) -> NoReturn:
    fail("ppo_loss", f"config.{name}", expected, text(got))


def _get(config: Any, name: str, default: Any) -> Any:
    """From an attribute or a key, the last part of the name; None counts as absent."""
    key = name.rpartition(".")[2]
    try:
        value = getattr(config, key, None)
        if value is None and hasattr(config, "get"):
            value = config.get(key)
    except Exception as error:
        if type(error).__name__ != "MissingMandatoryValue":  # OmegaConf's
            raise
        value = MISSING
    if isinstance(value, str) and value == MISSING:
        _fail(name, f"a value in the place of {MISSING}, by which SkyRL marks a missing one", value)
    return default if value is None else value
