# SPDX-License-Identifier: Apache-2.0
"""slime's policy loss and its log-probs of logits.

    from rlk.integrations import slime

    slime.patch()  # in each training process, before training

or, without a patch, the loss alone, with slime's options as they are:

    --loss-type custom_loss
    --custom-loss-function-path rlk.integrations.slime.policy_loss_function

All options of its policy loss are honoured. A custom TIS function and a custom reducer of the
policy's term are asked for their weights: both must be linear in the loss they are given. Sequence
ratios and OPSM are refused under context parallelism, which spreads a sequence over ranks.
Log-probs of tensor parallel ranks or under top-p replay stay slime's.
Tried with slime 0.3.1 (624b824).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlk import jit
from rlk.integrations._config import clip_low
from rlk.integrations._named_loss import ppo_loss
from rlk.integrations._patch import Patch, Seam
from rlk.integrations._slime_weights import Samples, correction, opsm, reducer_of, weights_of

__all__ = ["patch", "policy_loss_function", "policy_loss_of_log_probs", "unpatch"]

Tensor = Any
Reducer = Callable[[Tensor], Tensor]
inf = float("inf")
#: What errors of the op call its arguments.
NAMES = {
    "eps_clip_low": "eps_clip",
    "eps_clip_high": "eps_clip_high",
    "clip_ratio_c": "eps_clip_c",
    "kl_coef": "kl_loss_coef",
    "kl_estimator": "kl_loss_type",
    "entropy_coef": "entropy_coef",
}
KL_TYPES = {"low_var_kl": "k3"}  # the others have our names


def policy_loss_function(
    args: Any, batch: Any, logits: Tensor, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """slime's policy loss of logits, which its ``policy_loss_function`` has the arguments of.

    Args:
        args: slime's arguments. batch: a micro-batch. logits: ``[1, T, V]``, float32.
        sum_of_sample_mean: slime's reduction of values by token.

    Returns:
        (loss, metrics), as `policy_loss_of_log_probs`.

    Raises:
        rlk.InvalidArgument: as `policy_loss_of_log_probs`.

    Example:
        >>> loss, metrics = policy_loss_function(args, batch, logits, sum_of_sample_mean)
    """
    from slime.backends.megatron_utils import loss as theirs

    _, found = theirs.get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
        **theirs.get_rollout_top_p_logprob_kwargs(args, batch),
    )
    theirs._maybe_capture_log_probs(batch, found["log_probs"])
    loss, metrics = policy_loss_of_log_probs(
        args, batch, found["log_probs"], found["entropy"], sum_of_sample_mean
    )
    if not any(x.numel() for x in found["log_probs"]):
        loss = loss + 0 * logits.sum()  # a backward that every rank takes part in
    return loss, metrics


def policy_loss_of_log_probs(
    args: Any,
    batch: Any,
    log_probs: Sequence[Tensor],
    entropy: Sequence[Tensor],
    sum_of_sample_mean: Reducer,
) -> tuple[Tensor, dict[str, Tensor]]:
    """slime's policy loss of log-probs.

    Args:
        args: advantage_estimator, eps_clip, eps_clip_high, eps_clip_c, entropy_coef, use_kl_loss,
            kl_loss_type, kl_loss_coef, use_unbiased_kl, use_rollout_logprobs, use_tis, tis_clip,
            tis_clip_low, get_mismatch_metrics, custom_tis_function_path, use_opsm, opsm_delta, and,
            where there, custom_pg_loss_reducer_function_path.
        batch: lists of tensors, one ``[T_i]`` a sample: advantages, loss_masks and, where they are
            read, log_probs (old), rollout_log_probs, ref_log_probs, opd_reverse_kl.
        log_probs, entropy: the same of the policy, with gradients.
        sum_of_sample_mean: a linear function of the samples' values, concatenated.

    Returns:
        (loss, metrics): 0-d tensors, the metrics slime's by its names.

    Raises:
        rlk.InvalidArgument: sequence ratios or OPSM where log_probs are a rank's part of each
            sample, TIS without rollout_log_probs, or as `rlk.jit.ppo_loss`.

    Example:
        >>> loss, metrics = policy_loss_of_log_probs(args, batch, log_probs, entropy, reduce)
    """
    current = torch.cat(list(log_probs), dim=0)
    constant = current.detach()
    own_old = batch.get("log_probs") or [x.detach() for x in log_probs]
    old = torch.cat(batch["rollout_log_probs"] if args.use_rollout_logprobs else own_old, dim=0)
    advantages = torch.cat(batch["advantages"], dim=0)
    samples = Samples(batch, log_probs)
    mask = weights_of(sum_of_sample_mean, current) != 0
    log_ratio = constant - old
    if args.advantage_estimator == "gspo":
        log_ratio = samples.mean(log_ratio, mask, "advantage_estimator='gspo'")
    reduce, masks, weights = sum_of_sample_mean, batch["loss_masks"], None
    logged: dict[str, Tensor] = {}
    if args.use_opsm:
        weights, logged["opsm_clipfrac"] = opsm(args, constant - old, advantages, mask, samples)
    if args.get_mismatch_metrics or args.use_tis:
        found = correction(args, batch, own_old, reduce)
        weights = found.weights if weights is None else weights * found.weights
        reduce, masks = found.reduce, found.masks
        of_tokens = {"ois": log_ratio.exp(), **found.logged}
        logged |= {
            name: sum_of_sample_mean(torch.where(mask, x, 0.0)) for name, x in of_tokens.items()
        }
    # A loss is linear in the advantages for weights of 0 and more.
    weighted = advantages if weights is None else advantages * weights
    bonus = torch.cat(list(entropy), dim=0)
    shared: dict[str, Any] = {"old_log_probs": old, "loss_mask": mask, "dialect": "slime"}
    policy = {"advantages": weighted, **_policy(args, samples)}
    others = {"loss_weights": weights_of(reduce, current), **_kl(args, batch)}
    if args.entropy_coef != 0:
        others |= {"entropy": bonus, "entropy_coef": args.entropy_coef}
    path = getattr(args, "custom_pg_loss_reducer_function_path", None)
    if path is None:
        loss, parts = ppo_loss(NAMES, current, **shared, **policy, **others)
        pg_loss = parts.policy_loss
    else:  # the policy's term has weights of its own
        own = weights_of(reducer_of(path, args, batch, masks), current)
        pg, _ = ppo_loss(NAMES, current, **shared, **policy, loss_weights=own)
        zeros = torch.zeros_like(advantages)
        nothing: dict[str, Any] = {"advantages": zeros, "policy_loss": "gpg"}
        rest, parts = ppo_loss(NAMES, current, **shared, **nothing, **others)
        loss, pg_loss = pg + rest, pg.detach()

    def logged_mean(values: Tensor) -> Tensor:
        return reduce(torch.where(mask, values, 0.0))  # inactive tokens may hold NaN

    with torch.no_grad():
        metrics = {
            "loss": loss.detach(),
            "pg_loss": pg_loss,
            "entropy_loss": logged_mean(bonus.detach()),
            "pg_clipfrac": logged_mean(_is_clipped(args, log_ratio, advantages).float()),
            "ppo_kl": logged_mean(-log_ratio),
        }
        if batch.get("rollout_log_probs"):
            behind = constant if args.use_rollout_logprobs else old
            gap = (behind - torch.cat(batch["rollout_log_probs"], dim=0)).abs()
            metrics["train_rollout_logprob_abs_diff"] = logged_mean(gap)
        if args.use_kl_loss:
            metrics["kl_loss"] = parts.kl_loss
            if args.kl_loss_coef == 0:  # logged all the same
                metrics["kl_loss"] = _logged_kl(args, batch, constant, shared, others)
        if batch.get("opd_reverse_kl"):
            logged["opd_reverse_kl"] = logged_mean(torch.cat(batch["opd_reverse_kl"], dim=0))
    return loss, {**metrics, **logged}


def _policy(args: Any, samples: Samples) -> dict[str, Any]:
    clip = {"eps_clip_low": clip_low(args.eps_clip), "eps_clip_high": args.eps_clip_high}
    if args.advantage_estimator == "cispo":
        return {"policy_loss": "cispo", "cispo_bounds": "1+eps", **clip}
    found = {"policy_loss": "ppo", **clip}
    if args.advantage_estimator == "gspo":
        found |= {"ratio_level": "sequence", "cu_seqlens": samples.boundaries}
    if args.eps_clip_c is not None:
        found |= {"use_dual_clip": True, "clip_ratio_c": args.eps_clip_c}
    return found


def _kl(args: Any, batch: Any, coef: float | None = None) -> dict[str, Any]:
    coef = args.kl_loss_coef if coef is None else coef
    if not args.use_kl_loss or coef == 0:
        return {}
    found = {
        "kl_coef": coef,
        "ref_log_probs": torch.cat(batch["ref_log_probs"], dim=0),
        "kl_estimator": KL_TYPES.get(args.kl_loss_type, args.kl_loss_type),
        "kl_output_clamp": 10.0 if args.kl_loss_type == "low_var_kl" else inf,
    }
    if args.use_unbiased_kl:
        found |= {"kl_weight": "ratio", "kl_ratio": "token"}
    return found


def _logged_kl(
    args: Any, batch: Any, constant: Tensor, shared: dict[str, Any], others: dict[str, Any]
) -> Tensor:
    kl = {"loss_weights": others["loss_weights"], **_kl(args, batch, 1.0)}
    found = ppo_loss(NAMES, constant, advantages=torch.zeros_like(constant), **shared, **kl)
    return found.metrics.kl_loss


def _is_clipped(args: Any, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - args.eps_clip, 1.0 + args.eps_clip_high)
    if args.advantage_estimator == "cispo":
        return clipped != ratio
    return -clipped * advantages > -ratio * advantages


def _logprobs(original: Callable[..., Any]) -> Callable[..., Any]:
    def calculate_log_probs_and_entropy(
        logits: Tensor,
        tokens: Tensor,
        tp_group: Any,
        with_entropy: bool = False,
        chunk_size: int = -1,
        log_prob_keep_mask: Tensor | None = None,
        with_entropy_grad: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        if log_prob_keep_mask is not None or _num_ranks(tp_group) > 1:
            return original(  # type: ignore[no-any-return]
                logits,
                tokens,
                tp_group,
                with_entropy=with_entropy,
                chunk_size=chunk_size,
                log_prob_keep_mask=log_prob_keep_mask,
                with_entropy_grad=with_entropy_grad,
            )
        if not with_entropy:
            return jit.logp(logits, tokens, ignore_index=None).unsqueeze(-1), None
        found = jit.logp(logits, tokens, return_entropy=True, ignore_index=None)
        entropy = found.entropy if with_entropy_grad else found.entropy.detach()
        return found.log_prob.unsqueeze(-1), entropy

    return calculate_log_probs_and_entropy


def _num_ranks(group: Any) -> int:
    """Over which the vocabulary is split; without a group, the default one's."""
    if hasattr(group, "size"):
        return int(group.size())
    every = torch.distributed
    return int(every.get_world_size(group)) if every.is_initialized() else 1


_PATCH = Patch(
    "slime",
    since="0.3.1",
    before="0.3.2",
    seams=(
        Seam(
            "slime.backends.megatron_utils.loss:policy_loss_function",
            lambda original: policy_loss_function,
            "args, batch, logits, sum_of_sample_mean",
        ),
        Seam(
            "slime.utils.ppo_utils:calculate_log_probs_and_entropy",
            _logprobs,
            "logits, tokens, tp_group, with_entropy, chunk_size, log_prob_keep_mask, "
            "with_entropy_grad",
        ),
    ),
)


def patch(*, allow_untried: bool = False) -> None:
    """Makes slime compute its policy loss and its log-probs here; once is enough.

    Args:
        allow_untried: goes on with a version that this was not tried with.

    Raises:
        rlk.LoadError: slime cannot be imported.
        rlk.Unsupported: another version, or what would be replaced is not as it was.

    Example:
        >>> slime.patch()
    """
    _PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Puts back what `patch` replaced."""
    _PATCH.off()
