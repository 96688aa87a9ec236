# SPDX-License-Identifier: Apache-2.0
"""What a forward saves is torch's: to drop and make anew, to send elsewhere, to look at."""

import gc

import pytest
from grpo import draw
from reference import same_bits
from tensors import make, tensor, torch
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

VOCAB = 1031  # of no other tensor's size
DRAWN = draw(vocab=VOCAB)
LOSS = {"samples_per_prompt": 2}


def head():
    """Hidden states and a weight, from which each part makes logits of its own."""
    p = make((6, 9), 24, VOCAB)
    return p.hidden.requires_grad_(), p.weight.requires_grad_()


def with_logits(hidden, weight):
    return DRAWN.map(tensor).but(policy=hidden @ weight.T)


def linear_logp(hidden, weight):
    p = DRAWN.map(tensor)
    heat = torch.ones_like(p.old)
    found = rlk.jit.linear_logp(
        hidden, weight, p.ids, mask=p.mask, temperature=heat, return_entropy=True
    )
    return found.log_prob.sum() + found.entropy.sum()


def logp(hidden, weight):
    p = with_logits(hidden, weight)
    return rlk.jit.logp(p.policy, p.ids, mask=p.mask).sum()


def logp_in_place(hidden, weight):
    p = with_logits(hidden, weight)
    return rlk.jit.logp(p.policy, p.ids, inplace_backward=True).sum()


def ratio_kl(hidden, weight):
    found = with_logits(hidden, weight).ratio_kl()
    return found.ratio.sum() + found.kl.sum()


def grpo_loss(hidden, weight):
    return with_logits(hidden, weight).loss(**LOSS).loss * 3


def grpo_loss_of_one(hidden, weight):
    return with_logits(hidden, weight).loss(**LOSS).loss


def grpo_loss_with_entropy(hidden, weight):
    return with_logits(hidden, weight).loss(**LOSS, entropy_coef=0.1).loss


def ppo_loss(hidden, weight):
    p = with_logits(hidden, weight)
    log_probs = p.policy.log_softmax(-1).gather(-1, p.ids[..., None])[..., 0]
    return rlk.jit.ppo_loss(log_probs, p.old, p.old, p.mask).loss


PARTS = pytest.mark.parametrize(
    "part",
    [
        linear_logp,
        logp,
        logp_in_place,
        ratio_kl,
        grpo_loss,
        grpo_loss_of_one,
        grpo_loss_with_entropy,
        ppo_loss,
    ],
    ids=lambda part: part.__name__,
)


def grads(loss, operands):
    return torch.autograd.grad(loss, operands)


def num_of_logits_size():
    """Pieces of memory that a living tensor of the logits' size has."""
    gc.collect()
    found = set()
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.numel() == DRAWN.ids.size * VOCAB:
            found.add(thing.data_ptr())
    return len(found)


@PARTS
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_drops_it(part, use_reentrant):
    operands = head()
    want = grads(part(*operands), operands)
    before = num_of_logits_size()
    loss = checkpoint(part, *operands, use_reentrant=use_reentrant)
    assert num_of_logits_size() == before
    loss.backward()
    for operand, grad in zip(operands, want, strict=True):
        assert same_bits(operand.grad, grad)


@PARTS
def test_hooks_see_all_of_it(part):
    operands = head()
    want = grads(part(*operands), operands)
    before = num_of_logits_size()
    away = []

    def pack(saved):
        away.append(saved.detach().cpu().numpy().copy("K"))  # the same strides, for matmul's bits
        return len(away) - 1

    def unpack(at):
        return torch.from_numpy(away[at]).to(operands[0].device)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = part(*operands)
    assert num_of_logits_size() == before
    for got, grad in zip(grads(loss, operands), want, strict=True):
        assert same_bits(got, grad)


@PARTS
def test_it_may_wait_in_host_memory(part):
    operands = head()
    want = grads(part(*operands), operands)
    with torch.autograd.graph.save_on_cpu():
        loss = part(*operands)
    for got, grad in zip(grads(loss, operands), want, strict=True):
        assert same_bits(got, grad)


@pytest.mark.parametrize("name", ["ids", "mask"])
def test_what_torch_does_not_save_is_named(name):
    p = DRAWN.map(tensor)
    with torch.inference_mode():
        p = p.but(**{name: getattr(p, name).clone()})
    p = p.but(policy=p.policy.requires_grad_())
    told = {
        "logp": (lambda: rlk.jit.logp(p.policy, p.ids, mask=p.mask), ("target", "mask")),
        "ratio_kl": (p.ratio_kl, ("action_ids", "attention_mask")),
        "grpo_loss": (lambda: p.loss(**LOSS), ("action_ids", "completion_mask")),
    }
    for op, (call, (ids, mask)) in told.items():
        argument = ids if name == "ids" else mask
        with pytest.raises(rlk.InvalidArgument, match=f"^{op}: {argument}: .*inference_mode"):
            call()
