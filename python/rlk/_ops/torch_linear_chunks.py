# SPDX-License-Identifier: Apache-2.0
"""A loss from hidden states by chunks of rows: three products, however many rows there are.

A chunk's forward keeps its exponentials, the loss says the derivative of each of its log-probs, and
the chunk's backward makes gradients of them at once. Sums over rows go on from chunk to chunk, and
the loss is an exact sum, so nothing differs from linear_logp and ppo_loss in a row by a bit.
Imported at the first call that needs it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rlk import _core
from rlk._metrics import Metrics
from rlk._ops import linear_logp as of_logp
from rlk._ops import ppo_loss, torch_loss_ranks
from rlk._ops.common import Arguments, defaults
from rlk._ops.linear_cross_entropy import tokens_shape
from rlk._ops.linear_logp import accumulator, cast, casts
from rlk._ops.linear_loss import Call, in_words_of
from rlk._ops.torch_common import default_hooks, once, restored, save
from rlk._ops.torch_logp import linear_logp_operands, megatron_placeholder

_STEP = 128  # rows that chunks but the last one have a multiple of
_OF_ROW = ("hidden", "target", "mask", "temperature")  # of linear_logp
_OF_BACKWARD = ("log_prob", "row_max", "row_log_sum", "lse")
_DEFAULTS = defaults(of_logp.linear_logp)
_ALONE = ("softcap", "lora", "group", "vocab_range", "vocab_size")  # with none of these
# Of ppo_loss: one value a token, or where that is allowed one a sequence.
_OF_TOKENS = (
    *("old_log_probs", "advantages", "loss_mask", "rollout_logprobs"),
    *("importance_weights", "ref_log_probs", "loss_weights"),
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Scores:
    """What the loss is made of, of a row's log-prob and log-sum-exp: the log-prob itself."""

    takes_lse = False
    are_old = False  # whether ratios are of each score by itself, so 1

    def of(self, log_prob: Any, lse: Any) -> Any:
        return log_prob

    def gradients(self, upstream: Any, lse: Any) -> tuple[Any, Any]:
        """Those of the log-prob and the log-sum-exp."""
        return upstream, None


class _OfEntropy(Scores):
    """The log-prob less lse_scale times the square of the log-sum-exp."""

    are_old = True

    def __init__(self, lse_scale: float) -> None:
        self._lse_scale, self.takes_lse = lse_scale, lse_scale != 0

    def of(self, log_prob: Any, lse: Any) -> Any:
        return log_prob - lse * lse * self._lse_scale if self.takes_lse else log_prob

    def gradients(self, upstream: Any, lse: Any) -> tuple[Any, Any]:
        return upstream, -upstream * self._lse_scale * lse * 2 if self.takes_lse else None


class Tokens:
    """ppo_loss of some tokens at a time. What each needs of the others is counted before; what all
    add up to are integers, as where a batch lies on several ranks."""

    def __init__(
        self, call: ppo_loss.Call, hidden: Any, shape: Sequence[int], are_old: bool
    ) -> None:
        """`shape`: of all tokens, of hidden's device; `are_old`: of Scores."""
        self._options, self._ranks, self._are_old = call.options, call.ranks, are_old
        self._totals: list[Any] = []
        # Whose values are not looked at.
        log_probs = hidden.new_empty(shape, dtype=torch.float32)
        counted = torch_loss_ranks.counted(
            {**call.arguments, "log_probs": log_probs}, call.options, call.ranks
        )
        self._counted = self._flat(counted)

    @staticmethod
    def _flat(given: Arguments) -> Arguments:
        """The arguments of all tokens side by side."""
        log_probs, starts = given["log_probs"], given["cu_seqlens"]
        shape = log_probs.shape
        if starts is None:
            length = max(shape[-1], 1)
            starts = torch.arange(0, shape.numel() + 1, length, device=log_probs.device)
        # Of any integer dtype, which need not hold what is below 0.
        given["cu_seqlens"] = torch.as_tensor(starts).long()
        given["log_probs"] = log_probs.flatten()
        for name in _OF_TOKENS:
            if given[name] is not None:
                # One value a sequence is a column, which no number of tokens looks like.
                is_of_tokens = given[name].shape == shape
                given[name] = given[name].reshape(-1 if is_of_tokens else (-1, 1))
        return given

    def derivatives(self, first: int, scores: Any) -> Any:
        """Of the loss with respect to each score of the tokens from `first` on."""
        given, last = {**self._counted}, first + len(scores)
        for name in _OF_TOKENS:
            if given[name] is not None and given[name].ndim == 1:
                given[name] = given[name][first:last]
        given["log_probs"] = scores
        if self._are_old:
            given["old_log_probs"] = scores
        given["cu_seqlens"] = (given["cu_seqlens"] - first).clamp_(0, last - first)
        total, _, _, _, grad, _ = _core.ppo_loss_total(given, self._options.core, True, False)
        self._totals.append(total)
        return grad

    def result(self) -> Any:
        """The loss and what metrics are made of, after all tokens."""
        given = {**self._counted, "partials": torch.stack(self._totals)}
        if self._ranks is None:
            return _core.ppo_loss_join(given, self._options.core)[:4]
        # Ranks need not have as many chunks.
        own = _core.ppo_loss_total(given, self._options.core, False, False)[0]
        return torch_loss_ranks.joined(self._counted, self._options, self._ranks, own)


