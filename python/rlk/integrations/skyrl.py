# SPDX-License-Identifier: Apache-2.0
"""Drop-in policy losses for SkyRL: its names, arguments and results.

from skyrl_train.utils.ppo_utils import PolicyLossRegistry
from rlk.integrations import skyrl

skyrl.register(PolicyLossRegistry)      # then trainer.algorithm.policy_loss_type="ppo_fused"
"""

from __future__ import annotations

from typing import Any

from rlk import jit
from rlk.errors import InvalidArgument

__all__ = ["fused_ppo_loss", "ppo_policy_loss_fused", "register"]

Tensor = Any
NAME = "ppo_fused"
# SkyRL's names of policy losses that differ from ours.
POLICY_LOSSES = {"regular": "ppo", "dual_clip": "ppo", NAME: "ppo"}


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
            eps_clip_high, clip_ratio_c, use_tis, tis_imp_ratio_cap, max_seq_len; what it lacks is
            `fused_ppo_loss`'s default. What a switch that is off would read may be anything.

    Returns:
        (loss, clip_ratio), float32 of 0 dimensions.

    Raises:
        rlk.InvalidArgument: a policy_loss_type that is none of ours, or as `rlk.jit.ppo_loss`.

    Example:
        >>> loss, clip_ratio = ppo_policy_loss_fused(log_probs, old, advantages, config, mask)
    """
    kind = _get(config, "policy_loss_type", "regular")
    policy_loss = POLICY_LOSSES.get(kind, kind)
    options: dict[str, Any] = {"policy_loss": policy_loss}
    defaults = {
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.2,
        "clip_ratio_c": 3.0,
        "use_tis": False,
        "tis_imp_ratio_cap": 10.0,
        "max_seq_len": None,
    }
    options |= {name: _get(config, name, value) for name, value in defaults.items()}
    # The fused loss has a switch of its own; SkyRL's other names say it.
    dual = _get(config, "use_dual_clip", kind == "dual_clip")
    options["use_dual_clip"] = bool(dual)
    # The fixed reductions of gspo and sapo are the dialect's.
    if policy_loss not in ("gspo", "sapo"):
        options["loss_reduction"] = _get(config, "loss_reduction", "token_mean")
    else:
        options["loss_reduction"] = None
    if options["use_tis"] and rollout_logprobs is None:
        raise InvalidArgument(
            "ppo_loss: rollout_logprobs: expected a tensor with config.use_tis, got None"
        )
    return fused_ppo_loss(
        log_probs,
        old_log_probs,
        advantages,
        loss_mask,
        rollout_logprobs=rollout_logprobs,
        **options,
    )


def register(registry: Any, name: str = NAME) -> None:
    """Makes `ppo_policy_loss_fused` the policy loss `name` of a PolicyLossRegistry.

    Args:
        registry: SkyRL's PolicyLossRegistry, or anything with its ``register(name, function)``.

    Example:
        >>> register(PolicyLossRegistry)
    """
    registry.register(name, ppo_policy_loss_fused)


def _get(config: Any, name: str, default: Any) -> Any:
    """From an attribute or a key; None counts as absent."""
    value = getattr(config, name, None)
    if value is None and hasattr(config, "get"):
        value = config.get(name)
    return default if value is None else value
