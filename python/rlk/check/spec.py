# SPDX-License-Identifier: Apache-2.0
"""What an op must tell the checker: one subclass of OpSpec, one file an op under specs/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import Case, Inputs
from .contract import Contract
from .oracle import Bounded
from .stored import Stored


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
    """Two inputs that differ in one option, which must change the result; where it asks for one
    more output, the gradients alone."""

    option: str
    without: Inputs
    with_option: Inputs
    gradients_alone: bool = False


@dataclass(frozen=True)
class Rejected:
    """Inputs that must raise, or give NaN in `row` (devices that cannot raise at once)."""

    label: str
    inputs: Inputs
    row: int


class OpSpec(ABC):
    """An op as the checker sees it. docs/checking.md walks through one."""

    name: str
    op_class: str  # of the contract; its gradients use op_class + "_grad"
    options: tuple[str, ...]  # arguments that a case may leave out
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
    adapters: Mapping[str, Adapter]
    torch_reference: Callable[..., Any]  # the op as a PyTorch user writes it: candidate `torch`

    @abstractmethod
    def plain_options(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """The option sets of a single case that names none."""

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

    @abstractmethod
    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """What a candidate is called with: arguments at their default are left out."""

    @abstractmethod
    def with_inactive_rows(self, inputs: Inputs, before: int, after: int) -> Inputs:
        """The same rows with inactive rows of garbage around them (lead becomes one dimension)."""

    @abstractmethod
    def scrambled(self, inputs: Inputs, rng: np.random.Generator) -> Inputs:
        """The same active rows with other content in the inactive ones."""

    @abstractmethod
    def without_skipping(self, inputs: Inputs) -> Inputs:
        """The same rows, said in the way that skips nothing."""

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
