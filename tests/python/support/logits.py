# SPDX-License-Identifier: Apache-2.0
"""Problems of logp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from devices import jit
from problems import numpy_type


@dataclass(frozen=True)
class Logits:
    """Arguments of logp."""

    logits: Any
    target: Any
    upstream: Any

    def logp(self, **options: Any) -> Any:
        return jit.logp(self.logits, self.target, **options)

    def outputs(self, **options: Any) -> Any:
        return self.logp(**{"return_entropy": True, "return_lse": True, **options})

    def grad(self, **options: Any) -> Any:
        return jit.logp_backward(self.upstream, self.logits, self.target, **options)

    def rows(self, rows: Any) -> Logits:
        """These rows in a call of their own."""
        return Logits(self.logits[rows], self.target[rows], self.upstream[rows])

    def but(self, **changed: Any) -> Logits:
        return replace(self, **changed)


def draw(
    lead: int | tuple[int, ...] = 7,
    vocab: int = 300,
    dtype: str = "float32",
    scale: float = 2.0,
    seed: int = 0,
) -> Logits:
    rng = np.random.default_rng([seed, vocab])
    lead = (lead,) if isinstance(lead, int) else lead
    return Logits(
        np.asarray(rng.standard_normal((*lead, vocab)) * scale).astype(numpy_type(dtype)),
        np.asarray(rng.integers(0, vocab, lead)),
        np.asarray(rng.standard_normal(lead), np.float32),
    )
