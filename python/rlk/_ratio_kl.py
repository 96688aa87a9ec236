# SPDX-License-Identifier: Apache-2.0
"""The op ratio_kl: logp of both policies, then one small kernel. Its Python side without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import WORDS, bounds
from rlk._ppo_loss import Bounds
from rlk.errors import InvalidArgument, renamed, shape_of, text

Tensor = Any
# What logp's arguments are called here.
NAMES = {"logits": "policy_logits", "target": "action_ids", "mask": "attention_mask"}
REF_NAMES = {**NAMES, "logits": "ref_logits"}

# target, temperature, softcap, logit_scale, mask, ignore_index
LogpOptions = tuple[Any, Any, Any, Any, Any, Any]


class RatioKl(NamedTuple):
    """What `ratio_kl` returns, float32 ``[...]`` each."""

    ratio: Tensor  #: exp(log p - old); 1 where inactive
    kl: Tensor  #: an estimate of KL(policy || reference); 0 where inactive


class Call(NamedTuple):
    """Arguments as the core takes them."""

    policy_logits: Tensor
    ref_logits: Tensor | None
    ref_logps: Tensor | None
    old_logps: Tensor
    logp: LogpOptions
    estimator: tuple[int, int, float, float, float]  # codes, clamps


class Saved(NamedTuple):
    """What a backward needs beside the logits and logp's options."""

    row_max: Tensor
    row_log_sum: Tensor
    ratio_slope: Tensor
    kl_slope: Tensor


def expect_alike(op: str, policy_logits: Tensor, ref_logits: Tensor) -> None:
    """`logp` of each would take two vocabularies without a word."""
    expected, got = shape_of(policy_logits), shape_of(ref_logits)
    if expected is not None and got is not None and expected != got:
        raise InvalidArgument(
            f"{op}: ref_logits: expected shape {list(expected)} (that of policy_logits), "
            f"got {list(got)}"
        )


def _code(name: str, words: str, value: Any) -> int:
    if isinstance(value, str) and value in WORDS[words]:
        return WORDS[words].index(value)
    expected = ", ".join(WORDS[words])
    raise InvalidArgument(f"ratio_kl: {name}: expected {expected}, got {text(value)}")


def make_call(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    attention_mask: Tensor | None,
    old_logps: Tensor,
    *,
    ref_logps: Tensor | None = None,
    kl: str = "k3",
    kl_gradient: str = "pathwise",
    kl_clamp: float = 20.0,
    log_ratio_clamp: Bounds = 20.0,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    ignore_index: int | None = -100,
) -> Call:
    if (ref_logits is None) == (ref_logps is None):
        got = "neither" if ref_logits is None else "both"
        raise InvalidArgument(f"ratio_kl: ref_logits: expected it or ref_logps, got {got}")
    with renamed("ratio_kl", {}):
        low, high = bounds("log_ratio_clamp", log_ratio_clamp)
        _, most = bounds("kl_clamp", kl_clamp)
    for name, good, value in (
        ("log_ratio_clamp", low < high, log_ratio_clamp),
        ("kl_clamp", most >= 0 and not isinstance(kl_clamp, tuple), kl_clamp),
    ):
        if not good:
            raise InvalidArgument(f"ratio_kl: {name}: expected a number above 0, got {text(value)}")
    codes = 1 + _code("kl", "kl_estimator", kl), _code("kl_gradient", "kl_gradient", kl_gradient)
    logp = (action_ids, temperature, softcap, logit_scale, attention_mask, ignore_index)
    estimator = (*codes, low, high, most)
    return Call(policy_logits, ref_logits, ref_logps, old_logps, logp, estimator)


def forward(call: Call, stream: int | None, needs_grad: bool) -> tuple[RatioKl, Saved | None]:
    on_cuda = getattr(call.policy_logits, "is_cuda", False)
    with renamed("ratio_kl", NAMES, on_cuda):
        found = _core.logp_forward(
            call.policy_logits, *call.logp, stream, False, False, needs_grad, False
        )
    log_prob = found[0] if needs_grad else found
    ref = call.ref_logps
    if ref is None:
        expect_alike("ratio_kl", call.policy_logits, call.ref_logits)
        with renamed("ratio_kl", REF_NAMES, on_cuda):
            ref = _core.logp_forward(
                call.ref_logits, *call.logp, stream, False, False, False, False
            )
    ids, _, _, _, mask, ignore_index = call.logp
    ratio, kl, *slopes = _core.ratio_kl_forward(
        log_prob,
        call.old_logps,
        ref,
        ids,
        mask,
        ignore_index,
        *call.estimator,
        stream,
        needs_grad,
    )
    return RatioKl(ratio, kl), Saved(*found[3:], *slopes) if needs_grad else None


def gradient(
    grad_ratio: Tensor | None,
    grad_kl: Tensor | None,
    policy_logits: Tensor,
    logp: LogpOptions,
    saved: Saved,
    stream: int | None,
) -> Tensor:
    """Of policy_logits."""
    grad = _core.ratio_kl_backward(grad_ratio, grad_kl, saved.ratio_slope, saved.kl_slope, stream)
    return _core.logp_backward(
        grad,
        None,
        None,
        policy_logits,
        *logp,
        stream,
        saved.row_max,
        saved.row_log_sum,
        None,
        False,
        None,
        None,
    )


def gradients(
    call: Call, grad_ratio: Tensor | None, grad_kl: Tensor | None, stream: int | None
) -> Tensor:
    """As `gradient`, with a forward of its own."""
    _, saved = forward(call, stream, True)
    assert saved is not None
    return gradient(grad_ratio, grad_kl, call.policy_logits, call.logp, saved, stream)
