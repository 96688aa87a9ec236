# SPDX-License-Identifier: Apache-2.0
"""GRPOTrainer's loss with rlk and without: each option alone, and in pairs that meet."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import grpo
import pytest
import tiny
import torch

import rlk
from rlk.integrations import trl

pytestmark = pytest.mark.tried("GRPOTrainer's loss, each option", "trl", "transformers")

#: What is no option of the configuration but of the batch.
WEIGHTS = {
    "token": lambda: torch.rand(grpo.B, grpo.T, generator=torch.Generator().manual_seed(2)) * 2,
    "token with zeros": lambda: torch.tensor([[0.0, 1.3], [0.5, 0.0]]).repeat(2, 4)[:, : grpo.T],
    "sequence": lambda: torch.tensor([[0.3], [1.7], [0.0], [0.9]]),
}
LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
OPTIONS: list[dict[str, Any]] = [
    {},
    *({"loss_type": name} for name in LOSS_TYPES),
    {"epsilon": 0.05},
    {"epsilon_high": 0.4},
    {"loss_type": "cispo", "epsilon_high": 1.1},
    {"delta": 1.1},
    {"delta": 1.3},
    {"beta": 0.3},
    {"beta": 0.3, "use_bias_correction_kl": True},
    {"loss_type": "vespo", "beta": 0.3, "use_bias_correction_kl": True},
    {"loss_type": "sapo", "sapo_temperature_pos": 2.0},
    {"loss_type": "sapo", "sapo_temperature_neg": 3.0},
    {"loss_type": "vespo", "vespo_k_pos": 1.0},
    {"loss_type": "vespo", "vespo_lambda_neg": 1.0},
    {"max_completion_length": 20, "loss_type": "dr_grpo"},
    {"temperature": 0.6},
    {"entropy_coef": 0.05},
    {"entropy_coef": 0.05, "top_entropy_quantile": 0.5},
    {"use_adaptive_entropy": True, "entropy_coef": 0.02},
    {"top_entropy_quantile": 0.4},
    {"off_policy_mask_threshold": 0.05},
    {"gradient_accumulation_steps": 3, "loss_type": "grpo"},
    {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "loss_type": "dapo"},
    *({"weights": name} for name in WEIGHTS),
    *({"weights": "token", "loss_type": name} for name in LOSS_TYPES),
    {"weights": "sequence", "loss_type": "cispo"},
    {"weights": "token", "beta": 0.2},
    {"tool_mask": True},
    {"no_old": True},
    {"empty_sequence": True},
    {"empty_sequence": True, "loss_type": "bnpo"},
    {"eval": True},
    {"eval": True, "gradient_accumulation_steps": 3, "loss_type": "dapo", "entropy_coef": 0.1},
    {"importance_sampling_level": "sequence"},
    *({"importance_sampling_level": "sequence", "loss_type": name} for name in LOSS_TYPES[:-1]),
    {"importance_sampling_level": "sequence", "loss_type": "cispo", "epsilon_high": 1.1},
    {"importance_sampling_level": "sequence", "loss_type": "vespo", "beta": 0.3},
    {"importance_sampling_level": "sequence", "delta": 1.1, "loss_type": "grpo"},
    {"importance_sampling_level": "sequence", "beta": 0.3},
    {"importance_sampling_level": "sequence", "beta": 0.3, "use_bias_correction_kl": True},
    {"importance_sampling_level": "sequence", "top_entropy_quantile": 0.5},
    {"importance_sampling_level": "sequence", "off_policy_mask_threshold": 0.05},
    *({"importance_sampling_level": "sequence", "weights": name} for name in WEIGHTS),
]
#: Where nothing of what is compared follows the option.
SAME = (
    {},
    {"loss_type": "dapo"},
    {"eval": True},
)


def build(options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    options = dict(options)
    of_batch = {
        name: options.pop(name, None)
        for name in ("weights", "tool_mask", "no_old", "empty_sequence", "eval")
    }
    trainer = grpo.trainer(tiny.model("llama"), **options)
    # The reference would be loaded from the hub; its log-probs are in the batch.
    inputs = grpo.batch(trainer)
    if of_batch["weights"]:
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        inputs["importance_sampling_ratio"] = WEIGHTS[of_batch["weights"]]()
    if of_batch["tool_mask"]:
        inputs["tool_mask"] = torch.ones_like(inputs["completion_mask"])
        inputs["tool_mask"][:, 1] = 0
    if of_batch["no_old"]:
        del inputs["old_per_token_logps"]
    if of_batch["empty_sequence"]:
        inputs["completion_mask"][1] = 0  # as mask_truncated_completions does
    trainer.model.train(not of_batch["eval"])
    trainer._last_world_entropy = 0.0  # of the step before: below the target, the bonus is on
    return trainer, inputs


@pytest.fixture(autouse=True)
def off(monkeypatch):
    """Ends unpatched; a reference model is not loaded."""
    import trl.trainer.grpo_trainer as grpo_trainer

    monkeypatch.setattr(
        grpo_trainer, "create_model_from_path", lambda *_, **__: tiny.model("llama")
    )
    yield
    trl.unpatch()


@lru_cache
def base(loss_type: str) -> dict[str, Any]:
    return grpo.evaluate(*build({"loss_type": loss_type}))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_loss_gradients_and_metrics_are_trls(options):
    trainer, inputs = build(options)
    theirs = grpo.evaluate(trainer, inputs)
    # Else the comparison would say nothing of the option.
    plain = base(options.get("loss_type", "dapo") if len(options) > 1 else "dapo")
    is_same = math.isclose(theirs["loss"], plain["loss"], rel_tol=1e-4)
    assert (is_same and theirs["metrics"] == plain["metrics"]) == (options in SAME)
    trl.patch()
    ours = grpo.evaluate(trainer, inputs)
    # Of terms that cancel, as those of vespo do here to a fiftieth.
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5, abs=5e-7)
    scale = theirs["grads"].abs().max()
    assert (ours["grads"] - theirs["grads"]).abs().max() <= 2e-5 * scale
    assert ours["metrics"].keys() == theirs["metrics"].keys()
    for name, value in theirs["metrics"].items():
        assert ours["metrics"][name] == pytest.approx(value, rel=2e-5, abs=1e-6, nan_ok=True), name
    assert ours["after"] == pytest.approx(theirs["after"], rel=1e-5)


@pytest.mark.parametrize("name", ["loss_type", "importance_sampling_level"])
def test_unknown_words_are_refused_by_name(name):
    trainer, inputs = build({})
    setattr(trainer, name, "new")
    trl.patch()
    with pytest.raises(rlk.Unsupported, match=rf"trl: {name}: expected .*, got 'new'"):
        grpo.evaluate(trainer, inputs)
