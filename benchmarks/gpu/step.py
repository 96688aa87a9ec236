# SPDX-License-Identifier: Apache-2.0
"""A GRPO step of a language model that takes its head as an argument, and what each phase takes."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import time
from typing import Any

import torch

from gpu.clock import said
from gpu.heads import Batch, Head

# Sizes of the published config.json files; every one ties the head to the embedding.
Sizes = dict[str, int]
MODELS: dict[str, tuple[str, Sizes]] = {
    "Qwen3-0.6B": (
        "qwen3",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "vocab_size": 151936,
        },
    ),
    "Qwen3-4B": (
        "qwen3",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 9728,
            "vocab_size": 151936,
        },
    ),
    "Llama-3.2-1B": (
        "llama",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 8192,
            "vocab_size": 128256,
        },
    ),
    "tiny": (
        "qwen3",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 128,
            "vocab_size": 512,
        },
    ),
}
OUT_OF_MEMORY = "out of memory"
PHASES = (
    "rollout, trunk",
    "rollout, head",
    "reference, trunk",
    "reference, head",
    "update, trunk forward",
    "update, head and loss",
    "update, trunk backward",
)


class Meter:
    """Milliseconds and memory of the phases of one step."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._times: list[Any] = []
        self.peak_bytes: list[int] = []
        self.added_bytes: list[int] = []
        self._begin()

    def _begin(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._times.append(event)
            torch.cuda.reset_peak_memory_stats()
            self._bytes_before = torch.cuda.memory_allocated()
        else:
            self._times.append(time.perf_counter())
            self._bytes_before = 0

    def end_phase(self) -> None:
        # The allocator counts at the time of the call, so no phase has to wait for the device.
        peak = torch.cuda.max_memory_allocated() if self._cuda else 0
        self.peak_bytes.append(peak)
        self.added_bytes.append(peak - self._bytes_before)
        self._begin()

    def ms(self) -> list[float]:
        pairs = list(itertools.pairwise(self._times))
        if not self._cuda:
            return [1e3 * (end - begin) for begin, end in pairs]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]


class Step:
    """A policy, its frozen reference, and a GRPO step of theirs."""

    def __init__(self, model: str, device: str, sequence: int, prompt: int) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        family, sizes = MODELS[model]
        config = AutoConfig.for_model(family, **sizes, tie_word_embeddings=True)
        torch.manual_seed(0)
        with torch.device(device):
            self.policy = AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="sdpa"
            )
        self.reference = copy.deepcopy(self.policy).requires_grad_(False).eval()
        self.policy.gradient_checkpointing_enable({"use_reentrant": False})
        self.policy.train()
        self._device, self._sequence, self._prompt = device, sequence, prompt

    def batch(self, tokens: int) -> Batch:
        shape = max(1, tokens // self._sequence), min(tokens, self._sequence)
        random = torch.Generator(self._device).manual_seed(tokens)
        draw = functools.partial(torch.randint, generator=random, device=self._device)
        ids = draw(self.policy.config.vocab_size, shape)
        mask = torch.ones(shape, dtype=torch.bool, device=self._device)
        mask[:, : self._prompt - 1] = mask[:, -1] = False  # the last has no next token
        advantages = torch.randn(shape[0], generator=random, device=self._device)
        return Batch(ids, ids.roll(-1, 1), mask, advantages)

    def run(self, head: Head, batch: Batch) -> tuple[float, Meter]:
        """One step: the loss, and what each of PHASES took."""
        for parameter in self.policy.parameters():
            parameter.grad = None
        weight = self.policy.lm_head.weight
        meter = Meter(self._device)

        def hidden_of(model: Any) -> Any:
            found = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
            meter.end_phase()
            return found

        def log_probs_of(model: Any) -> Any:
            found = head.log_probs(hidden_of(model), model.lm_head.weight, batch)
            meter.end_phase()
            return found

        with torch.no_grad():
            old, ref = log_probs_of(self.policy), log_probs_of(self.reference)
        hidden = hidden_of(self.policy)
        # Cut between trunk and head: the backward of either is timed by itself.
        leaf = hidden.detach().requires_grad_()
        loss = head.loss(leaf, weight, batch, old, ref)
        loss.backward()
        meter.end_phase()
        hidden.backward(leaf.grad)
        meter.end_phase()
        return float(loss.detach()), meter


def attempt(step: Step, head: Head, batch: Batch) -> tuple[float, Meter] | str:
    """A step, or why there is none."""
    try:
        return step.run(head, batch)
    except Exception as error:  # whatever a peer or its compiler may raise
        reason = said(error)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return OUT_OF_MEMORY if "out of memory" in reason.lower() else reason
