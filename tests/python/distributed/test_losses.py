# SPDX-License-Identifier: Apache-2.0
"""Losses of a batch that lies on several ranks: the bits of one process that has all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import losses
import pytest
import ranks
from operator_cases import fresh_compiler  # noqa: F401
from ranks import torch
from torch.distributed.device_mesh import init_device_mesh

import rlk
from rlk.losses import DIALECTS, REDUCTIONS

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]

ROWS, LENGTH, VOCAB = 8, 37, 50
EVERY_LEVEL = {"policy_loss": "gspo", "ratio_level": "sequence", "advantage_level": "sequence"}
TIS = {"use_tis": True, "tis_imp_ratio_cap": 2.0, "kl_coef": 0.1}
GROUPS = {"samples_per_prompt": 2}

#: Options of ppo_loss by the name of the case.
CASES: dict[str, dict[str, Any]] = {
    **{f"options {i}": options for i, options in enumerate(losses.OPTION_SETS)},
    **{
        word: {"loss_reduction": word, "max_seq_len": LENGTH, **GROUPS, "kl_coef": 0.1}
        for word in REDUCTIONS
    },
    **{
        f"{dialect} {loss}": {"dialect": dialect, "policy_loss": loss, "max_seq_len": LENGTH}
        for dialect in DIALECTS
        for loss in ("ppo", "gspo", "cispo", "sapo")
    },
    "sequence levels": {**EVERY_LEVEL, **TIS, "tis_level": "sequence"},
    "rejected tokens leave": {
        **EVERY_LEVEL,
        **TIS,
        "tis_mode": "mask",
        "tis_rejected": "leave",
        "tis_imp_ratio_floor": 0.5,
    },
    "KL by another reduction": {"kl_coef": 0.2, "kl_reduction": "sequence_mean"},
    "B and B+": {
        "kl_coef": 0.2,
        "loss_reduction": "sequence_mean",
        "kl_reduction": "sequence_mean_valid",
    },
    "a weight a token": {"loss_weights": "tokens", **TIS},
    "one advantage a sequence": {"advantages": "sequences", **EVERY_LEVEL},
    "boundaries of groups": {"loss_reduction": "prompt_mean", "group_boundaries": [0, 1, 4, 6, 8]},
    "nothing is active": {"loss_mask": "none", "use_tis": True, "policy_loss": "gspo"},
    "an infinite and a missing number": {"log_probs": "with inf and NaN"},
}
#: Beside loss_group they are an error.
COUNTED = {
    "global tokens": {"global_tokens": 999, "kl_coef": 0.1, "kl_reduction": "sequence_mean"},
    "global sequences": {"loss_reduction": "sequence_mean", "global_sequences": 77},
}
ALONE = ("context", "packed")  # splits that have a context_group alone


class Part(NamedTuple):
    """What a rank holds of the batch [ROWS, LENGTH]: tokens `at` of its sequences `rows`, as a
    tensor of `shape` or packed behind `starts`."""

    rows: list[int]
    at: Any
    shape: tuple[int, ...]
    starts: Any = None

    def of_tokens(self, tensor: Any) -> Any:
        return tensor.reshape(-1, *tensor.shape[2:])[self.at].reshape(
            *self.shape, *tensor.shape[2:]
        )


def columns_of(index: int, count: int, length: int) -> list[int]:
    """Zigzag: the piece that a rank has of a sequence, as Megatron cuts it for context parallel."""
    cuts = torch.arange(length).tensor_split(2 * count)
    return [*cuts[index].tolist(), *cuts[2 * count - 1 - index].tolist()]


def padded(rows: list[int], columns: list[int]) -> Part:
    at = torch.tensor(
        [row * LENGTH + column for row in rows for column in columns], dtype=torch.long
    )
    return Part(rows, at, (len(rows), len(columns)))


def packed(rows: list[int], pieces: list[list[int]]) -> Part:
    at = [
        row * LENGTH + column for row, piece in zip(rows, pieces, strict=True) for column in piece
    ]
    starts = torch.tensor([0, *map(len, pieces)]).cumsum(0)
    return Part(rows, torch.tensor(at, dtype=torch.long), (len(at),), starts)


#: Sequences of each rank; groups of two, and those of `boundaries of groups`, are whole.
ROWS_OF = {
    1: [range(8)],
    2: [range(6), range(6, 8)],
    4: [range(4), range(0), range(4, 6), range(6, 8)],
}


def part_of(split: str, rank: int, size: int) -> Part:
    contexts = {"data": 1, "context": size, "both": 2, "packed": size}[split]
    rows = list(ROWS_OF[size // contexts][rank // contexts])
    if split != "packed":
        return padded(rows, columns_of(rank % contexts, contexts, LENGTH))
    lengths = [LENGTH, 30, 5, 1, 0, 36, 2, 17]
    return packed(rows, [columns_of(rank, size, lengths[row]) for row in rows])


def groups_of(split: str, kind: str, size: int) -> dict[str, Any]:
    if split == "data":
        return {"loss_group": init_device_mesh(kind, (size,))}
    if split == "both":
        mesh = init_device_mesh(kind, (size // 2, 2), mesh_dim_names=("data", "context"))
        everyone = torch.distributed.group.WORLD
        return {"loss_group": everyone, "context_group": mesh["context"]}
    return {"context_group": torch.distributed.group.WORLD}


SPLITS = ("data", "context", "both", "packed")


def batch(kind: str) -> dict[str, Any]:
    b = losses.batch(ROWS, LENGTH, seed=1)
    b.mask[:, 0] |= b.mask.any(1)
    drawn = {"log_probs": b.log_probs, "old_log_probs": b.old, "advantages": b.advantages}
    found = {name: torch.tensor(x).to(kind) for name, x in {**drawn, **b.others}.items()}
    return {**found, "loss_mask": torch.tensor(b.mask).to(kind)}


def given(case: str, split: str, kind: str) -> dict[str, Any]:
    """Arguments of the whole batch."""
    options = dict((CASES | COUNTED)[case])
    found = batch(kind)
    lengths = torch.full((ROWS,), LENGTH)
    if split == "packed":
        lengths = torch.tensor([LENGTH, 30, 5, 1, 0, 36, 2, 17])
    found["loss_mask"] &= (torch.arange(LENGTH) < lengths[:, None]).to(kind)
    if options.pop("loss_mask", None):
        found["loss_mask"][:] = False
    if options.pop("advantages", None):
        found["advantages"] = found["advantages"][:, :1].contiguous()
    if options.pop("log_probs", None):
        found["old_log_probs"][0, 0], found["log_probs"][0, 1] = -torch.inf, torch.nan
    if options.pop("loss_weights", None):
        found["loss_weights"] = torch.linspace(0, 1e-2, ROWS * LENGTH).view(ROWS, -1).to(kind)
    return {**found, **options}


def of_part(value: Any, part: Part) -> Any:
    """An argument of the whole batch as that of what a rank holds."""
    if not isinstance(value, torch.Tensor):
        return value
    return part.of_tokens(value) if value.shape[:2] == (ROWS, LENGTH) else value[part.rows]


def arguments_of(whole: dict[str, Any], part: Part) -> dict[str, Any]:
    found = {name: of_part(value, part) for name, value in whole.items()}
    if "group_boundaries" in whole:
        within = [at - min(part.rows, default=0) for at in whole["group_boundaries"]]
        found["group_boundaries"] = [at for at in within if 0 <= at <= len(part.rows)]
    if part.starts is not None:
        found["cu_seqlens"] = part.starts.to(whole["log_probs"].device)
    return found


def loss_and_gradients(arguments: dict[str, Any], **groups: Any) -> dict[str, Any]:
    arguments = dict(arguments)
    device = arguments["log_probs"].device
    if "group_boundaries" in arguments:
        arguments["group_boundaries"] = torch.tensor(arguments["group_boundaries"], device=device)
    leaves = {name: arguments[name].clone().requires_grad_() for name in ("log_probs", "entropy")}
    loss, metrics = rlk.jit.ppo_loss(**{**arguments, **leaves}, **groups)
    (3 * loss).backward()
    grads = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    of_all = [loss.detach(), *metrics]
    return {"loss": [x.cpu() for x in of_all], "grads": {n: g.cpu() for n, g in grads.items()}}


def grpo_inputs(kind: str, length: int = LENGTH) -> dict[str, Any]:
    drawn = torch.Generator().manual_seed(5)
    shape = (ROWS, length)
    found = {
        "policy_logits": 2 * torch.randn(*shape, VOCAB, generator=drawn),
        "ref_logits": 2 * torch.randn(*shape, VOCAB, generator=drawn),
        "action_ids": torch.randint(VOCAB, shape, generator=drawn),
        "old_logps": -3 - torch.rand(shape, generator=drawn),
        "completion_mask": torch.rand(shape, generator=drawn) < 0.8,
        "rewards": torch.randn(ROWS, generator=drawn),
    }
    return {name: x.to(kind) for name, x in found.items()}


GRPO_CASES = {
    "grpo": {},
    "grpo trl": {"dialect": "trl", "policy_loss": "gspo"},
    "grpo entropy": {"entropy_coef": 0.01, "loss_reduction": "sequence_mean_valid"},
}


def grpo(arguments: dict[str, Any], **groups: Any) -> dict[str, Any]:
    logits = arguments["policy_logits"].clone().requires_grad_()
    found = rlk.jit.grpo_loss(**{**arguments, "policy_logits": logits}, **GROUPS, **groups)
    (3 * found.loss).backward()
    return {
        "loss": [x.detach().cpu() for x in found],
        "grads": {"policy_logits": logits.grad.cpu()},
    }


def messages(rank: int, kind: str) -> dict[str, str]:
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


def work(kind: str, rank: int) -> dict[str, Any]:
    size = torch.distributed.get_world_size()
    found: dict[str, Any] = {}
    for split in SPLITS:
        own, groups = part_of(split, rank, size), groups_of(split, kind, size)
        for case in CASES | (COUNTED if split in ALONE else {}):
            found[f"{split}/{case}"] = loss_and_gradients(
                arguments_of(given(case, split, kind), own), **groups
            )
        if split != "packed":
            inputs = {n: of_part(x, own) for n, x in grpo_inputs(kind).items()}
            for case, options in GRPO_CASES.items():
                found[f"{split}/{case}"] = grpo({**inputs, **options}, **groups)
    found["messages"] = messages(rank, kind)
    return found


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("cpu", 2), id="2 ranks"),
        pytest.param(("cpu", 4), id="4 ranks"),
        pytest.param(("cuda", 2), id="2 GPUs", marks=pytest.mark.gpu),
    ],
)
def found(request, tmp_path_factory):
    """(kind of device, what each rank found)."""
    kind, size = request.param
    return kind, ranks.run(kind, work, tmp_path_factory.mktemp("ranks"), size)


def check(found, split, case, want):
    """Each rank has the loss and metrics of the whole batch, and the gradients of its tokens."""
    _, of_ranks = found
    for rank, results in enumerate(of_ranks):
        got = results.get(f"{split}/{case}")
        part = part_of(split, rank, len(of_ranks))
        for index, (one, other) in enumerate(zip(got["loss"], want["loss"], strict=True)):
            assert losses.same(one, other), (rank, index, one, other)
        assert got["grads"].keys() == want["grads"].keys()
        for name, grad in got["grads"].items():
            assert losses.same(grad, part.of_tokens(want["grads"][name])), (rank, name)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", CASES)
def test_ppo_loss(found, split, case):
    check(found, split, case, loss_and_gradients(given(case, split, found[0])))


@pytest.mark.parametrize("split", ["data", "context", "both"])
@pytest.mark.parametrize("case", GRPO_CASES)
def test_grpo_loss(found, split, case):
    check(found, split, case, grpo({**grpo_inputs(found[0]), **GRPO_CASES[case]}))


@pytest.mark.parametrize("split", ALONE)
@pytest.mark.parametrize("case", COUNTED)
def test_given_counts_stay(found, split, case):
    check(found, split, case, loss_and_gradients(given(case, split, found[0])))


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
def test_every_rank_is_told(found, case, message):
    """By validate="sync": otherwise the others would wait."""
    told = [results["messages"][case] for results in found[1]]
    assert all(words.startswith(message) for words in told), told


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
def test_every_rank_is_told_of_an_error(found, case, message):
    first, own, *others = (results["messages"][case] for results in found[1])
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


def loss_of(log_probs, old, advantages, **groups):
    return rlk.jit.ppo_loss(2 * log_probs, old, advantages, **groups).loss * 3


# Of torch.compile, which looks at each input of a frame.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("fresh_compiler")
def test_compilers_and_transforms(tmp_path):
    """A graph break in the one, an error in the others; groups that are None change nothing."""
    rendezvous = f"file://{tmp_path}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    try:
        group = {"loss_group": torch.distributed.group.WORLD}
        inputs = [batch("cpu")[name] for name in ("log_probs", "old_log_probs", "advantages")]
        inputs[0].requires_grad_()
        want = loss_of(*inputs)
        (of_want,) = torch.autograd.grad(want, inputs[0])
        compiled = torch.compile(loss_of, backend="aot_eager")
        got = compiled(*inputs, **group)
        (of_got,) = torch.autograd.grad(got, inputs[0])
        assert torch.equal(got, want)
        assert torch.equal(of_got, of_want)
        torch._dynamo.reset()  # it would take what was compiled of the same function
        whole = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
        assert torch.equal(whole(*inputs, loss_group=None, context_group=None), want)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="loss_group or context_group"):
            whole(*inputs, **group)
        message = "^ppo_loss: loss_group: expected None in a transform of torch.func and in a mode"
        with pytest.raises(rlk.Unsupported, match=message):
            torch.func.grad(loss_of)(*inputs, **group)
    finally:
        torch.distributed.destroy_process_group()


MANY = 600  # tokens a sequence: enough for the kernel that looks once at each row


def many_rows(rank, size):
    """grpo_loss of every size-th token of each sequence, on a GPU of its own."""
    inputs = grpo_inputs("cuda", MANY)
    own = {n: x if x.dim() == 1 else x[:, rank::size].contiguous() for n, x in inputs.items()}
    groups = {} if size == 1 else {"context_group": torch.distributed.group.WORLD}
    return grpo(own, **TIS_OF_GRPO, rollout_logprobs=own["old_logps"] + 0.1, **groups)


TIS_OF_GRPO = {"use_tis": True, "tis_level": "sequence"}


def graphed(rank, size):
    """(loss, gradient) of two replays, and of calls outside of the graph."""
    own = part_of("both", rank, size)
    arguments = arguments_of(given("sequence levels", "both", "cuda"), own)
    groups = groups_of("both", "cuda", size)
    log_probs = arguments.pop("log_probs").clone().requires_grad_()

    def step():
        loss = rlk.jit.ppo_loss(log_probs, **arguments, **groups).loss
        return loss, *torch.autograd.grad(loss, log_probs)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog, another thread, asks for events.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = step()
    found = []
    for shift in (0.0, 0.25):
        with torch.no_grad():
            log_probs.sub_(shift)
        graph.replay()
        torch.cuda.synchronize()
        replayed = [x.detach().clone().cpu() for x in results]
        found.append((replayed, [x.detach().cpu() for x in step()]))
    return found


def on_gpus(kind, rank):
    size = torch.distributed.get_world_size()
    return {"many rows": many_rows(rank, size), "graph": graphed(rank, size)}


@pytest.fixture(scope="module")
def found_on_gpus(tmp_path_factory):
    return ranks.run("cuda", on_gpus, tmp_path_factory.mktemp("gpus"))


@pytest.mark.gpu
def test_one_look_at_each_row(found_on_gpus):
    want = many_rows(0, 1)
    for rank, results in enumerate(found_on_gpus):
        got = results["many rows"]
        assert all(losses.same(x, y) for x, y in zip(got["loss"], want["loss"], strict=True))
        part = want["grads"]["policy_logits"][:, rank :: len(found_on_gpus)]
        assert losses.same(got["grads"]["policy_logits"], part)


@pytest.mark.gpu
def test_a_cuda_graph(found_on_gpus):
    for results in found_on_gpus:
        (first, _), (second, _) = results["graph"]
        assert not losses.same(first[0], second[0])
        for replayed, eager in results["graph"]:
            assert all(losses.same(x, y) for x, y in zip(replayed, eager, strict=True))
