# SPDX-License-Identifier: Apache-2.0
"""Storage types and layouts: bits, strides, junk between the elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rlk.check.frameworks import NumpyFramework, TorchFramework, is_poison
from rlk.check.stored import LAYOUTS, decode, encode, lay_out, of


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, size=100_000, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    assert (encode(values, "bfloat16") == values.astype(ml_dtypes.bfloat16).view(np.uint16)).all()
    back = decode(encode(values, "bfloat16"), "bfloat16")
    assert (back == values.astype(ml_dtypes.bfloat16).astype(np.float64)).all()
    assert np.isnan(decode(encode(np.array([np.nan]), "bfloat16"), "bfloat16")).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4), (0, 3)])
def test_a_layout_keeps_the_values(layout: str, dtype: str, shape: tuple[int, ...]) -> None:
    raw = encode(np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape), dtype)
    if layout == "expanded" and shape:
        raw = np.broadcast_to(raw[:1], shape).copy()
    stored = lay_out(raw, dtype, layout)
    assert stored.shape == shape
    assert (stored.raw() == raw).all()
    assert stored.values().shape == shape


def test_layouts_differ_in_memory() -> None:
    values = np.ones((3, 4))
    assert of(values, "float32", "strided").strides == (11, 2)
    assert of(values, "float32", "transposed").strides == (1, 3)
    assert of(values, "float32", "expanded").strides == (0, 1)
    assert of(values, "float32", "shifted").offset == 1
    gaps = of(values, "float32", "strided").base
    assert np.isnan(gaps).sum() == gaps.size - values.size


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_frameworks_hand_over_bits_and_strides(name: str, dtype: str, layout: str) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    framework = NumpyFramework() if name == "numpy" else TorchFramework()
    stored = of(np.arange(12).reshape(3, 4) % 3, dtype, layout)
    array, base = framework.give(stored)
    steps = array.stride() if name == "torch" else tuple(s // array.itemsize for s in array.strides)
    assert tuple(steps) == stored.strides
    back = framework.take(array)
    assert back.dtype == dtype
    assert (back.raw() == stored.raw()).all()
    assert framework.bits(base).tobytes() == stored.base.tobytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_poison_is_seen() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        poisoned = NumpyFramework().poisoned((3,), dtype)
        assert np.isnan(poisoned.astype(np.float64)).all()
        poisoned[1] = 0
        assert is_poison(NumpyFramework().take(poisoned)).tolist() == [True, False, True]
