# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/peers_checked.md, made from a run of check_everyone.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kept import RESULTS, Run, read

NAME = "check_everyone_h200"
NOT_RUN = "Not run yet."
NAMES = {
    "rlk": "rlk",
    "torch": "torch",
    "torch_compile": "`torch.compile`",
    "liger": "Liger",
    "liger_cute": "Liger, CuTe",
    "cce": "CCE",
    "cce_exact": "CCE, exact",
    "quack": "QuACK",
    "verl": "verl",
}
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]


class Checked:
    """The candidates of a run that gave a result, in order, and their results."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.candidates: dict[str, dict[str, Any]] = {
            one["candidate"]: one
            for one in document["candidates"]
            if any(group["results"] for group in one["groups"].values())
        }
        self.environment: dict[str, Any] = document["environment"]
        self.packages: dict[str, str | None] = document["packages"]

    def heads(self) -> list[str]:
        return [NAMES[name] for name in self.candidates]

    def results(self, candidate: str, group: str, wanted: Callable[[Run], bool]) -> list[Run]:
        groups = self.candidates[candidate]["groups"]
        return [r for r in groups.get(group, {"results": []})["results"] if wanted(r)]

    def cell(self, candidate: str, group: str, wanted: Callable[[Run], bool]) -> str:
        """What the checks that are wanted came to."""
        found = self.results(candidate, group, wanted)
        if found:
            return verdict(found)
        stopped = self.candidates[candidate]["groups"].get(group, {"stopped": []})["stopped"]
        return "stopped" if stopped else ""


def verdict(found: list[Run]) -> str:
    """ok, n/a, raised, or what failed and the largest error over its bound."""
    failed = [r for r in found if r["status"] == "failed"]
    if not failed:
        return "ok" if any(r["status"] == "passed" for r in found) else "n/a"
    words = {r["failure"] for r in failed}
    if words == {"raised"} and len(failed) == sum(r["status"] != "not_applicable" for r in found):
        return "raised"
    errors = [times(r["worst"]) for r in failed if "worst" in r]
    numbers = [e for e in errors if e is not None]
    if words <= {"accuracy", "grad_accuracy"} and numbers:
        return multiple(max(numbers))
    return ", ".join(sorted(words))


def times(value: Any) -> float | None:
    """An error over its bound; the reports write those that are not finite as words."""
    return value if isinstance(value, float | int) else None


def multiple(value: float) -> str:
    return f"{value:,.0f} x" if value >= 10 else f"{value:.2g} x"


def run() -> Checked | None:
    return Checked(read(NAME)) if (RESULTS / f"{NAME}.json").exists() else None


def made(table: Table) -> dict[str, Callable[[], str]]:
    """Each table by its name in the page."""

    def of(rows: Callable[[Checked], tuple[list[str], list[list[str]]]]) -> Callable[[], str]:
        def write() -> str:
            found = run()
            head, cells = ([], []) if found is None else rows(found)
            return table(head, cells) if cells else NOT_RUN

        return write

    return {
        "checked_on": of(on),
        "checked_accuracy": of(accuracy),
        "checked_options": of(options),
        "checked_bits": of(bits),
        "checked_odd": of(odd),
        "checked_special": of(special),
        "checked_bugs": of(bugs),
        "known_bugs": lambda: table(*known()),
    }


def known() -> tuple[list[str], list[list[str]]]:
    """Every known bug and where it was reported; of no run."""
    from rlk.check.corpus import known_bugs

    rows = []
    for bug in known_bugs("all"):
        threads = ", ".join(
            f"[{_told(thread)}]({address})"
            for thread, address in zip(bug.threads, bug.links(), strict=True)
        )
        rows.append([f"`{bug.name}`", f"`{bug.op}`", bug.what, threads])
    return ["name", "op", "what went wrong", "where"], rows


def _told(thread: str) -> str:
    place, mark, number = thread.partition("#")
    name = place.partition(":")[0].split("/")[1]
    return f"{name} {number}" if mark else f"{name}'s code"


def on(found: Checked) -> tuple[list[str], list[list[str]]]:
    facts = {"card": found.environment["card"], "torch": found.environment["torch"]}
    facts |= {
        name: version for name, version in found.packages.items() if version and name != "torch"
    }
    facts["rlk"] = found.environment["commit"]
    return list(facts), [[str(value) for value in facts.values()]]


def accuracy(found: Checked) -> tuple[list[str], list[list[str]]]:
    """Largest error over its bound, of every value."""
    rows = []
    for dtype in SHORT:
        for kind in ("random", "benchmark"):
            for value in ("logp", "loss", "hidden", "weight"):
                cells = [_error(found, name, dtype, kind, value) for name in found.candidates]
                if any(cells):
                    what = value if value in ("logp", "loss") else f"gradient of {value}"
                    rows.append([f"{SHORT[dtype]} {kind}, {what}", *cells])
    return ["error / bound", *found.heads()], rows


def _error(found: Checked, candidate: str, dtype: str, kind: str, value: str) -> str:
    wanted = [
        r
        for r in found.results(
            candidate, "accuracy", lambda r: (r["dtype"], r["kind"]) == (dtype, kind)
        )
        if r["status"] != "not_applicable"
    ]
    errors = [r["errors"][value] for r in wanted if value in r.get("errors", {})]
    numbers = [e for e in map(times, errors) if e is not None]
    if errors and not numbers:
        return "not finite"
    if numbers:
        most = max(numbers)
        return f"**{multiple(most)[:-2]}**" if most > 1 else f"{most:.2g}"
    words = {r["failure"] for r in wanted if "failure" in r}
    own = value == ("loss" if found.candidates[candidate]["op"] != "linear_logp" else "logp")
    return ", ".join(sorted(words)) if own else ""


def options(found: Checked) -> tuple[list[str], list[list[str]]]:
    asked: dict[str, dict[str, Any]] = {}
    for name in found.candidates:
        for r in found.results(name, "options", lambda r: True):
            asked.setdefault(_options(r), r["options"])
    rows = []
    for text in asked:
        cells = [
            found.cell(name, "options", lambda r, text=text: _options(r) == text)  # type: ignore[misc]
            for name in found.candidates
        ]
        rows.append([f"`{text}`", *cells])
    return ["bf16, both passes", *found.heads()], rows


def _options(run: Run) -> str:
    given = {
        k: v
        for k, v in run["options"].items()
        if (k, v) not in (("bias", "none"), ("reduction", "sum"))
    }
    return " ".join(f"{name}={value}" for name, value in given.items())


def _by(
    found: Checked, group: str, head: str, key: Callable[[Run], str], told: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    """One row for each value of a key that results of the group have."""
    keys = dict.fromkeys(
        key(r) for name in found.candidates for r in found.results(name, group, lambda r: True)
    )
    rows = []
    for one in keys:
        if one:
            cells = [
                found.cell(name, group, lambda r, one=one: key(r) == one)  # type: ignore[misc]
                for name in found.candidates
            ]
            rows.append([told(one), *cells])
    return [head, *found.heads()], rows


def bits(found: Checked) -> tuple[list[str], list[list[str]]]:
    def transform(r: Run) -> str:
        kind, _, name = r["check"].partition(" ")
        return str(name) if kind == "invariance" else ""

    return _by(found, "bits", "the same bits", transform, lambda name: f"`{name}`")


def odd(found: Checked) -> tuple[list[str], list[list[str]]]:
    return _by(
        found, "odd V", "bf16, both passes", lambda r: str(r["sizes"]["vocab"]), "V = {}".format
    )


def special(found: Checked) -> tuple[list[str], list[list[str]]]:
    return _by(found, "special", "bf16, both passes", lambda r: str(r["kind"]), "`{}`".format)


def bugs(found: Checked) -> tuple[list[str], list[list[str]]]:
    return _by(found, "bugs", "known bug", lambda r: str(r["options"]["bug"]), "`{}`".format)
