# SPDX-License-Identifier: Apache-2.0
"""Reading the configs of other systems: dataclasses, mappings and OmegaConf's."""

from __future__ import annotations

from typing import Any

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
