# SPDX-License-Identifier: Apache-2.0
"""What an op must tell the checker: one subclass of OpSpec, one file an op under specs/."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlk import jit
from rlk._rules import DEFAULTS, WORDS

from .case import Case, Inputs
from .contract import Contract
from .oracle import Bounded
from .stored import Stored, of


@dataclass(frozen=True)
class Expected:
    """Exact outputs with their bounds, and what the gradients' oracle goes on with."""

    outputs: Mapping[str, Bounded]
    state: Any


@dataclass(frozen=True)
class Adapter:
    """How a foreign function is called.

    `call(function, arguments)` returns the op's output or outputs; `options` are the arguments it
    can take, and cases that need others are listed as not applicable.
    """

    call: Callable[[Callable[..., Any], dict[str, Any]], Any]
    options: frozenset[str]


@dataclass(frozen=True)
class Liveness:
    """Two inputs that differ in one option, which must change what both calls give: all of it, or
    what `shows_in` names."""

    option: str
    without: Inputs
    with_option: Inputs
    shows_in: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Rejected:
    """Inputs that must raise, or give NaN in `row` (devices that cannot raise at once)."""

    label: str
    inputs: Inputs
    row: int


def options_of(op: str) -> dict[str, Any]:
    """The arguments that a call of rlk.jit's op may leave out, with their defaults: of its
    signature, and of the table of rules where it takes any of these. None: the dialect's."""
    function = getattr(jit, op)
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: p.default for p in parameters if p.default is not p.empty}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        rules = sorted(function.__globals__["OPTIONS"])
        found = {**{name: DEFAULTS.get(name) for name in rules}, **found}
    del found["stream"]
    return found


def yes_or_no(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"expected True or False, got {text}")
    return text == "True"


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}, got {text}")
        return text

    return parse


def parser_of(name: str, default: Any) -> Callable[[str], Any]:
    """Reads a value of an option from its text."""
    if isinstance(default, bool):
        return yes_or_no
    if name in WORDS:
        return one_of(*WORDS[name])
    if isinstance(default, (float, str)):
        return type(default)
    return int if name.startswith(("max_", "samples_", "global_", "ddof", "ignore_")) else float


