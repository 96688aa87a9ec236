# SPDX-License-Identifier: Apache-2.0
"""benchmarks/training_step.py, as far as it needs neither transformers nor a GPU."""

import sys
from types import SimpleNamespace

import pytest
from paths import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

OWN = ("gpu", "harness", "comparison", "training_step")
B, T, D, V = 3, 10, 16, 50


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import training_step

    yield training_step
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]


@pytest.fixture
def heads(bench):
    from gpu import heads

    return heads


def drawn(heads):
    """A batch with ratios beyond the clip, a KL, and masked tokens."""
    g = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(B, T, D, generator=g), torch.randn(V, D, generator=g) / 4
    ids = torch.randint(V, (B, T), generator=g)
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[:, :2] = mask[:, -1] = False
    batch = heads.Batch(ids, ids.roll(-1, 1), mask, torch.randn(B, generator=g))
    log_probs = heads.torch_eager().log_probs(hidden, weight, batch)
    old, ref = (log_probs + 0.3 * torch.randn(B, T, generator=g) for _ in range(2))
    return hidden, weight, batch, old, ref


def exact(heads, hidden, weight, batch, old, ref):
    """The loss and its gradients in float64."""
    leaves = [x.double().requires_grad_() for x in (hidden, weight)]
    rows = (leaves[0] @ leaves[1].T).log_softmax(-1)
    log_probs = rows.gather(-1, batch.target[..., None])[..., 0]
    loss = heads.clipped_loss(log_probs, batch, old.double(), ref.double())
    return log_probs.detach(), loss.detach(), torch.autograd.grad(loss, leaves)


@pytest.mark.filterwarnings("ignore")  # of torch, in Liger's torch.compile
@pytest.mark.parametrize("name", ["torch eager", "rlk", "rlk linear_ppo_loss", "Liger"])
def test_every_head_computes_the_same_loss(heads, name):
    if name == "Liger":
        pytest.importorskip("liger_kernel")
    head = heads.MAKERS[name]()
    hidden, weight, batch, old, ref = drawn(heads)
    want_log_probs, want, grads = exact(heads, hidden, weight, batch, old, ref)
    log_probs = head.log_probs(hidden, weight, batch)
    at = batch.mask
    torch.testing.assert_close(log_probs[at].double(), want_log_probs[at], rtol=0, atol=1e-5)
    leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
    loss = head.loss(*leaves, batch, old, ref)
    torch.testing.assert_close(loss.detach().double(), want, rtol=0, atol=1e-5)
    for got, grad in zip(torch.autograd.grad(loss, leaves), grads, strict=True):
        torch.testing.assert_close(got.double(), grad, rtol=0, atol=1e-5 * grad.abs().max().item())


class Card:
    """In the place of a step: memory for so many tokens, in sequences of 10."""

    def __init__(self, room):
        self.room, self.asked = room, []

    def batch(self, tokens):
        return SimpleNamespace(ids=torch.zeros(tokens // 10, 10))

    def run(self, head, batch):
        self.asked.append(batch.ids.numel())
        if batch.ids.numel() > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 0.0, None


@pytest.mark.parametrize(
    ("room", "found", "asked"),
    [
        (1000, 160, [20, 40, 80, 160]),  # all that is asked for
        (80, 80, [20, 40, 80, 160, 120, 100, 90]),
        (125, 120, [20, 40, 80, 160, 120, 140, 130]),
        (30, 30, [20, 40, 30]),  # no whole sequence lies between
        (10, 10, [20, 10]),
        (5, 0, [20, 10]),
    ],
)
def test_the_most_tokens_are_found(bench, room, found, asked):
    card = Card(room)
    assert bench.longest(card, None, 20, 200) == found
    assert card.asked == asked


def test_a_failure_is_no_lack_of_memory(bench):
    card = Card(100)
    card.run = lambda head, batch: 1 / 0
    assert bench.attempt(card, None, card.batch(20)) == "ZeroDivisionError: division by zero"
    with pytest.raises(RuntimeError, match="division by zero"):
        bench.longest(card, None, 20, 200)


def test_a_head_that_runs_out_of_memory_leaves_the_others(bench, monkeypatch):
    def run(head, batch):
        if head == "large":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        meter = bench.Meter("cpu")
        for _ in bench.PHASES:
            meter.end_phase()
        return 0.5, meter

    step = Card(100)
    step.run = run
    rows = bench.measure(step, {"large": "large", "small": "small"}, 20, seconds=0.0)
    assert rows[0] == {"tokens": 20, "candidate": "large", "failed": "out of memory"}
    assert rows[1]["loss"] == 0.5
    assert len(rows[1]["samples_ms"]) == 2
    assert list(rows[1]["phases_ms"]) == list(bench.PHASES)
    assert bench.cells(rows[0])[:3] == [20, "large", "out of memory"]


def test_wrong_numbers_are_named(bench, monkeypatch, capsys):
    for words, error in (
        (["--prompt", "0"], "--prompt: expected 1 to 4094, got 0"),
        (["--tokens", "8193"], "--tokens: expected a multiple of 4096, got 8193"),
        (["--device", "cpu", "--longest", "rlk"], "expected --device cuda, got cpu"),
    ):
        monkeypatch.setattr(sys, "argv", ["training_step.py", *words])
        with pytest.raises(SystemExit):
            bench.parse()
        assert error in capsys.readouterr().err


def test_the_longest_alone_measures_no_tokens(bench, monkeypatch):
    for words, tokens in (
        ([], [8192, 32768]),
        (["--longest", "rlk"], []),
        (["--longest", "rlk", "--tokens", "4096"], [4096]),
    ):
        monkeypatch.setattr(sys, "argv", ["training_step.py", *words])
        assert bench.parse().tokens == tokens
