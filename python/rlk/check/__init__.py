# SPDX-License-Identifier: Apache-2.0
"""The operator checker: kernels against a float64 oracle, bit for bit where bits must agree.

`rlk-check` on the command line, `rlk.check.run()` in Python; docs/checking.md explains both.
Needs NumPy alone; torch and ml_dtypes are used where a candidate asks for them.
"""

from __future__ import annotations

from .api import run
from .candidates import Misuse
from .contract import Contract, ContractError
from .report import Report
from .result import Result

__all__ = ["Contract", "ContractError", "Misuse", "Report", "Result", "run"]
