# SPDX-License-Identifier: Apache-2.0
"""SkyRL's policy losses by `rlk.jit.ppo_loss`: its names, arguments and results."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from rlk import jit
from rlk._loss_options import NEEDS_LENGTH, as_float
from rlk._rules import rules
from rlk.errors import fail, renamed, text
from rlk.integrations._config import clip_low, get
from rlk.integrations.skyrl import _correction
from rlk.losses import POLICY_LOSSES

__all__ = ["fused_ppo_loss", "ppo_policy_loss_fused", "ppo_policy_loss_metrics"]

Tensor = Any
# Policy losses of SkyRL that are none here. A name that is neither one of these nor one of
# `rlk.losses.POLICY_LOSSES` is ppo: "regular", "dual_clip", or that of the registration.
NOT_OURS = ("rollout_is", "clip_cov", "kl_cov", "cross_entropy", "importance_sampling", "dppo")
#: What errors of the op call its options.
NAMES = {
    "eps_clip_low": "config.eps_clip_low",
    "eps_clip_high": "config.eps_clip_high",
    "use_dual_clip": "config.use_dual_clip",
    "clip_ratio_c": "config.clip_ratio_c",
    "loss_reduction": "config.loss_reduction",
    "max_seq_len": "config.max_seq_len",
    "cispo_bounds": "config.cispo",
    "sapo_tau_pos": "config.sapo.tau_pos",
    "sapo_tau_neg": "config.sapo.tau_neg",
}
PREFIX = "rlk_"  # of names that are registered beside SkyRL's own


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
    """The policy loss as the registry of a SkyRL calls it whose losses reduce themselves.

    Args:
        log_probs, old_log_probs, advantages, loss_mask, rollout_logprobs: ``[B, T]``.
        config: an object or mapping with policy_loss_type, loss_reduction, eps_clip_low,
            eps_clip_high, clip_ratio_c, use_tis, tis_imp_ratio_cap, max_seq_len, and what
            `cispo`, `sapo` and `off_policy_correction` have; what it lacks is
            `fused_ppo_loss`'s default. What a switch that is off would read may be anything.

    Returns:
        (loss, clip_ratio), float32 of 0 dimensions. Tokens that off_policy_correction masks
        stay in the denominators.

    Raises:
        rlk.InvalidArgument: a policy_loss_type that is none of ours, a value that is read and
            still ``???``, bounds of off_policy_correction of which one is absent, or as
            `rlk.jit.ppo_loss`.

    Example:
        >>> loss, clip_ratio = ppo_policy_loss_fused(log_probs, old, advantages, config, mask)
    """
    call = _read(config, None, old_log_probs, loss_mask, rollout_logprobs)
    reduction = get("ppo_loss", config, "config.loss_reduction", None)
    if reduction in NEEDS_LENGTH:
        call.options["max_seq_len"] = get("ppo_loss", config, "config.max_seq_len", None)
    loss, found = call.run(log_probs, advantages, loss_mask, loss_reduction=reduction)
    return loss, found.clip_ratio


def ppo_policy_loss_metrics(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    config: Any,
    loss_mask: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    *,
    kind: str | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The policy loss for a SkyRL whose losses sum and return a dictionary.

    There the trainer has scaled the advantages by its loss_reduction: the loss is the plain sum
    over active tokens, and config.loss_reduction is not read.

    Args:
        kind: "regular", "dual_clip", "gspo", "cispo" or "sapo"; None: config.policy_loss_type.
        Others: as `ppo_policy_loss_fused`.

    Returns:
        (loss, numbers by SkyRL's names), which waits for the device: clip_ratio (of cispo: of
        both signs of A; of sapo: 0), cispo/ratio_*, and with off_policy_correction is_ratio_*,
        tis_*, outlier_seq_*, token_mask_ratio, geo_sequence_mask_*, product_sequence_mask_*.

    Raises:
        rlk.InvalidArgument: as `ppo_policy_loss_fused`.

    Example:
        >>> loss, metrics = ppo_policy_loss_metrics(log_probs, old, advantages, config, mask)
    """
    call = _read(config, kind, old_log_probs, loss_mask, rollout_logprobs)
    loss, found = call.run(log_probs, advantages, loss_mask, loss_reduction="token_sum")
    active = found.num_active + (found.num_active == 0)
    parts = {"clip_ratio": found.clip_ratio}
    policy = call.options["policy_loss"]
    if policy == "sapo":
        parts["clip_ratio"] = found.clip_ratio * 0
    if policy == "cispo":
        parts["clip_ratio"] = found.num_outside / active
        parts["cispo/ratio_mean"] = found.ratio_sum / active
        parts["cispo/ratio_clamped_mean"] = call.clamped_sum(log_probs, loss_mask) / active
        parts |= {"cispo/ratio_max": found.ratio_max, "cispo/ratio_min": found.ratio_min}
    return loss, _numbers(parts | call.metrics)


