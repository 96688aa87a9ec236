# SPDX-License-Identifier: Apache-2.0
"""Autograd around the parts of the losses from hidden states. Imported at the first call that
needs it."""

from __future__ import annotations

from typing import Any

import torch

from rlk._ops.common import Arguments
from rlk._ops.linear_logp import accumulator
from rlk._ops.linear_loss import HEAD


class _Scaled(torch.autograd.Function):
    """A loss whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, loss: Any, factor: Any) -> Any:
        ctx.factor = factor
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        factor = ctx.factor
        if isinstance(factor, torch.Tensor):
            factor = factor.to(upstream.dtype)
        return upstream * factor, None


def scaled(loss: Any, factor: Any) -> Any:
    """The loss, whose gradient is multiplied by a number or a tensor of no axis, in float32."""
    return _Scaled.apply(loss, factor)


class _MeanLogit(torch.autograd.Function):
    """The mean of each row's logits over the vocabulary, as a function of what they are made of:
    mean_j z_j = factor * (hidden . mean_j weight_j + mean_j bias_j)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Any,
        weight: Any,
        bias: Any,
        mean: Any,
        active: Any,
        factor: Any,
        into: Any,
    ) -> Any:
        ctx.save_for_backward(hidden, weight, bias, active)
        ctx.factor, ctx.into = factor, into
        return mean.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        hidden, weight, bias, active = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        rows = (upstream * ctx.factor / weight.shape[0])[..., None]
        if active is not None:  # others may hold anything
            rows = rows.masked_fill(~active[..., None], 0)
            hidden = hidden.masked_fill(~active[..., None], 0)
        of_hidden = of_weight = of_bias = None
        if needs_hidden:
            of_hidden = (rows * weight.sum(0, dtype=torch.float32)).to(hidden.dtype)
        if needs_weight:  # the same of each of its rows
            each = (rows * hidden).reshape(-1, hidden.shape[-1]).sum(0)
            if ctx.into is None:
                of_weight = each.to(weight.dtype).expand(weight.shape)
            else:
                ctx.into.add_(each)
        if needs_bias:
            of_bias = rows.sum().to(bias.dtype).expand(bias.shape)
        return of_hidden, of_weight, of_bias, None, None, None, None


def mean_logit(given: Arguments, mean: Any, active: Any) -> Any:
    """`mean`, which linear_logp has found of these arguments, with its gradient."""
    into = given["accumulate_into"]
    into = None if into is None else accumulator(given["weight"], into)
    factor = given["logit_scale"] / given["temperature"]
    return _MeanLogit.apply(*(given[name] for name in HEAD), mean, active, factor, into)
