# SPDX-License-Identifier: Apache-2.0
"""grpo_loss for the checker. A row is a sequence; loss, policy loss and KL are sums over tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .. import loss_oracle
from ..case import Case, Inputs, Liveness
from ..contract import Coefficients
from ..oracle import Bounded, Expected, LinearLogprob
from ..spec import Changes, OpSpec, RandomShape
from ..stored import Stored, of
from . import grpo_loss_inputs as inputs_of
from .group_advantages import GroupAdvantages, torch_group_advantages
from .linear_logp import torch_active
from .linear_logp_inputs import FLAT, UNEVEN
from .logp import logit_oracle, policy_gradient, torch_logp
from .ppo_loss import torch_ppo_loss

Array = Any  # NumPy arrays


def _shape(rows: int, length: int, vocab: int, kind: str = "random") -> Changes:
    return {"lead": (rows,), "sizes": {"length": length, "vocab": vocab}, "kind": kind}


class GrpoLoss(OpSpec):
    """sum of w (max(-A r, -A clip(r)) + beta k), and its two terms."""

    name = "grpo_loss"
    op_class = "reduction"
    row_inputs = (
        "policy_logits",
        "ref_logits",
        "action_ids",
        "old_logps",
        "rewards",
        "completion_mask",
        "temperature",
    )
    ids, mask = "action_ids", "completion_mask"
    float32_inputs = frozenset({"old_logps", "rewards", "temperature"})
    never_garbage = frozenset({"rewards"})
    outputs = ("loss", "policy_loss", "kl")
    grad_arguments: Mapping[str, str] = {"loss": "grad_output"}
    differentiable = ("policy_logits",)
    row_outputs = ("policy_logits",)
    axes: Mapping[str, tuple[str, ...]] = {"policy_logits": ("token", "vocab")}
    kinds = inputs_of.KINDS
    option_sets = inputs_of.OPTION_SETS
    own_options = ("ignored", "samples", "mask")
    all_active: Mapping[str, Any] = {"mask": "none"}
    shapes: Sequence[Changes] = (
        _shape(12, 7, 130),
        _shape(0, 5, 9),
        _shape(4, 0, 9),
        _shape(16, 33, 257),
        *(_shape(4, 2, vocab) for vocab in UNEVEN),
        *(_shape(2, 1, vocab, "flat") for vocab, _ in FLAT),
    )
    specialized_shapes = shapes[:1]
    specialized_most = 20
    combinations: Sequence[Changes] = tuple(
        {"kind": kind, "options": {"beta": 0.5}} for kind in ("near", "far")
    )
    invariant: Sequence[Changes] = (_shape(8, 7, 130), _shape(8, 7, 130, "garbage"))
    # Rows of one group hang together: no subset or order of rows keeps theirs.
    transforms = ("padding", "determinism", "layout")
    rlk_alone = OpSpec.rlk_alone.union(loss_oracle.DEFAULTS, GroupAdvantages.defaults).difference(
        ("group_boundaries", "samples_per_prompt"), *inputs_of.OPTION_SETS
    )
    torch_reference = staticmethod(lambda **arguments: torch_grpo_loss(**arguments))

    def lead_of(self, case: Case) -> tuple[int, ...]:
        return case.lead[:1]  # a lead of two is sequences and tokens

    def draw(self, case: Case) -> dict[str, Any]:
        return inputs_of.draw(case)

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        c = coefficients(self.op_class, case.dtype)
        c_grad = coefficients(self.op_class + "_grad", case.dtype)
        c_logp = coefficients("logprob", case.dtype)
        active = self.active_tokens(inputs)
        rows, policy = logit_oracle(inputs, active, c_logp, "policy_logits", "action_ids")
        _, ref = logit_oracle(inputs, active, c_logp, "ref_logits", "action_ids")
        advantages = _advantages(inputs)

        def answer(a: Array, beta: float) -> tuple[loss_oracle.LossAnswer, Array, Bounded]:
            """In float64, how far its token gradients may be, and the loss with its bound."""
            found = [_loss(inputs, active, policy, ref, a, beta, side) for side in (0.0, 1.0, -1.0)]
            middle, *sides = found
            off = policy.bound + ref.bound
            off = np.where(np.isfinite(off), off, 0.0)
            slope = np.max([one.grad_scale[active] for one in found], axis=0)
            bend = np.sum([np.abs(one.grad - middle.grad) for one in sides], axis=0)
            bound = c["weight_sum_rtol"] * middle.abs_loss_sum + (slope * off).sum() + 2.0**-60
            value = Bounded(np.asarray(middle.loss), np.asarray(bound))
            return middle, bend, value

        with np.errstate(all="ignore"):
            beta = inputs["beta"]
            middle, bend, loss = answer(advantages, beta)
            zero = Bounded(np.asarray(0.0), np.asarray(0.0))
            outputs = {
                "loss": loss,
                "policy_loss": answer(advantages, 0.0)[2],
                "kl": answer(0.0 * advantages, 1.0)[2] if beta != 0 else zero,
            }
            bound = c_grad["rtol"] * middle.grad_scale + bend
            bound = np.where(middle.ties, np.inf, bound)

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            g = float(upstream["loss"].values())
            factor = Bounded(g * middle.grad[active], abs(g) * bound[active])
            exact = policy_gradient(case, rows, policy, active, factor, coefficients)
            return {"policy_logits": exact}

        return Expected(outputs, gradients)

    def with_inactive_rows(self, inputs: Inputs, before: int, after: int) -> Inputs:
        rows, samples = inputs.num_rows, inputs["samples_per_prompt"]
        padded = inputs.rows(np.arange(-before, rows + after).clip(0, rows - 1))
        mask = self.active_tokens(padded)
        mask[:before] = mask[before + rows :] = False
        groups = before + np.arange(0, rows + 1, samples)
        starts = np.unique([0, *groups, before + rows + after])
        padded = padded.but(
            completion_mask=of(mask, "bool"),
            samples_per_prompt=None,
            group_boundaries=of(starts, "int64"),
        )
        return self.with_garbage(padded, ~mask, np.random.default_rng(0))

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        samples, groups = int(rng.integers(1, 7)), int(rng.integers(1, 5))
        sizes = {"length": int(rng.integers(1, 30)), "vocab": int(rng.integers(1, 300))}
        return (samples * groups,), sizes, {"samples": samples}

    def liveness(self, case: Case) -> list[Liveness]:
        return inputs_of.liveness(self, case)


def _advantages(inputs: Inputs) -> Array:
    rewards, starts = inputs["rewards"].values(), inputs.values.get("group_boundaries")
    if starts is None:
        ends = np.arange(0, len(rewards) + 1, inputs["samples_per_prompt"])
    else:
        ends = starts.values().astype(np.int64)
    found = np.zeros(len(rewards))
    for first, last in pairwise(ends):
        x = rewards[first:last]
        if (x == x[0]).all():
            continue
        below = x.std(ddof=1) + 1e-6 if inputs["normalize"] == "std" else 1.0
        found[first:last] = (x - x.mean()) / below
    return found


def _loss(
    inputs: Inputs,
    active: Array,
    policy: LinearLogprob,
    ref: LinearLogprob,
    advantages: Array,
    beta: float,
    side: float,
) -> loss_oracle.LossAnswer:
    """With each log-prob as far off to one side as it may be."""
    full, far = np.zeros(active.shape), np.zeros(active.shape)
    full[active] = policy.logp + side * np.where(np.isfinite(policy.logp), policy.bound, 0.0)
    far[active] = ref.logp - side * np.where(np.isfinite(ref.logp), ref.bound, 0.0)
    o = {name: inputs[name] for name in loss_oracle.DEFAULTS.keys() & inputs.values.keys()}
    del o["group_boundaries"], o["samples_per_prompt"]  # of the advantages
    if inputs["clip_eps"] is not None:
        o |= dict.fromkeys(("eps_clip_low", "eps_clip_high"), inputs["clip_eps"])
    return loss_oracle.ppo_loss(
        full,
        inputs["old_logps"].values(),
        advantages,
        active,
        ref_log_probs=far,
        kl_coef=beta,
        **o,
    )


def torch_grpo_loss(
    policy_logits: Any,
    ref_logits: Any,
    action_ids: Any,
    old_logps: Any,
    rewards: Any,
    completion_mask: Any,
    samples_per_prompt: int,
    beta: float = 0.04,
    clip_eps: float = 0.2,
    temperature: float = 1.0,
) -> Any:
    """As PyTorch users write it: token mean, masked by multiplying."""
    import torch

    a = torch_group_advantages(rewards, samples_per_prompt).reshape(-1, 1)
    ids = action_ids.clamp(min=0)
    log_prob, ref = (
        torch_logp(x, ids, temperature=temperature) for x in (policy_logits, ref_logits)
    )
    mask = torch_active(action_ids, completion_mask).float()
    policy, _ = torch_ppo_loss(
        log_prob, old_logps, a, mask, eps_clip_low=clip_eps, eps_clip_high=clip_eps
    )
    e = (ref.detach() - log_prob).clamp(-20, 20)
    kl = ((torch.expm1(e) - e) * mask).sum() / mask.sum().clamp(min=1)
    return policy + beta * kl, policy.detach(), kl.detach()
