# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers with rlk and without: whole runs, whose losses and metrics are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpo
import pytest
import tiny
import torch
from datasets import Dataset

from rlk.integrations import trl

#: What says nothing of the model: times, and what is summed up of the rest.
UNLIKE = ("time", "per_second", "flos", "train_loss")


@pytest.fixture(autouse=True)
def off():
    yield
    trl.unpatch()


def history(make: Any) -> list[dict[str, Any]]:
    """The rows that a trainer logs of its steps."""
    torch.manual_seed(5)
    trainer = make()
    trainer.train()
    return of_steps(trainer.state.log_history)


def of_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if not any(word in key for word in UNLIKE)}
        for row in rows
    ]


def check(make: Any, num_steps: int) -> None:
    theirs = history(make)
    trl.patch()
    compare(theirs, history(make), num_steps)


def compare(theirs: list[dict[str, Any]], ours: list[dict[str, Any]], num_steps: int) -> None:
    """Losses within 1e-5, or within the rounding errors of the terms that cancel in them."""
    assert len(theirs) >= num_steps
    for step, (their_row, our_row) in enumerate(zip(theirs, ours, strict=True)):
        assert their_row.keys() == our_row.keys()
        for key, value in their_row.items():
            least = 5e-7 if "loss" in key else 1e-5
            want = pytest.approx(value, rel=1e-5 if "loss" in key else 1e-4, abs=least, nan_ok=True)
            assert our_row[key] == want, (step, key)
    assert any(abs(row.get("loss", 0)) > 1e-2 for row in theirs)


@pytest.mark.tried("GRPOTrainer, 20 steps of each model", "trl", "transformers")
@pytest.mark.parametrize("name", tiny.MODELS)
def test_grpo(name):
    options = {"num_iterations": 2, "gradient_accumulation_steps": 2}
    check(lambda: grpo.trainer(tiny.model(name), **options), 20)


@pytest.mark.tried("GRPOTrainer in two processes, DDP", "trl", "accelerate")
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_two_ranks(loss_type, tmp_path):
    found = []
    for mode in ("off", "on"):
        script, file = Path(__file__).with_name("two_ranks.py"), tmp_path / mode
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        command = [sys.executable, "-W", "ignore", *start, script, mode, loss_type, file]
        subprocess.run(command, check=True, timeout=500)
        found.append(json.loads(file.read_text()))
    assert [one["ranks"] for one in found] == [2, 2]
    compare(of_steps(found[0]["logs"]), of_steps(found[1]["logs"]), 6)


@pytest.mark.tried("RLOOTrainer, 10 steps", "trl", "transformers")
def test_rloo():
    from trl import RLOOConfig, RLOOTrainer

    args = {"num_iterations": 2, "beta": 0.0, "max_steps": 10}

    def make() -> Any:
        return RLOOTrainer(
            tiny.model("gemma2"),
            reward_funcs=grpo.reward,
            args=grpo.online_arguments(RLOOConfig, **args),
            train_dataset=grpo.prompts(),
            processing_class=tiny.tokenizer(),
        )

    check(make, 10)


def pairs() -> Dataset:
    words = [f"w{i % 60} w{7 * i % 60} w{5 * i % 60}" for i in range(40)]
    return Dataset.from_dict(
        {
            "prompt": words,
            "chosen": [w + " w1" for w in words],
            "rejected": ["w3 w4 " + w for w in words],
        }
    )


@pytest.mark.tried("SFTTrainer, DPOTrainer, KTOTrainer, 6 steps", "trl", "transformers")
@pytest.mark.parametrize(
    ("kind", "options"),
    [("SFT", {}), ("DPO", {}), ("DPO", {"use_weighting": True}), ("KTO", {})],
    ids=str,
)
def test_other_trainers(kind, options):
    import trl as package

    config, trainer = (getattr(package, f"{kind}{end}") for end in ("Config", "Trainer"))
    data = pairs()
    if kind == "SFT":
        data = Dataset.from_dict(
            {"text": [a + " " + b for a, b in zip(data["prompt"], data["chosen"], strict=True)]}
        )
    if kind == "KTO":
        both = [*data["chosen"], *data["rejected"]]
        labels = [True] * len(data) + [False] * len(data)
        data = Dataset.from_dict(
            {"prompt": [*data["prompt"]] * 2, "completion": both, "label": labels}
        )

    def make() -> Any:
        model = tiny.model("gemma2")
        return trainer(
            model,
            **({} if kind == "SFT" else {"ref_model": tiny.model("gemma2")}),
            args=grpo.arguments(config, max_steps=6, **options),
            train_dataset=data,
            processing_class=tiny.tokenizer(),
        )

    check(make, 6)


@pytest.mark.tried("the head in bfloat16", "trl")
def test_bfloat16_is_no_farther_from_float64_than_trls():
    from trl.trainer import utils

    torch.manual_seed(0)
    hidden = torch.randn(300, 64).bfloat16()
    weight = (0.2 * torch.randn(501, 64)).bfloat16()
    targets = torch.randint(501, (300,))
    z = 0.5 * hidden.double() @ weight.double().T
    z = 3 * torch.tanh(z / 3) / 0.7
    targets[::3] = z.argmax(1)[::3]
    want = torch.distributions.Categorical(logits=z)
    exact = [want.log_prob(targets), want.entropy(), want.probs.square().sum(1).log(), z.mean(1)]
    arguments = (hidden, weight, None, targets, 0.7, 128, 3.0, 0.5)
    theirs = utils._ChunkedLogProbFunction.apply(*arguments)
    trl.patch()
    ours = utils._ChunkedLogProbFunction.apply(*arguments)
    for near, far, value in zip(ours[:4], theirs[:4], exact, strict=True):
        assert (near - value).abs().max() <= (far - value).abs().max()
        assert (near - value).abs().max() < 1e-5
    assert torch.equal(ours[4], z.argmax(1) == targets)


def test_patch_comes_off():
    import trl.kernels as kernels
    import trl.trainer.grpo_trainer as grpo_trainer
    from trl.trainer import utils

    def names() -> list[Any]:
        heads = [kernels.ChunkedLogProbFunction, utils._ChunkedLogProbFunction]
        return [*heads, grpo_trainer.GRPOTrainer._compute_loss]

    before = names()
    trl.patch()
    trl.patch()
    assert not any(one is other for one, other in zip(names(), before, strict=True))
    trl.unpatch()
    assert names() == before
