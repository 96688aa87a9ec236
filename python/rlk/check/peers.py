# SPDX-License-Identifier: Apache-2.0
"""Other implementations of the ops as candidates by name: Liger, cut-cross-entropy, QuACK, verl and
torch.compile, each imported when it is asked for.

A maker returns a function with the op's arguments and options, as far as the package has them. What
the package has no argument for is done as its users do: a mask becomes ids that are ignored; where
nothing can be ignored, inactive rows get id 0 and their results are selected away.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from .candidates import Candidate, Misuse, make_framework
from .spec import Adapter, OpSpec
from .specs.linear_logp import torch_active
from .stored import Stored

Function = Callable[..., Any]
IGNORED = -100
ROWS = frozenset({"mask", "ignore_index"})  # options that every peer takes


@dataclass(frozen=True)
class Offer:
    """One op of a peer. `options` are the op's arguments that it takes, besides ROWS; `refuses`
    says which value of one of them it cannot take."""

    make: Callable[[], Function]
    options: frozenset[str] = frozenset()
    refuses: Callable[[Mapping[str, Any]], str | None] = lambda arguments: None


@dataclass(frozen=True)
class Peer:
    """`packages` are those whose versions a report names; pip installs `install`."""

    packages: tuple[str, ...]
    install: str
    ops: Mapping[str, Offer]
    devices: tuple[str, ...] = ("cuda",)
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext


def peer_ops(name: str) -> tuple[str, ...]:
    """The ops that a peer has, by names of rlk.jit."""
    return tuple(PEERS[name].ops)


def peer_candidate(spec: OpSpec, name: str, device: str) -> Candidate:
    """A peer's op. Raises Misuse where the peer lacks the op or is not installed."""
    peer, has = PEERS[name], peer_ops(name)
    if spec.name not in has:
        raise Misuse(f"op: expected {' or '.join(has)} for {name}, got {spec.name}")
    if device not in peer.devices:
        raise Misuse(f"device: expected {' or '.join(peer.devices)} for {name}, got {device}")
    offer, framework = peer.ops[spec.name], make_framework("torch", device)
    try:
        function = offer.make()
    except ImportError as error:
        raise Misuse(
            f"candidate: expected {peer.packages[0]} to be installed (pip install {peer.install}),"
            f" got {type(error).__name__}: {error}"
        ) from error
    adapter = Adapter(spec.adapters["by_name"].call, ROWS | offer.options, offer.refuses)
    made = Candidate(name, function, framework, adapter, packages=peer.packages, scope=peer.scope)
    made.survives_bad_ids = device == "cpu"  # on CUDA a bad id ends the context for good
    return made


# --- What the functions have in common ------------------------------------------------------------


class Tokens:
    """Rows and ids as peers take them, [N, ...] and int64 [N], and the way back.

    `ignored` is the id of inactive rows.
    """

    def __init__(
        self, rows: Any, target: Any, mask: Any, ignore_index: int | None, ignored: int
    ) -> None:
        self._shape = target.shape
        ids = target.long()
        self._active = torch_active(ids, mask, ignore_index)
        self.rows = rows.reshape(-1, rows.shape[-1])
        self.ids = ids.masked_fill(~self._active, ignored).reshape(-1)
        self.num_active = self._active.sum()

    def spread(self, values: Any) -> Any:
        """float32 of the target's shape, 0 in inactive rows."""
        import torch

        shaped = values.float().reshape(self._shape)
        return torch.where(self._active, shaped, torch.zeros_like(shaped))

    def results(self, log_probs: Any, entropy: Any) -> Any:
        """Log-probs, or with an entropy that is not None linear_logp's three outputs."""
        if entropy is None:
            return self.spread(log_probs)
        return self.spread(log_probs), self.spread(entropy), None

    def reduced(self, loss_sum: Any, reduction: str) -> Any:
        """A sum over tokens as linear_cross_entropy reduces it: the mean over no token is 0."""
        if reduction == "sum":
            return loss_sum.float()
        return loss_sum.float() / self.num_active.clamp(min=1)


