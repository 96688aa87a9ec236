# SPDX-License-Identifier: Apache-2.0
"""Calls of every op as functions of torch tensors alone, for what looks into a function's calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import devices
import pytest
from tensors import torch

import rlk


@dataclass(frozen=True)
class Case:
    """`call` gives one tensor or a tuple; the first `needs` of its inputs have gradients."""

    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]  # of the inputs that are random numbers
    needs: int
    more: Callable[[], tuple[Any, ...]] = field(default=tuple)  # the inputs after them

    def inputs(self, needs_grad: bool = True) -> tuple[Any, ...]:
        """The same for every call, fresh leaves."""
        kind = {"generator": torch.Generator().manual_seed(7)}
        drawn = [torch.randn(shape, **kind).to(devices.torch_name()) for shape in self.shapes]
        for tensor in drawn[: self.needs if needs_grad else 0]:
            tensor.requires_grad_()
        return (*drawn, *(value.to(devices.torch_name()) for value in self.more()))

    def outputs(self, *inputs: Any) -> tuple[Any, ...]:
        found = self.call(*inputs)
        return found if isinstance(found, tuple) else (found,)

    def loss(self, *inputs: Any) -> Any:
        """One number of all outputs that have a gradient, each row weighted in its own way."""
        total = inputs[0].new_zeros(())
        for output in self.outputs(*inputs):
            if output.is_floating_point():
                flat = output.reshape(-1)
                total = (
                    total + (flat * torch.linspace(-1, 2, flat.numel(), device=flat.device)).sum()
                )
        return total


@pytest.fixture
def fresh_compiler():
    """What torch.compile knows, and counts, is of this test alone."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


ROWS, DIM, VOCAB = (3, 4), 16, 71


def ids() -> Any:
    found = torch.arange(12).reshape(ROWS) * 5 % VOCAB
    found[1, 2] = -100
    return found


def keep() -> Any:
    return torch.arange(12).reshape(ROWS) % 5 != 3


def every_option(hidden: Any, weight: Any, bias: Any, heat: Any, target: Any, mask: Any) -> Any:
    found = rlk.jit.linear_logp(
        hidden,
        weight,
        target,
        bias,
        temperature=heat.exp(),
        softcap=30.0,
        logit_scale=0.5,
        mask=mask,
        return_entropy=True,
        return_lse=True,
        return_stats=True,
    )
    return (*found[:3], *found.stats)


def logp_with_entropy(logits: Any, target: Any) -> Any:
    return rlk.jit.logp(logits, target, temperature=0.7, return_entropy=True)[:2]


CASES = {
    "linear_logp": Case(
        lambda hidden, weight, target: rlk.jit.linear_logp(hidden, weight, target),
        ((*ROWS, DIM), (VOCAB, DIM)),
        2,
        lambda: (ids(),),
    ),
    "linear_logp with every option": Case(
        every_option,
        ((*ROWS, DIM), (VOCAB, DIM), (VOCAB,), ROWS),
        3,
        lambda: (ids(), keep()),
    ),
    # Each element of what is kept has a value: segments of 64 columns, no inactive row.
    "linear_logp that keeps exponentials": Case(
        lambda hidden, weight: rlk.jit.linear_logp(
            hidden, weight, torch.arange(12, device=hidden.device).reshape(ROWS), saved_mib=1
        ),
        ((*ROWS, DIM), (512, DIM)),
        2,
    ),
    "logp": Case(
        lambda logits, target: rlk.jit.logp(logits, target),
        ((*ROWS, VOCAB),),
        1,
        lambda: (ids(),),
    ),
    "logp with entropy": Case(logp_with_entropy, ((*ROWS, VOCAB),), 1, lambda: (ids(),)),
}


def advantages() -> Any:
    return torch.linspace(-1, 1, 12).reshape(ROWS)


