# SPDX-License-Identifier: Apache-2.0
"""The op linear_grpo_loss, of others: group_advantages, linear_logp of both policies, ppo_loss.
Without torch."""

from __future__ import annotations

from typing import Any

from rlk import _core
from rlk._ops import grpo_loss, linear_loss, ppo_loss
from rlk._ops.common import Arguments, Tensor, defaults, is_compiling
from rlk._ops.group_advantages import group_advantages, host_boundaries
from rlk.errors import renamed, shape_of

# What the parts' arguments are called here. A token of log_probs is one of target.
NAMES = {
    "mask": "completion_mask",
    "log_probs": "target",
    "old_log_probs": "old_logps",
    "advantages": "rewards",
    "loss_mask": "completion_mask",
    "ref_log_probs": "ref_logps",
    "kl_coef": "beta",
}
OPTIONS = grpo_loss.OPTIONS


def linear_grpo_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    old_logps: Tensor,
    rewards: Tensor,
    completion_mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    samples_per_prompt: int | None = None,
    group_boundaries: Tensor | None = None,
    clip_eps: float | None = None,
    beta: float = 0.04,
    ref_logps: Tensor | None = None,
    ref_hidden: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    dialect: str = "rlk",
    normalize: str | None = None,
    ddof: int | None = None,
    eps: float | None = None,
    eps_mode: str | None = None,
    group_of_one: str | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    ignore_index: int | None = -100,
    saved_mib: int | None = None,
    workspace_mib: int | None = None,
    accumulate_into: Tensor | str | None = None,
    lora: tuple[Tensor, Tensor, float] | None = None,
    compute_dtype: Any = None,
    group: Any = None,
    vocab_range: tuple[int, int] | None = None,
    vocab_size: int | None = None,
    sequence_parallel: bool = False,
    grad_scale: float | Tensor = 1.0,
    stream: int | None = None,
    **options: Any,
) -> grpo_loss.GrpoLoss:
    """The GRPO loss, straight from hidden states and rewards: `group_advantages`, `linear_logp`
    and `ppo_loss`, with the bits of calling them one by one; no logits are formed.

    ``sum over active tokens of w * (max(-A r, -A clip(r)) + beta * k)``, r = exp(log p - old),
    k = k3(ref - log p). Differentiable in hidden, weight and bias, for torch tensors; where none of
    them needs a gradient, it is the forward alone. Nothing waits for the device.

    Args:
        hidden: ``[B, T, D]``, or ``[N, D]`` with cu_seqlens, or ``[T, D]``: one sequence. float32,
            bfloat16 or float16.
        weight: ``[V, D]``, as in `linear_logp`.
        target: ``[B, T]`` (``[N]``, ``[T]``), ids in ``[0, V)`` of any integer dtype.
        old_logps: of target's shape, any floating dtype.
        rewards: ``[B]``, one a sequence, any floating dtype.
        completion_mask: of target's shape, bool, integer or float of 0 and 1; None: all are
            active. A token of 0 is left out of the products as well as of the loss; it may hold
            anything.
        bias: ``[V]``, hidden's dtype or float32.
        samples_per_prompt, group_boundaries: one of them, as in `group_advantages`.
        clip_eps: eps_clip_low and eps_clip_high of `ppo_loss`; None: 0.2, or the dialect's.
        beta: the factor of the KL term; 0: there is none.
        ref_logps: the reference's log-probs, of target's shape.
        ref_hidden, ref_weight, ref_bias: the reference's head in their place: hidden
            ``[B, T, D_ref]``, weight ``[V, D_ref]``, bias ``[V]``. They have no gradient. Neither
            is looked at where beta is 0.
        dialect: rules of both `group_advantages` and `ppo_loss` for what is not given.
        normalize, ddof, eps, eps_mode, group_of_one: as in `group_advantages`.
        temperature, softcap, logit_scale: as in `linear_logp`, of both policies.
        ignore_index: a token with this target is as one whose completion_mask is 0; None: none is.
        workspace_mib: of the forward, which makes the gradients of a chunk of tokens before it
            goes on: MiB that a chunk's exponentials may take; None: the setting's. See
            `linear_ppo_loss`.
        saved_mib, accumulate_into, lora: as in `linear_logp`, of the policy.
        compute_dtype, group, vocab_range, vocab_size, sequence_parallel: as in `linear_logp`, of
            both policies.
        grad_scale: a finite number, or a tensor of no axis on hidden's device: multiplies the
            gradients, not the loss that is returned, as a factor of the loss would.
        stream: as in `linear_logp`.
        options: those of `ppo_loss`, but kl_coef (it is beta), ref_log_probs and entropy (made
            here); cu_seqlens for packed sequences, and entropy_coef for a bonus, among them.

    Returns:
        `GrpoLoss` (loss, policy_loss, kl), float32 and 0-d; policy_loss and kl carry no gradient.
        Without an active token the loss is 0 and every gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong, or options
            contradict each other (a ValueError).
        rlk.Unsupported: as `linear_logp`, and on CUDA for what is no torch tensor.
        rlk.DriverError: a collective over a group failed.
        TypeError: an option that does not exist.

    Example:
        >>> loss, policy_loss, kl = rlk.jit.linear_grpo_loss(
        ...     hidden, lm_head.weight, tokens, old_logps, rewards, mask, samples_per_prompt=8,
        ...     ref_hidden=ref_hidden, ref_weight=ref_head.weight)
        >>> loss.backward()
    """
    given = {
        "hidden": hidden,
        "weight": weight,
        "target": target,
        "old_logps": old_logps,
        "rewards": rewards,
        "completion_mask": completion_mask,
        "bias": bias,
        "samples_per_prompt": samples_per_prompt,
        "group_boundaries": group_boundaries,
        "clip_eps": clip_eps,
        "beta": beta,
        "ref_logps": ref_logps,
        "ref_hidden": ref_hidden,
        "ref_weight": ref_weight,
        "ref_bias": ref_bias,
        "dialect": dialect,
        "normalize": normalize,
        "ddof": ddof,
        "eps": eps,
        "eps_mode": eps_mode,
        "group_of_one": group_of_one,
        "temperature": temperature,
        "softcap": softcap,
        "logit_scale": logit_scale,
        "ignore_index": ignore_index,
        "saved_mib": saved_mib,
        "workspace_mib": workspace_mib,
        "accumulate_into": accumulate_into,
        "lora": lora,
        "compute_dtype": compute_dtype,
        "group": group,
        "vocab_range": vocab_range,
        "vocab_size": vocab_size,
        "sequence_parallel": sequence_parallel,
        "grad_scale": grad_scale,
        "stream": stream,
        "options": options,
    }
    call = ppo_loss.told("linear_grpo_loss", _make_call, given)
    loss, metrics = linear_loss.policy_loss(call)
    return grpo_loss.GrpoLoss(loss, metrics.policy_loss, metrics.kl_loss)


