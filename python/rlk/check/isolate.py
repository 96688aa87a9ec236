# SPDX-License-Identifier: Apache-2.0
"""A run in a process of its own: a candidate that ends its process cannot end the check with it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from .api import run
from .candidates import Misuse
from .contract import ContractError
from .report import Report
from .result import Result

LAST_WORDS_S = 10.0  # for a process that has said all; threads of a candidate may hold it


def run_isolated(arguments: dict[str, Any], on_result: Callable[[Result], None]) -> Report:
    """rlk.check.run(**arguments) in a new process.

    Where that process ends by itself, its case fails as `ended` and the cases after it are not
    run. Raises what run() raises.
    """
    # Not a fork: the child must be able to start CUDA, whatever this process has done.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(sender, arguments))
    child.start()
    sender.close()
    head: tuple[Report, Result] | None = None
    results: list[Result] = []
    try:
        while (message := _next(receiver, child.sentinel)) is not None:
            kind, content = message
            if kind == "error":
                raise content
            if kind == "done":
                child.join(LAST_WORDS_S)
                done: Report = replace(content, results=results)
                return done
            if kind == "start":
                head = content
            else:
                results.append(content)
                on_result(content)
        child.join()
    finally:
        child.terminate()
        child.join()
        receiver.close()
    how = _how_it_ended(child.exitcode)
    if head is None:
        raise Misuse(f"candidate: expected one that can be loaded, got a process that {how}")
    report, pending = head
    words = f"the process {how}; the cases after this one were not run"
    results.append(replace(pending, message=words))
    on_result(results[-1])
    return replace(report, results=results)


def _next(receiver: Connection, sentinel: int) -> tuple[str, Any] | None:
    """What the child says next; None where it has ended."""
    # The pipe alone would stay open for as long as a process that the candidate started.
    wait([receiver, sentinel])
    try:
        return receiver.recv() if receiver.poll() else None
    except (EOFError, OSError):
        return None


def _work(sender: Connection, arguments: dict[str, Any]) -> None:
    def start(report: Report, pending: Result) -> None:
        sender.send(("start", (replace(report, results=[]), pending)))

    def finish(result: Result) -> None:
        sender.send(("result", result))

    try:
        report = run(**arguments, on_start=start, on_result=finish)
    except (Misuse, ContractError) as error:
        sender.send(("error", error))
    else:
        sender.send(("done", replace(report, results=[])))


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is not None and -exit_code in {number.value for number in signal.Signals}:
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
