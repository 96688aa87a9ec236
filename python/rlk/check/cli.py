# SPDX-License-Identifier: Apache-2.0
"""The command rlk-check."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import report as reports
from .api import INPUT_MODES, run
from .candidates import Misuse
from .contract import ContractError
from .corpus import known_bugs, listing
from .isolate import run_isolated
from .peers import NAMES as PEERS
from .peers import peer_ops
from .report import Report
from .result import Result
from .specs import SPECS

EPILOG = """\
exit code: 0 all passed, 1 something failed, 2 wrong use (said in one line, before any work)

examples:
  rlk-check --all                                   rlk's own kernels, the whole suite
  rlk-check --all --device cuda                     the same on the GPU
  rlk-check --candidate mine:kernel --vocab 50257 --hidden 768 --grad
  rlk-check --candidate torch --dtype bf16 --input-mode adversarial
  rlk-check --corpus                                known bugs of others; --list says what
"""


def main(arguments: Sequence[str] | None = None, *, isolated: bool = True) -> int:
    """Runs the checks that the arguments ask for; returns the exit code.

    isolated: in a process of its own, which a candidate may end.
    """
    given = parser().parse_args(arguments)
    if given.list:
        alone = parser().parse_args(["--list"])
        more = [name for name, value in vars(given).items() if value != getattr(alone, name)]
        if more:
            print(f"rlk-check: --list: expected alone, got {_flag(more[0])}", file=sys.stderr)
            return 2
        print(listing(), end="")
        return 0
    if "" not in sys.path:
        sys.path.insert(0, "")  # MODULE:FUNCTION beside the caller, as with python -m
    if given.json is not None and given.json == given.junit:
        print(
            f"rlk-check: --junit: expected another file than --json, got {given.junit}",
            file=sys.stderr,
        )
        return 2
    for name in ("json", "junit"):
        if problem := _why_not_writable(getattr(given, name)):
            print(f"rlk-check: --{name}: {problem}", file=sys.stderr)
            return 2
    try:
        found = [_run(op, given, isolated) for op in given.op or _default_ops(given)]
    except Misuse as error:
        argument, _, rest = str(error).partition(":")
        print(f"rlk-check: {_flag(argument)}:{rest}", file=sys.stderr)
        return 2
    except ContractError as error:
        print(f"rlk-check: {error}", file=sys.stderr)
        return 2
    if given.json is not None:
        documents = [one.to_json() for one in found]
        _write(given.json, json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    if given.junit is not None:
        _write(given.junit, reports.to_junit(found).decode())
    if given.json != "-":
        for one in found:
            print(reports.summary(one))
    return 0 if all(one.ok for one in found) else 1


def _flag(argument: str) -> str:
    """The flag of an argument of rlk.check.run."""
    return "--" + {"options": "option", "suite": "all"}.get(argument, argument.replace("_", "-"))


class Parser(argparse.ArgumentParser):
    """argparse, with misuse said in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parser() -> Parser:
    """The arguments; their defaults stand in rlk.check.run."""
    made = Parser(
        prog="rlk-check",
        description="Checks a kernel against a float64 oracle: accuracy, gradients, invariance.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--op",
        action="append",
        help=f"one of {', '.join(SPECS)}; may be repeated (default linear_logp; with --all every"
        " op)",
    )
    add(
        "--candidate",
        default="rlk",
        help=f"rlk, torch, {', '.join(PEERS)} or MODULE:FUNCTION (default rlk)",
    )
    add("--device", default="cpu", help="cpu or cuda (default cpu)")
    add("--dtype", action="append", help="fp32, fp16 or bf16; may be repeated (default all)")
    add("--variant", help="rlk: generic, specialized or both (default both)")
    add("--framework", help="torch or numpy (default torch where installed)")
    add("--adapter", help="how MODULE:FUNCTION is called (default by_name)")
    add("--target", help="rlk: the target to run on, as sm_90a or x86-64-v3")
    add("--arch-key", help="whose bounds to take from the contract (default that of --target)")
    add("--batch", type=int, default=2, help="sequences (default 2)")
    add("--seq", type=int, default=8, help="positions a sequence (default 8)")
    add("--vocab", type=int, default=257, help="vocabulary size (default 257)")
    add("--hidden", type=int, default=96, help="hidden size (default 96)")
    add(
        "--input-mode",
        default="random",
        help=f"{', '.join(INPUT_MODES)}, or a kind of the op (default random)",
    )
    add("--constant-value", type=float, help="constant mode: every value (default 0.5)")
    add("--token-value", type=int, help="every target id (default random)")
    add("--seed", type=int, default=0, help="all inputs follow from it (default 0)")
    add(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="what a case passes besides, as its line names it; all: every set of the suite"
        " (default with and without a bias)",
    )
    add("--grad", action="store_true", help="check the gradients too")
    add("--invariance", action="store_true", help="check the transforms and the rules")
    add("--all", action="store_true", help="the whole suite instead of one size")
    add("--random", type=int, metavar="N", help="N random cases")
    add(
        "--corpus",
        nargs="?",
        const="all",
        metavar="NAME",
        help="the known bugs of other implementations, or one of them",
    )
    add("--list", action="store_true", help="print the known bugs and where they were reported")
    add(
        "--blocks",
        metavar="1,7,132",
        help="for how many multiprocessors grids are forced on CUDA (default 1,7,132)",
    )
    add("--contract", type=Path, help="another contract file")
    add("--json", metavar="FILE", help="write the results as JSON (- for standard output)")
    add("--junit", metavar="FILE", help="write the results as JUnit XML")
    add("--quiet", action="store_true", help="print failures and the summary only")
    return made