def _make_call(given: Arguments, ranks: Any = None) -> linear_loss.Call:
    op, rewards = "linear_grpo_loss", given["rewards"]
    options, clips = grpo_loss.loss_options(op, given, NAMES)
    names = {**NAMES, **clips}
    groups = {name: given[name] for name in defaults(group_advantages)}
    tokens = shape_of(given["target"])
    if tokens is not None:
        starts = options.get("cu_seqlens")
        grpo_loss.expect_one_per_sequence(op, rewards, tokens, starts)
    if is_compiling():
        advantages = group_advantages(rewards, **groups)
    else:
        (count, *_) = shape_of(rewards) or (0,)
        boundaries = host_boundaries(op, given["group_boundaries"], count, rewards)
        options["group_boundaries"] = boundaries
        with renamed(op, names):
            advantages = group_advantages(rewards, **groups)
    loss = {
        "old_log_probs": given["old_logps"],
        "advantages": grpo_loss.column(advantages),
        "options": {**options, "ref_log_probs": given["ref_logps"]},
    }
    return linear_loss.make_call(op, names, given, loss, ranks)


def explain(arguments: Arguments, core: Any = _core) -> Any:
    has_entropy = bool(arguments["options"].get("entropy_coef"))
    asked = {"return_entropy": has_entropy, "entropy_grad": has_entropy}
    return linear_loss.explain({**arguments, "mask": arguments["completion_mask"]}, asked, core)
