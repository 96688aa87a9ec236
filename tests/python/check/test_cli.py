# SPDX-License-Identifier: Apache-2.0
"""rlk-check as a command: exit codes, lines, JSON, JUnit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rlk.check import cli

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
REFERENCE = ("--candidate", "broken:Reference.instance")


def main(arguments: Any) -> int:
    """In this process, whose output and modules a test can see."""
    return cli.main(arguments, isolated=False)


@pytest.fixture(autouse=True)
def _instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """MODULE:FUNCTION names a thing of a module: give the classes instances to name."""
    import broken

    for kind in (broken.Reference, broken.BiasTwice):
        monkeypatch.setattr(kind, "instance", kind(), raising=False)


def test_a_correct_kernel_exits_0_with_one_line_a_case(capsys: Any) -> None:
    assert main([*REFERENCE, "--dtype", "fp32", "--grad"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("ok   forward")
    assert "of the bound in logp [row " in lines[0]
    assert " bias=none | " in lines[2]
    assert lines[4].startswith("linear_logp broken:Reference.instance: 4 passed, 0 failed")


def test_every_op_that_is_named_is_checked(capsys: Any) -> None:
    assert main(["--op", "logp", "--op", "ppo_loss", "--dtype", "fp32", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["logp", "ppo_loss"]


def test_a_broken_kernel_exits_1_and_says_where(capsys: Any) -> None:
    assert main(["--candidate", "broken:BiasTwice.instance", "--dtype", "fp32", "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2  # without a bias it is right
    assert lines[0].startswith("FAIL forward")
    assert "| accuracy: logp: expected" in lines[0]
    assert "[row " in lines[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--vocab", "0"), "--vocab"),
        (("--vocab", "many"), "--vocab"),
        (("--random", "0"), "--random: expected > 0"),
        (("--op", "softmax"), "--op"),
        (("--device", "tpu"), "--device"),
        (("--token-value", "-1"), "--token-value"),
        (("--input-mode", "zeros"), "--input-mode"),
        (("--candidate", "nothing"), "--candidate"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--json", "/no/such/folder/report.json"), "--json"),
        (("--json", f"/{'x' * 300}/cannot_be_looked_at"), "--json"),
        (("--junit", "/"), "--junit"),
        (("--candidate", "rlk", "--target", "sm_90a"), "--target"),
        (("--option", "bias"), "--option"),
        (("--option", "bias=twice"), "--option: bias: expected one of none, same, float32"),
        (("--option", "temperature=0"), "--option: temperature: expected a number above 0 or row"),
        (("--option", "ignore_index=x"), "--option: ignore_index: expected a whole number or none"),
        (("--option", "softcap=0"), "--option: softcap: expected a number above 0"),
        (("--option", "logit_scale=inf"), "--option: logit_scale: expected a number"),
        (("--option", "return_lse=1"), "--option: return_lse: expected True or False"),
        (("--option", "top_k=30"), "--option"),
        (("--option", "bias=none", "--option", "bias=same"), "--option: expected bias once"),
        (("--all", "--vocab", "100"), "--vocab: expected none with the whole suite, got 100"),
        (("--corpus", "--hidden", "8"), "--hidden: expected none with known bugs, got 8"),
        (("--list", "--vocab", "100"), "--list: expected alone, got --"),
        (("--blocks", ""), "--blocks: expected numbers as 1,7,132, got"),
        (("--json", "report", "--junit", "report"), "--junit: expected another file than --json"),
    ],
)
def test_misuse_exits_2_with_one_line(arguments: Any, named: str, capsys: Any) -> None:
    try:
        code = main([*REFERENCE, *arguments])
    except SystemExit as stop:
        code = int(str(stop.code))
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.startswith("rlk-check: ")
    assert named in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_broken_contract_exits_2(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "contract.json"
    file.write_text("{}")
    assert main([*REFERENCE, "--contract", str(file)]) == 2
    assert "contract: file: expected" in capsys.readouterr().err
    for content in (b"{", b"\xff", b"[" * 100_000):
        file.write_bytes(content)
        assert main([*REFERENCE, "--contract", str(file)]) == 2
        assert f"contract: {file}: expected a file of JSON, got" in capsys.readouterr().err
    for place in (tmp_path, tmp_path / "none"):
        assert main([*REFERENCE, "--contract", str(place)]) == 2
        assert f"contract: {place}: expected a file of JSON, got" in capsys.readouterr().err


def test_json_has_the_documented_fields(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    broken = ("--candidate", "broken:BiasTwice.instance")
    options = ("--option", "temperature=0.7", "--json", str(file), "--arch-key", "sm_90a")
    assert main([*broken, "--grad", *options]) == 1
    document = json.loads(file.read_text())
    assert document["format"] == 1
    assert document["arch_key"] == "sm_90a"
    assert document["device"]["gpu"] is None
    assert document["summary"]["ok"] is False
    assert document["summary"]["failed"] == 6
    assert set(document["versions"]) == {"python", "numpy", "rlk", "torch", "ml_dtypes"}
    result = document["results"][0]
    assert result["failure"] == "accuracy"
    assert set(result["place"]) == {"row", "position", "vocab"}
    assert result["worst"] > 1
    assert result["case"]["sizes"] == {"vocab": 257, "hidden": 96}
    assert result["case"]["options"] == {"temperature": 0.7}
    assert result["kernel"] == {}


def test_json_on_standard_output_is_all_that_is_printed(capsys: Any) -> None:
    assert main([*REFERENCE, "--dtype", "bf16", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["passed"] == 2


def test_junit_counts_failures(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    main(["--candidate", "broken:BiasTwice.instance", "--dtype", "fp16", "--junit", str(file)])
    suite = ElementTree.fromstring(file.read_text()).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "accuracy"


def test_the_same_seed_gives_the_same_report(tmp_path: Path) -> None:
    documents = []
    for name in ("a", "b"):
        file = tmp_path / name
        main([*REFERENCE, "--random", "5", "--seed", "9", "--json", str(file)])
        document = json.loads(file.read_text())
        for result in document["results"]:
            del result["seconds"]
        documents.append(document)
    assert documents[0] == documents[1]


def test_junit_stays_xml_whatever_a_kernel_says(tmp_path: Path, monkeypatch: Any) -> None:
    import broken

    def kernel(**a: Any) -> Any:
        raise ValueError("\udcff\x00\x1b[31m]]><&\uffff")

    monkeypatch.setattr(broken, "speaks_badly", kernel, raising=False)
    file = tmp_path / "junit.xml"
    main(["--candidate", "broken:speaks_badly", "--dtype", "fp32", "--junit", str(file)])
    failure = ElementTree.fromstring(file.read_bytes()).find("testsuite/testcase/failure")
    assert failure is not None
    assert "\\x1b[31m]]><&" in str(failure.get("message"))


def test_options_as_a_line_names_them(capsys: Any) -> None:
    asked = ("--option", "temperature=row", "--option", "mask=bool", "--option", "bias=none")
    assert main([*REFERENCE, "--dtype", "fp32", *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert " bias=none mask=bool temperature=row | " in lines[0]


def test_every_option_set(capsys: Any) -> None:
    assert main([*REFERENCE, "--dtype", "fp32", "--option", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert len({line.split("|")[0] for line in lines}) == len(lines) == 14
    for option in (
        "softcap=2.0",
        "return_entropy=True",
        "bias=none",
        "temperature=row",
        "mask=",
        "ignore_index=0",
        "target=uint8",
    ):
        assert any(option in line for line in lines)


ENDINGS = """
import os