def of_hidden(call: Function, ignored: int = IGNORED) -> Function:
    """The op's arguments around call(tokens, weight, bias=, ...): what it lacks is a TypeError."""

    def function(
        hidden: Any,
        weight: Any,
        target: Any,
        bias: Any = None,
        *,
        mask: Any = None,
        ignore_index: int | None = IGNORED,
        **options: Any,
    ) -> Any:
        given = options if bias is None else {**options, "bias": bias}
        return call(Tokens(hidden, target, mask, ignore_index, ignored), weight, **given)

    return function


def of_logits(call: Function, ignored: int = IGNORED) -> Function:
    """The same around call(tokens, ...)."""

    def function(
        logits: Any,
        target: Any,
        *,
        mask: Any = None,
        ignore_index: int | None = IGNORED,
        **options: Any,
    ) -> Any:
        return call(Tokens(logits, target, mask, ignore_index, ignored), **options)

    return function


def scalar_temperature(arguments: Mapping[str, Any]) -> str | None:
    return "a temperature a row" if isinstance(arguments.get("temperature"), Stored) else None


def one_sum(arguments: Mapping[str, Any]) -> str | None:
    return "reduction=none" if arguments.get("reduction") == "none" else None


def import_below(name: str) -> Any:
    """Imports a module without running its packages' own __init__, which want far more (Ray)."""
    top = name.split(".")[0]
    if top not in sys.modules:
        spec = importlib.util.find_spec(top)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"No module named {top!r}")
        folders = list(spec.submodule_search_locations)
        for package in (top, f"{top}.utils"):
            below = package.split(".")[1:]
            module = types.ModuleType(package)
            module.__path__ = ["/".join([folder, *below]) for folder in folders]
            sys.modules[package] = module
    return importlib.import_module(name)


# --- linear_logp ----------------------------------------------------------------------------------


def liger_linear_logp() -> Function:
    """Rows in chunks, logits of a chunk in the storage type; Triton's softmax over them."""
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    apply = module.LigerFusedLinearCrossEntropyFunction.apply

    def logp(t: Tokens, weight: Any, bias: Any = None, softcap: float | None = None) -> Any:
        # class weights, ignore_index, z-loss, label smoothing, reduction
        loss = apply(t.rows, weight, t.ids, bias, None, IGNORED, 0.0, 0.0, "none", softcap)[0]
        return t.spread(-loss)

    return of_hidden(logp)


def liger_cute_linear_logp() -> Function:
    """Liger's CuTe DSL kernel for sm_90; logits staged in fp16."""
    name = "liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90"
    apply = importlib.import_module(name).LigerFusedScaledCrossEntropySM90Function.apply

    def logp(t: Tokens, weight: Any, temperature: float = 1.0, return_entropy: bool = False) -> Any:
        found = apply(t.rows, weight, t.ids, temperature, IGNORED, 1, return_entropy)
        nll, entropy = found if return_entropy else (found, None)
        return t.results(-nll, entropy)

    return of_hidden(logp)


def cce_linear_logp(**filtering: None) -> Function:
    """CCE. Its default leaves small gradients out; filter_eps=None computes all."""
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy

    def logp(t: Tokens, weight: Any, softcap: float | None = None) -> Any:
        given = {"softcap": softcap, "reduction": "none", **filtering}
        return t.spread(-function(t.rows, weight, t.ids, **given))

    return of_hidden(logp)


def verl_linear_logp() -> Function:
    """verl's fused kernel, which computes the entropy as well."""
    apply = import_below("verl.utils.kernel.linear_cross_entropy").linear_cross_entropy
    import_below("verl.utils.kernel.kernels")  # wanted at the first call only: fail here

    def logp(t: Tokens, weight: Any, temperature: float = 1.0, return_entropy: bool = False) -> Any:
        log_probs, entropy = apply(t.rows, weight, t.ids, float(temperature), "none", None)
        return t.results(log_probs, entropy if return_entropy else None)

    return of_hidden(logp, ignored=0)