class AllTokens:
    """ppo_loss of all tokens at once, in the place of Tokens."""

    def __init__(self, call: ppo_loss.Call, _: Any, shape: Sequence[int], are_old: bool) -> None:
        self._call, self._shape, self._are_old = call, shape, are_old
        self._found: list[Any] = []

    def derivatives(self, first: int, scores: Any) -> Any:
        given = {**self._call.arguments, "log_probs": scores.view(self._shape)}
        if self._are_old:
            given["old_log_probs"] = given["log_probs"]
        found = ppo_loss.forward(self._call._replace(arguments=given), True, False)
        *self._found, grad, _ = found
        return grad.flatten()

    def result(self) -> Any:
        return self._found


def _chunks(arguments: Arguments, rows: int) -> Iterator[tuple[int, Arguments]]:
    """The arguments of each chunk of at most `rows` rows, and the number of its first row."""
    shape, count = arguments["target"].shape, arguments["target"].numel()
    of_rows = {}
    for name in _OF_ROW:
        value = arguments[name]
        # One temperature may be that of all rows.
        if isinstance(value, torch.Tensor) and value.shape[: len(shape)] == shape:
            of_rows[name] = value.reshape(count, -1) if name == "hidden" else value.flatten()
    for first in range(0, count, rows):
        own = {name: value[first : first + rows] for name, value in of_rows.items()}
        yield first, {**arguments, **own}