def _default_ops(given: argparse.Namespace) -> Sequence[str]:
    """With --all every op that the candidate has, with --corpus those that have a known bug, else
    linear_logp or what stands for it."""
    has = peer_ops(given.candidate) if given.candidate in PEERS else tuple(SPECS)
    if given.corpus is not None:
        if given.candidate not in ("rlk", "torch", *PEERS) and given.corpus == "all":
            has = ("linear_logp",)
        bugs = {bug.op for bug in known_bugs(given.corpus)}
        return [op for op in has if op in bugs] or sorted(bugs)
    return has if given.all else ["linear_logp" if "linear_logp" in has else has[-1]]


def _run(op: str, given: argparse.Namespace, isolated: bool) -> Report:
    colour = sys.stdout.isatty()
    silent = given.json == "-"

    def show(result: Result) -> None:
        if not silent and (result.failed or not given.quiet):
            print(reports.line(result, colour), flush=True)

    same = (
        "candidate device dtype variant framework adapter target arch_key batch seq vocab hidden"
        " input_mode constant_value token_value seed grad invariance random corpus contract"
    )
    arguments = {name: getattr(given, name) for name in same.split()}
    arguments |= {"op": op, "suite": given.all, "options": _options(given.option)}
    if given.blocks is not None:
        arguments["blocks"] = _numbers("blocks", given.blocks)
    return run_isolated(arguments, show) if isolated else run(**arguments, on_result=show)


def _options(texts: Sequence[str] | None) -> dict[str, str] | str | None:
    """--option temperature=row --option bias=none, or --option all."""
    if texts is None:
        return None
    if texts == ["all"]:
        return "all"
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Misuse(f"option: expected NAME=VALUE, or all alone, got {text}")
        if name in found:
            raise Misuse(f"option: expected {name} once, got {name}={found[name]} and {text}")
        found[name] = value
    return found


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise Misuse(f"{name}: expected numbers as 1,7,132, got {text}") from error


def _why_not_writable(place: str | None) -> str | None:
    """Asked before any work: minutes of checks are not lost to a wrong path."""
    if place is None or place == "-":
        return None
    asked = place if os.path.exists(place) else Path(place).parent
    if os.path.isdir(place) or not os.access(asked, os.W_OK):
        return f"expected a file that can be written, got {place}"
    return None


def _write(place: str, text: str) -> None:
    if place == "-":
        print(text)
    else:
        Path(place).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
