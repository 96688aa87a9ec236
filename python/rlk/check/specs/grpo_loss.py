# SPDX-License-Identifier: Apache-2.0
"""grpo_loss for the checker. A row is a sequence; loss, policy loss and KL are sums over tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from .. import loss_oracle
from ..case import Case, Inputs
from ..contract import Contract
from ..oracle import Bounded, LinearLogprob, LogitRows, linear_logprob
from ..spec import Expected, Liveness, OpSpec, Rejected, options_of, parser_of
from ..stored import LAYOUTS, Stored, encode, of, of_raw
from . import group_advantages, ppo_loss_inputs
from . import linear_logp_inputs as logits
from .linear_logp import wild_ids
from .logp import torch_logp
from .ratio_kl import logits_gradient

Array = Any  # NumPy arrays
ROWS = ("policy_logits", "ref_logits", "action_ids", "old_logps", "rewards", "completion_mask")
KINDS = {
    "random": "log-ratios of standard deviation 0.3, ragged masks",
    "benchmark": "log-ratios of standard deviation 0.1",
    "constant": "every logit and reward the same",
    "near": "equal rewards, references of 1e-4 away: a loss of k3 of 1e-9",
    "far": "log-ratios and distances to the reference of hundreds, beyond every clamp",
    "garbage": "NaN, infinities and wild ids in inactive tokens",
    "nan_token": "a NaN in one active token",
    "none_active": "no active token",
    "equal": "groups of equal rewards",
}
OPTION_SETS: tuple[dict[str, Any], ...] = (
    {},
    {"mask": "none"},
    {"mask": "float32", "beta": 0.0},
    {"beta": 0.5, "clip_eps": 0.1},
    {"beta": 0.5, "kl_estimator": "k1", "mask": "int64"},
    {"beta": 0.5, "kl_estimator": "k2", "loss_reduction": "sequence_mean"},
    {"beta": 0.5, "kl_gradient": "unbiased"},
    {"use_dual_clip": True, "normalize": "center"},
    {"temperature": 0.7, "softcap": 3.0, "logit_scale": 0.5},
    {"samples": 6, "loss_reduction": "token_sum"},
    {"ignored": 0.3},
)


@dataclass(frozen=True)
class Tokens:
    """What the gradient goes on with, over active tokens."""

    rows: LogitRows
    policy: LinearLogprob
    active: Array
    factor: Bounded  # of the log-probs, for an upstream of 1


class GrpoLoss(OpSpec):
    """sum of w (max(-A r, -A clip(r)) + beta k), and its two terms."""

    name = "grpo_loss"
    mask = "completion_mask"
    op_class = "reduction"
    outputs = ("loss", "policy_loss", "kl")
    grad_arguments: Mapping[str, str] = {"loss": "grad_output"}
    differentiable = ("policy_logits",)
    axes: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(outputs, ()),
        "policy_logits": ("token", "vocab"),
    }
    row_outputs = ("policy_logits",)
    kinds = KINDS
    adversarial = tuple(kind for kind in KINDS if kind not in ("random", "benchmark", "constant"))
    option_sets = OPTION_SETS
    option_values: Mapping[str, Callable[[str], Any]] = {
        **{name: parser_of(name, value) for name, value in options_of("grpo_loss").items()},
        "ignored": float,
        "samples": int,
        "mask": str,
    }
    rlk_alone = OpSpec.rlk_alone.union(loss_oracle.DEFAULTS, group_advantages.DEFAULTS).difference(
        ("group_boundaries", "samples_per_prompt"), *OPTION_SETS
    )
    # Rows of one group hang together: no subset or order of rows keeps theirs.
    transforms = ("padding", "determinism", "layout")
    torch_reference = staticmethod(lambda **arguments: torch_grpo_loss(**arguments))

    def build(self, case: Case) -> Inputs:
        rng, o = case.rng("tokens"), case.options
        vocab = case.sizes["vocab"]
        lead = case.lead[:1]  # a lead of two is sequences and tokens
        tokens = case.lead if len(case.lead) == 2 else (*lead, case.sizes.get("length", 7))
        spread = {"benchmark": 0.1, "near": 1e-4}.get(case.kind, 0.3)
        policy = 2.0 * rng.normal(size=(*tokens, vocab))
        ref = policy + spread * rng.normal(size=policy.shape)
        rewards = rng.normal(size=lead)
        if case.kind == "constant":
            value = float(o.get("constant_value", 0.5))
            policy, ref, rewards = (np.full_like(x, value) for x in (policy, ref, rewards))
        samples = int(o.get("samples", 4 if lead[0] % 4 == 0 else lead[0]))
        if case.kind in ("near", "equal"):
            rewards = np.repeat(rewards[::samples], samples)
        ids = rng.integers(0, vocab, tokens)
        log_probs = np.take_along_axis(_log_softmax(policy), ids[..., None], -1)[..., 0]
        old = log_probs + spread * rng.normal(size=tokens)
        if case.kind == "far":
            old = old - rng.choice([0.0, 19.0, -19.0, 25.0, -25.0, 1e3, -1e3], tokens)
            ref = ref + np.where(np.arange(vocab) % 3 == 0, 300.0, 0.0)
        ids = np.where(rng.random(tokens) < o.get("ignored", 0.0), -100, ids)
        mask = rng.random(tokens) < 0.8
        if mask.size > 1:
            mask.reshape(-1)[[0, -1]] = True, False
        if case.kind == "none_active":
            mask = np.zeros(tokens, bool)
        if case.kind == "nan_token" and mask.size:
            mask.reshape(-1)[0] = True
            ids.reshape(-1)[0] = 0
            policy.reshape(-1)[0] = np.nan
        layout = "contiguous" if case.layout == "expanded" else case.layout
        stored: dict[str, Any] = {k: o.get(k, v) for k, v in self.defaults.items()}
        stored |= {
            "policy_logits": of(policy, case.dtype, layout),
            "ref_logits": of(ref, case.dtype, layout),
            "action_ids": of(ids, "int64", layout),
            "old_logps": of(old, "float32", layout),
            "rewards": of(rewards, "float32", layout),
            "samples_per_prompt": samples,
            "completion_mask": None,
        }
        if o.get("mask") != "none" or case.kind == "none_active":
            kind = str(o.get("mask", "bool"))
            stored["completion_mask"] = of(mask, kind if kind != "none" else "bool", layout)
        names = tuple(name for name in ROWS if stored[name] is not None)
        inputs = Inputs(stored, lead, names)
        if case.kind == "garbage":
            return _with_garbage(inputs, ~_active_tokens(inputs), case.rng("garbage"))
        return inputs

    def upstream(self, case: Case, inputs: Inputs) -> Mapping[str, Stored]:
        return {"loss": of(np.asarray(case.rng("upstream").normal()), "float32")}

    def output_shape(self, inputs: Inputs, name: str) -> tuple[int, ...]:
        return ()

    def active(self, inputs: Inputs) -> np.ndarray:
        return np.asarray(_active_tokens(inputs).any(-1))

    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        return self.differentiable

    def expected(
        self, case: Case, inputs: Inputs, contract: Contract, arch: str | None
    ) -> Expected:
        c = contract.coefficients(self.op_class, case.dtype, arch)
        c_logp = contract.coefficients("logprob", case.dtype, arch)
        active = _active_tokens(inputs)
        rows, policy = _log_probs(inputs, "policy_logits", active, c_logp)
        _, ref = _log_probs(inputs, "ref_logits", active, c_logp)
        advantages = _advantages(inputs)

        def answer(a: Array, beta: float) -> tuple[loss_oracle.LossAnswer, Array, Bounded]:
            """In float64, how far its token gradients may be, and the loss with its bound."""
            found = [_loss(inputs, active, policy, ref, a, beta, side) for side in (0.0, 1.0, -1.0)]
            middle, *sides = found
            off = _spread(policy.bound + ref.bound, active)
            slope = np.max([one.grad_scale for one in found], axis=0)
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
            grad_c = contract.coefficients(self.op_class + "_grad", case.dtype, arch)
            bound = grad_c["rtol"] * middle.grad_scale + bend
            bound = np.where(middle.ties, np.inf, bound)
        factor = Bounded(middle.grad[active], bound[active])
        return Expected(outputs, Tokens(rows, policy, active.reshape(-1), factor))

    def expected_gradients(
        self,
        case: Case,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        forward: Expected,
        contract: Contract,
        arch: str | None,
    ) -> Mapping[str, Bounded]:
        t: Tokens = forward.state
        g = float(upstream["loss"].values())
        factor = Bounded(g * t.factor.value, abs(g) * t.factor.bound)
        exact = logits_gradient(case, inputs, t.rows, t.policy, t.active, factor, contract, arch)
        return {"policy_logits": exact}

    def with_inactive_rows(self, inputs: Inputs, before: int, after: int) -> Inputs:
        rows, samples = inputs.num_rows, inputs["samples_per_prompt"]
        padded = inputs.rows(np.arange(-before, rows + after).clip(0, rows - 1))
        mask = _active_tokens(padded)
        mask[:before] = mask[before + rows :] = False
        groups = before + np.arange(0, rows + 1, samples)
        starts = np.unique([0, *groups, before + rows + after])
        padded = padded.but(
            completion_mask=of(mask, "bool"),
            samples_per_prompt=None,
            group_boundaries=of(starts, "int64"),
        )
        return _with_garbage(padded, ~mask, np.random.default_rng(0))

    def scrambled(self, inputs: Inputs, rng: np.random.Generator) -> Inputs:
        return _with_garbage(inputs, ~_active_tokens(inputs), rng)

    def without_skipping(self, inputs: Inputs) -> Inputs:
        return inputs

    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        base = _case(dtype, 8, 7, 130, seed)
        found = [base.but(kind=kind) for kind in KINDS]
        found += [
            base.but(options=options) for options in OPTION_SETS[1:] if "samples" not in options
        ]
        found += [base.but(kind=kind, options={"beta": 0.5}) for kind in ("near", "far")]
        found += [base.but(layout=layout) for layout in LAYOUTS[1:]]
        found.append(base.but(lead=(12,), options=OPTION_SETS[9]))
        sizes = ((4, 1, 1), (4, 3, 2), (0, 5, 9), (4, 0, 9), (16, 33, 257))
        return found[:16] if specialized else found + [_case(dtype, *s, seed) for s in sizes]

    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        samples, groups = int(rng.integers(1, 7)), int(rng.integers(1, 5))
        options = {**OPTION_SETS[int(rng.integers(len(OPTION_SETS)))], "samples": samples}
        dtype = str(rng.choice(("float32", "float16", "bfloat16")))
        case = _case(dtype, samples * groups, int(rng.integers(1, 30)), int(rng.integers(1, 300)))
        kind, layout = str(rng.choice(list(KINDS))), str(rng.choice(LAYOUTS))
        return case.but(kind=kind, layout=layout, options=options, seed=seed)

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        return [_case(dtype, 8, 7, 130, seed), _case(dtype, 8, 7, 130, seed).but(kind="garbage")]

    def liveness(self, case: Case) -> list[Liveness]:
        sizes = {**case.sizes, "length": 40}
        base = self.build(case.but(kind="random", lead=(6,), sizes=sizes, options={"samples": 3}))
        old, shape = base["old_logps"].values(), base["action_ids"].shape
        noise = 0.3 * case.rng("rollout").normal(size=shape)
        base = base.but(rollout_logprobs=of(old + noise, "float32"))

        def built(**options: Any) -> Inputs:
            return base.but(**{{"kl_coef": "beta"}.get(k, k): v for k, v in options.items()})

        odd = of(np.arange(old.size).reshape(shape) % 2, "bool")
        own: dict[str, dict[str, Any]] = {
            "beta": {"beta": 0.5},
            "clip_eps": {"clip_eps": 0.02},
            "completion_mask": {"completion_mask": odd},
            "ignore_index": {"ignore_index": int(base["action_ids"].raw()[0, 0])},
            "ref_logps": {"ref_logits": None, "ref_logps": of(old + 1.0, "float32")},
            **{name: {name: value} for name, value in logits.LIVE.items()},
        }
        pairs = {name: (base, change) for name, change in own.items()}
        for name, (value, more) in group_advantages.LIVE.items():
            pairs[name] = base.but(**more), {name: value}
        pairs["group_of_one"] = base.but(samples_per_prompt=1), {"group_of_one": "reward"}
        packed = base.but(
            loss_reduction="sequence_mean",
            **{n: _flat(base[n]) for n in ROWS if n != "rewards"},
            rollout_logprobs=None,
        )
        even, uneven = (
            of(np.array(starts), "int64")
            for starts in (range(0, old.size + 1, shape[1]), [0, 1, 3, 6, 10, 20, old.size])
        )
        pairs["cu_seqlens"] = packed.but(cu_seqlens=even), {"cu_seqlens": uneven}
        return [
            *ppo_loss_inputs.liveness(self, built, "old_logps"),
            *(Liveness(n, a, a.but(**b), self.differentiable) for n, (a, b) in pairs.items()),
        ]

    def rejected(self, case: Case) -> list[Rejected]:
        base = self.build(case.but(kind="random", options={"mask": "none"}))
        bad = wild_ids(base, "action_ids", case.sizes["vocab"])
        return [replace(one, row=0) for one in bad]  # outputs are one number each


def _case(dtype: str, rows: int, length: int, vocab: int, seed: int = 0) -> Case:
    return Case("grpo_loss", dtype, (rows,), {"length": length, "vocab": vocab}, seed=seed)


def _flat(tokens: Stored) -> Stored:
    """Tokens [B, T, ...] as [B * T, ...]."""
    raw = tokens.raw()
    return of_raw(raw.reshape(-1, *raw.shape[2:]), tokens.dtype)


def _log_softmax(x: Array) -> Array:
    away = x - x.max(-1, keepdims=True, initial=-np.inf)
    return away - np.log(np.exp(away).sum(-1, keepdims=True))


def _active_tokens(inputs: Inputs) -> Array:
    ids = inputs["action_ids"].values()
    active = np.ones(ids.shape, bool)
    if inputs["completion_mask"] is not None:
        active &= inputs["completion_mask"].values() != 0
    if inputs["ignore_index"] is not None:
        active &= ids != inputs["ignore_index"]
    return active


def _log_probs(
    inputs: Inputs, name: str, active: Array, c: Mapping[str, float]
) -> tuple[LogitRows, LinearLogprob]:
    softcap = inputs["softcap"]
    rows = LogitRows(
        inputs[name].values()[active],
        inputs["action_ids"].values()[active].astype(np.int64),
        np.full(int(active.sum()), float(np.float32(inputs["temperature"]))),
        None if softcap is None else float(np.float32(softcap)),
        float(np.float32(inputs["logit_scale"])),
    )
    return rows, linear_logprob(rows, c)


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
        below = x.std(ddof=1) + 1e-6 if inputs["normalize"] in (None, "std") else 1.0
        found[first:last] = (x - x.mean()) / below
    return found


def _spread(values: Array, active: Array) -> Array:
    full = np.zeros(active.shape)
    full[active] = np.where(np.isfinite(values), values, 0.0)
    return full


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


def _with_garbage(inputs: Inputs, where: Array, rng: np.random.Generator) -> Inputs:
    """Anything in the tokens `where`; ids alone stay where the mask would count them."""
    counted = np.ones(where.shape, bool)
    if inputs["completion_mask"] is not None:
        counted = inputs["completion_mask"].values() != 0
    changed = {}
    for name in ("policy_logits", "ref_logits", "old_logps"):
        fresh: Stored = inputs[name].clone()
        raw = fresh.raw()
        wild = rng.choice([np.nan, np.inf, -np.inf, 1e30, -1.0], size=fresh.shape)
        here = where if raw.ndim == where.ndim else where[..., None]
        raw[...] = np.where(here, encode(wild, fresh.dtype), raw)
        changed[name] = fresh
    ids = inputs["action_ids"].clone()
    wild_ids = rng.choice(np.array([2**63 - 1, -1, 2**40, -(2**63)]), size=ids.shape)
    ids.raw()[...] = np.where(where & ~counted, wild_ids, ids.raw())
    return inputs.but(**changed, action_ids=ids)


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

    grouped = rewards.float().reshape(-1, samples_per_prompt)
    away = grouped - grouped.mean(-1, keepdim=True)
    a = torch.nan_to_num(away / (grouped.std(-1, keepdim=True) + 1e-6)).reshape(-1, 1)
    ids = action_ids.clamp(min=0)
    log_prob, ref = (
        torch_logp(x, ids, temperature=temperature) for x in (policy_logits, ref_logits)
    )
    mask = torch.ones_like(log_prob) if completion_mask is None else completion_mask.float()
    mask = mask * (action_ids != -100)
    ratio = (log_prob - old_logps).clamp(-20, 20).exp()
    policy = torch.maximum(-a * ratio, -a * ratio.clamp(1 - clip_eps, 1 + clip_eps))
    e = (ref.detach() - log_prob).clamp(-20, 20)
    kl = torch.expm1(e) - e
    count = mask.sum().clamp(min=1)
    policy, kl = (policy * mask).sum() / count, (kl * mask).sum() / count
    return policy + beta * kl, policy.detach(), kl.detach()
