# SPDX-License-Identifier: Apache-2.0
"""main_grad beside torch's DistributedDataParallel, which knows nothing of it."""

import pytest
import ranks
from ranks import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import rlk

pytestmark = pytest.mark.torch

DIM, VOCAB, ROWS, STEPS = 24, 331, 12, 4


class Model(torch.nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, DIM)
        self.body = torch.nn.Linear(DIM, DIM)
        self.head = torch.nn.Linear(DIM, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids, target):
        hidden = self.body(self.embedding(ids))
        return rlk.jit.linear_logp(hidden, self.head.weight, target, accumulate_into="main_grad")


def rows(rank, step):
    drawn = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randint(VOCAB, (ROWS,), generator=drawn) for _ in range(2)]


def off(found, exact):
    return ((found.cpu().double() - exact).abs().max() / exact.abs().max()).item()


def gradients(kind, rank, tied):
    """How far the gradients of four micro-batches are from those of both ranks' rows."""
    torch.manual_seed(0)
    model = Model(tied).to(kind)
    ddp = DistributedDataParallel(model)
    weight = model.head.weight
    weight.main_grad = torch.zeros_like(weight).detach()
    for step in range(STEPS):
        with torch.enable_grad() if step + 1 == STEPS else ddp.no_sync():
            out = ddp(*(x.to(kind) for x in rows(rank, step)))
            (-out.sum()).backward()
    distributed.all_reduce(weight.main_grad)
    weight.main_grad /= ranks.SIZE

    exact = Model(tied).double()
    exact.load_state_dict({name: x.cpu() for name, x in model.state_dict().items()})
    for ids, target in (rows(r, step) for r in range(ranks.SIZE) for step in range(STEPS)):
        logits = exact.head(exact.body(exact.embedding(ids)))
        (cross_entropy(logits, target, reduction="sum") / ranks.SIZE).backward()
    head = weight.main_grad + weight.grad if tied else weight.main_grad
    return {
        "head": off(head, exact.head.weight.grad),
        "body": off(model.body.weight.grad, exact.body.weight.grad),
        "embedding": off(model.embedding.weight.grad, exact.embedding.weight.grad),
        "grad": weight.grad.abs().max().item(),
    }


def both(kind, rank):
    return [gradients(kind, rank, tied) for tied in (False, True)]


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_it_is_reduced_by_hand(kind, tmp_path):
    for own, tied in ranks.run(kind, both, tmp_path):
        assert max(own["head"], own["body"], own["embedding"]) < 1e-5
        assert own["grad"] == 0  # DDP reduces zeros for a parameter without a gradient
        assert max(tied["head"], tied["body"]) < 1e-5
        assert tied["grad"] > 0  # the embedding's part