# --- logp -----------------------------------------------------------------------------------------


def liger_logp() -> Function:
    """Liger's cross entropy of logits, whose gradient takes the logits' place."""
    module = importlib.import_module("liger_kernel.ops.cross_entropy")
    apply = module.LigerCrossEntropyFunction.apply

    def logp(t: Tokens, softcap: float | None = None) -> Any:
        # class weights, ignore_index, z-loss, label smoothing, reduction
        return t.spread(-apply(t.rows, t.ids, None, IGNORED, 0.0, 0.0, "none", softcap)[0])

    return of_logits(logp)


def quack_logp() -> Function:
    """QuACK's cross entropy of logits."""
    function = importlib.import_module("quack.cross_entropy").cross_entropy

    def logp(t: Tokens) -> Any:
        return t.spread(-function(t.rows, t.ids, ignore_index=IGNORED, reduction="none"))

    return of_logits(logp)


# --- linear_cross_entropy -------------------------------------------------------------------------


def quack_linear_cross_entropy() -> Function:
    """QuACK's chunks of rows: exponentials that the gradients' products scale, or logits and their
    derivative in the storage type."""
    function = importlib.import_module("quack.linear_cross_entropy").chunked_linear_cross_entropy

    def loss(t: Tokens, weight: Any, reduction: str = "mean") -> Any:
        total = function(t.rows, weight, t.ids, ignore_index=IGNORED, reduction="sum")
        return t.reduced(total, reduction)

    return of_hidden(loss)


def cce_linear_cross_entropy(**filtering: None) -> Function:
    """CCE's sum."""
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy

    def loss(t: Tokens, weight: Any, softcap: float | None = None, reduction: str = "mean") -> Any:
        given = {"softcap": softcap, "reduction": "sum", **filtering}
        return t.reduced(function(t.rows, weight, t.ids, **given), reduction)

    return of_hidden(loss)


def liger_linear_cross_entropy() -> Function:
    """Liger's sum, whose gradients are made in the forward."""
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    apply = module.LigerFusedLinearCrossEntropyFunction.apply

    def loss(
        t: Tokens,
        weight: Any,
        bias: Any = None,
        softcap: float | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        lse_square_scale: float = 0.0,
    ) -> Any:
        more = (lse_square_scale, label_smoothing, "sum", softcap)
        total = apply(t.rows, weight, t.ids, bias, None, IGNORED, *more)[0]
        return t.reduced(total, reduction)

    return of_hidden(loss)


# --- torch.compile --------------------------------------------------------------------------------


def _rows_of_logits(
    logits: Any,
    ids: Any,
    temperature: Any = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    return_entropy: bool = False,
) -> Any:
    """log p and entropy of each row, in fp32."""
    import torch

    logits = logits.float() * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits / (temperature[:, None] if torch.is_tensor(temperature) else temperature)
    logp = torch.log_softmax(logits, -1)
    entropy = -(logp.exp() * logp).sum(-1) if return_entropy else None
    return logp.gather(-1, ids[:, None])[:, 0], entropy


def _of_rows(options: dict[str, Any]) -> dict[str, Any]:
    """A temperature's rows side by side, as those of the logits."""
    import torch

    heat = options.get("temperature")
    return {**options, "temperature": heat.reshape(-1)} if torch.is_tensor(heat) else options


def compiled_linear_logp() -> Function:
    """Logits in memory, from 16 bits widened before the softmax."""
    import torch

    @torch.compile
    def rows(hidden: Any, weight: Any, ids: Any, bias: Any, **options: Any) -> Any:
        logits = torch.nn.functional.linear(hidden, weight)
        logits = logits if bias is None else logits + bias
        return _rows_of_logits(logits, ids, **options)

    def logp(t: Tokens, weight: Any, bias: Any = None, **options: Any) -> Any:
        return t.results(*rows(t.rows, weight, t.ids, bias, **_of_rows(options)))

    return of_hidden(logp, ignored=0)


