# SPDX-License-Identifier: Apache-2.0
"""What is said of calls of losses over ranks that do not fit: by every rank, or before they ask."""

from __future__ import annotations

import losses
import pytest
import ranks
from batch_parts import GROUPS, LENGTH, ROWS, batch, grpo_inputs
from ranks import torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]


def messages(kind: str, rank: int) -> dict[str, str]:
    """What each rank is told of calls that do not fit, with validate="sync"."""
    world = {"loss_group": torch.distributed.group.WORLD}
    context = {"context_group": torch.distributed.group.WORLD}
    arguments = {n: x for n, x in batch(kind).items() if n not in losses.TENSORS}
    of_grpo = {**grpo_inputs(kind), **GROUPS}
    bad = {**arguments, "old_log_probs": arguments["old_log_probs"][:, : LENGTH - (rank == 1)]}
    calls = {
        "error": lambda: rlk.jit.ppo_loss(**bad, **world),
        "option": lambda: rlk.jit.ppo_loss(**arguments, eps_clip_low=0.2 + 0.1 * rank, **world),
        "length": lambda: rlk.jit.ppo_loss(
            **arguments, loss_reduction="token_sum_over_L", max_seq_len=9 + rank, **world
        ),
        "sequences": lambda: rlk.jit.ppo_loss(
            **{n: x[: ROWS - rank] for n, x in arguments.items()}, **context
        ),
        "no such option": lambda: rlk.jit.ppo_loss(
            **arguments, **world, **{"eps": 1} if rank == 1 else {}
        ),
        "no reference": lambda: rlk.jit.ppo_loss(**arguments, **world, kl_coef=0.1 * (rank == 1)),
        "stream": lambda: rlk.jit.ppo_loss(**arguments, **context, stream=1 if rank == 1 else None),
        "backward": lambda: rlk.jit.ppo_loss_backward(
            torch.ones((), device=kind), **arguments, **world, dialect="no" if rank == 1 else "trl"
        ),
        "grpo": lambda: rlk.jit.grpo_loss(**of_grpo, **world, **{"clip": 1} if rank == 1 else {}),
        "grpo logits": lambda: rlk.jit.grpo_loss(
            **{**of_grpo, "policy_logits": of_grpo["policy_logits"][rank == 1 :]}, **world
        ),
        "grpo rewards": lambda: rlk.jit.grpo_loss(
            **{**of_grpo, "rewards": of_grpo["rewards"][rank == 1 :]}, **world
        ),
        "grpo log-probs": lambda: rlk.jit.grpo_loss(
            **{**of_grpo, "old_logps": of_grpo["old_logps"][rank == 1 :]}, **world
        ),
        "fine": lambda: rlk.jit.ppo_loss(**arguments, **world),
    }
    found = {}
    rlk.jit.configure(validate="sync")
    for name, call in calls.items():
        try:
            call()
            found[name] = "no error"
        except (rlk.Error, TypeError) as error:
            found[name] = str(error)
    rlk.jit.configure(validate="async")
    return found


