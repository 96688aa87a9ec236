# SPDX-License-Identifier: Apache-2.0
"""The losses' pages in docs/: their Python blocks are run, and the table of options holds."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest
from paths import ROOT

import rlk
from rlk._loss_options import ELSEWHERE
from rlk._ops.ppo_loss import OPTIONS
from rlk._rules import OF_SYSTEM
from rlk.losses import Rules

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.usefixtures("generic")

DOCS = ROOT / "docs"
B, T, V, D = 8, 5, 11, 6


def names() -> dict[str, Any]:
    """What the pages take for granted."""
    torch.manual_seed(0)
    logits = torch.randn(B, T, V, requires_grad=True)
    tokens = torch.randint(V, (B, T))
    old = logits.detach().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    return {
        "rlk": rlk,
        "model": lambda _: SimpleNamespace(logits=logits),
        "logits": logits,
        "ref_logits": torch.randn(B, T, V),
        "tokens": tokens,
        "labels": tokens,
        "mask": torch.ones(B, T),
        "old_logps": old,
        "rewards": torch.rand(B),
        "log_probs": old.clone().requires_grad_(),
        "old_log_probs": old,
        "ref_log_probs": old - 0.1,
        "hidden": torch.randn(B, T, D, requires_grad=True),
        "lm_head": SimpleNamespace(weight=torch.randn(V, D, requires_grad=True)),
    }


# Of the tokens that a page's block trains, and what its backward fills.
@pytest.mark.parametrize(
    ("page", "shape", "leaf"),
    [
        ("linear_logp", (B, T - 1), "hidden"),
        ("logp", (B, T - 1), "logits"),
        ("ratio_kl", (B, T), "logits"),
        ("ppo_loss", (B, T), "log_probs"),
        ("grpo_loss", (B, T), "logits"),
        ("group_advantages", (B,), None),
    ],
)
def test_the_blocks_of_a_page(page, shape, leaf):
    blocks = re.findall(r"^```python\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)
    given = names()
    space = {**given, "advantages": torch.randn(shape)}
    assert blocks
    for block in blocks:
        exec(block, space)
    if leaf is None:
        assert space["advantages"].shape == shape
    else:
        assert given[leaf].grad.abs().sum() > 0


def read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text()


def options_table() -> list[list[str]]:
    section = read("ppo_loss").split("\n## Options\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_table_has_every_rule_and_its_default():
    defaults = {row[0].strip("`"): row[1] for row in options_table()}
    for field in dataclasses.fields(Rules):
        if field.name not in OF_SYSTEM:
            assert re.split("[;:,]", defaults[field.name])[0].strip("`") == str(field.default)
    assert set(defaults) <= OPTIONS


def test_the_table_has_the_names_that_errors_explain():
    told: dict[str, set[str]] = {}
    for option, _, *systems in options_table():
        for name in re.findall(r"`(\w+)(?:=[^`]*)?`", " ".join(systems)):
            if name in ELSEWHERE:
                told.setdefault(name, set()).add(option.strip("`"))
    # Names of grpo_loss here, of OpenRLHF, of a mask.
    assert set(ELSEWHERE) - set(told) == {"clip_eps", "eps_clip", "response_mask", "mask"}
    for name, options in told.items():
        assert options >= set(ELSEWHERE[name].split(" and ")), name