calls = []

def ends_well(**a):
    os._exit(0)

def ends_badly(**a):
    os.abort()

def ends_later(**a):
    calls.append(a)
    if len(calls) == 2:
        os._exit(0)
    from rlk.check.specs.linear_logp import torch_linear_logp
    return torch_linear_logp(**a)
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "passed", "how"),
    [
        ("ends_well", 0, "ended with exit code 0"),
        ("ends_badly", 0, "ended by SIGABRT"),
        ("ends_later", 1, "ended with exit code 0"),
    ],
)
def test_a_kernel_that_ends_its_process_fails(
    name: str, passed: int, how: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "endings.py").write_text(ENDINGS)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "report.json"
    arguments = ("--candidate", f"endings:{name}", "--dtype", "fp32", "--json", str(file))
    assert cli.main(arguments) == 1
    assert f"the process {how}; the cases after" in capsys.readouterr().out
    document = json.loads(file.read_text())
    counts = {"ok": False, "passed": passed, "failed": 1, "not_applicable": 0}
    assert document["summary"] == counts
    last = document["results"][-1]
    assert (last["check"], last["failure"]) == ("forward", "ended")
    assert last["case"]["options"] == ({"bias": "none"} if passed else {})


def test_a_module_that_ends_its_process_is_misuse(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "ends_at_import.py").write_text("import os; os._exit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["--candidate", "ends_at_import:kernel"]) == 2
    assert "--candidate: expected one that can be loaded" in capsys.readouterr().err


def test_a_process_of_its_own_says_the_same(capsys: Any) -> None:
    arguments = ("--candidate", "broken:REFERENCE", "--dtype", "fp32", "--grad")
    assert cli.main(arguments) == 0
    isolated = capsys.readouterr().out
    assert main(arguments) == 0
    assert isolated == capsys.readouterr().out
    assert cli.main(["--vocab", "0"]) == 2
    assert "--vocab: expected > 0" in capsys.readouterr().err
