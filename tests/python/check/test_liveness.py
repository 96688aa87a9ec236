# SPDX-License-Identifier: Apache-2.0
"""Each option of each op has a case in which rlk-check wants it to show."""

from __future__ import annotations

import pytest

from rlk import _core
from rlk._ops.explain import _EXPLAINED
from rlk.check.specs import SPECS

# Options that change memory, and no value; that add outputs, and change none; a type; an adapter,
# which makes a call with another hidden and weight of it; and what spreads a call over ranks.
SPREAD = {"group", "vocab_range", "vocab_size"}
OF_HEAD = {*SPREAD, *("saved_mib", "accumulate_into", "compute_dtype", "lora", "sequence_parallel")}
OF_LOSS = {*OF_HEAD, "workspace_mib", "loss_group"}
NOT_SHOWN = {
    "linear_logp": {*OF_HEAD, *("return_stats", "entropy_grad")},
    "linear_ppo_loss": {*OF_LOSS, "context_group"},
    "linear_grpo_loss": {*OF_LOSS, "context_group"},
    "linear_cross_entropy": OF_LOSS,
    "logp": {"inplace_backward", "return_stats", *SPREAD},
    "det_gemm": {"out_dtype"},
    "ppo_loss": {"loss_group", "context_group"},
    "grpo_loss": {"loss_group", "context_group"},
}


@pytest.mark.parametrize("op", SPECS)
def test_every_option_has_a_case(op: str) -> None:
    spec = SPECS[op]
    found = {pair.option for pair in spec.liveness(spec.suite("float32", True, 0)[0])}
    own = _core.parameters(op) if op in _core.ops() else ()  # the others are made of these
    parameters = {name for name, kind, _ in own if kind != "tensor"}
    assert parameters.union(spec.defaults) - NOT_SHOWN.get(op, set()) <= found


def test_the_table_has_every_op() -> None:
    public = {op.__name__ for op in _EXPLAINED} - {"linear"}  # det_gemm, for torch
    assert set(SPECS) == public
    assert set(_core.ops()) <= public
