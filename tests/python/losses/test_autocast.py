# SPDX-License-Identifier: Apache-2.0
"""autocast's rule for log_softmax and losses is float32, which is what these ops compute in anyway:
it changes no bit of them, nor of their gradients."""

import pytest
from devices import torch_name
from grpo import draw
from reference import same_bits
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

DRAWN = draw(vocab=331)


def logp(p):
    found = rlk.jit.logp(p.policy, p.ids, mask=p.mask, return_entropy=True)
    return found.log_prob.sum() + found.entropy.sum()


def ratio_kl(p):
    found = p.ratio_kl()
    return found.ratio.sum() + found.kl.sum()


def grpo_loss(p):
    return p.loss(samples_per_prompt=2).loss


def ppo_loss(p):
    log_probs = rlk.jit.logp(p.policy, p.ids)
    return rlk.jit.ppo_loss(log_probs, p.old, p.old, p.mask).loss


@pytest.mark.parametrize("op", [logp, ratio_kl, grpo_loss, ppo_loss], ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_it_changes_nothing(op, dtype):
    p = DRAWN.map(tensor)
    logits = p.policy.to(getattr(torch, dtype)).requires_grad_()
    p = p.but(policy=logits, ref=p.ref.to(logits.dtype))
    wanted = op(p)
    (wanted_grad,) = torch.autograd.grad(wanted, logits)
    for half in (torch.bfloat16, torch.float16):
        with torch.autocast(torch_name(), dtype=half):
            found = op(p)
            (grad,) = torch.autograd.grad(found, logits)
        assert found.dtype == torch.float32
        assert same_bits(found, wanted)
        assert same_bits(grad, wanted_grad)
