# SPDX-License-Identifier: Apache-2.0
"""Options of a policy loss: resolved from a dialect and what overrides it, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, NamedTuple, NoReturn

from rlk import _core, errors
from rlk._ops.common import no_option
from rlk._rules import DEFAULTS, DIALECTS, RANGES, REDUCTIONS, WORDS, Rules, inf, rules
from rlk.errors import text

NAMES = tuple(DEFAULTS)
WORDS_OF_RULES = tuple(name for name in NAMES if name in WORDS and name != "loss_reduction")
# What each reads of the call.
NEEDS_LENGTH = ("seq_mean_token_sum_norm", "seq_mean_token_sum_norm_valid", "token_sum_over_L")
NEEDS_GROUPS = ("prompt_mean", "rollout_mean")
NEEDS_GLOBAL = {
    "global_tokens": ("token_mean",),
    "global_sequences": (
        "sequence_mean",
        "sequence_mean_valid",
        "seq_mean_token_sum",
        "seq_mean_token_sum_norm",
        "seq_mean_token_sum_norm_valid",
        "sequence_sum",
    ),
    "global_groups": NEEDS_GROUPS,
}
#: Tensors that one option each switches on.
SWITCHES = {"rollout_logprobs": "use_tis", "ref_log_probs": "kl_coef", "entropy": "entropy_coef"}
MOST_FLOAT32 = 3.4028234663852886e38
OVERFLOW_LOG = 88.72283  # e^x leaves fp32 above
KEPT = (str, int, float, type(None), Real)  # what values of options are, pairs apart
VERL_WORDS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}  # verl's second names of estimators
#: What other systems call an option: docs/ppo_loss.md has them by system.
ELSEWHERE = {
    "clip_ratio": "eps_clip_low and eps_clip_high",
    "clip_ratio_low": "eps_clip_low",
    "clip_ratio_high": "eps_clip_high",
    "loss_mode": "policy_loss",
    "loss_agg_mode": "loss_reduction",
    "loss_scale_factor": "max_seq_len",
    "kl_loss_coef": "kl_coef",
    "kl_loss_type": "kl_estimator",
    "entropy_coeff": "entropy_coef",
    "tau_pos": "sapo_tau_pos",
    "tau_neg": "sapo_tau_neg",
    "rollout_is": "tis_level",
    "rollout_is_threshold": "tis_imp_ratio_cap",
    "rollout_log_probs": "rollout_logprobs",
    "ref_log_prob": "ref_log_probs",
    "response_mask": "loss_mask",
    "mask": "loss_mask",
    "epsilon": "eps_clip_low and eps_clip_high",
    "epsilon_high": "eps_clip_high",
    "clip_eps": "eps_clip_low and eps_clip_high",
    "eps_clip": "eps_clip_low and eps_clip_high",
    "beta": "kl_coef",
    "loss_type": "loss_reduction and policy_loss",
    "importance_sampling_level": "ratio_level",
    "rollout_is_weights": "importance_weights",
    "importance_sampling_ratio": "importance_weights",
    "use_bias_correction_kl": "kl_weight",
    "num_generations": "samples_per_prompt",
    "max_completion_length": "max_seq_len",
    "sapo_temperature_pos": "sapo_tau_pos",
    "sapo_temperature_neg": "sapo_tau_neg",
    "vllm_importance_sampling_correction": "use_tis",
    "vllm_importance_sampling_mode": "tis_mode and tis_level",
    "vllm_importance_sampling_clip_max": "tis_imp_ratio_cap",
    "vllm_importance_sampling_cap": "tis_imp_ratio_cap",
}


class Given(NamedTuple):
    """What a call says besides its rules; None where it says nothing."""

    max_seq_len: float | None = None
    samples_per_prompt: int | None = None
    has_boundaries: bool = False
    has_weights: bool = False
    has_importance: bool = False


class Resolved(NamedTuple):
    """Options as the core takes them, and which tensors they read."""

    core: Any  # _core.LossOptions
    rules: Rules
    unread: tuple[str, ...]  # tensors and counts that are not looked at
    required: tuple[tuple[str, str], ...]  # tensors that must be there, and what asks for each
    given: Given

    @property
    def needs_ref(self) -> bool:
        return self.rules.kl_coef != 0

    @property
    def needs_entropy(self) -> bool:
        return self.rules.entropy_coef != 0


def fail(name: str, expected: str, got: Any) -> NoReturn:
    errors.fail("ppo_loss", name, expected, got)


def resolve(given: tuple[bool, bool, bool], options: dict[str, Any]) -> Resolved:
    """`_resolve`, once for equal arguments. Raises rlk.InvalidArgument, TypeError."""
    # By type too: True is no number where 1 is one, though they are equal.
    pairs: tuple[tuple[type, ...], ...] = ()
    for value in options.values():
        is_kept = isinstance(value, KEPT)
        if isinstance(value, tuple):
            pairs = (*pairs, (*map(type, value),))
            is_kept = all(isinstance(item, KEPT) for item in value)
        if not is_kept:  # wrong, or of an option that is off: a tensor, say, that would live on
            return _resolve(given, **options)
    return _kept(pairs, given, **options)


def _resolve(
    is_given: tuple[bool, bool, bool],
    /,
    dialect: str = "rlk",
    max_seq_len: float | None = None,
    samples_per_prompt: int | None = None,
    **overrides: Any,
) -> Resolved:
    """`overrides` by the names of Rules; None: the dialect's. `is_given`: whether the call has
    group_boundaries, loss_weights, importance_weights."""
    for name in overrides:
        if name not in NAMES:
            raise no_option("ppo_loss", name, ELSEWHERE.get(name))
    base = rules(dialect)
    given = Given(max_seq_len, samples_per_prompt, *is_given)
    own: dict[str, Any] = {**dict.fromkeys(NAMES), **overrides}
    chosen = {name: getattr(base, name) if own[name] is None else own[name] for name in NAMES}
    check_word("policy_loss", chosen["policy_loss"])
    for name in ("use_dual_clip", "use_tis"):
        chosen[name] = errors.check_flag("ppo_loss", name, chosen[name])
    for name in ("kl_coef", "entropy_coef"):
        _number(name, chosen)
    _importance(own, chosen, given)
    _levels(base, own, chosen)
    _caps(own, chosen)
    for name in _switched_off(chosen):
        own[name], chosen[name] = None, getattr(base, name)
    for name in WORDS_OF_RULES:
        check_word(name, chosen[name])
    for name in ("kl_clamp", "kl_output_clamp"):
        if own[name] is None and chosen["kl_estimator"] not in getattr(base, f"{name}_of"):
            chosen[name] = inf
    if own["tis_imp_ratio_cap"] is None:
        caps = dict(base.tis_cap_of)
        chosen["tis_imp_ratio_cap"] = caps.get(chosen["tis_level"], chosen["tis_imp_ratio_cap"])
    needs, given = _reductions(base, own, chosen, given)
    _numbers(chosen)
    r = Rules(**chosen)
    core = _core_options(r, given)
    optional = ("group_boundaries", *NEEDS_GLOBAL)
    off = tuple(name for name in SWITCHES if not reads(chosen, name))
    required = tuple(
        (name, "kl_ratio" if name == "rollout_logprobs" and not r.use_tis else switch)
        for name, switch in SWITCHES.items()
        if name not in off
    )
    return Resolved(core, r, (*off, *(n for n in optional if n not in needs)), required, given)


@lru_cache(maxsize=256, typed=True)
def _kept(
    pairs: tuple[tuple[type, ...], ...], is_given: tuple[bool, bool, bool], /, **options: Any
) -> Resolved:
    return _resolve(is_given, **options)


def reads(options: Mapping[str, Any], tensor: str) -> bool:
    """Whether a loss of these options reads a tensor of SWITCHES."""
    is_weight = options["kl_weight"] == "ratio" and options["kl_ratio"] == "rollout"
    if tensor == "rollout_logprobs" and options["kl_coef"] != 0 and is_weight:
        return True
    return bool(options[SWITCHES[tensor]])


def _importance(own: dict[str, Any], chosen: dict[str, Any], given: Given) -> None:
    """Weights that are given take the place of those that use_tis makes."""
    if given.has_importance and own["use_tis"]:
        fail("importance_weights", "None with {use_tis}, which makes the weights", "both")
    if given.has_importance:
        chosen["use_tis"] = False


def _levels(base: Rules, own: dict[str, Any], chosen: dict[str, Any]) -> None:
    """gspo is ppo with a ratio of the sequence."""
    for name in ("ratio_level", "advantage_level"):
        check_word(name, chosen[name])
    if chosen["policy_loss"] == "gspo":
        if own["ratio_level"] is None:
            chosen["ratio_level"] = base.gspo_ratio_level
        elif chosen["ratio_level"] == "token":
            fail("ratio_level", "'sequence' or 'sequence_token' with gspo", "'token'")
    if chosen["advantage_level"] == "ratio":
        is_token = chosen["ratio_level"] == "token"
        chosen["advantage_level"] = "token" if is_token else "sequence"


def _caps(own: dict[str, Any], chosen: dict[str, Any]) -> None:
    """Dual clip and delta are of ppo and gspo, and one excludes the other."""
    loss, delta = chosen["policy_loss"], chosen["delta"]
    is_clipped = loss in ("ppo", "gspo")
    if delta is not None and not is_clipped:
        fail("delta", f"None with policy_loss={loss!r}", text(delta))
    if not chosen["use_dual_clip"]:
        return
    if not own["use_dual_clip"]:  # of the dialect, whose own loss has none with these
        chosen["use_dual_clip"] = chosen["ratio_level"] == "token" and is_clipped and delta is None
    elif not is_clipped or delta is not None:
        other = f"policy_loss={loss!r}" if delta is None else "delta"
        fail("use_dual_clip", f"False with {other}", "True")


def _switched_off(chosen: dict[str, Any]) -> list[str]:
    """Options that this loss does not read: their values may be anything."""
    loss = chosen["policy_loss"]
    off = {
        "clip_ratio_c": not chosen["use_dual_clip"],
        "cispo_bounds": loss != "cispo",
        "sapo_tau_pos": loss != "sapo",
        "sapo_tau_neg": loss != "sapo",
        "gspo_log_ratio_clamp": chosen["ratio_level"] == "token",
    }
    # Words of the KL term are not checked yet, and may be anything without one.
    is_ratio = isinstance(chosen["kl_weight"], str) and chosen["kl_weight"] == "ratio"
    off["kl_ratio"] = chosen["kl_coef"] == 0 or not is_ratio
    is_of_policy = off["kl_ratio"] or text(chosen["kl_ratio"]) == "'policy'"
    off["log_ratio_clamp"] = chosen["ratio_level"] != "token" and is_of_policy
    for name in NAMES:
        if name.startswith("tis_"):
            off[name] = not chosen["use_tis"]
        elif name.startswith("kl_") and name != "kl_coef":
            off[name] = off.get(name, False) or chosen["kl_coef"] == 0
    return [name for name, is_off in off.items() if is_off]


def check_word(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in WORDS[name]:
        here = VERL_WORDS.get(value) if isinstance(value, str) else None
        hint = f", which is {here!r} here" if here in WORDS[name] else ""
        fail(name, ", ".join(WORDS[name]), text(value) + hint)


def _reductions(
    base: Rules, own: dict[str, Any], chosen: dict[str, Any], given: Given
) -> tuple[frozenset[str], Given]:
    """What the reductions read of the call; the rest may be anything and is left out."""
    if given.has_weights:
        for name in ("loss_reduction", "kl_reduction"):
            if own[name] is not None:
                fail("loss_weights", f"None with {name}, which makes the weights", "both")
        chosen["loss_reduction"] = "token_sum"
        chosen["kl_reduction"] = "policy"
    elif own["loss_reduction"] is None:
        fixed = dict(base.reduction_of)
        chosen["loss_reduction"] = fixed.get(chosen["policy_loss"], chosen["loss_reduction"])
    names = dict(base.reduction_names)
    for name in ("loss_reduction", "kl_reduction"):
        word = chosen[name] if isinstance(chosen[name], str) else ""
        word = names.get(word, word)
        if word == "policy" and name == "kl_reduction":
            word = chosen["loss_reduction"]
        if word not in REDUCTIONS:
            known = [d for d, r in DIALECTS.items() if word in dict(r.reduction_names)]
            of = f", a name of dialect {' and '.join(known)}" if known else ""
            fail(name, ", ".join((*REDUCTIONS, *names)), text(chosen[name]) + of)
        chosen[name] = word
    if given.has_weights:
        return frozenset(), given._replace(
            max_seq_len=None, samples_per_prompt=None, has_boundaries=False
        )
    used = [chosen["loss_reduction"]]
    if chosen["kl_coef"] != 0:
        used.append(chosen["kl_reduction"])
    needs = {name for name, words in NEEDS_GLOBAL.items() if any(w in words for w in used)}
    length = [word for word in used if word in NEEDS_LENGTH]
    if length:
        _length(length[0], given.max_seq_len)
    else:
        given = given._replace(max_seq_len=None)
    groups = [word for word in used if word in NEEDS_GROUPS]
    if groups:
        needs.add("group_boundaries")
        _groups(groups[0], given)
    else:
        given = given._replace(samples_per_prompt=None, has_boundaries=False)
    return frozenset(needs), given


def _length(reduction: str, length: Any) -> None:
    if length is None:
        fail("max_seq_len", f"a number with {reduction}", "None")
    number = as_float(length)
    if number is None or not 0 < number < inf:
        fail("max_seq_len", "a number above 0", text(length))


def _groups(reduction: str, given: Given) -> None:
    samples = given.samples_per_prompt
    if samples is None and not given.has_boundaries:
        fail("samples_per_prompt", f"a number (or group_boundaries) with {reduction}", "None")
    if samples is not None and given.has_boundaries:
        fail("samples_per_prompt", "None with group_boundaries", text(samples))
    if samples is not None and not (is_integer(samples) and 1 <= samples < 1 << 63):
        fail("samples_per_prompt", "an int from 1 up", text(samples))


def is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_float(value: Any) -> float | None:
    """None for what is no number, or one that no float holds."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def as_finite(value: Any) -> float | None:
    """None for what is no number, or one that float32 does not hold: NaN and infinities too."""
    number = as_float(value)
    return None if number is None or not abs(number) <= MOST_FLOAT32 else number


