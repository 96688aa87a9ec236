# SPDX-License-Identifier: Apache-2.0
"""rlk inside OpenRLHF: its PolicyLoss, and log-probs from logits.

    from rlk.integrations import openrlhf
    openrlhf.patch()

in every process that trains. KL term, entropy bonus and auxiliary losses stay OpenRLHF's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from rlk import jit
from rlk._loss_options import as_float
from rlk.errors import fail, renamed, text
from rlk.integrations._config import clip_low
from rlk.integrations._patch import Patch, Seam

__all__ = ["log_probs_from_logits", "patch", "policy_loss", "unpatch"]

Tensor = Any
#: What errors of the op call its arguments.
NAMES = {
    "loss_mask": "action_mask",
    "eps_clip_low": "clip_eps_low",
    "eps_clip_high": "clip_eps_high",
    "clip_ratio_c": "dual_clip",
    "global_tokens": "batch_num_tokens",
    "global_sequences": "global_batch_size",
}
#: (level, mode) of a vllm_is_correction_type; its gate is the ratio.
TYPES = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("seq", "mask")}


class _Correction(NamedTuple):
    """Importance weights exp(old - rollout), by the statistic of a token or sequence."""

    level: str  # "token", "seq"
    mode: str  # "mask": 0 out of bounds; "clip": clamped to them
    gating: str  # the statistic: "ratio", "binary_kl", "tv"
    low: float
    high: float


def policy_loss(
    options: Any,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    action_mask: Tensor | None = None,
    rollout_log_probs: Tensor | None = None,
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
) -> tuple[Tensor, ...]:
    """OpenRLHF's policy loss by `rlk.jit.ppo_loss`.

    Args:
        options: a PolicyLoss, whose attributes are read: policy_loss_type ("ppo", "gspo"),
            clip_eps_low, clip_eps_high, dual_clip, token_level_loss, and of the correction
            either enable_vllm_is_correction, vllm_is_truncated_threshold and
            vllm_is_correction_type, or is_correction_level, is_correction_mode,
            is_correction_gating and is_correction_threshold (0.11.2).
        log_probs, old_log_probs, advantages, action_mask, rollout_log_probs: ``[B, T]``.
        dp_size, batch_num_tokens, global_batch_size: counts over all ranks; the loss is multiplied
            by dp_size where the count of its reduction is given.

    Returns:
        (loss, clip_ratio, ppo_kl, vllm_kl), 0-d tensors; from 0.11.2 on also is_filter_ratio.
        The last two are None without a correction of "ppo".

    Raises:
        rlk.InvalidArgument: an option or tensor is wrong, by OpenRLHF's name of it.

    Example:
        >>> loss, clip_ratio, ppo_kl, vllm_kl = policy_loss(module, log_probs, old, advantages)
    """
    kind = options.policy_loss_type
    if kind not in ("ppo", "gspo"):
        fail("policy_loss", "policy_loss_type", "ppo, gspo", text(kind))
    correction = _correction(options)
    if correction is not None and rollout_log_probs is None:
        fail("policy_loss", "rollout_log_probs", "a tensor with a correction", "None")
    weights = filtered = vllm_kl = None
    old = old_log_probs
    if correction is not None and kind == "gspo":
        old = rollout_log_probs  # the ratio is of the rollout's policy, and the only correction
    elif correction is not None:
        weights, filtered = _weights(correction, old, rollout_log_probs, action_mask)
        vllm_kl = _mean(rollout_log_probs - old, action_mask).detach()
    is_token = bool(options.token_level_loss) and kind == "ppo"
    count = batch_num_tokens if is_token else global_batch_size
    arguments: dict[str, Any] = {
        "dialect": "openrlhf",
        "policy_loss": kind,
        "loss_reduction": "token" if is_token else "seq",
        "global_tokens" if is_token else "global_sequences": _count(count),
        "eps_clip_low": clip_low(options.clip_eps_low),
        "eps_clip_high": options.clip_eps_high,
        "importance_weights": weights,
    }
    if options.dual_clip is not None:
        arguments |= {"use_dual_clip": True, "clip_ratio_c": options.dual_clip}
    with renamed("policy_loss", NAMES):
        loss, found = jit.ppo_loss(log_probs, old, advantages, action_mask, **arguments)
    loss = loss if count is None else loss * dp_size
    ppo_kl = _mean(old_log_probs - log_probs.detach(), action_mask)
    results = (loss, found.clip_ratio, ppo_kl, vllm_kl)
    return (*results, filtered) if hasattr(options, "is_correction_level") else results


def log_probs_from_logits(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """OpenRLHF's, by `rlk.jit.logp`: float32, and the logits stay as they are.

    Args:
        logits: ``[..., V]``.
        labels: ``[...]``.
        temperature: divides the logits.

    Example:
        >>> log_probs = log_probs_from_logits(logits, labels, temperature=0.7)
    """
    return jit.logp(logits, labels, temperature=temperature)


def _correction(options: Any) -> _Correction | None:
    if hasattr(options, "is_correction_level"):
        level, mode = options.is_correction_level, options.is_correction_mode
        gating, bounds = options.is_correction_gating, options.is_correction_threshold
        threshold = "is_correction_threshold"
        if level == "off":
            return None
    else:
        if not options.enable_vllm_is_correction:
            return None
        name, gating = options.vllm_is_correction_type, "ratio"
        if name not in TYPES:
            fail("policy_loss", "vllm_is_correction_type", ", ".join(TYPES), text(name))
        (level, mode), bounds = TYPES[name], options.vllm_is_truncated_threshold
        threshold = "vllm_is_truncated_threshold"
    words = {
        "is_correction_level": (level, ("token", "seq")),
        "is_correction_mode": (mode, ("mask", "clip")),
        "is_correction_gating": (gating, ("ratio", "binary_kl", "tv")),
    }
    for name, (word, known) in words.items():
        if word not in known:
            fail("policy_loss", name, ", ".join(known), text(word))
    if mode == "clip" and (level, gating) != ("token", "ratio"):
        got = f"clip with {level} and {gating}"
        fail("policy_loss", "is_correction_mode", "mask but for ratios of tokens", got)
    numbers = [as_float(x) for x in bounds] if isinstance(bounds, list | tuple) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        fail("policy_loss", threshold, "(low, high)", text(bounds))
    return _Correction(level, mode, gating, numbers[0], numbers[1])


def _weights(
    c: _Correction, old: Tensor, rollout: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(constant weights ``[B, T]``, the share of units out of bounds)."""
    import torch

    active = torch.ones_like(old, dtype=torch.bool) if mask is None else mask != 0
    u = torch.where(active, (old - rollout).detach().float(), 0.0)
    statistic = u
    if c.gating != "ratio":
        p, q = (x.detach().float().exp().clamp(1e-6, 1 - 1e-6) for x in (rollout, old))
        statistic = (p - q).abs()
        if c.gating == "binary_kl":
            statistic = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    if c.level == "seq":  # NaN without a token, which is out of any bounds
        total = torch.where(active, statistic, 0.0).sum(-1, keepdim=True)
        statistic = total / active.sum(-1, keepdim=True)
    if c.gating == "ratio":
        statistic = statistic.exp()
    keep = (statistic >= c.low) & (statistic <= c.high)
    filtered = (~keep).float().mean() if c.level == "seq" else _mean((~keep).float(), mask)
    if c.mode == "clip":
        return statistic.clamp(c.low, c.high), filtered
    return torch.where(keep, u.exp(), 0.0), filtered


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Over active tokens; 0 without one."""
    import torch

    if mask is None:
        return values.mean() if values.numel() else values.sum()
    active = mask != 0
    return torch.where(active, values, 0.0).sum() / active.sum().clamp(min=1)


def _count(count: Any) -> Any:
    """OpenRLHF's counts are floats."""
    number = as_float(count)
    return int(number) if number is not None and number.is_integer() else count


