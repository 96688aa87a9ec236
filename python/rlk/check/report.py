# SPDX-License-Identifier: Apache-2.0
"""A run as lines for people, as JSON, and as JUnit XML."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any
from xml.etree import ElementTree

import numpy as np

from .contract import Contract
from .result import Result

FORMAT = 1
MARKS = {"passed": ("ok", "32"), "failed": ("FAIL", "31"), "not_applicable": ("n/a", "33")}


@dataclass(frozen=True)
class Report:
    """Every result of a run, and what it ran on."""

    op: str
    candidate: str
    device: str
    framework: str
    target: str | None
    arch_key: str | None
    gpu: str | None
    contract: Contract
    results: list[Result]
    packages: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True where something was checked and nothing failed."""
        return any(r.passed for r in self.results) and not any(r.failed for r in self.results)

    def failures(self) -> list[Result]:
        return [result for result in self.results if result.failed]

    def to_json(self) -> dict[str, Any]:
        """The document of docs/checking.md, section "JSON"."""
        return to_json(self)


def line(result: Result, colour: bool = False) -> str:
    """One line a case: mark, check, case, worst error / bound and where, or what failed."""
    word, code = MARKS[result.status]
    mark = f"\033[{code}m{word:<4}\033[0m" if colour else f"{word:<4}"
    variant = f" {result.variant}" if result.variant else ""
    parts = [f"{mark} {result.check:<13}{variant} {result.case.text()}"]
    if result.worst is not None and result.value is not None:
        parts.append(f"worst {result.worst:.3g} of the bound in {result.value}{where(result)}")
    if result.failure is not None:
        parts.append(f"{result.failure}: {result.message}")
    elif result.message is not None:
        parts.append(result.message)
    return " | ".join(parts)


def where(result: Result) -> str:
    """[row 1, position 3, vocab 17]"""
    if not result.place:
        return ""
    return " [" + ", ".join(f"{name} {i}" for name, i in result.place.items()) + "]"


def summary(report: Report) -> str:
    """The last line: counts and the worst error."""
    counts = _counts(report)
    worst = max((r for r in report.results if r.worst is not None), key=_worst, default=None)
    own = ", ".join(f"{n} {v}" for n, v in versions(report.packages).items() if v is not None)
    name = f"{report.candidate} ({own})" if own else report.candidate
    text = f"{report.op} {name}: {counts['passed']} passed, {counts['failed']} failed"
    if counts["not_applicable"]:
        text += f", {counts['not_applicable']} not applicable"
    if worst is not None:
        text += f"; worst {worst.worst:.3g} of the bound ({worst.check}, {worst.case.text()})"
    return text


def to_json(report: Report) -> dict[str, Any]:
    """The document described in docs/checking.md; infinite numbers are the string "inf"."""
    head = {
        "format": FORMAT,
        "op": report.op,
        "candidate": report.candidate,
        "device": {
            "name": report.device,
            "machine": platform.machine(),
            "cpu": _cpu(),
            "gpu": report.gpu,
        },
        "framework": report.framework,
        "target": report.target,
        "arch_key": report.arch_key,
        "contract": report.contract.digest,
        "versions": {**_versions(), **versions(report.packages)},
        "summary": {"ok": report.ok, **_counts(report)},
        "results": [result.to_json() for result in report.results],
    }
    return {name: _plain(value) for name, value in head.items()}


def to_junit(reports: Sequence[Report]) -> bytes:
    """JUnit XML: one testsuite a report, one testcase a result."""
    suites = ElementTree.Element("testsuites", name="rlk-check")
    suites.extend(_testsuite(report) for report in reports)
    document: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document


def _testsuite(report: Report) -> ElementTree.Element:
    counts = _counts(report)
    suite = ElementTree.Element(
        "testsuite",
        name=f"rlk-check {report.op} {report.candidate}",
        tests=str(len(report.results)),
        failures=str(counts["failed"]),
        skipped=str(counts["not_applicable"]),
        time=f"{sum(r.seconds for r in report.results):.3f}",
    )
    for result in report.results:
        variant = f".{result.variant}" if result.variant else ""
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{report.op}.{report.candidate}{variant}.{result.check}",
            name=f"{result.case.text()} seed={result.case.seed}",
            time=f"{result.seconds:.3f}",
        )
        if result.failed:
            failure = ElementTree.SubElement(case, "failure", type=str(result.failure))
            failure.set("message", _xml_text(f"{result.message}{where(result)}"))
        elif not result.passed:
            ElementTree.SubElement(case, "skipped", message=str(result.message))
    return suite


def _xml_text(text: str) -> str:
    """Text with what XML 1.0 cannot hold, control characters and surrogates, as escapes."""
    return "".join(c if c in "\t\n\r" or c.isprintable() else ascii(c)[1:-1] for c in text)


def _counts(report: Report) -> dict[str, int]:
    return {name: sum(r.status == name for r in report.results) for name in MARKS}


def _worst(result: Result) -> float:
    return result.worst if result.worst is not None else 0.0


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Of packages as pip names them; None where one is absent."""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return {name: version(name) for name in packages}


def _versions() -> dict[str, str | None]:
    found = versions(("torch", "ml_dtypes"))
    # Not from the metadata: rlk may run from its build folder.
    rlk = getattr(sys.modules.get("rlk"), "__version__", None)
    return {"python": platform.python_version(), "numpy": np.__version__, "rlk": rlk, **found}


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for text in lines:
                if text.startswith("model name"):
                    return text.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def _plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    return value
