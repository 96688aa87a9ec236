# SPDX-License-Identifier: Apache-2.0
"""rlk: kernels for reinforcement learning of language models, specialized at run time.

    import rlk
    log_probs = rlk.jit.linear_logp(hidden, weight, target)

Importing needs NumPy only: no driver is touched, no folder made, PyTorch is not imported.
"""

try:
    from rlk._core import Array, __version__
except ModuleNotFoundError as error:
    import sys
    from pathlib import Path

    _found = sorted(path.name for path in Path(__file__).parent.glob("_core.*.so"))
    raise ImportError(
        f"rlk: expected a Python that this installation has a compiled module for "
        f"({', '.join(_found) or 'there is none'}), got {sys.implementation.cache_tag}"
    ) from error

from rlk import jit, losses
from rlk.errors import (
    CompileError,
    DriverError,
    Error,
    InvalidArgument,
    LoadError,
    Unsupported,
)

__all__ = [
    "Array",
    "CompileError",
    "DriverError",
    "Error",
    "InvalidArgument",
    "LoadError",
    "Unsupported",
    "__version__",
    "jit",
    "losses",
]
