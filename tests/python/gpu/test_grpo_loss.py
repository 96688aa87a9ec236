# SPDX-License-Identifier: Apache-2.0
"""ratio_kl and grpo_loss on a GPU: ids out of range, graphs, memory."""

import numpy as np
import pytest
from grpo import PAIRS, Tokens, draw
from on_device import DEVICE, graph_of
from reference import same_bits
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]


def run_ratio_kl(t: Tokens, g):
    found = t.ratio_kl()
    return (*(x.detach() for x in found), *torch.autograd.grad(found, t.policy, list(g)))


def run_loss(t: Tokens):
    found = t.loss(**PAIRS)
    return (*(x.detach() for x in found), *torch.autograd.grad(found.loss * 2.0, t.policy))


# From a graph, so that no later launch of the same call tells the error first.
@pytest.mark.parametrize("op", ["ratio_kl", "loss"])
def test_ids_out_of_range(op):
    t = draw(6, 9, 310).map(tensor)
    at = tuple(t.mask.nonzero()[0].tolist())
    graph, found = graph_of(
        lambda: t.ratio_kl().ratio[at] if op == "ratio_kl" else t.loss(**PAIRS).loss
    )
    t.ids[at] = 310
    graph.replay()
    assert found.isnan()
    with pytest.raises(rlk.InvalidArgument, match="got 310 in row"):
        rlk.jit.check_errors()


def test_a_graph_captures_it():
    t = draw(6, 9, 3331).map(tensor)
    t = t.but(policy=t.policy.requires_grad_())
    g = tensor(np.random.default_rng(1).standard_normal((2, 6, 9)).astype(np.float32))
    want = (*run_ratio_kl(t, g), *run_loss(t))
    graph, found = graph_of(lambda: (*run_ratio_kl(t, g), *run_loss(t)))
    graph.replay()
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(found, want, strict=True))


def test_no_memory_beside_the_gradient():
    shape = (8, 64, 32768)
    policy = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    ref = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.randint(shape[-1], shape[:-1], device=DEVICE)
    old, rewards = torch.full(shape[:-1], -10.0, device=DEVICE), torch.randn(8, device=DEVICE)

    def step(factor):
        loss = rlk.jit.grpo_loss(policy, ref, ids, old, rewards, samples_per_prompt=4).loss
        (loss * factor).backward()
        policy.grad = None

    for factor in (1.0, 3.0):
        step(factor)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(factor)
        assert torch.cuda.max_memory_allocated() - before < policy.nbytes + (4 << 20)
