# SPDX-License-Identifier: Apache-2.0
"""Makes root an ordinary user who can read everything, so that tests of rights work as root too."""

import ctypes
import os

_NOBODY = 65534
_PR_SET_KEEPCAPS = 8
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522


def drop() -> None:
    """For a process that has yet to import what matters; nothing where it is not root's."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    # The interpreter and the package may lie under root's own home: keep the right to read.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    kept = 1 << _CAP_DAC_READ_SEARCH
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)  # effective, permitted, inheritable
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
