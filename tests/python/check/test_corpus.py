# SPDX-License-Identifier: Apache-2.0
"""The known bugs: rlk has none of them, and each case finds the bug that it is named after."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import rlk.check
from rlk.check import Misuse, cli
from rlk.check.corpus import known_bugs
from rlk.check.known_bug import Known
from rlk.check.report import line
from rlk.check.specs import SPECS

torch = pytest.importorskip("torch")
from known_bugs import BROKEN  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
KNOWN = known_bugs("all")
# Ranks that share a vocabulary are a candidate's own: a kernel without them is not asked.
NEED_RANKS = {"megatron_7050_ranks"}


@pytest.fixture(autouse=True)
def _compiles_nothing() -> Iterator[None]:
    before = rlk.jit.settings()
    rlk.jit.configure(policy="off")
    yield
    rlk.jit.configure(**before)


each_bug = pytest.mark.parametrize("bug", KNOWN, ids=lambda bug: bug.name)


@pytest.mark.parametrize("op", dict.fromkeys(bug.op for bug in KNOWN))
def test_rlk_has_none_of_them(op: str) -> None:
    report = rlk.check.run(op, corpus="all", variant="generic")
    assert report.ok, "\n".join(map(line, report.failures()))
    names = {result.case.options["bug"] for result in report.results}
    assert names == {bug.name for bug in KNOWN if bug.op == op}
    assert all(result.passed for result in report.results)


@each_bug
def test_a_kernel_with_the_bug_fails(bug: Known) -> None:
    def kernel(**a: Any) -> Any:
        return BROKEN[bug.name](**a)

    report = rlk.check.run(bug.op, kernel, corpus=bug.name)
    raised = {result.message for result in report.results if result.failure == "raised"}
    assert raised <= {"ValueError: an id out of range"}
    assert report.failures() or bug.name in NEED_RANKS


@each_bug
def test_a_bug_is_described(bug: Known) -> None:
    spec = SPECS[bug.op]
    assert re.fullmatch(r"[a-z0-9_]+", bug.name)
    assert bug.threads
    for address in bug.links():
        assert re.fullmatch(
            r"https://github\.com/[\w.-]+/[\w.-]+/(issues/\d+|blob/HEAD/.+)", address
        )
    # An option that the case's inputs are not made from would be ignored in silence.
    asked = bug.case.get("options", {}).keys()
    assert asked <= {*spec.defaults, *spec.own_options, "ignored", "samples", "loss_weights"}
    assert bug.case.get("kind", "random") in spec.kinds


def test_names_are_unique() -> None:
    assert len({bug.name for bug in KNOWN}) == len(KNOWN)


def test_an_unknown_name_is_misuse_that_helps() -> None:
    with pytest.raises(
        Misuse, match=r"corpus: expected .*, got softcap \(cce_48_softcap_left_out\?\)"
    ):
        rlk.check.run(corpus="softcap")
    with pytest.raises(
        Misuse, match="op: expected linear_logp for cce_48_softcap_left_out, got logp"
    ):
        rlk.check.run("logp", corpus="cce_48_softcap_left_out")


def test_the_command_runs_one_and_lists_all(capsys: Any) -> None:
    assert cli.main(["--corpus", "equal_rewards", "--variant", "generic"], isolated=False) == 0
    said = capsys.readouterr().out
    assert " bug=equal_rewards " in said
    assert said.splitlines()[-1].startswith("group_advantages rlk: 1 passed")
    assert cli.main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(f"{bug.name} ({bug.op})\n    {bug.what}\n    https://" in said for bug in KNOWN)
