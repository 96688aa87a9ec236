# SPDX-License-Identifier: Apache-2.0
"""Public bugs of other implementations as named cases: rlk-check --corpus."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

from . import checks, rules, transforms
from .candidates import Candidate, Misuse
from .case import Inputs
from .corpus_cases import KNOWN
from .known_bug import Known
from .runner import Check, Job
from .spec import OpSpec


def known_bugs(which: str) -> list[Known]:
    """One by name, or all. Raises Misuse."""
    if which == "all":
        return list(KNOWN)
    found = [one for one in KNOWN if one.name == which]
    if not found:
        near = [one.name for one in KNOWN if which.lower() in one.name]
        more = f" ({', '.join(near)}?)" if near else ""
        raise Misuse(f"corpus: expected all or a name that --list has, got {which}{more}")
    return found


def listing() -> str:
    """Two lines and the addresses of each known bug."""
    lines = []
    for one in known_bugs("all"):
        lines += [f"{one.name} ({one.op})", f"    {one.what}", *(f"    {x}" for x in one.links())]
    return "\n".join(lines) + "\n"


def corpus_jobs(spec: OpSpec, candidate: Candidate, which: str, seed: int) -> Iterator[Job]:
    """The checks of the known bugs of one op."""
    for one in known_bugs(which):
        if one.op != spec.name:
            continue
        case = one.made(seed)
        for name in one.checks:
            if _applies(name, candidate):
                yield Job(name, _check(name), case, one.edit and _edited(spec, one.edit))


def _applies(name: str, candidate: Candidate) -> bool:
    if name == "gradient":
        return candidate.differentiates and not candidate.forward_only
    if name == "invariance blocks":
        return candidate.set_blocks is not None
    if name == "invariance degrees":
        return candidate.over_ranks is not None
    return name != "refusals" or candidate.survives_bad_ids


def _check(name: str) -> Check:
    """A check by the name that a report has."""
    own: dict[str, Check] = {
        "forward": checks.forward,
        "gradient": checks.gradient,
        "option_liveness": rules.option_liveness,
        "refusals": rules.refusals,
    }
    kind, _, rest = name.partition(" ")
    if kind == "invariance":
        return transforms.check(rest)
    if kind == "rule":
        return lambda session, case: session.spec.rules()[rest](session, case)
    return own[name]


def _edited(spec: OpSpec, edit: Callable[[Inputs], Inputs]) -> OpSpec:
    """The op, whose inputs are edited."""
    made, build = copy.copy(spec), spec.build
    made.build = lambda case: edit(build(case))  # type: ignore[method-assign]
    return made
