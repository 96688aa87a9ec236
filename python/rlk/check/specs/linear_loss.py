# SPDX-License-Identifier: Apache-2.0
"""The losses from hidden states for the checker: linear_logp's exact answers in ppo_loss's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import loss_oracle
from ..case import Case, Inputs, Liveness
from ..contract import Coefficients
from ..options import options_of
from ..oracle import (
    Bounded,
    Expected,
    LinearLogprob,
    LinearRows,
    linear_logprob,
    linear_logprob_gradients,
)
from ..spec import Changes, OpSpec, RandomShape
from ..stored import Stored, of
from . import group_advantages, linear_logp_inputs, linear_loss_parts
from . import linear_loss_inputs as inputs_of
from .group_advantages import torch_group_advantages
from .grpo_loss import bounded_grpo_loss, with_inactive_sequences
from .grpo_loss_inputs import samples_of
from .linear_logp import row_options, torch_active, torch_linear_logp
from .ppo_loss import WEIGHTS, PpoLoss, torch_ppo_loss
from .ppo_loss_inputs import GIVEN_WEIGHTS

HEAD = inputs_of.HEAD
#: Of a token each, by linear_ppo_loss's names.
OF_TOKENS = (
    *("hidden", "target", "temperature", "old_log_probs", "ref_hidden"),
    *("rollout_logprobs", "loss_weights", "importance_weights"),
)
#: A few: linear_logp is checked at the others.
UNEVEN = (2, 9, 1535, 1537, 50257)
#: What a candidate by name is called with besides the operands.
_OF_LOGITS = frozenset({"bias", "temperature", "softcap", "logit_scale", "ignore_index"})
_OF_PPO = _OF_LOGITS | {
    *("loss_mask", "eps_clip_low", "eps_clip_high", "use_dual_clip", "clip_ratio_c"),
    *("use_tis", "tis_imp_ratio_cap", "rollout_logprobs"),
}
_OF_GRPO = _OF_LOGITS | {
    *("completion_mask", "samples_per_prompt", "beta", "clip_eps"),
    *(f"ref_{name}" for name in HEAD),
}


def linear_shape(lead: tuple[int, ...], vocab: int, depth: int, **more: Any) -> Changes:
    return {"lead": lead, "sizes": {"vocab": vocab, "hidden": depth}, **more}


class LinearLoss(OpSpec):
    """What the three have in common."""

    op_class = "reduction"
    ids = "target"
    grad_arguments: Mapping[str, str] = {"loss": "grad_output"}
    differentiable = HEAD
    row_outputs: tuple[str, ...] = ("hidden",)
    kinds: Mapping[str, str] = inputs_of.KINDS
    own_options: tuple[str, ...] = ("bias", "mask", "target")

    def plain_options(self, kind: str) -> Sequence[Mapping[str, Any]]:
        return ({},) if linear_logp_inputs.needs_bias(kind) else ({}, {"bias": "none"})

    def dtype_of(self, case: Case, name: str) -> str:
        has_single = name == "bias" and case.options.get("bias") == "float32"
        return "float32" if has_single else super().dtype_of(case, name)

    def layout_of(self, case: Case, name: str) -> str:
        return linear_logp_inputs.layout(case, name)

    def vocab_of(self, inputs: Inputs) -> int:
        return int(inputs["weight"].shape[0])

    def head(
        self, inputs: Inputs, active: np.ndarray, c: Mapping[str, float], prefix: str = ""
    ) -> tuple[LinearRows, LinearLogprob]:
        """The active tokens of the policy, or of what `prefix` names, and what is exact of them."""
        bias = inputs[prefix + "bias"]
        rows = LinearRows(
            **row_options(inputs, active, "target"),
            hidden=inputs.active_rows(prefix + "hidden", active),
            weight=inputs[prefix + "weight"].values(),
            bias=None if bias is None else bias.values(),
        )
        return rows, linear_logprob(rows, c, inputs.values.get("entropy_coef", 0) != 0)

    def head_gradients(
        self,
        inputs: Inputs,
        rows: LinearRows,
        forward: LinearLogprob,
        upstream: Mapping[str, Bounded],
        coefficients: Coefficients,
    ) -> dict[str, Bounded]:
        """Of active rows and their sums, for bounded gradients of the outputs of linear_logp."""
        op_class = "linear_logprob_grad"
        store = {n: coefficients(op_class, inputs[n].dtype) for n in self.needs(inputs)}
        values = {name: one.value for name, one in upstream.items()}
        off = {name: one.bound for name, one in upstream.items()}
        return linear_logprob_gradients(rows, values, forward, store["hidden"], store, off)

    def laid_out(self, active: np.ndarray, found: Mapping[str, Bounded]) -> dict[str, Bounded]:
        """As the gradients are stored: those of hidden at their place among all tokens."""
        return {**found, "hidden": found["hidden"].spread(active)}

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        vocab = int(rng.choice([rng.integers(1, 40), rng.integers(1, 600)]))
        depth = int(rng.choice([rng.integers(1, 20), rng.integers(1, 200)]))
        lead = (int(rng.integers(1, 5)), int(rng.integers(0, 24)))
        return lead, {"vocab": vocab, "hidden": depth}, {}

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {"bits_of_parts": linear_loss_parts.bits_of_parts}


class LinearPolicyLoss(LinearLoss):
    """Of linear_ppo_loss and linear_grpo_loss: a token's derivative follows from ppo_loss."""

    def bounded_loss(
        self,
        inputs: Inputs,
        c: Mapping[str, float],
        c_grad: Mapping[str, float],
        log_probs: Bounded,
        active: np.ndarray,
        **given: Any,
    ) -> tuple[loss_oracle.BoundedLoss, Mapping[str, Bounded]]:
        """The loss of log-probs, and the outputs by name."""
        raise NotImplementedError

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        c = coefficients(self.op_class, case.dtype)
        c_grad = coefficients(self.op_class + "_grad", case.dtype)
        c_logp = coefficients("linear_logprob", case.dtype)
        active = self.active_tokens(inputs)
        rows, policy = self.head(inputs, active, c_logp)
        given: dict[str, Any] = {
            name: value.values() if isinstance(value, Stored) else value
            for name in ("rollout_logprobs", "cu_seqlens", *GIVEN_WEIGHTS)
            for value in (inputs[name],)
        }
        if inputs["ref_hidden"] is not None:
            _, ref = self.head(inputs, active, c_logp, "ref_")
            given["ref"] = Bounded(ref.logp, ref.bound).spread(active)
        if inputs["entropy_coef"] != 0:
            given["entropy"] = Bounded(policy.entropy, policy.entropy_bound).spread(active)
        log_probs = Bounded(policy.logp, policy.bound).spread(active)
        loss, outputs = self.bounded_loss(inputs, c, c_grad, log_probs, active, **given)

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            g = float(upstream["loss"].values()) * float(np.float32(inputs["grad_scale"]))
            of_tokens = {"logp": loss.grad}
            if inputs["entropy_coef"] != 0:
                of_tokens["entropy"] = loss.grad_entropy
            up = {
                name: Bounded(g * one.value[active], abs(g) * one.bound[active])
                for name, one in of_tokens.items()
            }
            found = self.head_gradients(inputs, rows, policy, up, coefficients)
            return self.laid_out(active, found)

        return Expected(outputs, gradients)


