# SPDX-License-Identifier: Apache-2.0
"""What an op must tell the checker: one subclass of OpSpec, one file an op under specs/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import Case, Inputs, Liveness
from .contract import Coefficients
from .options import Parser, options_of, parsers
from .oracle import Expected
from .stored import FLOATS, LAYOUTS, Stored, encode, of

Array = np.ndarray
Changes = Mapping[str, Any]  # of a case, as Case.but takes them
RandomShape = tuple[tuple[int, ...], dict[str, int], dict[str, Any]]  # lead, sizes, options
WILD = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 200.0, 0.0, -1.0])


@dataclass(frozen=True)
class Adapter:
    """How a foreign function is called.

    `call(function, arguments)` returns the op's output or outputs; `options` are the arguments it
    can take, and `refuses(arguments)` says which value of one it cannot, if any. Cases that need
    others are listed as not applicable.
    """

    call: Callable[[Callable[..., Any], dict[str, Any]], Any]
    options: frozenset[str]
    refuses: Callable[[Mapping[str, Any]], str | None] = lambda arguments: None


class OpSpec(ABC):
    """An op as the checker sees it. docs/checking.md walks through one."""

    name: str
    op_class: str  # of the contract; its gradients use op_class + "_grad"
    torch_reference: Callable[..., Any]  # the op as a PyTorch user writes it: candidate `torch`

    # What goes in and what comes out.
    defaults: Mapping[str, Any]  # of the arguments that a call may leave out: rlk.jit's own
    row_inputs: tuple[str, ...]  # those that have one row a row, where they are given
    mask = "mask"  # the one that tells active rows
    ids: str | None = None  # the one of token ids, which ignore_index and the vocabulary are of
    float32_inputs: frozenset[str] = frozenset()  # whatever the case's dtype
    never_garbage: frozenset[str] = frozenset()  # row inputs that are read in inactive rows too
    outputs: tuple[str, ...]  # the first is always there; see outputs_of
    of_ids: tuple[str, ...] = ()  # those that are of one token id a row
    output_options: frozenset[str] = frozenset()  # arguments that ask for the others
    output_dtype: str = "float32"  # of most; see dtype_of_output
    grad_arguments: Mapping[str, str]  # output -> argument of `backward` for its gradient
    differentiable: tuple[str, ...]
    row_outputs: tuple[str, ...]  # outputs and gradients that are one row a row
    axes: Mapping[str, tuple[str, ...]]  # the trailing dimensions of a value, where it has some

    # The cases.
    sizes: tuple[str, ...] = ("vocab", "hidden")  # besides those of the rows
    kinds: Mapping[str, str]  # input kind -> what it is for
    adversarial: Sequence[str]  # all of them but the tame: kinds of --input-mode adversarial
    forward_only: tuple[str, ...] = ()  # kinds without a defined gradient
    option_sets: Sequence[Mapping[str, Any]]  # every value of every option is in one of them
    own_options: tuple[str, ...] = ()  # of a case besides the op's
    option_values: Mapping[str, Parser]  # a value from its text, or ValueError
    all_active: Mapping[str, Any] = {"ignored": 0}  # options that make every row active
    shapes: Sequence[Changes]  # lead and sizes: the first with every kind, layout and option set
    specialized_shapes: Sequence[Changes]  # few, since each one compiles
    specialized_most: int | None = None  # cases of a suite whose options compile too
    combinations: Sequence[Changes] = ()  # of the first shape, besides
    invariant: Sequence[Changes]  # cases that the transforms run on
    transforms: tuple[str, ...] = (  # of transforms.py, those that the op stands
        "batch_size",
        "row_position",
        "neighbours",
        "padding",
        "micro_batches",
        "active_alone",
        "determinism",
        "skipping",
        "layout",
    )
    over_ranks = False  # whether rlk's takes a vocabulary that ranks share

    # How it is called.
    #: Options that no candidate but rlk's own is called with.
    rlk_alone: frozenset[str] = frozenset({"dialect", "cu_seqlens", "ref_logps"})
    more_adapters: Mapping[str, Adapter] = {}
    adapters: Mapping[str, Adapter]  # these, and `by_name`
    own_adapter: Adapter  # of rlk

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "name"):  # what several ops have in common
            return
        cls.adversarial = adversarial(cls.kinds)
        cls.defaults = options_of(cls.name)
        cls.option_values = parsers(cls.defaults, cls.own_options)

        def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
            return cls.outputs_from(function(**arguments))

        cls.own_adapter = Adapter(call, frozenset(cls.defaults))
        by_name = Adapter(call, cls.own_adapter.options - cls.rlk_alone)
        cls.adapters = {"by_name": by_name, **cls.more_adapters}

    @staticmethod
    def outputs_from(result: Any) -> Any:
        """The output, or outputs, of what rlk.jit's op returns."""
        return result

    def plain_options(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """The option sets of a single case that names none."""
        return ({},)

    # --- Inputs ---------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, case: Case) -> dict[str, Any]:
        """Arguments by name, arrays in float64 before rounding, from the case's seed alone."""

    def build(self, case: Case) -> Inputs:
        """The inputs of a case: what is drawn, rounded and laid out, and its options."""
        values = {name: case.options.get(name, value) for name, value in self.defaults.items()}
        for name, value in self.draw(case).items():
            if isinstance(value, (np.ndarray, np.generic)):  # one row may come without an axis
                value = of(np.asarray(value), self.dtype_of(case, name), self.layout_of(case, name))
            values[name] = value
        names = tuple(n for n in self.row_inputs if isinstance(values.get(n), Stored))
        inputs = Inputs(values, self.lead_of(case), names)
        if case.kind == "garbage" and case.lead:
            return self.with_garbage(inputs, ~self.active_tokens(inputs), case.rng("garbage"))
        return inputs

    def lead_of(self, case: Case) -> tuple[int, ...]:
        """The shape of the rows."""
        return case.lead

    def dtype_of(self, case: Case, name: str) -> str:
        """The storage type of an input."""
        if name == self.mask:
            asked = str(case.options.get("mask", "bool"))
            return "bool" if asked == "none" else asked  # a kind may need a mask all the same
        if name == self.ids:
            return str(case.options.get("target", "int64"))
        return "float32" if name in self.float32_inputs else case.dtype

    def layout_of(self, case: Case, name: str) -> str:
        """Where an input lies in memory; inputs that must differ by row cannot be expanded."""
        return "contiguous" if case.layout == "expanded" else case.layout

    def upstream(self, case: Case, inputs: Inputs) -> Mapping[str, Stored]:
        """A random gradient of each output of these inputs, by name: normal values, one value for
        all in the layout `expanded`."""
        found = {}
        layout = "strided" if case.layout == "transposed" else case.layout
        for name in (n for n in self.outputs_of(inputs) if n in self.grad_arguments):
            rng, shape = case.rng(f"upstream of {name}"), self.output_shape(inputs, name)
            g = rng.normal(size=shape)
            if case.kind == "zero_upstream":
                g = np.where(rng.random(shape) < 0.5, 0.0, 100.0 * g)
            if layout == "expanded":
                g = np.full(shape, rng.normal())
            elif case.kind == "garbage" and name in self.row_outputs:
                g = np.where(self.active_tokens(inputs), g, np.nan)
            found[name] = of(g, "float32", layout)
        return found

    def outputs_of(self, inputs: Inputs) -> tuple[str, ...]:
        """The outputs that these inputs ask for; the others come as None."""
        return self.outputs

    def dtype_of_output(self, inputs: Inputs, name: str) -> str:
        """The dtype of an output."""
        return self.output_dtype

    def output_shape(self, inputs: Inputs, name: str) -> tuple[int, ...]:
        """The shape of an output: one value a row, or one."""
        return inputs.lead if name in self.row_outputs else ()

    def place_of_row(self, inputs: Inputs, name: str, index: tuple[int, ...]) -> dict[str, int]:
        """More about an index: the id of its token."""
        if self.ids is None or name not in self.of_ids:
            return {}
        return {"vocab": int(inputs[self.ids].raw()[index])}

    def vocab_of(self, inputs: Inputs) -> int:
        """How many ids there are."""
        return int(inputs[self.differentiable[0]].shape[-1])

    def active_tokens(self, inputs: Inputs) -> Array:
        """bool, of the shape of the ids, or of the rows."""
        active = np.ones(inputs[self.ids].shape if self.ids else inputs.lead, bool)
        mask = inputs.values.get(self.mask)
        if mask is not None:
            active &= mask.values() != 0
        if self.ids and inputs["ignore_index"] is not None:
            active &= inputs[self.ids].values() != inputs["ignore_index"]
        return active

    def active(self, inputs: Inputs) -> Array:
        """Which of the flattened rows are active, bool [rows]."""
        tokens = self.active_tokens(inputs)
        of_a_row = tuple(range(len(inputs.lead), tokens.ndim))
        return np.asarray(np.any(tokens, of_a_row)).reshape(-1)

    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        """The inputs that have a gradient here."""
        return tuple(name for name in self.differentiable if inputs[name] is not None)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """What a candidate is called with: arguments at their default are left out."""

        def is_default(name: str, value: Any) -> bool:
            defaults = self.defaults
            return name in defaults and not isinstance(value, Stored) and value == defaults[name]

        return {k: v for k, v in inputs.values.items() if not is_default(k, v)}

    # --- The oracle -----------------------------------------------------------------------------

    @abstractmethod
    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        """Exact outputs and gradients with their bounds."""

    # --- What the transforms do to inputs -------------------------------------------------------

    def with_garbage(self, inputs: Inputs, where: Array, rng: np.random.Generator) -> Inputs:
        """Anything in the tokens `where`, which are not active. An id that alone makes its token
        inactive stays; so does what shares its memory with another row."""
        mask = inputs.values.get(self.mask)
        counted = np.ones(where.shape, bool) if mask is None else mask.values() != 0
        changed = {}
        for name in inputs.row_names:
            old = inputs[name]
            if name == self.mask or name in self.never_garbage or 0 in (*old.shape, *old.strides):
                continue
            here = where & ~counted if name == self.ids else where
            fresh = old.clone()
            raw = fresh.raw()
            if old.dtype in FLOATS:
                wild = encode(rng.choice(WILD, size=old.shape), old.dtype)
            else:
                limits = np.iinfo(old.dtype)
                vocab = min(self.vocab_of(inputs), limits.max)
                ids = [limits.max, limits.min, limits.max // 2, vocab]
                wild = rng.choice(np.array(ids, old.dtype), size=old.shape)
            raw[...] = np.where(here.reshape(here.shape + (1,) * (raw.ndim - here.ndim)), wild, raw)
            changed[name] = fresh
        return inputs.but(**changed)

    def with_inactive_rows(self, inputs: Inputs, before: int, after: int) -> Inputs:
        """The same rows with inactive rows of garbage around them (lead becomes one dimension)."""
        rows = inputs.num_rows
        padded = inputs.rows(np.arange(-before, rows + after).clip(0, rows - 1))
        padding = np.ones(before + rows + after, bool)
        padding[before : before + rows] = False
        masked = self.masked(padded, self.active(padded) & ~padding)
        return self.with_garbage(masked, padding, np.random.default_rng(0))

    def masked(self, inputs: Inputs, active: Array) -> Inputs:
        """The same rows, of which these are active."""
        names = dict.fromkeys((*inputs.row_names, self.mask))
        return Inputs({**inputs.values, self.mask: of(active, "bool")}, inputs.lead, tuple(names))

    # --- Cases ----------------------------------------------------------------------------------

    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        """The cases of --all: every kind, layout and option set at one size, then the sizes."""
        first, *others = self.specialized_shapes if specialized else self.shapes
        base = Case(self.name, dtype, seed=seed, **first)
        found = [base.but(kind=kind) for kind in self.kinds]
        found += [base.but(layout=layout) for layout in LAYOUTS[1:]]
        found += [base.but(options=options) for options in self.option_sets if options]
        found += [base.but(**changes) for changes in self.combinations]
        found += [base.but(seed=seed + 1, **shape) for shape in others]
        return found[: self.specialized_most] if specialized else found

    @abstractmethod
    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        """Of a random case; the options are over those of a random set."""

    def sizes_of(self, **given: int) -> dict[str, int]:
        """Those of `given` that the op has."""
        return {name: given[name] for name in self.sizes}

    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        """One case of any dtype, size, kind, layout and options."""
        lead, sizes, more = self.random_shape(rng)
        options = {**self.option_sets[int(rng.integers(len(self.option_sets)))], **more}
        kind, layout, dtype = (str(rng.choice(list(x))) for x in (self.kinds, LAYOUTS, FLOATS))
        return Case(self.name, dtype, lead, sizes, kind, layout, options, seed)

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        """Cases that the transforms run on."""
        return [Case(self.name, dtype, seed=seed, **changes) for changes in self.invariant]

    def liveness(self, case: Case) -> list[Liveness]:
        """Pairs of inputs for the option-liveness check."""
        return []

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Metamorphic rules by name; see rules.py."""
        return {}


def adversarial(kinds: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(kind for kind in kinds if kind not in ("random", "benchmark", "constant"))
