# SPDX-License-Identifier: Apache-2.0
"""What the losses from hidden states are made of: linear_logp of the policy and of the reference,
then ppo_loss. Without torch.

`make_call` says what each part takes, once for all ways to run them; `policy_loss` runs the parts
one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from numbers import Real
from operator import index
from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import as_finite
from rlk._ops import linear_logp as of_logp
from rlk._ops import ppo_loss
from rlk._ops.common import Arguments, Tensor, defaults, is_compiling
from rlk._ops.grpo_loss import active_tokens
from rlk.errors import Fault, Unsupported, check_flag, fail, renamed, shape_of, text

HEAD = ("hidden", "weight", "bias")
_OF_LOGP = ("target", *HEAD, *defaults(of_logp.linear_logp))
#: Options of linear_logp that are the policy's: the reference has no gradient.
_OF_POLICY = ("saved_mib", "accumulate_into", "lora")


class Call(NamedTuple):
    """What the parts of a loss take."""

    op: str
    names: Mapping[str, str]  # what their arguments are called in the op
    logp: Arguments  # of the policy's linear_logp
    ref: Arguments | None  # of the reference's, where its log-probs are to be computed
    loss: Arguments  # of ppo_loss with its `options`, but what the parts before it make
    grad_scale: Any
    ranks: Any  # those that hold the batch, as in ppo_loss
    workspace_mib: int | None


def make_call(
    op: str, names: Mapping[str, str], given: Arguments, loss: Arguments, ranks: Any = None
) -> Call:
    """Of the arguments of `op`, and those of ppo_loss among them by its names."""
    logp = {name: given[name] for name in _OF_LOGP if name in given}
    logp["mask"] = given[names["mask"]]
    logp["sequence_parallel"] = check_flag(op, "sequence_parallel", given["sequence_parallel"])
    options = loss["options"]
    kl_coef, ref = options.get("kl_coef"), None
    if kl_coef is not None and kl_coef != 0:
        ref = _reference(op, names, given, logp, options)
    loss = {**loss, "stream": given["stream"]}
    for name in ("saved_mib", "workspace_mib"):  # whichever the call takes
        _check_mib(op, name, given[name])
    scale, mib = grad_scale_of(op, given), given["workspace_mib"]
    return Call(op, names, logp, ref, loss, scale, ranks, mib)


def _check_mib(op: str, name: str, value: Any) -> None:
    if value is None:
        return
    with suppress(TypeError):  # no whole number
        if not isinstance(value, bool) and 0 <= index(value) <= of_logp.MOST_MIB:
            return
    fail(op, name, f"a whole number from 0 to {of_logp.MOST_MIB}, or None", text(value))


def _reference(
    op: str, names: Mapping[str, str], given: Arguments, logp: Arguments, options: Arguments
) -> Arguments | None:
    """The arguments of the reference's linear_logp, None where it is not asked for."""
    head = {name: given[f"ref_{name}"] for name in HEAD}
    by = names["ref_log_probs"]
    if options.get("ref_log_probs") is not None:
        for name, value in head.items():
            if value is not None:
                fail(op, f"ref_{name}", f"None with {{{by}}}", "both")
        return None
    if all(value is None for value in head.values()):
        expected = f"it and {{ref_weight}}, or {{{by}}}, with {{{names['kl_coef']}}}"
        fail(op, "ref_hidden", expected, "None")
    for name, other in (("hidden", "weight"), ("weight", "hidden")):
        if head[name] is None:
            fail(op, f"ref_{name}", f"a tensor with {{ref_{other}}}", "None")
    (own, *_), (ref, *_) = (shape_of(w) or (None,) for w in (logp["weight"], head["weight"]))
    if own != ref and own is not None and ref is not None:
        fail(op, "ref_weight", f"{own} rows (as {{weight}})", ref)
    rows = (shape_of(logp["hidden"]) or ())[:-1]
    got = shape_of(head["hidden"])
    if rows == shape_of(logp["target"]) and got is not None and got[:-1] != rows:
        expected = f"shape [{', '.join(map(str, rows))}, D] (rows as {{hidden}})"
        fail(op, "ref_hidden", expected, list(got))
    for name, value in head.items():  # no gradient is taken
        detach = getattr(value, "detach", None)
        head[name] = value if detach is None else detach()
    return {**{name: value for name, value in logp.items() if name not in _OF_POLICY}, **head}


def grad_scale_of(op: str, given: Arguments) -> Any:
    """The factor of the gradients, None for 1."""
    scale, hidden = given["grad_scale"], given["hidden"]
    # Numbers first: Dynamo has no hasattr() of one that changes between calls.
    if not isinstance(scale, Real) and hasattr(scale, "requires_grad"):
        is_number = scale.ndim == 0 and scale.is_floating_point() and not scale.requires_grad
        if not is_number or scale.device != hidden.device:
            expected = (
                "a number, or a floating tensor of no axis on {hidden}'s device, without gradient"
            )
            fail(op, "grad_scale", expected, f"{scale.dtype} {list(scale.shape)} on {scale.device}")
        return scale
    number = as_finite(scale)
    if number is None:
        fail(op, "grad_scale", "a finite number of float32 or a tensor of no axis", text(scale))
    return None if number == 1 else number


