# SPDX-License-Identifier: Apache-2.0
"""Log-probs from the hidden states of a model of Megatron Core, by its output layer.

    from rlk.integrations import megatron
    log_probs = megatron.linear_logp(model.output_layer, hidden, labels)

in place of the output layer and what reads its logits. The call does what ColumnParallelLinear does
besides the product: it gathers hidden of sequence parallel ranks, and reduces its gradient.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from rlk import jit
from rlk.errors import fail, renamed

__all__ = ["linear_logp"]

Tensor = Any
OP = "megatron.linear_logp"
#: What errors of the op call its arguments.
NAMES = {"target": "labels", "bias": "output_layer.bias"}
#: Attributes of the layer, or of its configuration, whose other values have no counterpart.
MUST_BE_OFF = (
    "disable_grad_reduce",
    "explicit_expert_comm",
    "config.defer_embedding_wgrad_compute",
)


def linear_logp(
    output_layer: Any,
    hidden: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    group: Any = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    return_stats: bool = False,
    saved_mib: int | None = None,
    entropy_grad: bool = False,
) -> Any:
    """Log-probs of labels from Megatron's hidden states; no logits are formed.

    A collective of the tensor parallel group, forward and backward.

    Args:
        output_layer: a ColumnParallelLinear (``model.output_layer``). Read of it: weight, bias
            (left out where ``skip_bias_add``, as GPTModel leaves it out), ``tp_group``,
            ``sequence_parallel``, ``gradient_accumulation_fusion``.
        hidden: ``[s, b, h]``, the same on every tensor parallel rank; where the layer is sequence
            parallel this rank's ``[s / ranks, b, h]``.
        labels: ``[b, s]``, ids of the whole vocabulary, padded ids included.
        weight: this rank's rows in the place of the layer's own: with tied embeddings
            ``model.shared_embedding_or_output_weight()``.
        group: the tensor parallel group; None: the layer's, else that of parallel_state.
        temperature, mask: as in `rlk.jit.linear_logp`, where they are tensors ``[b, s]``.
        softcap, logit_scale, ignore_index, saved_mib, entropy_grad: as in `rlk.jit.linear_logp`.
        return_entropy, return_lse, return_stats: as there.

    Returns:
        As `rlk.jit.linear_logp`, each tensor ``[b, s]`` and contiguous, on every rank. The gradient
        of hidden is reduced already, each rank's rows of it with sequence parallel. That of
        weight is added to ``weight.main_grad`` where gradient accumulation is fused and main_grad
        is float32; else autograd has it.

    Raises:
        rlk.InvalidArgument: as `rlk.jit.linear_logp`, and for a layer with
            ``disable_grad_reduce``, expert communication or ``defer_embedding_wgrad_compute``.

    Example:
        >>> log_probs = megatron.linear_logp(model.output_layer, hidden, labels, temperature=0.7)
    """
    for name in MUST_BE_OFF:
        value = output_layer
        for part in name.split("."):
            value = getattr(value, part, None)
        if value:
            fail(OP, f"output_layer.{name}", "False", value)
    if weight is None:
        weight = output_layer.weight
    if weight is None:
        fail(OP, "weight", "one where {output_layer} has none (tied embeddings)", "None")
    for name, value, axes in (("hidden", hidden, "[s, b, h]"), ("labels", labels, "[b, s]")):
        if value.ndim != axes.count(",") + 1:
            fail(OP, name, f"shape {axes}", list(value.shape))
    with renamed(OP, NAMES):
        found = jit.linear_logp(
            hidden,
            weight,
            _by_position(labels),
            None if getattr(output_layer, "skip_bias_add", False) else output_layer.bias,
            temperature=_by_position(temperature),
            softcap=softcap,
            logit_scale=logit_scale,
            mask=_by_position(mask),
            ignore_index=ignore_index,
            return_entropy=return_entropy,
            return_lse=return_lse,
            return_stats=return_stats,
            saved_mib=saved_mib,
            entropy_grad=entropy_grad,
            accumulate_into=_accumulator(output_layer, weight),
            group=_group(output_layer) if group is None else group,
            sequence_parallel=bool(output_layer.sequence_parallel),
        )
    return _by_sequence(found)


def _by_position(value: Any) -> Any:
    """``[s, b]`` of ``[b, s]``; numbers and None as they are."""
    return value.transpose(0, 1) if getattr(value, "ndim", 0) == 2 else value


def _by_sequence(found: Any) -> Any:
    """The same for results, whose tuples have None for what was not asked for."""
    if isinstance(found, tuple):
        return type(found)(*map(_by_sequence, found))
    return None if found is None else found.transpose(0, 1).contiguous()


def _group(output_layer: Any) -> Any:
    group = getattr(output_layer, "tp_group", None)
    if group is None:
        state = importlib.import_module("megatron.core.parallel_state")
        group = state.get_tensor_model_parallel_group()
    return group


def _accumulator(output_layer: Any, weight: Any) -> str | None:
    """Where Megatron's own backward would add the gradient of weight; a main_grad of another dtype
    gets it by Megatron's hook, which adds what autograd has."""
    if not getattr(output_layer, "gradient_accumulation_fusion", False):
        return None
    main_grad = getattr(weight, "main_grad", None)
    is_other = main_grad is not None and main_grad.dtype != torch.float32
    return "main_grad" if weight.requires_grad and not is_other else None
