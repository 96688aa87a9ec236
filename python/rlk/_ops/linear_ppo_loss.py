# SPDX-License-Identifier: Apache-2.0
"""The op linear_ppo_loss, of others: linear_logp of both policies, ppo_loss. Without torch."""

from __future__ import annotations

from typing import Any

from rlk import _core
from rlk._ops import linear_loss, ppo_loss
from rlk._ops.common import Arguments, Tensor
from rlk._ops.grpo_loss import check_options

# What the parts' arguments are called here. A token of log_probs is one of target.
NAMES = {
    "mask": "loss_mask",
    "log_probs": "target",
    "ref_log_probs": "ref_log_probs",
    "kl_coef": "kl_coef",
}
OPTIONS = ppo_loss.OPTIONS - {"entropy"}


def linear_ppo_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    ref_hidden: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
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
) -> ppo_loss.PpoLoss:
    """A policy loss with its metrics, straight from hidden states: `linear_logp` and `ppo_loss`,
    with the bits of calling them one by one; no logits are formed.

    Differentiable in hidden, weight and bias, for torch tensors; where none of them needs a
    gradient, it is the forward alone. Nothing waits for the device.

    Args:
        hidden: ``[B, T, D]``, or ``[N, D]`` with cu_seqlens, or ``[T, D]``: one sequence. float32,
            bfloat16 or float16.
        weight: ``[V, D]``, as in `linear_logp`.
        target: ``[B, T]`` (``[N]``, ``[T]``), ids in ``[0, V)`` of any integer dtype.
        old_log_probs, advantages: as in `ppo_loss`.
        loss_mask: of target's shape, bool, integer or float of 0 and 1; None: all are active. A
            token of 0 is left out of the products as well as of the loss; it may hold anything.
        bias: ``[V]``, hidden's dtype or float32.
        ref_hidden, ref_weight, ref_bias: the reference policy's head with a kl_coef, in place of
            the option ref_log_probs: hidden ``[B, T, D_ref]``, weight ``[V, D_ref]``, bias
            ``[V]``. They have no gradient. Not looked at where kl_coef is 0.
        temperature, softcap, logit_scale: as in `linear_logp`, of both policies.
        ignore_index: a token with this target is as one whose loss_mask is 0; None: no target is.
        workspace_mib: of the forward, which makes the gradients of a chunk of tokens before it
            goes on: MiB that a chunk's exponentials may take; None: the setting's. See
            docs/linear_loss.md for what takes no chunks: it keeps saved_mib instead.
        saved_mib, accumulate_into, lora: as in `linear_logp`, of the policy.
        compute_dtype, group, vocab_range, vocab_size, sequence_parallel: as in `linear_logp`, of
            both policies.
        grad_scale: a finite number, or a tensor of no axis on hidden's device: multiplies the
            gradients, not the loss that is returned, as a factor of the loss would.
        stream: as in `linear_logp`.
        options: those of `ppo_loss`, but entropy, which is made here: entropy_coef asks for it.

    Returns:
        `PpoLoss` (loss, metrics), as `ppo_loss`. Without an active token the loss is 0 and every
        gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong, or options
            contradict each other (a ValueError).
        rlk.Unsupported: as `linear_logp`, and on CUDA for what is no torch tensor.
        rlk.DriverError: a collective over a group failed.
        TypeError: an option that does not exist.

    Example:
        >>> loss, metrics = rlk.jit.linear_ppo_loss(
        ...     hidden, lm_head.weight, tokens, old_log_probs, advantages, mask, temperature=0.7)
        >>> loss.backward()
    """
    given = {
        "hidden": hidden,
        "weight": weight,
        "target": target,
        "old_log_probs": old_log_probs,
        "advantages": advantages,
        "loss_mask": loss_mask,
        "bias": bias,
        "ref_hidden": ref_hidden,
        "ref_weight": ref_weight,
        "ref_bias": ref_bias,
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
    call = ppo_loss.told("linear_ppo_loss", _make_call, given)
    return linear_loss.policy_loss(call)


def _make_call(given: Arguments, ranks: Any = None) -> linear_loss.Call:
    check_options("linear_ppo_loss", given["options"], OPTIONS, NAMES)
    loss = {name: given[name] for name in ("old_log_probs", "advantages", "options")}
    return linear_loss.make_call("linear_ppo_loss", NAMES, given, loss, ranks)


def explain(arguments: Arguments, core: Any = _core) -> Any:
    has_entropy = bool(arguments["options"].get("entropy_coef"))
    asked = {"return_entropy": has_entropy, "entropy_grad": has_entropy}
    return linear_loss.explain({**arguments, "mask": arguments["loss_mask"]}, asked, core)
