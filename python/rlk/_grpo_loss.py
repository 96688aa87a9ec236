# SPDX-License-Identifier: Apache-2.0
"""The op grpo_loss, of others: group_advantages, logp of both policies, ppo_loss. Without torch."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from rlk import _core, _ppo_loss
from rlk._group_advantages import group_advantages, host_boundaries
from rlk._metrics import figure
from rlk._ratio_kl import LogpOptions, expect_alike
from rlk.errors import InvalidArgument, Unsupported, renamed, shape_of

Tensor = Any
# What the parts' arguments are called here. A token of log_probs is one of action_ids.
NAMES = {
    "logits": "policy_logits",
    "target": "action_ids",
    "mask": "completion_mask",
    "log_probs": "action_ids",
    "old_log_probs": "old_logps",
    "advantages": "rewards",
    "loss_mask": "completion_mask",
    "ref_log_probs": "ref_logps",
    "kl_coef": "beta",
}
REF_NAMES = {**NAMES, "logits": "ref_logits"}
CLIPS = ("eps_clip_low", "eps_clip_high")  # what clip_eps stands for where they are not given
TAKEN = ("kl_coef", "ref_log_probs", "entropy")  # options of ppo_loss that are made here


class GrpoLoss(NamedTuple):
    """What `grpo_loss` returns, float32, 0-d each."""

    loss: Tensor
    policy_loss: Tensor  #: the loss without its KL term (and entropy bonus); no gradient
    kl: Tensor  #: the KL term before beta, reduced by the same weights; no gradient


class Call(NamedTuple):
    """Arguments as the core takes them."""

    policy_logits: Tensor
    ref_logits: Tensor | None
    ref_logps: Tensor | None
    rewards: Tensor
    logp: LogpOptions
    groups: dict[str, Any]  # options of group_advantages
    loss: _ppo_loss.Call  # what the parts before it make is to come


class Saved(NamedTuple):
    """What a backward needs beside the logits and logp's options."""

    row_max: Tensor
    row_log_sum: Tensor
    entropy: Tensor | None
    grad: Tensor  # of the loss with respect to the log-probs
    grad_entropy: Tensor | None


def make_call(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    old_logps: Tensor,
    rewards: Tensor,
    completion_mask: Tensor | None = None,
    *,
    samples_per_prompt: int | None = None,
    group_boundaries: Tensor | None = None,
    clip_eps: float | None = None,
    beta: float = 0.04,
    ref_logps: Tensor | None = None,
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
    **options: Any,
) -> Call:
    for name in TAKEN:
        if name in options:
            raise TypeError(f"grpo_loss: {name}: expected an option that exists")
    if ref_logits is not None and ref_logps is not None:
        raise InvalidArgument("grpo_loss: ref_logits: expected it or ref_logps, got both")
    (count, *_) = shape_of(rewards) or (0,)
    boundaries = host_boundaries("grpo_loss", group_boundaries, count, rewards)
    clips = {name: clip_eps for name in CLIPS if options.get(name) is None and clip_eps is not None}
    with renamed("grpo_loss", {**NAMES, **dict.fromkeys(clips, "clip_eps")}):
        loss = _ppo_loss.make_call(
            None,
            old_logps,
            None,
            dialect=dialect,
            kl_coef=beta,
            ref_log_probs=ref_logits if ref_logps is None else ref_logps,
            entropy=policy_logits,
            samples_per_prompt=samples_per_prompt,
            group_boundaries=boundaries,
            **{**options, **clips},
        )
    logp = (action_ids, temperature, softcap, logit_scale, completion_mask, ignore_index)
    groups = {
        "samples_per_prompt": samples_per_prompt,
        "group_boundaries": group_boundaries,
        "dialect": dialect,
        "normalize": normalize,
        "ddof": ddof,
        "eps": eps,
        "eps_mode": eps_mode,
        "group_of_one": group_of_one,
    }
    return Call(policy_logits, ref_logits, ref_logps, rewards, logp, groups, loss)


def active_tokens(ids: Tensor, mask: Tensor | None, ignore_index: int | None) -> Tensor | None:
    """What logp takes for active, as one mask."""
    if ignore_index is None:
        return mask
    active = _differs(ids, ignore_index)
    if mask is None:
        return active
    given = _differs(mask, 0)
    if isinstance(active, np.ndarray) != isinstance(given, np.ndarray):
        as_tensor = sys.modules["torch"].as_tensor  # the other one is its tensor
        active, given = as_tensor(active), as_tensor(given)
    return active & given


