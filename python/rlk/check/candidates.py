# SPDX-License-Identifier: Apache-2.0
"""What is checked: rlk's own op, PyTorch's, or anybody's MODULE:FUNCTION."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .case import Inputs
from .frameworks import Failure, Framework, NumpyFramework, TorchFramework
from .spec import Adapter, OpSpec
from .stored import Stored


class Misuse(ValueError):
    """A wrong argument of the checker itself; the command line exits 2 with this message."""


@dataclass(frozen=True)
class Outcome:
    """What one call gave. `changed` names inputs whose memory was written."""

    outputs: Mapping[str, Stored]
    gradients: Mapping[str, Stored] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


@dataclass
class Candidate:
    """A function with the op's arguments, and how to call it.

    Gradients come from `backward(grad_output, **arguments, needs=names)` where given (a tuple in
    the order of `needs`, or a named tuple that has them), else from torch's autograd. Of an op with
    more outputs, `backward` gets the others' gradients by name and no argument that asks for them.
    `over_ranks(num_ranks, arguments, grads, needs)` gives outputs and gradients by name, as so many
    ranks that share the vocabulary compute them, 1, 2, 4 or 8; see ranks.py. `set_blocks(count)`
    lets the transform `blocks` run, with each of `blocks`. `variant` is what a
    kernel must have run as, `target` for what it is compiled, `describe` names the kernel that a
    call runs, and all calls happen inside `scope()`.
    """

    name: str
    function: Callable[..., Any]
    framework: Framework
    adapter: Adapter
    backward: Callable[..., Any] | None = None
    variant: str | None = None
    describe: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    check_errors: Callable[[], None] | None = None
    set_threads: Callable[[int], None] | None = None
    set_blocks: Callable[[int], None] | None = None  # of a grid, about; 0: as it likes
    blocks: tuple[int, ...] = (1, 7, 132)
    survives_bad_ids: bool = True
    target: str | None = None
    over_ranks: Callable[..., Mapping[str, Any]] | None = None
    forward_only: bool = False  # whether it says itself that it has no gradient
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    packages: tuple[str, ...] = ()  # what it is made of, as pip names it, for the report

    @property
    def differentiates(self) -> bool:
        """Whether there is a way to ask for gradients at all."""
        return self.backward is not None or isinstance(self.framework, TorchFramework)

    def refuses(self, spec: OpSpec, inputs: Inputs) -> str | None:
        """The argument that the adapter cannot pass on, or None."""
        known, given = self.adapter.options, spec.arguments(inputs)
        names = [n for n in given if n in spec.defaults and n not in known]
        return names[0] if names else self.adapter.refuses(given)

    def forward(self, spec: OpSpec, inputs: Inputs) -> Outcome:
        """One call without gradients. Raises Failure and nothing else."""
        call = self._given(spec.arguments(inputs), [4 * inputs.num_rows])
        extra = {}
        if self._takes_out():
            names = spec.outputs_of(inputs)
            forms = [(spec.output_shape(inputs, n), spec.dtype_of_output(inputs, n)) for n in names]
            out = [self.framework.poisoned(shape, dtype) for shape, dtype in forms]
            extra["out"] = out[0] if len(out) == 1 else tuple(out)
        with _no_grad(self.framework):
            result = self._guarded("raised", lambda: self._call({**call.arguments, **extra}))
            self._errors()
        return Outcome(self._outputs(spec, inputs, result), {}, call.changed())

    def gradient(
        self,
        spec: OpSpec,
        inputs: Inputs,
        upstream: Mapping[str, Stored],
        needs: tuple[str, ...],
        inspect_forward: Callable[[Outcome], None],
    ) -> Outcome:
        """Forward, `inspect_forward`, backward for the inputs `needs`. Raises Failure alone."""
        grads = {spec.grad_arguments[name]: value for name, value in upstream.items()}
        given = {**spec.arguments(inputs), **grads}
        call = self._given(given, [inputs[name].base.nbytes for name in needs])
        arguments = dict(call.arguments)
        grad_outputs = [arguments.pop(name) for name in grads]
        if self.backward is not None:
            backward = self.backward
            outcome = self.forward(spec, inputs)
            inspect_forward(outcome)
            first, *others = grads
            others_by_name = {name: call.arguments[name] for name in others}
            same = {n: v for n, v in arguments.items() if n not in spec.output_options}
            result = self._guarded(
                "no_gradient",
                lambda: backward(call.arguments[first], **same, **others_by_name, needs=needs),
            )
            outputs = outcome.outputs
        elif isinstance(self.framework, TorchFramework):
            result, outputs = self._with_grad(spec, inputs, arguments, needs)
            inspect_forward(Outcome(outputs, {}, call.changed()))
            leaves = [arguments[name] for name in needs]
            named = self._named(spec, inputs, result)
            result = self._differentiated([named[name] for name in upstream], leaves, grad_outputs)
        else:
            raise Failure("no_gradient", "expected a `backward` or torch tensors, got neither")
        self._errors()
        return Outcome(outputs, self._gradients(needs, result), call.changed())

    def on_ranks(
        self, spec: OpSpec, inputs: Inputs, upstream: Mapping[str, Stored], num_ranks: int
    ) -> dict[str, Stored]:
        """Outputs and gradients of so many ranks. Raises Failure and nothing else."""
        grads = {spec.grad_arguments[name]: value for name, value in upstream.items()}
        arguments = self._given({**spec.arguments(inputs), **grads}, []).arguments
        given = {name: arguments.pop(name) for name in grads}
        needs, function = spec.needs(inputs), self.over_ranks
        assert function is not None
        with _no_grad(self.framework):
            found = self._guarded("raised", lambda: function(num_ranks, arguments, given, needs))
            self._errors()
        names = (*spec.outputs_of(inputs), *needs)
        missing = [name for name in names if found.get(name) is None]
        if missing:
            raise Failure("arity", f"{missing[0]}: expected a value on {num_ranks} ranks, got None")
        return {name: self._take("", name, found[name]) for name in names}

    def _with_grad(
        self, spec: OpSpec, inputs: Inputs, arguments: dict[str, Any], needs: tuple[str, ...]
    ) -> tuple[Any, dict[str, Stored]]:
        """A call in grad mode: what it returned, and its outputs. `needs` become leaves."""
        import torch

        arguments |= {name: arguments[name].detach().requires_grad_() for name in needs}
        with torch.enable_grad():
            result = self._guarded("raised", lambda: self._call(arguments))
        return result, self._outputs(spec, inputs, result)

    def _differentiated(self, outputs: list[Any], leaves: list[Any], grads: list[Any]) -> Any:
        import torch

        if not all(output.requires_grad for output in outputs):
            raise Failure("no_gradient", "an output does not require grad")
        return self._guarded(
            "no_gradient",
            lambda: torch.autograd.grad(outputs, leaves, grads, allow_unused=True),
        )

    def _given(self, arguments: Mapping[str, Any], poison: list[int]) -> _Call:
        """The arguments as arrays; on a device that a call has broken nothing can be copied."""

        def give() -> _Call:
            found = _Call(self.framework, arguments)
            self.framework.poison_memory(poison)
            return found

        made: _Call = self._guarded("raised", give)
        return made

    def _call(self, arguments: dict[str, Any]) -> Any:
        return self.adapter.call(self.function, arguments)

    def _errors(self) -> None:
        if self.check_errors is not None:
            self._guarded("raised", self.check_errors)

    def _guarded(self, kind: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Failure, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit(0) in a kernel must not end the check with 0
            raise Failure(kind, _said(error)) from error

    def _takes_out(self) -> bool:
        try:
            return "out" in inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            return False

    def _outputs(self, spec: OpSpec, inputs: Inputs, result: Any) -> dict[str, Stored]:
        named = self._named(spec, inputs, result)
        return {name: self._take("", name, value) for name, value in named.items()}

    def _named(self, spec: OpSpec, inputs: Inputs, result: Any) -> dict[str, Any]:
        """What was asked for: the first output alone, or all in order with None for the rest."""
        asked = spec.outputs_of(inputs)
        every = spec.outputs if len(asked) > 1 else asked
        values = result if isinstance(result, (tuple, list)) else (result,)
        if len(values) != len(every):
            raise Failure("arity", f"expected {len(every)} outputs, got {len(values)}")
        named = dict(zip(every, values, strict=True))
        for name in every:
            if (named[name] is not None) != (name in asked):
                what = "a value, got None" if name in asked else "None, got a value"
                raise Failure("arity", f"{name}: expected {what}")
        return {name: named[name] for name in asked}

    def _take(self, prefix: str, name: str, value: Any) -> Stored:
        try:
            return self.framework.take(value)
        except Exception as error:  # not an array, or one that cannot be read
            raise Failure(prefix + "dtype", f"{name}: {error}") from error

    def _gradients(self, needs: tuple[str, ...], result: Any) -> dict[str, Stored]:
        values = result if isinstance(result, (tuple, list)) else (result,)
        if hasattr(result, "_fields"):
            values = tuple(getattr(result, name) for name in needs if name in result._fields)
        if len(values) != len(needs):
            raise Failure("grad_arity", f"expected {len(needs)} gradients, got {len(values)}")
        found = {}
        for name, value in zip(needs, values, strict=True):
            if value is None:
                raise Failure("no_gradient", f"expected a gradient for {name}, got None")
            found[name] = self._take("grad_", name, value)
        return found


class _Call:
    """Arguments of one call, each a clone of its own, and the memory behind them."""

    def __init__(self, framework: Framework, arguments: Mapping[str, Any]) -> None:
        self._framework = framework
        self._given: dict[str, tuple[np.ndarray, Any]] = {}
        self.arguments: dict[str, Any] = {}
        for name, value in arguments.items():
            if isinstance(value, Stored):
                self.arguments[name], base = framework.give(value)
                self._given[name] = (value.base, base)
            else:
                self.arguments[name] = value

    def changed(self) -> tuple[str, ...]:
        """Names of arguments whose memory, gaps included, is not what it was."""

        def same(before: np.ndarray, base: Any) -> bool:
            after = self._framework.bits(base)
            return before.tobytes() == after.tobytes()

        return tuple(n for n, (before, base) in self._given.items() if not same(before, base))


def _said(error: BaseException) -> str:
    """Type and first line of an exception, whose text may itself raise."""
    try:
        text = str(error)
    except Exception:
        text = "an error without a text"
    return f"{type(error).__name__}: {text}".splitlines()[0]


def _no_grad(framework: Framework) -> AbstractContextManager[Any]:
    if not isinstance(framework, TorchFramework):
        return nullcontext()
    import torch

    context: AbstractContextManager[Any] = torch.no_grad()
    return context


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def make_framework(name: str | None, device: str) -> Framework:
    """The framework by name; torch where it is installed, else NumPy. Raises Misuse."""
    name = name or ("torch" if has_torch() else "numpy")
    if device not in ("cpu", "cuda"):
        raise Misuse(f"device: expected cpu or cuda, got {device}")
    if name == "numpy":
        if device != "cpu":
            raise Misuse(f"device: expected cpu with NumPy arrays, got {device}")
        return NumpyFramework()
    if name != "torch":
        raise Misuse(f"framework: expected torch or numpy, got {name}")
    if not has_torch():
        raise Misuse("framework: expected torch to be installed, got no such package")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise Misuse("device: expected a CUDA device that torch can use, got none")
    return TorchFramework(device)


def torch_candidate(spec: OpSpec, device: str) -> Candidate:
    """The op as a PyTorch user writes it."""
    if not has_torch():
        raise Misuse("candidate: expected torch to be installed, got no such package")
    framework = make_framework("torch", device)
    made = Candidate("torch", spec.torch_reference, framework, spec.adapters["by_name"])
    made.survives_bad_ids = device == "cpu"  # on CUDA a bad id ends the context for good
    return made


def foreign_candidate(
    spec: OpSpec,
    path: str,
    device: str,
    framework: str | None,
    adapter: str | None,
    named: Sequence[str] = ("rlk", "torch"),
) -> Candidate:
    """MODULE:FUNCTION. The function may carry `framework`, `devices`, `adapter`, `backward`.
    `named` are those that have a name instead."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise Misuse(f"candidate: expected {', '.join(named)} or MODULE:FUNCTION, got {path}")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a module does at import, sys.exit(0) included
        raise Misuse(f"candidate: expected an importable {path}, got {_said(error)}") from error
    return from_function(spec, path, found, device, framework, adapter)


def from_function(
    spec: OpSpec,
    name: str,
    found: Any,
    device: str = "cpu",
    framework: str | None = None,
    adapter: str | None = None,
) -> Candidate:
    """A candidate from a callable, or from an object with `.forward` that is not callable."""
    devices = getattr(found, "devices", (device,))
    if device not in devices:
        raise Misuse(f"device: expected {' or '.join(devices)} for {name}, got {device}")
    function = found if callable(found) else getattr(found, "forward", None)
    if not callable(function):
        raise Misuse(f"candidate: expected a callable or an object with forward, got {name}")
    chosen = str(adapter or getattr(found, "adapter", "by_name"))
    if chosen not in spec.adapters:
        raise Misuse(f"adapter: expected one of {', '.join(spec.adapters)}, got {chosen}")
    arrays = make_framework(framework or getattr(found, "framework", None), device)
    backward = getattr(found, "backward", None)
    made = Candidate(name, function, arrays, spec.adapters[chosen], backward)
    made.over_ranks = getattr(found, "over_ranks", None)
    made.set_blocks = getattr(found, "set_blocks", None)
    return made