class LinearPpoLoss(LinearPolicyLoss):
    """ppo_loss of linear_logp. A row is a token."""

    name = "linear_ppo_loss"
    row_inputs = (*OF_TOKENS, "advantages", "loss_mask")
    mask = "loss_mask"
    float32_inputs = frozenset(
        {"old_log_probs", "advantages", "rollout_logprobs", "temperature", *GIVEN_WEIGHTS}
    )
    never_garbage = frozenset({"loss_weights"})
    outputs = ("loss", "clip_ratio")
    axes: Mapping[str, tuple[str, ...]] = {
        "hidden": ("hidden",),
        "weight": ("vocab", "hidden"),
        "bias": ("vocab",),
    }
    option_sets = (*inputs_of.OF_LOGITS, *inputs_of.OF_PPO)
    own_options = (*LinearLoss.own_options, *GIVEN_WEIGHTS)
    shapes: Sequence[Changes] = (
        linear_shape((4, 19), 257, 96),
        linear_shape((1, 1), 1, 1),
        linear_shape((3,), 17, 5),
        linear_shape((0,), 64, 32),
        linear_shape((2, 0), 64, 32),
        linear_shape((1, 129), 1000, 33),
        *(linear_shape((1, 3), vocab, 3) for vocab in UNEVEN),
        linear_shape((1, 2), 50257, 4, kind="flat"),
    )
    specialized_shapes = shapes[:1]
    specialized_most = 30
    combinations: Sequence[Changes] = (
        *({"kind": kind, "options": {"kl_coef": 0.1}} for kind in ("near", "far")),
        *({"kind": kind, "options": inputs_of.OF_PPO[-1]} for kind in inputs_of.KINDS),
        {"kind": "garbage", "layout": "strided"},
    )
    # With explicit weights: a token's own follows from the mask of all.
    invariant: Sequence[Changes] = (
        linear_shape((2, 65), 257, 96, options={**WEIGHTS, "bias": "none"}),
        linear_shape((2, 65), 130, 33, options={**WEIGHTS, **inputs_of.OF_PPO[-1], "mask": "bool"}),
    )
    torch_reference = staticmethod(lambda **arguments: torch_linear_ppo_loss(**arguments))
    outputs_from = staticmethod(PpoLoss.outputs_from)
    rlk_alone = frozenset(options_of(name)) - _OF_PPO

    def draw(self, case: Case) -> dict[str, Any]:
        return inputs_of.draw(case, bool(case.options.get("kl_coef")))

    def bounded_loss(
        self,
        inputs: Inputs,
        c: Mapping[str, float],
        c_grad: Mapping[str, float],
        log_probs: Bounded,
        active: np.ndarray,
        **given: Any,
    ) -> tuple[loss_oracle.BoundedLoss, Mapping[str, Bounded]]:
        options = {name: inputs[name] for name in loss_oracle.DEFAULTS}
        old, advantages = (inputs[name].values() for name in ("old_log_probs", "advantages"))
        operands = log_probs, old, advantages, active
        loss = loss_oracle.bounded_ppo_loss(c, c_grad, *operands, **{**options, **given})
        return loss, {"loss": loss.loss, "clip_ratio": loss.clip_ratio}

    def liveness(self, case: Case) -> list[Liveness]:
        six = case.but(lead=(6, 37))
        one = self.build(case.but(kind="random", lead=(222,)))
        one = one.but(loss_reduction="sequence_mean")
        starts = one.but(cu_seqlens=of(np.array([0, 100, 222]), "int64"))
        ref = inputs_of.ref_log_probs(self.build(six.but(kind="random")), "old_log_probs")
        return [
            *inputs_of.liveness(self, six, "old_log_probs", {"ignored": 0, "mask": "bool"}, ref),
            *inputs_of.live_reference(self, six, {"kl_coef": 0.3}),
            Liveness("cu_seqlens", one, starts, self.differentiable),
        ]


