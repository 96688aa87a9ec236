# SPDX-License-Identifier: Apache-2.0
"""rlk inside SkyRL: its policy losses, and log-probs from logits.

    from rlk.integrations import skyrl
    skyrl.patch()

in the driver, before SkyRL reads its config. Then ``trainer.algorithm.policy_loss_type`` takes
"rlk" (SkyRL's regular), "rlk_dual_clip", "rlk_gspo", "rlk_cispo" and "rlk_sapo", and each worker
that gets one of them from SkyRL's registry has the log-probs replaced. SkyRL's own names stay
SkyRL's.

A SkyRL whose losses reduce themselves and return (loss, clip_ratio) takes
`register(PolicyLossRegistry)`: policy_loss_type="ppo_fused".
"""

from __future__ import annotations

from typing import Any

from rlk.errors import check_flag, fail, text
from rlk.integrations.skyrl._install import KINDS, patch, unpatch
from rlk.integrations.skyrl._policy_loss import (
    fused_ppo_loss,
    ppo_policy_loss_fused,
    ppo_policy_loss_metrics,
)

__all__ = [
    "KINDS",
    "fused_ppo_loss",
    "patch",
    "ppo_policy_loss_fused",
    "ppo_policy_loss_metrics",
    "register",
    "unpatch",
]

NAME = "ppo_fused"


def register(registry: Any, name: str = NAME, *, return_metrics: bool = False) -> None:
    """Makes `ppo_policy_loss_fused` the policy loss `name` of a PolicyLossRegistry.

    Args:
        registry: SkyRL's PolicyLossRegistry, or anything with its ``register(name, function)``.
        return_metrics: `ppo_policy_loss_metrics` in its place: for a SkyRL whose losses return
            (loss, dictionary).

    Raises:
        rlk.InvalidArgument: registry has no such method, or return_metrics is no bool.

    Example:
        >>> register(PolicyLossRegistry)
    """
    if not callable(getattr(registry, "register", None)):
        fail("skyrl", "registry", "an object with register(name, function)", text(registry))
    returns_metrics = check_flag("skyrl", "return_metrics", return_metrics)
    registry.register(name, ppo_policy_loss_metrics if returns_metrics else ppo_policy_loss_fused)
