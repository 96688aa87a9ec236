# SPDX-License-Identifier: Apache-2.0
"""The sets of real_dialects.json: a system's own options, inputs, and what its source gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Set(NamedTuple):
    id: str
    framework: str
    options: dict[str, Any]  # the system's own
    rlk_options: dict[str, Any] | None  # of ppo_loss; None: it takes more than one call
    rlk_call: dict[str, Any]
    inputs: dict[str, np.ndarray]
    result: dict[str, Any]  # loss, grad, grad_entropy, metrics


def _value(value: Any, inputs: dict[str, np.ndarray]) -> Any:
    if isinstance(value, str) and value.startswith("@"):
        return inputs[value[1:]]
    return float(value) if value in ("inf", "-inf") else value


def _read(path: Path) -> list[Set]:
    found = []
    for one in json.loads(path.read_text())["sets"]:
        units = {k: np.array(v) for k, v in one["inputs"].items() if v is not None}
        inputs = {k: (v / 128).astype("f4") for k, v in units.items()}
        rlk = one["rlk_options"]
        if rlk is not None:
            rlk = {name: _value(value, inputs) for name, value in rlk.items()}
        call = one["rlk_call"] or {}
        found.append(Set(**{**one, "rlk_options": rlk, "rlk_call": call, "inputs": inputs}))
    return found


SETS = _read(Path(__file__).with_name("real_dialects.json"))
