# SPDX-License-Identifier: Apache-2.0
"""Strides, broadcasts, files, read-only and foreign arrays: all valid inputs, all the same bits."""

import ctypes

import numpy as np
import pytest
from problems import DTYPES, Problem, check, numpy_type, problem
from reference import same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")


def assert_same(p: Problem, other: Problem, **options) -> None:
    """Both give the same bits, forward and backward."""
    assert same_bits(other.logp(**options), p.logp(**options))
    for got, want in zip(other.grads(**options), p.grads(**options), strict=True):
        assert (got is None and want is None) or same_bits(got, want)


def spaced(array: np.ndarray) -> np.ndarray:
    """The same values with strides that are no multiple of anything, garbage between them."""
    room = np.full([2 * n + 3 for n in array.shape], 77).astype(array.dtype)
    view = room[tuple(slice(1, 1 + 2 * n, 2) for n in array.shape)]
    view[...] = array
    return view


LAYOUTS = {
    "spaced": spaced,
    "fortran": np.asfortranarray,
    "reversed": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "upside_down": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "off_by_one": lambda a: np.r_[a.reshape(-1)[:1], a.reshape(-1)][1:].reshape(a.shape),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_operands(layout, dtype):
    p = problem(29, 37, 301, dtype, bias=dtype)
    view = LAYOUTS[layout]
    for name in ("hidden", "weight", "target", "bias"):
        values = {n: getattr(p, n) for n in ("hidden", "weight", "target", "bias", "upstream")}
        assert_same(p, Problem(**values | {name: view(values[name])}))
    assert_same(p, Problem(*(view(array) for array in p.operands), view(p.upstream)))


def test_strided_rows_of_options():
    p = problem(29, 37, 301)
    heat = np.linspace(0.5, 2, 29).astype(np.float32)
    mask = np.arange(29) % 4 != 0
    want = p.logp(temperature=heat, mask=mask)
    assert same_bits(p.logp(temperature=spaced(heat), mask=spaced(mask)), want)
    assert same_bits(p.logp(temperature=heat[::-1].copy()[::-1], mask=mask), want)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_leading_axes_in_any_order(axes):
    p = problem((3, 4, 5), 12, 301)
    order = (*axes, 3)
    back = np.argsort(order)

    def stored(array, how):
        return np.ascontiguousarray(array.transpose(how)).transpose(np.argsort(how))

    hidden = stored(p.hidden, order)
    target, upstream = stored(p.target, axes), stored(p.upstream, axes)
    assert hidden.shape == p.hidden.shape
    assert sorted(back) == [0, 1, 2, 3]
    assert_same(p, Problem(hidden, p.weight, target, None, upstream))


@pytest.mark.parametrize(
    "lead", [(), (1,), (6,), (2, 3), (1, 6, 1), (1, 2, 1, 3, 1), (1,) * 6 + (6,)]
)
def test_any_number_of_leading_axes(lead):
    p = problem(lead, 12, 301)
    logp = p.logp()
    assert logp.shape == lead
    assert p.grads().hidden.shape == (*lead, 12)
    check(p)


def test_nine_axes_are_too_many():
    p = problem((1,) * 8, 12, 30)
    with pytest.raises(rlk.InvalidArgument, match="linear_logp: hidden: expected at most 8 dim"):
        p.logp()


def test_one_row_without_leading_axes():
    p = problem((5,), 12, 301)
    for target in (p.target[2], np.array(p.target[2]), p.target[2:3].reshape(())):
        logp = rlk.jit.linear_logp(p.hidden[2], p.weight, target)
        assert logp.shape == ()
        assert same_bits(logp, p.logp()[2])


@pytest.mark.parametrize("lead", [(0,), (3, 0), (0, 5)])
def test_no_rows(lead):
    p = problem(lead, 12, 301, bias="float32")
    assert p.logp().shape == lead
    grads = p.grads()
    assert grads.hidden.shape == (*lead, 12)
    assert same_bits(grads.weight, np.zeros((301, 12), np.float32))
    assert same_bits(grads.bias, np.zeros(301, np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim", "vocab"), [(1, 1, 1), (5, 1, 1), (5, 1, 40), (1, 7, 2)])
def test_the_smallest_sizes(rows, dim, vocab, dtype):
    check(problem(rows, dim, vocab, dtype, bias=dtype))


def test_broadcast_operands():
    p = problem(6, 12, 301)
    hidden = np.broadcast_to(p.hidden[2], (6, 12))
    weight = np.broadcast_to(p.weight[3], (301, 12))
    bias = np.broadcast_to(np.float32(0.5), 301)
    target = np.broadcast_to(p.target[1], 6)
    assert_same(
        Problem(hidden.copy(), weight.copy(), target.copy(), bias.copy(), p.upstream),
        Problem(hidden, weight, target, bias, p.upstream),
    )
    column = np.broadcast_to(p.hidden[:, :1], (6, 12))  # stride 0 along D
    assert_same(
        Problem(column.copy(), p.weight, p.target, None, p.upstream),
        Problem(column, p.weight, p.target, None, p.upstream),
    )


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
        def __dlpack__(self, **options):
            capsule = super().__dlpack__(**options)
            # DLManagedTensorVersioned: version, manager_ctx, deleter, flags, data, device
            at = pointer(capsule, b"dltensor_versioned") + 8 + 8 + 8 + 8 + 8
            ctypes.c_int32.from_address(at).value = 2  # kDLCUDA
            return capsule

    with pytest.raises(
        rlk.InvalidArgument, match=r"linear_logp: weight: expected device cpu .*, got cuda:0"
    ):
        rlk.jit.linear_logp(p.hidden, Remote(p.weight), p.target)
    with pytest.raises(rlk.Unsupported, match=r"linear_logp: device: expected a CUDA .*cuda:0"):
        rlk.jit.linear_logp(*(Remote(array) for array in p.operands[:3]))
