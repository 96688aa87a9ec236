# SPDX-License-Identifier: Apache-2.0
"""docs/integrations.md: every block is run, and every module is on the page."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Iterator
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
def group() -> Iterator[Any]:
    """Of this process alone."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.fixture
def names(group) -> dict[str, Any]:
    """What the blocks assume."""
    torch.manual_seed(0)
    ids = torch.randint(V, (B, T))
    hidden = torch.randn(B, T, D, requires_grad=True)
    head = torch.nn.Linear(D, V, bias=False)
    model = SimpleNamespace(
        lm_head=head,
        output_layer=SimpleNamespace(
            weight=head.weight, bias=None, sequence_parallel=False, tp_group=group
        ),
        model=lambda input_ids: SimpleNamespace(last_hidden_state=hidden),
        config={"model_type": "granite", "logits_scaling": 4.0, "hidden_size": D},
    )
    names: dict[str, Any] = {"model": model, "ids": ids, "hidden": hidden, "weight": head.weight}
    names["labels"] = ids.T  # of hidden as [s, b, h]
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
        if "megatron.linear_logp" in block:
            z = (names["hidden"] @ names["weight"].T / 0.7).log_softmax(-1)
            want = z.gather(-1, names["ids"][..., None])[..., 0].T
            torch.testing.assert_close(there["log_probs"], want)
        if "hf.linear_logp" in block:
            z = names["hidden"][:, :-1] @ names["weight"].T / 4.0 / 0.7
            want = torch.distributions.Categorical(logits=z)
            torch.testing.assert_close(there["out"].log_prob, want.log_prob(names["ids"][:, 1:]))
            torch.testing.assert_close(there["out"].entropy, want.entropy())
        if "ppo_loss" in block:
            assert torch.isfinite(there["loss"])
            assert names["hidden"].grad.abs().sum() > 0
    assert sorted({*systems, "hf", "batch_invariant", "megatron"}) == MODULES
    assert len(patched) >= len(systems)


def test_every_module_is_in_the_table():
    rows = re.findall(r"^\| (?:\[.*?\]\(#.*?\)|.*?) \| (?:\[)?`(\w+)`", PAGE, re.MULTILINE)
    assert sorted(rows) == MODULES
    anchors = {re.sub(r"[^a-z0-9-]", "", line.lower().replace(" ", "-")) for line in headings()}
    for anchor in re.findall(r"\]\(#(.*?)\)", PAGE):
        assert anchor in anchors


def headings() -> list[str]:
    return re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
