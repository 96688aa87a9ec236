# SPDX-License-Identifier: Apache-2.0
"""The ops as operators of torch, `torch.ops.rlk`: what torch.compile, torch.export, make_fx and
torch.func see of a call. Other calls take none of this: an operator costs more time.

Of each op there is a public operator, with the arguments of the function in `rlk.jit`. It is made
of private ones: those run the kernels, have a fake implementation each and no derivative.

torch keeps compiled graphs on disk, under keys that say which operators are called by their names
alone. So private names end in a digest of all that such a graph takes for granted, and calls that
are compiled go to a private twin of the public operator. Exported programs, which are to be loaded
by other versions too, have the public name.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import flop_registry, register_flop_formula

from rlk import _core
from rlk._ops.common import PARAMETERS, Arguments
from rlk._ops.torch_common import Function, refuse_vmap
from rlk.errors import fail

_LIBRARY = torch.library.Library("rlk", "FRAGMENT")


def _digest() -> str:
    """Of this version's schemas, and of how its operators call each other."""
    hashed = hashlib.sha256(repr((_core.__version__, PARAMETERS)).encode())
    package = Path(__file__).parents[1]
    for source in sorted((*package.glob("*.py"), *package.glob("_ops/*.py"))):
        hashed.update(source.read_bytes())
    return hashed.hexdigest()[:8]


_DIGEST = _digest()


def _mark_caches() -> None:
    """Where a call by a public name is compiled, its graph's key gets the digest by the tag that
    torch adds to every key."""
    config: Any = torch.compiler.config
    if torch._guards.TracingContext.try_get() is not None and _DIGEST not in config.cache_key_tag:
        config.cache_key_tag += f"rlk-{_DIGEST}"


#: torch's own, which torch.compile of torch 2.11 takes for True where it follows it.
is_exporting: Callable[[], bool] = torch.compiler.assume_constant_result(
    lambda: torch.compiler.is_exporting()
)


#: What a parameter of a function is in a schema, by its annotation: its type, and where it may be
#: of another type the argument that it is then: NAME_tensor, NAME_pair.
_TYPES: dict[str, tuple[str, str]] = {
    "Any": ("str?", ""),  # a dtype's name
    "Tensor": ("Tensor", ""),
    "Tensor | None": ("Tensor?", ""),
    "Tensor | str | None": ("Tensor?", ""),  # a name is of a tensor that has been looked up
    "bool": ("bool", ""),
    "bool | None": ("bool?", ""),
    "float": ("float", ""),
    "float | None": ("float?", ""),
    "float | Tensor": ("float", "Tensor? {}_tensor"),
    "float | tuple[float, float]": ("float[]", ""),  # one number or two
    "float | tuple[float, float] | None": ("float[]?", ""),
    "int | None": ("int?", ""),
    "int | Tensor | None": ("int?", "Tensor? {}_tensor"),
    "str": ("str", ""),
    "str | None": ("str?", ""),
    "str | tuple[float, float] | None": ("str?", "float[]? {}_pair"),
}


# No operator takes adapters, nor has collectives in it.
_LEFT_OUT = ("needs", "lora", "group", "vocab_range", "vocab_size", "sequence_parallel")


def words_of(function: Callable[..., Any], options: Sequence[tuple[str, str]] = ()) -> list[str]:
    """A function's parameters as those of a schema; `options`: name and annotation of those that it
    takes by ``**``, None by default."""
    words: list[str] = []
    none = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(n, none, default=None, annotation=kind) for n, kind in options]
    for parameter in (*inspect.signature(function).parameters.values(), *more):
        if parameter.name in _LEFT_OUT or parameter.kind is parameter.VAR_KEYWORD:
            continue
        kind, other = _TYPES[parameter.annotation]
        default = ""
        if parameter.default is not parameter.empty:
            value = parameter.default
            shown = f'"{value}"' if isinstance(value, str) else repr(value)
            default = f"=[{shown}]" if kind == "float[]" else f"={shown}"
        words.append(f"{kind} {parameter.name}{default}")
        if other:
            words.append(f"{other.format(parameter.name)}=None")
    return words


