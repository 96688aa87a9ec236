# SPDX-License-Identifier: Apache-2.0
"""A GRPO step of a language model on one GPU: time of trunk and of head, and memory, by head.

    python benchmarks/training_step.py --model Qwen3-0.6B --tokens 8192 32768 --out FILE.json
    python benchmarks/training_step.py --model Qwen3-4B --memory-gib 79 --longest torch.compile rlk
    python benchmarks/training_step.py --model tiny --tokens 128 --sequence 32 --device cpu

The models are those of transformers with random weights in bf16 and the sizes of the published
configurations, so nothing is downloaded. A step has log-probs of the rollout (the policy without
gradient) and of the reference (a frozen copy), and one update, forward and backward, of all tokens
at once: the clipped loss with a KL term, activations checkpointed by layer. There is no optimizer
step: its time and memory are the same for every head. The batch is [B, T], sequences of one length
without padding, as many as make --tokens; the first --prompt tokens of each are masked.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import importlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import comparison
import harness
import torch
from gpu import peers
from gpu.clock import said

import rlk

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
EPS_CLIP, KL_COEF = 0.2, 0.001
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
GIB = 1 << 30


class Batch(NamedTuple):
    """Tokens of sequences of one length, and what the loss wants to know of them."""

    ids: Any  #: [B, T]
    target: Any  #: [B, T]: the next token
    mask: Any  #: [B, T], bool: whether that is a token of the answer
    advantages: Any  #: [B]


@dataclass(frozen=True)
class Head:
    """What stands between hidden states [B, T, D] and the loss."""

    log_probs: Callable[..., Any]  #: (hidden, weight, batch) -> [B, T]
    loss: Callable[..., Any]  #: (hidden, weight, batch, old, ref) -> scalar


# --- Heads ----------------------------------------------------------------------------------------


def clipped_loss(log_probs: Any, batch: Batch, old: Any, ref: Any) -> Any:
    """As PyTorch users write it: PPO's clip, k3, mean over the tokens of the mask."""
    advantages = batch.advantages[:, None]
    ratio = (log_probs - old).exp()
    clipped = ratio.clamp(1 - EPS_CLIP, 1 + EPS_CLIP)
    delta = ref - log_probs
    loss = KL_COEF * (delta.exp() - 1 - delta) - torch.min(ratio * advantages, clipped * advantages)
    return (loss * batch.mask).sum() / batch.mask.sum()


