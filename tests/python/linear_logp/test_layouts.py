# SPDX-License-Identifier: Apache-2.0
"""Strides, broadcasts, files, read-only and foreign arrays: all valid inputs, all the same bits."""

import ctypes
import itertools

import numpy as np
import pytest
from devices import and_with_torch, on_each_level
from layouts import LAYOUTS, spaced
from problems import DTYPES, Problem, check, numpy_type, problem
from reference import same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")
on_each_device = pytest.mark.usefixtures("device")

FIELDS = ("hidden", "weight", "target", "bias", "upstream")


def assert_same(p: Problem, other: Problem, **options) -> None:
    """Both give the same bits, forward and backward."""
    assert same_bits(other.logp(**options), p.logp(**options))
    for got, want in zip(other.grads(**options), p.grads(**options), strict=True):
        assert (got is None and want is None) or same_bits(got, want)


@on_each_level
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lead", [29, (4, 7)])
def test_strided_operands(layout, dtype, lead):
    p = problem(lead, 37, 301, dtype, bias=dtype)
    view = LAYOUTS[layout]
    for name in FIELDS:
        assert_same(p, p.but(**{name: view(getattr(p, name))}))
    assert_same(p, Problem(**{name: view(getattr(p, name)) for name in FIELDS}))


@and_with_torch
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lead", [(29,), (4, 7)])
def test_strided_rows_of_options(layout, lead):
    p = problem(lead, 37, 301)
    count = len(p.target.ravel())
    heat = np.linspace(0.5, 2, count).astype(np.float32).reshape(lead)
    mask = np.arange(count).reshape(lead) % 4 != 0
    want, view = p.logp(temperature=heat, mask=mask), LAYOUTS[layout]
    assert same_bits(p.logp(temperature=view(heat), mask=view(mask)), want)
    wide, ints = heat.astype(np.float64), mask.astype(np.int32)
    assert same_bits(p.logp(temperature=view(wide), mask=view(ints)), want)


@on_each_device
@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_leading_axes_in_any_order(axes):
    for dtype in ("float32", "bfloat16"):
        p = problem((3, 4, 5), 12, 301, dtype)

        def stored(array, how):
            return np.ascontiguousarray(array.transpose(how)).transpose(np.argsort(how))

        hidden = stored(p.hidden, (*axes, 3))
        assert hidden.shape == p.hidden.shape
        moved = {"target": stored(p.target, axes), "upstream": stored(p.upstream, axes)}
        assert_same(p, p.but(hidden=hidden, **moved))


LEADS = [(), (1,), (6,), (2, 3), (1, 6, 1), (1, 2, 1, 3, 1), (1, 2, 1, 3, 1, 1, 1), (1,) * 6 + (6,)]


@and_with_torch
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("lead", [*LEADS, (0,), (3, 0), (0, 4), (0, 5)])
def test_any_number_of_leading_axes(lead):
    for dtype, bias in (("float32", None), ("float32", "float32"), ("bfloat16", "bfloat16")):
        p = problem(lead, 12, 301, dtype, bias=bias)
        check(p)
        grads = p.grads()
        assert p.logp().shape == lead
        assert grads.hidden.shape == (*lead, 12)
        if 0 in lead:
            assert same_bits(grads.weight, np.zeros_like(p.weight))
            assert bias is None or same_bits(grads.bias, np.zeros_like(p.bias))


@on_each_device
def test_nine_axes_are_too_many():
    with pytest.raises(rlk.InvalidArgument, match="linear_logp: hidden: expected at most 8 dim"):
        problem((1,) * 8, 12, 30).logp()


@and_with_torch
@pytest.mark.usefixtures("device")
def test_one_row_without_leading_axes(device):
    p = problem((5,), 12, 301)
    numbers = [p.target[2]] if device == "cpu" else []
    for target in (np.array(p.target[2]), p.target[2:3].reshape(()), *numbers):
        logp = p.but(hidden=p.hidden[2], target=target).logp()
        assert logp.shape == ()
        assert same_bits(logp, p.logp()[2])


@on_each_device
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim", "vocab"), [(1, 1, 1), (5, 1, 1), (5, 1, 40), (1, 7, 2)])
def test_the_smallest_sizes(rows, dim, vocab, dtype):
    check(problem(rows, dim, vocab, dtype, bias=dtype))


@on_each_level
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_operands(dtype):
    p = problem(6, 16, 301, dtype, bias=dtype)
    wide = {
        "hidden": np.broadcast_to(p.hidden[2], (6, 16)),
        "weight": np.broadcast_to(p.weight[3], (301, 16)),
        "target": np.broadcast_to(p.target[1], 6),
        "bias": np.broadcast_to(p.bias[0], 301),
        "upstream": np.broadcast_to(p.upstream[0], 6),
    }
    for name, view in wide.items():
        assert_same(p.but(**{name: view.copy()}), p.but(**{name: view}))
    assert_same(Problem(**{name: view.copy() for name, view in wide.items()}), Problem(**wide))
    column = np.broadcast_to(p.hidden[:, :1], (6, 16))  # stride 0 along D
    assert_same(p.but(hidden=column.copy()), p.but(hidden=column))


