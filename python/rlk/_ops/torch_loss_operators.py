# SPDX-License-Identifier: Apache-2.0
"""ppo_loss, grpo_loss, ratio_kl and group_advantages as operators of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from rlk import _core
from rlk._loss_options import SWITCHES
from rlk._metrics import NUM_COUNTS, NUM_FLOATS, NUM_SUMS, Metrics
from rlk._ops import group_advantages as of_advantages
from rlk._ops import grpo_loss as of_grpo
from rlk._ops import ppo_loss as of_ppo
from rlk._ops import ratio_kl as of_ratio
from rlk._ops.common import PARAMETERS, Arguments, arguments_of, is_compiling
from rlk._ops.logp import logp
from rlk._ops.torch_common import check_operands, once, refuse_options, restored, save
from rlk._ops.torch_operators import Operator, Rules, differentiable, expect_shape, words_of
from rlk._ops.torch_ppo_loss import operands_of, scaled
from rlk._rules import DEFAULTS, rules
from rlk._rules import Rules as LossRules
from rlk.errors import Fault, Unsupported, renamed


def _optional(kind: str) -> str:
    """An annotation of LossRules as that of an option, which may be None."""
    kind = kind.replace("Bounds", "float | tuple[float, float]").removesuffix(" | None")
    return f"{kind} | None"


#: The options of ppo_loss by name, each with its annotation.
_OPTIONS = {
    "dialect": "str | None",
    "max_seq_len": "float | None",
    "samples_per_prompt": "int | None",
    **{
        name: "int | Tensor | None" if kind == "count" else "Tensor | None"
        for name, (kind, _) in PARAMETERS["ppo_loss"].items()
        if name in of_ppo.TENSORS
    },
    **{f.name: _optional(str(f.type)) for f in fields(LossRules) if f.name in DEFAULTS},
}


def _with_options(
    op: str, given: Arguments, known: frozenset[str], names: Mapping[str, str]
) -> Arguments:
    """The arguments of a call, its options among them, which are to be some of `known`."""
    of_grpo.check_options(op, given["options"], known, names)
    for name in of_ppo.GROUPS:
        if name in given["options"]:
            expected = "None in a transform of torch.func and in a mode"
            raise Unsupported(Fault(op, name, expected, "a group"))
    return {**{n: value for n, value in given.items() if n != "options"}, **given["options"]}


def _without_options(given: Arguments, names: Sequence[str]) -> Arguments:
    """The other way round: `names` are the parameters that are no options."""
    found = {name: given[name] for name in names if name in given}
    options = {n: given[n] for n in _OPTIONS if n not in names and given.get(n) is not None}
    return {**found, "stream": given["stream"], "options": options}


def _without_groups(given: Arguments) -> bool:
    """Whether the batch is of this rank alone. A group that is None is left out of the options."""
    options = given["options"]
    for name in of_ppo.GROUPS:
        if name in options and options[name] is None:
            del options[name]
    return not any(name in options for name in of_ppo.GROUPS)


def _call(function: Callable[..., Any], given: Arguments) -> Any:
    arguments = {name: value for name, value in given.items() if name != "options"}
    return function(**arguments, **given["options"])


#: A call between graphs: its ranks exchange what they have.
_apart: Callable[..., Any] = torch.compiler.disable(
    _call, reason="rlk: ppo_loss and grpo_loss with loss_group or context_group are no operators"
)


def _reads(given: Arguments, tensor: str) -> bool:
    """Whether a loss of these options reads a tensor that an option switches on."""
    switch = SWITCHES[tensor]
    value = given[switch]
    return bool(
        (getattr(rules(given["dialect"] or "rlk"), switch) if value is None else value) != 0
    )


# ppo_loss: (loss, counts, float metrics, exact, what is saved of log_probs and of entropy).
_PPO_NAMES = ("log_probs", "old_log_probs", "advantages", "loss_mask")
_PPO_NEEDS = ("needs_grad", "needs_entropy")
_PPO_WORDS = words_of(of_ppo.ppo_loss, tuple(_OPTIONS.items()))


def _ppo_forward(given: Arguments) -> list[Any]:
    call = of_ppo.make_call(_without_options(given, _PPO_NAMES))
    found = of_ppo.forward(call, *(given[name] for name in _PPO_NEEDS))
    return [tensor for tensor in found if tensor is not None]


def _fake_ppo_forward(given: Arguments) -> list[Any]:
    log_probs = given["log_probs"]
    expect_shape(
        "ppo_loss", "old_log_probs", given["old_log_probs"], log_probs.shape, "that of {log_probs}"
    )
    new = log_probs.new_empty
    return [
        new((), dtype=torch.float32),
        new(NUM_COUNTS, dtype=torch.int64),
        new(NUM_FLOATS, dtype=torch.float32),
        new((NUM_SUMS, 2), dtype=torch.int64),
        *(new(log_probs.shape, dtype=torch.float32) for name in _PPO_NEEDS if given[name]),
    ]


def _fake_ppo_backward(given: Arguments) -> Any:
    saved, of = given["saved"], given["log_probs"]
    is_stored = of is not None and of.dtype in (torch.bfloat16, torch.float16)
    return saved.new_empty(saved.shape, dtype=of.dtype if is_stored else torch.float32)


_run_ppo_forward = Operator(
    "_ppo_loss_forward",
    "ppo_loss",
    [*_PPO_WORDS, *(f"bool {name}=False" for name in _PPO_NEEDS)],
    "Tensor[]",
)
_run_ppo_forward.is_kernel(_ppo_forward, _fake_ppo_forward)
_run_ppo_backward = Operator(
    "_ppo_loss_backward",
    "ppo_loss",
    ["Tensor grad_output", "Tensor saved", "Tensor? log_probs=None"],
    "Tensor",
)
_run_ppo_backward.is_kernel(_core.ppo_loss_backward, _fake_ppo_backward)


def _ppo_needs(given: Arguments) -> Arguments:
    """Which gradients the loss has."""
    entropy = given["entropy"]
    is_read = entropy is not None and _reads(given, "entropy")
    needs = given["log_probs"].requires_grad, is_read and entropy.requires_grad
    return dict(zip(_PPO_NEEDS, needs, strict=True))


def _save_ppo(ctx: Any, given: Arguments, found: tuple[Any, ...]) -> None:
    _, *others = found
    ctx.mark_non_differentiable(*others)
    saved = dict(zip(("log_probs", "entropy"), ctx.needs_input_grad[3:], strict=True))
    grads = iter(others[3:])
    kept: Arguments = {}
    for name, needed in saved.items():
        grad = next(grads, None) if needed else None
        if grad is not None:
            kept |= {f"grad_{name}": grad, name: given[name]}
    save(ctx, "ppo_loss", kept)


def _ppo_gradients(ctx: Any, needs: Sequence[bool], upstream: Any, *_: Any) -> Any:
    if upstream is None:
        return None, None
    kept = restored(ctx)
    return tuple(
        scaled(_run_ppo_backward, upstream, kept.get(f"grad_{name}"), kept.get(name))
        for name in ("log_probs", "entropy")
    )


_PPO = Rules(
    "ppo_loss",
    lambda given, _: tuple(_run_ppo_forward(given)),
    _save_ppo,
    _ppo_gradients,
)


def _ppo_loss(given: Arguments) -> list[Any]:
    operands = operands_of(given)
    # Told now: within a transform of torch.func a forward sees tensors that need none.
    needs = _ppo_needs(given) if torch.is_grad_enabled() else {}
    return list(differentiable(_PPO, {**given, **needs}, *operands)[:4])


_ppo_operator = Operator("ppo_loss", "ppo_loss", _PPO_WORDS, "Tensor[]")
_ppo_operator.is_composite(_ppo_loss)


def ppo_loss(arguments: Arguments) -> of_ppo.PpoLoss:
    """`rlk.jit.ppo_loss`."""
    if not _without_groups(arguments) and is_compiling():
        found: of_ppo.PpoLoss = _apart(of_ppo.ppo_loss, arguments)
        return found
    loss, *written = _ppo_operator(_with_options("ppo_loss", arguments, of_ppo.OPTIONS, {}))
    return of_ppo.PpoLoss(loss, Metrics(*written))


# What grpo_loss and ratio_kl share: both are made of the policy's logp.
def _rows_of(op: str, given: Arguments) -> Any:
    """The shape of a call's rows, which a fake implementation expects of what has a value a row."""
    rows = given["policy_logits"].shape[:-1]
    for name in ("action_ids", "old_logps"):
        expect_shape(op, name, given[name], rows, "that of {policy_logits} without V")
    return rows