def chunk_rows(arguments: Arguments, mib: int, sums_weight: bool) -> int:
    """Rows whose exponentials fit in so many MiB, in chunks of like size; 0 where the call cannot
    be taken by chunks. `sums_weight`: several chunks need a sum of weight's gradient besides; one
    chunk does not, and may take its memory."""
    memory = _core.linear_logp_chunk_memory(arguments, 1)  # checks all arguments
    count = int(arguments["target"].numel())
    if memory is None or count == 0:
        return 0

    def size(shape: Sequence[int], dtype: str) -> int:
        return math.prod(shape) * int(getattr(torch, dtype).itemsize)

    row = size((arguments["weight"].shape[0],), memory["kept"][1])
    most = (mib << 20) // row
    in_place_of_sums = size(*memory["weight_sums"]) // row if sums_weight and most >= _STEP else 0
    if most + in_place_of_sums >= count:
        return count
    if most < _STEP:
        return 0
    chunks = -(-count // (most // _STEP * _STEP))
    return int(-(-count // chunks // _STEP) * _STEP)


class Run(NamedTuple):
    """What a call is made of, besides linear_logp's arguments."""

    tokens: Tokens | AllTokens
    scores: Scores
    rows: int  # of a chunk
    grad_scale: Any  # a float32 tensor of one element, or None

    def upstream(self, derivative: Any, factor: Any, lse: Any) -> Arguments:
        """Gradients of a row's log-prob and log-sum-exp, of the loss's gradient `factor`."""
        if factor is not None:
            given = {"saved": derivative, "grad_output": factor, "log_probs": None}
            derivative = _core.ppo_loss_backward(given)
        of_log_prob, of_lse = self.scores.gradients(derivative, lse)
        return {"grad_output": of_log_prob, "grad_lse": of_lse, "grad_entropy": None}


def _memory(
    arguments: Arguments, rows: int, needs: tuple[bool, ...], sums: tuple[bool, ...]
) -> tuple[list[Any], Arguments | None]:
    """The gradients, None where not needed, and what chunks share, None where there is but one."""
    new, (vocab, dim) = arguments["hidden"].new_empty, arguments["weight"].shape
    count = arguments["target"].numel()
    dtypes = [torch.float32 if is_sum else None for is_sum in sums]
    hidden = new((count, dim), dtype=dtypes[0]) if needs[0] else None
    weight = new((vocab, dim), dtype=dtypes[1]) if needs[1] else None
    bias = new(vocab, dtype=arguments["bias"].dtype) if needs[2] else None
    if rows >= count:
        return [hidden, weight, bias], None
    is_there = {"weight_sums": needs[1], "bias_sums": needs[2]}
    shared = {
        name: new(shape, dtype=getattr(torch, dtype))
        for name, (shape, dtype) in _core.linear_logp_chunk_memory(arguments, rows).items()
        if is_there.get(name, True) and (name != "weight_sums" or dtypes[1] is None)
    }
    if needs[1] and sums[1]:
        shared["weight_sums"] = weight
    return [hidden, weight, bias], shared


def _forward(
    run: Run, arguments: Arguments, needs: tuple[bool, bool, bool], sums: tuple[bool, bool]
) -> tuple[tuple[Any, ...], Arguments]:
    """All gradients, None where not needed, and what each row has."""
    count, shape = arguments["target"].numel(), arguments["target"].shape
    grads, shared = _memory(arguments, run.rows, needs, sums)
    found: dict[str, list[Any]] = {name: [] for name in ("derivative", *_OF_BACKWARD)}
    for first, own in _chunks(arguments, run.rows):
        last = first + len(own["target"])
        kept = None if shared is None else shared["kept"]
        log_prob, _, lse, row_max, row_log_sum, kept = _core.linear_logp_forward(
            own, True, True, kept=kept
        )
        derivative = run.tokens.derivatives(first, run.scores.of(log_prob, lse))
        rows = {"log_prob": log_prob, "row_max": row_max, "row_log_sum": row_log_sum}
        own.update(rows, **run.upstream(derivative, run.grad_scale, lse))
        if kept is not None:
            own.update(kept=kept[0], kept_target=kept[1], may_overwrite_kept=True)
        hidden, weight, bias = grads
        if hidden is not None:
            hidden = hidden[first:last]
        chunk = None
        if shared is not None:
            chunk = {**shared, "is_first": first == 0, "is_last": last == count}
            if last < count or shared.get("weight_sums") is weight:
                weight = None
            if last < count:
                bias = None
        into = hidden, weight, bias
        _core.linear_logp_backward(own, *needs, *sums, chunk=chunk, into=into)
        for name, values in {"derivative": derivative, "lse": lse, **rows}.items():
            found[name].append(values)
    of_rows = {
        name: (values[0] if shared is None else torch.cat(values)).view(shape)
        for name, values in found.items()
        if values[0] is not None
    }
    if grads[0] is not None:
        grads[0] = grads[0].view(arguments["hidden"].shape)
    return tuple(grads), of_rows


class _LossByChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, arguments: Arguments, run: Run, written: Any
    ) -> Any:
        # Gradients of what was cast are the float32 sums, which autograd rounds if need be.
        ctx.sums = hidden is not arguments["hidden"], weight is not arguments["weight"]
        ctx.run, ctx.accumulate_into = run, arguments["accumulate_into"]
        ctx.weight = None
        if ctx.accumulate_into is not None:
            ctx.weight, ctx.sums = weakref.ref(weight), (ctx.sums[0], True)
        arguments = {**arguments, "accumulate_into": None, "return_lse": run.scores.takes_lse}
        grads, rows = _forward(run, arguments, ctx.needs_input_grad[:3], ctx.sums)
        save(ctx, "linear_logp", arguments, rows)
        # The first backward gives them away, and then they may be anything.
        ctx.grads = grads
        ctx.set_materialize_grads(False)
        loss, *written[:] = run.tokens.result()
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        if upstream is None:
            return (None,) * 6
        arguments = restored(ctx)
        grads, ctx.grads = ctx.grads, None
        derivative, run = arguments.pop("derivative"), ctx.run
        factor = upstream if run.grad_scale is None else upstream * run.grad_scale
        arguments.update(run.upstream(derivative, factor, arguments.pop("lse", None)))
        options = {} if grads is None else {"into": grads, "unless_one": upstream}

        def compute(given: Arguments) -> Any:
            needs = ctx.needs_input_grad[:3]
            return _core.linear_logp_backward(given, *needs, *ctx.sums, **options)

        inputs = (upstream, *(arguments[name] for name in ("hidden", "weight", "bias")))
        hidden, weight, bias = once("linear_logp", compute, arguments, *inputs)
        if ctx.accumulate_into is not None:
            ctx.accumulate_into.add_(weight)
            weight = megatron_placeholder(ctx.weight(), ctx.accumulate_into)
        return hidden, weight, bias, None, None, None


class Chunks(NamedTuple):
    """A call that is taken by chunks."""

    call: Call
    operands: list[Any]  # as given; `arguments` have them as they are computed with
    arguments: Arguments
    rows: int

    def policy_loss(self, loss: ppo_loss.Call) -> ppo_loss.PpoLoss:
        """`loss`: ppo_loss's call, but for log_probs."""
        return self.loss(loss, Scores(), self.arguments["target"].shape)

    def loss(self, loss: ppo_loss.Call, scores: Scores, shape: Sequence[int]) -> ppo_loss.PpoLoss:
        """`shape`: of the scores, which are log_probs of the call `loss`."""
        call, hidden = self.call, self.arguments["hidden"]
        with in_words_of(call.op, call.names, hidden):
            scale = call.grad_scale
            if scale is not None:
                scale = torch.as_tensor(scale, dtype=torch.float32, device=hidden.device)
            is_one = self.rows >= self.arguments["target"].numel()
            kind = AllTokens if is_one else Tokens
            tokens = kind(loss, hidden, shape, scores.are_old)
            run = Run(tokens, scores, self.rows, scale)
            written: list[Any] = []
            apply: Any = _LossByChunks.apply
            found = apply(*self.operands, self.arguments, run, written)
        return ppo_loss.PpoLoss(found, Metrics(*written))


def _are_plain(given: Arguments) -> bool:
    """Whether linear_logp's tensors are torch's own. The parts say what is wrong with others."""
    needed = (given[name] for name in ("hidden", "weight", "target"))
    optional = (given[name] for name in ("bias", "mask"))
    temperature = given["temperature"]
    return (
        all(type(tensor) in _PLAIN for tensor in needed)
        and all(tensor is None or type(tensor) in _PLAIN for tensor in optional)
        and (type(temperature) in _PLAIN or isinstance(temperature, int | float | np.generic))
    )


def chunks_of(call: Call) -> Chunks | None:
    """None where linear_logp of a chunk cannot be taken by itself."""
    given = {**_DEFAULTS, **call.logp}
    if default_hooks(False) is not None:
        return None  # of saved tensors: they are there to hold less until the backward
    if any(given[name] is not None for name in _ALONE) or given["sequence_parallel"]:
        return None
    if not _are_plain(given):
        return None
    mib = call.workspace_mib
    if mib is None:
        mib = int(_core.settings()["workspace_mib"])
    with in_words_of(call.op, call.names, given["hidden"]):
        if given["accumulate_into"] is not None:
            given["accumulate_into"] = accumulator(given["weight"], given["accumulate_into"])
        operands = linear_logp_operands(given)
        given["saved_mib"] = of_logp.MOST_MIB  # one chunk of all rows keeps all of them
        arguments = cast(given) if casts(given) else given
        weight, accumulates = operands[1], given["accumulate_into"] is not None
        is_sum = (
            accumulates or weight is not arguments["weight"]
        )  # in which case it is the gradient
        rows = chunk_rows(arguments, mib, weight.requires_grad and not is_sum)
    return Chunks(call, operands, arguments, rows) if rows else None


def cross_entropy(call: Call, options: Arguments, lse_scale: float, active: Any) -> Any:
    """The loss, or None as `chunks_of`. `options`: of ppo_loss, which sums;
    `active`: makes the mask of tokens that count, None: all."""
    chunks = chunks_of(call)
    if chunks is None:
        return None
    mask = active()
    hidden, shape = call.logp["hidden"], tokens_shape(call.logp["target"].shape)
    given = {
        **dict.fromkeys(ppo_loss.INPUTS),
        "old_log_probs": hidden.new_zeros(shape, dtype=torch.float32),
        "advantages": hidden.new_ones((shape[0], 1), dtype=torch.float32),
        "loss_mask": None if mask is None else mask.reshape(shape),
        "stream": call.logp["stream"],
        "options": options,
    }
    with in_words_of(call.op, call.names, hidden):
        of_sum = ppo_loss.make_call(given, call.ranks)
    return chunks.loss(of_sum, _OfEntropy(lse_scale), shape).loss
