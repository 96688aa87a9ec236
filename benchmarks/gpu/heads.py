# SPDX-License-Identifier: Apache-2.0
"""What may stand between hidden states and the loss of training_step.py: heads by name."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import comparison
import torch

import rlk
from gpu import peers
from gpu.clock import said

EPS_CLIP, KL_COEF = 0.2, 0.001


class Batch(NamedTuple):
    """Tokens of sequences of one length, and what the loss wants to know of them."""

    ids: Any  #: [B, T]
    target: Any  #: [B, T]: the next token
    mask: Any  #: [B, T], bool: whether that is a token of the answer
    advantages: Any  #: [B]


@dataclass(frozen=True)
class Head:
    """What stands between hidden states [B, T, D] and the loss."""

    log_probs: Callable[..., Any]  #: (hidden, weight, batch) -> [B, T]
    loss: Callable[..., Any]  #: (hidden, weight, batch, old, ref) -> scalar


def clipped_loss(log_probs: Any, batch: Batch, old: Any, ref: Any) -> Any:
    """As PyTorch users write it: PPO's clip, k3, mean over the tokens of the mask."""
    advantages = batch.advantages[:, None]
    ratio = (log_probs - old).exp()
    clipped = ratio.clamp(1 - EPS_CLIP, 1 + EPS_CLIP)
    delta = ref - log_probs
    loss = KL_COEF * (delta.exp() - 1 - delta) - torch.min(ratio * advantages, clipped * advantages)
    return (loss * batch.mask).sum() / batch.mask.sum()


def by_rows(function: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """Of [B, T], by a function of rows."""

    def log_probs(hidden: Any, weight: Any, batch: Batch) -> Any:
        rows = function(hidden.flatten(0, 1), weight, batch.target.flatten())
        return rows.view(batch.target.shape)

    return log_probs


def parts(log_probs: Callable[..., Any]) -> Head:
    """Log-probs, then the loss in torch."""

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        return clipped_loss(log_probs(hidden, weight, batch), batch, old, ref)

    return Head(log_probs, loss)


def torch_eager() -> Head:
    return parts(by_rows(comparison.torch_logp))


def torch_compiled() -> Head:
    """Both functions compiled whole, from hidden states to the loss."""
    eager = torch_eager()
    compiled = functools.partial(torch.compile, dynamic=False)
    return Head(compiled(eager.log_probs), compiled(eager.loss))


def liger() -> Head:
    """Its loss from hidden states, a sequence a chunk; log-probs by the function inside of it."""
    module = importlib.import_module("liger_kernel.chunked_loss")
    options = {"epsilon_low": EPS_CLIP, "epsilon_high": EPS_CLIP, "beta": KL_COEF}
    function = module.LigerFusedLinearGRPOLoss(loss_type="bnpo", chunk_size=1, **options)

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        mask, advantages = batch.mask.float(), batch.advantages
        found = function(
            hidden,
            weight,
            batch.target,
            mask,
            advantages,
            ref_per_token_logps=ref,
            old_per_token_logps=old,
        )
        return found[0]

    return Head(by_rows(peers.liger_selective()), loss)


def rlk_log_probs(hidden: Any, weight: Any, batch: Batch) -> Any:
    return rlk.jit.linear_logp(hidden, weight, batch.target, mask=batch.mask)


def rlk_options(ref: Any) -> dict[str, Any]:
    clip = {"eps_clip_low": EPS_CLIP, "eps_clip_high": EPS_CLIP}
    return clip | {"ref_log_probs": ref, "kl_coef": KL_COEF, "kl_estimator": "k3"}


def rlk_apart() -> Head:
    """linear_logp, then ppo_loss."""

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        log_probs = rlk_log_probs(hidden, weight, batch)
        options = rlk_options(ref)
        return rlk.jit.ppo_loss(log_probs, old, batch.advantages, batch.mask, **options).loss

    return Head(rlk_log_probs, loss)


def rlk_fused() -> Head:
    """linear_ppo_loss."""

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        tokens = batch.target, old, batch.advantages, batch.mask
        return rlk.jit.linear_ppo_loss(hidden, weight, *tokens, **rlk_options(ref)).loss

    return Head(rlk_log_probs, loss)


MAKERS: dict[str, Callable[[], Head]] = {
    "torch eager": torch_eager,
    "torch.compile": torch_compiled,
    "Liger": liger,
    "verl": lambda: parts(by_rows(peers.verl())),
    "rlk": rlk_apart,
    "rlk linear_ppo_loss": rlk_fused,
}


def made(names: Iterable[str]) -> tuple[dict[str, Head], dict[str, str]]:
    """Heads by name, and which are not there."""
    comparison.function_named("torch.compile")  # no length falls back to eager in silence
    heads, absent = {}, {}
    for name in names:
        try:
            heads[name] = MAKERS[name]()
        except Exception as error:
            absent[name] = said(error)
    return heads, absent
