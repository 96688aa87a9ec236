# SPDX-License-Identifier: Apache-2.0
"""What is said of wrong calls whose vocabulary ranks share: by one rank, or by every rank where all
ask before they go on."""

import datetime
import re

import numpy as np
import pytest
import ranks
from ranks import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import rlk
from rlk._ops.torch_group import Agreement

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

VOCAB, DIM, ROWS = 300, 24, 12


def inputs(kind):
    """hidden, weight, bias and target, of the whole vocabulary."""
    drawn = torch.Generator().manual_seed(7)
    shapes = ((ROWS, DIM), (VOCAB, DIM), (VOCAB,))
    tensors = [torch.randn(shape, generator=drawn) for shape in shapes]
    return [x.to(kind) for x in (*tensors, torch.randint(VOCAB, (ROWS,), generator=drawn))]


def messages(calls):
    """What each call says."""
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "none"
        except (rlk.Error, RuntimeError, TypeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def refused_dtensors(kind, rank):
    hidden, weight, bias, target = inputs(kind)
    mesh = init_device_mesh(kind, (distributed.get_world_size(),))

    def call(*placements, rows=ROWS, plain=False):
        of_hidden, of_weight, of_bias = placements
        first = hidden[:rows]
        given = [
            first if plain else distribute_tensor(first, mesh, [of_hidden]),
            distribute_tensor(weight, mesh, [of_weight]),
            target[:rows],
            distribute_tensor(bias, mesh, [of_bias]),
        ]
        return lambda: rlk.jit.linear_logp(*given)

    group = {"group": distributed.group.WORLD}
    parts = [distribute_tensor(weight, mesh, [placed]) for placed in (Shard(0), Replicate())]
    return messages(
        {
            "a part and a group": lambda: rlk.jit.linear_logp(hidden, parts[0], target, **group),
            "a whole one and a group": lambda: rlk.jit.linear_logp(
                hidden, parts[1], target, **group
            ),
            "logits and a group": lambda: rlk.jit.logp(parts[1], target[0], **group),
            "plain hidden": call(Replicate(), Shard(0), Shard(0), plain=True),
            "hidden by columns": call(Shard(1), Shard(0), Shard(0)),
            "hidden Partial": call(Partial(), Shard(0), Shard(0)),
            "weight by columns": call(Replicate(), Shard(1), Shard(0)),
            "bias whole": call(Replicate(), Shard(0), Replicate()),
            "rows": call(Shard(0), Shard(0), Shard(0), rows=ROWS - 1),
        },
    )


def wrong_calls(kind, rank):
    """What each rank is told of calls in which rank 1 differs, where all ask before they go on."""
    rlk.jit.configure(validate="sync")
    size = distributed.get_world_size()
    hidden, weight, bias, target = inputs(kind)
    own = VOCAB // size
    part = weight[rank * own : (rank + 1) * own]
    plain = {"hidden": hidden, "weight": part, "target": target % own}
    plain["group"] = distributed.group.WORLD

    def call(other=None, **same):
        given = plain | same | ((other or {}) if rank == 1 else {})
        return lambda: rlk.jit.linear_logp(**given)

    range_of = {"vocab_range": (rank * own, (rank + 1) * own), "vocab_size": size * own}
    ids, sums = weight[: VOCAB * (rank == 0)], torch.zeros(5, DIM, device=kind)
    of_none = {"weight": ids.clone().requires_grad_(), "vocab_size": VOCAB}
    of_none["vocab_range"] = (VOCAB * (rank != 0), VOCAB)
    outside = target.clone()
    outside[0] = VOCAB
    shared_rows = {"sequence_parallel": True, "hidden": hidden[: ROWS // size]}
    return messages(
        {
            "nothing": call(),
            "nothing, in parts": call(**shared_rows),
            "rows": call({"hidden": hidden[1:]}),
            "rows of all": call({"hidden": hidden[1:], "target": plain["target"][1:]}),
            "dtype": call({"hidden": hidden.half(), "weight": part.half()}),
            "dim": call({"hidden": hidden[:, 1:], "weight": part[:, 1:]}),
            "vocabulary": call({"weight": part[1:]}),
            "option": call({"softcap": 3.0}),
            "wrong option": call({"softcap": -1.0}),
            "wrong option, in parts": call({"softcap": -1.0}, **shared_rows),
            "outputs": call({"return_entropy": True}),
            "bias": call({"bias": bias[:own]}),
            "gradient": call({"hidden": hidden.clone().requires_grad_()}),
            "gradient of none": call(
                {"weight": part.detach()}, weight=part.clone().requires_grad_()
            ),
            "other ids": call({"target": plain["target"] // 2}),
            "an id outside": call({"target": outside}),
            "another op": lambda: (
                rlk.jit.logp(hidden @ weight.T, target, group=plain["group"])
                if rank == 1
                else rlk.jit.linear_logp(**plain)
            ),
            "a range twice": call({"vocab_range": (0, own)}, **range_of),
            "a range that is no range": call({"vocab_range": (own, 0)}, **range_of),
            "no torch tensor": call({"hidden": np.zeros((ROWS, DIM), np.float32)}),
            "parts": call({"sequence_parallel": True}),
            "a whole weight": call(weight=weight),
            "whole logits": lambda: rlk.jit.logp(hidden @ weight.T, target, group=plain["group"]),
            "a weight of zeros": call(weight=torch.zeros_like(part)),
            "no ids": call(**of_none, accumulate_into=torch.zeros(ids.shape, device=kind)),
            "sums of no ids": call({"accumulate_into": sums}, **of_none),
            "bias of no ids": call({"bias": bias[:5]}, **of_none, bias=bias[: len(ids)]),
            "dim of no ids": call({"weight": weight[:0, 1:]}, **of_none),
        },
    )


def wrong_backwards(kind, rank):
    """The same of backwards: what autograd or the core say of one rank is told to all."""
    rlk.jit.configure(validate="sync")
    size = distributed.get_world_size()
    hidden, weight, _, target = inputs(kind)
    own = VOCAB // size
    part = weight[rank * own : (rank + 1) * own]

    def call(of_loss=lambda out: out.log_prob.sum(), changes=False, **options):
        rows = ROWS // size if "sequence_parallel" in options else ROWS
        leaf = hidden[:rows].clone().requires_grad_()
        given = {"hidden": leaf * 1, "weight": part, "target": target % own, **options}

        def run():
            out = rlk.jit.linear_logp(**given, return_lse=True, group=distributed.group.WORLD)
            if changes and rank == 1:
                given["hidden"].data = given["hidden"].data.clone()
                given["hidden"].mul_(2)
            of_loss(out).backward()

        return run

    def of_lse(out):
        return out.log_prob.sum() + (out.lse.sum() if rank == 1 else 0)

    return messages(
        {
            "nothing": call(),
            "nothing, in parts": call(sequence_parallel=True),
            "changed": call(changes=True),
            "changed, in parts": call(changes=True, sequence_parallel=True),
            "another loss": call(of_lse),
            "nothing once more": call(of_loss=lambda out: out.lse.sum()),
        }
    )


def another_error(kind, rank):
    """What is told of an error that is of no argument."""
    agreement = Agreement("linear_logp", "group", distributed.group.WORLD, "a call")

    def call():
        with agreement.telling():
            if rank == 1:
                raise MemoryError("full")
            agreement.reach({}, lambda _: None)

    try:
        return messages({"call": call})["call"]
    except MemoryError as error:
        return f"MemoryError: {error}"


def a_missing_rank(kind, rank):
    """What the others are told when rank 1 does not come."""
    size = distributed.get_world_size()
    hidden, weight, _, target = inputs(kind)
    group = distributed.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 1:
        return "none"
    own = VOCAB // size
    call = {"call": lambda: rlk.jit.linear_logp(hidden, weight[:own], target % own, group=group)}
    return messages(call)["call"]


def one_rank_alone(kind, rank):
    """Errors that no other rank need hear of: arguments that say how to spread a call."""
    size = distributed.get_world_size()
    hidden, weight, _, target = inputs(kind)
    group = distributed.group.WORLD
    mine = distributed.new_subgroups_by_enumeration([[r] for r in range(size)])[0]
    others = distributed.new_group([0])

    def call(**given):
        return lambda: rlk.jit.linear_logp(hidden, weight, target, **given)

    def logp(**given):
        return lambda: rlk.jit.logp(hidden @ weight.T, target, **given)

    return messages(
        {
            "one rank": call(group=mine),
            "one rank with a range": call(group=mine, vocab_range=(0, VOCAB), vocab_size=VOCAB),
            "not its group": call(group=others),
            "no group": call(group=2),
            "a range alone": call(vocab_range=(0, VOCAB)),
            "a size alone": call(vocab_size=VOCAB),
            "parts alone": call(sequence_parallel=True),
            "a range alone of logits": logp(vocab_range=(0, VOCAB)),
            "a range without a size": call(group=mine, vocab_range=(0, VOCAB)),
            "a range outside": call(group=mine, vocab_range=(0, VOCAB + 1), vocab_size=VOCAB),
            "a range of three": call(group=mine, vocab_range=(0, 1, 2), vocab_size=VOCAB),
            "a range of floats": call(group=mine, vocab_range=(0.0, 300.0), vocab_size=VOCAB),
            "other rows": call(group=mine, vocab_size=VOCAB + 1),
            "other columns": logp(group=group, vocab_size=VOCAB + size),
            "a size of none": call(group=mine, vocab_size=0),
            "a size of too many": call(group=mine, vocab_range=(0, VOCAB), vocab_size=2**70),
            "no memory": lambda: rlk.jit.linear_logp(
                hidden.to("meta"), weight.to("meta"), target.to("meta"), group=group
            ),
            "a size that is a float": call(group=mine, vocab_size=300.0),
            "parts of another type": call(group=mine, sequence_parallel=1),
            "an adapter": call(group=mine, lora=(hidden[:2], weight[:, :2], 1.0)),
            "parts of one row": lambda: rlk.jit.linear_logp(
                hidden[0], weight, target[0], group=mine, sequence_parallel=True
            ),
            "rows of parts": lambda: rlk.jit.linear_logp(
                hidden[1:], weight, target, group=mine, sequence_parallel=True
            ),
        },
    )


def work(kind, rank):
    rlk.jit.configure(num_threads=1)
    tasks = [refused_dtensors, one_rank_alone, wrong_calls, wrong_backwards, another_error]
    if kind == "cpu":  # of NCCL a watchdog tells, which ends the process
        tasks.append(a_missing_rank)
    return {task.__name__: task(kind, rank) for task in tasks}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("cpu", 3), id="cpu"),
        pytest.param(("cuda", 2), id="cuda", marks=pytest.mark.gpu),
    ],
)
def world(request, tmp_path_factory):
    """(kind of device, what each rank found)."""
    kind, size = request.param
    return kind, ranks.run(kind, work, tmp_path_factory.mktemp("ranks"), size)


def assert_says(message, pattern):
    assert re.search(pattern, message), message


REFUSED_DTENSORS = {
    "a part and a group": r"weight: expected this rank's part with group, as to_local\(\) gives it",
    "a whole one and a group": r"weight: expected this rank's part .*, got .*\(Replicate\(\)",
    "logits and a group": r"logp: logits: expected this rank's part with group, as to_local\(\)",
    "plain hidden": r"weight: expected a tensor that each rank has whole, got a DTensor .*; with "
    r"tensor parallel pass hidden as a DTensor of its mesh, or weight\.to_local\(\) and group$",
    "hidden by columns": r"hidden: expected placement Replicate\(\) or Shard\(0\), of rows",
    "hidden Partial": r"hidden: expected placement Replicate\(\) or Shard\(0\), of rows",
    "weight by columns": r"weight: expected a tensor that each rank has whole, got a DTensor",
    "bias whole": r"bias: expected placements .*Shard\(dim=0\).*, got .*Replicate",
    "rows": r"hidden: expected a first axis of which \d ranks have like parts, got 11$",
}


@pytest.mark.parametrize("name", REFUSED_DTENSORS)
def test_dtensors_that_are_refused(world, name):
    for rank in world[1]:
        assert_says(rank["refused_dtensors"][name], REFUSED_DTENSORS[name])


TOLD = {
    "nothing": "none",
    "nothing, in parts": "none",
    "rows": r"target: expected shape \[11\].*, got \[12\] on rank 1$",
    "rows of all": r"hidden: expected float32 \[12, 24\] as on rank 0, got float32 \[11, 24\] on",
    "dtype": r"hidden: expected float32 \[12, 24\] as on rank 0, got float16 \[12, 24\] on rank 1$",
    "dim": r"hidden: expected float32 \[12, 24\] as on rank 0, got float32 \[12, 23\] on rank 1$",
    "vocabulary": r"weight: expected float32 \[\d+, 24\] as on rank 0, got .* on rank 1$",
    "option": r"softcap: expected None as on rank 0, got 3\.0 on rank 1$",
    "wrong option": r"softcap: expected a finite number above 0 .*, got -1 on rank 1$",
    "wrong option, in parts": r"softcap: expected .*, got -1.* on rank 1$",
    "outputs": r"return_entropy: expected False as on rank 0, got True on rank 1$",
    "bias": r"bias: expected None as on rank 0, got a tensor on rank 1$",
    "gradient": r"hidden: expected float32 \[12, 24\] as .*, got .* with a gradient on rank 1$",
    "gradient of none": "none",
    "other ids": r"target: expected int64 \[12\] of CRC-32 \w+ as on rank 0, got .* on rank 1$",
    "an id outside": r"target: expected ids in \[0, 300\).* on rank 1$",
    "a range twice": r"vocab_range: expected ids from \d+ on, .* got \(0, \d+\) on rank 1$",
    "a range that is no range": r"vocab_range: expected \(begin, .* got \(\d+, 0\) on rank 1$",
    "no torch tensor": r"hidden: expected a torch tensor with group, got ndarray on rank 1$",
    "parts": r"target: expected \d+ ids, one per row of hidden .* on rank 1$",
    "a whole weight": r"weight: expected this rank's part with group, .* got the same values on",
    "whole logits": r"logits: expected this rank's part with group, of a whole that vocab_size",
    "a weight of zeros": "none",
    "no ids": "none",
    "sums of no ids": r"accumulate_into: expected shape \[0, 24\], as this rank has no ids, got",
    "bias of no ids": r"bias: expected shape \[0\], as this rank has no ids, got \[5\] on rank 1$",
    "dim of no ids": r"weight: expected shape \[0, 24\], .*, got \[0, 23\] on rank 1$",
}


@pytest.mark.parametrize("name", TOLD)
def test_every_rank_is_told(world, name):
    messages = {rank["wrong_calls"][name] for rank in world[1]}
    assert len(messages) == 1
    assert_says(messages.pop(), TOLD[name])


def test_every_rank_is_told_of_a_backward(world):
    for rank, found in enumerate(found["wrong_backwards"] for found in world[1]):
        for name in ("nothing", "nothing, in parts", "nothing once more"):
            assert found[name] == "none"
        for name in ("changed", "changed, in parts"):
            told = "" if rank == 1 else "Error: linear_logp: group: rank 1 raised "
            words = "RuntimeError: one of the variables needed for gradient computation has been"
            assert found[name].startswith(told + words)
        words = r"grad_lse: expected None as on rank 0, got float32 \[12\] on rank 1$"
        assert_says(found["another loss"], words)


def test_every_rank_is_told_of_another_op(world):
    for index, rank in enumerate(world[1]):
        op = "logp" if index == 1 else "linear_logp"
        words = "expected a call of linear_logp as on rank 0, got a call of logp on rank 1"
        assert rank["wrong_calls"]["another op"] == f"InvalidArgument: {op}: group: {words}"


def test_an_error_of_no_argument_is_told(world):
    first, own, *others = (rank["another_error"] for rank in world[1])
    assert own == "MemoryError: full"
    for message in (first, *others):
        assert message == "Error: linear_logp: group: rank 1 raised MemoryError: full"


def test_a_rank_that_is_missing(world):
    kind, (first, _, *others) = world
    if kind != "cpu":
        pytest.skip("of NCCL a watchdog tells, which ends the process")
    for rank in (first, *others):
        ids = list(range(2 + len(others)))
        words = f"DriverError: linear_logp: group: a collective over the ranks {ids} failed: "
        assert rank["a_missing_rank"].startswith(words)


ALONE = {
    "one rank": "none",
    "one rank with a range": "none",
    "no group": "group: expected a ProcessGroup .*, got 2$",
    "a range alone": r"vocab_range: expected None without group, got \(0, 300\)$",
    "a size alone": "vocab_size: expected None without group, got 300$",
    "parts alone": "sequence_parallel: expected False without group, got True$",
    "a range alone of logits": r"logp: vocab_range: expected None without group, got \(0, 300\)$",
    "a range without a size": "vocab_size: expected the number of ids with vocab_range, got None$",
    "a range outside": r"vocab_range: expected \(begin, end\) with 0 <= begin <= end <= 300, got",
    "a range of three": r"vocab_range: expected \(begin, end\) .*, got \(0, 1, 2\)$",
    "a range of floats": r"vocab_range: expected \(begin, end\) .*, got \(0\.0, 300\.0\)$",
    "other rows": r"weight: expected 301 rows, ids \[0, 301\) of 301 on rank 0 of 1, got 300$",
    "other columns": r"logp: logits: expected \d+ columns, ids \[\d+, \d+\) of \d+ on rank",
    "a size of too many": r"vocab_size: expected fewer than 2\^31 ids, got \d+ on 1 ranks$",
    "no memory": "hidden: expected ",
    "a size of none": "vocab_size: expected None or an int from 1 up, got 0$",
    "a size that is a float": r"vocab_size: expected None or an int from 1 up, got 300\.0$",
    "parts of another type": "sequence_parallel: expected True or False, got 1$",
    "an adapter": "lora: expected None with group, got an adapter$",
    "parts of one row": r"hidden: expected shape \[rows, \.\.\., D\] of this rank's rows",
    "rows of parts": r"target: expected 11 ids, one per row of hidden on each of 1 ranks, got",
}


@pytest.mark.parametrize("name", ALONE)
def test_what_is_refused(world, name):
    for rank in world[1]:
        assert_says(rank["one_rank_alone"][name], ALONE[name])


def test_a_group_of_others(world):
    first, *others = (rank["one_rank_alone"]["not its group"] for rank in world[1])
    assert first == "none"
    assert all("group: expected a group that this rank is in" in message for message in others)


def test_explain():
    """Of the kernel that the call then loads, and of what it exchanges."""
    hidden, weight, _, target = inputs("cpu")
    ids = weight[: VOCAB // 2]
    with ranks.pretended() as mesh:
        calls = [
            (rlk.jit.linear_logp, (hidden, ids), {"return_entropy": True}, "4 float32 a row"),
            (rlk.jit.linear_logp, (hidden[:6], ids), {"sequence_parallel": True}, "hidden's rows"),
            (rlk.jit.linear_logp, (hidden, weight[:152]), {"vocab_size": VOCAB}, "segments of 38"),
            (rlk.jit.logp, (hidden @ ids.T,), {}, r"rank 0 of 2: ids \[0, 150\) of 300"),
        ]
        for op, given, options, words in calls:
            options |= {"group": mesh}
            before = rlk.jit.explain(op, *given, target, **options)
            op(*given, target, **options)
            after = rlk.jit.explain(op, *given, target, **options)
            assert (after.kernel, after.source) == (before.kernel, "loaded")
            assert_says(str(after), words)


def test_explain_refuses_what_the_call_refuses():
    hidden, weight, _, target = inputs("cpu")
    message = "vocab_size: expected None without group, got 300$"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.explain(rlk.jit.linear_logp, hidden, weight, target, vocab_size=VOCAB)
    with ranks.pretended() as mesh, pytest.raises(rlk.InvalidArgument, match="weight: expected 15"):
        rlk.jit.explain(rlk.jit.linear_logp, hidden, weight, target, vocab_size=VOCAB, group=mesh)


def test_other_frameworks_are_refused():
    arrays = np.zeros((2, 4), np.float32), np.zeros((8, 4), np.float32), np.zeros(2, np.int64)
    with (
        ranks.pretended() as mesh,
        pytest.raises(rlk.InvalidArgument, match="hidden: expected a t"),
    ):
        rlk.jit.linear_logp(*arrays, group=mesh)
