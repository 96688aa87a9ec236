# SPDX-License-Identifier: Apache-2.0
"""The policy's log-probs and the gradient of its logits in one look at each row, on CUDA.

The bits of `logp`, `ppo_loss` and `logp`'s backward, in less traffic: a row stays on the chip from
its log-prob to its gradient, as far as it fits.
"""

from __future__ import annotations

from rlk import _core
from rlk._ops import ppo_loss
from rlk._ops.common import Arguments, Tensor


def fits(logp: Arguments, ref_logps: Tensor | None, loss: ppo_loss.Call) -> bool:
    """Whether a token's derivative follows from the token and what its sequence has beforehand, the
    tensors are what `log_probs_and_gradient` takes, and the rows are many. What is wrong the parts
    tell."""
    torch = _core.ready_torch()
    logits, ids, of_loss = logp["logits"], logp["target"], loss.arguments
    rules = loss.options.rules
    if rules.ratio_level != "token" or rules.advantage_level != "token":
        return False
    if loss.options.needs_entropy or torch is None:
        return False
    if of_loss["loss_weights"] is not None or of_loss["importance_weights"] is not None:
        return False
    given = (of_loss["old_log_probs"], of_loss["rollout_logprobs"], ref_logps)
    tokens = [tensor for tensor in given if tensor is not None]
    starts = [] if of_loss["cu_seqlens"] is None else [of_loss["cu_seqlens"]]
    return (
        all(isinstance(tensor, torch.Tensor) for tensor in (logits, ids, *tokens, *starts))
        and logits.is_cuda
        and all(tensor.device == logits.device for tensor in (ids, *tokens, *starts))
        and all(tensor.shape == logits.shape[:-1] for tensor in (ids, *tokens))
        and all(tensor.is_floating_point() for tensor in tokens)
        and not any(tensor.is_floating_point() for tensor in starts)
        and _core.grpo_loss_fits(logits)
    )


def log_probs_and_gradient(
    logp: Arguments, loss: ppo_loss.Call
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(log_probs, row_max, row_log_sum, gradient of policy_logits); `loss` has all of ppo_loss's
    arguments but log_probs."""
    dense = {**loss.arguments}
    for name in ("old_log_probs", "rollout_logprobs", "ref_log_probs"):
        if dense[name] is not None:
            dense[name] = dense[name].detach().float().contiguous()
    dense["log_probs"] = dense["old_log_probs"]  # their shape
    if dense["cu_seqlens"] is not None:
        dense["cu_seqlens"] = dense["cu_seqlens"].long().contiguous()
    if loss.ranks is not None:
        from rlk._ops.torch_loss_ranks import counted

        dense = counted(dense, loss.options, loss.ranks)
        # Counts of this call, which need not be exchanged again.
        loss.arguments.update(pieces=dense["pieces"], totals=dense["totals"])
    return _core.grpo_loss_forward(logp, dense, loss.options.core)
