# SPDX-License-Identifier: Apache-2.0
"""The options of the losses, each with its default and range, and what dialects make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rlk import _core
from rlk.errors import fail, text

inf = float("inf")
Bounds = float | tuple[float, float]  # one number: both sides

_CORE: Mapping[str, tuple[str, ...]] = _core.vocabularies()
#: The words of each option that has some: the kernels', but where one word here is two there.
WORDS: Mapping[str, tuple[str, ...]] = {
    **_CORE,
    "policy_loss": ("ppo", "gspo", *_CORE["policy_loss"][1:]),
    "advantage_level": (*_CORE["advantage_level"], "ratio"),
    "tis_mode": _CORE["tis_mode"][:-1],  # "given" is that of importance_weights
    "kl_weight": ("one", "ratio"),
    "kl_ratio": _CORE["kl_weight"][1:],
}
POLICY_LOSSES, REDUCTIONS = WORDS["policy_loss"], WORDS["loss_reduction"]


def within(default: float | None, least: float = 0.0, most: float = inf) -> Any:
    """An option that is a number of this range; None by default: it may be left out."""
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True)
class Rules:
    """The rules of one dialect; the defaults are rlk's own. Each is an option of `ppo_loss`, but
    for those of OF_SYSTEM."""

    policy_loss: str = "ppo"
    ratio_level: str = "token"
    advantage_level: str = "token"  #: or "sequence": its mean; "ratio": as ratio_level
    loss_reduction: str = "token_mean"
    eps_clip_low: float = within(0.2, most=1.0)
    eps_clip_high: float = within(0.2)
    use_dual_clip: bool = False
    clip_ratio_c: float = within(3.0, least=1.0)
    #: The most that the ratio is before it is compared with the clip.
    delta: float | None = within(None)
    cispo_bounds: str | tuple[float, float] = "1+eps"  #: or "eps": none below, eps_clip_high above
    sapo_tau_pos: float = within(1.0, 1e-6, 1e6)
    sapo_tau_neg: float = within(1.05, 1e-6, 1e6)
    log_ratio_clamp: Bounds = 20.0
    gspo_log_ratio_clamp: Bounds = 20.0  #: of the sequence's mean
    use_tis: bool = False
    tis_mode: str = "truncate"
    tis_level: str = "token"
    tis_imp_ratio_cap: float = within(10.0)
    tis_imp_ratio_floor: float = within(0.0)  #: at most the cap
    tis_log_clamp: float = within(20.0)
    tis_overflow: str = "cap"  #: or "zero": a weight that fp32 cannot hold is 0
    tis_rejected: str = "stay"  #: in the means of their sequence, or "leave" them
    kl_coef: float = within(0.0, -1e30, 1e30)
    kl_estimator: str = "k3"
    kl_gradient: str = "pathwise"
    kl_weight: str = "one"
    kl_ratio: str = "policy"  #: which ratio kl_weight="ratio" is
    kl_clamp: float = within(20.0)
    kl_output_clamp: float = within(inf)
    kl_reduction: str = "policy"  #: as loss_reduction
    entropy_coef: float = within(0.0, -1e30, 1e30)
    #: What gspo's ratio_level is.
    gspo_ratio_level: str = "sequence_token"
    #: The estimators that a system's kl_clamp and kl_output_clamp are of.
    kl_clamp_of: tuple[str, ...] = ("k3",)
    kl_output_clamp_of: tuple[str, ...] = ("k1", "abs", "k2", "k3")
    #: tis_imp_ratio_cap by tis_level, where it is another.
    tis_cap_of: tuple[tuple[str, float], ...] = ()
    #: Reduction by policy loss, where a system fixes it.
    reduction_of: tuple[tuple[str, str], ...] = ()
    #: The system's own names of reductions.
    reduction_names: tuple[tuple[str, str], ...] = ()


#: What no option of `ppo_loss` can override.
OF_SYSTEM = (
    "gspo_ratio_level",
    "kl_clamp_of",
    "kl_output_clamp_of",
    "tis_cap_of",
    "reduction_of",
    "reduction_names",
)
#: The default of each option of `ppo_loss` that a dialect sets, and the range of numbers.
DEFAULTS = {f.name: f.default for f in fields(Rules) if f.name not in OF_SYSTEM}
RANGES: Mapping[str, tuple[float, float]] = {
    f.name: f.metadata["range"] for f in fields(Rules) if f.metadata
}
_VERL = Rules(
    use_dual_clip=True,
    gspo_log_ratio_clamp=(-inf, 10.0),
    tis_imp_ratio_cap=2.0,
    kl_output_clamp=10.0,
    kl_output_clamp_of=("k3",),
    reduction_of=(("gspo", "sequence_mean_valid"), ("sapo", "sequence_mean_valid")),
    reduction_names=(
        ("token-mean", "token_mean"),
        ("token-sum", "token_sum"),
        ("seq-mean-token-mean", "sequence_mean_valid"),
        ("seq-mean-token-sum", "seq_mean_token_sum"),
        ("seq-mean-token-sum-norm", "seq_mean_token_sum_norm_valid"),
    ),
)
_TRL = Rules(
    log_ratio_clamp=inf,
    gspo_log_ratio_clamp=inf,
    gspo_ratio_level="sequence",
    cispo_bounds="eps",
    tis_mode="mask",
    tis_level="sequence",
    tis_imp_ratio_cap=3.0,
    tis_log_clamp=inf,
    kl_clamp=inf,
    reduction_of=(("sapo", "sequence_mean"),),
    reduction_names=(
        ("grpo", "sequence_mean"),
        ("bnpo", "token_mean"),
        ("dapo", "token_mean"),
        ("dr_grpo", "seq_mean_token_sum_norm"),
        ("luspo", "sequence_sum"),
    ),
)

#: What each system does, at the snapshots named in docs/ppo_loss.md.
DIALECTS: Mapping[str, Rules] = {
    "rlk": Rules(),
    "rl_kernel": Rules(log_ratio_clamp=inf, gspo_log_ratio_clamp=inf, kl_clamp=inf),
    "verl": _VERL,
    "verl_old": replace(
        _VERL,
        reduction_names=(
            *_VERL.reduction_names[:-1],
            ("seq-mean-token-sum-norm", "token_sum_over_L"),
        ),
    ),
    "skyrl": Rules(
        gspo_log_ratio_clamp=(-inf, 10.0),
        cispo_bounds=(0.0, 5.0),
        tis_imp_ratio_cap=2.0,
        tis_cap_of=(("sequence", 5.0),),
        kl_output_clamp=10.0,
        kl_output_clamp_of=("k3",),
        kl_reduction="sequence_mean",
        reduction_of=(("gspo", "sequence_mean"), ("sapo", "sequence_mean")),
    ),
    "trl": _TRL,
    "openrlhf": Rules(
        gspo_log_ratio_clamp=inf,
        gspo_ratio_level="sequence",
        tis_imp_ratio_cap=5.0,
        tis_imp_ratio_floor=0.5,
        tis_log_clamp=inf,
        kl_estimator="k1",
        kl_clamp=inf,
        kl_output_clamp=10.0,
        reduction_names=(("token", "token_mean"), ("seq", "sequence_mean_valid")),
    ),
    "nemo": Rules(
        log_ratio_clamp=inf,
        gspo_log_ratio_clamp=inf,
        tis_log_clamp=inf,
        tis_overflow="zero",
        gspo_ratio_level="sequence",
        kl_gradient="importance",
        kl_ratio="rollout",
        kl_clamp_of=("k1", "abs", "k2", "k3"),
        kl_output_clamp=10.0,
        reduction_of=(("gspo", "sequence_mean_valid"),),
    ),
    "slime": Rules(
        loss_reduction="sequence_mean",
        log_ratio_clamp=inf,
        gspo_log_ratio_clamp=inf,
        gspo_ratio_level="sequence",
        kl_ratio="token",
        tis_imp_ratio_cap=2.0,
        tis_log_clamp=inf,
        kl_clamp=inf,
    ),
    "areal": Rules(
        advantage_level="ratio",
        log_ratio_clamp=inf,
        gspo_log_ratio_clamp=inf,
        gspo_ratio_level="sequence",
        tis_rejected="leave",
        tis_log_clamp=inf,
        tis_overflow="zero",
        kl_estimator="k1",
        kl_clamp=inf,
        kl_output_clamp=10.0,
    ),
    # Without luspo: there it gives masked tokens loss and gradient.
    "liger": replace(_TRL, eps_clip_high=0.4, reduction_names=_TRL.reduction_names[:-1]),
}


@dataclass(frozen=True)
class AdvantageRules:
    """The rules of one dialect's GRPO advantages; the defaults are rlk's own. Each is an option of
    `group_advantages`."""

    normalize: str = "std"
    ddof: int = 1
    eps: float = 1e-6
    eps_mode: str = "add"  #: to the standard deviation; "max": its least value
    group_of_one: str = "zero"  #: its advantage; "reward": the raw one; "error": refused


_RAW = AdvantageRules(group_of_one="reward")
_EPS_4 = AdvantageRules(eps=1e-4)

#: What each system does, at the snapshots named in docs/ppo_loss.md.
ADVANTAGES: Mapping[str, AdvantageRules] = {
    "rlk": AdvantageRules(),
    "rl_kernel": AdvantageRules(ddof=0, eps_mode="max"),
    "verl": _RAW,
    "verl_old": _RAW,
    "skyrl": _RAW,
    "trl": _EPS_4,
    "openrlhf": AdvantageRules(eps=1e-9, group_of_one="error"),
    "nemo": AdvantageRules(normalize="loo_std"),
    "slime": AdvantageRules(),
    "areal": AdvantageRules(eps=1e-5),
    "liger": _EPS_4,
}


def rules(dialect: str) -> Rules:
    """The loss's rules of a dialect by name. Raises rlk.InvalidArgument."""
    return DIALECTS[_known("ppo_loss", dialect)]


def advantage_rules(dialect: str) -> AdvantageRules:
    """The advantages' rules of a dialect by name. Raises rlk.InvalidArgument."""
    return ADVANTAGES[_known("group_advantages", dialect)]


def _known(op: str, dialect: str) -> str:
    if not isinstance(dialect, str) or dialect not in DIALECTS:
        fail(op, "dialect", ", ".join(DIALECTS), text(dialect))
    return dialect
