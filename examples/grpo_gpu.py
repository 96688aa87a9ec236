# SPDX-License-Identifier: Apache-2.0
"""GRPO on one GPU, twice with the same bits: a language model of 23 million parameters learns to
sort from its reward alone.

The task, rollout and log-probs are those of grpo_toy.py. The model is a Qwen3 of transformers with
random weights and a vocabulary of 32,768 ids: float32 parameters, bf16 products by autocast. A cold
start teaches the format alone, on answers that have the prompt's symbols in any order. Then GRPO
teaches to sort. Gradients are summed over micro-batches.

The program trains, and trains again from the same seed: rewards, metrics and weights must be the
same, bit for bit. That takes torch.use_deterministic_algorithms and CUBLAS_WORKSPACE_CONFIG; rlk's
kernels need no switch. Then it cuts a batch into micro-batches of several sizes and compares: the
log-probs of given hidden states are the same for all of them. The hidden states themselves are
torch's, whose products may depend on the size, unless rlk's take their place (batch_invariant).

    python examples/grpo_gpu.py [--steps 100] [--plot FILE.png]

It needs transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import grpo_toy
import torch
from grpo_toy import EPS_CLIP, KL_COEF, LENGTH, TEMPERATURE, Metrics, log_probs_of
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import rlk
from rlk.integrations import batch_invariant

VOCAB = 32768  # V
HIDDEN = 256  # D
LAYERS = 6

COLD_STEPS = 300  # on demonstrations of the format
COLD_LEARNING_RATE = 1e-3
PROMPTS = 64  # a step
SAMPLES = 16  # answers a prompt: the group
UPDATES = 2  # gradient steps a batch
MICRO_BATCH = 256  # sequences of one forward and backward
LEARNING_RATE = 2e-4


class Policy(nn.Module):
    """The trunk gives hidden states, `lm_head.weight` is [V, D]."""

    def __init__(self) -> None:
        super().__init__()
        config = AutoConfig.for_model(
            "qwen3",
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HIDDEN // 64,
            num_key_value_heads=HIDDEN // 64,
            head_dim=64,
            intermediate_size=4 * HIDDEN,
        )
        self.trunk = AutoModel.from_config(config, attn_implementation="sdpa")
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The hidden states [B, T, D] of ids [B, T]."""
        hidden: Tensor = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        return hidden


def answers_of(ids: Tensor) -> Tensor:
    """[B, T - 1]: whether a predicted token is one of the answer."""
    mask = torch.zeros_like(ids[:, 1:], dtype=torch.bool)
    mask[:, -LENGTH:] = True
    return mask


def in_micro_batches(function: Callable[[Tensor], Tensor], ids: Tensor, size: int) -> Tensor:
    """What the function gives for all rows, `size` of them at a time."""
    return torch.cat([function(part) for part in ids.split(size)])


class Trainer:
    """What lives over all steps."""

    def __init__(self, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator(device).manual_seed(seed)
        with torch.device(device):
            self.policy = Policy()
        self.cold_start()
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=LEARNING_RATE)

    def autocast(self) -> Any:
        """bf16 products on a GPU, float32 on the CPU."""
        device = self.generator.device.type
        return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")

    def cold_start(self) -> None:
        """Cross-entropy on answers that have the prompt's symbols in any order."""
        optimizer = torch.optim.AdamW(self.policy.parameters(), lr=COLD_LEARNING_RATE)
        for _ in range(COLD_STEPS):
            prompts = grpo_toy.make_prompts(self.generator, PROMPTS * SAMPLES)
            shape, device = (len(prompts), LENGTH), prompts.device
            order = torch.rand(shape, generator=self.generator, device=device).argsort(dim=1)
            ids = torch.cat([prompts, prompts.gather(1, order)], dim=1)
            with self.autocast():
                log_probs = log_probs_of(self.policy, ids, answers_of(ids))
            optimizer.zero_grad()
            (-log_probs.sum() / order.numel()).backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            optimizer.step()

    def rollout(self) -> Tensor:
        """[B, T]: prompts with sampled answers; the answers to one prompt are neighbours."""
        prompts = grpo_toy.make_prompts(self.generator, PROMPTS).repeat_interleave(SAMPLES, dim=0)
        with self.autocast():
            return grpo_toy.generate(self.policy, prompts, self.generator)

    @torch.no_grad()
    def log_probs(self, policy: nn.Module, ids: Tensor) -> Tensor:
        """[B, T - 1], without gradient."""

        def of(part: Tensor) -> Tensor:
            return log_probs_of(policy, part, answers_of(part))

        with self.autocast():
            return in_micro_batches(of, ids, MICRO_BATCH)

    def step(self) -> Metrics:
        """One batch: rollout, reward, advantages, updates."""
        ids = self.rollout()
        reward = grpo_toy.reward_of(ids)
        advantages = rlk.jit.group_advantages(reward, samples_per_prompt=SAMPLES)
        old, ref = self.log_probs(self.policy, ids), self.log_probs(self.reference, ids)
        num_tokens = len(ids) * LENGTH
        for _ in range(UPDATES):
            self.optimizer.zero_grad()
            sums = torch.zeros(2, device=ids.device)
            for part in torch.arange(len(ids), device=ids.device).split(MICRO_BATCH):
                mask = answers_of(ids[part])
                with self.autocast():
                    loss, metrics = rlk.jit.linear_ppo_loss(
                        self.policy(ids[part])[:, :-1],
                        self.policy.lm_head.weight,
                        ids[part, 1:],
                        old[part],
                        advantages[part],
                        mask,
                        temperature=TEMPERATURE,
                        eps_clip_low=EPS_CLIP,
                        eps_clip_high=EPS_CLIP,
                        ref_log_probs=ref[part],
                        kl_coef=KL_COEF,
                        kl_estimator="k3",
                        loss_reduction="token_mean",
                        global_tokens=num_tokens,  # a mean over the batch, not the micro-batch
                    )
                loss.backward()
                sums += torch.stack([metrics.kl_sum, metrics.clip_ratio * metrics.num_active])
            nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.optimizer.step()
        kl, clip_ratio = (sums / num_tokens).tolist()
        return Metrics(reward.mean().item(), kl, clip_ratio)