def _save_logp(ctx: Any, names: Arguments, given: Arguments, saved: Arguments) -> None:
    """Keeps logp's arguments, which have these names in the op."""
    with renamed(ctx.op, names):
        save(ctx, "logp", arguments_of("logp", given, names), saved)


def _results(rules: Rules, given: Arguments) -> list[Any]:
    """The two that the op returns."""
    operands = check_operands(rules.op, given, ("policy_logits",))
    refuse_options(rules.op, given)
    return list(differentiable(rules, given, *operands)[:2])


def _once(run: Operator, ctx: Any, upstream: Arguments) -> Any:
    """The gradient of the logits by an operator that takes logp's arguments and what was saved."""
    given = {**restored(ctx), **upstream}
    return once(ctx.op, run, given, *upstream.values(), given["logits"])


# grpo_loss: (loss, float metrics, *what is saved). A schema has at most 64 arguments, and this one
# has them: what a backward needs, a few numbers a row, is saved in every call.
_GRPO_NAMES = tuple(name for name in of_grpo.grpo_loss.__annotations__ if name != "return")
_GRPO_SAVED = ("row_max", "row_log_sum", "grad_output", "entropy", "grad_entropy")
_GRPO_WORDS = words_of(
    of_grpo.grpo_loss,
    tuple(
        (name, kind)
        for name, kind in _OPTIONS.items()
        if name in of_grpo.OPTIONS and name not in of_grpo.grpo_loss.__annotations__
    ),
)


