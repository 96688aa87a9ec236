# SPDX-License-Identifier: Apache-2.0
"""PolicyLoss of OpenRLHF's source in float64 beside ours. RLK_TEST_OPENRLHF names its folder."""

from __future__ import annotations

import sys
from typing import Any

import losses
import pytest
import sources
import torch

from rlk.integrations import openrlhf

loss_module = sources.load(
    "openrlhf.models.loss",
    "deepspeed flash_attn ray optimum vllm pylatexenc torchmetrics jsonlines isort",
    "RLK_TEST_OPENRLHF",
)
utils = sources.load("openrlhf.models.utils", "")

IS_NEW = "is_correction_level" in loss_module.PolicyLoss.__init__.__code__.co_varnames
#: The first of each is the default.
CHOICES: dict[str, tuple[Any, ...]] = {
    "policy_loss_type": ("ppo", "gspo"),
    "clip_eps_low": (0.2, 0.05),
    "clip_eps_high": (0.2, 0.4),
    "dual_clip": (None, 1.1, 3.0),
    "token_level_loss": (True, False),
    "dp_size": (1, 2),
    "batch_num_tokens": (None, 90.0),
    "global_batch_size": (None, 12.0),
    "advantages": ("sequence", "token", "zeros"),
    "empty": (False, True),
}
CORRECTIONS: dict[str, tuple[Any, ...]] = {
    "enable_vllm_is_correction": (False, True),
    "vllm_is_truncated_threshold": ((0.5, 5.0), (0.9, 1.1)),
    "vllm_is_correction_type": ("tis", "icepop", "seq-mask-tis"),
}
if IS_NEW:
    CORRECTIONS = {
        "is_correction_level": ("off", "token", "seq"),
        "is_correction_mode": ("mask", "clip"),
        "is_correction_gating": ("ratio", "binary_kl", "tv"),
        "is_correction_threshold": ((0.5, 5.0), (0.9, 1.1), (-float("inf"), 0.05)),
    }
CHOICES |= CORRECTIONS
SWITCH, ON = next(iter(CORRECTIONS)), next(iter(CORRECTIONS.values()))[1]
COUNTS = ("dp_size", "batch_num_tokens", "global_batch_size")


def run(forward: Any, options: dict[str, Any], b: Any) -> losses.Found:
    options = dict(options)
    kind, is_empty = options.pop("advantages"), options.pop("empty")
    counts = {name: options.pop(name) for name in COUNTS}
    mask = b.mask.to(b.log_probs.dtype)
    if is_empty:
        mask[1] = 0
    advantages = b.advantages.expand_as(mask) if kind == "sequence" else b.token_advantages
    if kind == "zeros":
        advantages = advantages * (b.weights > 1)
    module = loss_module.PolicyLoss(**options)
    tensors = (b.log_probs, b.old, advantages, mask, b.rollout)
    loss, *metrics = forward(module, *tensors, **counts)
    names = ("clip_ratio", "ppo_kl", "vllm_kl", "is_filter_ratio")
    found = zip(names, metrics, strict=False)
    return losses.Found(loss, {name: x for name, x in found if x is not None})


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    return run(loss_module.PolicyLoss.forward, options, b)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    openrlhf.patch(allow_untried=True)  # a folder tells no version
    try:
        return run(loss_module.PolicyLoss.forward, options, b)
    finally:
        openrlhf.unpatch()


@losses.alone(CHOICES)
def test_each_option_alone(options):
    losses.compare(of_theirs, of_ours, options, 1)


@losses.alone(CHOICES)
def test_each_option_with_a_correction(options):
    losses.compare(of_theirs, of_ours, {**options, SWITCH: ON}, 2)


@pytest.mark.parametrize("seed", range(120))
def test_options_together(seed):
    losses.compare(of_theirs, of_ours, losses.picked(CHOICES, seed), seed)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs(temperature, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn.ops.triton.cross_entropy", None)  # not this one
    torch.manual_seed(0)
    base, ids = torch.randn(2, 6, 11, requires_grad=True), torch.randint(11, (2, 6))
    want = utils.log_probs_from_logits(base * 1.0, ids, temperature=temperature)
    got = openrlhf.log_probs_from_logits(base * 1.0, ids, temperature=temperature)
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad(x.sum(), base)[0] for x in (got, want)]
    torch.testing.assert_close(*grads)
