# SPDX-License-Identifier: Apache-2.0
"""The op linear_cross_entropy, of others: linear_logp, then ppo_loss's exact sum. Without torch."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from rlk import _core
from rlk._loss_options import as_finite, as_float
from rlk._ops import linear_loss, ppo_loss
from rlk._ops.common import Arguments, Tensor, is_compiling, is_sharded
from rlk._ops.grpo_loss import active_tokens
from rlk.errors import Fault, Unsupported, fail, text

_OP = "linear_cross_entropy"
#: What a reduction is in ppo_loss; None: there is none.
REDUCTIONS = {"mean": "token_mean", "sum": "token_sum", "none": None}
NAMES = {
    "mask": "mask",
    "loss_mask": "mask",
    "log_probs": "target",
    "loss_reduction": "reduction",
}


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    global_tokens: int | Tensor | None = None,
    loss_group: Any = None,
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
) -> Tensor:
    """Cross entropy of the head's logits, straight from hidden states; no logits are formed.

    ``F.cross_entropy(z, target)`` of the logits z of `linear_logp`, in float32. Differentiable in
    hidden, weight and bias, for torch tensors. The loss is an exact sum: it follows neither from
    the order of the tokens nor from padding. Nothing waits for the device.

    Args:
        hidden: ``[..., D]``, float32, bfloat16 or float16.
        weight: ``[V, D]``, as in `linear_logp`.
        target: ``[...]``, ids in ``[0, V)`` of any integer dtype. They are not shifted here.
        bias: ``[V]``, hidden's dtype or float32.
        reduction: "mean" over the tokens that count, "sum", or "none": one value a token, 0 for
            those that do not count.
        ignore_index: tokens with this target do not count; None: no target is special.
        label_smoothing: the part of the target's weight that all V ids share, from 0 to 1. Not
            with softcap, lora or group.
        lse_square_scale: the factor of the square of each row's log-sum-exp, which is added to its
            loss (z-loss); 0: it is not.
        temperature, softcap, logit_scale: as in `linear_logp`.
        mask: ``[...]``, bool, integer or float of 0 and 1: tokens of 0 do not count. Their hidden
            states and targets may hold anything, and they cost no matrix work.
        global_tokens: the number of tokens that the mean is over, in place of those of this call:
            over all micro-batches and ranks (num_items_in_batch of transformers). An int, or an
            int64 tensor of one element on hidden's device.
        loss_group: the ranks that hold the batch, as in `ppo_loss`: the loss is that of all of
            them. Not with global_tokens.
        workspace_mib: as in `linear_ppo_loss`.
        saved_mib, accumulate_into, lora, compute_dtype: as in `linear_logp`.
        group, vocab_range, vocab_size, sequence_parallel: as in `linear_logp`.
        grad_scale: a finite number, or a tensor of no axis on hidden's device: multiplies the
            gradients, not the loss that is returned, as a factor of the loss would.
        stream: as in `linear_logp`.

    Returns:
        float32, 0-d; ``[...]`` for "none". Where no token counts the loss is 0 and every gradient
        exactly 0 (torch's mean is NaN there).

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong (a ValueError).
        rlk.Unsupported: as `linear_logp`, and on CUDA for what is no torch tensor.
        rlk.DriverError: a collective over a group failed.

    Example:
        >>> loss = rlk.jit.linear_cross_entropy(
        ...     hidden[:, :-1], lm_head.weight, tokens[:, 1:], global_tokens=num_items_in_batch)
        >>> loss.backward()
    """
    given = {
        "hidden": hidden,
        "weight": weight,
        "target": target,
        "bias": bias,
        "reduction": reduction,
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "lse_square_scale": lse_square_scale,
        "temperature": temperature,
        "softcap": softcap,
        "logit_scale": logit_scale,
        "mask": mask,
        "global_tokens": global_tokens,
        "loss_group": loss_group,
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
        "options": {"loss_group": loss_group},
    }
    return ppo_loss.told(_OP, _loss, given)


def _loss(given: Arguments, ranks: Any = None) -> Tensor:
    smoothing, lse_scale = _check(given)
    call = linear_loss.make_call(_OP, NAMES, given, {"options": {}}, ranks)
    reduces = given["reduction"] != "none"
    if reduces and smoothing == 0 and not is_compiling() and _core.needs_autograd(call.logp):
        from rlk._ops import torch_linear_chunks

        found = torch_linear_chunks.cross_entropy(
            call, _sum_options(given), lse_scale, lambda: _active(given)
        )
        if found is not None:
            return found
    scores = _scores(given, call, smoothing, lse_scale)
    loss = _reduced(given, scores) if reduces else -scores
    return linear_loss.scaled(loss, call.grad_scale)


def _active(given: Arguments) -> Tensor | None:
    """Which tokens count, None: all."""
    return active_tokens(given["target"], given["mask"], given["ignore_index"])


def _scores(given: Arguments, call: linear_loss.Call, smoothing: float, lse_scale: float) -> Tensor:
    """Each token's loss with the other sign."""
    if smoothing == lse_scale == 0:
        return linear_loss.log_probs(call, {})
    found = linear_loss.log_probs(call, {"return_lse": True, "return_stats": smoothing != 0})
    scores, lse = found.log_prob, found.lse
    if smoothing != 0:
        mean = found.stats.mean_logit
        if hasattr(mean, "requires_grad"):
            from rlk._ops import torch_linear_loss

            mean = torch_linear_loss.mean_logit(given, mean, _active(given))
        scores = scores * (1 - smoothing) - (lse - mean) * smoothing
    if lse_scale != 0:
        scores = scores - lse * lse * lse_scale
    return scores


def _check(given: Arguments) -> tuple[float, float]:
    """Of what is no argument of linear_logp; returns label_smoothing and lse_square_scale."""
    reduction, smoothing = given["reduction"], as_float(given["label_smoothing"])
    lse_scale = as_finite(given["lse_square_scale"])
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        fail(_OP, "reduction", ", ".join(REDUCTIONS), text(reduction))
    if smoothing is None or not 0 <= smoothing <= 1:
        fail(_OP, "label_smoothing", "a number from 0 to 1", text(given["label_smoothing"]))
    if lse_scale is None:
        fail(_OP, "lse_square_scale", "a finite number of float32", text(given["lse_square_scale"]))
    if reduction != "mean" and given["global_tokens"] is not None:
        expected = f"None where {{reduction}} is {reduction!r}"
        fail(_OP, "global_tokens", expected, text(given["global_tokens"]))
    if reduction == "none" and given["loss_group"] is not None:
        fail(_OP, "loss_group", "None where {reduction} is 'none'", "a group")
    if smoothing != 0:
        for name in ("softcap", "lora", "group"):
            if given[name] is not None:
                raise Unsupported(Fault(_OP, name, "None with {label_smoothing}", "both"))
        if is_sharded(given["weight"]):
            expected = "a tensor of all rows with {label_smoothing}"
            raise Unsupported(Fault(_OP, "weight", expected, "a sharded DTensor"))
        if is_compiling() and given["accumulate_into"] is not None:
            expected = "None with {label_smoothing} in torch.compile"
            raise Unsupported(Fault(_OP, "accumulate_into", expected, "both"))
    return smoothing, lse_scale


def _sum_options(given: Arguments) -> Arguments:
    """The sum or mean as ppo_loss's: gpg's loss of advantages of 1."""
    options: Arguments = {"policy_loss": "gpg", "loss_reduction": REDUCTIONS[given["reduction"]]}
    return options | {name: given[name] for name in ("global_tokens", "loss_group")}


def tokens_shape(shape: Any) -> tuple[int, ...]:
    """As ppo_loss takes tokens."""
    return tuple(shape) if len(shape) == 2 else (1, prod(shape))


def _reduced(given: Arguments, scores: Tensor) -> Tensor:
    active, shape = _active(given), tokens_shape(scores.shape)
    scores = scores.reshape(shape)
    if active is not None:
        active = active.reshape(shape)
    if isinstance(scores, np.ndarray):
        old, ones = scores, np.ones((len(scores), 1), np.float32)
    else:
        old, ones = scores.detach(), scores.new_ones((scores.shape[0], 1))
    options = {"stream": given["stream"], **_sum_options(given)}
    with linear_loss.in_words_of(_OP, NAMES, scores):
        return ppo_loss.ppo_loss(scores, old, ones, active, **options).loss


def explain(arguments: Arguments, core: Any = _core) -> Any:
    smooths = arguments["label_smoothing"] != 0
    has_lse = smooths or arguments["lse_square_scale"] != 0
    return linear_loss.explain(arguments, {"return_lse": has_lse, "return_stats": smooths}, core)