class _Call(NamedTuple):
    """What config and tensors come to: arguments of `rlk.jit.ppo_loss`."""

    options: dict[str, Any]
    weights: Tensor | None  # of the policy's terms, where ppo_loss does not make them itself
    metrics: dict[str, Tensor]  # of the off-policy correction

    def run(self, log_probs: Tensor, advantages: Tensor, mask: Tensor | None, **more: Any) -> Any:
        options = {"dialect": "skyrl", **self.options, **more}
        old = options.pop("old_log_probs")
        if self.weights is not None:
            options["importance_weights"] = self.weights
        with renamed("ppo_loss", NAMES):
            return jit.ppo_loss(log_probs, old, advantages, mask, **options)

    def clamped_sum(self, log_probs: Tensor, mask: Tensor | None) -> Tensor:
        """Of cispo's ratios within their bounds, over active tokens."""
        import torch

        ratio = (log_probs.detach() - self.options["old_log_probs"]).clamp(-20.0, 20.0).exp()
        ratio = ratio.clamp(*self.options["cispo_bounds"])
        return (ratio if mask is None else torch.where(mask != 0, ratio, 0.0)).sum()


def _numbers(parts: dict[str, Tensor]) -> dict[str, float]:
    """All of them after one wait."""
    if all(hasattr(part, "double") for part in parts.values()):
        import torch

        values = torch.stack([part.detach().double() for part in parts.values()]).tolist()
        return dict(zip(parts, values, strict=True))
    return {name: float(part) for name, part in parts.items()}


def _read(
    config: Any,
    kind: str | None,
    old_log_probs: Tensor,
    mask: Tensor | None,
    rollout_logprobs: Tensor | None,
) -> _Call:
    """Of the config: arguments of ppo_loss but the loss's own tensors and its reduction."""
    if config is None or hasattr(config, "__dlpack__"):  # a mask in its place, say
        got = type(config).__name__
        fail("ppo_loss", "config", "the algorithm's config", got)
    kind = _kind(_get(config, "policy_loss_type", "regular") if kind is None else kind)
    policy_loss = kind if kind in POLICY_LOSSES else "ppo"
    options: dict[str, Any] = {"policy_loss": policy_loss, "old_log_probs": old_log_probs}
    # The fused loss has a switch of its own; SkyRL's other names say it.
    defaults = {"eps_clip_low": 0.2, "eps_clip_high": 0.2, "use_dual_clip": kind == "dual_clip"}
    options |= {name: _get(config, name, value) for name, value in defaults.items()}
    options["eps_clip_low"] = clip_low(options["eps_clip_low"])
    if options["use_dual_clip"]:
        options["clip_ratio_c"] = _get(config, "clip_ratio_c", 3.0)
    if kind == "sapo":
        sapo = _get(config, "sapo", {})
        options["sapo_tau_pos"] = _get(sapo, "sapo.tau_pos", None)
        options["sapo_tau_neg"] = _get(sapo, "sapo.tau_neg", None)
    correction = _correction.read(config)
    use_tis = _get(config, "use_tis", False)
    if not isinstance(use_tis, bool):
        _fail("use_tis", "True or False", use_tis)
    if use_tis and correction.level is None:
        cap = _get(config, "tis_imp_ratio_cap", 10.0)
        correction = correction._replace(level="token", cap=cap)
    if kind == "cispo":
        cispo = _get(config, "cispo", {})
        options |= _cispo(cispo, correction.level is not None, rollout_logprobs)
    if not correction.is_on:
        return _Call(options, None, {})
    if rollout_logprobs is None:
        fail("ppo_loss", "rollout_logprobs", "a tensor with config.off_policy_correction", "None")
    return _corrected(correction, options, old_log_probs, rollout_logprobs, mask)


def _corrected(
    c: _correction.Correction,
    options: dict[str, Any],
    old_log_probs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor | None,
) -> _Call:
    """ppo_loss makes importance weights; where tokens are masked, the weights come from here."""
    weights: Tensor | None = None
    metrics: dict[str, Tensor] = {}
    if not c.masks:
        own = {"use_tis": True, "tis_level": c.level, "tis_imp_ratio_cap": c.cap}
        options |= {**own, "rollout_logprobs": rollout_logprobs}
    if hasattr(old_log_probs, "clamp"):
        known = rules("skyrl")
        cap = dict(known.tis_cap_of).get(c.level or "", known.tis_imp_ratio_cap)
        cap = cap if c.cap is None else c.cap
        weights, metrics = _correction.apply(c, cap, old_log_probs, rollout_logprobs, mask)
    elif c.masks:
        got = type(old_log_probs).__name__
        fail("ppo_loss", "old_log_probs", "a torch tensor with off_policy_correction's masks", got)
    return _Call(options, weights if c.masks else None, metrics)


def _kind(name: Any) -> str:
    """The loss that a policy_loss_type names."""
    if not isinstance(name, str) or name in NOT_OURS:
        expected = ", ".join(("regular", "dual_clip", *POLICY_LOSSES, "or a registered name"))
        _fail("policy_loss_type", expected, name)
    return str(name).removeprefix(PREFIX)


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
    return get("ppo_loss", config, f"config.{name}", default)
