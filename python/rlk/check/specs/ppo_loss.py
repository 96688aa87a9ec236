# SPDX-License-Identifier: Apache-2.0
"""ppo_loss for the checker. A row is a token; the loss and the clip ratio are sums over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlk._loss_options import SWITCHES, reads

from .. import loss_oracle
from ..case import Case, Inputs, Liveness, flat_rows
from ..checks import Session, expect_same
from ..contract import Coefficients
from ..frameworks import Failure
from ..oracle import Bounded, Expected
from ..spec import Adapter, Changes, OpSpec, RandomShape
from ..stored import Stored, of
from . import ppo_loss_inputs as inputs_of

OPERANDS = ("log_probs", "old_log_probs", "advantages", "loss_mask")
WEIGHTS = {"loss_weights": True}
EVERYTHING = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}


class PpoLoss(OpSpec):
    """sum of w (rho l + beta k) - w c_H H over active tokens, and the share of clipped ones."""

    name = "ppo_loss"
    op_class = "reduction"
    row_inputs = (*inputs_of.ROWS, "loss_mask", "loss_weights", "importance_weights")
    mask = "loss_mask"
    float32_inputs = frozenset({"loss_weights", "importance_weights"})
    never_garbage = frozenset({"loss_weights"})
    outputs = ("loss", "clip_ratio")
    grad_arguments: Mapping[str, str] = {"loss": "grad_output"}
    differentiable = ("log_probs", "entropy")
    row_outputs = ("log_probs", "entropy")
    axes: Mapping[str, tuple[str, ...]] = {}
    kinds = inputs_of.KINDS
    option_sets = inputs_of.OPTION_SETS
    own_options = ("mask", "loss_weights", "importance_weights")
    sizes = ()
    shapes: Sequence[Changes] = tuple(
        {"lead": lead} for lead in ((4, 19), (1, 1), (3,), (0,), (2, 0), (1, 4099), (130, 3))
    )
    specialized_shapes = shapes[:1]
    specialized_most = 42
    combinations: Sequence[Changes] = (
        *({"kind": kind, "options": {"kl_coef": 0.1}} for kind in ("near", "far")),
        *({"kind": kind, "options": EVERYTHING} for kind in inputs_of.KINDS),
    )
    # With explicit weights: a token's own follows from the mask of all.
    invariant: Sequence[Changes] = (
        {"lead": (2, 65), "options": WEIGHTS},
        {"lead": (2, 65), "options": {**WEIGHTS, **EVERYTHING}},
    )
    more_adapters: Mapping[str, Adapter] = {
        # SkyRL's order: (loss, clip_ratio) of plain arguments.
        "fused_ppo_loss": Adapter(
            lambda function, a: function(**a),
            frozenset(
                {
                    "loss_mask",
                    "eps_clip_low",
                    "eps_clip_high",
                    "use_dual_clip",
                    "clip_ratio_c",
                    "use_tis",
                    "rollout_logprobs",
                    "tis_imp_ratio_cap",
                }
            ),
        ),
    }
    torch_reference = staticmethod(lambda **arguments: torch_ppo_loss(**arguments))

    @staticmethod
    def outputs_from(result: Any) -> Any:
        """rlk's (loss, metrics) as (loss, clip_ratio)."""
        if isinstance(result, tuple) and len(result) == 2 and hasattr(result[1], "clip_ratio"):
            return result[0], result[1].clip_ratio
        return result

    def draw(self, case: Case) -> dict[str, Any]:
        return inputs_of.draw(case)

    def layout_of(self, case: Case, name: str) -> str:
        # Rows that share their memory cannot hold garbage of their own.
        is_shared = case.layout == "expanded" and case.kind == "garbage"
        return "contiguous" if is_shared else case.layout

    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        return self.differentiable if inputs["entropy_coef"] != 0 else ("log_probs",)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        off = {tensor for tensor in SWITCHES if not reads(inputs.values, tensor)}
        return {k: v for k, v in super().arguments(inputs).items() if k not in off}

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        c = coefficients(self.op_class, case.dtype)
        values = {k: v.values() if isinstance(v, Stored) else v for k, v in inputs.values.items()}
        operands = [values.pop(name) for name in OPERANDS]
        answer = loss_oracle.ppo_loss(*operands, **values)
        active = max(answer.counts["num_active"], 1)
        clipped = answer.counts["num_clip_high"] + answer.counts["num_clip_low"]
        slack = int(answer.ties.sum()) / active + 2.0**-23
        bound = c["weight_sum_rtol"] * answer.abs_loss_sum + 2.0**-70
        outputs = {
            "loss": Bounded(np.asarray(answer.loss), np.asarray(bound)),
            "clip_ratio": Bounded(np.asarray(clipped / active), np.asarray(slack)),
        }
        of_tokens = {
            "log_probs": (answer.grad, answer.grad_scale, answer.grad_lost),
            "entropy": (answer.grad_entropy, np.abs(answer.grad_entropy), 0.0),
        }

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            c, found = coefficients(self.op_class + "_grad", case.dtype), {}
            g = float(upstream["loss"].values())
            for name in self.needs(inputs):
                grad, scale, lost = of_tokens[name]
                exact = g * grad
                # fp16 has no numbers between 0 and 2^-24.
                size = np.where(np.isinf(exact), 0.0, np.abs(exact))
                bound = np.abs(g) * (c["rtol"] * scale + lost) + c["store_rtol"] * size
                bound = bound + np.where(exact != 0, c["store_atol"] + 2.0**-126, 0.0)
                found[name] = Bounded(exact, np.where(answer.ties, np.inf, bound))
            return found

        return Expected(outputs, gradients)

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        lead = (int(rng.integers(1, 9)), int(rng.integers(0, 70)))
        if rng.random() < 0.5:
            return lead, {}, {}
        return lead, {}, {"eps_clip_high": float(np.float32(rng.uniform(0.05, 0.6)))}

    def liveness(self, case: Case) -> list[Liveness]:
        def built(**options: Any) -> Inputs:
            return self.build(case.but(kind="random", lead=(6, 37), options=options))

        sequences = case.but(kind="random", lead=(222,), options=inputs_of.SEQUENCES)
        packed = self.build(sequences)
        starts = packed.but(cu_seqlens=of(np.array([0, 100, 222]), "int64"))
        pairs = inputs_of.liveness(self, built, "old_log_probs")
        return [*pairs, Liveness("cu_seqlens", packed, starts, self.differentiable)]

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {"ratio_one": ratio_one, "any_order": any_order}


