# SPDX-License-Identifier: Apache-2.0
"""ClippedPGLossFn of NeMo-RL's source in float64 beside ours. RLK_TEST_NEMO_RL names its folder."""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import losses
import pytest
import sources
import torch

from rlk.integrations import nemo_rl

theirs = sources.load(
    "nemo_rl.algorithms.loss.loss_functions",
    "PIL aiohttp fastapi hydra matplotlib mlflow omegaconf pandas prometheus_client psutil pynvml "
    "ray requests rich swanlab tensorboard torch.utils.tensorboard tqdm transformers uvicorn wandb "
    "yaml zmq",
    "RLK_TEST_NEMO_RL",
)

pytestmark = pytest.mark.tried("ClippedPGLossFn, each option", "NeMo-RL 7ea279a")

TYPES = ("tis", "icepop", "seq-mask-tis")
#: The first of each is the default.
CHOICES: dict[str, tuple[Any, ...]] = {
    "disable_ppo_ratio": (False, True),
    "token_level_loss": (True, False),
    "sequence_level_importance_ratios": (False, True),
    "ratio_clip_min": (0.2, 0.05, 1.0),
    "ratio_clip_max": (0.2, 0.4),
    "ratio_clip_c": (None, 1.1, 3.0),
    "reference_policy_kl_penalty": (0.1, 0.0, 0.5),
    "reference_policy_kl_type": ("k3", "k1", "k2"),
    "kl_input_clamp_value": (20.0, None, 0.3),
    "kl_output_clamp_value": (10.0, None, 0.1),
    "use_kl_in_reward": (False, True),
    "use_importance_sampling_correction": (True, False),
    "truncation": ((None, None), *product(TYPES, (1.2, 2.0)), (None, 2.0), ("tis", None)),
    "truncated_importance_sampling_ratio_min": (0.7, None),
    "use_on_policy_kl_approximation": (False, True),
    "force_on_policy_ratio": (False, True),
    "use_cispo": (False, True),
    "positive_example_nll_weight": (0.0, 0.3),
    "unfiltered": (False, True),
    "drop_sample": (False, True),
}


def run(call: Any, options: dict[str, Any], b: Any) -> losses.Found:
    options = dict(options)
    is_unfiltered, drops = options.pop("unfiltered"), options.pop("drop_sample")
    for name, value in zip(("type", "ratio"), options.pop("truncation"), strict=True):
        options[f"truncated_importance_sampling_{name}"] = value
    loss_fn = theirs.ClippedPGLossFn(theirs.ClippedPGLossConfig(**options))

    def shifted(x: Any) -> Any:
        return torch.nn.functional.pad(x, (1, 0))

    samples = torch.ones(losses.B, dtype=b.log_probs.dtype)
    samples[1] = 0.0 if drops else 1.0
    mask = b.mask.to(b.log_probs.dtype)
    data = {
        "token_mask": shifted(mask),
        "sample_mask": samples,
        "advantages": shifted(b.advantages.expand_as(mask)),
        "prev_logprobs": shifted(b.old),
        "generation_logprobs": shifted(b.rollout),
        "reference_policy_logprobs": shifted(b.ref),
        "rewards": b.rewards.to(mask.dtype),
    }
    if is_unfiltered:
        data["curr_logprobs_unfiltered"] = b.log_probs * 0.5
    counts = (samples.sum(), (mask * samples.unsqueeze(-1)).sum() + 3)
    return losses.Found(*call(loss_fn, b.log_probs, data, *counts))


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    return run(theirs.ClippedPGLossFn.__call__, options, b)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    return run(nemo_rl.clipped_pg_loss, options, b)


@losses.alone(CHOICES)
def test_each_option_alone(options: dict[str, Any]) -> None:
    losses.compare(of_theirs, of_ours, options, 0)


@pytest.mark.parametrize("seed", range(20))
def test_options_together(seed: int) -> None:
    losses.together(of_theirs, of_ours, CHOICES, seed)


def test_the_patch() -> None:
    model_utils = sys.modules["nemo_rl.distributed.model_utils"]
    logits = torch.randn(2, 7, 30)
    ids = torch.randint(30, (2, 7))
    original = theirs.ClippedPGLossFn.__call__
    nemo_rl.patch(allow_untried=True)  # a source folder tells no version
    try:
        assert theirs.ClippedPGLossFn.__call__ is nemo_rl.clipped_pg_loss
        got = model_utils.get_next_token_logprobs_from_logits(ids, logits)
    finally:
        nemo_rl.unpatch()
    assert theirs.ClippedPGLossFn.__call__ is original
    want = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(got, want)
