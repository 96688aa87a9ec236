# SPDX-License-Identifier: Apache-2.0
"""The op ppo_loss, without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._loss_options import NAMES, Resolved, resolve
from rlk._metrics import Metrics
from rlk._ops.common import PARAMETERS, Arguments, Tensor, is_compiling
from rlk.errors import check_needs, fail, renamed


class PpoLoss(NamedTuple):
    """What `ppo_loss` returns."""

    loss: Tensor  #: float32, 0-d
    metrics: Metrics


class PpoLossGrads(NamedTuple):
    """Gradients of `ppo_loss`; None where not asked for."""

    log_probs: Tensor | None
    entropy: Tensor | None


def ppo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    *,
    stream: int | None = None,
    **options: Any,
) -> PpoLoss:
    """A policy loss of log-probs with its metrics; the derivative is made in the same pass.

    ``sum over active tokens of w * (rho * l + kl_coef * k) - w * entropy_coef * H``, where l is the
    policy loss of the token, rho its importance weight, k a KL estimator and w a weight that the
    reduction makes from counts. fp32; a token's gradient follows from that token, its sequence's
    statistics and the weights alone, and the loss is an exact sum: with global counts neither
    follows order, padding, packing or micro-batches. Differentiable in log_probs and entropy.

    Args:
        log_probs: ``[B, T]``, or ``[N]`` with cu_seqlens, or ``[T]``: one sequence. Any floating
            dtype; old_log_probs, rollout_logprobs, ref_log_probs, entropy have its shape.
        old_log_probs: of the policy before the update.
        advantages: of log_probs' shape, or ``[B]``, ``[B, 1]``: one a sequence; importance_weights
            and loss_weights likewise.
        loss_mask: of log_probs' shape, bool, integer or float of 0 and 1; None: all active.
            Inactive tokens may hold anything, NaN included.
        stream: as in `linear_logp`.
        options: below; what is None is the dialect's.

    Options:
        dialect: rules of "rlk", "rl_kernel", "verl", "verl_old", "skyrl", "trl", "openrlhf",
            "nemo", "slime", "areal" or "liger": `rlk.losses.DIALECTS`.
        policy_loss: "ppo" (default), "gspo", "cispo", "sapo", "gpg".
        ratio_level: the ratio of a "token"; of a "sequence", exp of its mean log-ratio, with the
            derivative through that mean; "sequence_token": with that of each token alone. gspo is
            ppo with one of the latter, by the dialect.
        advantage_level: "token"; "sequence": its mean; "ratio": as ratio_level.
        eps_clip_low, eps_clip_high: 0.2, 0.2. use_dual_clip (ppo, gspo), clip_ratio_c: False, 3.0.
        delta: the most that the ratio of ppo or gspo is before it is compared with the clip, for
            both signs of A, as in TRL; None: no such cap. Not with use_dual_clip.
        cispo_bounds: "1+eps"; "eps"; (low, high). sapo_tau_pos, sapo_tau_neg: 1.0, 1.05.
        log_ratio_clamp, gspo_log_ratio_clamp: 20.0, a number or (low, high), inf for none; the
            value is clamped, its derivative beyond is 0.
        use_tis, rollout_logprobs: importance weights exp(old - rollout). tis_mode: "truncate" to
            [tis_imp_ratio_floor, tis_imp_ratio_cap] (0, 10), "mask" (0 outside), "band" (the
            token's weight where the statistic is inside, else 0). tis_level: the statistic's,
            "token", "sequence" (sum), "geometric" (mean). tis_log_clamp 20.0, tis_overflow "cap".
            tis_rejected: rejected tokens "stay" in the means of their sequence or "leave" them.
        importance_weights: constants in the place of use_tis's; 0 rejects a token.
        kl_coef, ref_log_probs, kl_estimator ("k1", "abs", "k2", "k3"), kl_gradient ("pathwise",
            "unbiased", "importance"), kl_weight ("one", "ratio"), kl_ratio ("policy", "token",
            "rollout"), kl_clamp 20.0, kl_output_clamp inf, kl_reduction "policy".
        entropy, entropy_coef: a bonus.
        loss_reduction: "token_mean" (default), "token_sum", "sequence_mean" (over all B),
            "sequence_mean_valid", "seq_mean_token_sum", "seq_mean_token_sum_norm" (over B *
            max_seq_len), "seq_mean_token_sum_norm_valid", "token_sum_over_L", "sequence_sum" (over
            B), "prompt_mean", "rollout_mean".
        max_seq_len; samples_per_prompt or group_boundaries ``[P + 1]``: what these ask for; where
            none does, not looked at.
        global_tokens, global_sequences, global_groups: counts over all micro-batches and ranks, a
            number or an int64 tensor of one element.
        loss_group: the ranks that hold the batch, each tokens of its own: a ProcessGroup of torch,
            or a DeviceMesh of one dimension. Counts, loss and metrics are those of all of them, the
            gradient is that of the tokens here. Not with global counts.
        context_group: the ranks, of loss_group if that is given, that hold pieces of the same
            sequences, in the same order.
        loss_weights: ``[B]`` or of log_probs' shape, in place of a reduction.
        cu_seqlens: ``[B + 1]``, starts of packed sequences.

    Returns:
        `PpoLoss` (loss, metrics): the loss, float32 of 0 dimensions, and `rlk.losses.Metrics`.
        Without an active token the loss is 0 and every gradient exactly 0.

    Raises:
        rlk.InvalidArgument: a shape, dtype, device, name or number is wrong, or options
            contradict each other (a ValueError).
        rlk.DriverError: a collective over a group failed.
        TypeError: an option that does not exist.

    Example:
        >>> loss, metrics = rlk.jit.ppo_loss(log_probs, old, advantages, mask, use_dual_clip=True)
        >>> loss.backward()

    The formulas, and where systems disagree, are in docs/ppo_loss.md.
    """
    arguments = {
        "log_probs": log_probs,
        "old_log_probs": old_log_probs,
        "advantages": advantages,
        "loss_mask": loss_mask,
        "stream": stream,
        "options": options,
    }
    if is_compiling() or _core.is_watched(arguments):
        from rlk._ops import torch_loss_operators

        return torch_loss_operators.ppo_loss(arguments)
    return run(told("ppo_loss", make_call, arguments))


def ppo_loss_backward(
    grad_output: Tensor,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor | None = None,
    *,
    stream: int | None = None,
    needs: tuple[str, ...] = ("log_probs", "entropy"),
    **options: Any,
) -> PpoLossGrads:
    """Gradients of `ppo_loss` for those without autograd; runs the forward once more.

    Args:
        grad_output: float32 of one element, the gradient of the loss.
        needs: which gradients; "entropy" is left out by itself without an entropy bonus.
        Others: as `ppo_loss`.

    Returns:
        `PpoLossGrads`, each of log_probs' shape, in the dtype of what it is the gradient of; for
        float64 in float32.

    Raises:
        rlk.InvalidArgument: as `ppo_loss`.

    Example:
        >>> grads = rlk.jit.ppo_loss_backward(np.float32(1), log_probs, old, advantages, mask)
    """
    call = told("ppo_loss", make_call, locals())
    needs = check_needs("ppo_loss", needs, ("log_probs", "entropy"))
    has_entropy = "entropy" in needs and call.options.needs_entropy
    *_, grad, grad_entropy = forward(call, "log_probs" in needs, has_entropy)
    found = [
        None if saved is None else gradient(grad_output, saved, call.arguments[name], True)
        for name, saved in (("log_probs", grad), ("entropy", grad_entropy))
    ]
    return PpoLossGrads(*found)


def explain(arguments: Arguments) -> tuple[str, str, str, str, str]:
    call = make_call(arguments)
    return _core.ppo_loss_explain(call.arguments, call.options.core)


class Call(NamedTuple):
    """Arguments as the core takes them: None where one is not there or not read."""

    arguments: Arguments
    options: Resolved
    ranks: Any = None  # torch_loss_ranks.Ranks where the batch lies on several


INPUTS = ("log_probs", "old_log_probs", "advantages", "loss_mask", "stream")
TENSORS = tuple(name for name in PARAMETERS["ppo_loss"] if name not in INPUTS)  # that are options
ABSENT: Arguments = dict.fromkeys(TENSORS)
GROUPS = ("loss_group", "context_group")
OPTIONS = frozenset({"dialect", "max_seq_len", "samples_per_prompt", *NAMES, *TENSORS, *GROUPS})


def told(op: str, make: Any, arguments: Arguments) -> Any:
    """make(arguments, ranks); where the batch lies on several they may be told of its error, but in
    torch.compile, whose operators see to that."""
    options = arguments["options"]
    if not ("loss_group" in options or "context_group" in options) or is_compiling():
        return make(arguments)
    ranks = _ranks_of(op, options)
    if ranks is None:
        return make(arguments)
    with ranks.agreement.telling():
        return make(arguments, ranks)


def _ranks_of(op: str, options: Arguments) -> Any:
    """Those that hold the batch, where options say that there are several."""
    if options.get("loss_group") is options.get("context_group") is None:
        return None
    from rlk._ops.torch_loss_ranks import ranks_of

    with renamed(op, {}):
        return ranks_of(*(options.get(name) for name in GROUPS))


def make_call(arguments: Arguments, ranks: Any = None) -> Call:
    """Of the inputs by name, and `options`, which are taken out. `ranks`: those of the groups among
    them, where they are known."""
    options = arguments.pop("options")
    if "loss_group" in options or "context_group" in options:
        ranks = ranks or _ranks_of("ppo_loss", options)
        for name in GROUPS:
            options.pop(name, None)
    given = {name: options.pop(name) for name in TENSORS if name in options}
    has_boundaries = given.get("group_boundaries") is not None
    has_weights = given.get("loss_weights") is not None
    has_importance = given.get("importance_weights") is not None
    resolved = resolve((has_boundaries, has_weights, has_importance), options)
    arguments.update(ABSENT)
    for name, tensor in given.items():
        if name not in resolved.unread:
            arguments[name] = tensor
    for name, switch in resolved.required:
        if arguments[name] is None:
            fail("ppo_loss", name, f"a tensor with {{{switch}}}", "None")
    if ranks is not None:
        from rlk._ops.torch_loss_ranks import check_counts

        check_counts(ranks, given)
    return Call(arguments, resolved, ranks)


def run(call: Call) -> PpoLoss:
    """The loss, with autograd where log_probs or entropy need a gradient."""
    if _core.needs_autograd(call.arguments):
        from rlk._ops import torch_ppo_loss

        return torch_ppo_loss.ppo_loss(call)
    loss, *written, _, _ = forward(call, False, False)
    return PpoLoss(loss, Metrics(*written))


def forward(call: Call, needs_grad: bool, needs_entropy: bool) -> tuple[Any, ...]:
    """(loss, three that metrics are made of, saved for log_probs, saved for entropy)."""
    arguments, options, ranks = call
    if ranks is not None:
        from rlk._ops import torch_loss_ranks

        return torch_loss_ranks.forward(*call, needs_grad, needs_entropy)
    return _core.ppo_loss_forward(arguments, options.core, needs_grad, needs_entropy)


def gradient(upstream: Tensor, saved: Tensor, of: Tensor, in_place: bool = False) -> Tensor:
    """upstream * saved, in the dtype of the tensor `of` that it is the gradient of; `in_place`:
    saved itself, where the dtypes are one. On CUDA one that upstream leaves as it is costs nothing.
    """
    given = {"saved": saved, "grad_output": upstream, "log_probs": of}
    return _core.ppo_loss_backward(given, in_place)