class LinearGrpoLoss(LinearPolicyLoss):
    """grpo_loss of linear_logp. A row is a sequence."""

    name = "linear_grpo_loss"
    row_inputs = (*OF_TOKENS, "old_logps", "rewards", "completion_mask")
    mask = "completion_mask"
    float32_inputs = frozenset({"old_logps", "rewards", "rollout_logprobs", "temperature"})
    never_garbage = frozenset({"rewards"})
    outputs = ("loss", "policy_loss", "kl")
    axes: Mapping[str, tuple[str, ...]] = {
        **LinearPpoLoss.axes,
        "hidden": ("token", "hidden"),
    }
    option_sets = (*inputs_of.OF_LOGITS, *inputs_of.OF_GRPO)
    own_options = (*LinearLoss.own_options, "samples")
    shapes: Sequence[Changes] = tuple(
        {"lead": (rows,), "sizes": {"length": length, "vocab": vocab, "hidden": depth}}
        for rows, length, vocab, depth in (
            (12, 7, 130, 33),
            (0, 5, 9, 4),
            (4, 0, 9, 4),
            (16, 33, 257, 96),
        )
    )
    specialized_shapes = shapes[:1]
    specialized_most = 20
    combinations: Sequence[Changes] = tuple(
        {"kind": kind, "options": {"beta": 0.5}} for kind in ("near", "far")
    )
    invariant: Sequence[Changes] = tuple(
        {"lead": (8,), "sizes": {"length": 7, "vocab": 130, "hidden": 33}, "kind": kind}
        for kind in ("random", "garbage")
    )
    # Rows of one group hang together: no subset or order of rows keeps theirs.
    transforms = ("padding", "determinism", "layout")
    torch_reference = staticmethod(lambda **arguments: torch_linear_grpo_loss(**arguments))
    rlk_alone = frozenset(options_of(name)) - _OF_GRPO

    def lead_of(self, case: Case) -> tuple[int, ...]:
        return case.lead[:1]  # a lead of two is sequences and tokens

    def draw(self, case: Case) -> dict[str, Any]:
        drawn = inputs_of.draw(case, case.options.get("beta", 0.04) != 0)
        given = {
            name: drawn.pop(old)
            for name, old in (("old_logps", "old_log_probs"), ("completion_mask", "loss_mask"))
        }
        (count, *_), rng = case.lead, case.rng("rewards")
        samples = samples_of(case)
        rewards = rng.normal(size=count)
        if case.kind in ("near", "constant"):
            rewards = np.repeat(rewards[::samples], samples)
        del drawn["advantages"]
        return {**drawn, **given, "rewards": rewards, "samples_per_prompt": samples}

    def bounded_loss(
        self,
        inputs: Inputs,
        c: Mapping[str, float],
        c_grad: Mapping[str, float],
        log_probs: Bounded,
        active: np.ndarray,
        **given: Any,
    ) -> tuple[loss_oracle.BoundedLoss, Mapping[str, Bounded]]:
        operands = log_probs, inputs["old_logps"], active
        return bounded_grpo_loss(inputs, c, c_grad, *operands, **given)

    def with_inactive_rows(self, inputs: Inputs, before: int, after: int) -> Inputs:
        return with_inactive_sequences(self, inputs, before, after)

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        samples, groups = int(rng.integers(1, 7)), int(rng.integers(1, 5))
        _, sizes, _ = super().random_shape(rng)
        sizes["length"] = int(rng.integers(1, 20))
        return (samples * groups,), sizes, {"samples": samples}

    def liveness(self, case: Case) -> list[Liveness]:
        sizes = {**case.sizes, "length": 37}
        six, options = case.but(lead=(6,), sizes=sizes), {"samples": 3}
        base = self.build(six.but(kind="random", options=options))
        ref = inputs_of.ref_log_probs(base, "old_logps")
        given = base.but(**ref)
        pairs = {
            "beta": (given, {"beta": 0.5}),
            "clip_eps": (given, {"clip_eps": 0.02}),
            "ref_logps": (base, ref),
        }
        for name, (value, more) in group_advantages.LIVE.items():
            pairs[name] = given.but(**more), {name: value}
        rows = {n: inputs_of.flat(base[n]) for n in base.row_names if n != "rewards"}
        starts = (range(0, 223, 37), (0, 1, 3, 6, 10, 20, 222))
        even, uneven = ({"cu_seqlens": of(np.array(one), "int64")} for one in starts)
        pairs["cu_seqlens"] = base.but(**rows, **even, loss_reduction="sequence_mean"), uneven
        return [
            *inputs_of.liveness(
                self, six, "old_logps", {**options, "ignored": 0, "mask": "bool"}, ref
            ),
            *inputs_of.live_reference(self, six, {**options, "beta": 0.3}),
            *(Liveness(n, a, a.but(**b), self.differentiable) for n, (a, b) in pairs.items()),
        ]


