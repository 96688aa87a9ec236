# SPDX-License-Identifier: Apache-2.0
"""GRPOTrainer._compute_loss of TRL 1.16 with `rlk.jit.ppo_loss`: all of its options and metrics.

What TRL multiplies the policy's term by (masks of sequences and of tokens, importance weights) are
constant weights here; its terms beside the policy and the KL (entropy bonus, load balancing) are
added as TRL adds them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk.errors import Fault, Unsupported, text
from rlk.integrations import _trl_metrics
from rlk.integrations._config import clip_low
from rlk.integrations._named_loss import ppo_loss

__all__ = ["CALLED", "compute_loss"]

Tensor = Any
_TRAINER = "trl.trainer.grpo_trainer:GRPOTrainer"
#: Loss types of the clipped ratio, which also log how much is clipped.
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
#: The others, by the policy loss here. vespo's weight is a constant: what is left is -A log p.
OTHERS = {"cispo": "cispo", "sapo": "sapo", "vespo": "gpg"}
#: What errors of the op call its arguments.
NAMES = {
    "log_probs": "per_token_logps",
    "old_log_probs": "old_per_token_logps",
    "loss_mask": "completion_mask",
    "ref_log_probs": "ref_per_token_logps",
    "importance_weights": "importance_sampling_ratio",
    "max_seq_len": "max_completion_length",
    "eps_clip_low": "epsilon",
    "eps_clip_high": "epsilon_high",
    "sapo_tau_pos": "sapo_temperature_pos",
    "sapo_tau_neg": "sapo_temperature_neg",
    "kl_coef": "beta",
}
#: Divided by the count of tokens of the whole generation batch, over all ranks.
OF_ALL_TOKENS = ("cispo", "dapo", "vespo")
#: What inputs pass on to the model.
FORWARDED = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
#: Functions of TRL that are called here, and their parameters.
CALLED = (
    (
        f"{_TRAINER}._get_per_token_logps_and_entropies",
        "self, model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, "
        "compute_aux_loss, pixel_values, image_grid_thw, num_images, pixel_attention_mask, "
        "spatial_shapes, num_tiles, image_sizes, token_type_ids, mm_token_type_ids, "
        "image_position_ids",
    ),
    (f"{_TRAINER}.get_high_entropy_mask", "self, entropies, mask, threshold"),
    (
        f"{_TRAINER}.get_off_policy_mask",
        "advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold",
    ),
    (
        f"{_TRAINER}.get_gamma_weights",
        "advantages, log_ratio_per_token, mask, importance_sampling_ratio, k_pos, lambda_pos, "
        "k_neg, lambda_neg",
    ),
)


class Batch(NamedTuple):
    """What the loss is of. ``[B, T]``, but advantages, ``[B, 1]``."""

    log_probs: Tensor
    old: Tensor
    entropies: Tensor
    advantages: Tensor
    mask: Tensor
    entropy_mask: Tensor | None  #: top_entropy_quantile's: where policy and bonus act
    weights: Tensor | None  #: constants on the policy's term, ``[B, T]`` or ``[B, 1]``
    phi: Tensor | None  #: vespo's weights, ``[B, 1]``, part of `weights`
    ref: Tensor | None
    is_train: bool

    @property
    def effective_mask(self) -> Tensor:
        return self.mask if self.entropy_mask is None else self.mask * self.entropy_mask


def compute_loss(self: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
    """What replaces `GRPOTrainer._compute_loss`."""
    if self.loss_type not in (*CLIPPED, *OTHERS):
        _refuse("loss_type", ", ".join((*CLIPPED, *OTHERS)), text(self.loss_type))
    if self.importance_sampling_level not in ("token", "sequence"):
        _refuse(
            "importance_sampling_level", "token, sequence", text(self.importance_sampling_level)
        )
    batch, aux_loss = _make_batch(self, model, inputs)
    steps = self.current_gradient_accumulation_steps if batch.is_train else 1.0
    policy_loss = _policy_loss(self, batch, inputs)
    loss = policy_loss if self.loss_type in OF_ALL_TOKENS else policy_loss / steps
    mode = "train" if batch.is_train else "eval"
    log = self._metrics[mode]
    if self._entropy_bonus_enabled:
        loss = loss - _bonus(self, batch) / steps
        gathered = self.accelerator.gather(policy_loss.detach())
        log["policy_loss"].append(gathered.nanmean().item())
        if batch.is_train:
            _adapt(self, batch)
            if self.accelerator.sync_gradients:
                log["entropy_coef"].append(self.entropy_coef)
    if self.aux_loss_enabled:
        loss = loss + self.router_aux_loss_coef * aux_loss / steps
        log["aux_loss"].append(self.accelerator.gather_for_metrics(aux_loss).mean().item())
    _trl_metrics.append_metrics(self, batch, log)
    return loss


def _make_batch(trainer: Any, model: Any, inputs: dict[str, Any]) -> tuple[Batch, Tensor | None]:
    import torch

    ids, completion_mask = inputs["completion_ids"], inputs["completion_mask"]
    mask = completion_mask * inputs["tool_mask"] if "tool_mask" in inputs else completion_mask
    log_probs, entropies, aux_loss = trainer._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], ids], dim=1),
        torch.cat([inputs["prompt_mask"], completion_mask], dim=1),
        ids.size(1),
        compute_entropy=True,
        compute_aux_loss=trainer.aux_loss_enabled,
        **{name: inputs.get(name) for name in FORWARDED},
    )
    entropy_mask = None
    if trainer.top_entropy_quantile < 1.0:
        least = 1 - trainer.top_entropy_quantile
        entropy_mask = trainer.get_high_entropy_mask(entropies, mask, least)
    advantages = inputs["advantages"]
    old = inputs.get("old_per_token_logps")
    batch = Batch(
        log_probs,
        log_probs.detach() if old is None else old,
        entropies,
        advantages.unsqueeze(1) if advantages.dim() == 1 else advantages,
        mask,
        entropy_mask,
        weights=None,
        phi=None,
        ref=inputs["ref_per_token_logps"] if trainer.beta != 0.0 else None,
        is_train=bool(trainer.model.training),
    )
    return _with_weights(trainer, batch, inputs), aux_loss


def _with_weights(trainer: Any, batch: Batch, inputs: dict[str, Any]) -> Batch:
    """The batch with the product of all constants that TRL multiplies the policy's term by."""
    phi, found = None, []
    if trainer.off_policy_mask_threshold is not None:
        found.append(
            trainer.get_off_policy_mask(
                advantages=batch.advantages,
                per_token_logps=batch.log_probs,
                sampling_per_token_logps=inputs.get("sampling_per_token_logps", batch.old),
                mask=batch.mask,
                off_policy_threshold=trainer.off_policy_mask_threshold,
            )
        )
    if batch.entropy_mask is not None:
        found.append(batch.entropy_mask)
    if trainer.loss_type == "vespo":
        phi = trainer.get_gamma_weights(
            advantages=batch.advantages,
            log_ratio_per_token=batch.log_probs.detach() - batch.old,
            mask=batch.mask,
            importance_sampling_ratio=inputs.get("importance_sampling_ratio"),
            k_pos=trainer.args.vespo_k_pos,
            lambda_pos=trainer.args.vespo_lambda_pos,
            k_neg=trainer.args.vespo_k_neg,
            lambda_neg=trainer.args.vespo_lambda_neg,
        )
        found.append(phi)
    elif trainer.use_vllm and trainer.vllm_importance_sampling_correction:
        found.append(inputs["importance_sampling_ratio"])
    weights = None
    for factor in found:
        weights = factor.float() if weights is None else weights * factor
    return batch._replace(weights=weights, phi=phi)


