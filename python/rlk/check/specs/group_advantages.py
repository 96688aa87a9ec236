# SPDX-License-Identifier: Apache-2.0
"""group_advantages for the checker. A row is a group of rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlk._rules import advantage_rules

from ..case import Case, Inputs
from ..contract import Contract
from ..oracle import Bounded
from ..spec import Expected, Liveness, OpSpec, Rejected, parser_of
from ..stored import LAYOUTS, Stored, of

DEFAULTS: Mapping[str, Any] = vars(advantage_rules("rlk"))
# A value of an option that must show, and what else both calls say.
LIVE: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "dialect": ("rl_kernel", {}),
    "normalize": ("rloo", {}),
    "ddof": (0, {}),
    "eps": (0.5, {}),
    "eps_mode": ("max", {"eps": 0.5}),
}
KINDS = {
    "random": "normal rewards",
    "benchmark": "rewards of 0 and 1",
    "constant": "all rewards the same",
    "equal": "groups of equal rewards among others: exactly 0",
    "offset": "rewards of 1e-3 around 1000: one pass of fp32 keeps no digit",
    "one_nan": "a NaN, which makes its group NaN",
}


class GroupAdvantages(OpSpec):
    """(reward - mean of its group) / denominator."""

    name = "group_advantages"
    op_class = "advantages"
    outputs = ("advantages",)
    grad_arguments: Mapping[str, str] = {}
    differentiable = ()
    axes: Mapping[str, tuple[str, ...]] = {"advantages": ("sample",)}
    row_outputs = ("advantages",)
    kinds = KINDS
    adversarial = ("equal", "offset", "one_nan")
    forward_only = tuple(KINDS)
    option_sets: Sequence[Mapping[str, Any]] = (
        {},
        {"normalize": "center"},
        {"normalize": "rloo"},
        {"normalize": "loo_std"},
        {"ddof": 0, "eps_mode": "max"},
        {"eps": 1e-4},
        {"samples": 1},
        {"samples": 1, "group_of_one": "reward"},
    )
    option_values = {
        **{name: parser_of(name, default) for name, default in DEFAULTS.items()},
        "samples": int,
    }
    rlk_alone = OpSpec.rlk_alone | {"group_boundaries"}
    transforms = ("batch_size", "row_position", "micro_batches", "determinism")
    torch_reference = staticmethod(lambda **arguments: torch_group_advantages(**arguments))

    def build(self, case: Case) -> Inputs:
        rng, samples = case.rng("rewards"), int(case.options.get("samples", 8))
        shape = (*case.lead, samples)
        rewards = rng.normal(size=shape)
        if case.kind == "benchmark":
            rewards = (rng.random(shape) < 0.5).astype(float)
        if case.kind == "constant":
            rewards = np.full(shape, float(case.options.get("constant_value", 0.95)))
        if case.kind == "equal":
            rewards = np.where(rng.random((*case.lead, 1)) < 0.5, rewards[..., :1], rewards)
        if case.kind == "offset":
            rewards = 1000.0 + 1e-3 * rewards
        if case.kind == "one_nan" and rewards.size:
            rewards.reshape(-1)[0] = np.nan
        layout = "contiguous" if case.layout == "expanded" else case.layout
        given = {k: v for k, v in case.options.items() if k in DEFAULTS}
        values = {**DEFAULTS, **given, "rewards": of(rewards, case.dtype, layout)}
        return Inputs(values, case.lead, ("rewards",))

    def output_shape(self, inputs: Inputs, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = inputs["rewards"].shape
        return shape

    def upstream(self, case: Case, inputs: Inputs) -> Mapping[str, Stored]:
        return {}

    def active(self, inputs: Inputs) -> np.ndarray:
        return np.ones(inputs.num_rows, bool)

    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        return ()

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        found = {k: v for k, v in inputs.values.items() if DEFAULTS.get(k, None) != v}
        if "group_boundaries" not in found:
            found.setdefault("samples_per_prompt", inputs["rewards"].shape[-1])
        return found

    def expected(
        self, case: Case, inputs: Inputs, contract: Contract, arch: str | None
    ) -> Expected:
        c = contract.coefficients(self.op_class, case.dtype, arch)
        x = inputs["rewards"].values()
        count = x.shape[-1]
        eps = inputs["eps"]
        with np.errstate(all="ignore"):
            mean, std = _moments(x, inputs["normalize"], inputs["ddof"])
            own = std + eps if inputs["eps_mode"] == "add" else np.maximum(std, eps)
            below = {
                "std": own,
                "center": np.ones_like(std),
                "rloo": np.full_like(std, (count - 1) / count),
                "loo_std": np.where(std > 0, own, 1.0),
            }[inputs["normalize"]]
            equal = (x == x[..., :1]).all(-1, keepdims=True)
            value = np.where(equal, 0.0, (x - mean) / below)
            if count == 1 and inputs["group_of_one"] == "reward":
                value = x
            # What fp64 leaves of a difference of large numbers.
            rest = np.where(equal, 0.0, 1e-14 * np.abs(x).max(-1, keepdims=True) / below)
        bound = c["rtol"] * np.abs(value) + rest
        return Expected({"advantages": Bounded(value, bound)}, None)

    def expected_gradients(
        self,
        case: Case,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        forward: Expected,
        contract: Contract,
        arch: str | None,
    ) -> Mapping[str, Bounded]:
        return {}

    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        base = _case(dtype, (5,), seed=seed)
        found = [base.but(kind=kind) for kind in KINDS]
        found += [base.but(options=options) for options in self.option_sets[1:]]
        found += [base.but(options={**o, "samples": 45}) for o in self.option_sets[:4]]
        found += [base.but(layout=layout) for layout in LAYOUTS[1:]]
        return [*found, _case(dtype, (0,)), _case(dtype, (3, 7))]

    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        options = dict(self.option_sets[int(rng.integers(len(self.option_sets) - 2))])
        options["samples"] = int(rng.integers(1, 70))
        kind, layout = str(rng.choice(list(KINDS))), str(rng.choice(LAYOUTS))
        dtype = str(rng.choice(("float32", "float16", "bfloat16")))
        return _case(dtype, (int(rng.integers(0, 20)),), kind, layout, options, seed)

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        return [_case(dtype, (130,), seed=seed)]

    def liveness(self, case: Case) -> list[Liveness]:
        found = []
        for name, (value, more) in LIVE.items():
            base = self.build(case.but(kind="random", options={})).but(**more)
            found.append(Liveness(name, base, base.but(**{name: value})))
        base = self.build(case.but(kind="random", options={"samples": 8}))
        half = base.but(samples_per_prompt=4)
        count = base["rewards"].raw().size
        uneven = of(np.unique([*range(0, count, 5), count]), "int64")
        found.append(Liveness("samples_per_prompt", base, half))
        found.append(Liveness("group_boundaries", base, base.but(group_boundaries=uneven)))
        alone = self.build(case.but(kind="random", options={"samples": 1}))
        return [*found, Liveness("group_of_one", alone, alone.but(group_of_one="reward"))]

    def rejected(self, case: Case) -> list[Rejected]:
        return []


def _case(
    dtype: str,
    lead: tuple[int, ...],
    kind: str = "random",
    layout: str = "contiguous",
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Case:
    return Case("group_advantages", dtype, lead, {}, kind, layout, options or {}, seed)


def _moments(x: np.ndarray, normalize: str, ddof: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each row, or of what is left of it without each element: 0
    where that ties or is one."""
    count = x.shape[-1]
    if normalize != "loo_std" or count == 1:
        mean = x.mean(-1, keepdims=True)
        return mean, np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / max(count - ddof, 1))
    others = np.stack([np.delete(x, j, -1) for j in range(count)], -2)
    mean = others.mean(-1, keepdims=True)
    squares = ((others - mean) ** 2).sum(-1) / max(count - 1 - ddof, 1)
    ties = (others == others[..., :1]).all(-1)
    return mean[..., 0], np.sqrt(np.where(ties, 0.0, squares))


