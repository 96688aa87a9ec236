# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP2 over two processes: the gradients of one process, wherever the head is wrapped."""

import functools

import pytest
import ranks
from ranks import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

VOCAB, DIM, WORDS = 51, 16, 20


class Head(nn.Linear):
    def log_probs(self, hidden, target):
        return rlk.jit.linear_logp(hidden, self.weight, target, self.bias)


class HeadOfLogProbs(Head):
    forward = Head.log_probs


class Model(nn.Module):
    def __init__(self, head=Head, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB if tied else WORDS, DIM)
        self.body = nn.Linear(DIM, DIM)
        self.lm_head = head(DIM, VOCAB)
        if tied:
            self.lm_head.weight = self.embedding.weight

    def hidden(self, ids):
        return self.body(self.embedding(ids)).tanh()

    def log_probs(self, hidden, target):
        return self.lm_head.log_probs(hidden, target)

    def forward(self, ids, target):
        return self.log_probs(self.hidden(ids), target)


class CallsItsHead(Model):
    def log_probs(self, hidden, target):
        return self.lm_head(hidden, target)


class Unshards(Model):
    def log_probs(self, hidden, target):
        self.lm_head.unshard()
        return super().log_probs(hidden, target)


class Gathers(Model):
    def log_probs(self, hidden, target):
        head = (self.lm_head.weight, self.lm_head.bias)
        weight, bias = (p.full_tensor(grad_placements=[Partial("avg")]) for p in head)
        return rlk.jit.linear_logp(hidden, weight, target, bias)


def batch(kind):
    drawn = torch.Generator().manual_seed(3)
    rows = (2 * ranks.SIZE, 6)
    ids = torch.randint(WORDS, rows, generator=drawn)
    return ids.to(kind), torch.randint(VOCAB, rows, generator=drawn).to(kind)


def gradients(model):
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            return {name: p.grad.clone() for name, p in model.named_parameters()}
    return {
        name.removeprefix("module."): p.grad.full_tensor() if isinstance(p, DTensor) else p.grad
        for name, p in model.named_parameters()
    }


def trained(model, kind, rank=None, call=None):
    """Gradients of the mean over a rank's rows; without a rank, over all rows."""
    ids, target = batch(kind)
    if rank is not None:
        ids, target = ids.chunk(ranks.SIZE)[rank], target.chunk(ranks.SIZE)[rank]
    (call or model)(ids, target).float().mean().neg().backward()
    return {name: grad.cpu() for name, grad in gradients(model).items()}


def whole(kind, rank):
    model = Model().to(kind)
    fully_shard(model)
    return trained(model, kind, rank)


def tied(kind, rank):
    model = Model(tied=True).to(kind)
    fully_shard(model)
    return trained(model, kind, rank)


def mixed_precision(kind, rank):
    model = Model().to(kind)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return trained(model, kind, rank)


def head_by_itself(kind, rank, make=CallsItsHead, head=HeadOfLogProbs):
    model = make(head).to(kind)
    fully_shard(model.lm_head)
    fully_shard(model)
    return trained(model, kind, rank)


def a_registered_method(kind, rank):
    model = Model().to(kind)
    fully_shard(model.lm_head)
    register_fsdp_forward_method(model.lm_head, "log_probs")
    fully_shard(model)
    return trained(model, kind, rank)


def apart(kind, rank):
    """The model gives hidden states alone; the head is called after it, while it is whole."""
    model = Model().to(kind)
    fully_shard(model)
    register_fsdp_forward_method(model, "hidden")
    return trained(model, kind, rank, lambda ids, t: model.log_probs(model.hidden(ids), t))


def ddp(kind, rank):
    devices = None if kind == "cpu" else [rank]
    model = nn.parallel.DistributedDataParallel(Model().to(kind), device_ids=devices)
    return trained(model, kind, rank)


def fsdp1(kind, rank):
    device = torch.device(kind, rank if kind == "cuda" else None)
    model = FullyShardedDataParallel(Model().to(kind), use_orig_params=True, device_id=device)
    return trained(model, kind, rank)


WRAPPED = {
    "DDP": ddp,
    "FSDP1": fsdp1,
    "the whole model": whole,
    "tied weights": tied,
    "mixed precision": mixed_precision,
    "the head by itself, in its forward": head_by_itself,
    "the head by itself, a registered method": a_registered_method,
    "the head by itself, unshard()": functools.partial(head_by_itself, make=Unshards, head=Head),
    "the head by itself, full_tensor": functools.partial(head_by_itself, make=Gathers, head=Head),
    "hidden states and head apart": apart,
}


def message_of(call):
    try:
        call()
    except (rlk.InvalidArgument, rlk.Unsupported) as error:
        return str(error)
    return "none"