def ratio_one(session: Session, case: Case) -> dict[str, Any]:
    """Where the policy is the old one, the loss is -sum of w A, and nothing is clipped."""
    spec = session.spec
    inputs = spec.build(case.but(kind="random", options={}))
    inputs = inputs.but(old_log_probs=inputs["log_probs"].clone())
    outputs = session.forward(inputs).outputs
    active = spec.active(inputs)
    a = flat_rows(inputs["advantages"], len(inputs.lead))
    advantages = inputs["advantages"].values().reshape(-1)[active] if a.size else np.zeros(1)
    want, scale = -advantages.mean(), np.abs(advantages).mean()
    got = float(outputs["loss"].values())
    if abs(got - want) > 4e-6 * scale:
        raise Failure("ratio_one", f"loss: expected {want:.9g}, got {got:.9g}")
    if float(outputs["clip_ratio"].values()) != 0:
        raise Failure("ratio_one", "clip_ratio: expected 0 where every ratio is 1")
    return {}


def any_order(session: Session, case: Case) -> dict[str, Any]:
    """The loss has the same bits whatever the order of the tokens: its sum is exact."""
    spec = session.spec
    inputs = spec.build(case.but(kind="random", lead=(257,), options={"loss_weights": True}))
    order = case.rng("order").permutation(inputs.num_rows)
    before, after = (session.forward(part).outputs for part in (inputs, inputs.rows(order)))
    expect_same(before, after, "batch_variant", "the tokens in another order")
    return {}


def torch_ppo_loss(
    log_probs: Any,
    old_log_probs: Any,
    advantages: Any,
    loss_mask: Any = None,
    *,
    eps_clip_low: float = 0.2,
    eps_clip_high: float = 0.2,
    use_dual_clip: bool = False,
    clip_ratio_c: float = 3.0,
    use_tis: bool = False,
    rollout_logprobs: Any = None,
    tis_imp_ratio_cap: float = 10.0,
) -> Any:
    """The clipped loss as PyTorch users write it: masked by multiplying, token mean."""
    import torch

    log_probs, old_log_probs, advantages = (
        x.float() for x in (log_probs, old_log_probs, advantages)
    )
    mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask.float()
    ratio = (log_probs - old_log_probs).clamp(-20, 20).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - eps_clip_low, 1 + eps_clip_high)
    loss = torch.maximum(plain, bounded)
    if use_dual_clip:
        least = torch.minimum(loss, -advantages * clip_ratio_c)
        loss = torch.where(advantages < 0, least, loss)
    if use_tis:
        weight = (old_log_probs - rollout_logprobs.float()).clamp(-20, 20).exp()
        loss = loss * weight.clamp(max=tis_imp_ratio_cap).detach()
    count = mask.sum().clamp(min=1)
    return (loss * mask).sum() / count, ((bounded > plain) * mask).sum() / count
