# SPDX-License-Identifier: Apache-2.0
"""The op ratio_kl: logp of both policies, then one small kernel. Without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import as_float, bounds, check_word
from rlk._ops.common import Arguments, Tensor, arguments_of, is_compiling, with_defaults
from rlk._rules import DEFAULTS, inf
from rlk.errors import fail, renamed, shape_of, text

# What logp's arguments are called here.
NAMES = {"logits": "policy_logits", "target": "action_ids", "mask": "attention_mask"}
REF_NAMES = {**NAMES, "logits": "ref_logits"}


class RatioKl(NamedTuple):
    """What `ratio_kl` returns, float32 ``[...]`` each."""

    ratio: Tensor  #: exp(log p - old); 1 where inactive
    kl: Tensor  #: an estimate of KL(policy || reference); 0 where inactive


def ratio_kl(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    attention_mask: Tensor | None,
    old_logps: Tensor,
    *,
    ref_logps: Tensor | None = None,
    kl: str = "k3",
    kl_gradient: str = "pathwise",
    kl_clamp: float | None = None,
    log_ratio_clamp: float | tuple[float, float] = 20.0,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    ignore_index: int | None = -100,
    stream: int | None = None,
) -> RatioKl:
    """Importance ratios and KL estimates of tokens, straight from the logits of both policies.

    ``ratio = exp(log p - old)`` and ``kl = k(ref - log p)``, log p and ref being the `logp` of
    action_ids under the two logits, with its bits. One read of each logits forward; backward one
    read and one write of the policy's. Differentiable in policy_logits alone, for torch tensors.

    Args:
        policy_logits: ``[..., V]``, float32, bfloat16 or float16. Packed sequences: ``[N, V]``.
        ref_logits: ``[..., V]`` of the reference policy, or None with ref_logps.
        action_ids: ``[...]``, ids in ``[0, V)`` of any integer dtype.
        attention_mask: ``[...]``, bool, integer or float of 0 and 1; None: all are active. Inactive
            tokens may hold anything in every argument; so may those of ignore_index.
        old_logps: ``[...]``, of any floating dtype.
        ref_logps: ``[...]``, the reference's log-probs in place of its logits.
        kl: "k1" -e, "abs" |e|, "k2" e^2 / 2 or "k3" exp(e) - 1 - e, with e = ref - log p.
        kl_gradient: "pathwise", the derivative of that; "unbiased": -e; "importance": that of
            the estimate times exp(log p - stop_gradient(log p)), -e for k3; 0 beyond kl_clamp.
        kl_clamp: e is clamped to +-kl_clamp, inf for none; the pathwise derivative beyond is 0.
            None: 20 for k3, none for the others.
        log_ratio_clamp: a number or (low, high) that log p - old is clamped to, inf for none; the
            derivative beyond is 0.
        temperature, softcap, logit_scale, ignore_index, stream: as in `logp`, of both logits.

    Returns:
        `RatioKl` (ratio, kl), float32 ``[...]``; 1 and 0 where inactive, the gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong (a ValueError).

    Example:
        >>> ratio, kl = rlk.jit.ratio_kl(logits, ref_logits, tokens, mask, old_logps)
        >>> ((-advantages * ratio + 0.04 * kl) * mask).sum().backward()

    k3 is Schulman's ("Approximating KL divergence", 2020), as GRPO takes it.
    """
    arguments = {
        "policy_logits": policy_logits,
        "ref_logits": ref_logits,
        "action_ids": action_ids,
        "attention_mask": attention_mask,
        "old_logps": old_logps,
        "ref_logps": ref_logps,
        "kl": kl,
        "kl_gradient": kl_gradient,
        "kl_clamp": kl_clamp,
        "log_ratio_clamp": log_ratio_clamp,
        "temperature": temperature,
        "softcap": softcap,
        "logit_scale": logit_scale,
        "ignore_index": ignore_index,
        "stream": stream,
    }
    if is_compiling() or _core.is_watched(arguments):
        from rlk._ops import torch_loss_operators

        return torch_loss_operators.ratio_kl(arguments)
    call = make_call(arguments)
    if _core.needs_autograd(arguments):
        from rlk._ops import torch_ratio_kl

        return torch_ratio_kl.ratio_kl(call, arguments)
    return forward(call, False)[0]


def ratio_kl_backward(
    grad_ratio: Tensor | None,
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    attention_mask: Tensor | None,
    old_logps: Tensor,
    *,
    grad_kl: Tensor | None = None,
    stream: int | None = None,
    **options: Any,
) -> Tensor:
    """Gradient of `ratio_kl` for those without autograd; runs the forward once more.

    Args:
        grad_ratio, grad_kl: ``[...]``, of the ratio and of the KL estimate; None: 0.
        Others: as `ratio_kl`.

    Returns:
        The gradient of policy_logits, ``[..., V]`` of their dtype.

    Raises:
        rlk.InvalidArgument: as `ratio_kl`, and where both gradients are None.

    Example:
        >>> grad = rlk.jit.ratio_kl_backward(-advantages, logits, ref_logits, tokens, mask, old)
    """
    given = locals()
    call = make_call(with_defaults("ratio_kl", ratio_kl, given, given.pop("options")))
    _, saved = forward(call, True)
    return gradient({**call.logp, **saved, "grad_ratio": grad_ratio, "grad_kl": grad_kl})


def explain(arguments: Arguments) -> tuple[str, str, str, str, str]:
    given = arguments_of("logp", arguments, NAMES)
    return _core.logp_explain({**given, "backward": arguments["backward"]})


class Call(NamedTuple):
    """Arguments as the parts take them."""

    logp: Arguments
    ref: Arguments | None  #: of the reference's logp
    ref_logps: Tensor | None
    old_logps: Tensor
    estimator: Any  #: _core.LossOptions


def expect_alike(op: str, policy_logits: Tensor, ref_logits: Tensor) -> None:
    """`logp` of each would take two vocabularies without a word."""
    expected, got = shape_of(policy_logits), shape_of(ref_logits)
    if expected is not None and got is not None and expected != got:
        fail(op, "ref_logits", f"shape {list(expected)} (that of {{policy_logits}})", list(got))


def make_call(given: Arguments) -> Call:
    ref_logits, ref_logps = given["ref_logits"], given["ref_logps"]
    if (ref_logits is None) == (ref_logps is None):
        got = "neither" if ref_logits is None else "both"
        fail("ratio_kl", "ref_logits", "it or {ref_logps}", got)
    log_ratio_clamp, kl_clamp = given["log_ratio_clamp"], given["kl_clamp"]
    with renamed("ratio_kl", {}):
        low, high = bounds("log_ratio_clamp", log_ratio_clamp)
    if not low < high:
        fail("ratio_kl", "log_ratio_clamp", "a number above 0", text(log_ratio_clamp))
    words = {"kl_estimator": given["kl"], "kl_gradient": given["kl_gradient"]}
    with renamed("ratio_kl", {"kl_estimator": "kl"}):
        for name, word in words.items():
            check_word(name, word)
    most = DEFAULTS["kl_clamp"] if given["kl"] == "k3" else inf
    if kl_clamp is not None:
        most = as_float(kl_clamp)
        if most is None or not most >= 0:  # also NaN
            fail("ratio_kl", "kl_clamp", "a number from 0 up, or None", text(kl_clamp))
    clamps = {"log_ratio_low": low, "log_ratio_high": high, "kl_clamp": most}
    estimator = _core.LossOptions({**words, **clamps, "kl_output_clamp": inf})
    logp = arguments_of("logp", given, NAMES)
    ref = None if ref_logits is None else {**logp, "logits": ref_logits}
    return Call(logp, ref, ref_logps, given["old_logps"], estimator)


def forward(call: Call, needs_grad: bool) -> tuple[RatioKl, Arguments]:
    """The result, and what `gradient` needs beside logp's arguments."""
    logits = call.logp["logits"]
    on_cuda = getattr(logits, "is_cuda", False)
    with renamed("ratio_kl", NAMES, on_cuda):
        found = _core.logp_forward(call.logp, needs_grad, needs_grad)
    log_prob, *saved = found if needs_grad else (found,)
    ref = call.ref_logps
    if call.ref is not None:
        expect_alike("ratio_kl", logits, call.ref["logits"])
        with renamed("ratio_kl", REF_NAMES, on_cuda):
            ref = _core.logp_forward(call.ref)
    tokens = {
        "log_prob": log_prob,
        "old_logps": call.old_logps,
        "ref_logps": ref,
        "action_ids": call.logp["target"],
        "attention_mask": call.logp["mask"],
        "ignore_index": call.logp["ignore_index"],
        "stream": call.logp["stream"],
    }
    ratio, kl, *slopes = _core.ratio_kl_forward(tokens, call.estimator, needs_grad)
    names = ("row_max", "row_log_sum", "ratio_slope", "kl_slope")
    return RatioKl(ratio, kl), dict(zip(names, (*saved[2:], *slopes), strict=False))


def gradient(arguments: Arguments) -> Tensor:
    """Of policy_logits, from grad_ratio, grad_kl, logp's arguments and what a forward gave."""
    grad = _core.ratio_kl_backward(arguments)
    return _core.logp_backward({**arguments, "grad_output": grad})
