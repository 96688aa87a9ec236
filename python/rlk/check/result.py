# SPDX-License-Identifier: Apache-2.0
"""What one check of one case found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .case import Case
from .compare import Deviation


@dataclass(frozen=True)
class Result:
    """`status` is passed, failed or not_applicable; `failure` a short stable word when failed.

    `worst` is the largest error / bound over the values of the check, `place` where it was; of a
    failure, that of the value that failed first. `errors` has the largest of every value.
    """

    case: Case
    candidate: str
    variant: str | None
    check: str
    status: str
    failure: str | None = None
    message: str | None = None
    value: str | None = None
    worst: float | None = None
    place: Mapping[str, int] | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    kernel: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measured(deviation: Deviation) -> dict[str, Any]:
    """The fields of a Result that come from a Deviation."""
    return {
        "worst": deviation.worst,
        "max_abs": deviation.max_abs,
        "mean_abs": deviation.mean_abs,
        "max_rel": deviation.max_rel,
    }
