# SPDX-License-Identifier: Apache-2.0
"""The cases of linear_logp: the fixed suite, the random ones, those of the transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import Case
from ..stored import LAYOUTS
from .linear_logp_inputs import KINDS, OPTION_SETS

DTYPES = ("float32", "float16", "bfloat16")
# (lead, V, D): one element, sizes around the leaf of 192 and around vector widths, odd, no rows.
SHAPES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((2, 8), 257, 96),
    ((1, 1), 1, 1),
    ((3,), 2, 1),
    ((), 17, 5),
    ((2, 4), 97, 33),
    ((15,), 191, 64),
    ((1, 5), 193, 17),
    ((16,), 192, 128),
    ((1, 17), 384, 63),
    ((3, 5), 1000, 129),
    ((33,), 4099, 64),
    ((0,), 64, 32),
    ((1, 24), 32003, 32),
)
# Each V and D costs a compile a pass, seconds of it with NVRTC: all specialized cases share these.
SPECIALIZED_SHAPES = (((2, 8), 257, 96), ((1, 1), 1, 1), ((1, 5), 385, 33), ((33,), 4099, 64))


def suite(dtype: str, specialized: bool, seed: int) -> list[Case]:
    """Every kind, layout and option set at one size, then the sizes."""
    lead, vocab, depth = SHAPES[0]
    base = _case(dtype, lead, vocab, depth, seed=seed)
    found = [base.but(kind=kind) for kind in KINDS]
    masked, benchmark = ((4099, 64),) * 2 if specialized else ((1153, 64), (4096, 256))
    found.append(_case(dtype, (2, 8), *masked, kind="neg_inf", seed=seed))
    found.append(_case(dtype, (4, 4), *benchmark, kind="benchmark", seed=seed))
    found += [base.but(layout=layout) for layout in LAYOUTS[1:]]
    found += [base.but(kind="garbage", layout=layout) for layout in ("strided", "transposed")]
    found += [base.but(options=options) for options in OPTION_SETS[1:]]
    every_output = {"return_entropy": True, "return_lse": True}
    hard = ("offset", "negative", "neg_inf", "neg_inf_target", "neg_inf_row", "dominant")
    found += [base.but(kind=kind, options=every_output) for kind in (*hard, "nan_row", "garbage")]
    found += [base.but(kind=kind, options={"softcap": 2.0}) for kind in ("offset", "neg_inf")]
    garbage = {"mask": "bool", "temperature": "row"}
    found.append(base.but(kind="garbage", options=garbage))
    for lead, vocab, depth in (SPECIALIZED_SHAPES if specialized else SHAPES)[1:]:
        found.append(_case(dtype, lead, vocab, depth, seed=seed + 1))
        if vocab < 10000:
            found.append(_case(dtype, lead, vocab, depth, seed=seed, options={"bias": "none"}))
    return found


def invariance_cases(dtype: str, seed: int) -> list[Case]:
    """Enough rows for the transform batch_size, plain and with all options."""
    full = dict(OPTION_SETS[-1])
    return [
        _case(dtype, (2, 65), 257, 96, seed=seed, options={"bias": "none", "ignored": 0}),
        _case(dtype, (2, 65), 385, 33, seed=seed, options=full),
    ]


def random_case(rng: np.random.Generator, seed: int) -> Case:
    """Any dtype, size, kind, layout and options; small sizes mostly."""
    vocab = int(rng.choice([rng.integers(1, 40), rng.integers(1, 600), rng.integers(1, 3000)]))
    depth = int(rng.choice([rng.integers(1, 20), rng.integers(1, 300)]))
    rows = int(rng.choice([rng.integers(0, 4), rng.integers(1, 40)]))
    lead: tuple[int, ...] = (rows,)
    if rng.random() < 0.5:
        batch = int(rng.integers(1, 5))
        lead = (batch, -(-rows // batch))
    if rng.random() < 0.03:
        lead = ()
    options = dict(OPTION_SETS[rng.integers(len(OPTION_SETS))])
    if rng.random() < 0.3:
        options["temperature"] = float(np.exp(rng.normal() * 0.5))
    kind = str(rng.choice(list(KINDS)))
    layout = str(rng.choice(LAYOUTS))
    dtype = str(rng.choice(DTYPES))
    return _case(dtype, lead, vocab, depth, kind, layout, options, seed)


def _case(
    dtype: str,
    lead: tuple[int, ...],
    vocab: int,
    depth: int,
    kind: str = "random",
    layout: str = "contiguous",
    options: dict[str, Any] | None = None,
    seed: int = 0,
) -> Case:
    sizes = {"vocab": vocab, "hidden": depth}
    return Case("linear_logp", dtype, lead, sizes, kind, layout, options or {}, seed)
