# SPDX-License-Identifier: Apache-2.0
"""The losses from hidden states by their parts, written out with rlk.jit's ops, and the rule that
the bits are theirs. A call may be taken by chunks of rows, which carry sums and rows from one to
the next; its parts are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlk import jit

from ..candidates import Candidate
from ..case import Case, Inputs
from ..checks import Session, expect_same
from ..stored import Stored, of

#: MiB: several chunks of rows, the last one of fewer; all in one; the parts one by one.
WORKSPACES = (1, 100, 0)
#: What each is besides the head, its options and the tokens.
OPTIONS: Mapping[str, Mapping[str, Any]] = {"linear_cross_entropy": {"lse_square_scale": 1e-3}}
_LOGITS = ("bias", "temperature", "softcap", "logit_scale", "ignore_index")


def bits_of_parts(session: Session, case: Case) -> dict[str, Any]:
    """Outputs and gradients have the bits of linear_logp and ppo_loss in a row, whatever a chunk
    takes, for an upstream gradient of 1, which a forward by chunks expects, and for another."""
    spec, made = session.spec, session.candidate
    length = {"length": 150} if "length" in case.sizes else {}
    sizes = {**case.sizes, **length, "vocab": 1500, "hidden": 16}
    lead, options = (6,) if length else (6, 150), {"ignored": 0.3, **OPTIONS.get(spec.name, {})}
    inputs = spec.build(case.but(lead=lead, sizes=sizes, kind="random", options=options))
    if made.refuses(spec, inputs.but(workspace_mib=1)) or not made.differentiates:
        return {}
    parts = Candidate("parts", PARTS[spec.name], made.framework, spec.own_adapter)
    composed = Session(spec, parts, session.contract, session.arch)
    for g in (1.0, 0.37):
        upstream = {"loss": of(np.array(g), "float32")}
        want = _results(composed, inputs, upstream)
        for mib in WORKSPACES:
            got = _results(session, inputs.but(workspace_mib=mib), upstream)
            expect_same(want, got, "parts_variant", f"workspace_mib={mib}: other bits than parts")
    return {}


def _results(
    session: Session, inputs: Inputs, upstream: Mapping[str, Stored]
) -> Mapping[str, Stored]:
    outcome = session.gradient(inputs, upstream)
    return {**outcome.outputs, **outcome.gradients}


def _log_probs(given: dict[str, Any], mask: str) -> tuple[Any, Any, Any]:
    """Log-prob and log-sum-exp of the head, and the tokens that count; `given` keeps the others."""
    hidden, weight, target = (given.pop(name) for name in ("hidden", "weight", "target"))
    options: dict[str, Any] = {name: given.pop(name) for name in _LOGITS if name in given}
    options["mask"] = given.pop(mask, None)
    found = jit.linear_logp(hidden, weight, target, **options, return_lse=True)
    active = target != options.get("ignore_index", -100)
    if options["mask"] is not None:
        active = active & (options["mask"] != 0)
    return found.log_prob, found.lse, active


def _ppo(**given: Any) -> Any:
    log_probs, _, active = _log_probs(given, "loss_mask")
    return jit.ppo_loss(log_probs, loss_mask=active, **given)


def _grpo(**given: Any) -> Any:
    target = given["target"]
    log_probs, _, active = _log_probs(given, "completion_mask")
    ref_hidden, ref_weight = given["ref_hidden"], given["ref_weight"]
    ref_bias = given.get("ref_bias")
    ref_log_probs = jit.linear_logp(ref_hidden, ref_weight, target, ref_bias, mask=active)
    advantages = jit.group_advantages(
        given["rewards"], samples_per_prompt=given["samples_per_prompt"]
    )
    operands = log_probs, given["old_logps"], advantages.reshape(-1, 1), active
    beta = given.get("beta", 0.04)
    loss, metrics = jit.ppo_loss(*operands, ref_log_probs=ref_log_probs, kl_coef=beta)
    return loss, metrics.policy_loss, metrics.kl_loss


def _cross_entropy(**given: Any) -> Any:
    log_probs, lse, active = _log_probs(given, "mask")
    scores = log_probs - lse * lse * given["lse_square_scale"]
    ones = scores.new_ones((len(scores), 1))
    return jit.ppo_loss(scores, scores.detach(), ones, active, policy_loss="gpg").loss


PARTS = {
    "linear_ppo_loss": _ppo,
    "linear_grpo_loss": _grpo,
    "linear_cross_entropy": _cross_entropy,
}
