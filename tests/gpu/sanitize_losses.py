# SPDX-License-Identifier: Apache-2.0
"""Small calls of the losses and of logp, to be run under each tool of compute-sanitizer.

As sanitize_linear_logp.py is, `--specialize` too.

Each call runs on fresh memory as it comes, for initcheck, and on memory full of NaN, which must not
show. Inactive tokens hold NaN and ids far out of range. Exits with 1 for a wrong result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from sanitize_linear_logp import DEVICE, filled_with_nan, spread

import rlk

# Sequences, tokens of each, vocabulary: around a leaf, odd, several parts of a row, and rows enough
# for grpo_loss's gradient in one look.
SHAPES = ((2, 3, 193), (4, 7, 400), (2, 5, 7001), (640, 4, 400))
EPS, BETA = 0.2, 0.1


class Batch:
    """The tensors of one GRPO step, half of them strided."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
        rows, length, vocab = shape
        g = torch.Generator().manual_seed(seed)
        self.policy = torch.randn(*shape, generator=g).to(dtype)
        self.ref = (self.policy.float() + 0.3 * torch.randn(*shape, generator=g)).to(dtype)
        self.ids = torch.randint(vocab, (rows, length), generator=g)
        self.mask = torch.rand(rows, length, generator=g) < 0.7
        self.mask[0, 0] = True
        # As it was in the rollout, so that ratios lie around 1.
        logs = self.policy.double().log_softmax(-1).gather(-1, self.ids[..., None])[..., 0]
        self.old = (logs + 0.3 * torch.randn(rows, length, generator=g)).float()
        self.rewards = torch.randn(rows, generator=g)
        self.policy[~self.mask], self.old[~self.mask] = torch.nan, torch.nan
        self.ids[~self.mask] = 2**40

    def on_device(self) -> Batch:
        moved = Batch.__new__(Batch)
        for name, tensor in vars(self).items():
            setattr(moved, name, tensor.to(DEVICE))
        moved.policy, moved.old = spread(self.policy), spread(self.old)
        return moved


def calls(b: Batch) -> list[torch.Tensor]:
    """Outputs and gradients of every op."""
    advantages = rlk.jit.group_advantages(b.rewards, samples_per_prompt=2)
    policy = b.policy.detach().requires_grad_()
    out = rlk.jit.logp(policy, b.ids, mask=b.mask, return_entropy=True, return_lse=True)
    (of_logp,) = torch.autograd.grad(sum(t.sum() for t in out), policy)
    ratio, kl = rlk.jit.ratio_kl(policy, b.ref, b.ids, b.mask, b.old)
    (of_ratio,) = torch.autograd.grad((ratio + BETA * kl).sum(), policy)
    loss, _, _ = rlk.jit.grpo_loss(
        policy, b.ref, b.ids, b.old, b.rewards, b.mask, samples_per_prompt=2, beta=BETA
    )
    (of_loss,) = torch.autograd.grad(loss * 2, policy)
    leaf = out.log_prob.detach().requires_grad_()
    plain, metrics = rlk.jit.ppo_loss(
        leaf, b.old, advantages, b.mask, use_tis=True, rollout_logprobs=b.old, use_dual_clip=True
    )
    (of_plain,) = torch.autograd.grad(plain, leaf)
    found = [advantages, *out, of_logp, ratio, kl, of_ratio, loss, of_loss, plain, of_plain]
    return [t.detach().cpu() for t in (*found, metrics.counts, metrics.floats)]


def expected_loss(b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """grpo_loss and its gradient in float64 on the CPU."""
    policy = torch.where(b.mask[..., None], b.policy, 0).double().requires_grad_()
    ids = torch.where(b.mask, b.ids, 0)[..., None]
    log_prob = policy.log_softmax(-1).gather(-1, ids)[..., 0]
    ref = b.ref.double().log_softmax(-1).gather(-1, ids)[..., 0]
    groups = b.rewards.double().view(-1, 2)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
    ratio = (log_prob - torch.where(b.mask, b.old, 0).double()).exp()
    a = advantages.view(-1, 1)
    loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - EPS, 1 + EPS))
    loss = loss + BETA * (torch.expm1(ref - log_prob) - (ref - log_prob))
    loss = torch.where(b.mask, loss, 0).sum() / b.mask.sum()
    (gradient,) = torch.autograd.grad(loss * 2, policy)
    return loss.detach(), gradient


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def run(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    batch = Batch(shape, dtype, seed)
    b = batch.on_device()
    call: Callable[[], Any] = lambda: calls(b)  # noqa: E731
    first = call()
    assert same(first, filled_with_nan(call)), "unwritten memory"
    loss, gradient = expected_loss(batch)
    assert abs(first[8].double() - loss) < 1e-5 * max(1.0, abs(loss)), "loss"
    error = (first[9].double() - gradient).norm() / gradient.norm()
    assert error < {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}[dtype], error
    for gradients in (first[4], first[7], first[9]):
        assert not gradients[~batch.mask].any(), "an inactive token has a gradient"


def main() -> None:
    for specialize in (False, True) if "--specialize" in sys.argv[1:] else (False,):
        rlk.jit.configure(specialize=specialize)
        for seed, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
            for shape in SHAPES:
                run(shape, dtype, seed)
            print(f"{dtype}: as expected{', specialized' if specialize else ''}", flush=True)
    print("all as expected", flush=True)


if __name__ == "__main__":
    main()