def _differs(tensor: Tensor, value: int) -> Any:
    """tensor != value, which a DLPack producer need not know."""
    if isinstance(tensor, np.ndarray):
        return np.asarray(tensor != value)
    torch = sys.modules.get("torch")
    if torch is None:
        return np.from_dlpack(tensor) != value
    found = tensor if isinstance(tensor, torch.Tensor) else torch.from_dlpack(tensor)
    return (found if value == 0 else found.long()) != value  # -100 is no uint8


def forward(call: Call, stream: int | None, needs_grad: bool) -> tuple[Tensor, Tensor, Saved]:
    """(loss, figures of ppo_loss, what a backward needs where it is asked for)."""
    options = call.loss.options
    tensors = dict(call.loss.tensors)
    on_cuda = getattr(call.policy_logits, "is_cuda", False)
    with renamed("grpo_loss", NAMES, on_cuda):
        found = _core.logp_forward(
            call.policy_logits, *call.logp, stream, options.needs_entropy, False, True, False
        )
    tensors["log_probs"], entropy, _, row_max, row_log_sum = found
    if isinstance(found[0], _core.Array):
        raise Unsupported("grpo_loss: policy_logits: expected torch tensors on CUDA, got another's")
    ids, *_, mask, ignore_index = call.logp
    tensors["loss_mask"] = active_tokens(ids, mask, ignore_index)
    expect_one_a_sequence(call.rewards, found[0].shape, tensors["cu_seqlens"])
    with renamed("grpo_loss", NAMES, on_cuda):
        tensors["advantages"] = group_advantages(call.rewards, stream, **call.groups)
    if options.needs_entropy:
        tensors["entropy"] = entropy
    if options.needs_ref and call.ref_logps is None:
        expect_alike("grpo_loss", call.policy_logits, call.ref_logits)
        with renamed("grpo_loss", REF_NAMES, on_cuda):
            tensors["ref_log_probs"] = _core.logp_forward(
                call.ref_logits, *call.logp, stream, False, False, False, False
            )
    with renamed("grpo_loss", NAMES, on_cuda):
        loss, _, figures, _, grad, grad_entropy = _core.ppo_loss_forward(
            tensors, options.core, stream, needs_grad, needs_grad and options.needs_entropy
        )
    return loss, figures, Saved(row_max, row_log_sum, entropy, grad, grad_entropy)


def expect_one_a_sequence(rewards: Tensor, tokens: tuple[int, ...], cu_seqlens: Tensor) -> None:
    """ppo_loss would take advantages of the tokens' shape for theirs."""
    starts = shape_of(cu_seqlens)
    if cu_seqlens is not None and (starts is None or len(starts) != 1 or not starts[0]):
        return  # ppo_loss says what is wrong with them
    count = tokens[0] if len(tokens) == 2 else 1 if starts is None else starts[0] - 1
    got = shape_of(rewards)
    if got is not None and got != (count,):
        raise InvalidArgument(
            f"grpo_loss: rewards: expected shape [{count}] (one a sequence), got {list(got)}"
        )


def result(loss: Tensor, figures: Tensor) -> GrpoLoss:
    return GrpoLoss(loss, figure(figures, "policy_loss"), figure(figures, "kl_loss"))


def gradient(
    policy_logits: Tensor,
    logp: LogpOptions,
    saved: Saved,
    stream: int | None,
    into: Tensor | None = None,
    unless_one: Tensor | None = None,
) -> Tensor:
    """Of policy_logits. Written into `into` where given, and then only if unless_one is not 1."""
    row_max, row_log_sum, entropy, grad, grad_entropy = saved
    return _core.logp_backward(
        grad,
        grad_entropy,
        None,
        policy_logits,
        *logp,
        stream,
        row_max,
        row_log_sum,
        entropy,
        False,
        into,
        unless_one,
    )


def scaled(saved: Saved, upstream: Tensor) -> Saved:
    """With the derivatives of upstream * loss."""
    with renamed("grpo_loss", {}):
        grads = [
            None if grad is None else _core.ppo_loss_backward(upstream, grad, grad)
            for grad in saved[3:]
        ]
    return Saved(*saved[:3], *grads)


def gradients(call: Call, grad_output: Tensor, stream: int | None) -> Tensor:
    """Of policy_logits, with a forward of its own."""
    _, _, saved = forward(call, stream, True)
    return gradient(call.policy_logits, call.logp, scaled(saved, grad_output), stream)
