# SPDX-License-Identifier: Apache-2.0
"""The policy's log-probs and the gradient of its logits in one look at each row, on CUDA.

The bits of `logp`, `ppo_loss` and `logp`'s backward, in less traffic: a row stays on the chip from
its log-prob to its gradient, as far as it fits.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rlk import _core
from rlk._ops.common import Arguments, Tensor

if TYPE_CHECKING:
    from rlk._ops import ppo_loss
    from rlk._ops.grpo_loss import Call


def fits(call: Call) -> bool:
    """Whether a token's derivative follows from the token and what its sequence has beforehand, the
    tensors are what `look` takes, and the rows are many. What is wrong the parts tell."""
    torch: Any = sys.modules.get("torch")
    loss, logits, ids = call.loss, call.logp["logits"], call.logp["target"]
    if loss.options.rules.policy_loss == "gspo" or loss.options.needs_entropy:
        return False
    if loss.loss_weights is not None or torch is None:
        return False
    given = (loss.old_log_probs, loss.rollout_logprobs, call.ref_logps)
    tokens = [tensor for tensor in given if tensor is not None]
    starts = [] if loss.cu_seqlens is None else [loss.cu_seqlens]
    return (
        all(isinstance(tensor, torch.Tensor) for tensor in (logits, ids, *tokens, *starts))
        and logits.is_cuda
        and all(tensor.device == logits.device for tensor in (ids, *tokens, *starts))
        and all(tensor.shape == logits.shape[:-1] for tensor in (ids, *tokens))
        and all(tensor.is_floating_point() for tensor in tokens)
        and not any(tensor.is_floating_point() for tensor in starts)
        and _core.grpo_loss_fits(logits)
    )


def look(
    logp: Arguments, loss: ppo_loss.Call, stream: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(log_probs, row_max, row_log_sum, gradient of policy_logits); `loss` has all of ppo_loss's
    arguments but log_probs."""
    old = _dense(loss.old_log_probs)
    starts = loss.cu_seqlens
    dense = loss._replace(
        log_probs=old,  # their shape
        old_log_probs=old,
        rollout_logprobs=_dense(loss.rollout_logprobs),
        ref_log_probs=_dense(loss.ref_log_probs),
        cu_seqlens=None if starts is None else starts.long().contiguous(),
    )
    return _core.grpo_loss_forward(logp, dense, loss.options.core, stream)


def _dense(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().float().contiguous()
