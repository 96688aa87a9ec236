# SPDX-License-Identifier: Apache-2.0
"""A GRPOTrainer of a tiny model, and a batch for its loss that no option leaves without effect."""

from __future__ import annotations

import tempfile
from typing import Any

import tiny
import torch
from datasets import Dataset

B, P, T = 4, 3, 7


def arguments(kind: Any, **options: Any) -> Any:
    return kind(
        **{
            "output_dir": tempfile.mkdtemp(prefix="rlk-tests-"),
            "use_cpu": True,
            "bf16": False,
            "max_steps": 20,
            "logging_steps": 1,
            "optim": "sgd",
            "learning_rate": 0.02,
            "lr_scheduler_type": "constant",
            "per_device_train_batch_size": 4,
            "seed": 3,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            **options,
        }
    )


def online_arguments(kind: Any, **options: Any) -> Any:
    """Of trainers that generate."""
    return arguments(kind, **{"num_generations": 4, "max_completion_length": 8, **options})


def reward(completion_ids: Any, **_: Any) -> list[float]:
    return [sum(i % 2 for i in ids) / 4 + 0.1 * len(ids) for ids in completion_ids]


def prompts() -> Dataset:
    return Dataset.from_dict({"prompt": [f"w{i % 60} w{3 * i % 60} w{i % 7}" for i in range(64)]})


def trainer(model: Any, **options: Any) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    return GRPOTrainer(
        model,
        reward_funcs=reward,
        args=online_arguments(GRPOConfig, **options),
        train_dataset=prompts(),
        processing_class=tiny.tokenizer(),
    )


def batch(trainer: Any) -> dict[str, Any]:
    """Inputs of _compute_loss, far from on-policy: ratios on all sides of the bounds."""
    make = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make)

    ids = torch.randint(3, tiny.VOCAB, (B, P + T), generator=make)
    lengths = torch.tensor([[T], [4], [1], [5]])
    mask = (torch.arange(T) < lengths).long()
    inputs = {
        "prompt_ids": ids[:, :P],
        "prompt_mask": torch.ones(B, P, dtype=torch.long),
        "completion_ids": ids[:, P:],
        "completion_mask": mask,
        "advantages": torch.tensor([1.5, -0.7, 0.4, -1.2]),
        "num_items_in_batch": torch.tensor(23),
    }
    with torch.no_grad():
        attention = torch.cat([inputs["prompt_mask"], mask], 1)
        now = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, T)[0]
    inputs["old_per_token_logps"] = now + 0.6 * random(B, T)
    inputs["sampling_per_token_logps"] = inputs["old_per_token_logps"] + 0.3 * random(B, T)
    if trainer.beta != 0.0:
        inputs["ref_per_token_logps"] = now + 0.5 * random(B, T)
    return inputs


def evaluate(trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The loss, gradients of all parameters, and metrics, of the functions in place now."""
    trainer._metrics["train"].clear()
    trainer._metrics["eval"].clear()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.zero_grad()
    state = (trainer.entropy_coef, trainer._last_world_entropy, trainer._entropy_window_stats)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    after = (trainer.entropy_coef, trainer._last_world_entropy)
    trainer.entropy_coef, trainer._last_world_entropy, trainer._entropy_window_stats = state
    mode = "train" if trainer.model.training else "eval"
    return {
        "loss": loss.item(),
        "grads": torch.cat([p.grad.flatten() for p in trainer.model.parameters()]),
        "metrics": {name: values[-1] for name, values in trainer._metrics[mode].items()},
        "after": after,
    }
