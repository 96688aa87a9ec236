# SPDX-License-Identifier: Apache-2.0
"""Policy losses of other systems as rules that `rlk.jit.ppo_loss` takes, side by side.

`DIALECTS` is the table: what each system's loss does where they disagree. `ADVANTAGES` is that of
`rlk.jit.group_advantages`. `diff` prints the rules in which two of them differ, and the loss under
each. `combine` adds up micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

from rlk._metrics import Metrics, combine
from rlk.errors import InvalidArgument, text

__all__ = [
    "ADVANTAGES",
    "DIALECTS",
    "AdvantageRules",
    "Metrics",
    "Rules",
    "advantage_rules",
    "combine",
    "diff",
    "rules",
]

inf = float("inf")
Bounds = float | tuple[float, float]  # one number: both sides

POLICY_LOSSES = ("ppo", "gspo", "cispo", "sapo", "gpg")
REDUCTIONS = (
    "token_mean",
    "token_sum",
    "sequence_mean",
    "sequence_mean_valid",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "seq_mean_token_sum_norm_valid",
    "token_sum_over_L",
    "prompt_mean",
    "rollout_mean",
)


@dataclass(frozen=True)
class Rules:
    """The rules of one dialect; the defaults are rlk's own. Each but the last four is an option of
    `ppo_loss`."""

    policy_loss: str = "ppo"
    loss_reduction: str = "token_mean"
    eps_clip_low: float = 0.2
    eps_clip_high: float = 0.2
    use_dual_clip: bool = False
    clip_ratio_c: float = 3.0
    delta: float | None = None  #: the most that the ratio is before it is compared with the clip
    cispo_bounds: str | tuple[float, float] = "1+eps"  #: or "eps": none below, eps_clip_high above
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    log_ratio_clamp: Bounds = 20.0
    gspo_log_ratio_clamp: Bounds = 20.0  #: of the sequence's mean
    use_tis: bool = False
    tis_mode: str = "truncate"
    tis_level: str = "token"
    tis_imp_ratio_cap: float = 10.0
    tis_imp_ratio_floor: float = 0.0
    tis_log_clamp: float = 20.0
    tis_overflow: str = "cap"  #: or "zero": a weight that fp32 cannot hold is 0
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_gradient: str = "pathwise"
    kl_weight: str = "one"
    kl_clamp: float = 20.0
    kl_output_clamp: float = inf
    kl_reduction: str = "policy"  #: as loss_reduction
    entropy_coef: float = 0.0
    #: The estimators that a system's kl_output_clamp is of.
    kl_output_clamp_of: tuple[str, ...] = ("k1", "abs", "k2", "k3")
    #: tis_imp_ratio_cap by tis_level, where it is another.
    tis_cap_of: tuple[tuple[str, float], ...] = ()
    #: Reduction by policy loss, where a system fixes it.
    reduction_of: tuple[tuple[str, str], ...] = ()
    #: The system's own names of reductions.
    reduction_names: tuple[tuple[str, str], ...] = ()


#: What no option of `ppo_loss` can override.
OF_SYSTEM = ("kl_output_clamp_of", "tis_cap_of", "reduction_of", "reduction_names")
RLK = Rules()
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
    ),
)

#: What each system does, at the snapshots named in docs/ppo_loss.md.
DIALECTS: Mapping[str, Rules] = {
    "rlk": RLK,
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
        kl_gradient="unbiased_clamped",
        kl_output_clamp=10.0,
        reduction_of=(("gspo", "sequence_mean_valid"),),
    ),
    "slime": Rules(
        loss_reduction="sequence_mean",
        log_ratio_clamp=inf,
        gspo_log_ratio_clamp=inf,
        tis_imp_ratio_cap=2.0,
        tis_log_clamp=inf,
        kl_clamp=inf,
    ),
    "areal": Rules(
        log_ratio_clamp=inf,
        gspo_log_ratio_clamp=inf,
        tis_log_clamp=inf,
        tis_overflow="zero",
        kl_estimator="k1",
        kl_clamp=inf,
        kl_output_clamp=10.0,
    ),
    "liger": replace(_TRL, eps_clip_high=0.4),
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
        expected = ", ".join(DIALECTS)
        raise InvalidArgument(f"{op}: dialect: expected {expected}, got {text(dialect)}")
    return dialect


def diff(a: str, b: str, batch: Mapping[str, Any] | None = None, **options: Any) -> str:
    """The rules in which two dialects differ, a line each, and the loss under each.

    Those of the advantages come after those of the loss.

    Args:
        a, b: names in `DIALECTS`.
        batch: arguments of `rlk.jit.ppo_loss` by name (log_probs, old_log_probs, advantages,
            loss_mask, ...); None: rules alone.
        options: options of `ppo_loss` for both losses, such as policy_loss="gspo"; with a batch.

    Returns:
        The text; print it.

    Raises:
        rlk.InvalidArgument: an unknown dialect, options without a batch, or as `ppo_loss`.

    Example:
        >>> print(rlk.losses.diff("verl", "trl"))
        rule                           verl           trl
        use_dual_clip                  True           False
        ...
        group_advantages.group_of_one  reward         zero
    """
    rows: list[tuple[str, ...]] = [("rule", a, b)]
    pairs: list[tuple[str, Any, Any]] = [("", rules(a), rules(b))]
    pairs.append(("group_advantages.", advantage_rules(a), advantage_rules(b)))
    for place, first, second in pairs:
        for field in fields(first):
            values = (getattr(first, field.name), getattr(second, field.name))
            if values[0] != values[1]:
                sides = (_texts(value) for value in values)
                rows += zip_longest([place + field.name], *sides, fillvalue="")
    if batch is None and options:
        raise InvalidArgument(f"ppo_loss: batch: expected one with {next(iter(options))}, got None")
    if batch is not None:
        if not isinstance(batch, Mapping):
            got = type(batch).__name__
            raise InvalidArgument(f"ppo_loss: batch: expected arguments by name, got {got}")
        from rlk.jit import ppo_loss

        losses = [float(ppo_loss(**batch, dialect=name, **options).loss) for name in (a, b)]
        rows.append(("loss", f"{losses[0]:.9g}", f"{losses[1]:.9g}"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{r[0]:<{widths[0]}}  {r[1]:<{widths[1]}}  {r[2]}" for r in rows]
    return "\n".join(map(str.rstrip, lines))


def _texts(value: Any) -> list[str]:
    """A value in lines: pairs one a line."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return [f"{name}: {meaning}" for name, meaning in value]
    if isinstance(value, tuple) and all(isinstance(word, str) for word in value):
        return [", ".join(value) or "-"]
    return [str(value)]
