# SPDX-License-Identifier: Apache-2.0
"""PRIME-RL's losses, a custom loss for it, and its log-probs of hidden states and logits.

    from rlk.integrations import prime_rl

    prime_rl.patch()  # in each trainer process: PRIME-RL's own losses and log-probs, computed here

or, without a patch, a policy loss of rlk by the trainer's configuration:

    [trainer.loss]
    type = "custom"
    import_path = "rlk.integrations.prime_rl.policy_loss"
    kwargs = { policy_loss = "gspo", eps_clip_high = 0.28 }

Tried with PRIME-RL 0.8.0 (559b447).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rlk import jit
from rlk.errors import fail, text
from rlk.integrations._named_loss import ppo_loss
from rlk.integrations._patch import Patch, Seam

__all__ = [
    "ce_loss_fn",
    "default_loss_fn",
    "ipo_loss_fn",
    "patch",
    "policy_loss",
    "ref_kl_loss_fn",
    "unpatch",
]

Tensor = Any
inf = float("inf")
#: Options of ppo_loss that the trainer decides: it divides by its own counts, after this.
OF_THE_TRAINER = ("loss_reduction", "loss_weights", "kl_reduction", "global_tokens", "cu_seqlens")
#: What errors of the op call its tensors.
NAMES = {
    "log_probs": "trainer_logprobs",
    "old_log_probs": "inference_logprobs",
    "ref_log_probs": "ref_logprobs",
}
# An unclipped ratio, and a squared log-ratio that is twice the estimator k2.
UNCLIPPED = {
    "policy_loss": "ppo",
    "eps_clip_low": 1.0,
    "eps_clip_high": inf,
    "log_ratio_clamp": inf,
    "kl_estimator": "k2",
}


def policy_loss(inputs: Any, **options: Any) -> Any:
    """A loss of `rlk.jit.ppo_loss` as PRIME-RL's custom loss: of one sample, summed.

    Args:
        inputs: LossInputs, tensors ``[T]``: trainer_logprobs, inference_logprobs (the old
            log-probs), ref_logprobs, advantages, loss_mask, loss_weights.
        options: those of `rlk.jit.ppo_loss` but its reductions, from ``kwargs``.

    Returns:
        LossOutputs: the sum over the sample's active tokens, times loss_weights, and the metrics
        clip_ratio, mean_ratio, mismatch_kl (of the ratio to the inference policy) and, with
        kl_coef, ref_kl.

    Raises:
        rlk.InvalidArgument: an option that the trainer decides, a KL term without ref_logprobs, or
            as `rlk.jit.ppo_loss`.
        TypeError: an option that does not exist.

    Example:
        >>> outputs = policy_loss(inputs, policy_loss="gspo", eps_clip_high=0.28)
    """
    for name in OF_THE_TRAINER:
        if options.get(name) is not None:
            fail("ppo_loss", name, "None: the trainer divides the sum", text(options[name]))
    if options.get("kl_coef"):
        if inputs.ref_logprobs is None:
            fail("ppo_loss", "ref_logprobs", "a tensor with {kl_coef}", "None")
        options["ref_log_probs"] = inputs.ref_logprobs
    if options.get("use_tis"):
        fail("ppo_loss", "use_tis", "False: old log-probs are the inference policy's", "True")
    loss, found = _loss(inputs, inputs.advantages, **options)
    count = found.num_active.clamp(min=1)
    metrics = {
        "clip_ratio": found.clip_ratio,
        "mean_ratio": found.ratio_sum / count,
        "mismatch_kl": found.approx_k3_sum / count,
    }
    if options.get("kl_coef"):
        metrics["ref_kl"] = found.kl_sum / count
    return _outputs(loss, metrics)


def default_loss_fn(inputs: Any, loss_config: Any) -> Any:
    """PRIME-RL's own loss: DPPO's mask of tokens that moved too far, and a squared log-ratio.

    Args:
        inputs: LossInputs. loss_config: DefaultLossConfig (dppo_mask_low, dppo_mask_high, adv_tau,
            kl_tau).

    Returns:
        LossOutputs with PRIME-RL's metrics.

    Raises:
        rlk.InvalidArgument: as `rlk.jit.ppo_loss`.

    Example:
        >>> outputs = default_loss_fn(inputs, DefaultLossConfig())
    """
    with torch.no_grad():
        moved, mask = _moved(inputs), inputs.loss_mask
        is_positive, is_negative = inputs.advantages > 0, inputs.advantages < 0
        high, low = moved > loss_config.dppo_mask_high, moved < -loss_config.dppo_mask_low
        dropped = torch.where(is_positive, high, low)
        metrics = {
            **_mismatch(inputs, dropped),
            "is_masked_low": _mean(is_negative & low, mask),
            "is_masked_high": _mean(is_positive & high, mask),
            "masked_advantage_positive": _mean(is_positive, mask & dropped),
            "masked_advantage_negative": _mean(is_negative, mask & dropped),
        }
    advantages = loss_config.adv_tau * inputs.advantages
    return _outputs(_masked_loss(inputs, advantages, dropped, loss_config.kl_tau), metrics)


def ipo_loss_fn(inputs: Any, loss_config: Any) -> Any:
    """PRIME-RL's loss of type "ipo": as `default_loss_fn`, with a mask for both directions.

    Args:
        inputs: LossInputs. loss_config: IPOLossConfig (ipo_threshold, adv_tau, kl_tau).

    Returns:
        LossOutputs with PRIME-RL's metrics.

    Raises:
        rlk.InvalidArgument: as `rlk.jit.ppo_loss`.

    Example:
        >>> outputs = ipo_loss_fn(inputs, IPOLossConfig())
    """
    with torch.no_grad():
        dropped = _moved(inputs).abs() > loss_config.ipo_threshold
        metrics = _mismatch(inputs, dropped)
    advantages = loss_config.adv_tau * inputs.advantages
    return _outputs(_masked_loss(inputs, advantages, dropped, loss_config.kl_tau), metrics)


def ref_kl_loss_fn(inputs: Any) -> Any:
    """PRIME-RL's distillation: the log-ratio to the reference takes the advantage's place.

    Args:
        inputs: LossInputs with ref_logprobs.

    Returns:
        LossOutputs with PRIME-RL's metrics.

    Raises:
        rlk.InvalidArgument: no ref_logprobs, or as `rlk.jit.ppo_loss`.

    Example:
        >>> outputs = ref_kl_loss_fn(inputs)
    """
    if inputs.ref_logprobs is None:
        fail("ppo_loss", "ref_logprobs", "a tensor, which the algorithms opd and opsd give", "None")
    with torch.no_grad():
        dropped = _moved(inputs) < -0.2
        ref_kl = inputs.ref_logprobs - inputs.trainer_logprobs
        metrics = {f"ref_kl/{name}": x for name, x in _mismatch(inputs, dropped).items()}
        metrics["ref_kl"] = _mean(ref_kl, inputs.loss_mask)
    return _outputs(_masked_loss(inputs, ref_kl, dropped, 1e-3), metrics)


def ce_loss_fn(inputs: Any) -> Any:
    """PRIME-RL's cross-entropy, of the tokens of the mask.

    Args:
        inputs: LossInputs.

    Returns:
        LossOutputs with the metric nll.

    Raises:
        rlk.InvalidArgument: as `rlk.jit.ppo_loss`.

    Example:
        >>> outputs = ce_loss_fn(inputs)
    """
    ones = torch.ones_like(inputs.trainer_logprobs, dtype=torch.float32)
    loss, _ = _loss(inputs, ones, policy_loss="gpg")
    return _outputs(loss, {"nll": _mean(-inputs.trainer_logprobs.detach(), inputs.loss_mask)})


def _loss(inputs: Any, advantages: Tensor, **options: Any) -> Any:
    log_probs, weights = inputs.trainer_logprobs, inputs.loss_weights
    if weights is None:  # the KL's too, of which a dialect may have another
        options |= {"loss_reduction": "token_sum", "kl_reduction": "policy"}
    return ppo_loss(
        NAMES,
        log_probs,
        inputs.inference_logprobs,
        advantages,
        inputs.loss_mask,
        loss_weights=weights,
        **options,
    )


def _masked_loss(inputs: Any, advantages: Tensor, dropped: Tensor, kl_tau: float) -> Tensor:
    """-A r of the tokens that are kept, and kl_tau (log r)^2 of all."""
    kl = {"kl_coef": 2.0 * kl_tau, "ref_log_probs": inputs.inference_logprobs}
    return _loss(inputs, torch.where(dropped, 0.0, advantages), **UNCLIPPED, **kl)[0]


def _moved(inputs: Any) -> Tensor:
    return inputs.trainer_logprobs.exp() - inputs.inference_logprobs.exp()


def _mismatch(inputs: Any, dropped: Tensor) -> dict[str, Tensor]:
    log_ratio = inputs.trainer_logprobs - inputs.inference_logprobs
    mismatch, mask = log_ratio.exp() - log_ratio - 1, inputs.loss_mask
    return {
        "masked_mismatch_kl": _mean(mismatch, mask & dropped),
        "unmasked_mismatch_kl": _mean(mismatch, mask & ~dropped),
        "is_masked": _mean(dropped, mask),
    }


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values.float(), 0.0).sum() / mask.sum().clamp(min=1)


def _outputs(loss: Tensor, metrics: dict[str, Tensor]) -> Any:
    from prime_rl.trainer.rl.loss import LossOutputs

    return LossOutputs(loss=loss, metrics=metrics)


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        self: Any, hidden_states: Tensor, labels: Any = None, temperature: Any = None
    ) -> Any:
        if labels is None or temperature is None:
            return original(self, hidden_states, labels, temperature)  # which says what is missing
        from prime_rl.trainer.models.layers.lm_head import PrimeLmOutput

        found = jit.linear_logp(
            hidden_states,
            self.weight,
            labels,
            temperature=temperature,
            softcap=getattr(self, "softcap", None),
            return_entropy=True,
        )
        return PrimeLmOutput(logprobs=found.log_prob, entropy=found.entropy.detach())

    return forward


def _selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    return jit.logp(logits, index, ignore_index=None)


_LOSSES = "prime_rl.trainer.rl.loss"
_LAYERS = "prime_rl.trainer.models.layers"
_HEAD = "self, hidden_states, labels, temperature"
_PATCH = Patch(
    "prime_rl",
    distribution="prime-rl",
    since="0.8.0",
    before="0.8.1",
    seams=(
        Seam(f"{_LOSSES}:default_loss_fn", lambda _: default_loss_fn, "inputs, loss_config"),
        Seam(f"{_LOSSES}:ipo_loss_fn", lambda _: ipo_loss_fn, "inputs, loss_config"),
        Seam(f"{_LOSSES}:ref_kl_loss_fn", lambda _: ref_kl_loss_fn, "inputs"),
        Seam(f"{_LOSSES}:ce_loss_fn", lambda _: ce_loss_fn, "inputs"),
        Seam(f"{_LOSSES}:selective_log_softmax", lambda _: _selective_log_softmax, "logits, index"),
        Seam(f"{_LAYERS}.lm_head:FusedOutputLinear.forward", _forward, _HEAD),
        Seam(f"{_LAYERS}.lm_head_gemma:GemmaFusedOutputLinear.forward", _forward, _HEAD),
    ),
)


def patch(*, allow_untried: bool = False) -> None:
    """Makes PRIME-RL compute its losses and its log-probs here; once is enough.

    Args:
        allow_untried: goes on with a version that this was not tried with.

    Raises:
        rlk.LoadError: PRIME-RL cannot be imported.
        rlk.Unsupported: another version, or what would be replaced is not as it was.

    Example:
        >>> prime_rl.patch()
    """
    _PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Puts back what `patch` replaced."""
    _PATCH.off()