def compiled_logp() -> Function:
    """The same from logits."""
    import torch

    rows = torch.compile(_rows_of_logits)

    def logp(t: Tokens, **options: Any) -> Any:
        return t.results(*rows(t.rows, t.ids, **_of_rows(options)))

    return of_logits(logp, ignored=0)


def compiled_linear_cross_entropy() -> Function:
    """F.linear and F.cross_entropy in fp32."""
    import torch
    import torch.nn.functional as F

    @torch.compile
    def total(hidden: Any, weight: Any, ids: Any, bias: Any, smoothing: float) -> Any:
        logits = F.linear(hidden, weight)
        logits = logits if bias is None else logits + bias
        logits = logits.float()
        return F.cross_entropy(
            logits, ids, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )

    def loss(
        t: Tokens,
        weight: Any,
        bias: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        return t.reduced(total(t.rows, weight, t.ids, bias, label_smoothing), reduction)

    return of_hidden(loss)


def _never_eager() -> AbstractContextManager[Any]:
    """One process may hold many shapes: none of them shall fall back to eager in silence."""
    import torch._dynamo

    names = ("recompile_limit", "accumulated_recompile_limit")
    patched: AbstractContextManager[Any] = torch._dynamo.config.patch(dict.fromkeys(names, 1 << 20))
    return patched


# --- The table ------------------------------------------------------------------------------------


def _cce(**filtering: None) -> Peer:
    options = frozenset({"softcap"})
    return Peer(
        ("cut-cross-entropy", "triton"),
        "cut-cross-entropy",
        {
            "linear_logp": Offer(lambda: cce_linear_logp(**filtering), options),
            "linear_cross_entropy": Offer(
                lambda: cce_linear_cross_entropy(**filtering), options | {"reduction"}, one_sum
            ),
        },
    )


SCALED = frozenset({"temperature", "return_entropy"})
OF_LOGITS = SCALED | {"softcap", "logit_scale"}
PEERS: Mapping[str, Peer] = {
    "liger": Peer(
        ("liger-kernel", "triton"),
        "liger-kernel",
        {
            "linear_logp": Offer(liger_linear_logp, frozenset({"bias", "softcap"})),
            "logp": Offer(liger_logp, frozenset({"softcap"})),
            "linear_cross_entropy": Offer(
                liger_linear_cross_entropy,
                frozenset({"bias", "softcap", "reduction", "label_smoothing", "lse_square_scale"}),
                one_sum,
            ),
        },
    ),
    "liger_cute": Peer(
        ("liger-kernel", "nvidia-cutlass-dsl"),
        "liger-kernel nvidia-cutlass-dsl",
        {"linear_logp": Offer(liger_cute_linear_logp, SCALED, scalar_temperature)},
    ),
    "cce": _cce(),
    "cce_exact": _cce(filter_eps=None),
    "quack": Peer(
        ("quack-kernels", "nvidia-cutlass-dsl"),
        "quack-kernels",
        {
            "logp": Offer(quack_logp),
            "linear_cross_entropy": Offer(
                quack_linear_cross_entropy, frozenset({"reduction"}), one_sum
            ),
        },
    ),
    "verl": Peer(
        ("verl", "triton"),
        "verl",
        {"linear_logp": Offer(verl_linear_logp, SCALED, scalar_temperature)},
    ),
    "torch_compile": Peer(
        ("torch", "triton"),
        "torch",
        {
            "linear_logp": Offer(compiled_linear_logp, OF_LOGITS | {"bias"}),
            "logp": Offer(compiled_logp, OF_LOGITS),
            "linear_cross_entropy": Offer(
                compiled_linear_cross_entropy,
                frozenset({"bias", "reduction", "label_smoothing"}),
                one_sum,
            ),
        },
        ("cpu", "cuda"),
        _never_eager,
    ),
}
NAMES = tuple(PEERS)
