# SPDX-License-Identifier: Apache-2.0
"""The checker must bite on losses too: every planted defect is found under its own name."""

from __future__ import annotations

import numpy as np
import pytest
from broken_losses import BROKEN, Loss, advantages, noise_of_equal_rewards, one_pass_variance

import rlk.check
from rlk.check import contract, runner
from rlk.check.candidates import from_function
from rlk.check.checks import Session
from rlk.check.report import line
from rlk.check.spec import Adapter
from rlk.check.specs import SPECS
from rlk.check.specs.ppo_loss import PpoLoss

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are wanted here

# What the reference takes.
TAKES = {
    "loss_mask",
    "eps_clip_low",
    "eps_clip_high",
    "use_dual_clip",
    "clip_ratio_c",
    "kl_coef",
    "ref_log_probs",
    "global_tokens",
    "loss_weights",
}


def failures(defect: Loss) -> list[str]:
    spec = SPECS["ppo_loss"]
    candidate = from_function(spec, type(defect).__name__, defect)
    candidate.adapter = Adapter(lambda function, a: function(**a), frozenset(TAKES))
    session = Session(spec, candidate, contract.load(), None)
    jobs = runner.suite_jobs(spec, candidate, ["float32"], 0, runner.Shared())
    found = []
    for job in jobs:
        result = runner.run_job(session, job)
        if result.failed and job.name != "option_liveness":
            found.append(result)
    return found


def test_the_correct_reference_passes_the_suite() -> None:
    found = failures(Loss())
    assert not found, "\n".join(map(line, found))


@pytest.mark.parametrize("defect", BROKEN, ids=lambda defect: defect.__name__)
def test_a_planted_defect_is_named(defect: type[Loss]) -> None:
    kinds = {result.failure for result in failures(defect())}
    assert kinds & set(BROKEN[defect]), kinds


def test_advantages() -> None:
    run = rlk.check.run
    assert run("group_advantages", advantages, framework="numpy", suite=True, dtype="fp32").ok
    for defect, kind in ((one_pass_variance, "offset"), (noise_of_equal_rewards, "equal")):
        report = run("group_advantages", defect, framework="numpy", suite=True, dtype="fp32")
        found = {result.case.kind for result in report.failures()}
        assert kind in found, found


def test_torch_loses_what_the_page_says() -> None:
    """Eager PyTorch multiplies by the mask and rounds as it likes; it is no reference."""
    pytest.importorskip("torch")
    report = rlk.check.run("ppo_loss", "torch", dtype="fp32", grad=True)
    assert report.ok, "\n".join(map(line, report.failures()))
    report = rlk.check.run("ppo_loss", "torch", dtype="fp32", input_mode="adversarial", grad=True)
    assert "garbage" in {result.case.kind for result in report.failures()}


def test_the_oracle_agrees_with_finite_differences() -> None:
    """At random points away from ties."""
    from rlk.check import loss_oracle

    rng = np.random.default_rng(0)
    lp, old, a, ref = rng.normal(size=(4, 3, 5))
    for options in (
        {},
        {"policy_loss": "sapo"},
        {"policy_loss": "gpg"},
        {"use_dual_clip": True, "clip_ratio_c": 1.5},
        {"kl_coef": 0.5},
        {"kl_coef": 0.5, "kl_estimator": "k2", "kl_weight": "ratio"},
        {"policy_loss": "gspo", "advantages_of_sequence": True},
    ):
        own = {k: v for k, v in options.items() if k != "advantages_of_sequence"}
        given = a[:, 0] if "advantages_of_sequence" in options else a

        def loss(x: np.ndarray, own: dict = own, given: np.ndarray = given) -> float:
            return loss_oracle.ppo_loss(x, old, given, ref_log_probs=ref, **own).loss

        grad = loss_oracle.ppo_loss(lp, old, given, ref_log_probs=ref, **own).grad
        for at in np.ndindex(lp.shape):
            step = np.zeros(lp.shape)
            step[at] = 1e-6
            slope = (loss(lp + step) - loss(lp - step)) / 2e-6
            assert slope == pytest.approx(grad[at], rel=1e-5, abs=1e-8), (options, at)


def test_options_of_a_case_are_read_from_text() -> None:
    spec = PpoLoss()
    assert spec.option_values["use_tis"]("True") is True
    assert spec.option_values["eps_clip_low"]("0.1") == 0.1
    assert spec.option_values["samples_per_prompt"]("4") == 4
    with pytest.raises(ValueError, match="True or False"):
        spec.option_values["use_tis"]("yes")
