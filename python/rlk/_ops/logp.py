# SPDX-License-Identifier: Apache-2.0
"""The op logp, without torch."""

from __future__ import annotations

from typing import Any

from rlk import _core
from rlk._ops.common import Arguments, Tensor, is_compiling, is_sharded, logp_result, over_ranks


def logp(
    logits: Tensor,
    target: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    return_stats: bool = False,
    inplace_backward: bool = False,
    group: Any = None,
    vocab_range: tuple[int, int] | None = None,
    vocab_size: int | None = None,
    stream: int | None = None,
) -> Any:
    """Log-probabilities of target ids from logits; no log_softmax is formed.

    ``log_softmax(z)[target]`` of ``z = cap(logit_scale * logits) / temperature``, ``cap(x) =
    softcap * tanh(x / softcap)``, in float32 whatever the logits' dtype. One read of the logits
    forward, one read and one write backward. A row's bits depend on that row alone; those of
    float32 logits are those of `linear_logp` where its dot products are the same numbers.
    Differentiable in logits for torch tensors, the gradient in their dtype.

    Args:
        logits: ``[..., V]``, float32, bfloat16 or float16.
        target: ``[...]``, ids in ``[0, V)`` of any integer dtype.
        temperature, softcap, logit_scale, mask, ignore_index: as in `linear_logp`. Rows that are
            not active are not read.
        return_entropy, return_lse, return_stats, stream: as in `linear_logp`.
        inplace_backward: the backward writes the gradient over the logits, so that no second
            tensor of their size is needed. Only where nothing else reads the logits afterwards:
            torch raises where its autograd would, and at a second backward.
        group, vocab_range, vocab_size: as in `linear_logp`: logits are this rank's columns ``[...,
            V_r]`` of the whole vocabulary, and so is their gradient. A DTensor of logits that is
            ``Shard`` by its last axis says the same.

    Returns:
        As `linear_logp`: float32 ``[...]``, or a `LogpResult` with return_entropy or return_lse,
        or a `LogpStatsResult` with return_stats.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported, rlk.DriverError: as `linear_logp`; and with
            inplace_backward for logits that are a leaf, or whose elements share memory.

    Example:
        >>> log_probs = rlk.jit.logp(model(tokens).logits[:, :-1], tokens[:, 1:])
        >>> (-(advantages * log_probs).sum()).backward()

    With M = max z, S = sum exp(z - M) and T = sum exp(z - M) (z - M) over the vocabulary, log p =
    (z_t - M) - log S, the entropy is log S - T / S, lse = M + log S, and sum_p2 =
    sum exp(2 (z - M)) / S^2.
    """
    arguments = {
        "logits": logits,
        "target": target,
        "temperature": temperature,
        "softcap": softcap,
        "logit_scale": logit_scale,
        "mask": mask,
        "ignore_index": ignore_index,
        "return_entropy": return_entropy,
        "return_lse": return_lse,
        "return_stats": return_stats,
        "inplace_backward": inplace_backward,
        "stream": stream,
    }
    compiles = is_compiling()
    if group is not None or vocab_range is not None or vocab_size is not None or is_sharded(logits):
        return over_ranks(compiles).logp(arguments, group, vocab_range, vocab_size)
    if compiles or _core.needs_autograd(arguments):
        from rlk._ops import torch_logp

        return logp_result(arguments, torch_logp.logp(arguments))
    return logp_result(arguments, _core.logp_forward(arguments))


def logp_backward(
    grad_output: Tensor | None,
    logits: Tensor,
    target: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    grad_entropy: Tensor | None = None,
    grad_lse: Tensor | None = None,
    stream: int | None = None,
) -> Tensor:
    """Gradient of `logp` for those without autograd; runs the forward once more.

    Args:
        grad_output: ``[...]``, the gradient of the loss with respect to the log-probs; None: 0.
        grad_entropy, grad_lse: ``[...]``, of the entropy and the log-sum-exp; None: 0.
        Others: as `logp`.

    Returns:
        The gradient of the logits, ``[..., V]`` of their dtype.

    Raises:
        rlk.InvalidArgument: as `logp`, and where all three gradients are None.

    Example:
        >>> grad = rlk.jit.logp_backward(-advantages, logits, tokens)

    The formula is that of `linear_logp_backward`'s dz.
    """
    return _core.logp_backward(locals())


def explain(arguments: Arguments, core: Any = _core) -> Any:
    """What `explain` says; `core`: as of autograd."""
    return core.logp_explain(arguments)