def refused(kind, rank):
    """What is said of a head that FSDP has sharded."""
    head = Head(DIM, VOCAB, device=kind)
    fully_shard(head)
    ids = torch.zeros(4, dtype=torch.int64, device=kind)
    hidden = torch.ones(4, DIM, device=kind)
    found = {"FSDP2": message_of(lambda: head.log_probs(hidden, ids))}
    for orig in (True, False):
        # Its weight is not at the start of the flat parameter.
        inner = nn.Sequential(nn.Linear(DIM, DIM), Head(DIM, VOCAB)).to(kind)
        wrap = functools.partial(
            FullyShardedDataParallel, use_orig_params=orig, device_id=hidden.device
        )
        wrap(nn.Sequential(wrap(inner)))(hidden)
        call = functools.partial(inner[1].log_probs, hidden, ids)
        found[f"FSDP1, use_orig_params={orig}"] = message_of(call)
    return found


def replicated(kind, rank):
    """Gradients where each rank has all of a head, and the same rows or rows of its own."""
    mesh = init_device_mesh(kind, (ranks.SIZE,))
    model = Model().to(kind)
    ids, target = batch(kind)
    hidden = model.hidden(ids).detach()
    given = {"hidden": hidden, "weight": model.lm_head.weight, "bias": model.lm_head.bias}

    def leaves(placed):
        return {
            name: distribute_tensor(t.detach(), mesh, [placed if name == "hidden" else Replicate()])
            for name, t in given.items()
        }

    def grads_of(call, placed):
        of = {name: t.requires_grad_() for name, t in leaves(placed).items()}
        logp = call(**of)
        assert type(logp) is torch.Tensor
        logp.mean().neg().backward()
        return of

    def same_rows(**of):
        return rlk.jit.linear_logp(target=target, **of)

    def pending(hidden, **of):
        parts = DTensor.from_local(hidden.to_local() / ranks.SIZE, mesh, [Partial()])
        whole = parts.redistribute(mesh, [Replicate()], async_op=True)
        return rlk.jit.linear_logp(whole.detach(), target=target, **of)

    def pending_tensor(hidden, **of):
        parts = DTensor.from_local(hidden.to_local() / ranks.SIZE, mesh, [Partial()])
        whole = parts.redistribute(mesh, [Replicate()], async_op=True).to_local()
        assert type(whole) is not torch.Tensor  # still to be waited for
        of = {name: t.to_local() for name, t in of.items()}
        return rlk.jit.linear_logp(whole.detach(), target=target, **of)

    def own_rows(hidden, **of):
        of = {name: t.to_local(grad_placements=[Partial("avg")]) for name, t in of.items()}
        return rlk.jit.linear_logp(hidden.to_local(), target=target.chunk(ranks.SIZE)[rank], **of)

    found = {}
    for call in (same_rows, pending, pending_tensor):
        of = grads_of(call, Replicate())
        grads = {name: t.grad for name, t in of.items() if t.grad is not None}
        assert all(grad.placements == (Replicate(),) for grad in grads.values())
        found[call.__name__] = {name: grad.to_local().cpu() for name, grad in grads.items()}
    of = grads_of(own_rows, Shard(0))
    found["own_rows"] = {n: t.grad.full_tensor().cpu() for n, t in of.items() if n != "hidden"}
    return found


def all_of_it(kind, rank):
    found = {name: work(kind, rank) for name, work in WRAPPED.items()}
    return {"wrapped": found, "refused": refused(kind, rank), "replicated": replicated(kind, rank)}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def found(request, tmp_path_factory):
    """(kind of device, what each rank found)."""
    folder = tmp_path_factory.mktemp("ranks")
    return request.param, ranks.run(request.param, all_of_it, folder)


@pytest.mark.parametrize("name", WRAPPED)
def test_gradients_of_one_process(found, name):
    kind, of_ranks = found
    want = trained(Model(tied=name == "tied weights").to(kind), kind)
    for rank in of_ranks:
        got = rank["wrapped"][name]
        assert got.keys() == want.keys()
        for parameter, grad in got.items():
            loose = name == "mixed precision"
            rtol, atol = (0.1, 2e-3) if loose else (1e-4, 1e-6)
            torch.testing.assert_close(grad, want[parameter], rtol=rtol, atol=atol)


def test_replicas(found):
    kind, of_ranks = found
    model = Model().to(kind)
    ids, target = batch(kind)
    hidden = model.hidden(ids).detach().requires_grad_()
    model.log_probs(hidden, target).mean().neg().backward()
    head = {"hidden": hidden, "weight": model.lm_head.weight, "bias": model.lm_head.bias}
    for rank in of_ranks:
        assert rank["replicated"]["same_rows"].keys() == head.keys()
        for grads in rank["replicated"].values():
            assert grads.keys() >= {"weight", "bias"}
            for name, grad in grads.items():
                torch.testing.assert_close(grad, head[name].grad.cpu(), rtol=1e-4, atol=1e-6)


def test_a_shard_is_refused_by_name(found):
    for rank in found[1]:
        words = rank["refused"]
        assert words["FSDP2"].startswith("linear_logp: weight: expected a tensor that each rank")
        assert "DTensor of placements (Shard(dim=0),) on 2 ranks" in words["FSDP2"]
        assert "unshard()" in words["FSDP2"]
        assert 'full_tensor() without grad_placements=[Partial("avg")]' in words["FSDP2"]
        assert "must be gathered" in words["FSDP1, use_orig_params=True"]
        assert "its storage is freed" in words["FSDP1, use_orig_params=False"]