def train(trainer: Trainer, steps: int) -> list[Metrics]:
    """The metrics of each step; prints some."""
    start, history = time.perf_counter(), []
    for step in range(1, steps + 1):
        m = trainer.step()
        history.append(m)
        if step == 1 or step % 10 == 0:
            print(
                f"step {step:>4}  reward {m.reward:.3f}  kl {m.kl:.3f}  clip_ratio "
                f"{m.clip_ratio:.3f}  {time.perf_counter() - start:6.1f} s",
                flush=True,
            )
    return history


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Whether all parameters are the same, bit for bit."""
    return all(map(torch.equal, a.parameters(), b.parameters()))


@torch.no_grad()
def compare_sizes(trainer: Trainer, ids: Tensor, sizes: list[int]) -> list[list[Any]]:
    """A row a size of micro-batch: whether log-probs of given hidden states are those of the whole
    batch, and how many of the sequences have the hidden states of the whole batch, with torch's
    products and with rlk's."""
    policy = trainer.policy
    with trainer.autocast():
        given = policy(ids)

        def log_probs(rows: Tensor) -> Tensor:
            found: Tensor = rlk.jit.linear_logp(
                given[rows, :-1], policy.lm_head.weight, ids[rows, 1:], temperature=TEMPERATURE
            )
            return found

        rows = torch.arange(len(ids), device=ids.device)
        table = []
        for size in sizes:
            same = torch.equal(in_micro_batches(log_probs, rows, size), log_probs(rows))
            cells: list[Any] = [size, same]
            for products in (contextlib.nullcontext(), batch_invariant.mode()):
                with products:
                    whole, parts = policy(ids), in_micro_batches(policy, ids, size)
                equal = (whole == parts).flatten(1).all(dim=1).sum().item()
                cells.append(f"{equal} of {len(ids)}, {(whole - parts).abs().max().item():.1e}")
            table.append(cells)
    return table


def main() -> int:
    """Train twice, compare, cut batches, draw the reward; 1 where bits differ that must not."""
    parser = argparse.ArgumentParser(description="GRPO on one GPU with rlk, twice with one result")
    add = parser.add_argument
    add("--steps", type=int, default=100)
    add("--again", type=int, metavar="STEPS", help="of the second run (as many)")
    add("--seed", type=int, default=0)
    add("--device", default="cuda", choices=("cpu", "cuda"))
    add("--plot", metavar="FILE", help="draw the reward as an image (matplotlib)")
    arguments = parser.parse_args()
    if arguments.again is not None and not 0 < arguments.again <= arguments.steps:
        parser.error(f"--again: expected 1 to {arguments.steps}, got {arguments.again}")
    if arguments.plot and not grpo_toy.can_plot():
        parser.error("--plot: matplotlib is not installed")

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product
    torch.use_deterministic_algorithms(True)

    def make() -> Trainer:
        return Trainer(arguments.seed, arguments.device)

    trainer = make()
    parameters = sum(parameter.numel() for parameter in trainer.policy.parameters())
    print(f"{parameters / 1e6:.1f} million parameters")
    history = train(trainer, arguments.steps)
    rewards = [m.reward for m in history]
    print(f"\nreward (1: every answer is sorted)\n{grpo_toy.draw(rewards)}\n")

    steps = arguments.steps if arguments.again is None else arguments.again
    second = make()
    same = [train(second, steps) == history[:steps]]
    print(f"the same seed again, {steps} steps: the same metrics: {same[0]}")
    if steps == arguments.steps:
        same.append(same_weights(trainer.policy, second.policy))
        print(f"the same weights: {same[1]}")

    columns = "micro-batch", "same log-probs of given hidden states"
    of_hidden = "sequences with the same hidden states, largest difference: torch's products"
    print("\n" + " | ".join([*columns, of_hidden, "rlk's products"]))
    for cells in compare_sizes(trainer, trainer.rollout()[:MICRO_BATCH], [1, 7, 64]):
        print(" | ".join(map(str, cells)))
        same.append(cells[1])
    if arguments.plot:
        grpo_toy.save_plot(rewards, arguments.plot)
    return int(not all(same))


if __name__ == "__main__":
    sys.exit(main())
