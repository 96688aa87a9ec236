# SPDX-License-Identifier: Apache-2.0
"""What must not change a row's bits, one function per transform. Nothing here has a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from .case import Case, Inputs, take_rows
from .checks import Measured, Session, call, determinism, expect_same
from .spec import OpSpec
from .stored import Stored, lay_out

Values = Mapping[str, Stored]  # by name: outputs and gradients, or upstream gradients
DEGREES = (1, 2, 4, 8)
BATCHES = (1, 2, 15, 16, 17, 63, 64, 65, 127)


class Scene:
    """Flattened inputs of a case, their upstream gradient, and what the candidate gives."""

    def __init__(self, session: Session, case: Case) -> None:
        self.session, self.case, spec = session, case, session.spec
        inputs = spec.build(case)
        self.all = np.arange(inputs.num_rows)
        upstream = spec.upstream(case, inputs)
        self.upstream = {n: _rows_of(g, len(inputs.lead), self.all) for n, g in upstream.items()}
        self.inputs = inputs.rows(self.all)
        self.active = spec.active(self.inputs)
        self.values = self.run(self.inputs, self.upstream)

    def run(self, inputs: Inputs, upstream: Values) -> Values:
        return call(self.session, self.case, inputs, upstream)

    def run_rows(self, index: np.ndarray) -> Values:
        return self.run(self.inputs.rows(index), self.upstream_rows(index))

    def upstream_rows(self, index: np.ndarray) -> Values:
        return {name: _rows_of(g, 1, index) for name, g in self.upstream.items()}

    def rows(self, values: Values, index: np.ndarray) -> Values:
        """Only what belongs to one row each, at these rows."""
        names = self.session.spec.row_outputs
        return {n: take_rows(v, 1, index) for n, v in values.items() if n in names}

    def sums(self, values: Values) -> Values:
        """Only what is summed over rows."""
        return {n: v for n, v in values.items() if n not in self.session.spec.row_outputs}

    def expect_rows(self, label: str, index: np.ndarray, got: Values, at: np.ndarray) -> None:
        """Rows `index` of this scene must be the rows `at` of `got`, bit for bit."""
        same(self.rows(self.values, index), self.rows(got, at), label)


def same(first: Values, second: Values, label: str) -> None:
    expect_same(first, second, "batch_variant", label)


def batch_size(scene: Scene) -> None:
    """How many rows stand beside it."""
    for rows in (n for n in BATCHES if n <= len(scene.all)):
        part = scene.all[:rows]
        scene.expect_rows(f"{rows} rows", part, scene.run_rows(part), part)
    for row in scene.all[:: max(1, len(scene.all) // 3)]:
        alone = np.array([row])
        scene.expect_rows(f"row {row} alone", alone, scene.run_rows(alone), np.array([0]))


def row_position(scene: Scene) -> None:
    """Where it stands in the batch."""
    shuffled = scene.case.rng("row_position").permutation(scene.all)
    for index in (scene.all[::-1], shuffled, np.roll(scene.all, 7)):
        scene.expect_rows("rows permuted", index, scene.run_rows(index), scene.all)


def neighbours(scene: Scene) -> None:
    """What the other rows hold."""
    even = scene.all % 2 == 0
    index = np.where(even, scene.all, (scene.all * 7 + 3) % len(scene.all))
    kept = scene.all[even]
    scene.expect_rows("other neighbours", kept, scene.run_rows(index), kept)
    for attempt in range(2):
        rng = scene.case.rng(f"neighbours/{attempt}")
        changed = scrambled(scene.session.spec, scene.inputs, rng)
        g = {n: _with_nan(one, ~scene.active) for n, one in scene.upstream.items()}
        same(scene.values, scene.run(changed, g), "other content in inactive rows")


def scrambled(spec: OpSpec, inputs: Inputs, rng: np.random.Generator) -> Inputs:
    """The same active rows with other content in the inactive ones."""
    active = spec.active(inputs)
    masked = spec.masked(inputs.rows(np.arange(inputs.num_rows)), active)
    return spec.with_garbage(masked, ~active, rng)


def padding(scene: Scene) -> None:
    """Inactive rows before and after."""
    rows = len(scene.all)
    for before, after in ((0, 5), (3, 0), (2, 131)):
        padded = scene.session.spec.with_inactive_rows(scene.inputs, before, after)
        index = np.arange(-before, rows + after).clip(0, rows - 1)
        got = scene.run(padded, scene.upstream_rows(index))
        label = f"{before} inactive rows before, {after} after"
        scene.expect_rows(label, scene.all, got, scene.all + before)
        same(scene.sums(scene.values), scene.sums(got), label)


def micro_batches(scene: Scene) -> None:
    """The rows in several calls."""
    rows = len(scene.all)
    for parts in (2, 3, rows // 8):
        for part in np.array_split(scene.all, max(parts, 1)):
            if part.size:
                got = scene.run_rows(part)
                scene.expect_rows(f"{parts} parts", part, got, np.arange(len(part)))


def active_alone(scene: Scene) -> None:
    """The active rows without the others."""
    index = np.flatnonzero(scene.active)
    got = scene.run_rows(index)
    scene.expect_rows("active rows alone", index, got, np.arange(len(index)))
    same(scene.sums(scene.values), scene.sums(got), "active rows alone")


def skipping(scene: Scene) -> None:
    """Nothing to skip, which gradients are asked for, grad mode."""
    spec, session = scene.session.spec, scene.session
    index = np.flatnonzero(scene.active)
    got = scene.run(without_skipping(spec, scene.inputs), scene.upstream_rows(index))
    scene.expect_rows("nothing skipped", index, got, np.arange(len(index)))
    same(scene.sums(scene.values), scene.sums(got), "nothing skipped")
    if not session.candidate.differentiates:
        return
    for needs in subsets(spec.needs(scene.inputs)):
        outcome = session.gradient(scene.inputs, scene.upstream, needs)
        label = f"gradients of {', '.join(needs)} alone"
        same({n: scene.values[n] for n in needs}, outcome.gradients, label)
        outputs = {n: scene.values[n] for n in spec.outputs_of(scene.inputs)}
        same(outputs, outcome.outputs, f"{label}: forward in grad mode")


def without_skipping(spec: OpSpec, inputs: Inputs) -> Inputs:
    """The active rows, said in the way that skips nothing."""
    dense = inputs.rows(np.flatnonzero(spec.active(inputs)))
    names = tuple(name for name in dense.row_names if name != spec.mask)
    skipping = dense.values.keys() & {spec.mask, "ignore_index"}
    return Inputs({**dense.values, **dict.fromkeys(skipping)}, dense.lead, names)


def layout(scene: Scene) -> None:
    """Strides, alignment and order in memory."""
    for kind in ("strided", "shifted", "transposed"):
        moved = {
            name: lay_out(np.ascontiguousarray(value.raw()), value.dtype, kind)
            for name, value in scene.inputs.values.items()
            if isinstance(value, Stored) and value.shape
        }
        g = {
            name: lay_out(np.array(one.raw(), order="C"), one.dtype, kind)
            for name, one in scene.upstream.items()
        }
        same(scene.values, scene.run(scene.inputs.but(**moved), g), kind)


def degrees(scene: Scene) -> None:
    """How many ranks share the vocabulary."""
    session = scene.session
    for degree in DEGREES:
        got = session.candidate.on_ranks(session.spec, scene.inputs, scene.upstream, degree)
        label = f"{degree} ranks and one device differ"
        expect_same(scene.values, got, "degree_variant", label)


def blocks(scene: Scene) -> None:
    """How many blocks a grid has."""
    candidate = scene.session.candidate
    set_blocks = candidate.set_blocks
    assert set_blocks is not None
    for count in candidate.blocks:
        set_blocks(count)
        try:
            got = scene.run(scene.inputs, scene.upstream)
        finally:
            set_blocks(0)
        same(scene.values, got, f"a grid for {count} multiprocessors")


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every proper subset that is not empty."""
    for bits in range(1, 2 ** len(names) - 1):
        yield tuple(name for i, name in enumerate(names) if bits >> i & 1)


def check(name: str) -> Callable[[Session, Case], Measured]:
    """The check that runs one transform by name."""
    if name == "determinism":
        return determinism
    function = TRANSFORMS[name]

    def run(session: Session, case: Case) -> Measured:
        function(Scene(session, case))
        return {}

    return run


TRANSFORMS: Mapping[str, Callable[[Scene], None]] = {
    transform.__name__: transform
    for transform in (
        batch_size,
        row_position,
        neighbours,
        padding,
        micro_batches,
        active_alone,
        skipping,
        layout,
        degrees,
        blocks,
    )
}


def _rows_of(upstream: Stored, num_lead: int, index: np.ndarray) -> Stored:
    """Rows of an upstream gradient; that of a scalar is one for all."""
    return take_rows(upstream, num_lead, index) if upstream.shape else upstream


def _with_nan(upstream: Stored, where: np.ndarray) -> Stored:
    if not upstream.shape:
        return upstream
    fresh = upstream.clone()
    fresh.raw()[where] = np.nan
    return fresh
