# SPDX-License-Identifier: Apache-2.0
"""examples/: what they compute is right, and what they promise happens, in fewer steps."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from examples import grpo_toy  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_reward_of_grpo_rises():
    trainer = grpo_toy.Trainer()
    history = [trainer.step() for _ in range(20)]
    start = history[0].reward
    assert start < 0.2  # chance: one of nine tokens
    assert sum(m.reward for m in history[-5:]) / 5 > start + 0.2
    # The second update of a batch has ratios but 1, and the policy leaves the reference.
    assert all(0 <= m.clip_ratio < 1 for m in history)
    assert any(m.clip_ratio > 0 for m in history)
    assert history[-1].kl > history[0].kl > 0


def test_a_seed_gives_the_same_run():
    trainers = [grpo_toy.Trainer(seed) for seed in (3, 3, 4)]
    first, again, other = ([t.step(), t.step()] for t in trainers)
    assert first == again
    assert first != other


def test_the_log_probs_are_those_of_the_sampler():
    trainer = grpo_toy.Trainer()
    prompts = grpo_toy.make_prompts(trainer.generator)
    ids = grpo_toy.generate(trainer.policy, prompts, trainer.generator)
    mask = torch.zeros(ids.shape[0], ids.shape[1] - 1, dtype=torch.bool)
    mask[:, -grpo_toy.LENGTH :] = True
    got = grpo_toy.log_probs_of(trainer.policy, ids, mask)
    logits = trainer.policy.lm_head(trainer.policy(ids)[:, :-1]) / grpo_toy.TEMPERATURE
    want = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(got, want * mask, rtol=0, atol=1e-5)


def test_a_sorted_answer_has_reward_1():
    answers = ([0, 2, 5, 7], [0, 5, 2, 7], [8, 8, 8, 8])
    ids = [[5, 0, 7, 2, grpo_toy.SORT, *answer] for answer in answers]
    assert grpo_toy.reward_of(torch.tensor(ids)).tolist() == [1.0, 0.5, 0.0]


def test_a_plot_in_text():
    assert grpo_toy.draw([0.0, 0.5, 1.0, 1.0], width=2, height=2).splitlines() == [
        "  1.0 | #",
        "  0.5 |##",
        "  0.0 +--",
        "       steps 1 to 4",
    ]


def test_the_program(monkeypatch, capsys, tmp_path: Path):
    monkeypatch.setattr(sys, "argv", ["grpo_toy.py", "--steps", "1"])
    grpo_toy.main()
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.split()[:3] == ["step", "1", "reward"]
    assert last.strip() == "steps 1 to 1"

    image = tmp_path / "reward.png"
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--plot", str(image)])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as where it is not installed
    with pytest.raises(SystemExit, match="2"):
        grpo_toy.main()
    assert "--plot: matplotlib is not installed" in capsys.readouterr().err