@on_each_device
def test_rows_that_overlap_in_memory():
    # A sliding window: rows are one element apart.
    memory = np.random.default_rng(0).standard_normal(9 + 16).astype(np.float32)
    window = np.lib.stride_tricks.sliding_window_view(memory, 16)[:9]
    p = problem(9, 16, 100)
    assert_same(p.but(hidden=window.copy()), p.but(hidden=window))


def test_read_only_arrays():
    p = problem(6, 12, 301, bias="float32")
    frozen = Problem(*(array.copy() for array in p.operands), p.upstream.copy())
    for array in (*frozen.operands, frozen.upstream):
        array.flags.writeable = False
    assert_same(p, frozen)


def test_memory_mapped_files(tmp_path):
    p = problem(6, 12, 301)
    np.save(tmp_path / "weight.npy", p.weight)
    np.save(tmp_path / "hidden.npy", p.hidden)
    weight = np.load(tmp_path / "weight.npy", mmap_mode="r")
    hidden = np.load(tmp_path / "hidden.npy", mmap_mode="r")
    mapped = Problem(hidden, weight, p.target, None, p.upstream)
    assert isinstance(weight, np.memmap)
    assert type(mapped.logp()) is np.ndarray
    assert_same(p, mapped)


def test_fields_of_records_and_odd_addresses():
    # No view in whole elements exists: strides or address are no multiple of the element's size.
    p = problem(6, 12, 301)
    records = np.zeros(6, np.dtype([("tag", "i1"), ("state", "f4", 12), ("id", "i8")]))
    records["state"], records["id"] = p.hidden, p.target
    assert records["state"].strides[0] % 4
    odd = np.frombuffer(b"x" + p.weight.tobytes(), np.uint8)[1:].view(np.float32)
    weight = odd.reshape(p.weight.shape)
    assert_same(p, Problem(records["state"], weight, records["id"], None, p.upstream))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_odd_addresses_of_sixteen_bit_types(dtype):
    p = problem(6, 12, 301, dtype)
    odd = np.frombuffer(b"x" + p.weight.tobytes(), np.uint8)[1:].view(numpy_type(dtype))
    weight = odd.reshape(p.weight.shape)
    assert_same(p, Problem(p.hidden, weight, p.target, None, p.upstream))


class Foreign:
    """A DLPack producer that is neither NumPy's nor torch's."""

    def __init__(self, array, *, old=False):
        self._array, self._old, self.num_exports = array, old, 0

    def __dlpack__(self, *, stream=None, **newer):
        if self._old and newer:
            raise TypeError("unexpected keyword")
        self.num_exports += 1
        return self._array.__dlpack__(**newer)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("old", [False, True])
def test_other_producers_of_dlpack(old):
    p = problem(6, 12, 301, bias="float32")
    foreign = Problem(
        *(Foreign(array, old=old) for array in p.operands), Foreign(p.upstream, old=old)
    )
    logp = foreign.logp()
    assert type(logp) is np.ndarray
    assert foreign.weight.num_exports == 1
    assert_same(p, foreign)
    if not old:
        frozen = p.weight.copy()
        frozen.flags.writeable = False
        assert same_bits(rlk.jit.linear_logp(p.hidden, Foreign(frozen), *p.operands[2:]), p.logp())


def test_strided_producers_of_dlpack():
    p = problem(6, 12, 301)
    assert same_bits(rlk.jit.linear_logp(Foreign(spaced(p.hidden)), p.weight, p.target), p.logp())


def test_a_producer_keeps_its_memory_alive_for_the_call_only():
    import gc
    import weakref

    p = problem(6, 12, 301)

    class Watched(np.ndarray):
        pass

    weight = p.weight.copy().view(Watched)
    gone = weakref.ref(weight)
    producer = Foreign(weight)
    del weight
    rlk.jit.linear_logp(p.hidden, producer, p.target)
    assert gone() is not None
    del producer
    gc.collect()
    assert gone() is None


def test_a_producer_on_another_device():
    p = problem(6, 12, 301)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    class Remote(Foreign):
        kind = 2  # kDLCUDA

        def __dlpack__(self, **options):
            capsule = super().__dlpack__(**options)
            # DLManagedTensorVersioned: version, manager_ctx, deleter, flags, data, device
            at = pointer(capsule, b"dltensor_versioned") + 8 + 8 + 8 + 8 + 8
            ctypes.c_int32.from_address(at).value = self.kind
            return capsule

    class Elsewhere(Remote):
        kind = 8  # kDLMetal

    with pytest.raises(
        rlk.InvalidArgument, match=r"linear_logp: weight: expected device cpu .*, got cuda:0"
    ):
        rlk.jit.linear_logp(p.hidden, Remote(p.weight), p.target)
    with pytest.raises(rlk.Unsupported, match=r"linear_logp: device: expected a CUDA .*cuda:0"):
        rlk.jit.linear_logp(*(Remote(array) for array in p.operands[:3]))
    for operands in ((Elsewhere(p.hidden), p.weight, p.target), map(Elsewhere, p.operands[:3])):
        with pytest.raises(rlk.Unsupported, match=r"linear_logp: device: .*neither cpu nor cuda"):
            rlk.jit.linear_logp(*operands)
