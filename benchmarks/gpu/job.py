# SPDX-License-Identifier: Apache-2.0
"""What a part of the run is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MAIN = (4096, 2048, 131072)
ODD = (4096, 2048, 50257)
ROWS = tuple((rows, 4096, 128256) for rows in (1, 16, 256, 4096))
SMALL = (4096, 2048, 32768)


@dataclass(frozen=True)
class Job:
    """A part's order. `without` names candidates that ended an earlier try, and how."""

    device: str = "cuda"  # "cpu": a rehearsal on small sizes
    quick: bool = False  # a smoke test: small sizes, few samples
    without: dict[str, str] = field(default_factory=dict)
    progress: str = ""  # a file that says what runs at the moment

    def begin(self, what: str) -> None:
        """Leave word of what comes next, for whoever finds this process dead."""
        if self.progress:
            Path(self.progress).write_text(what, encoding="utf-8")

    def sized(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """`shape`, or what stands for it where time is short."""
        rows, dim, vocab = shape
        odd = vocab % 2
        if self.device == "cpu":
            return round(rows**0.5), dim // 32, vocab // 64 // 2 * 2 + odd
        return (min(rows, 512), dim // 2, vocab // 8 // 2 * 2 + odd) if self.quick else shape
