# SPDX-License-Identifier: Apache-2.0
"""The device that a test's calls run on, so that a test is written once, with NumPy arrays.

On the CPU a call takes the arrays as they are, in cases of "torch" as torch's tensors. On CUDA they
become torch tensors there. Tensors have the arrays' strides, and results become arrays again; torch
tensors pass as they are. RLK_TEST_DEVICE=cpu makes the CUDA cases of such tests run with torch's
tensors of the CPU, so that they can be tried without a card.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest

import rlk

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
KIND = os.environ.get("RLK_TEST_DEVICE", "cuda")  # torch's word for where CUDA cases run
TARGETS = {
    (8, 0): "sm_80",
    (8, 6): "sm_86",
    (8, 9): "sm_89",
    (9, 0): "sm_90a",
    (10, 0): "sm_100",
    (10, 3): "sm_100",
    (12, 0): "sm_120",
    (12, 1): "sm_120",
}
_current = "cpu"


@functools.cache
def why_no_gpu() -> str:
    """Why the cases of a GPU cannot run here, or ''."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if KIND != "cuda" or torch.cuda.is_available() else "torch sees no CUDA device"


def host_levels() -> list[str]:
    """The CPU levels that this machine can force, lowest first; for the settings of now."""
    return list(LEVELS[: LEVELS.index(rlk.jit.settings()["arch"]) + 1])


def use(name: str) -> str:
    """Later calls run on "cpu", at a level of it or with torch's tensors ("torch"), or on "cuda";
    returns which of the two."""
    global _current
    _current = "cpu" if name in LEVELS else name
    if name == "torch":
        pytest.importorskip("torch")
        return "cpu"
    if name in LEVELS:
        if name not in host_levels():
            pytest.skip(f"this processor is no {name}")
        rlk.jit.configure(arch=name)
    return _current


def name() -> str:
    return "cuda" if _current == "cuda" else "cpu"


def torch_name() -> str:
    """Where a test's own torch tensors go."""
    return KIND if _current == "cuda" else "cpu"


def expected_target(device: str | None = None) -> str:
    """The target that a kernel must name: the forced one, else the device's own."""
    if "cpu" in (device or name(), KIND):
        return rlk.jit.settings()["arch"]
    import torch

    own = TARGETS.get(torch.cuda.get_device_capability(), "compute_80")
    return os.environ.get("RLK_TEST_ARCH", own)


def put(array: np.ndarray) -> Any:
    """A tensor on the device at the array's strides and its place within 16 bytes, if torch can."""
    import torch

    unit = array.itemsize
    at = array.__array_interface__["data"][0] % 16
    if at % unit or any(step < 0 or step % unit for step in array.strides):
        array, at = array.copy(), 0
    steps = [step // unit for step in array.strides]
    size = 1 + sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True))
    memory = np.lib.stride_tricks.as_strided(array, (size if array.size else 0,), (unit,)).copy()
    room = torch.zeros(at + len(memory) * unit, dtype=torch.uint8, device=torch_name())
    room[at:] = torch.from_numpy(memory.view(np.uint8)).to(room.device)
    there = room[at:].view(getattr(torch, array.dtype.name))
    return there.as_strided(array.shape, steps, at // unit)


def _mapped(change: Any, values: Any) -> Any:
    """A list or a tuple, which may have names, of the same kind."""
    return getattr(values, "_make", type(values))(map(change, values))


def get(found: Any) -> Any:
    """Tensors as NumPy arrays, in tuples too."""
    if isinstance(found, tuple):
        return _mapped(get, found)
    if not hasattr(found, "detach"):
        return found
    found = found.detach().cpu()
    if str(found.dtype) != "torch.bfloat16":
        return found.numpy()
    import torch

    return found.view(torch.int16).numpy().view(pytest.importorskip("ml_dtypes").bfloat16)


def expect_there(found: Any) -> None:
    """Each tensor of a result is on the current device."""
    if isinstance(found, tuple):
        for each in found:
            expect_there(each)
    else:
        assert getattr(found, "device", None) is None or found.device.type == torch_name()


def call(function: Any, *arguments: Any, **options: Any) -> Any:
    """The function's result, of arrays on the current device; what it reports later is raised."""
    moved = []

    def there(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            moved.append(x)
            return put(x)
        return _mapped(there, x) if isinstance(x, (list, tuple)) else x

    if _current == "cpu":
        return function(*arguments, **options)
    arguments = (*map(there, arguments),)
    found = function(*arguments, **{name: there(x) for name, x in options.items()})
    if moved:
        expect_there(found)
        found = get(found)
        if KIND == "cuda":
            rlk.jit.check_errors()
    return found


class _Jit:
    """rlk.jit's functions, called on the current device."""

    def __getattr__(self, name: str) -> Any:
        return functools.partial(call, getattr(rlk.jit, name))


jit = _Jit()
on_cpu_alone = pytest.mark.parametrize("device", ["cpu"], indirect=True)
on_each_level_alone = pytest.mark.parametrize("device", LEVELS, indirect=True)  # of the CPU
_both = [
    pytest.param("torch", marks=pytest.mark.torch),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
and_with_torch = pytest.mark.parametrize("device", ["cpu", *_both], indirect=True)
on_each_level = pytest.mark.parametrize("device", [*LEVELS, *_both], indirect=True)
_cuda = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(KIND != "cuda", reason="RLK_TEST_DEVICE is not a CUDA device"),
    ],
)
on_cuda_alone = pytest.mark.parametrize("device", [_cuda], indirect=True)