def ppo_with_every_tensor(log_probs: Any, entropy: Any, old: Any, ref: Any, adv: Any, mask: Any):
    found = rlk.jit.ppo_loss(
        log_probs,
        old,
        adv,
        mask,
        dialect="verl",
        policy_loss="gspo",
        kl_coef=0.1,
        ref_log_probs=ref,
        entropy=entropy,
        entropy_coef=0.01,
        use_tis=True,
        rollout_logprobs=ref,
        log_ratio_clamp=(-9.0, 8.0),
        loss_reduction="prompt_mean",
        group_boundaries=torch.tensor([0, 1, 3], device=mask.device),
        global_groups=4,
    )
    return (found.loss,)


def grpo(policy: Any, ref: Any, old: Any, rewards: Any, ids: Any, mask: Any) -> Any:
    return rlk.jit.grpo_loss(policy, ref, ids, old, rewards, mask, samples_per_prompt=3)[:1]


def grpo_with_options(policy: Any, old: Any, rewards: Any, heat: Any, ids: Any) -> Any:
    return rlk.jit.grpo_loss(
        policy,
        None,
        ids,
        old,
        rewards,
        samples_per_prompt=3,
        beta=0.0,
        dialect="trl",
        clip_eps=0.3,
        temperature=heat.exp(),
        entropy_coef=0.01,
        loss_reduction="token_sum",
    )[:1]


def ratio_kl(policy: Any, ref: Any, old: Any, ids: Any, mask: Any) -> Any:
    return tuple(rlk.jit.ratio_kl(policy, ref, ids, mask, old, log_ratio_clamp=(-9.0, 8.0)))


def in_autocast(x: Any, weight: Any) -> Any:
    with torch.autocast(devices.torch_name(), dtype=torch.bfloat16):
        return rlk.jit.linear(x, weight)


def logp_in_autocast(hidden: Any, weight: Any, target: Any) -> Any:
    with torch.autocast(devices.torch_name(), dtype=torch.bfloat16):
        return rlk.jit.linear_logp(hidden, weight, target)


CASES |= {
    "det_gemm": Case(lambda a, b, bias: rlk.jit.det_gemm(a, b, bias), ((3, 5, 8), (8, 6), (6,)), 3),
    "linear": Case(lambda x, weight: rlk.jit.linear(x, weight), ((3, 5, 8), (6, 8)), 2),
    "det_gemm in autocast": Case(in_autocast, ((3, 5, 8), (6, 8)), 2),
    "linear_logp of another dtype": Case(
        lambda hidden, weight, target: rlk.jit.linear_logp(
            hidden, weight, target, compute_dtype=torch.bfloat16
        ),
        ((*ROWS, DIM), (VOCAB, DIM)),
        2,
        lambda: (ids(),),
    ),
    "linear_logp in autocast": Case(
        logp_in_autocast, ((*ROWS, DIM), (VOCAB, DIM)), 2, lambda: (ids(),)
    ),
    "ppo_loss": Case(
        lambda log_probs, old, adv: rlk.jit.ppo_loss(log_probs, old, adv).loss,
        (ROWS, ROWS),
        1,
        lambda: (advantages(),),
    ),
    "ppo_loss with every tensor": Case(
        ppo_with_every_tensor, (ROWS, ROWS, ROWS, ROWS), 2, lambda: (advantages(), keep())
    ),
    "grpo_loss": Case(
        grpo, ((*ROWS, VOCAB), (*ROWS, VOCAB), ROWS, ROWS[:1]), 1, lambda: (ids(), keep())
    ),
    "grpo_loss with options": Case(
        grpo_with_options, ((*ROWS, VOCAB), ROWS, ROWS[:1], ROWS), 1, lambda: (ids(),)
    ),
    "ratio_kl": Case(ratio_kl, ((*ROWS, VOCAB), (*ROWS, VOCAB), ROWS), 1, lambda: (ids(), keep())),
    "group_advantages": Case(
        lambda rewards: rlk.jit.group_advantages(rewards, samples_per_prompt=4), ((12,),), 0
    ),
}
