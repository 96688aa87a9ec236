# SPDX-License-Identifier: Apache-2.0
"""The op grpo_loss, of others: group_advantages, logp of both policies, ppo_loss. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlk import _core
from rlk._loss_options import ELSEWHERE
from rlk._metrics import Metrics
from rlk._ops import grpo_rows, ppo_loss
from rlk._ops.common import (
    Arguments,
    Tensor,
    arguments_of,
    defaults,
    is_compiling,
    no_option,
    with_defaults,
)
from rlk._ops.group_advantages import group_advantages, host_boundaries
from rlk._ops.ratio_kl import expect_alike
from rlk.errors import Fault, Unsupported, fail, renamed, shape_of, text

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
#: What other systems call an argument of group_advantages.
ADVANTAGES_ELSEWHERE = {"scale_rewards": "normalize", "norm_adv_by_std_in_grpo": "normalize"}
REF_NAMES = {**NAMES, "logits": "ref_logits"}
CLIPS = ("eps_clip_low", "eps_clip_high")  # what clip_eps stands for where they are not given
# Options of ppo_loss, but for those that are made here, and what has no meaning where an advantage
# is the sequence's.
OPTIONS = ppo_loss.OPTIONS - {"kl_coef", "ref_log_probs", "entropy", "advantage_level"}


class GrpoLoss(NamedTuple):
    """What `grpo_loss` returns, float32, 0-d each."""

    loss: Tensor
    policy_loss: Tensor  #: the loss without its KL term (and entropy bonus); no gradient
    kl: Tensor  #: the KL term before beta, reduced by the same weights; no gradient


def grpo_loss(
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
    stream: int | None = None,
    **options: Any,
) -> GrpoLoss:
    """The GRPO loss, straight from logits and rewards: `group_advantages`, `logp` of both
    policies and `ppo_loss`, with the bits of calling them one by one.

    ``sum over active tokens of w * (max(-A r, -A clip(r)) + beta * k)``, r = exp(log p - old),
    k = k3(ref - log p). The gradient of the logits is made in the forward; a backward whose
    upstream is exactly 1 hands it out, and one with another makes it anew, told on the device.
    Differentiable in policy_logits alone, for torch tensors.

    Args:
        policy_logits: ``[B, T, V]``, or ``[N, V]`` with cu_seqlens, or ``[T, V]``: one sequence.
            float32, bfloat16 or float16.
        ref_logits: of the reference policy, likewise; None with ref_logps or a beta of 0, where
            it is not looked at.
        action_ids: ``[B, T]`` (``[N]``, ``[T]``), ids in ``[0, V)`` of any integer dtype.
        old_logps: of action_ids' shape, any floating dtype.
        rewards: ``[B]``, one a sequence, any floating dtype.
        completion_mask: of action_ids' shape, bool, integer or float of 0 and 1; None: all are
            active. Inactive tokens may hold anything; so may those of ignore_index.
        samples_per_prompt, group_boundaries: one of them, as in `group_advantages`.
        clip_eps: eps_clip_low and eps_clip_high of `ppo_loss`; None: 0.2, or the dialect's.
        beta: the factor of the KL term; 0: there is none.
        ref_logps: the reference's log-probs in place of its logits.
        dialect: rules of both `group_advantages` and `ppo_loss` for what is not given.
        normalize, ddof, eps, eps_mode, group_of_one: as in `group_advantages`.
        temperature, softcap, logit_scale, ignore_index, stream: as in `logp`, of both logits.
        options: those of `ppo_loss`, but kl_coef (it is beta), ref_log_probs and entropy (made
            here); cu_seqlens for packed sequences, and entropy_coef for a bonus, among them.

    Returns:
        `GrpoLoss` (loss, policy_loss, kl), float32 and 0-d; policy_loss and kl carry no gradient.
        Without an active token the loss is 0 and the gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong, or options
            contradict each other (a ValueError).
        rlk.Unsupported: as `logp`, and on CUDA for what is no torch tensor.
        TypeError: an option that does not exist.

    Example:
        >>> loss, policy_loss, kl = rlk.jit.grpo_loss(
        ...     logits, ref_logits, tokens, old_logps, rewards, mask, samples_per_prompt=8)
        >>> loss.backward()

    The formula is that of GRPO (Shao et al. 2024) with DAPO's token mean (Yu et al. 2025).
    """
    arguments = {
        "policy_logits": policy_logits,
        "ref_logits": ref_logits,
        "action_ids": action_ids,
        "old_logps": old_logps,
        "rewards": rewards,
        "completion_mask": completion_mask,
        "samples_per_prompt": samples_per_prompt,
        "group_boundaries": group_boundaries,
        "clip_eps": clip_eps,
        "beta": beta,
        "ref_logps": ref_logps,
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
        "stream": stream,
        "options": options,
    }
    if is_compiling() or _core.is_watched(arguments):
        from rlk._ops import torch_loss_operators

        return torch_loss_operators.grpo_loss(arguments)
    call = ppo_loss.told("grpo_loss", make_call, arguments)
    if _core.needs_autograd(arguments):
        from rlk._ops import torch_grpo_loss

        return torch_grpo_loss.grpo_loss(call, arguments)
    loss, floats, *_ = forward(call, False)
    return result(loss, floats)


def grpo_loss_backward(
    grad_output: Tensor,
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    old_logps: Tensor,
    rewards: Tensor,
    completion_mask: Tensor | None = None,
    *,
    stream: int | None = None,
    **options: Any,
) -> Tensor:
    """Gradient of `grpo_loss` for those without autograd; runs the forward once more.

    Args:
        grad_output: float32 of one element, the gradient of the loss.
        Others: as `grpo_loss`.

    Returns:
        The gradient of policy_logits, of their shape and dtype.

    Raises:
        rlk.InvalidArgument: as `grpo_loss`.

    Example:
        >>> grad = rlk.jit.grpo_loss_backward(
        ...     np.float32(1), logits, ref, tokens, old, rewards, mask, samples_per_prompt=8)
    """
    given = locals()
    own = {name: options.pop(name) for name in tuple(options) if name in defaults(grpo_loss)}
    call = ppo_loss.told("grpo_loss", make_call, with_defaults("grpo_loss", grpo_loss, given, own))
    _, _, saved, _ = forward(call, True)
    return gradient({**call.logp, **scaled(saved, grad_output)})


def explain(arguments: Arguments) -> tuple[str, str, str, str, str]:
    backward = arguments["backward"]
    logp = arguments_of("logp", arguments, NAMES)
    if backward and arguments["old_logps"] is not None and arguments["rewards"] is not None:
        call = make_call(arguments)
        if grpo_rows.fits(call.logp, call.ref_logps, call.loss):
            return _core.grpo_loss_explain(logp)
    return _core.logp_explain({**logp, "backward": backward})


class Call(NamedTuple):
    """Arguments as the parts take them."""

    logp: Arguments
    ref: Arguments | None  # of the reference's logp
    ref_logps: Tensor | None
    rewards: Tensor
    groups: Arguments  # of group_advantages
    loss: ppo_loss.Call  # what the parts before it make is to come


def check_options(
    op: str, options: Arguments, known: frozenset[str], names: Mapping[str, str]
) -> None:
    """`names`: what arguments of ppo_loss are called in `op`, which is made of it."""
    for name in options:
        if name not in known:
            here = ELSEWHERE.get(name)
            if name not in ("log_probs", "advantages"):  # made there
                here = names.get(here or name, here)
            raise no_option(op, name, here)


def loss_options(
    op: str, given: Arguments, names: Mapping[str, str]
) -> tuple[Arguments, Mapping[str, str]]:
    """The options of ppo_loss but for the reference and the entropy; the names of those that
    clip_eps stands for."""
    options, beta, clip_eps = given["options"], given["beta"], given["clip_eps"]
    check_options(op, options, OPTIONS, {**names, **ADVANTAGES_ELSEWHERE})
    if beta is None:
        fail(op, "beta", "a number (0: no KL term)", "None")
    clips = {name: clip_eps for name in CLIPS if options.get(name) is None and clip_eps is not None}
    if clip_eps is not None and not clips:
        fail(op, "clip_eps", f"None with {{{CLIPS[0]}}} and {{{CLIPS[1]}}}", text(clip_eps))
    groups = {name: given[name] for name in ("samples_per_prompt", "group_boundaries")}
    made = {"dialect": given["dialect"], "kl_coef": beta, **groups}
    return {**made, **options, **clips}, dict.fromkeys(clips, "clip_eps")


def make_call(given: Arguments, ranks: Any = None) -> Call:
    """`ranks`: as in ppo_loss.make_call."""
    rewards, ref_logits, ref_logps = given["rewards"], given["ref_logits"], given["ref_logps"]
    options, clips = loss_options("grpo_loss", given, NAMES)
    if ref_logits is not None and ref_logps is not None:
        fail("grpo_loss", "ref_logits", "it or {ref_logps}", "both")
    (count, *_) = shape_of(rewards) or (0,)
    boundaries = host_boundaries("grpo_loss", given["group_boundaries"], count, rewards)
    # Of the reference only its absence is told here.
    names = {**NAMES, "ref_log_probs": "ref_logits or ref_logps", **clips}
    with renamed("grpo_loss", names):
        made = {
            "ref_log_probs": ref_logits if ref_logps is None else ref_logps,
            "entropy": given["policy_logits"],
            "group_boundaries": boundaries,
        }
        loss = ppo_loss.make_call(
            {
                **dict.fromkeys(ppo_loss.INPUTS),
                "old_log_probs": given["old_logps"],
                "stream": given["stream"],
                "options": {**options, **made},
            },
            ranks,
        )
    if loss.ranks is not None:
        from rlk._ops.torch_loss_ranks import check_torch

        logits, stream = given["policy_logits"], given["stream"]
        check_torch("grpo_loss", "policy_logits", logits, stream, loss.ranks)
    logp = arguments_of("logp", given, NAMES)
    ref = None if ref_logits is None else {**logp, "logits": ref_logits}
    groups = {name: given[name] for name in defaults(group_advantages)}
    return Call(logp, ref, ref_logps, rewards, groups, loss)


def active_tokens(ids: Tensor, mask: Tensor | None, ignore_index: int | None) -> Tensor | None:
    """What logp takes for active, as one mask."""
    if ignore_index is None:
        return mask
    active = _differs(ids, ignore_index)
    if mask is None:
        return active
    given = _differs(mask, 0)
    if isinstance(active, np.ndarray) != isinstance(given, np.ndarray):
        as_tensor = _core.ready_torch().as_tensor  # the other one is its tensor
        active, given = as_tensor(active), as_tensor(given)
    return active & given


def _differs(tensor: Tensor, value: int) -> Any:
    """tensor != value, which a DLPack producer need not know."""
    if isinstance(tensor, np.ndarray):
        return np.asarray(tensor != value)
    found = tensor
    if not hasattr(tensor, "long"):  # not torch's, which may be followed by its compiler
        torch = _core.ready_torch()
        if torch is None:
            return np.from_dlpack(tensor) != value
        found = torch.from_dlpack(tensor)
    return (found if value == 0 else found.long()) != value  # -100 is no uint8


def forward(
    call: Call, needs_grad: bool, makes_gradient: bool = True
) -> tuple[Tensor, Tensor, Arguments, Tensor | None]:
    """(loss, ppo_loss's metrics that are floats, what a backward needs beside logp's arguments, the
    gradient of policy_logits where it may be and is made on the way)."""
    if call.loss.ranks is None:
        return _forward(call, needs_grad, makes_gradient)
    with call.loss.ranks.agreement.telling():
        return _forward(call, needs_grad, makes_gradient)


def _forward(
    call: Call, needs_grad: bool, makes_gradient: bool
) -> tuple[Tensor, Tensor, Arguments, Tensor | None]:
    options = call.loss.options
    logits, ids = call.logp["logits"], call.logp["target"]
    on_cuda = getattr(logits, "is_cuda", False)
    may_make = needs_grad and makes_gradient
    in_one_look = may_make and grpo_rows.fits(call.logp, call.ref_logps, call.loss)
    entropy = log_probs = made = None
    if not in_one_look:
        arguments = {**call.logp, "return_entropy": options.needs_entropy}
        with renamed("grpo_loss", NAMES, on_cuda):
            found = _core.logp_forward(arguments, True, needs_grad)
        log_probs, entropy, _, row_max, row_log_sum = found
        if isinstance(log_probs, _core.Array):
            raise Unsupported(
                Fault("grpo_loss", "policy_logits", "torch tensors on CUDA", "another's")
            )
    active = active_tokens(ids, call.logp["mask"], call.logp["ignore_index"])
    tokens = ids if log_probs is None else log_probs
    starts = call.loss.arguments["cu_seqlens"]
    expect_one_per_sequence("grpo_loss", call.rewards, tuple(tokens.shape), starts)
    with renamed("grpo_loss", NAMES, on_cuda):
        advantages = group_advantages(call.rewards, **call.groups)
    ref_log_probs = call.loss.arguments["ref_log_probs"]
    if options.needs_ref and call.ref is not None:
        expect_alike("grpo_loss", logits, call.ref["logits"])
        with renamed("grpo_loss", REF_NAMES, on_cuda):
            ref_log_probs = _core.logp_forward(call.ref)
    arguments = {
        **call.loss.arguments,
        "log_probs": log_probs,
        "advantages": column(advantages),
        "loss_mask": active,
        "ref_log_probs": ref_log_probs,
        "entropy": entropy,
    }
    loss = call.loss._replace(arguments=arguments)
    with renamed("grpo_loss", NAMES, on_cuda):
        if in_one_look:
            found = grpo_rows.log_probs_and_gradient(call.logp, loss)
            arguments["log_probs"], row_max, row_log_sum, made = found
        value, _, floats, _, grad, grad_entropy = ppo_loss.forward(
            loss, needs_grad, needs_grad and options.needs_entropy
        )
    saved = {
        "row_max": row_max,
        "row_log_sum": row_log_sum,
        "entropy": entropy,
        "grad_output": grad,
        "grad_entropy": grad_entropy,
    }
    return value, floats, saved, made


def column(advantages: Tensor) -> Tensor:
    """[B, 1]: of as many packed tokens, [B] would be one a token."""
    if isinstance(advantages, _core.Array):
        torch = _core.ready_torch()
        if torch is None:
            raise Unsupported(Fault("grpo_loss", "rewards", "torch tensors on CUDA", "another's"))
        advantages = torch.from_dlpack(advantages)
    return advantages.reshape(-1, 1)


def expect_one_per_sequence(
    op: str, rewards: Tensor, tokens: tuple[int, ...], cu_seqlens: Tensor
) -> None:
    """ppo_loss would take advantages of the tokens' shape for theirs."""
    starts = shape_of(cu_seqlens)
    is_wrong = cu_seqlens is not None and (starts is None or len(starts) != 1 or not starts[0])
    if is_wrong or len(tokens) > 2:
        return  # ppo_loss says what is wrong with them
    count = tokens[0] if len(tokens) == 2 else 1 if starts is None else starts[0] - 1
    got = shape_of(rewards)
    if got is not None and got != (count,):
        fail(op, "rewards", f"shape [{count}] (one per sequence)", list(got))


def result(loss: Tensor, floats: Tensor) -> GrpoLoss:
    metrics = Metrics(None, floats, None)
    return GrpoLoss(loss, metrics.policy_loss, metrics.kl_loss)


def gradient(
    arguments: Arguments, into: Tensor | None = None, unless_one: Tensor | None = None
) -> Tensor:
    """Of policy_logits, from logp's arguments and what a forward gave. Written into `into` where
    given, and then only if unless_one is not 1."""
    return _core.logp_backward(arguments, into, unless_one)


def scaled(saved: Arguments, upstream: Tensor) -> Arguments:
    """With the derivatives of upstream * loss."""
    found = {**saved}
    with renamed("grpo_loss", {}):
        for name in ("grad_output", "grad_entropy"):
            if found[name] is not None:
                found[name] = ppo_loss.gradient(upstream, found[name], None)
    return found
