# SPDX-License-Identifier: Apache-2.0
"""Hypothesis over sizes, dtypes, kinds, layouts and options: the candidates against the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from broken import Reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_run import LONG

from rlk.check import contract
from rlk.check.candidates import Candidate, from_function
from rlk.check.case import Case
from rlk.check.checks import Session
from rlk.check.report import line
from rlk.check.rlk_candidate import rlk_candidate
from rlk.check.runner import case_jobs, run_job
from rlk.check.specs import SPECS
from rlk.check.specs.linear_logp_inputs import KINDS
from rlk.check.stored import LAYOUTS

SPEC = SPECS["linear_logp"]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are wanted here


@st.composite
def cases(draw: Any) -> Case:
    lead = draw(
        st.one_of(
            st.just(()),
            st.tuples(st.integers(0, 40)),
            st.tuples(st.integers(1, 4), st.integers(0, 12)),
            st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 5)),
        )
    )
    options = {
        "bias": st.sampled_from(["none", "same", "float32"]),
        "temperature": st.one_of(st.floats(0.2, 4.0), st.just("row")),
        "mask": st.sampled_from(["bool", "int32", "float32", "uint8", "int64"]),
        "ignore_index": st.sampled_from([None, 0, -1, -100]),
        "target": st.sampled_from(["int64", "int32", "int16", "uint8"]),
    }
    chosen = {name: draw(values) for name, values in options.items() if draw(st.booleans())}
    sizes = {"vocab": draw(st.integers(1, 1200)), "hidden": draw(st.integers(1, 150))}
    return Case(
        "linear_logp",
        draw(st.sampled_from(["float32", "float16", "bfloat16"])),
        lead,
        sizes,
        draw(st.sampled_from(list(KINDS))),
        draw(st.sampled_from(LAYOUTS)),
        chosen,
        draw(st.integers(0, 2**32)),
    )


def reference() -> Candidate:
    return from_function(SPEC, "reference", Reference())


def rlk_generic() -> Candidate:
    return rlk_candidate(SPEC, "cpu", None, "generic", None)


@pytest.mark.parametrize("make", [reference, rlk_generic])
def test_any_case_is_within_its_bounds(make: Any) -> None:
    candidate = make()
    session = Session(SPEC, candidate, contract.load(), None)

    @settings(
        max_examples=2000 if LONG else 80,
        deadline=None,
        derandomize=not LONG,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def check(case: Case) -> None:
        for job in case_jobs(SPEC, candidate, case, gradient=True):
            result = run_job(session, job)
            assert result.passed, line(result)

    with candidate.scope():
        check()