def torch_group_advantages(
    rewards: Any,
    samples_per_prompt: int,
    normalize: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    eps_mode: str = "add",
    group_of_one: str = "zero",
) -> Any:
    """As PyTorch users write it, in fp32: noise over eps where rewards are equal."""
    import torch

    x = rewards.float().reshape(-1, samples_per_prompt)
    if samples_per_prompt == 1 and group_of_one == "reward":
        return x.reshape(rewards.shape)
    away = x - x.mean(-1, keepdim=True)
    if normalize == "loo_std":
        away = away * samples_per_prompt / max(samples_per_prompt - 1, 1)
        others = [torch.cat((x[:, :j], x[:, j + 1 :]), 1) for j in range(samples_per_prompt)]
        std = torch.stack([rest.std(-1, correction=ddof) for rest in others], -1)
        std = torch.nan_to_num(std, nan=0.0, posinf=0.0)
        own = std + eps if eps_mode == "add" else std.clamp(min=eps)
        away = away / torch.where(std > 0, own, torch.ones_like(own))
    elif normalize == "rloo":
        away = away * samples_per_prompt / max(samples_per_prompt - 1, 1)
    elif normalize == "std":
        std = x.std(-1, correction=ddof, keepdim=True)
        away = away / (std + eps if eps_mode == "add" else std.clamp(min=eps))
    return torch.nan_to_num(away, nan=0.0).reshape(rewards.shape)