class Operator:
    """One operator, called with arguments by name. `op`: whose errors are its, `words`: of its
    schema, `written`: the tensor that it writes to. A name that begins with _ is private."""

    def __init__(
        self, name: str, op: str, words: Sequence[str], returns: str, written: str | None = None
    ) -> None:
        self.op = op
        if written is not None:
            words = [word.replace(f"? {written}=", f"(a!)? {written}=") for word in words]
        self.name = f"_{name.removeprefix('_')}_{_DIGEST}"
        self.run = self._define(self.name, words, returns)
        self.public_name = None if name.startswith("_") else name
        self.exported = self._define(self.public_name, words, returns) if self.public_name else None
        of_schema = self.run._schema.arguments
        self.names = tuple(argument.name for argument in of_schema)
        self.defaults = {a.name: a.default_value for a in of_schema if a.has_default_value()}
        self.others = {
            name: (f"{name}_{kind}", kind)
            for name in self.names
            for kind in ("tensor", "pair")
            if f"{name}_{kind}" in self.names
        }
        self.bounds = tuple(
            argument.name
            for argument in of_schema
            if str(argument.type).endswith(("List[float]", "Optional[List[float]]"))
            and not argument.name.endswith("_pair")
        )

    @staticmethod
    def _define(name: str, words: Sequence[str], returns: str) -> Any:
        _LIBRARY.define(f"{name}({', '.join(words)}) -> {returns}")
        return getattr(torch.ops.rlk, name).default

    def __call__(self, arguments: Arguments) -> Any:
        given = {name: value for name, value in arguments.items() if name in self.names}
        for name, (other, kind) in self.others.items():
            value = given.get(name)
            if isinstance(value, torch.Tensor if kind == "tensor" else (tuple, list)):
                given[other] = given.pop(name)
        for name in self.bounds:
            value = given.get(name)
            if value is not None and not isinstance(value, (tuple, list)):
                given[name] = [value]
        for name in ("out_dtype", "compute_dtype"):
            if isinstance(given.get(name), torch.dtype):
                given[name] = str(given[name]).removeprefix("torch.")
        if self.exported is not None and is_exporting():
            return self.exported(**given)
        return self.run(**given)

    def arguments(self, args: Sequence[Any], kwargs: Arguments) -> Arguments:
        """By name, of what the dispatcher gives: it leaves out what is the schema's default."""
        found = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
        for name, (other, kind) in self.others.items():
            value = found.pop(other)
            if value is not None:
                found[name] = value if kind == "tensor" else tuple(value)
        for name in self.bounds:
            value = found[name]
            if value is not None:
                found[name] = value[0] if len(value) == 1 else tuple(value)
        return found

    def is_kernel(self, run: Callable[[Arguments], Any], fake: Callable[[Arguments], Any]) -> None:
        """`run` computes, `fake` makes results of the shapes and dtypes that it would give."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            return run(self.arguments(args, kwargs))

        def meta(*args: Any, **kwargs: Any) -> Any:
            return fake(self.arguments(args, kwargs))

        def batched(*_: Any, **__: Any) -> NoReturn:
            refuse_vmap(self.op)

        _LIBRARY.impl(self.name, kernel, "CPU")
        _LIBRARY.impl(self.name, kernel, "CUDA")
        _LIBRARY._register_fake(self.name, meta)
        _LIBRARY.impl(self.name, batched, "FuncTorchBatched")
        # No derivative is here, so torch need not look for one: half of a call's time.
        _LIBRARY.impl(self.name, torch.library.fallthrough_kernel, "Autograd")
        if not self.run._schema.is_mutable:
            _LIBRARY.impl(self.name, torch.library.fallthrough_kernel, "ADInplaceOrView")

    def counts(self, flops: Callable[[Arguments], int]) -> None:
        """`flops`: what FlopCounterMode counts for a call, of the shapes of its tensors."""

        def count(*args: Any, out_shape: Any = None, **kwargs: Any) -> int:
            return flops(self.arguments(args, kwargs))

        packet = self.run.overloadpacket
        register_flop_formula(packet)(count)
        for mode in _get_current_dispatch_mode_stack():  # a FlopCounterMode has formulas of its own
            own = getattr(getattr(mode, "counter", None), "flop_registry", {})
            own[packet] = flop_registry[packet]

    def is_composite(self, call: Callable[[Arguments], Any]) -> None:
        """`call` makes it of other operators and torch's autograd."""

        def composite(*args: Any, **kwargs: Any) -> Any:
            return call(self.arguments(args, kwargs))

        def by_public_name(*args: Any, **kwargs: Any) -> Any:
            _mark_caches()
            return composite(*args, **kwargs)

        for name, run in ((self.name, composite), (self.public_name, by_public_name)):
            _LIBRARY.impl(name, run, "CompositeImplicitAutograd")
            # Before a transform of torch.func takes it apart: autograd.Function asks for it whole.
            _LIBRARY.impl(name, run, "FuncTorchDynamicLayerFrontMode")


class Rules(NamedTuple):
    """What is differentiated, and how: `forward` gives the outputs of arguments, and where told so
    what a backward needs, `save` keeps that in a context of autograd for `backward`."""

    op: str
    forward: Callable[[Arguments, bool], tuple[Any, ...]]
    save: Callable[[Any, Arguments, tuple[Any, ...]], None]
    backward: Callable[..., tuple[Any, ...]]


class _Differentiable(Function):
    @staticmethod
    def forward(op: str, rules: Rules, arguments: Arguments, *operands: Any) -> Any:
        return rules.forward(arguments, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.op, ctx.rules, arguments = inputs[:3]
        ctx.set_materialize_grads(False)  # an output that the loss has not has no gradient
        ctx.rules.save(ctx, arguments, output)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return None, None, None, *ctx.rules.backward(ctx, ctx.needs_input_grad[3:], *upstream)


def differentiable(rules: Rules, arguments: Arguments, *operands: Any) -> tuple[Any, ...]:
    """The outputs of rules.forward, with a gradient of those operands that need one."""
    needs = (operand is not None and operand.requires_grad for operand in operands)
    if torch.is_grad_enabled() and any(needs):
        outputs: tuple[Any, ...] = _Differentiable.apply(rules.op, rules, arguments, *operands)
        return outputs
    return rules.forward(arguments, False)


def is_known(condition: Any) -> bool:
    """Whether a condition holds for sure, also one of symbolic sizes, of which nothing is asked."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def expect_shape(op: str, name: str, tensor: Any, expected: Sequence[Any], of: str) -> None:
    """Where a fake implementation can tell; kernels look at real tensors again."""
    got = tuple(tensor.shape)
    differs = len(got) != len(expected) or any(
        is_known(one != other) for one, other in zip(got, expected, strict=True)
    )
    if differs:
        fail(op, name, f"shape {list(expected)} ({of})", list(got))