def _number(name: str, chosen: dict[str, Any], most: float = inf) -> None:
    """Checks it, and makes it a float: NumPy's of few bits reckon in few bits."""
    number, (least, own_most) = as_float(chosen[name]), RANGES[name]
    most = min(most, own_most)
    if number is None or not least <= number <= most:  # also NaN
        fail(name, f"a number from {least:g} to {most:g}", text(chosen[name]))
    chosen[name] = number


def _numbers(chosen: dict[str, Any]) -> None:
    for name in RANGES:
        if name != "tis_imp_ratio_floor" and (name != "delta" or chosen[name] is not None):
            _number(name, chosen)
    _number("tis_imp_ratio_floor", chosen, chosen["tis_imp_ratio_cap"])
    for name in ("log_ratio_clamp", "gspo_log_ratio_clamp"):
        low, high = bounds(name, chosen[name])
        if not low < high:
            fail(name, "a number above 0, or (low, high)", text(chosen[name]))
    around = chosen["cispo_bounds"]
    if not isinstance(around, str) or around not in ("1+eps", "eps"):
        low, high = bounds("cispo_bounds", around) if isinstance(around, tuple) else (1.0, 0.0)
        if not low <= high:
            fail("cispo_bounds", "'1+eps', 'eps' or (low, high)", text(around))