def _policy_loss(trainer: Any, batch: Batch, inputs: dict[str, Any]) -> Tensor:
    """The policy's and the KL's terms, before gradient accumulation."""
    kind = trainer.loss_type
    is_clipped = kind in CLIPPED
    reduction, divisor = _reduction(trainer, batch, inputs)
    options: dict[str, Any] = {
        "policy_loss": OTHERS.get(kind, "ppo"),
        "ratio_level": trainer.importance_sampling_level,
    }
    if is_clipped:
        options["eps_clip_low"] = clip_low(trainer.epsilon_low)
        options["delta"] = trainer.args.delta
    if is_clipped or kind == "cispo":
        options["eps_clip_high"] = trainer.epsilon_high
    if kind == "sapo":
        options["sapo_tau_pos"] = trainer.args.sapo_temperature_pos
        options["sapo_tau_neg"] = trainer.args.sapo_temperature_neg
    if trainer.beta != 0.0:
        options["kl_coef"] = trainer.beta
        options["ref_log_probs"] = batch.ref
        options["kl_weight"] = "ratio" if trainer.args.use_bias_correction_kl else "one"
    loss, _ = ppo_loss(
        NAMES,
        batch.log_probs,
        batch.old,
        batch.advantages,
        batch.mask,
        dialect="trl",
        importance_weights=batch.weights,
        loss_reduction=reduction,
        max_seq_len=trainer.max_completion_length,
        **options,
    )
    return loss / divisor


def _reduction(trainer: Any, batch: Batch, inputs: dict[str, Any]) -> tuple[str, Any]:
    """(of the tokens, what the result is divided by)."""
    kind = trainer.loss_type
    if kind in OF_ALL_TOKENS:
        # Of the batch that was generated: the share of one optimizer step of one rank.
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        if batch.is_train:
            steps = trainer.current_gradient_accumulation_steps
            tokens = tokens * steps / trainer.args.steps_per_generation
        return "token_sum", tokens
    words = {"bnpo": "token_mean", "dr_grpo": "seq_mean_token_sum_norm", "luspo": "sequence_sum"}
    return words.get(kind, "sequence_mean"), 1


def _bonus(trainer: Any, batch: Batch) -> Tensor:
    """entropy_coef times the mean entropy of the tokens that the policy's term acts on."""
    coef = trainer.entropy_coef
    if trainer.use_adaptive_entropy and trainer._last_world_entropy > trainer.args.entropy_target:
        coef = 0.0
    mask = batch.effective_mask
    return coef * ((batch.entropies * mask).sum() / mask.sum().clamp(min=1.0))


def _adapt(trainer: Any, batch: Batch) -> None:
    """At an optimizer step: entropy_coef goes up or down by the entropy of all its tokens."""
    import torch

    if not trainer.use_adaptive_entropy:
        return
    args, mask = trainer.args, batch.effective_mask
    stats = torch.stack([(batch.entropies * mask).sum(), mask.sum()]).detach()
    if trainer._entropy_window_stats is not None:
        stats = trainer._entropy_window_stats + stats
    trainer._entropy_window_stats = stats
    if not trainer.accelerator.sync_gradients:
        return
    total, count = trainer.accelerator.reduce(stats, reduction="sum")
    entropy = (total / count.clamp(min=1.0)).item()
    if entropy <= args.entropy_target:
        coef = min(trainer.entropy_coef + args.entropy_coef_delta, args.entropy_coef_max)
    else:
        coef = max(trainer.entropy_coef - args.entropy_coef_delta, args.entropy_coef_min)
    trainer.entropy_coef = coef
    trainer._last_world_entropy = entropy
    trainer._entropy_window_stats = None


def _refuse(option: str, expected: str, got: str) -> None:
    raise Unsupported(Fault("trl", option, expected, got))