def _make_forward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def forward(self: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return policy_loss(self, *args, **kwargs)

    return forward


_PATCH = Patch(
    "openrlhf",
    since="0.11.0",
    before="0.11.3",
    seams=(
        Seam(
            "openrlhf.models.loss:PolicyLoss.forward",
            _make_forward,
            "self, log_probs, old_log_probs, advantages, action_mask, rollout_log_probs, "
            "dp_size, batch_num_tokens, global_batch_size",
        ),
        Seam(
            "openrlhf.models.utils:log_probs_from_logits",
            lambda _: log_probs_from_logits,
            "logits, labels, temperature",
        ),
    ),
)


def patch(*, allow_untried: bool = False) -> None:
    """Replaces PolicyLoss.forward and log_probs_from_logits. A second call does nothing.

    Args:
        allow_untried: go on with a version of OpenRLHF outside of 0.11.0 to 0.11.2.

    Raises:
        rlk.LoadError: OpenRLHF cannot be imported.
        rlk.Unsupported: an untried version, or one in which a function that this replaces is
            absent or has other parameters.

    Example:
        >>> from rlk.integrations import openrlhf
        >>> openrlhf.patch()
    """
    _PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Undoes `patch`.

    Raises:
        rlk.Unsupported: something has replaced a name since, which stays as it is.
    """
    _PATCH.off()
