# SPDX-License-Identifier: Apache-2.0
"""The checker must bite on grpo_loss: defects planted around rlk's own are found by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlk
import rlk.check
from rlk.check.report import line

Arguments = dict[str, Any]


def planted(change: Callable[[Arguments], Arguments], slope: Callable[[Arguments], float]) -> Any:
    """rlk's own on changed arguments, its gradient times `slope` of the true ones."""

    def function(**arguments: Any) -> Any:
        return rlk.jit.grpo_loss(**change(arguments))

    def backward(grad_output: Any, *, needs: Any, **arguments: Any) -> Any:
        grad = rlk.jit.grpo_loss_backward(grad_output, **change(arguments))
        return ((grad * slope(arguments)).astype(grad.dtype),)

    function.framework = "numpy"  # type: ignore[attr-defined]
    function.backward = backward  # type: ignore[attr-defined]
    return function


def same(a: Arguments) -> Arguments:
    return a


def unmasked(a: Arguments) -> Arguments:
    return {**a, "completion_mask": None, "ignore_index": None}


def swapped(a: Arguments) -> Arguments:
    return {**a, "policy_logits": a["ref_logits"], "ref_logits": a["policy_logits"]}


def one_group(a: Arguments) -> Arguments:
    return {**a, "samples_per_prompt": len(a["rewards"]) or 1, "group_boundaries": None}


def no_beta(a: Arguments) -> Arguments:
    return {**a, "beta": 0.04 * (a.get("beta", 0.04) != 0)}


def temperature(a: Arguments) -> float:
    return float(a.get("temperature", 1.0))


DEFECTS = {
    "unmasked": (unmasked, lambda a: 1.0, {"accuracy", "raised", "nonfinite"}),
    "swapped": (swapped, lambda a: 1.0, {"accuracy"}),
    "one_group": (one_group, lambda a: 1.0, {"accuracy"}),
    "no_beta": (no_beta, lambda a: 1.0, {"accuracy", "option_dead"}),
    "no_temperature": (same, temperature, {"grad_accuracy"}),
    "twice": (same, lambda a: 2.0, {"grad_accuracy"}),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_named(name: str) -> None:
    change, slope, words = DEFECTS[name]
    report = rlk.check.run("grpo_loss", planted(change, slope), suite=True, dtype="fp32")
    assert {result.failure for result in report.failures()} & words, name


def test_without_a_defect_all_pass() -> None:
    report = rlk.check.run("grpo_loss", planted(same, lambda a: 1.0), suite=True, dtype="fp32")
    assert report.ok, "\n".join(map(line, report.failures()))


def test_torch_as_users_write_it() -> None:
    """Right on plain inputs; NaN behind a mask gets through."""
    pytest.importorskip("torch")
    report = rlk.check.run("grpo_loss", "torch", dtype="fp32", grad=True)
    assert report.ok, "\n".join(map(line, report.failures()))
    report = rlk.check.run("grpo_loss", "torch", dtype="fp32", input_mode="adversarial", grad=True)
    assert "garbage" in {result.case.kind for result in report.failures()}


def test_options_of_a_case_are_read_from_text() -> None:
    values = rlk.check.specs.SPECS["grpo_loss"].option_values
    assert values["beta"]("0.1") == 0.1
    assert values["kl_estimator"]("k1") == "k1"
    assert values["use_dual_clip"]("True") is True
    assert np.isclose(values["softcap"]("2.5"), 2.5)
