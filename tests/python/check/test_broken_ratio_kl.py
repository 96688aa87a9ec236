# SPDX-License-Identifier: Apache-2.0
"""The checker must bite on ratio_kl: every planted defect is found under its own name."""

from __future__ import annotations

import pytest
from broken_ratio_kl import BROKEN, RatioKl

from rlk.check import contract, runner
from rlk.check.candidates import from_function
from rlk.check.checks import Session
from rlk.check.report import line
from rlk.check.spec import Adapter
from rlk.check.specs import SPECS

# What the reference takes.
TAKES = frozenset({"temperature", "ignore_index"})


def failures(defect: RatioKl) -> list:
    spec = SPECS["ratio_kl"]
    candidate = from_function(spec, type(defect).__name__, defect)
    candidate.adapter = Adapter(lambda function, a: function(**a), TAKES)
    session = Session(spec, candidate, contract.load(), None)
    jobs = runner.suite_jobs(spec, candidate, ["float32"], 0, runner.Shared())
    results = [runner.run_job(session, job) for job in jobs if job.name != "option_liveness"]
    return [result for result in results if result.failed]


def test_the_correct_reference_passes_the_suite() -> None:
    found = failures(RatioKl())
    assert not found, "\n".join(map(line, found))


@pytest.mark.parametrize("defect", BROKEN, ids=lambda defect: defect.__name__)
def test_a_planted_defect_is_named(defect: type[RatioKl]) -> None:
    kinds = {result.failure for result in failures(defect())}
    assert kinds & set(BROKEN[defect]), kinds