def torch_linear_ppo_loss(
    hidden: Any,
    weight: Any,
    target: Any,
    old_log_probs: Any,
    advantages: Any,
    loss_mask: Any = None,
    *,
    ignore_index: int | None = -100,
    **options: Any,
) -> Any:
    """F.linear, log_softmax and gather, then the clipped loss as PyTorch users write it."""
    logits = {name: options.pop(name) for name in _OF_LOGITS & options.keys()}
    active = torch_active(target, loss_mask, ignore_index)
    log_probs = torch_linear_logp(hidden, weight, target, mask=active, ignore_index=None, **logits)
    return torch_ppo_loss(log_probs, old_log_probs, advantages, active, **options)


def torch_linear_grpo_loss(
    hidden: Any,
    weight: Any,
    target: Any,
    old_logps: Any,
    rewards: Any,
    completion_mask: Any = None,
    *,
    samples_per_prompt: int,
    bias: Any = None,
    ref_hidden: Any = None,
    ref_weight: Any = None,
    ref_bias: Any = None,
    beta: float = 0.04,
    clip_eps: float = 0.2,
    ignore_index: int | None = -100,
    **logits: Any,
) -> Any:
    """The same of GRPO, with k3."""
    import torch

    mask = torch_active(target, completion_mask, ignore_index)

    def log_probs(hidden: Any, weight: Any, bias: Any) -> Any:
        given = {"mask": mask, "ignore_index": None, **logits}
        return torch_linear_logp(hidden, weight, target, bias, **given)

    own = log_probs(hidden, weight, bias)
    a = torch_group_advantages(rewards, samples_per_prompt).reshape(-1, 1)
    policy, _ = torch_ppo_loss(
        own, old_logps, a, mask, eps_clip_low=clip_eps, eps_clip_high=clip_eps
    )
    e = 0.0 * own
    if beta != 0:
        e = (log_probs(ref_hidden, ref_weight, ref_bias) - own).clamp(-20, 20)
    kl = ((torch.expm1(e) - e) * mask).sum() / mask.sum().clamp(min=1)
    return policy + beta * kl, policy.detach(), kl.detach()
