# SPDX-License-Identifier: Apache-2.0
"""The accuracy contract: coefficients of every bound, by op class, dtype and target."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FORMAT = 1
DTYPES = ("float32", "float16", "bfloat16")
DEFAULT_PATH = Path(__file__).with_name("contract.json")

TARGET = re.compile(r"x86-64-v[2-4]|(sm|compute)_\d+[a-z]?")
ANY = "any"  # in place of a dtype: what holds for all three
#: The coefficients of a bound, by op class and dtype.
Coefficients = Callable[[str, str], Mapping[str, float]]

_CHAIN = {"chain_slope", "chain_constant", "chain_unit"}
_STORE = {"store_rtol", "store_atol"}

# What each op class must give for each dtype: no more, no less.
COEFFICIENTS: Mapping[str, frozenset[str]] = {
    name: frozenset(keys)
    for name, keys in {
        "logprob": {"atol", "rtol", "option_constant", "chain_unit"},
        "logprob_grad": {"upstream_atol", "rtol", "underflow", "slope_atol"} | _STORE,
        "linear_logprob": {"atol", "rtol", "benchmark_atol", "option_constant"} | _CHAIN,
        "linear_logprob_grad": {"factor_rtol", "probability_floor", "underflow", "slope_atol"}
        | {"shifted_atol"}
        | _STORE
        | _CHAIN,
        "ratio": {"rtol", "logits_rtol"},
        "kl": {"atol", "rtol", "logits_expm1_rtol"},
        "product": _STORE | _CHAIN,
        "advantages": {"rtol"},
        "reduction": {"weight_sum_rtol"},
        "reduction_grad": {"rtol"} | _STORE,
    }.items()
}


class ContractError(ValueError):
    """The contract file breaks its schema; the message names the place."""


@dataclass(frozen=True)
class Contract:
    """A contract that passed its schema check."""

    classes: Mapping[str, Mapping[str, Mapping[str, float]]]
    arch_overrides: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
    digest: str

    def coefficients(self, op_class: str, dtype: str, arch: str | None = None) -> dict[str, float]:
        """The bound's coefficients, those of `arch` laid over the common ones; an override's
        name may be a pattern of targets, like sm_*, and later ones count.

        Raises ContractError for an unknown class or dtype.
        """
        if op_class not in self.classes:
            raise ContractError(
                f"contract: class: expected one of {_words(self.classes)}, got {op_class}"
            )
        if dtype not in self.classes[op_class]:
            raise ContractError(
                f"contract: {op_class}: expected one of {_words(DTYPES)}, got {dtype}"
            )
        merged = dict(self.classes[op_class][dtype])
        for pattern, override in self.arch_overrides.items():
            if fnmatchcase(arch or "", pattern):
                merged.update(override.get(op_class, {}).get(dtype, {}))
        return merged

    def knows(self, arch: str) -> bool:
        """Whether it is named as a target is, or has an override of its own here."""
        return arch in self.arch_overrides or TARGET.fullmatch(arch) is not None


def load(path: Path | str = DEFAULT_PATH) -> Contract:
    """Reads and checks a contract file; raises ContractError naming what is missing or wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        document = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"contract: {path}: expected a file of JSON, got {error}") from error
    check_schema(document)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    classes = {
        name: {dtype: _of_dtype(by_dtype, dtype) for dtype in DTYPES}
        for name, by_dtype in document["classes"].items()
    }
    return Contract(classes, document["arch_overrides"], digest)


def check_schema(document: Any) -> None:
    """Raises ContractError at the first place where `document` is no complete contract."""
    top = _object(document, "file")
    _same_keys(top, {"format", "invariance", "classes", "arch_overrides"}, "file")
    if top["format"] != FORMAT:
        raise ContractError(f"contract: format: expected {FORMAT}, got {top['format']!r}")
    if top["invariance"] != {"atol": 0, "rtol": 0}:
        raise ContractError(f"contract: invariance: expected 0/0, got {top['invariance']!r}")
    classes = _object(top["classes"], "classes")
    _same_keys(classes, set(COEFFICIENTS), "classes")
    for name, by_dtype in classes.items():
        for dtype, values in _object(by_dtype, name).items():
            _known(dtype, (*DTYPES, ANY), name)
            _numbers(_object(values, f"{name}.{dtype}"), f"{name}.{dtype}")
        for dtype in DTYPES:
            _same_keys(_of_dtype(by_dtype, dtype), set(COEFFICIENTS[name]), f"{name}.{dtype}")
    for arch, overrides in _object(top["arch_overrides"], "arch_overrides").items():
        for name, by_dtype in _object(overrides, f"arch_overrides.{arch}").items():
            _known(name, COEFFICIENTS, f"arch_overrides.{arch}")
            for dtype, values in _object(by_dtype, f"arch_overrides.{arch}.{name}").items():
                where = f"arch_overrides.{arch}.{name}.{dtype}"
                _known(dtype, DTYPES, f"arch_overrides.{arch}.{name}")
                for key in _object(values, where):
                    _known(key, COEFFICIENTS[name], where)
                _numbers(values, where)


def _of_dtype(by_dtype: Mapping[str, Mapping[str, float]], dtype: str) -> dict[str, float]:
    return {**by_dtype.get(ANY, {}), **by_dtype.get(dtype, {})}


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ContractError(f"contract: {where}: expected an object, got {type(value).__name__}")
    return value


def _same_keys(value: Mapping[str, Any], expected: set[str], where: str) -> None:
    missing, unknown = expected - set(value), set(value) - expected
    if missing:
        raise ContractError(f"contract: {where}: expected {_words(missing)}, got nothing")
    if unknown:
        raise ContractError(
            f"contract: {where}: expected {_words(expected)}, got {_words(unknown)}"
        )


def _known(name: str, allowed: Any, where: str) -> None:
    if name not in allowed:
        raise ContractError(f"contract: {where}: expected one of {_words(allowed)}, got {name}")


def _numbers(values: Mapping[str, Any], where: str) -> None:
    for key, value in values.items():
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value < 0:
            raise ContractError(f"contract: {where}.{key}: expected a number >= 0, got {value!r}")


def _words(names: Any) -> str:
    return ", ".join(sorted(names))
