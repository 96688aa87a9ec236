# SPDX-License-Identifier: Apache-2.0
"""ppo_loss for the checker. A row is a token; the loss and the clip ratio are sums over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlk._loss_options import SWITCHES

from .. import loss_oracle
from ..case import Case, Inputs, flat_rows
from ..checks import Session, expect_same
from ..contract import Contract
from ..frameworks import Failure
from ..oracle import Bounded
from ..spec import Adapter, Expected, Liveness, OpSpec, Rejected
from ..stored import Stored, of
from . import ppo_loss_inputs as draw

DEFAULTS = loss_oracle.DEFAULTS
TENSORS = ("log_probs", "old_log_probs", "advantages", "loss_mask", "loss_weights")


class PpoLoss(OpSpec):
    """sum of w (rho l + beta k) - w c_H H over active tokens, and the share of clipped ones."""

    name = "ppo_loss"
    mask = "loss_mask"
    op_class = "reduction"
    outputs = ("loss", "clip_ratio")
    grad_arguments: Mapping[str, str] = {"loss": "grad_output"}
    differentiable = ("log_probs", "entropy")
    axes: Mapping[str, tuple[str, ...]] = {
        "loss": (),
        "clip_ratio": (),
        "log_probs": (),
        "entropy": (),
    }
    row_outputs = ("log_probs", "entropy")
    kinds = draw.KINDS
    adversarial = draw.ADVERSARIAL
    option_sets = draw.OPTION_SETS
    option_values = draw.OPTION_VALUES
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

    def build(self, case: Case) -> Inputs:
        return draw.build(case)

    def upstream(self, case: Case, inputs: Inputs) -> Mapping[str, Stored]:
        return {"loss": of(np.asarray(case.rng("upstream").normal()), "float32")}

    def output_shape(self, inputs: Inputs, name: str) -> tuple[int, ...]:
        return ()

    def active(self, inputs: Inputs) -> np.ndarray:
        if inputs["loss_mask"] is None:
            return np.ones(inputs.num_rows, bool)
        return np.asarray(flat_rows(inputs["loss_mask"], len(inputs.lead)) != 0)

    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        return self.differentiable if inputs["entropy_coef"] != 0 else ("log_probs",)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        found = {k: v for k, v in super().arguments(inputs).items() if v is not None}
        for tensor, switch in SWITCHES.items():
            if not inputs[switch]:
                found.pop(tensor, None)
        return found

    def expected(
        self, case: Case, inputs: Inputs, contract: Contract, arch: str | None
    ) -> Expected:
        c = contract.coefficients(self.op_class, case.dtype, arch)
        answer = _answer(inputs)
        active = max(answer.counts["num_active"], 1)
        clipped = answer.counts["num_clip_high"] + answer.counts["num_clip_low"]
        slack = int(answer.ties.sum()) / active + 2.0**-23
        bound = c["weight_sum_rtol"] * answer.abs_loss_sum + 2.0**-70
        outputs = {
            "loss": Bounded(np.asarray(answer.loss), np.asarray(bound)),
            "clip_ratio": Bounded(np.asarray(clipped / active), np.asarray(slack)),
        }
        return Expected(outputs, answer)

    def expected_gradients(
        self,
        case: Case,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        forward: Expected,
        contract: Contract,
        arch: str | None,
    ) -> Mapping[str, Bounded]:
        answer: loss_oracle.LossAnswer = forward.state
        c = contract.coefficients(self.op_class + "_grad", case.dtype, arch)
        g = float(upstream["loss"].values())
        exact = {"log_probs": g * answer.grad, "entropy": g * answer.grad_entropy}
        scale = {"log_probs": answer.grad_scale, "entropy": np.abs(answer.grad_entropy)}
        found = {}
        for name in self.needs(inputs):
            if case.dtype == "float16":
                exact[name] = np.where(
                    np.abs(exact[name]) >= 65520, np.copysign(np.inf, exact[name]), exact[name]
                )
            # fp16 has no numbers between 0 and 2^-24.
            size = np.where(np.isinf(exact[name]), 0.0, np.abs(exact[name]))
            bound = c["rtol"] * np.abs(g) * scale[name] + c["store_rtol"] * size
            bound = bound + np.where(exact[name] != 0, c["store_atol"] + 2.0**-126, 0.0)
            found[name] = Bounded(exact[name], np.where(answer.ties, np.inf, bound))
        return found

    def with_garbage(self, inputs: Inputs, where: np.ndarray, rng: np.random.Generator) -> Inputs:
        return draw.with_garbage(inputs, where, rng)

    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        return draw.suite(dtype, specialized, seed)

    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        return draw.random_case(rng, seed)

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        """With explicit weights: a token's own follows from the mask of all."""
        plain = {"loss_weights": True}
        full = {**plain, "use_dual_clip": True, "use_tis": True, "kl_coef": 0.1}
        return [
            draw.case(dtype, (2, 65), seed=seed, options=plain),
            draw.case(dtype, (2, 65), seed=seed, options={**full, "entropy_coef": 0.02}),
        ]

    def liveness(self, case: Case) -> list[Liveness]:
        def built(**options: Any) -> Inputs:
            return self.build(case.but(kind="random", lead=(6, 37), options=options))

        packed = self.build(case.but(kind="random", lead=(222,), options=draw.SEQUENCES))
        starts = packed.but(cu_seqlens=of(np.array([0, 100, 222]), "int64"))
        pairs = draw.liveness(self, built, "old_log_probs")
        return [*pairs, Liveness("cu_seqlens", packed, starts, self.differentiable)]

    def rejected(self, case: Case) -> list[Rejected]:
        return []

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


def _answer(inputs: Inputs) -> loss_oracle.LossAnswer:
    values = {k: v.values() if isinstance(v, Stored) else v for k, v in inputs.values.items()}
    first = [values.pop(name) for name in TENSORS[:4]]
    return loss_oracle.ppo_loss(*first, **values)


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
