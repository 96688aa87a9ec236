# SPDX-License-Identifier: Apache-2.0
"""PRIME-RL's losses and head of its source beside ours. RLK_TEST_PRIME_RL names its folder."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import losses
import pytest
import sources
import torch

from rlk.integrations import prime_rl

theirs = sources.load(
    "prime_rl.trainer.rl.loss",
    "pydantic_config wandb loguru transformers beartype jaxtyping prime_rl.configs prime_rl.utils",
    "RLK_TEST_PRIME_RL",
    ("src",),
)
sources.without_init(theirs, "prime_rl.trainer.models", "prime_rl.trainer.models.layers")
lm_head = sources.load("prime_rl.trainer.models.layers.lm_head", "")
gemma = sources.load("prime_rl.trainer.models.layers.lm_head_gemma", "")
FUNCTIONS = ("default_loss_fn", "ipo_loss_fn", "ref_kl_loss_fn", "ce_loss_fn")
OURS = {name: getattr(prime_rl, name) for name in FUNCTIONS}
THEIRS = {name: getattr(theirs, name) for name in FUNCTIONS}

pytestmark = pytest.mark.tried("PRIME-RL's losses, each option, and its head", "PRIME-RL 559b447")

CHOICES: dict[str, tuple[Any, ...]] = {
    "function": FUNCTIONS,
    "dppo_mask_low": (0.2, 0.05),
    "dppo_mask_high": (0.2, 0.01),
    "ipo_threshold": (0.1, 0.02),
    "adv_tau": (1.0, 0.5, 0.0),
    "kl_tau": (1e-3, 0.0, 0.5),
    "weights": (False, True),
    "empty": (False, True),
}


def run(functions: dict[str, Any], options: dict[str, Any], b: Any) -> losses.Found:
    function = functions[options["function"]]
    mask = b.mask & (not options["empty"])
    flat = [x.reshape(-1) for x in (b.log_probs, b.old, b.ref, b.token_advantages, mask)]
    weights = b.weights.reshape(-1) if options["weights"] else None
    inputs = theirs.LossInputs(*flat, loss_weights=weights)
    has_config = len(inspect.signature(function).parameters) == 2
    found = function(inputs, *([SimpleNamespace(**options)] if has_config else []))
    return losses.Found(found.loss, found.metrics)


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    return run(THEIRS, options, b)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    return run(OURS, options, b)


@losses.alone(CHOICES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_option_alone(options: dict[str, Any], function: str) -> None:
    assert losses.compare(of_theirs, of_ours, {**options, "function": function}, 0) is not None


@pytest.mark.parametrize("seed", range(40))
def test_options_together(seed: int) -> None:
    losses.together(of_theirs, of_ours, CHOICES, seed)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_log_probs_of_hidden_states_and_of_logits(softcap: float | None) -> None:
    torch.manual_seed(0)
    rows, length, hidden, vocab = 2, 7, 8, 30
    head = lm_head.FusedOutputLinear(hidden, vocab, 4)
    if softcap is not None:
        head = gemma.GemmaFusedOutputLinear(hidden, vocab, 4, softcap)
    states = torch.randn(rows, length, hidden, requires_grad=True)
    labels = torch.randint(vocab, (rows, length))
    temperature = torch.rand(rows, length) + 0.5

    def results() -> list[Any]:
        out = head(states, labels, temperature=temperature)
        grads = torch.autograd.grad(out["logprobs"].sum(), [states, head.weight])
        return [out["logprobs"], out["entropy"], *grads]

    logits = torch.randn(rows, length, vocab)
    want = [*results(), logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]]
    prime_rl.patch(allow_untried=True)  # a source folder tells no version
    try:
        assert type(head).forward.__module__ == "rlk.integrations.prime_rl"
        got = [*results(), theirs.selective_log_softmax(logits, labels)]
        assert theirs.default_loss_fn is prime_rl.default_loss_fn
    finally:
        prime_rl.unpatch()
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
