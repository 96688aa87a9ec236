# SPDX-License-Identifier: Apache-2.0
"""The op ratio_kl: logp of both policies, then one small kernel. Without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import bounds, code
from rlk._ops.common import Explanation, Tensor, needs_autograd
from rlk._ops.logp import LogpOptions, explain_logp_of
from rlk.errors import InvalidArgument, renamed, shape_of, text
from rlk.losses import Bounds

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
    kl_clamp: float = 20.0,
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
        kl_gradient: "pathwise", the derivative of that; "unbiased": -e; "unbiased_clamped": -e,
            and 0 beyond kl_clamp.
        kl_clamp: k3's e is clamped to +-kl_clamp; its pathwise derivative beyond is 0.
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
    call = make_call(
        policy_logits,
        ref_logits,
        action_ids,
        attention_mask,
        old_logps,
        ref_logps=ref_logps,
        kl=kl,
        kl_gradient=kl_gradient,
        kl_clamp=kl_clamp,
        log_ratio_clamp=log_ratio_clamp,
        temperature=temperature,
        softcap=softcap,
        logit_scale=logit_scale,
        ignore_index=ignore_index,
    )
    if needs_autograd(policy_logits, temperature, softcap, logit_scale):
        from rlk._ops import torch_ratio_kl

        return torch_ratio_kl.ratio_kl(call, stream)
    return forward(call, stream, False)[0]


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
    call = make_call(policy_logits, ref_logits, action_ids, attention_mask, old_logps, **options)
    return gradients(call, grad_ratio, grad_kl, stream)


def explain_ratio_kl(
    policy_logits: Tensor,
    ref_logits: Tensor | None,
    action_ids: Tensor,
    attention_mask: Tensor | None = None,
    old_logps: Tensor | None = None,
    *,
    backward: bool = False,
    **options: Any,
) -> Explanation:
    """Which variant of `logp` would read the logits of these arguments of `ratio_kl`, and why.

    Args:
        backward: explain the backward in place of the forward.
        Others: as `ratio_kl`; those that `logp` has not are not looked at.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `logp` would.

    Example:
        >>> print(rlk.jit.explain_ratio_kl(logits, ref_logits, tokens))
    """
    return explain_logp_of(policy_logits, action_ids, attention_mask, options, backward)


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
    for name, good, least, value in (
        ("log_ratio_clamp", low < high, "above 0", log_ratio_clamp),
        ("kl_clamp", most >= 0 and not isinstance(kl_clamp, tuple), "from 0 up", kl_clamp),
    ):
        if not good:
            raise InvalidArgument(f"ratio_kl: {name}: expected a number {least}, got {text(value)}")
    with renamed("ratio_kl", {"kl_estimator": "kl"}):
        codes = 1 + code("kl_estimator", kl), code("kl_gradient", kl_gradient)
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