def _grpo_forward(given: Arguments) -> list[Any]:
    call = of_grpo.make_call(_without_options(given, _GRPO_NAMES))
    loss, floats, saved, _ = of_grpo.forward(call, True, makes_gradient=False)
    kept = (saved[name] for name in _GRPO_SAVED)
    return [loss, floats, *(tensor for tensor in kept if tensor is not None)]


def _fake_grpo_forward(given: Arguments) -> list[Any]:
    logits, rows = given["policy_logits"], _rows_of("grpo_loss", given)
    count = 5 if _reads(given, "entropy") else 3
    new = logits.new_empty
    return [
        new((), dtype=torch.float32),
        new(NUM_FLOATS, dtype=torch.float32),
        *(new(rows, dtype=torch.float32) for _ in range(count)),
    ]


_run_grpo_forward = Operator("_grpo_loss_forward", "grpo_loss", _GRPO_WORDS, "Tensor[]")
_run_grpo_forward.is_kernel(_grpo_forward, _fake_grpo_forward)
_run_grpo_backward = Operator(
    "_grpo_loss_backward",
    "grpo_loss",
    ["Tensor upstream", *words_of(logp), *(f"Tensor? {name}=None" for name in _GRPO_SAVED)],
    "Tensor",
)
_run_grpo_backward.is_kernel(
    lambda given: of_grpo.gradient(of_grpo.scaled(given, given["upstream"])),
    lambda given: given["logits"].new_empty(given["logits"].shape),
)


def _save_grpo(ctx: Any, given: Arguments, found: tuple[Any, ...]) -> None:
    ctx.mark_non_differentiable(*found[1:])
    _save_logp(ctx, of_grpo.NAMES, given, dict(zip(_GRPO_SAVED, found[2:], strict=False)))


def _grpo_gradients(ctx: Any, needs: Sequence[bool], upstream: Any, *_: Any) -> Any:
    return (None if upstream is None else _once(_run_grpo_backward, ctx, {"upstream": upstream}),)


