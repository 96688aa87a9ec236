# SPDX-License-Identifier: Apache-2.0
"""The two programs that train a model of transformers, at a tiny size on the CPU."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import training_step

    return training_step


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import grpo_gpu

    sizes = {"VOCAB": 200, "HIDDEN": 64, "LAYERS": 1, "PROMPTS": 4, "COLD_STEPS": 20}
    for name, value in (sizes | {"MICRO_BATCH": 24, "COLD_LEARNING_RATE": 3e-3}).items():
        monkeypatch.setattr(grpo_gpu, name, value)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield grpo_gpu
    torch.set_num_threads(before[0])
    torch.use_deterministic_algorithms(before[1])


@pytest.mark.parametrize("model", ["Qwen3-0.6B", "Qwen3-4B", "Llama-3.2-1B"])
def test_parameters_are_as_many_as_the_name_says(benchmarks, model):
    from transformers import AutoConfig, AutoModelForCausalLM

    family, sizes = benchmarks.MODELS[model]
    config = AutoConfig.for_model(family, **sizes, tie_word_embeddings=True)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    published = {"Qwen3-0.6B": 596049920, "Qwen3-4B": 4022468096, "Llama-3.2-1B": 1235814400}
    assert sum(p.numel() for p in made.parameters()) == published[model]


def test_the_cut_between_trunk_and_head_changes_no_gradient(benchmarks):
    step = benchmarks.Step("tiny", "cpu", sequence=16, prompt=4)
    head, batch = benchmarks.MAKERS["torch eager"](), step.batch(48)
    loss, meter = step.run(head, batch)
    cut = [parameter.grad.clone() for parameter in step.policy.parameters()]
    assert len(meter.ms()) == len(benchmarks.PHASES)
    assert batch.ids.shape == (3, 16)
    assert batch.mask[0].tolist() == [False] * 3 + [True] * 12 + [False]

    step.policy.zero_grad()
    weight = step.policy.lm_head.weight
    with torch.no_grad():
        hidden = step.policy.model(input_ids=batch.ids).last_hidden_state
        log_probs = head.log_probs(hidden, weight, batch)
    hidden = step.policy.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    whole = head.loss(hidden, weight, batch, log_probs, log_probs)
    whole.backward()
    assert whole.item() == loss
    for got, parameter in zip(cut, step.policy.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad)
        assert got.abs().max() > 0


def test_the_benchmark(benchmarks, monkeypatch, tmp_path, capsys):
    file = tmp_path / "results/tiny.json"
    names = [name for name in benchmarks.MAKERS if name.startswith("rlk")]
    words = ["--model", "tiny", "--tokens", "32", "64", "--sequence", "32", "--seconds", "0"]
    words += ["--device", "cpu", "--candidates", "torch eager", *names, "--out", str(file)]
    monkeypatch.setattr(sys, "argv", ["training_step.py", *words])
    assert benchmarks.main() == 0
    run = json.loads(file.read_text())
    assert [(row["tokens"], row["candidate"]) for row in run["runs"]] == [
        (tokens, name) for tokens in (32, 64) for name in ("torch eager", *names)
    ]
    for row in run["runs"]:
        first = next(other for other in run["runs"] if other["tokens"] == row["tokens"])
        assert row["loss"] == pytest.approx(first["loss"], abs=2e-2)  # logits in bf16
        assert 0 < row["head_ms"] < row["ms"]
    assert "torch eager" in capsys.readouterr().out

    import tables

    monkeypatch.setattr(tables, "steps", lambda: [run])
    _, _, *rows = tables.training_step_heads().splitlines()
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| tiny", str(row["tokens"]), row["candidate"]] for row in run["runs"]
    ]

    pytest.importorskip("matplotlib")
    import plot

    monkeypatch.setattr(sys, "argv", ["plot.py", str(file), str(tmp_path)])
    plot.main()
    assert "head and loss" in (tmp_path / "training_step_tiny.svg").read_text()


def test_the_cold_start_teaches_the_format_alone(example):
    trainer = example.Trainer(0, "cpu")
    ids = trainer.rollout()
    answers = ids[:, -example.LENGTH :]
    assert (answers < example.grpo_toy.NUM_SYMBOLS).float().mean() > 0.9
    assert example.grpo_toy.reward_of(ids).mean() < 0.4  # in any order: a quarter


def test_micro_batches_sum_to_the_gradient_of_the_batch(example, monkeypatch):
    trained = []
    for size in (24, 1000):
        monkeypatch.setattr(example, "MICRO_BATCH", size)
        trainer = example.Trainer(0, "cpu")
        metrics = trainer.step()
        grads = [p.grad for p in trainer.policy.parameters()]
        trained.append((metrics, grads))
    (some, cut), (all_at_once, whole) = trained
    assert some == pytest.approx(all_at_once, rel=1e-3, abs=1e-5)
    for a, b in zip(cut, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)


def test_the_program(example, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grpo_gpu.py", "--device", "cpu", "--steps", "3"])
    assert example.main() == 0
    out = capsys.readouterr().out
    assert "the same seed again, 3 steps: the same metrics: True" in out
    assert "the same weights: True" in out
    rows = [line.split(" | ") for line in out.splitlines()[-3:]]
    assert [row[:2] for row in rows] == [[str(n), "True"] for n in (1, 7, 64)]
    assert all(row[3] == "24 of 24, 0.0e+00" for row in rows)  # rlk's products


def test_another_seed_gives_another_run(example):
    first, other = (example.Trainer(seed, "cpu").step() for seed in (3, 4))
    assert first != other
