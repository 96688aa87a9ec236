# SPDX-License-Identifier: Apache-2.0
"""logp on a GPU: errors of ids, large offsets, graphs."""

import pytest
from logits import draw
from on_device import DEVICE, graph_of
from reference import same_bits
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]


def upload(p):
    return p.but(logits=tensor(p.logits), target=tensor(p.target), upstream=tensor(p.upstream))


def test_targets_out_of_range():
    p = upload(draw(5, 310))
    ids = p.target.clone()
    ids[2] = 310
    found = p.but(target=ids).outputs()
    assert found.log_prob.isnan().tolist() == [False, False, True, False, False]
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: target: .*got 310 in row 2$"):
        rlk.jit.check_errors()
    rlk.jit.configure(validate="sync")
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: target: .*got 310 in row 2$"):
        p.but(target=ids).logp()


def test_large_offsets():
    """More than 2^31 elements: the last rows are right."""
    rows, vocab = 17000, 131072
    if torch.cuda.mem_get_info()[0] < 3 * rows * vocab * 2:
        pytest.skip("too little free memory")
    logits = torch.zeros(rows, vocab, dtype=torch.float16, device=DEVICE)
    logits[-3:] = torch.randn(3, vocab, device=DEVICE)
    target = torch.full((rows,), vocab - 1, device=DEVICE)
    found = rlk.jit.logp(logits, target)
    assert same_bits(found[-3:], rlk.jit.logp(logits[-3:].clone(), target[-3:]))
    grad = rlk.jit.logp_backward(torch.ones_like(found), logits, target)
    few = rlk.jit.logp_backward(torch.ones_like(found[-3:]), logits[-3:].clone(), target[-3:])
    assert same_bits(grad[-3:], few)


def test_a_graph_captures_it():
    p = upload(draw(40, 3333))
    leaf = p.logits.clone().requires_grad_()
    want = p.logp(), p.grad()

    def step():
        found = rlk.jit.logp(leaf, p.target)
        (grad,) = torch.autograd.grad(found, leaf, p.upstream)
        return found.detach(), grad

    graph, found = graph_of(step)
    graph.replay()
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(found, want, strict=True))
