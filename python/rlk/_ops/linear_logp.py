# SPDX-License-Identifier: Apache-2.0
"""The op linear_logp, without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlk import _core
from rlk._ops.common import Arguments, Tensor, is_compiling, is_sharded, logp_result, over_ranks
from rlk.errors import check_flag, check_needs, fail, text

#: The largest saved_mib and workspace_mib: all of any call.
MOST_MIB = 1 << 20


def linear_logp(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    return_entropy: bool = False,
    return_lse: bool = False,
    return_stats: bool = False,
    saved_mib: int | None = None,
    entropy_grad: bool = False,
    accumulate_into: Tensor | str | None = None,
    lora: tuple[Tensor, Tensor, float] | None = None,
    compute_dtype: Any = None,
    group: Any = None,
    vocab_range: tuple[int, int] | None = None,
    vocab_size: int | None = None,
    sequence_parallel: bool = False,
    stream: int | None = None,
) -> Any:
    """Log-probabilities of target ids, straight from hidden states; no [N, V] logits are formed.

    ``log_softmax(z)[target]`` of the logits ``z = cap(logit_scale * (hidden @ weight.T + bias)) /
    temperature``, in this order, ``cap(x) = softcap * tanh(x / softcap)``; all in float32 from
    the first to the last operation. A row's bits depend on that row alone: not on the batch, its
    position, strides or the number of threads. Differentiable in hidden, weight and bias for torch
    tensors. On a CUDA device the call is queued on the current stream and returns at once.

    Args:
        hidden: ``[..., D]``, float32, bfloat16 or float16.
        weight: ``[V, D]``, hidden's dtype; in autocast and with compute_dtype any of the three.
        target: ``[...]``, ids in ``[0, V)`` of any integer dtype.
        bias: ``[V]``, hidden's dtype or float32.
        temperature: a number above 0, or one a row, ``[...]``; rounded to float32.
        softcap: a number above 0 that logits are capped to (Gemma 2: 30); None: they are not.
        logit_scale: a number that logits are multiplied by (Cohere; Granite divides by it).
        mask: ``[...]``, bool, integer or float of 0 and 1. Rows of 0 are inactive: log-prob,
            entropy, lse and gradients 0, and their hidden state and target may hold anything.
        ignore_index: rows with this target are inactive as well; None: no target is special.
        return_entropy: also give the entropy of each row's distribution, in nats.
        return_lse: also give the log-sum-exp of each row's logits z.
        return_stats: also give the statistics of z that trainers log, `LogitStats`: max_logit,
            argmax (int64, the lowest column at the maximum), mean_logit and sum_p2, the sum of
            p^2. They have no gradient.
        saved_mib: MiB that the forward may keep of its exponentials where hidden or weight needs a
            gradient, which the backward then need not compute again; None: as `configure` says.
            Results do not depend on it.
        entropy_grad: the loss has the entropy: nothing is kept, as a backward with a gradient of
            the entropy cannot use it.
        accumulate_into: float32 ``[V, D]``, contiguous: the backward adds weight's gradient to it,
            unrounded and once a call, and weight gets none. "main_grad": weight.main_grad, as
            Megatron-LM's optimizers make it.
        lora: (A ``[r, D]``, B ``[V, r]``, scale): weight is frozen and stands for weight + scale *
            B A, which is not formed. Differentiable in A and B; each is of hidden's dtype, or
            float32 and rounded to it. Copies weight, as ``[V, D + 2r]``, in each call, but where
            `make_lora_room` was called. For torch tensors.
        compute_dtype: of torch tensors: bfloat16, float16 or float32 (torch's object or the name),
            which hidden and weight are taken in, a float32 weight with bfloat16 hidden states, say.
            Their gradients have their own dtypes; a float32 one is not rounded. None: autocast's
            dtype where autocast is on for the device, as for F.linear, else their own.
        group: of torch tensors: the ranks among whom the vocabulary is cut, a ProcessGroup of
            torch.distributed or a DeviceMesh of one dimension. All ranks make this call, and its
            backward, with the same rows; weight and bias are this rank's rows ``[V_r, D]`` and
            ``[V_r]``, whose gradients are local, target holds ids of the whole vocabulary, and each
            rank gets all results and the whole gradient of hidden. A DTensor ``Shard(0)`` as
            weight, with hidden as a DTensor of its mesh, says the same. See docs/distributed.md.
        vocab_range: (begin, end), the ids that this rank has with group; None: those of the cut
            that vocab_size says.
        vocab_size: V of the whole vocabulary with group; on 1, 2, 4 or 8 ranks each then has
            8 / world neighbouring eighths of ``ceil(V / 8)`` ids, on others ``torch.chunk``'s part.
            None: V_r is the same on every rank, and V the sum.
        sequence_parallel: with group: hidden, and its gradient, are this rank's rows, the whole
            hidden's first axis being cut into like parts in the order of ranks; target and all
            that has one value a row are still of all rows.
        stream: CUDA stream handle to queue on, for tensors whose framework tells no current
            stream (CuPy and JAX through DLPack); None: the default stream. Not for torch tensors.

    Returns:
        float32 ``[...]``, at most 0: a torch tensor for torch tensors, a NumPy array for others on
        the CPU, an `rlk.Array` for others on CUDA. A target whose logit is -inf gives -inf, a row
        whose logits are all -inf gives NaN. With return_entropy or return_lse a `LogpResult`
        (log_prob, entropy, lse), None where not asked for; each is differentiable. With
        return_stats a `LogpStatsResult` (log_prob, entropy, lse, stats).

    Raises:
        rlk.InvalidArgument: a shape, dtype, device or value is wrong (a ValueError). On CUDA a
            target out of range makes its row NaN and is raised by a later call or `check_errors`.
        rlk.Unsupported: nothing here can run this device and dtype, or a tensor carries a tangent
            of forward-mode differentiation or is inside a torch.func transform (a
            NotImplementedError).
        rlk.DriverError: a collective of the group failed (a RuntimeError).

    Example:
        >>> log_probs = rlk.jit.linear_logp(hidden, lm_head.weight, tokens, temperature=0.7)
        >>> (-(advantages * log_probs).sum()).backward()

        >>> out = rlk.jit.linear_logp(hidden, weight, tokens, softcap=30.0, return_entropy=True)
        >>> (out.log_prob + 0.01 * out.entropy).sum().backward()

        >>> out = rlk.jit.linear_logp(hidden, weight, tokens, return_stats=True)
        >>> accuracy = (out.stats.argmax == tokens).float().mean()

        >>> log_probs = rlk.jit.linear_logp(hidden, weight_rows, tokens, group=tensor_parallel)

    With M = max z, S = sum exp(z - M) and T = sum exp(z - M) (z - M) over the vocabulary, log p =
    (z_t - M) - log S, the entropy is log S - T / S, lse = M + log S, and sum_p2 =
    sum exp(2 (z - M)) / S^2.
    """
    given = {
        "hidden": hidden,
        "weight": weight,
        "target": target,
        "bias": bias,
        "temperature": temperature,
        "softcap": softcap,
        "logit_scale": logit_scale,
        "mask": mask,
        "ignore_index": ignore_index,
        "return_entropy": return_entropy,
        "return_lse": return_lse,
        "return_stats": return_stats,
        "saved_mib": saved_mib,
        "entropy_grad": entropy_grad,
        "accumulate_into": accumulate_into,
        "lora": lora,
        "compute_dtype": compute_dtype,
        "stream": stream,
    }
    if accumulate_into is not None:
        given["accumulate_into"] = accumulator(weight, accumulate_into)
    if sequence_parallel is not False:
        sequence_parallel = check_flag("linear_logp", "sequence_parallel", sequence_parallel)
    compiles = is_compiling()
    if (
        group is not None
        or vocab_range is not None
        or vocab_size is not None
        or sequence_parallel
        or is_sharded(weight)
    ):
        return over_ranks(compiles).linear_logp(
            given, group, vocab_range, vocab_size, sequence_parallel
        )
    is_cast = compiles or casts(given)
    if lora is not None:
        from rlk._ops import torch_lora

        return logp_result(given, torch_lora.linear_logp(cast(given) if is_cast else given))
    if compiles or _core.needs_autograd(given):
        from rlk._ops import torch_logp

        return logp_result(given, torch_logp.linear_logp(given, is_cast))
    return logp_result(given, _core.linear_logp_forward(cast(given) if is_cast else given))


def casts(given: Arguments) -> bool:
    """Whether operands may be cast."""
    return given["compute_dtype"] is not None or _core.is_autocast_enabled()


def cast(given: Arguments) -> Arguments:
    """The arguments in the dtype that compute_dtype or autocast says, if any."""
    asked = given["compute_dtype"]
    if not hasattr(given["hidden"], "requires_grad"):
        if asked is not None:
            expected = "None where {hidden} is no torch tensor"
            fail("linear_logp", "compute_dtype", expected, text(asked))
        return given
    from rlk._ops import torch_cast

    return torch_cast.cast("linear_logp", given, ("hidden", "weight"), asked)


def make_lora_room(weight: Tensor, rank: int) -> None:
    """Moves a frozen weight to where its rows have room for the columns of an adapter, so that
    `linear_logp` with ``lora=`` need not copy it.

    The tensor stays the same object with the same values; its rows lie further apart, by 2 rank
    elements (float32: rank) up to 16 bytes. While it is moved there are both.

    Args:
        weight: ``[V, D]``, float32, bfloat16 or float16: a torch tensor or parameter, whose
            ``.data`` is replaced.
        rank: of the adapter; those of others copy the weight.

    Raises:
        rlk.InvalidArgument: a shape, dtype or rank is wrong.

    Example:
        >>> rlk.jit.make_lora_room(model.lm_head.weight, 16)
    """
    from rlk._ops import torch_lora

    torch_lora.make_room(weight, rank)


def accumulator(weight: Any, given: Any) -> Any:
    """The tensor that weight's gradient is added to."""
    if not hasattr(weight, "requires_grad"):
        expected = "None without autograd (linear_logp_backward takes it)"
        fail("linear_logp", "accumulate_into", expected, text(given))
    if isinstance(given, str):
        found = getattr(weight, given, None) if given == "main_grad" else None
        if found is None:
            expected = "a float32 tensor, or main_grad of a weight that has it"
            fail("linear_logp", "accumulate_into", expected, text(given))
        given = found
    if getattr(given, "requires_grad", False):
        fail("linear_logp", "accumulate_into", "a tensor that needs no gradient", "one that does")
    return given


class LinearLogpGrads(NamedTuple):
    """Gradients of `linear_logp`; None where not asked for."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def linear_logp_backward(
    grad_output: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    grad_entropy: Tensor | None = None,
    grad_lse: Tensor | None = None,
    accumulate_into: Tensor | None = None,
    stream: int | None = None,
    needs: tuple[str, ...] = ("hidden", "weight", "bias"),
) -> LinearLogpGrads:
    """Gradients of `linear_logp` for those without autograd.

    Runs the forward once more for its saved values a row, then the backward.

    Args:
        grad_output: ``[...]``, the gradient of the loss with respect to the log-probs; None: 0.
        hidden, weight, target, bias, temperature, softcap, logit_scale, mask, ignore_index, stream:
            as in `linear_logp`.
        grad_entropy: ``[...]``, the gradient with respect to the entropy; None: 0.
        grad_lse: ``[...]``, the gradient with respect to the log-sum-exp; None: 0.
        accumulate_into: float32 ``[V, D]``, contiguous: weight's gradient is added to it,
            unrounded.
        needs: which gradients to compute; "bias" is left out by itself where bias is None.

    Returns:
        `LinearLogpGrads` (hidden ``[..., D]``, weight ``[V, D]``, bias ``[V]``), each in the dtype
        of what it is the gradient of, None where not asked for and for a weight whose gradient is
        in accumulate_into.

    Raises:
        rlk.InvalidArgument: as `linear_logp`, for a name in needs that is none of the three, and
            where all three gradients are None.

    Example:
        >>> grads = rlk.jit.linear_logp_backward(-advantages, hidden, weight, tokens)
        >>> weight -= 1e-3 * grads.weight

    dz_j = grad_output (1[j = target] - p_j) + grad_lse p_j - grad_entropy p_j (log p_j + entropy),
    then times 1 / temperature, 1 - tanh^2 of the cap, and logit_scale.
    """
    arguments = locals()
    needs = check_needs("linear_logp", needs, ("hidden", "weight", "bias"))
    if getattr(accumulate_into, "requires_grad", False):
        fail("linear_logp", "accumulate_into", "a tensor that needs no gradient", "one that does")
    has_bias = "bias" in needs and bias is not None
    grads = LinearLogpGrads(
        *_core.linear_logp_backward(arguments, "hidden" in needs, "weight" in needs, has_bias)
    )
    changed: Any = accumulate_into
    if hasattr(changed, "_version"):  # torch must see that it has changed
        import torch

        torch.autograd.graph.increment_version(changed)
    return grads


def explain(arguments: Arguments, core: Any = _core) -> Any:
    """What `explain` says; `core`: as of autograd."""
    into = arguments["accumulate_into"]
    if into is not None:
        arguments["accumulate_into"] = accumulator(arguments["weight"], into)
    arguments = cast(arguments)
    if arguments["lora"] is not None:
        from rlk._ops import torch_lora

        return _core.linear_logp_explain(torch_lora.widened(arguments))
    needs = [getattr(arguments[name], "requires_grad", False) for name in ("hidden", "weight")]
    arguments["keep"] = any(needs) and _core.needs_autograd(arguments)
    return core.linear_logp_explain(arguments)
