# SPDX-License-Identifier: Apache-2.0
"""The policy losses in SkyRL's registry, and log-probs in each process that gets one of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rlk.integrations._patch import Patch, Seam
from rlk.integrations.skyrl._log_probs import make_forward, make_logprobs_from_logits
from rlk.integrations.skyrl._policy_loss import PREFIX, ppo_policy_loss_metrics

__all__ = ["KINDS", "RegisteredLoss", "patch", "unpatch"]

Tensor = Any
#: SkyRL's policy loss by the name it is registered under.
KINDS = {"rlk": "regular"} | {
    PREFIX + kind: kind for kind in ("dual_clip", "gspo", "cispo", "sapo")
}
_UTILS = "skyrl.backends.skyrl_train.utils"
_WRAPPER = "skyrl.backends.skyrl_train.workers.model_wrapper"
_SINCE, _BEFORE = "0.2.0", "0.3.1"


class RegisteredLoss:
    """A policy loss by SkyRL's name of it, as SkyRL's registry calls it.

    SkyRL sends it to its workers. Where one arrives, log-probs are replaced: the worker gets its
    loss before its model runs.
    """

    def __init__(self, kind: str, allow_untried: bool = False) -> None:
        self.kind, self.allow_untried = kind, allow_untried

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, float]]:
        return ppo_policy_loss_metrics(*args, **kwargs, kind=self.kind)

    def __reduce__(self) -> tuple[Callable[..., RegisteredLoss], tuple[str, bool]]:
        return _arrive, (self.kind, self.allow_untried)


def _arrive(kind: str, allow_untried: bool) -> RegisteredLoss:
    _LOG_PROBS.on(allow_untried=allow_untried)
    return RegisteredLoss(kind, allow_untried)


class _Name(str):
    """A name among SkyRL's own, which are of an enum."""

    @property
    def value(self) -> str:
        return str(self)


def _with_ours(names: Any) -> Any:
    """Losses of which SkyRL's asynchronous trainer says that they need the old log-probs."""
    return names | {_Name(name) for name in KINDS}


def _register() -> None:
    for name, kind in KINDS.items():
        _registry().register(name, RegisteredLoss(kind, _allows_untried))


def _unregister() -> None:
    for name in KINDS:
        _registry().unregister(name)


def _registry() -> Any:
    return importlib.import_module(f"{_UTILS}.ppo_utils").PolicyLossRegistry


_allows_untried = False
_LOG_PROBS = Patch(
    "skyrl",
    since=_SINCE,
    before=_BEFORE,
    seams=(
        Seam(
            f"{_UTILS}.torch_utils:logprobs_from_logits",
            make_logprobs_from_logits,
            "logits, labels, inplace_backward",
        ),
        Seam(f"{_WRAPPER}:HFModelWrapper.forward", make_forward),
    ),
)
_LOSSES = Patch(
    "skyrl",
    since=_SINCE,
    before=_BEFORE,
    seams=(
        Seam(f"{_UTILS}.ppo_utils:LOSSES_WITH_OLD_LOGPROBS", _with_ours, optional=True),
        Seam(f"{_UTILS}.ppo_utils:PolicyLossRegistry.register", None, "name, func"),
    ),
    extra=((_register, _unregister),),
)


def patch(*, allow_untried: bool = False) -> None:
    """Registers the policy losses and replaces log-probs. A second call does nothing.

    Call it in the driver, before SkyRL reads its config: its registry sends the losses to the
    workers, and log-probs are replaced in each worker that gets one.

    Args:
        allow_untried: go on with a version of SkyRL outside of 0.2.0 to 0.3.0.

    Raises:
        rlk.LoadError: SkyRL, or a package that it needs for training, cannot be imported.
        rlk.Unsupported: an untried version, or one in which a function that this replaces is
            absent or has other parameters.
        ValueError: SkyRL's, for a name that something else has registered.

    Example:
        >>> from rlk.integrations import skyrl
        >>> skyrl.patch()
    """
    global _allows_untried
    _allows_untried = allow_untried
    _LOG_PROBS.on(allow_untried=allow_untried)
    _LOSSES.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Undoes `patch` in this process.

    Raises:
        rlk.Unsupported: something has replaced a name since, which stays as it is.
        ValueError: SkyRL's, for a name that its registry has no more. The rest is undone.
    """
    try:
        _LOSSES.off()
    finally:
        _LOG_PROBS.off()
