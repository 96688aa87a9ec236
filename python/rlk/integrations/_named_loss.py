# SPDX-License-Identifier: Apache-2.0
"""`rlk.jit.ppo_loss` for a system whose names its errors have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlk import jit
from rlk.errors import fail, renamed

#: Where None says that there is none. Any other option of the op would be the dialect's.
MAY_BE_NONE = ("delta", "max_seq_len", "importance_weights", "cu_seqlens", "loss_weights")


def ppo_loss(names: Mapping[str, str], *tensors: Any, **options: Any) -> Any:
    """`rlk.jit.ppo_loss`; `names`: what the system calls the op's arguments.

    Raises rlk.InvalidArgument by these names, also for an option of them that is None.
    """
    for name, value in options.items():
        if value is None and name in names and name not in MAY_BE_NONE:
            fail("ppo_loss", names[name], "a value", "None")
    with renamed("ppo_loss", names):
        return jit.ppo_loss(*tensors, **options)