class OpSpec(ABC):
    """An op as the checker sees it. docs/checking.md walks through one."""

    name: str
    mask = "mask"  # the argument that tells active rows
    op_class: str  # of the contract; its gradients use op_class + "_grad"
    defaults: Mapping[str, Any]  # of the arguments that a call may leave out: rlk.jit's own
    outputs: tuple[str, ...]  # the first is always there; see outputs_of
    output_options: frozenset[str] = frozenset()  # arguments that ask for the others
    grad_arguments: Mapping[str, str]  # output -> argument of `backward` for its gradient
    output_dtype: str = "float32"
    differentiable: tuple[str, ...]
    axes: Mapping[str, tuple[str, ...]]  # what the trailing dimensions of a value are called
    row_outputs: tuple[str, ...]  # outputs and gradients that are one row a row
    kinds: Mapping[str, str]  # input kind -> what it is for
    adversarial: tuple[str, ...]  # kinds of --input-mode adversarial
    forward_only: tuple[str, ...] = ()  # kinds without a defined gradient
    option_sets: Sequence[Mapping[str, Any]]  # every value of every option is in one of them
    option_values: Mapping[str, Callable[[str], Any]]  # a value from its text, or ValueError
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
    #: Options that no candidate but rlk's own is called with.
    rlk_alone: frozenset[str] = frozenset({"dialect", "cu_seqlens", "ref_logps"})
    more_adapters: Mapping[str, Adapter] = {}
    adapters: Mapping[str, Adapter]  # these, and `by_name`
    own_adapter: Adapter  # of rlk
    torch_reference: Callable[..., Any]  # the op as a PyTorch user writes it: candidate `torch`

    def __init_subclass__(cls) -> None:
        cls.defaults = options_of(cls.name)

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

    @abstractmethod
    def build(self, case: Case) -> Inputs:
        """The inputs of a case, from its seed alone."""

    @abstractmethod
    def upstream(self, case: Case, inputs: Inputs) -> Mapping[str, Stored]:
        """A random gradient of each output of these inputs, by name."""

    @abstractmethod
    def expected(
        self, case: Case, inputs: Inputs, contract: Contract, arch: str | None
    ) -> Expected:
        """Exact outputs and their bounds."""

    @abstractmethod
    def expected_gradients(
        self,
        case: Case,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        forward: Expected,
        contract: Contract,
        arch: str | None,
    ) -> Mapping[str, Bounded]:
        """Exact gradients of `needs(inputs)` and their bounds."""

    def outputs_of(self, inputs: Inputs) -> tuple[str, ...]:
        """The outputs that these inputs ask for; the others come as None."""
        return self.outputs

    def output_shape(self, inputs: Inputs, name: str) -> tuple[int, ...]:
        """The shape of an output: one value a row, unless the op says otherwise."""
        return inputs.lead

    def place_of_row(self, inputs: Inputs, name: str, index: tuple[int, ...]) -> dict[str, int]:
        """More about an index, such as the target id of a row."""
        return {}

    @abstractmethod
    def active(self, inputs: Inputs) -> np.ndarray:
        """Which of the flattened rows are active, bool [rows]."""

    @abstractmethod
    def needs(self, inputs: Inputs) -> tuple[str, ...]:
        """The inputs that have a gradient here."""

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """What a candidate is called with: arguments at their default are left out."""

        def is_default(name: str, value: Any) -> bool:
            defaults = self.defaults
            return name in defaults and not isinstance(value, Stored) and value == defaults[name]

        return {k: v for k, v in inputs.values.items() if not is_default(k, v)}

    def with_garbage(self, inputs: Inputs, where: np.ndarray, rng: np.random.Generator) -> Inputs:
        """Anything in the rows `where` (flat, bool), which the mask says are inactive."""
        raise NotImplementedError(f"{self.name} has no mask")

    def with_inactive_rows(self, inputs: Inputs, before: int, after: int) -> Inputs:
        """The same rows with inactive rows of garbage around them (lead becomes one dimension)."""
        rows = inputs.num_rows
        padded = inputs.rows(np.arange(-before, rows + after).clip(0, rows - 1))
        padding = np.ones(before + rows + after, bool)
        padding[before : before + rows] = False
        masked = self._masked(padded, self.active(padded) & ~padding)
        return self.with_garbage(masked, padding, np.random.default_rng(0))

    def scrambled(self, inputs: Inputs, rng: np.random.Generator) -> Inputs:
        """The same active rows with other content in the inactive ones."""
        active = self.active(inputs)
        masked = self._masked(inputs.rows(np.arange(inputs.num_rows)), active)
        return self.with_garbage(masked, ~active, rng)

    def without_skipping(self, inputs: Inputs) -> Inputs:
        """The same rows, said in the way that skips nothing."""
        dense = inputs.rows(np.flatnonzero(self.active(inputs)))
        names = tuple(name for name in dense.row_names if name != self.mask)
        skipping = dense.values.keys() & {self.mask, "ignore_index"}
        return Inputs({**dense.values, **dict.fromkeys(skipping)}, dense.lead, names)

    def _masked(self, inputs: Inputs, active: np.ndarray) -> Inputs:
        names = dict.fromkeys((*inputs.row_names, self.mask))
        return Inputs({**inputs.values, self.mask: of(active, "bool")}, inputs.lead, tuple(names))

    @abstractmethod
    def suite(self, dtype: str, specialized: bool, seed: int) -> list[Case]:
        """The cases of --all: few sizes where `specialized`, since each one compiles."""

    @abstractmethod
    def random_case(self, rng: np.random.Generator, seed: int) -> Case:
        """One case of any dtype, size, kind, layout and options."""

    def invariance_cases(self, dtype: str, seed: int) -> list[Case]:
        """Cases that the transforms run on."""
        return []

    def liveness(self, case: Case) -> list[Liveness]:
        """Pairs of inputs for the option-liveness check."""
        return []

    def rejected(self, case: Case) -> list[Rejected]:
        """Inputs that must not be accepted."""
        return []

    def rules(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Metamorphic rules by name; see rules.py."""
        return {}
