# SPDX-License-Identifier: Apache-2.0
"""Reading the configs of other systems: dataclasses, mappings and OmegaConf's."""

from __future__ import annotations

from typing import Any

from rlk._loss_options import as_float
from rlk.errors import fail

MISSING = "???"  # how OmegaConf and its users mark a value that is still to be given


def get(op: str, config: Any, name: str, default: Any) -> Any:
    """An attribute or a key of config: the last part of a dotted name; None counts as absent.

    Raises rlk.InvalidArgument, by the whole name, for a value that is still to be given.
    """
    key = name.rpartition(".")[2]
    try:
        value = getattr(config, key, None)
        if value is None and hasattr(config, "get"):
            value = config.get(key)
    except Exception as error:
        if type(error).__name__ != "MissingMandatoryValue":  # OmegaConf's
            raise
        value = MISSING
    if isinstance(value, str) and value == MISSING:
        expected = f"a value in the place of {MISSING}, which marks a missing one"
        fail(op, name, expected, repr(value))
    return default if value is None else value


def clip_low(value: Any) -> Any:
    """eps_clip_low of a system's clip: a ratio is above 0, so that any bound below is 0."""
    number = as_float(value)
    return value if number is None else min(number, 1.0)
