# SPDX-License-Identifier: Apache-2.0
"""ratio_kl for the checker: logp's rows twice over, then the token's formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlk._rules import WORDS

from ..case import Case, Inputs, flat_rows
from ..checks import Session
from ..contract import Contract
from ..frameworks import Failure
from ..oracle import Bounded, LinearLogprob, LogitRows, linear_logprob, logit_gradient
from ..spec import Adapter, Expected, Liveness, one_of
from ..stored import LAYOUTS, Stored, decode, of
from . import linear_logp_inputs as draw
from .linear_logp import spread_rows
from .logp import Logp, logit_rows, torch_logp

Array = Any  # NumPy arrays
# What logp's inputs are called here.
NAMES = {"logits": "policy_logits", "target": "action_ids", "mask": "attention_mask"}
LOGP_ROWS = ("logits", "target", "temperature", "mask", "ref_logits", "old_logps")
KINDS = {
    **draw.KINDS,
    "near": "references of 1e-4 away: k3 of 1e-9",
    "far": "log-ratios and distances to the reference of up to 1000, beyond every clamp",
}
OPTION_SETS: tuple[dict[str, Any], ...] = (
    *({k: v for k, v in o.items() if k != "bias" and "return" not in k} for o in draw.OPTION_SETS),
    {"kl": "k1"},
    {"kl": "abs", "mask": "bool"},
    {"kl": "k2", "temperature": 0.7},
    {"kl_gradient": "unbiased"},
    {"kl_gradient": "unbiased_clamped", "kl_clamp": 0.25},
    {"log_ratio_clamp": 0.5},
)
# A value of each own option that must show in the gradient.
LIVE: Mapping[str, Any] = {
    "kl": "k1",
    "kl_gradient": "unbiased",
    "kl_clamp": 0.05,
    "log_ratio_clamp": 0.05,
}


@dataclass(frozen=True)
class Tokens:
    """What the gradient goes on with, over active rows: errors and where fp32 may take another
    branch beside each derivative."""

    rows: LogitRows
    policy: LinearLogprob
    active: Array
    ratio: Bounded
    kl: Bounded


class RatioKl(Logp):
    """exp(log p - old) and k(ref - log p) of one token id a row."""

    name = "ratio_kl"
    op_class = "ratio"
    outputs = ("ratio", "kl")
    output_options: frozenset[str] = frozenset()
    grad_arguments = {"ratio": "grad_ratio", "kl": "grad_kl"}
    ids, mask = "action_ids", "attention_mask"
    differentiable = ("policy_logits",)
    axes = {"ratio": (), "kl": (), "policy_logits": ("vocab",)}
    row_outputs = ("ratio", "kl", "policy_logits")
    kinds = KINDS
    adversarial = (*draw.ADVERSARIAL, "near", "far")
    option_sets = OPTION_SETS
    option_values = {
        **{k: v for k, v in Logp.option_values.items() if "return" not in k},
        "kl": one_of(*WORDS["kl_estimator"]),
        "kl_gradient": one_of(*WORDS["kl_gradient"]),
        "kl_clamp": float,
        "log_ratio_clamp": float,
    }
    more_adapters: Mapping[str, Adapter] = {}
    torch_reference = staticmethod(lambda **arguments: torch_ratio_kl(**arguments))

    def build(self, case: Case) -> Inputs:
        like = {"near": "random", "far": "random"}.get(case.kind, case.kind)
        plain = draw.build(case.but(kind=like), LOGP_ROWS[:4])
        rng, x = case.rng("reference"), plain["logits"].values()
        ids = np.clip(plain["target"].values().astype(np.int64), 0, x.shape[-1] - 1)
        with np.errstate(all="ignore"):
            base = np.where(np.isfinite(x), x, -np.inf).max(-1, initial=-np.inf, keepdims=True)
            base = np.where(np.isfinite(base), base, 0.0)
            log_sum = np.log(np.exp(x - base).sum(-1, keepdims=True))
            log_probs = np.take_along_axis(x - base - log_sum, ids[..., None], -1)[..., 0]
        old = np.where(np.isfinite(log_probs), log_probs, -5.0) + 0.3 * rng.normal(size=case.lead)
        ref = x + (1e-4 if case.kind == "near" else 0.3) * rng.normal(size=x.shape)
        if case.kind == "neg_inf_target":  # both at -inf would be no distance
            ref = np.where(x == -np.inf, -3.0, ref)
        if case.kind == "far":
            old = old - rng.choice([0.0, 19.0, -19.0, 25.0, -25.0, 1e3, -1e3], case.lead)
            ref = ref + np.where(np.arange(x.shape[-1]) % 3 == 0, 300.0, 0.0)
        layout = "contiguous" if case.layout == "expanded" else case.layout
        values = {k: v for k, v in plain.values.items() if "return" not in k}
        values |= {
            "ref_logits": of(ref, case.dtype, layout),
            "old_logps": of(old, "float32", layout),
            **{k: case.options.get(k, self.defaults[k]) for k in LIVE},
        }
        names = (*plain.row_names, "ref_logits", "old_logps")
        inputs = _from_logp(Inputs(values, plain.lead, names))
        if case.kind == "garbage" and case.lead != ():
            return self.with_garbage(inputs, ~self.active(inputs), case.rng("garbage"))
        return inputs

    def outputs_of(self, inputs: Inputs) -> tuple[str, ...]:
        return self.outputs

    def active(self, inputs: Inputs) -> np.ndarray:
        return super().active(_as_logp(inputs))

    def place_of_row(self, inputs: Inputs, name: str, index: tuple[int, ...]) -> dict[str, int]:
        return {"vocab": int(inputs["action_ids"].raw()[index])} if name in self.outputs else {}

    def expected(
        self, case: Case, inputs: Inputs, contract: Contract, arch: str | None
    ) -> Expected:
        c, c_ratio, c_kl = (
            contract.coefficients(name, case.dtype, arch) for name in ("logprob", "ratio", "kl")
        )
        active, plain = self.active(inputs), _as_logp(inputs)
        rows = logit_rows(plain, active)
        policy = linear_logprob(rows, c)
        ref = linear_logprob(logit_rows(plain.but(logits=inputs["ref_logits"]), active), c)
        old = decode(flat_rows(inputs["old_logps"], len(inputs.lead)), "float32")[active]
        with np.errstate(all="ignore"):
            ratio, ratio_slope = _ratio(inputs, c_ratio, policy, old)
            kl, kl_slope = _kl(inputs, c_kl, policy, ref)

        def spread(exact: Bounded, neutral: float) -> Bounded:
            value, bound = (spread_rows(x, active) for x in (exact.value, exact.bound))
            value = np.where(active, value, neutral)
            return Bounded(value.reshape(inputs.lead), bound.reshape(inputs.lead))

        outputs = {"ratio": spread(ratio, 1.0), "kl": spread(kl, 0.0)}
        return Expected(outputs, Tokens(rows, policy, active, ratio_slope, kl_slope))

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
        g_ratio, g_kl = (
            decode(flat_rows(upstream[name], len(inputs.lead)), "float32")[t.active]
            for name in self.outputs
        )
        with np.errstate(all="ignore"):
            parts = [_product(g_ratio, t.ratio), _product(g_kl, t.kl)]
        factor, error = parts[0].value + parts[1].value, parts[0].bound + parts[1].bound
        return {
            "policy_logits": logits_gradient(
                case, inputs, t.rows, t.policy, t.active, Bounded(factor, error), contract, arch
            )
        }

    def with_garbage(self, inputs: Inputs, where: np.ndarray, rng: np.random.Generator) -> Inputs:
        return _from_logp(draw.with_garbage(_as_logp(inputs), where, LOGP_ROWS, rng))

    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        base = Case(self.name, dtype, (2, 8), {"vocab": 257}, seed=seed)
        found = [base.but(kind=kind) for kind in KINDS]
        found += [base.but(layout=layout) for layout in LAYOUTS[1:]]
        found += [base.but(options=options) for options in OPTION_SETS[1:] if options]
        for options in ({"kl": "k1"}, {"kl": "k2"}, {"kl_gradient": "unbiased"}):
            found += [base.but(kind=kind, options=options) for kind in ("near", "far", "garbage")]
        sizes = (((1, 1), 1), ((3,), 2), ((), 17), ((1, 5), 193), ((0,), 64), ((33,), 1030))
        more = [base.but(lead=lead, sizes={"vocab": vocab}) for lead, vocab in sizes]
        return found[:24] if specialized else found + more

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        base = Case(self.name, dtype, (2, 65), {"vocab": 257}, seed=seed)
        return [base.but(options={"ignored": 0}), base.but(options={"kl": "k2", "mask": "bool"})]

    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        logp = super().random_case(rng, seed)
        options = {k: v for k, v in logp.options.items() if "return" not in k}
        options |= OPTION_SETS[-int(rng.integers(1, 7))]
        return logp.but(op=self.name, options=options)

    def liveness(self, case: Case) -> list[Liveness]:
        base = self.build(case.but(kind="random", options={"ignored": 0}))
        half = (np.arange(base.num_rows) % 2 == 0).reshape(base.lead)
        first = int(flat_rows(base["action_ids"], len(base.lead))[0])
        live = {**LIVE, **draw.LIVE, "ignore_index": first, "attention_mask": of(half, "bool")}
        changed = {name: base.but(**{name: value}) for name, value in live.items()}
        far = of(base["old_logps"].values() + 1.0, "float32")
        changed["ref_logps"] = base.but(ref_logits=None, ref_logps=far)
        return [Liveness(n, base, inputs, self.differentiable) for n, inputs in changed.items()]

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        return {"kl_not_negative": kl_not_negative}


def kl_not_negative(session: Session, case: Case) -> dict[str, Any]:
    """k3 >= 0, also where the policies are all but one."""
    inputs = session.spec.build(case.but(kind="near", options={}))
    kl = session.forward(inputs).outputs["kl"].values()
    if (kl < 0).any():
        raise Failure("accuracy", f"kl: expected >= 0, got {kl.min():.9g}")
    return {}


def _ratio(
    inputs: Inputs, c: Mapping[str, float], policy: LinearLogprob, old: Array
) -> tuple[Bounded, Bounded]:
    """The ratio and its derivative."""
    most, delta = inputs["log_ratio_clamp"], policy.logp - old
    off = policy.bound + 2.0**-23 * (np.abs(old) + np.abs(delta))
    off = np.where(np.isfinite(off), off, 0.0)
    ratio = np.exp(np.clip(delta, -most, most))
    bound = ratio * np.maximum(c["logits_rtol"], c["rtol"] + off)
    slope = np.where(np.abs(delta) > most, 0.0, ratio)
    ties = np.abs(np.abs(delta) - most) <= off
    return Bounded(ratio, bound), Bounded(slope, np.where(ties, np.inf, bound))


def _kl(
    inputs: Inputs, c: Mapping[str, float], policy: LinearLogprob, ref: LinearLogprob
) -> tuple[Bounded, Bounded]:
    """The KL estimate and its derivative; `off` is how far e may be."""
    kind, most, e = inputs["kl"], inputs["kl_clamp"], ref.logp - policy.logp
    off = policy.bound + ref.bound + 2.0**-23 * np.abs(e)
    off = np.where(np.isfinite(off), off, 0.0)
    clipped, beyond = np.clip(e, -most, most), np.abs(e) > most
    curve = np.exp(clipped)
    value, slope, slope_off = {
        "k1": (-e, np.ones_like(e), np.zeros_like(e)),
        "abs": (np.abs(e), -np.sign(e), np.zeros_like(e)),
        "k2": (e * e / 2, -e, off),
        "k3": (
            np.expm1(clipped) - clipped,
            -np.expm1(clipped),
            curve * off + c["rtol"] * np.abs(np.expm1(clipped)),
        ),
    }[kind]
    reach = np.abs(slope) * np.maximum(c["logits_expm1_rtol"], off)
    bound = c["atol"] + c["rtol"] * np.abs(value) + reach + off * off * np.maximum(curve, 1.0)
    ties = (np.abs(np.abs(e) - most) <= off) & (kind == "k3")
    ties |= (np.abs(e) <= off) & (kind == "abs")
    if inputs["kl_gradient"] == "pathwise":
        slope = np.where(beyond & (kind == "k3"), 0.0, slope)
    else:
        cut = beyond & (kind == "k3") & (inputs["kl_gradient"] == "unbiased_clamped")
        slope, slope_off = np.where(cut, 0.0, -e), off
    return Bounded(value, bound), Bounded(slope, np.where(ties, np.inf, slope_off))


def _product(upstream: Array, slope: Bounded) -> Bounded:
    """Taken where the slope is not 0 alone."""
    value = np.where(slope.value == 0, 0.0, upstream * slope.value)
    error = np.abs(upstream) * slope.bound + 2.0**-22 * np.abs(value)
    return Bounded(value, np.where(upstream == 0, 0.0, error))


def logits_gradient(
    case: Case,
    inputs: Inputs,
    rows: LogitRows,
    policy: LinearLogprob,
    active: Array,
    factor: Bounded,
    contract: Contract,
    arch: str | None,
) -> Bounded:
    """Gradient of policy_logits from that of the active log-probs, which may be off itself."""
    c = contract.coefficients("logprob_grad", case.dtype, arch)
    exact = logit_gradient(rows, {"logp": factor.value}, policy, c)
    unit = np.abs(logit_gradient(rows, {"logp": np.ones_like(factor.value)}, policy, c).value)
    more = np.where(unit > 0, factor.bound[:, None], 0.0) * unit
    # A masked column has no gradient, whatever the row's: 0 times an infinite one is none.
    masked = rows.logits == -np.inf
    value, bound = (np.where(masked, 0.0, x) for x in (exact.value, exact.bound + more))
    if case.dtype == "float16":
        value = np.where(np.abs(value) >= 65520, np.copysign(np.inf, value), value)
    shape = inputs["policy_logits"].shape
    return Bounded(*(spread_rows(x, active).reshape(shape) for x in (value, bound)))


def _as_logp(inputs: Inputs) -> Inputs:
    """With the names of logp, for what draws and reads its rows."""
    return _with_names(inputs, {here: there for there, here in NAMES.items()})


def _from_logp(inputs: Inputs) -> Inputs:
    return _with_names(inputs, NAMES)


def _with_names(inputs: Inputs, names: Mapping[str, str]) -> Inputs:
    values = {names.get(name, name): value for name, value in inputs.values.items()}
    return Inputs(values, inputs.lead, tuple(names.get(n, n) for n in inputs.row_names))


def torch_ratio_kl(
    policy_logits: Any,
    ref_logits: Any,
    action_ids: Any,
    attention_mask: Any,
    old_logps: Any,
    kl: str = "k3",
    kl_gradient: str = "pathwise",
    kl_clamp: float = 20.0,
    log_ratio_clamp: float = 20.0,
    **options: Any,
) -> Any:
    """As PyTorch users write it, from the log_softmax of both logits; masked before exp."""
    import torch

    ids = action_ids.long()
    active = torch.ones_like(ids, dtype=torch.bool)
    if attention_mask is not None:
        active &= attention_mask != 0
    if options.get("ignore_index", -100) is not None:
        active &= ids != options.get("ignore_index", -100)
    log_prob = torch_logp(policy_logits, ids, mask=active, **options)
    ref = torch_logp(ref_logits, ids, mask=active, **options).detach()
    none = torch.zeros_like(log_prob)
    delta = torch.where(active, log_prob - old_logps, none)
    e = torch.where(active, ref - log_prob, none)
    clipped = e.clamp(-kl_clamp, kl_clamp)
    value = {
        "k1": -e,
        "abs": e.abs(),
        "k2": e * e / 2,
        "k3": torch.expm1(clipped) - clipped,
    }[kl]
    if kl_gradient != "pathwise":
        inside = (e.abs() <= kl_clamp) | (kl != "k3") | (kl_gradient == "unbiased")
        through = torch.where(inside, e * e / 2, none)
        value = value.detach() + through - through.detach()
    return delta.clamp(-log_ratio_clamp, log_ratio_clamp).exp(), value
