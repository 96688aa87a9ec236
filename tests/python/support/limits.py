# SPDX-License-Identifier: Apache-2.0
"""Refuses a resource to this process, as limits, containers and hardened systems do."""

import contextlib
import ctypes
import errno
import os
import resource
import struct
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_SET_MDWE = 38, 65
_CLONE, _CLONE3, _SECCOMP, _MEMFD_CREATE = 56, 435, 317, 319
_SET_MODE_FILTER = 1
_CLONE_THREAD = 0x10000


@contextlib.contextmanager
def limit(what: int, value: int) -> Iterator[None]:
    """A soft limit (resource.RLIMIT_...) while the block runs."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def no_more_files() -> contextlib.AbstractContextManager[None]:
    """No file descriptor beyond those that are open."""
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    return limit(resource.RLIMIT_NOFILE, lowest)


def more_memory(num_bytes: int) -> contextlib.AbstractContextManager[None]:
    """At most so much address space beyond what is mapped."""
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    return limit(resource.RLIMIT_AS, mapped + num_bytes)


def no_written_page_executable() -> str:
    """Linux 6.3: pages that were written stay without code, for good. Returns why not, or ''."""
    done = _libc.prctl(_PR_SET_MDWE, 1, 0, 0, 0) == 0
    return "" if done else f"PR_SET_MDWE: {os.strerror(ctypes.get_errno())}"


def _filter(*instructions: tuple[int, int, int, int]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in instructions))

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    program = Program(len(instructions), ctypes.addressof(code))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    all_threads = 1
    if _libc.syscall(_SECCOMP, _SET_MODE_FILTER, all_threads, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def _load(offset: int) -> tuple[int, int, int, int]:
    return 0x20, 0, 0, offset


def _skip_unless_equal(value: int, count: int) -> tuple[int, int, int, int]:
    return 0x15, 0, count, value


def _refuse(error: int) -> tuple[int, int, int, int]:
    return 0x06, 0, 0, 0x50000 | error


_ALLOW = 0x06, 0, 0, 0x7FFF0000


def no_threads() -> None:
    """No thread from now on, for good; processes may be started."""
    _filter(
        _load(0),
        _skip_unless_equal(_CLONE3, 1),
        _refuse(errno.ENOSYS),  # the C library then takes clone
        _skip_unless_equal(_CLONE, 3),
        _load(16),  # flags
        (0x45, 0, 1, _CLONE_THREAD),
        _refuse(errno.EAGAIN),
        _ALLOW,
    )


def no_memfd() -> None:
    """No file in memory from now on, for good."""
    _filter(_load(0), _skip_unless_equal(_MEMFD_CREATE, 1), _refuse(errno.EPERM), _ALLOW)
