# SPDX-License-Identifier: Apache-2.0
"""Which kernel a call of any op would run."""

from __future__ import annotations

import inspect
from typing import Any

from rlk._ops import (
    det_gemm,
    group_advantages,
    grpo_loss,
    linear_cross_entropy,
    linear_grpo_loss,
    linear_logp,
    linear_ppo_loss,
    logp,
    ppo_loss,
    ratio_kl,
)
from rlk._ops.common import SPREAD, Explanation, is_sharded, no_option, over_ranks
from rlk.errors import check_flag, fail, text

_MODULES = (
    linear_logp,
    logp,
    ratio_kl,
    grpo_loss,
    ppo_loss,
    group_advantages,
    det_gemm,
    linear_ppo_loss,
    linear_grpo_loss,
    linear_cross_entropy,
)
#: What each public function would run, by its arguments.
_EXPLAINED = {
    getattr(module, name): module.explain
    for module in _MODULES
    for name in (module.__name__.rpartition(".")[2],)
}
_EXPLAINED[det_gemm.linear] = det_gemm.explain_linear


def explain(op: Any, /, *arguments: Any, backward: bool = False, **options: Any) -> Explanation:
    """Which variant a call of an op would run, and why; nothing is compiled.

    With `group` no other rank takes part.

    Args:
        op: `linear_logp`, `logp`, `ratio_kl`, `grpo_loss`, `ppo_loss`, `group_advantages`,
            `linear_ppo_loss`, `linear_grpo_loss`, `linear_cross_entropy`, `det_gemm` or `linear`.
            Of the ops that are made of others, what makes or reads the policy's logits is
            explained.
        arguments, options: as that op takes them.
        backward: explain the backward in place of the forward: that of all outputs asked for.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as the call would.
        TypeError: arguments that the op does not take.

    Example:
        >>> print(rlk.jit.explain(rlk.jit.linear_logp, hidden, weight, tokens))
    """
    found = _EXPLAINED.get(op) if callable(op) else None
    if found is None:
        names = ", ".join(f"rlk.jit.{known.__name__}" for known in _EXPLAINED)
        fail("explain", "op", names, text(op) if not hasattr(op, "shape") else type(op).__name__)
    backward = check_flag(op.__name__, "backward", backward)
    signature = inspect.signature(op)
    for name in options:
        if name not in signature.parameters and "options" not in signature.parameters:
            raise no_option(op.__name__, name)
    bound = signature.bind_partial(*arguments, **options)
    bound.apply_defaults()
    # As the function's own locals; what is not looked at may be absent.
    absent = dict.fromkeys(signature.parameters)
    given = {**absent, **bound.arguments, "backward": backward}
    if "sequence_parallel" in given:
        given["sequence_parallel"] = check_flag(
            op.__name__, "sequence_parallel", given["sequence_parallel"]
        )
    if "vocab_size" in given:
        spread = [given.pop(name, False) for name in SPREAD]
        matrix = given["weight" if "weight" in given else "logits"]
        if any(spread) or spread[0] is not None or is_sharded(matrix):
            of = "linear_logp" if "weight" in given else "logp"
            return Explanation(*over_ranks(False).explain(of, found, given, *spread))
    return Explanation(*found(given))