@pytest.fixture(scope="module", params=ranks.worlds(4, 2))
def told(request, tmp_path_factory):
    """What each rank is told."""
    kind, size = request.param
    return ranks.run(kind, messages, tmp_path_factory.mktemp("ranks"), size)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "option",
            "ppo_loss: eps_clip_low: expected the same on all ranks, 0.2 as on rank 0, got 0.3",
        ),
        (
            "length",
            "ppo_loss: max_seq_len: expected the same on all ranks, 9 as on rank 0, got 10 on",
        ),
        (
            "sequences",
            "ppo_loss: context_group: expected pieces of the same sequences on all ranks, 8 as on "
            "rank 0, got 7 on rank 1",
        ),
        ("fine", "no error"),
    ],
)
def test_every_rank_is_told(told, case, message):
    """By validate="sync": otherwise the others would wait."""
    words = [of_rank[case] for of_rank in told]
    assert all(of_rank.startswith(message) for of_rank in words), words


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "error",
            "ppo_loss: old_log_probs: expected shape [8, 37] (that of log_probs), got [8, 36]",
        ),
        ("no such option", "ppo_loss: eps: expected an option that exists; see "),
        ("no reference", "ppo_loss: ref_log_probs: expected a tensor with kl_coef, got None"),
        ("stream", "ppo_loss: stream: expected None (torch's current one) with context_group, "),
        ("backward", "ppo_loss: dialect: expected "),
        ("grpo", "grpo_loss: clip: expected an option that exists; see "),
        ("grpo logits", "grpo_loss: action_ids: expected shape ["),
        ("grpo rewards", "grpo_loss: rewards: expected shape [8] (one per sequence), got [7]"),
        ("grpo log-probs", "grpo_loss: old_logps: expected shape [8, 37] "),
    ],
)
def test_every_rank_is_told_of_an_error(told, case, message):
    first, own, *others = (of_rank[case] for of_rank in told)
    assert own.startswith(message)
    if "an option that exists" in message:  # a TypeError, which stays one where it was raised
        own = f"ppo_loss: loss_group: rank 1 raised TypeError: {own}"
    else:
        assert own.endswith(" on rank 1")
    assert {first, *others} == {own}


@pytest.fixture
def mesh():
    with ranks.pretended() as mesh:
        yield mesh


def call(**options):
    arguments = {n: x for n, x in batch("cpu").items() if n not in losses.TENSORS}
    return rlk.jit.ppo_loss(**{**arguments, **options})


@pytest.mark.parametrize("name", ["global_tokens", "global_sequences", "global_groups"])
def test_given_counts_beside_loss_group(mesh, name):
    message = f"^ppo_loss: {name}: expected None with loss_group, which counts over its ranks, got"
    for count in (3, torch.tensor(3)):
        with pytest.raises(rlk.InvalidArgument, match=message):
            call(loss_group=mesh, **{name: count})
        with pytest.raises(rlk.InvalidArgument, match=message.replace("ppo", "grpo")):
            rlk.jit.grpo_loss(**grpo_inputs("cpu"), **GROUPS, loss_group=mesh, **{name: count})


@pytest.mark.parametrize("name", ["loss_group", "context_group"])
def test_what_fits_no_group(mesh, name):
    expected = "expected a ProcessGroup of torch.distributed, or a DeviceMesh of one dimension"
    with pytest.raises(rlk.InvalidArgument, match=f"^ppo_loss: {name}: {expected}, got 'world'$"):
        call(**{name: "world"})
    arrays = {n: x.numpy() for n, x in batch("cpu").items() if n not in losses.TENSORS}
    message = f"^ppo_loss: log_probs: expected a torch tensor with {name}, got ndarray$"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.ppo_loss(**arrays, **{name: mesh})
    logits = {n: x.numpy() for n, x in grpo_inputs("cpu").items()}
    message = f"^grpo_loss: policy_logits: expected a torch tensor with {name}, got ndarray$"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.grpo_loss(**logits, **GROUPS, **{name: mesh})
    message = f"^ppo_loss: stream: expected None \\(torch's current one\\) with {name}, got 7$"
    with pytest.raises(rlk.InvalidArgument, match=message):
        call(stream=7, **{name: mesh})


def test_a_context_outside_of_the_batch(mesh):
    one = torch.distributed.new_group([0])
    message = (
        r"^ppo_loss: context_group: expected some of the ranks \[0\] of loss_group, got \[0, 1\]"
    )
    with pytest.raises(rlk.InvalidArgument, match=message):
        call(loss_group=one, context_group=mesh)


def test_a_failed_collective(mesh, monkeypatch):
    def fails(*_, **__):
        raise torch.distributed.DistBackendError("time-out")

    monkeypatch.setattr(torch.distributed, "all_reduce", fails)
    message = r"^ppo_loss: loss_group: a collective over the ranks \[0, 1\] failed: time-out$"
    with pytest.raises(rlk.DriverError, match=message):
        call(loss_group=mesh)