def scaled(loss: Tensor, grad_scale: Any) -> Tensor:
    """The loss, whose gradient is multiplied."""
    if grad_scale is None or not getattr(loss, "requires_grad", False):
        return loss
    from rlk._ops import torch_linear_loss

    return torch_linear_loss.scaled(loss, grad_scale)


def in_words_of(op: str, names: Mapping[str, str], tensor: Tensor) -> Any:
    """A part's errors as those of `op`; `tensor`: on the device of the call. torch.compile is told
    them by the parts."""
    if is_compiling():
        return nullcontext()
    return renamed(op, names, getattr(tensor, "is_cuda", False))


def log_probs(call: Call, asked: Arguments) -> Any:
    """The result of the policy's linear_logp, a tuple where more than its log-prob is asked for."""
    return _linear_logp(call, {**call.logp, **asked}, call.names)


def _linear_logp(call: Call, arguments: Arguments, names: Mapping[str, str]) -> Any:
    with in_words_of(call.op, names, arguments["hidden"]):
        found = of_logp.linear_logp(**arguments)
    log_prob = found[0] if isinstance(found, tuple) else found
    if isinstance(log_prob, _core.Array):
        raise Unsupported(Fault(call.op, "hidden", "torch tensors on CUDA", "another's"))
    return found


def _others(call: Call, needs_ref: bool) -> Arguments:
    """What is made for ppo_loss, by its names, besides values of the policy."""
    of = call.logp
    made = {"loss_mask": active_tokens(of["target"], of["mask"], of["ignore_index"])}
    if needs_ref and call.ref is not None:
        names = {**call.names, **{name: f"ref_{name}" for name in HEAD}}
        made["ref_log_probs"] = _linear_logp(call, call.ref, names)
    return made


def _of_policy(call: Call, needs_entropy: bool) -> Arguments:
    """Its log-probs and entropy."""
    if not needs_entropy:
        return {"log_probs": log_probs(call, {})}
    log_prob, entropy, _ = log_probs(call, {"return_entropy": True, "entropy_grad": True})
    return {"log_probs": log_prob, "entropy": entropy}


def policy_loss(call: Call) -> ppo_loss.PpoLoss:
    """Runs the parts one by one."""
    options = call.loss["options"]
    if is_compiling() or _core.is_watched(call.logp):  # each part is an operator
        made = _of_policy(call, bool(options.get("entropy_coef")))
        made |= _others(call, bool(options.get("kl_coef")))
        given = {name: value for name, value in call.loss.items() if name != "options"}
        found = ppo_loss.ppo_loss(**{**given, **options, **made})
        return found._replace(loss=scaled(found.loss, call.grad_scale))
    if call.ranks is None:
        return _run(call)
    with call.ranks.agreement.telling():
        return _run(call)


def _resolved(call: Call) -> ppo_loss.Call:
    """ppo_loss's call before there are log-probs: only what is missing is told by now."""
    made = {"entropy": call.logp["hidden"]}
    if call.ref is not None:
        made["ref_log_probs"] = call.ref["hidden"]
    inputs = {**dict.fromkeys(ppo_loss.INPUTS), **call.loss}
    options = {**call.loss["options"], **made}
    with renamed(call.op, call.names):
        loss = ppo_loss.make_call({**inputs, "options": options}, call.ranks)
    if loss.ranks is not None:
        from rlk._ops.torch_loss_ranks import check_torch

        hidden, stream = call.logp["hidden"], call.logp["stream"]
        check_torch(call.op, "hidden", hidden, stream, loss.ranks)
    return loss


def _run(call: Call) -> ppo_loss.PpoLoss:
    loss = _resolved(call)
    # The entropy's gradient takes logits, means of log-ratios whole sequences.
    is_by_token = not loss.options.needs_entropy and loss.options.rules.ratio_level == "token"
    if is_by_token and _core.needs_autograd(call.logp):
        from rlk._ops import torch_linear_chunks

        chunks = torch_linear_chunks.chunks_of(call)
        if chunks is not None:
            made = _others(call, loss.options.needs_ref)
            return chunks.policy_loss(loss._replace(arguments={**loss.arguments, **made}))
    made = _of_policy(call, loss.options.needs_entropy)
    made |= _others(call, loss.options.needs_ref)
    with in_words_of(call.op, call.names, call.logp["hidden"]):
        found = ppo_loss.run(loss._replace(arguments={**loss.arguments, **made}))
    return found._replace(loss=scaled(found.loss, call.grad_scale))


def explain(arguments: Arguments, asked: Arguments, core: Any) -> Any:
    """Of the kernel that takes the policy's product; `asked`: of linear_logp."""
    own = defaults(of_logp.linear_logp)
    given = {name: arguments[name] for name in _OF_LOGP if name in arguments}
    given |= {**asked, "backward": arguments["backward"]}
    return of_logp.explain({**own, **given}, core)
