# SPDX-License-Identifier: Apache-2.0
"""The run of rlk-check on everyone (benchmarks/check_everyone.py), as far as it needs no card."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from paths import ROOT

pytest.importorskip("torch")
OWN = ("check_everyone", "checked", "harness", "kept", "tables")

# Stands in for the process of a group: has one result a call, and ends or hangs where it is told.
STAND_IN = """
import json, os, sys, time
candidate, device, group, first = json.loads(sys.argv[sys.argv.index("--child") + 1])
for call in range(first, 4):
    print(json.dumps({"call": call}), flush=True)
    if candidate == "dies" and call in (1, 2):
        print("no such kernel", file=sys.stderr)
        os._exit(3)
    if candidate == "hangs" and call == 2:
        time.sleep(600)
    print("what a package prints")
    print(json.dumps({"call": call, "result": {"status": "passed", "call": call}}), flush=True)
print(json.dumps({"done": True}))
"""


@pytest.fixture
def everyone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import check_everyone

    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    monkeypatch.setattr(check_everyone, "PROGRAM", str(program))
    yield check_everyone
    for name in OWN:
        sys.modules.pop(name, None)


def ran(everyone: Any, candidate: str, seconds: float = 60.0) -> Any:
    task = everyone.Task(candidate, "odd V")
    task.run("cpu", None, time.monotonic() + seconds)
    return task


def test_a_process_that_ends_starts_anew_behind_that_call(everyone: Any) -> None:
    task = ran(everyone, "dies")
    assert [result["call"] for result in task.results] == [0, 3]
    ended = "exit status 3 (no such kernel) at bf16 "
    assert task.stopped == [ended + "2", ended + "17"]


def test_a_process_that_hangs_keeps_what_it_found(everyone: Any) -> None:
    task = ran(everyone, "hangs", 2.0)
    assert [result["call"] for result in task.results] == [0, 1]
    assert task.stopped == ["out of time"]


def test_each_call_is_one_that_the_checker_takes(everyone: Any) -> None:
    import rlk.check

    for op in {everyone.op_of(candidate) for candidate in everyone.CANDIDATES}:
        for group, calls in everyone.groups(op).items():
            assert calls, group
            for given in calls:
                arguments = {**given, "op": op, "candidate": "nobody"}
                with pytest.raises(rlk.check.Misuse, match=r"^candidate: expected"):
                    rlk.check.run(**arguments)


def result(status: str, failure: str | None = None, **more: Any) -> dict[str, Any]:
    found = {"status": status, **more}
    return found if failure is None else {**found, "failure": failure}


@pytest.mark.usefixtures("everyone")
def test_what_a_cell_says() -> None:
    from checked import verdict

    passed, lacks = result("passed"), result("not_applicable")
    off = result("failed", "accuracy", worst=573.4)
    grad = result("failed", "grad_accuracy", worst=1.25)
    infinite = result("failed", "accuracy", worst="inf")
    for found, cell in (
        ([passed, lacks], "ok"),
        ([lacks], "n/a"),
        ([off, grad, passed], "573 x"),
        ([grad], "1.2 x"),
        ([infinite], "accuracy"),
        ([result("failed", "raised"), lacks], "raised"),
        ([result("failed", "raised"), passed], "raised"),
        ([off, result("failed", "batch_variant")], "accuracy, batch_variant"),
    ):
        assert verdict(found) == cell


def test_a_run_becomes_the_tables_of_the_page(everyone: Any, monkeypatch: Any) -> None:
    import checked
    import tables

    case = {
        "dtype": "bfloat16",
        "kind": "random",
        "lead": [2, 8],
        "options": {},
        "check": "forward",
    }
    both = {**case, "check": "gradient", "errors": {"logp": 573.4, "hidden": 0.7}, "worst": 573.4}
    tasks = [everyone.Task(name, "accuracy") for name in ("rlk", "verl")]
    tasks[0].results = [{**both, "status": "passed", "errors": {"logp": 0.012, "hidden": 0.31}}]
    tasks[1].results = [{**both, "status": "failed", "failure": "accuracy"}]
    special = everyone.Task("rlk", "special")
    special.results = [{**case, "kind": "negative", "status": "passed"}]
    stopped = everyone.Task("verl", "special", stopped=["exit status -6"])
    document = everyone.document([*tasks, special, stopped])
    document["environment"] = {"card": "NVIDIA H200", "torch": "2.11.0", "commit": "abc"}
    document = json.loads(json.dumps(document))
    monkeypatch.setattr(checked, "run", lambda: checked.Checked(document))
    made = checked.made(tables.table)
    assert made["checked_accuracy"]().splitlines() == [
        "| error / bound | rlk | verl |",
        "|---|---|---|",
        "| bf16 random, logp | 0.012 | **573** |",
        "| bf16 random, gradient of hidden | 0.31 | 0.7 |",
    ]
    assert made["checked_special"]().splitlines()[2:] == ["| `negative` | ok | stopped |"]
    assert "NVIDIA H200" in made["checked_on"]()
    monkeypatch.setattr(checked, "run", lambda: None)
    assert made["checked_bits"]() == "Not run yet."