def bounds(name: str, value: Any) -> tuple[float, float]:
    """(low, high) of a pair, or of one number for both sides."""
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) == 2:
        low, high = as_float(pair[0]), as_float(pair[1])
        if low is not None and high is not None:
            return (low, high) if isinstance(value, tuple) else (-high, high)
    fail(name, "a number or (low, high)", text(value))


def ratio_bounds(r: Rules) -> tuple[float, float]:
    """The clip's bounds of the ratio."""
    if r.policy_loss == "cispo" and r.cispo_bounds != "1+eps":
        return (-inf, r.eps_clip_high) if r.cispo_bounds == "eps" else bounds("", r.cispo_bounds)
    return 1.0 - r.eps_clip_low, 1.0 + r.eps_clip_high


def _core_options(r: Rules, given: Given) -> Any:
    """By the names of templates/common/loss/options.hpp; a choice that is off is None."""
    has_kl = r.kl_coef != 0
    kl_low, kl_high = low, high = bounds("", r.log_ratio_clamp)
    if r.ratio_level != "token":
        low, high = bounds("", r.gspo_log_ratio_clamp)
    # Rejected tokens are in no mean where a mask says so token by token.
    leaves = r.tis_rejected == "leave" and r.tis_mode != "truncate" and r.tis_level == "token"
    tis_mode = r.tis_mode if r.use_tis else "given" if given.has_importance else None
    ratio_low, ratio_high = ratio_bounds(r)
    return _core.LossOptions(
        {
            "policy_loss": "ppo" if r.policy_loss == "gspo" else r.policy_loss,
            "ratio_level": r.ratio_level,
            "advantage_level": r.advantage_level,
            "dual_clip": "delta" if r.delta is not None else "on" if r.use_dual_clip else None,
            "tis_mode": tis_mode,
            "tis_level": r.tis_level if r.use_tis else None,
            "kl_estimator": r.kl_estimator if has_kl else None,
            "kl_gradient": r.kl_gradient if has_kl else None,
            "kl_weight": r.kl_ratio if has_kl and r.kl_weight == "ratio" else None,
            "tis_rejected": "leave" if r.use_tis and leaves else None,
            "entropy": "on" if r.entropy_coef != 0 else None,
            "log_ratio_low": low,
            "log_ratio_high": high,
            "kl_log_ratio_low": kl_low,
            "kl_log_ratio_high": kl_high,
            "ratio_low": ratio_low,
            "ratio_high": ratio_high,
            "dual_ratio": r.clip_ratio_c if r.delta is None else r.delta,
            "tau_positive": r.sapo_tau_pos,
            "tau_negative": r.sapo_tau_neg,
            "correction_low": r.tis_imp_ratio_floor,
            "correction_high": r.tis_imp_ratio_cap,
            "correction_clamp": r.tis_log_clamp,
            "correction_overflow_log": OVERFLOW_LOG if r.tis_overflow == "zero" else inf,
            "kl_coef": r.kl_coef,
            "kl_clamp": r.kl_clamp,
            "kl_output_clamp": r.kl_output_clamp,
            "entropy_coef": r.entropy_coef,
            "loss_reduction": r.loss_reduction,
            "kl_reduction": r.kl_reduction,
            "max_seq_len": given.max_seq_len or 0.0,
            "samples_per_prompt": given.samples_per_prompt or 0,
        }
    )