_GRPO = Rules(
    "grpo_loss",
    lambda given, _: tuple(_run_grpo_forward(given)),
    _save_grpo,
    _grpo_gradients,
)


_grpo_operator = Operator("grpo_loss", "grpo_loss", _GRPO_WORDS, "Tensor[]")
_grpo_operator.is_composite(lambda given: _results(_GRPO, given))


def grpo_loss(arguments: Arguments) -> of_grpo.GrpoLoss:
    """`rlk.jit.grpo_loss`."""
    if not _without_groups(arguments) and is_compiling():
        found: of_grpo.GrpoLoss = _apart(of_grpo.grpo_loss, arguments)
        return found
    given = _with_options("grpo_loss", arguments, of_grpo.OPTIONS, of_grpo.NAMES)
    return of_grpo.result(*_grpo_operator(given))


# ratio_kl: (ratio, kl, *what is saved).
_RATIO_SAVED = ("row_max", "row_log_sum", "ratio_slope", "kl_slope")
_RATIO_WORDS = words_of(of_ratio.ratio_kl)


def _ratio_forward(given: Arguments) -> list[Any]:
    found, saved = of_ratio.forward(of_ratio.make_call(given), given["save"])
    return [*found, *(saved[name] for name in _RATIO_SAVED if given["save"])]


def _fake_ratio_forward(given: Arguments) -> list[Any]:
    logits, rows = given["policy_logits"], _rows_of("ratio_kl", given)
    count = 6 if given["save"] else 2
    return [logits.new_empty(rows, dtype=torch.float32) for _ in range(count)]


_run_ratio_forward = Operator(
    "_ratio_kl_forward", "ratio_kl", [*_RATIO_WORDS, "bool save=False"], "Tensor[]"
)
_run_ratio_forward.is_kernel(_ratio_forward, _fake_ratio_forward)
_run_ratio_backward = Operator(
    "_ratio_kl_backward",
    "ratio_kl",
    [
        *words_of(logp),
        *(f"Tensor? {name}=None" for name in ("grad_ratio", "grad_kl", *_RATIO_SAVED)),
    ],
    "Tensor",
)
_run_ratio_backward.is_kernel(
    of_ratio.gradient, lambda given: given["logits"].new_empty(given["logits"].shape)
)


def _save_ratio(ctx: Any, given: Arguments, found: tuple[Any, ...]) -> None:
    ctx.mark_non_differentiable(*found[2:])
    _save_logp(ctx, of_ratio.NAMES, given, dict(zip(_RATIO_SAVED, found[2:], strict=True)))


def _ratio_gradients(
    ctx: Any, needs: Sequence[bool], grad_ratio: Any, grad_kl: Any, *_: Any
) -> Any:
    if grad_ratio is None and grad_kl is None:
        return (None,)
    upstream = {"grad_ratio": grad_ratio, "grad_kl": grad_kl}
    return (_once(_run_ratio_backward, ctx, upstream),)


_RATIO = Rules(
    "ratio_kl",
    lambda given, save: tuple(_run_ratio_forward({**given, "save": save})),
    _save_ratio,
    _ratio_gradients,
)


_ratio_operator = Operator("ratio_kl", "ratio_kl", _RATIO_WORDS, "Tensor[]")
_ratio_operator.is_composite(lambda given: _results(_RATIO, given))


def ratio_kl(arguments: Arguments) -> of_ratio.RatioKl:
    """`rlk.jit.ratio_kl`."""
    return of_ratio.RatioKl(*_ratio_operator(arguments))


# group_advantages, which has no gradient.
_ADVANTAGES_WORDS = words_of(of_advantages.group_advantages)

_run_advantages = Operator(
    "_group_advantages_forward", "group_advantages", _ADVANTAGES_WORDS, "Tensor"
)
_run_advantages.is_kernel(
    of_advantages.forward,
    lambda given: given["rewards"].new_empty(given["rewards"].shape, dtype=torch.float32),
)
group_advantages = Operator("group_advantages", "group_advantages", _ADVANTAGES_WORDS, "Tensor")
group_advantages.is_composite(_run_advantages)
