# SPDX-License-Identifier: Apache-2.0
"""Options of an op: their defaults, and a value from its text, as a case prints it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlk import jit
from rlk._ops.common import PARAMETERS
from rlk._ops.linear_loss import HEAD
from rlk._rules import WORDS, advantage_rules

from . import loss_oracle

Parser = Callable[[str], Any]

# What rlk's own dialect makes of an option that is not given.
_RULES: Mapping[str, Any] = {**loss_oracle.DEFAULTS, **vars(advantage_rules("rlk"))}
_TENSORS = {
    n for table in PARAMETERS.values() for n, (kind, _) in table.items() if kind == "tensor"
}.union(f"ref_{name}" for name in HEAD)


def options_of(op: str) -> dict[str, Any]:
    """The arguments that a call of rlk.jit's op may leave out, with their defaults: of its
    signature, and of the table of rules where it takes any of these."""
    function = getattr(jit, op)
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: p.default for p in parameters if p.default is not p.empty}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        found = {**dict.fromkeys(sorted(function.__globals__["OPTIONS"])), **found}
    del found["stream"]
    return {name: _RULES.get(name) if value is None else value for name, value in found.items()}


def parsers(defaults: Mapping[str, Any], own: tuple[str, ...]) -> dict[str, Parser]:
    """Of each option that is no tensor, and of a case's `own`."""
    names = [name for name in defaults if name not in _TENSORS and name not in own]
    return {name: _parser_of(name, defaults.get(name)) for name in (*names, *own)}


def _parser_of(name: str, default: Any) -> Parser:
    if name in _PARSERS:
        return _PARSERS[name]
    if isinstance(default, bool):
        return _yes_or_no
    if name in WORDS:
        return _one_of(*WORDS[name])
    if isinstance(default, (float, str)):
        return type(default)
    return int if name.startswith(("max_", "samples", "global_", "ddof")) else float


def _yes_or_no(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"expected True or False, got {text}")
    return text == "True"


def _one_of(*allowed: str) -> Parser:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}, got {text}")
        return text

    return parse


def _number_above(least: float, expected: str, *words: str) -> Parser:
    """A finite number that fp32 holds, or one of the words."""

    def parse(text: str) -> float | str:
        if text in words:
            return text
        try:
            value = float(text)
        except ValueError:
            value = np.nan
        with np.errstate(over="ignore"):
            in_fp32 = np.float32(value)
        if not least < in_fp32 < np.inf:
            raise ValueError(f"expected {' or '.join((expected, *words))}, got {text}")
        return value

    return parse


def _ignore_index(text: str) -> int | None:
    try:
        return None if text in ("none", "None") else int(text)
    except ValueError:
        raise ValueError(f"expected a whole number or none, got {text}") from None


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
_PARSERS: Mapping[str, Parser] = {
    "bias": _one_of("none", "same", "float32"),
    "out_dtype": _one_of("float32"),
    "temperature": _number_above(0.0, "a number above 0", "row"),
    "softcap": _number_above(0.0, "a number above 0"),
    "logit_scale": _number_above(-np.inf, "a number"),
    "mask": _one_of("none", "bool", *_INTEGERS, "float32", "float16"),
    "target": _one_of(*_INTEGERS),
    "ignore_index": _ignore_index,
    "loss_weights": _yes_or_no,
    "importance_weights": _yes_or_no,
    "kl": _one_of(*WORDS["kl_estimator"]),
}
