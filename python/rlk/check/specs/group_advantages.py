# SPDX-License-Identifier: Apache-2.0
"""group_advantages for the checker. A row is a group of rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case, Inputs, Liveness
from ..contract import Coefficients
from ..oracle import Bounded, Expected
from ..spec import Changes, OpSpec, RandomShape
from ..stored import of

# A value of an option that must show, and what else both calls say.
LIVE: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "dialect": ("rl_kernel", {}),
    "normalize": ("rloo", {}),
    "ddof": (0, {}),
    "eps": (0.5, {}),
    "eps_mode": ("max", {"eps": 0.5}),
    "group_of_one": ("reward", {"samples_per_prompt": 1}),
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
    row_inputs = ("rewards",)
    outputs = ("advantages",)
    grad_arguments: Mapping[str, str] = {}
    differentiable = ()
    row_outputs = ("advantages",)
    axes: Mapping[str, tuple[str, ...]] = {"advantages": ("sample",)}
    kinds = KINDS
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
    own_options = ("samples",)
    sizes = ()
    shapes: Sequence[Changes] = ({"lead": (5,)}, {"lead": (0,)}, {"lead": (3, 7)})
    specialized_shapes = shapes
    combinations: Sequence[Changes] = tuple(
        {"options": {**options, "samples": 45}} for options in option_sets[:4]
    )
    invariant: Sequence[Changes] = ({"lead": (130,)},)
    transforms = ("batch_size", "row_position", "micro_batches", "determinism")
    rlk_alone = OpSpec.rlk_alone | {"group_boundaries"}
    torch_reference = staticmethod(lambda **arguments: torch_group_advantages(**arguments))

    def draw(self, case: Case) -> dict[str, Any]:
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
        return {"rewards": rewards, "samples_per_prompt": samples}

    def output_shape(self, inputs: Inputs, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = inputs["rewards"].shape
        return shape

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        c = coefficients(self.op_class, case.dtype)
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
        return Expected({"advantages": Bounded(value, bound)}, lambda upstream: {})

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        return (int(rng.integers(0, 20)),), {}, {"samples": int(rng.integers(1, 70))}

    def liveness(self, case: Case) -> list[Liveness]:
        base = self.build(case.but(kind="random", options={"samples": 8}))
        pairs = {n: (base.but(**more), {n: value}) for n, (value, more) in LIVE.items()}
        count = base["rewards"].raw().size
        uneven = of(np.unique([*range(0, count, 5), count]), "int64")
        pairs["samples_per_prompt"] = base, {"samples_per_prompt": 4}
        pairs["group_boundaries"] = (
            base,
            {"samples_per_prompt": None, "group_boundaries": uneven},
        )
        return [Liveness(name, a, a.but(**change)) for name, (a, change) in pairs.items()]


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
    if normalize in ("loo_std", "rloo"):
        away = away * samples_per_prompt / max(samples_per_prompt - 1, 1)
    if normalize == "loo_std":
        others = [torch.cat((x[:, :j], x[:, j + 1 :]), 1) for j in range(samples_per_prompt)]
        std = torch.stack([rest.std(-1, correction=ddof) for rest in others], -1)
        std = torch.nan_to_num(std, nan=0.0, posinf=0.0)
        own = std + eps if eps_mode == "add" else std.clamp(min=eps)
        away = away / torch.where(std > 0, own, torch.ones_like(own))
    elif normalize == "std":
        std = x.std(-1, correction=ddof, keepdim=True)
        away = away / (std + eps if eps_mode == "add" else std.clamp(min=eps))
    return torch.nan_to_num(away, nan=0.0).reshape(rewards.shape)
