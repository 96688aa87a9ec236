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
from ..oracle import Bounded, Expected
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
    sizes = ("vocab",)
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
        log_probs, far = (Bounded(x.logp, x.bound).spread(active) for x in (policy, ref))
        loss, outputs = bounded_grpo_loss(
            inputs, c, c_grad, log_probs, inputs["old_logps"], active, ref=far
        )

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            g = float(upstream["loss"].values())
            factor = Bounded(g * loss.grad.value[active], abs(g) * loss.grad.bound[active])
            exact = policy_gradient(case, rows, policy, active, factor, coefficients)
            return {"policy_logits": exact}

        return Expected(outputs, gradients)

    def with_inactive_rows(self, inputs: Inputs, before: int, after: int) -> Inputs:
        return with_inactive_sequences(self, inputs, before, after)

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        samples, groups = int(rng.integers(1, 7)), int(rng.integers(1, 5))
        sizes = {"length": int(rng.integers(1, 30)), "vocab": int(rng.integers(1, 300))}
        return (samples * groups,), sizes, {"samples": samples}

    def liveness(self, case: Case) -> list[Liveness]:
        return inputs_of.liveness(self, case)


def with_inactive_sequences(spec: OpSpec, inputs: Inputs, before: int, after: int) -> Inputs:
    """The same sequences, in groups of their own, with inactive ones of garbage around them."""
    rows, samples = inputs.num_rows, inputs["samples_per_prompt"]
    padded = inputs.rows(np.arange(-before, rows + after).clip(0, rows - 1))
    mask = spec.active_tokens(padded)
    mask[:before] = mask[before + rows :] = False
    groups = before + np.arange(0, rows + 1, samples)
    starts = np.unique([0, *groups, before + rows + after])
    padded = padded.but(
        completion_mask=of(mask, "bool"),
        samples_per_prompt=None,
        group_boundaries=of(starts, "int64"),
    )
    return spec.with_garbage(padded, ~mask, np.random.default_rng(0))


def bounded_grpo_loss(
    inputs: Inputs,
    c: Mapping[str, float],
    c_grad: Mapping[str, float],
    log_probs: Bounded,
    old: Stored,
    active: Array,
    **given: Any,
) -> tuple[loss_oracle.BoundedLoss, dict[str, Bounded]]:
    """The loss of log-probs, old ones and active tokens, with its outputs by name; `given`: as
    `bounded_ppo_loss` takes it."""
    own = {name: inputs[name] for name in loss_oracle.DEFAULTS.keys() & inputs.values.keys()}
    del own["group_boundaries"], own["samples_per_prompt"]  # of the advantages
    if inputs["clip_eps"] is not None:
        own |= dict.fromkeys(("eps_clip_low", "eps_clip_high"), inputs["clip_eps"])

    def loss(advantages: Array, **changed: Any) -> loss_oracle.BoundedLoss:
        operands = (log_probs, old.values(), advantages, active)
        options = {**own, **given, **changed}
        return loss_oracle.bounded_ppo_loss(c, c_grad, *operands, **options)

    advantages, beta = _advantages(inputs), inputs["beta"]
    whole = loss(advantages, kl_coef=beta)
    zero = Bounded(np.asarray(0.0), np.asarray(0.0))
    kl = loss(0.0 * advantages, kl_coef=1.0, entropy_coef=0.0).loss if beta != 0 else zero
    policy = loss(advantages, kl_coef=0.0, entropy_coef=0.0).loss
    return whole, {"loss": whole.loss, "policy_loss": policy, "kl": kl}


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
