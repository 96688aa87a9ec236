# SPDX-License-Identifier: Apache-2.0
"""What is checked: rlk's own op, PyTorch's, or anybody's MODULE:FUNCTION."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
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
    the order of `needs`, or a named tuple that has them), else from torch's autograd.
    `variant` is what a kernel must have run as, `target` for what it is compiled, `describe` names
    the kernel that a call runs, and all calls happen inside `scope()`.
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
    survives_bad_ids: bool = True
    target: str | None = None
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def differentiates(self) -> bool:
        """Whether there is a way to ask for gradients at all."""
        return self.backward is not None or isinstance(self.framework, TorchFramework)

    def refuses(self, spec: OpSpec, inputs: Inputs) -> str | None:
        """The argument that the adapter cannot pass on, or None."""
        known = self.adapter.options
        names = [n for n in spec.arguments(inputs) if n in spec.options and n not in known]
        return names[0] if names else None

    def forward(self, spec: OpSpec, inputs: Inputs) -> Outcome:
        """One call without gradients. Raises Failure and nothing else."""
        call = self._given(spec.arguments(inputs), [4 * inputs.num_rows])
        shapes = dict.fromkeys(spec.outputs, inputs.lead)
        extra = {}
        if self._takes_out():
            out = [self.framework.poisoned(shapes[n], spec.output_dtype) for n in spec.outputs]
            extra["out"] = out[0] if len(out) == 1 else tuple(out)
        with _no_grad(self.framework):
            result = self._guarded("raised", lambda: self._call({**call.arguments, **extra}))
            self._errors()
        return Outcome(self._outputs(spec, result), {}, call.changed())

    def gradient(
        self,
        spec: OpSpec,
        inputs: Inputs,
        upstream: Stored,
        needs: tuple[str, ...],
        inspect_forward: Callable[[Outcome], None],
    ) -> Outcome:
        """Forward, `inspect_forward`, backward for the inputs `needs`. Raises Failure alone."""
        given = {**spec.arguments(inputs), "grad_output": upstream}
        call = self._given(given, [inputs[name].base.nbytes for name in needs])
        arguments = dict(call.arguments)
        grad_output = arguments.pop("grad_output")
        if self.backward is not None:
            backward = self.backward
            outcome = self.forward(spec, inputs)
            inspect_forward(outcome)
            result = self._guarded(
                "no_gradient", lambda: backward(grad_output, **arguments, needs=needs)
            )
            outputs = outcome.outputs
        elif isinstance(self.framework, TorchFramework):
            result, outputs = self._with_grad(spec, arguments, needs)
            inspect_forward(Outcome(outputs, {}, call.changed()))
            leaves = [arguments[name] for name in needs]
            result = self._differentiated(result, leaves, grad_output)
        else:
            raise Failure("no_gradient", "expected a `backward` or torch tensors, got neither")
        self._errors()
        return Outcome(outputs, self._gradients(needs, result), call.changed())

    def _with_grad(
        self, spec: OpSpec, arguments: dict[str, Any], needs: tuple[str, ...]
    ) -> tuple[Any, dict[str, Stored]]:
        """A call in grad mode: what it returned, and its outputs. `needs` become leaves."""
        import torch

        arguments |= {name: arguments[name].detach().requires_grad_() for name in needs}
        with torch.enable_grad():
            result = self._guarded("raised", lambda: self._call(arguments))
        return result, self._outputs(spec, result)

    def _differentiated(self, result: Any, leaves: list[Any], grad_output: Any) -> Any:
        import torch

        first = result[0] if isinstance(result, (tuple, list)) else result
        if not first.requires_grad:
            raise Failure("no_gradient", "the output does not require grad")
        return self._guarded(
            "no_gradient",
            lambda: torch.autograd.grad(first, leaves, grad_output, allow_unused=True),
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

    def _outputs(self, spec: OpSpec, result: Any) -> dict[str, Stored]:
        values = result if isinstance(result, (tuple, list)) else (result,)
        if len(values) != len(spec.outputs):
            raise Failure("arity", f"expected {len(spec.outputs)} outputs, got {len(values)}")
        return {n: self._take("", n, v) for n, v in zip(spec.outputs, values, strict=True)}

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

    return torch.no_grad()


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
    spec: OpSpec, path: str, device: str, framework: str | None, adapter: str | None
) -> Candidate:
    """MODULE:FUNCTION. The function may carry `framework`, `devices`, `adapter`, `backward`."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise Misuse(f"candidate: expected rlk, torch or MODULE:FUNCTION, got {path}")
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
    return Candidate(name, function, arrays, spec.adapters[chosen], backward)
