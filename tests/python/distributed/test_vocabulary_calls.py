# SPDX-License-Identifier: Apache-2.0
"""Calls whose vocabulary ranks share: any contiguous cut, DTensors, autograd's ways and
torch.compile."""

import numpy as np
import pytest
import ranks
from ranks import torch
from reference import Reference, same_bits
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import rlk
from rlk.integrations import verl

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("generic"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of its compiler and of DTensors
]

VOCAB, DIM, ROWS = 300, 24, 12
OUTPUTS = ("log_prob", "entropy", "lse")
ALL = {"return_entropy": True, "return_lse": True}


def whole(kind="cpu", dtype=torch.float32):
    """hidden, weight, bias, target and gradients of the three results."""
    drawn = torch.Generator().manual_seed(7)
    shapes = ((ROWS, DIM), (VOCAB, DIM), (VOCAB,))
    tensors = [torch.randn(shape, generator=drawn).to(dtype) for shape in shapes]
    target = torch.randint(VOCAB, (ROWS,), generator=drawn)
    upstream = [torch.randn(ROWS, generator=drawn) for _ in OUTPUTS]
    return [x.to(kind) for x in (*tensors, target)], [x.to(kind) for x in upstream]


def cuts(size):
    """Ranges of ids of each rank, by name; None: the default, of `vocab_size`."""
    inner = [VOCAB * (r + 1) // (size + 2) + 3 * r for r in range(size - 1)]
    last = [VOCAB - 1] * (size - 1)
    found = {"uneven": inner, "one id on the last": last, "all on the last": [0] * (size - 1)}
    found["all on the first"] = [VOCAB] * (size - 1)
    return {n: list(zip([0, *ends], [*ends, VOCAB], strict=True)) for n, ends in found.items()}


def loss_of(out, upstream):
    return sum((o * g).sum() for o, g in zip(out, upstream, strict=False))


def shared(kind, rank, cut, dtype=torch.float32, turned=False):
    """Results and gradients of a call in which each rank has the ids of its range; `turned`: the
    rows have two axes, of which the first is the inner one in memory."""
    (hidden, weight, bias, target), upstream = whole(kind, dtype)
    begin, end = cut[rank]
    if turned:
        hidden = hidden.view(3, 4, DIM).transpose(0, 1).contiguous().transpose(0, 1)
        target, *upstream = (x.view(3, 4) for x in (target, *upstream))
    leaves = [x.clone().requires_grad_() for x in (hidden, weight[begin:end], bias[begin:end])]
    given = {"group": distributed.group.WORLD, "vocab_range": cut[rank], "vocab_size": VOCAB}
    out = rlk.jit.linear_logp(*leaves[:2], target, leaves[2], **ALL, return_stats=True, **given)
    loss_of(out[:3], upstream).backward()
    of_rows = [*out[:3], *out.stats, leaves[0].grad]
    if turned:
        of_rows = [x.flatten(0, 1) for x in of_rows]
    return [x.detach().cpu() for x in (*of_rows, leaves[1].grad, leaves[2].grad)]


def any_cut(kind, rank):
    size = distributed.get_world_size()
    found = {}
    for name, cut in cuts(size).items():
        for dtype in (torch.float32, torch.bfloat16):
            once, *again = (
                shared(kind, rank, cut, dtype, turned) for turned in (False, False, True)
            )
            for other in again:
                assert all(map(same_bits, once, other))
            found[f"{name}, {dtype}"] = once
    return found


# --- Autograd's ways ------------------------------------------------------------------------------


def ways(kind, rank):
    """Names of what has not the bits of a plain backward."""
    size = distributed.get_world_size()
    (hidden, weight, bias, target), upstream = whole(kind)
    weight, bias = weight.chunk(size)[rank], bias.chunk(size)[rank]

    def call(hidden, weight, bias, **options):
        given = {"group": distributed.group.WORLD, **ALL, **options}
        return rlk.jit.linear_logp(hidden, weight, target, bias, **given)

    def grads_of(run):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
        run(*leaves)
        return [leaf.grad for leaf in leaves]

    def twice(*leaves):
        loss = loss_of(call(*leaves)[:1], upstream)
        loss.backward(retain_graph=True)
        loss.backward()

    def by_output(*leaves):
        for o, g in zip(call(*leaves), upstream, strict=True):
            (o * g).sum().backward(retain_graph=True)

    def checkpointed(*leaves):
        out = checkpoint(call, *leaves, use_reentrant=False)
        loss_of(out, upstream).backward()

    def hooked(*leaves):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
            loss_of(call(*leaves), upstream).backward()

    def written_over(*leaves):
        out = call(*leaves)
        loss = loss_of(out, upstream)
        out.log_prob.data.zero_()
        loss.backward()

    def frozen(*leaves):
        loss_of(call(leaves[0], leaves[1].detach(), leaves[2]), upstream).backward()

    def head_alone(*leaves):
        loss_of(call(leaves[0].detach(), *leaves[1:]), upstream).backward()

    def nothing_kept(*leaves):
        loss_of(call(*leaves, saved_mib=0), upstream).backward()

    plain = grads_of(lambda *leaves: loss_of(call(*leaves), upstream).backward())
    one = grads_of(lambda *leaves: loss_of(call(*leaves)[:1], upstream).backward())
    wrong = []
    for run in (checkpointed, hooked, written_over, frozen, head_alone, nothing_kept):
        got = grads_of(run)
        for name, grad, want in zip(("hidden", "weight", "bias"), got, plain, strict=True):
            absent = (run, name) in ((frozen, "weight"), (head_alone, "hidden"))
            if absent != (grad is None) or not (absent or same_bits(grad, want)):
                wrong.append(f"{run.__name__}: {name}")
    for grad, want in zip(grads_of(twice), one, strict=True):
        if not same_bits(grad, 2 * want):
            wrong.append("twice")
    for grad, want in zip(grads_of(by_output), plain, strict=True):
        torch.testing.assert_close(grad, want)
    want = call(hidden, weight, bias)
    assert not want.log_prob.requires_grad
    with torch.inference_mode():
        if not all(map(same_bits, call(hidden, weight, bias), want)):
            wrong.append("inference_mode")
    return wrong


# --- DTensors -------------------------------------------------------------------------------------


def of_dtensors(kind, rank):
    """Whole gradients and results of calls that DTensors spread, by the placement of hidden."""
    (hidden, weight, bias, target), upstream = whole(kind)
    mesh = init_device_mesh(kind, (distributed.get_world_size(),))
    found = {}
    for name, placed in {"whole": Replicate(), "by rows": Shard(0)}.items():
        placements = ([placed], [Shard(0)], [Shard(0)])
        leaves = [
            distribute_tensor(x, mesh, p).requires_grad_()
            for x, p in zip((hidden, weight, bias), placements, strict=True)
        ]
        out = rlk.jit.linear_logp(*leaves[:2], target, leaves[2], **ALL)
        assert all(type(x) is torch.Tensor for x in out)
        loss_of(out, upstream).backward()
        assert [list(leaf.grad.placements) for leaf in leaves] == list(placements)
        grads = [leaf.grad.full_tensor() for leaf in leaves]
        found[name] = [x.detach().cpu() for x in (*out, *grads)]
        with torch.no_grad():
            again = rlk.jit.linear_logp(*leaves[:2], target, leaves[2])
        assert same_bits(again, out.log_prob.detach())
    logits = distribute_tensor(hidden @ weight.T, mesh, [Shard(1)]).requires_grad_()
    out = rlk.jit.logp(logits, target)
    (out * upstream[0]).sum().backward()
    assert list(logits.grad.placements) == [Shard(1)]
    found["logits"] = [x.detach().cpu() for x in (out, logits.grad.full_tensor())]
    return found


def compiled(kind, rank):
    """What torch.compile makes of a call, and of one that is to be in its graph."""
    size = distributed.get_world_size()
    (hidden, weight, _, target), upstream = whole(kind)
    own = weight.chunk(size)[rank]

    def loss(hidden, weight):
        out = rlk.jit.linear_logp(hidden * 2, weight, target, group=distributed.group.WORLD)
        return (out * upstream[0]).sum() * 3

    def grads_of(call):
        leaves = [x.clone().requires_grad_() for x in (hidden, own)]
        call(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    got = grads_of(torch.compile(loss, backend="aot_eager"))
    assert all(map(same_bits, got, grads_of(loss)))
    with pytest.raises(Exception, match="ranks share the vocabulary of this call"):
        torch.compile(loss, backend="aot_eager", fullgraph=True)(hidden, own)
    with pytest.raises(
        rlk.Unsupported, match=r"group: expected None in .* transform of torch.func"
    ):
        torch.func.grad(loss)(hidden, own)
    return True


def work(kind, rank):
    rlk.jit.configure(num_threads=1)
    return {task.__name__: task(kind, rank) for task in (any_cut, ways, of_dtensors, compiled)}


@pytest.fixture(scope="module", params=ranks.worlds(3, 2))
def world(request, tmp_path_factory):
    """(kind of device, what each rank found)."""
    kind, size = request.param
    return kind, ranks.run(kind, work, tmp_path_factory.mktemp("ranks"), size)


def exact(dtype=torch.float32):
    """Bounded values of one device: outputs, then gradients."""
    (hidden, weight, bias, target), upstream = whole(dtype=dtype)
    reference = Reference(hidden, weight, target, bias)
    outputs, grads = reference.outputs(), reference.gradients(*upstream)
    return [outputs[n] for n in OUTPUTS], [grads[n] for n in ("hidden", "weight", "bias")]


def expect_bounded(got, want):
    value = got.double().numpy()
    assert value.shape == want.value.shape
    assert (np.abs(value - want.value) <= want.bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", cuts(2))
def test_any_cut(world, name, dtype):
    of_ranks = [rank["any_cut"][f"{name}, {dtype}"] for rank in world[1]]
    outputs, grads = exact(dtype)
    for of_rank in of_ranks:
        for got, want in zip(of_rank[:3], outputs, strict=True):
            expect_bounded(got, want)
        expect_bounded(of_rank[-3], grads[0])
        assert all(map(same_bits, of_rank[:-2], of_ranks[0][:-2]))  # each rank has the same
    for index, want in ((-2, grads[1]), (-1, grads[2])):
        expect_bounded(torch.cat([of_rank[index] for of_rank in of_ranks]), want)
    hidden, weight, bias, target = (x.to(world[0]) for x in whole(dtype=dtype)[0])
    stats = rlk.jit.linear_logp(hidden, weight, target, bias, return_stats=True).stats
    for got, want in zip(of_ranks[0][3:7], stats, strict=True):
        torch.testing.assert_close(got, want.cpu(), rtol=1e-4, atol=1e-5)


def test_autograds_ways(world):
    for rank in world[1]:
        assert rank["ways"] == []
        assert rank["compiled"]


@pytest.mark.parametrize("placed", ["whole", "by rows"])
def test_dtensors(world, placed):
    outputs, grads = exact()
    for rank in world[1]:
        for got, want in zip(rank["of_dtensors"][placed], (*outputs, *grads), strict=True):
            expect_bounded(got, want)


def test_logits_that_are_a_dtensor(world):
    (hidden, weight, _, target), upstream = whole()
    logits = (hidden @ weight.T).to(world[0]).requires_grad_()
    out = rlk.jit.logp(logits, target.to(world[0]))
    (out * upstream[0].to(world[0])).sum().backward()
    for rank in world[1]:
        got, grad = rank["of_dtensors"]["logits"]
        torch.testing.assert_close(got, out.detach().cpu())
        torch.testing.assert_close(grad, logits.grad.cpu())


class Sent(TorchDispatchMode):
    """What collectives a block calls, and how many elements each is given."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if name.startswith("c10d::"):
            self.found.append((name.removeprefix("c10d::").strip("_"), args[1].numel()))
        return function(*args, **(kwargs or {}))


def test_what_a_rank_sends():
    """One all-gather of the parts; of hidden's gradient sums, then rows: not where the caller adds
    up the ranks' gradients."""
    (hidden, weight, _, target), _ = whole()
    sums, rows = ("alltoall_base", ROWS * DIM), ("allgather_base", ROWS // ranks.SIZE * DIM)
    with ranks.pretended() as mesh:
        group = mesh.get_group()
        part = weight[: VOCAB // ranks.SIZE]
        with Sent() as sent, torch.no_grad():
            rlk.jit.linear_logp(hidden, part, target, group=group)
        assert sent.found == [("allgather_base", 3 * ROWS)]
        ways = {
            "own": lambda leaf: rlk.jit.linear_logp(leaf, part, target, group=group),
            "verl": lambda leaf: verl.linear_cross_entropy(leaf, part, target, 1.0, "none", group)[
                0
            ],
        }
        for name, call in ways.items():
            leaf = hidden.clone().requires_grad_()
            out = call(leaf)
            with Sent() as sent:
                out.sum().backward()
            want = [sums, rows] if name == "own" else [sums]
            assert sent.found == want
            assert leaf.grad.shape == hidden.shape
