# SPDX-License-Identifier: Apache-2.0
"""docs/integrations.md: every block is run, and every module is on the page."""

from __future__ import annotations

import pkgutil
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from paths import ROOT

import rlk
import rlk.integrations
from rlk.integrations import _patch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.usefixtures("generic")

PAGE = (ROOT / "docs/integrations.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MODULES = [m.name for m in pkgutil.iter_modules(rlk.integrations.__path__) if m.name[0] != "_"]
B, T, V, D = 2, 5, 13, 8


class Trainer:
    """Takes what TRL's does."""

    def __init__(self, model: Any, **options: Any) -> None:
        assert {"reward_funcs", "args", "train_dataset"} == options.keys()

    def train(self) -> None:
        pass


@pytest.fixture
def names() -> dict[str, Any]:
    """What the blocks assume."""
    torch.manual_seed(0)
    ids = torch.randint(V, (B, T))
    hidden = torch.randn(B, T, D, requires_grad=True)
    head = torch.nn.Linear(D, V, bias=False)
    model = SimpleNamespace(
        lm_head=head,
        model=lambda input_ids: SimpleNamespace(last_hidden_state=hidden),
        config={"model_type": "granite", "logits_scaling": 4.0, "hidden_size": D},
    )
    names: dict[str, Any] = {"model": model, "ids": ids, "hidden": hidden, "weight": head.weight}
    names |= {"reward": None, "dataset": None, "mask": torch.ones(B, T - 1)}
    names |= {"old": -torch.rand(B, T - 1), "advantages": torch.randn(B)}
    return names


@pytest.fixture
def patched(monkeypatch) -> list[str]:
    """The packages that patches were switched on for, in the place of doing so."""
    packages: list[str] = []
    note = lambda self, *, allow_untried=False: packages.append(self.package)  # noqa: E731
    monkeypatch.setattr(_patch.Patch, "on", note)
    trl = ModuleType("trl")
    trl.GRPOConfig = lambda beta: None
    trl.GRPOTrainer = Trainer
    monkeypatch.setitem(sys.modules, "trl", trl)
    return packages


def test_every_block_runs(names, patched):
    systems = []
    for block in BLOCKS:
        there = dict(names)
        exec(block, there)
        systems += re.findall(r"^(?:rlk\.integrations\.)?(\w+)\.patch\(\)$", block, re.MULTILINE)
        if "hf.linear_logp" in block:
            z = names["hidden"][:, :-1] @ names["weight"].T / 4.0 / 0.7
            want = torch.distributions.Categorical(logits=z)
            torch.testing.assert_close(there["out"].log_prob, want.log_prob(names["ids"][:, 1:]))
            torch.testing.assert_close(there["out"].entropy, want.entropy())
        if "ppo_loss" in block:
            assert torch.isfinite(there["loss"])
            assert names["hidden"].grad.abs().sum() > 0
    assert sorted({*systems, "hf", "batch_invariant"}) == MODULES
    assert len(patched) >= len(systems)


def test_every_module_is_in_the_table():
    rows = re.findall(r"^\| (?:\[.*?\]\(#.*?\)|.*?) \| (?:\[)?`(\w+)`", PAGE, re.MULTILINE)
    assert sorted(rows) == MODULES
    anchors = {re.sub(r"[^a-z0-9-]", "", line.lower().replace(" ", "-")) for line in headings()}
    for anchor in re.findall(r"\]\(#(.*?)\)", PAGE):
        assert anchor in anchors


def headings() -> list[str]:
    return re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
