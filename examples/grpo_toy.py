# SPDX-License-Identifier: Apache-2.0
"""GRPO on a toy task, start to end: a small transformer learns to sort.

The policy is prompted with a few symbols in random order and must emit them sorted. The steps are
those of a GRPO trainer for language models: sample a group of answers for each prompt, reward them,
turn rewards into advantages, and take gradient steps on the clipped loss with a KL term. The three
steps where log-probs and losses are computed are rlk's; the rest is plain torch.

    ./dev torch
    ./dev exec python examples/grpo_toy.py [--steps 150] [--plot FILE.png]
"""

from __future__ import annotations

import argparse
import copy
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import rlk

NUM_SYMBOLS = 8  # a prompt is LENGTH of them, each once
LENGTH = 4
SORT = NUM_SYMBOLS  # the token between prompt and answer: "now sort"
VOCAB = NUM_SYMBOLS + 1  # V
HIDDEN = 64  # D

PROMPTS = 16  # a step
SAMPLES = 16  # answers a prompt: the group
UPDATES = 2  # gradient steps a batch; in the second one ratios differ from 1
TEMPERATURE = 0.9  # of the sampler; the loss must divide logits by the same
LEARNING_RATE = 2e-3
KL_COEF = 0.002
EPS_CLIP = 0.2


class Policy(nn.Module):
    """A causal transformer in two parts, as in Hugging Face models: the body gives hidden states,
    `lm_head.weight` is [V, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.places = nn.Embedding(2 * LENGTH + 1, HIDDEN)
        layer = nn.TransformerEncoderLayer(
            HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The hidden states [B, T, D] of ids [B, T]."""
        length = ids.shape[1]
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)  # not to be looked at
        hidden: Tensor = self.tokens(ids) + self.places(torch.arange(length))
        hidden = self.norm(self.layers(hidden, mask=ahead))
        return hidden


class Metrics(NamedTuple):
    """Of one step; kl and clip_ratio are those of its last update."""

    reward: float  #: mean over answers
    kl: float  #: to the reference, mean over tokens
    clip_ratio: float  #: share of tokens whose ratio is clipped


def make_prompts(generator: torch.Generator, number: int = PROMPTS) -> Tensor:
    """[number, LENGTH + 1]: symbols in random order, then SORT; on the generator's device."""
    device = generator.device
    order = torch.rand(number, NUM_SYMBOLS, generator=generator, device=device).argsort(dim=1)
    return torch.cat([order[:, :LENGTH], torch.full((number, 1), SORT, device=device)], dim=1)


def generate(policy: Any, ids: Tensor, generator: torch.Generator) -> Tensor:
    """ids [B, LENGTH + 1] with an answer of LENGTH sampled tokens behind."""
    for _ in range(LENGTH):
        with torch.no_grad():
            logits = policy.lm_head(policy(ids)[:, -1]) / TEMPERATURE
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        ids = torch.cat([ids, token], dim=1)
    return ids


def reward_of(ids: Tensor) -> Tensor:
    """[B]: the share of places where the answer is right."""
    prompt, answer = ids[:, :LENGTH], ids[:, -LENGTH:]
    return (answer == prompt.sort(dim=1).values).float().mean(dim=1)


def log_probs_of(policy: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """[B, T - 1]: log-prob of each token given those before it; 0 where the mask is 0.

    In place of lm_head, log_softmax and gather: logits [B, T, V] are never formed, and rows of the
    prompt, which no loss needs, cost nothing.
    """
    log_probs: Tensor = rlk.jit.linear_logp(
        policy(ids)[:, :-1], policy.lm_head.weight, ids[:, 1:], temperature=TEMPERATURE, mask=mask
    )
    return log_probs


class Trainer:
    """What lives over all steps."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.policy = Policy()
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=LEARNING_RATE)

    def step(self) -> Metrics:
        """One batch: rollout, reward, advantages, updates."""
        # Rollout. The answers to one prompt are neighbours: a group.
        prompts = make_prompts(self.generator).repeat_interleave(SAMPLES, dim=0)
        ids = generate(self.policy, prompts, self.generator)
        reward = reward_of(ids)
        # Each answer against the mean of its group, over the group's standard deviation: [B].
        advantages = rlk.jit.group_advantages(reward, samples_per_prompt=SAMPLES)

        # The mask is of predicted tokens, so one shorter than ids: 1 for those of the answer.
        mask = torch.zeros(ids.shape[0], ids.shape[1] - 1, dtype=torch.bool)
        mask[:, -LENGTH:] = True
        with torch.no_grad():
            old_log_probs = log_probs_of(self.policy, ids, mask)
            ref_log_probs = log_probs_of(self.reference, ids, mask)

        for _ in range(UPDATES):
            loss, metrics = rlk.jit.ppo_loss(
                log_probs_of(self.policy, ids, mask),
                old_log_probs,
                advantages,
                mask,
                eps_clip_low=EPS_CLIP,
                eps_clip_high=EPS_CLIP,
                ref_log_probs=ref_log_probs,
                kl_coef=KL_COEF,
                kl_estimator="k3",
                loss_reduction="token_mean",
            )
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.optimizer.step()
        # Metrics are sums and counts, so that they add up over micro-batches and ranks.
        kl = metrics.kl_sum / metrics.num_active
        return Metrics(reward.mean().item(), kl.item(), metrics.clip_ratio.item())


def draw(values: list[float], width: int = 60, height: int = 10) -> str:
    """A plot in text, of values from 0 to 1."""
    width = min(width, len(values))
    cuts = [len(values) * i // width for i in range(width + 1)]
    bars = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    lines = []
    for row in range(height, 0, -1):
        line = "".join("#" if bar * height >= row - 0.5 else " " for bar in bars)
        lines.append(f"{row / height:5.1f} |{line}".rstrip())
    return "\n".join([*lines, f"{0:5.1f} +{'-' * width}", f"{'':7}steps 1 to {len(values)}"])


def can_plot() -> bool:
    """Whether matplotlib is there: asked before a training, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def save_plot(rewards: list[float], file: str) -> None:
    """The mean reward of each step, as an image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    axes.plot(range(1, len(rewards) + 1), rewards)
    axes.set(xlabel="step", ylabel="mean reward", ylim=(0, 1))
    figure.savefig(file, dpi=150)


def main() -> None:
    """Train, print the metrics, draw the reward."""
    parser = argparse.ArgumentParser(description="GRPO on a toy task with rlk's losses")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="draw the reward as an image (matplotlib)")
    arguments = parser.parse_args()
    if arguments.plot and not can_plot():
        parser.error("--plot: matplotlib is not installed")

    torch.set_num_threads(1)  # more are slower for so small a model
    trainer = Trainer(arguments.seed)
    history = []
    for step in range(1, arguments.steps + 1):
        m = trainer.step()
        history.append(m)
        if step == 1 or step % 10 == 0:
            print(
                f"step {step:>4}  reward {m.reward:.3f}  kl {m.kl:.3f}  "
                f"clip_ratio {m.clip_ratio:.3f}",
                flush=True,
            )
    rewards = [m.reward for m in history]
    print(f"\nreward (1: every answer is sorted)\n{draw(rewards)}")
    if arguments.plot:
        save_plot(rewards, arguments.plot)


if __name__ == "__main__":
    main()
