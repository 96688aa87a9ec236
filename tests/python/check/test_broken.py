# SPDX-License-Identifier: Apache-2.0
"""The checker must bite: every planted defect is found under its own name."""

from __future__ import annotations

import broken
import broken_logp
import pytest
from broken import Reference
from long_run import LONG

import rlk.check
from rlk.check import contract, runner
from rlk.check.candidates import from_function
from rlk.check.checks import Session
from rlk.check.report import line
from rlk.check.specs import SPECS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are wanted here


REFERENCES = {"linear_logp": Reference, "logp": broken_logp.Logp}
PLANTED = [
    *(("linear_logp", *planted) for planted in broken.BROKEN.items()),
    *(("logp", *planted) for planted in broken_logp.BROKEN.items()),
]


@pytest.mark.parametrize(
    ("op", "defect", "names"), PLANTED, ids=[f"{op}-{defect.__name__}" for op, defect, _ in PLANTED]
)
def test_a_planted_defect_is_named(op: str, defect: type[Reference], names: set[str]) -> None:
    spec = SPECS[op]
    candidate = from_function(spec, defect.__name__, defect())
    session = Session(spec, candidate, contract.load(), None)
    kinds = []
    for job in runner.suite_jobs(spec, candidate, ["float32"], 0, runner.Shared()):
        result = runner.run_job(session, job)
        if result.failed:
            kinds.append(result.failure)
        if result.failure in names:
            return
    pytest.fail(f"expected {names}, got {sorted(set(map(str, kinds)))}")


@pytest.mark.parametrize("op", REFERENCES)
def test_the_correct_reference_passes_the_suite(op: str) -> None:
    report = rlk.check.run(op, candidate=REFERENCES[op](), suite=True)
    assert report.ok, "\n".join(line(failure) for failure in report.failures())


def test_no_false_alarm_on_random_cases() -> None:
    report = rlk.check.run(candidate=Reference(), random=2000 if LONG else 400)
    assert report.ok, "\n".join(line(failure) for failure in report.failures())
