# SPDX-License-Identifier: Apache-2.0
"""rlk's losses on the CPU under the whole suite and random cases, generic and specialized."""

from __future__ import annotations

import pytest
from test_rlk_suite import expect_ok

import rlk.check

OPS = ("logp", "ratio_kl", "grpo_loss", "ppo_loss", "group_advantages")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_suite_passes(op: str, framework: str) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    expect_ok(rlk.check.run(op, suite=True, framework=framework))


@pytest.mark.parametrize("op", OPS)
def test_random_cases_pass(op: str) -> None:
    expect_ok(rlk.check.run(op, random=300, framework="numpy"))
