# SPDX-License-Identifier: Apache-2.0
"""rlk: kernels for reinforcement learning of language models, specialized at run time.

    import rlk
    log_probs = rlk.jit.linear_logp(hidden, weight, target)

Importing needs NumPy only: no driver is touched, no folder made, PyTorch is not imported.
"""

from rlk import jit, losses
from rlk._core import Array, __version__
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
