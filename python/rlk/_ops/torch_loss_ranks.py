# SPDX-License-Identifier: Apache-2.0
"""ppo_loss of a batch that lies on several ranks: what they tell each other.

All of it are integers, which add up to the same in any order: the pieces of each sequence over the
ranks that share it (`context`), then counts and the sums of loss and metrics over all ranks
(`everyone`). What is made of them is made on each rank alike, by the steps of a call on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import distributed

from rlk import _core
from rlk._loss_options import NEEDS_GLOBAL, Resolved
from rlk._ops.common import Arguments, Tensor
from rlk._ops.torch_group import Agreement, collectives, gathered, process_group
from rlk.errors import fail, text


@dataclass
class Ranks:
    """The groups of a call, torch's ProcessGroups."""

    everyone: Any  # that holds a part of the batch
    context: Any  # that holds pieces of this rank's sequences, or None: they are whole
    name: str  # of the argument that `everyone` is

    def __post_init__(self) -> None:
        self.agreement = Agreement("ppo_loss", self.name, self.everyone, "a call of ppo_loss")


def ranks_of(loss_group: Any, context_group: Any) -> Ranks:
    """Of the options of these names, one of which is there."""
    context = None
    if context_group is not None:
        context = process_group("ppo_loss", "context_group", context_group)
    if loss_group is None:
        return Ranks(context, context, "context_group")
    everyone = process_group("ppo_loss", "loss_group", loss_group)
    if context is not None and context is not everyone:
        some, all_ranks = map(distributed.get_process_group_ranks, (context, everyone))
        if not set(some) <= set(all_ranks):
            expected = f"some of the ranks {all_ranks} of {{loss_group}}"
            fail("ppo_loss", "context_group", expected, some)
    return Ranks(everyone, context, "loss_group")


def check_counts(ranks: Ranks, given: Arguments) -> None:
    """Of the tensors among options: counts are made here, or given."""
    for name in NEEDS_GLOBAL if ranks.name == "loss_group" else ():
        if given.get(name) is not None:
            fail("ppo_loss", name, "None with {loss_group}, which counts over its ranks", "both")


def check_torch(op: str, argument: str, tensor: Tensor, stream: int | None, ranks: Ranks) -> None:
    """Collectives are of torch's tensors, on its current stream."""
    if not isinstance(tensor, torch.Tensor):
        fail(op, argument, f"a torch tensor with {{{ranks.name}}}", type(tensor).__name__)
    if stream is not None:
        fail(op, "stream", f"None (torch's current one) with {{{ranks.name}}}", stream)


def counted(arguments: Arguments, options: Resolved, ranks: Ranks | None) -> Arguments:
    """With `pieces`, which each sequence's statistics are made of, and `totals`, which weights are
    made of. log_probs are looked at for a ratio of the sequence alone. `ranks`: None where this
    process has the whole batch."""
    if ranks is None:
        own, groups = _core.ppo_loss_count(arguments, options.core)
    else:
        own, groups = _count(arguments, options, ranks)
    context, pieces = None if ranks is None else ranks.context, own[None]
    if context is not None:
        pieces = gathered("ppo_loss", "context_group", context, own)
    tokens = own[:, 0].sum()
    if context is None or distributed.get_rank(context) == 0:
        valid = (pieces[:, :, 0].sum(0) > 0).sum()
        sequences, groups = (own.new_full((), count) for count in (len(own), groups))
    else:  # counted by the first of those that share them
        valid = sequences = groups = own.new_zeros(())
    totals = torch.stack([tokens, sequences, valid, groups])
    if ranks is not None:
        with collectives("ppo_loss", ranks.name, ranks.everyone):
            distributed.all_reduce(totals, group=ranks.everyone)
    return {**arguments, "pieces": pieces, "totals": totals}


def forward(
    arguments: Arguments, options: Resolved, ranks: Ranks, needs_grad: bool, needs_entropy: bool
) -> tuple[Any, ...]:
    """As ppo_loss.forward: the loss and what metrics are made of are those of all ranks, what is
    saved is of this rank's tokens."""
    core = options.core
    if "totals" not in arguments:
        arguments = counted(arguments, options, ranks)
    if ranks.context is not None and options.rules.ratio_level == "sequence":
        own = _core.ppo_loss_slope(arguments, core)
        slopes = gathered("ppo_loss", "context_group", ranks.context, own)
        arguments = {**arguments, "slopes": slopes}
    own, _, _, _, *saved = _core.ppo_loss_total(arguments, core, needs_grad, needs_entropy)
    return (*joined(arguments, options, ranks, own), *saved)


def joined(arguments: Arguments, options: Resolved, ranks: Ranks, own: Any) -> tuple[Any, ...]:
    """The loss and what metrics are made of, of what each rank's tokens add up to."""
    partials = gathered("ppo_loss", ranks.name, ranks.everyone, own)
    found = _core.ppo_loss_join({**arguments, "partials": partials}, options.core)
    return tuple(found[:4])


def _count(arguments: Arguments, options: Resolved, ranks: Ranks) -> tuple[Any, int]:
    """This rank's pieces, and how many groups it has."""
    with ranks.agreement.telling():
        check_torch("ppo_loss", "log_probs", arguments["log_probs"], arguments["stream"], ranks)
        found: tuple[Any, int] = _core.ppo_loss_count(arguments, options.core)
    if ranks.agreement.is_due:
        context = ranks.context and distributed.get_process_group_ranks(ranks.context)
        facts = {**asdict(options.rules), **options.given._asdict()}
        ranks.agreement.reach({**facts, _PIECES: (context, len(found[0]))}, _compare)
    return found


_PIECES = "context_group"  # whose ranks have pieces of so many sequences


def _compare(told: Sequence[Arguments]) -> None:
    """Raises InvalidArgument where ranks differ in what would fail, or wait, without a word."""
    places: dict[Any, tuple[int, int]] = {}
    for rank, facts in enumerate(told):
        for name, value in facts.items():
            first = told[0][name]
            if name != _PIECES and value != first:
                expected = f"the same on all ranks, {text(first)} as on rank 0"
                fail("ppo_loss", name, expected, f"{text(value)} on rank {rank}")
        context, sequences = facts[_PIECES]
        if context is None:
            continue
        where, count = places.setdefault(tuple(context), (rank, sequences))
        if count != sequences:
            expected = f"pieces of the same sequences on all ranks, {count} as on rank {where}"
            fail("ppo_loss", _PIECES, expected, f"{sequences} on rank {rank}")
