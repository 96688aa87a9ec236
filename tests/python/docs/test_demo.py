# SPDX-License-Identifier: Apache-2.0
"""The demo's parts; the demo itself checks its results and ends with an error if one is wrong."""

from pathlib import Path

import numpy as np
import pytest

import rlk
from demo import corpus, numpy_way, progress
from demo.model import CONTEXT, NextWordModel


def test_corpus_numbers_words_by_frequency(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("to be, or not to be: to")
    (tmp_path / "link").symlink_to("a")
    text = corpus.load(tmp_path)
    assert text.words[:2] == ["to", "be"]
    assert " ".join(text.words[i] for i in text.ids) == "to be , or not to be : to"
    assert "1 license texts" in text.source


def test_corpus_falls_back_to_our_own_pages(tmp_path: Path) -> None:
    text = corpus.load(tmp_path / "absent")
    assert "docs/" in text.source
    assert len(text.ids) > 1000
    assert max(text.ids) == len(text.words) - 1


def test_the_two_ways_agree() -> None:
    rng = np.random.default_rng(0)
    a = {
        "grad_output": rng.standard_normal(5).astype(np.float32),
        "hidden": rng.standard_normal((5, 8)).astype(np.float32),
        "weight": rng.standard_normal((11, 8)).astype(np.float32),
        "target": rng.integers(11, size=5),
        "bias": rng.standard_normal(11).astype(np.float32),
    }
    logp, gradients = numpy_way.log_probs_and_gradients(a)
    ours = rlk.jit.linear_logp(a["hidden"], a["weight"], a["target"], a["bias"])
    np.testing.assert_allclose(ours, logp, atol=1e-5)
    for got, want in zip(rlk.jit.linear_logp_backward(**a), gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_loss_falls_on_our_own_pages(tmp_path: Path) -> None:
    text = corpus.load(tmp_path)
    runs = corpus.windows(text.ids, CONTEXT + 1)[:256]
    model = NextWordModel(len(text.words))
    losses = [model.train_step(runs[:, :CONTEXT], runs[:, CONTEXT], 4e-3) for _ in range(10)]
    assert losses[0] == pytest.approx(np.log(len(text.words)), rel=0.1)
    assert losses[-1] < 0.8 * losses[0]


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar(50) as advance:
        for step in range(1, 51):
            advance(step, 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert lines[-1].split() == ["step", "50/50", "loss", "1.000"]