def by_rows(function: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """Of [B, T], by a function of rows."""

    def log_probs(hidden: Any, weight: Any, batch: Batch) -> Any:
        rows = function(hidden.flatten(0, 1), weight, batch.target.flatten())
        return rows.view(batch.target.shape)

    return log_probs


def parts(log_probs: Callable[..., Any]) -> Head:
    """Log-probs, then the loss in torch."""

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        return clipped_loss(log_probs(hidden, weight, batch), batch, old, ref)

    return Head(log_probs, loss)


def torch_eager() -> Head:
    return parts(by_rows(comparison.torch_logp))


def torch_compiled() -> Head:
    """Both functions compiled whole, from hidden states to the loss."""
    eager = torch_eager()
    compiled = functools.partial(torch.compile, dynamic=False)
    return Head(compiled(eager.log_probs), compiled(eager.loss))


def liger() -> Head:
    """Its loss from hidden states, a sequence a chunk; log-probs by the function inside of it."""
    module = importlib.import_module("liger_kernel.chunked_loss")
    options = {"epsilon_low": EPS_CLIP, "epsilon_high": EPS_CLIP, "beta": KL_COEF}
    function = module.LigerFusedLinearGRPOLoss(loss_type="bnpo", chunk_size=1, **options)

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        mask, advantages = batch.mask.float(), batch.advantages
        found = function(
            hidden,
            weight,
            batch.target,
            mask,
            advantages,
            ref_per_token_logps=ref,
            old_per_token_logps=old,
        )
        return found[0]

    return Head(by_rows(peers.liger_selective()), loss)


def rlk_log_probs(hidden: Any, weight: Any, batch: Batch) -> Any:
    return rlk.jit.linear_logp(hidden, weight, batch.target, mask=batch.mask)


def rlk_options(ref: Any) -> dict[str, Any]:
    clip = {"eps_clip_low": EPS_CLIP, "eps_clip_high": EPS_CLIP}
    return clip | {"ref_log_probs": ref, "kl_coef": KL_COEF, "kl_estimator": "k3"}


def rlk_apart() -> Head:
    """linear_logp, then ppo_loss."""

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        log_probs = rlk_log_probs(hidden, weight, batch)
        options = rlk_options(ref)
        return rlk.jit.ppo_loss(log_probs, old, batch.advantages, batch.mask, **options).loss

    return Head(rlk_log_probs, loss)


def rlk_fused() -> Head:
    """linear_ppo_loss."""

    def loss(hidden: Any, weight: Any, batch: Batch, old: Any, ref: Any) -> Any:
        tokens = batch.target, old, batch.advantages, batch.mask
        return rlk.jit.linear_ppo_loss(hidden, weight, *tokens, **rlk_options(ref)).loss

    return Head(rlk_log_probs, loss)


MAKERS: dict[str, Callable[[], Head]] = {
    "torch eager": torch_eager,
    "torch.compile": torch_compiled,
    "Liger": liger,
    "verl": lambda: parts(by_rows(peers.verl())),
    "rlk": rlk_apart,
    "rlk linear_ppo_loss": rlk_fused,
}


# --- The step -------------------------------------------------------------------------------------


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


# --- Measuring ------------------------------------------------------------------------------------


def summary(taken: list[tuple[float, Meter]]) -> dict[str, Any]:
    """Of all steps of a head: medians of the phases, the most memory."""
    samples = [meter.ms() for _, meter in taken]
    phases = dict(zip(PHASES, map(statistics.median, zip(*samples, strict=True)), strict=True))
    head = sum(ms for phase, ms in phases.items() if "head" in phase)
    in_head = [i for i, phase in enumerate(PHASES) if "head" in phase]
    return {
        "ms": statistics.median(map(sum, samples)),
        "trunk_ms": sum(phases.values()) - head,
        "head_ms": head,
        "phases_ms": phases,
        "peak_gib": max(max(meter.peak_bytes) for _, meter in taken) / GIB,
        "head_gib": max(meter.added_bytes[i] for _, meter in taken for i in in_head) / GIB,
        "loss": taken[0][0],
        "samples_ms": [sum(sample) for sample in samples],
    }


def measure(
    step: Step, heads: dict[str, Head], tokens: int, seconds: float, most: int = 5
) -> list[dict[str, Any]]:
    """A row a head. One step each compiles and is dropped, then each has one a round, in turn, as
    long as `seconds` allow, at least 2."""
    batch = step.batch(tokens)
    torch.compiler.reset()  # compiled for another length
    failed: dict[str, str] = {}
    taken: dict[str, list[tuple[float, Meter]]] = {name: [] for name in heads}
    for number in range(most + 1):
        if number == 1:
            start = time.perf_counter()
        if number > 2 and time.perf_counter() - start > seconds:
            break
        for name in (name for name in heads if name not in failed):
            found = attempt(step, heads[name], batch)
            if isinstance(found, str):
                failed[name] = found
            elif number > 0:
                taken[name].append(found)
    return [
        {"tokens": tokens, "candidate": name}
        | ({"failed": failed[name]} if name in failed else summary(taken[name]))
        for name in heads
    ]


def longest(step: Step, head: Head, start: int, most: int) -> int:
    """The most tokens of one step: from `start` on doubled until memory ends, then halved between,
    three times."""

    def fits(tokens: int) -> bool:
        found = attempt(step, head, step.batch(tokens))
        if isinstance(found, str) and found != OUT_OF_MEMORY:
            raise RuntimeError(found)
        return not isinstance(found, str)

    good, bad = 0, start
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    sequence = step.batch(start).ids.shape[1]
    for _ in range(3 if bad <= most else 0):
        between = (good + bad) // 2 // sequence * sequence
        if between <= good:
            break
        good, bad = (between, bad) if fits(between) else (good, between)
    return good


# --- The program ----------------------------------------------------------------------------------


def made(names: Iterable[str]) -> tuple[dict[str, Head], dict[str, str]]:
    """Heads by name, and which are not there."""
    comparison.function_named("torch.compile")  # no length falls back to eager in silence
    heads, absent = {}, {}
    for name in names:
        try:
            heads[name] = MAKERS[name]()
        except Exception as error:
            absent[name] = said(error)
    return heads, absent


COLUMNS = ("tokens", "head and loss by", "step ms", "trunk ms", "head ms", "peak GiB", "head GiB")


def cells(row: dict[str, Any]) -> list[object]:
    start: list[object] = [row["tokens"], row["candidate"]]
    if "failed" in row:
        short = OUT_OF_MEMORY if row["failed"] == OUT_OF_MEMORY else "failed"
        return [*start, short, None, None, None, None]
    return [*start, *(row[key] for key in ("ms", "trunk_ms", "head_ms", "peak_gib", "head_gib"))]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="Qwen3-0.6B", choices=MODELS)
    add("--tokens", type=int, nargs="+", default=[8192, 32768], metavar="N", help="of one step")
    add("--candidates", nargs="+", default=list(MAKERS), choices=MAKERS, metavar="NAME")
    add("--sequence", type=int, default=4096, metavar="T", help="length of a sequence (4096)")
    add("--prompt", type=int, help="masked tokens at its start (an eighth of it)")
    add("--seconds", type=float, default=25.0, help="for the samples of one length (25)")
    add("--longest", nargs="+", choices=MAKERS, metavar="NAME", help="search their most tokens")
    add("--most", type=int, default=1 << 20, metavar="N", help="where that search ends (2^20)")
    add("--memory-gib", type=float, help="as on a smaller card: what torch may take in all")
    add("--device", default="cuda", choices=("cpu", "cuda"))
    add("--out", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    if options.prompt is None:
        options.prompt = options.sequence // 8
    shortest = min([*options.tokens, options.sequence])
    if not 1 <= options.prompt < shortest - 1:
        parser.error(f"--prompt: expected 1 to {shortest - 2}, got {options.prompt}")
    for tokens in options.tokens:
        if tokens > options.sequence and tokens % options.sequence:
            parser.error(f"--tokens: expected a multiple of {options.sequence}, got {tokens}")
    if options.device == "cpu" and (options.memory_gib or options.longest):
        parser.error("--memory-gib and --longest: expected --device cuda, got cpu")
    return options


def main() -> int:
    options = parse()
    # As trainers do: what one length leaves behind must not be in the way of the next.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    facts = harness.environment() | {"versions": peers.versions()}
    facts["torch"] = torch.__version__
    if options.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
        if options.memory_gib:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, options.memory_gib * GIB / total))
    content: dict[str, Any] = {
        key: getattr(options, key) for key in ("model", "sequence", "prompt", "memory_gib")
    }
    content["sizes"] = MODELS[options.model][1]
    heads, content["absent"] = made(options.candidates)
    step = Step(options.model, options.device, options.sequence, options.prompt)
    facts["versions"]["transformers"] = sys.modules["transformers"].__version__
    runs: list[dict[str, Any]] = []
    for tokens in options.tokens:
        runs += measure(step, heads, tokens, options.seconds)
    content["runs"] = runs
    where = f"{options.model}, {facts.get('card', facts['cpu'])}"
    harness.print_table(where, COLUMNS, map(cells, runs))
    for name, reason in content["absent"].items():
        print(f"{name}: absent: {reason}")
    for row in runs:
        if row.get("failed", OUT_OF_MEMORY) != OUT_OF_MEMORY:
            print(f"{row['candidate']}, {row['tokens']} tokens: {row['failed']}")
    if options.longest:
        found = content["longest"] = {
            name: longest(step, heads[name], max(options.tokens), options.most)
            for name in options.longest
            if name in heads
        }
        harness.print_table(f"{where}: most tokens", ["head and loss by", "tokens"], found.items())
    if options.out:
        harness.write_json(options.out, "training_step", facts, content)
    return int(not any("ms" in row for row in runs))


if __name__ == "__main__":
    sys.exit(main())
