# SPDX-License-Identifier: Apache-2.0
"""The matrix loop of sm_90a by itself: every operand layout, schedule and odd size."""

import ctypes
import itertools
import os
from functools import cache
from pathlib import Path

import pytest
from on_device import torch
from paths import ROOT

HERE = Path(__file__).resolve().parent
TEMPLATES = ROOT / "templates"
CODES = {"bfloat16": 2, "float16": 3}  # of templates/common/cuda/element.cuh
MAP_TYPES = {"bfloat16": 9, "float16": 6}  # CU_TENSOR_MAP_DATA_TYPE_*
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="the device is not of compute capability 9.0",
    ),
]

# Rows of a tile, stages, ping-pong, dynamic, blocks of a cluster.
LOOPS = [
    (128, 5, 1, 1, 1),
    (128, 4, 0, 0, 1),
    (64, 7, 1, 0, 1),
    (64, 7, 1, 1, 1),
    (256, 3, 0, 1, 1),
    (128, 5, 1, 0, 2),
    (128, 4, 0, 0, 2),
    (64, 7, 1, 0, 2),
]
# One element, whole tiles, sizes that end within a tile, a box and a swizzled row, and numbers of
# tiles that are not even.
SIZES = [
    (1, 1, 8), (64, 192, 64), (200, 300, 136), (1000, 777, 1040), (513, 2000, 72), (128, 97, 264),
    (257, 191, 512), (640, 3001, 328),
]  # fmt: skip


def check(code: int) -> None:
    assert code == 0, f"error {code}"


@cache
def driver() -> ctypes.CDLL:
    torch.zeros(1, device="cuda")  # makes the context current
    return ctypes.CDLL("libcuda.so.1")


@cache
def nvrtc() -> ctypes.CDLL:
    named = os.environ.get("RLK_TEST_NVRTC", "").split(":")[0]
    if not named:
        pytest.skip("RLK_TEST_NVRTC names no NVRTC")
    return ctypes.CDLL(named)


def compiled(dtype: str, loop: tuple, majors: tuple, tail: int = -1) -> ctypes.c_void_p:
    """The kernel of gemm_sm90.cu; tail: kTailCols of its epilogue."""
    rows, stages, ping_pong, dynamic, cluster = loop
    macros = {
        "X": CODES[dtype], "ROWS": rows, "STAGES": stages, "PING_PONG": ping_pong,
        "DYNAMIC": dynamic, "CLUSTER": cluster, "A_LANES": majors[0], "B_LANES": majors[1],
        "TAIL": tail,
    }  # fmt: skip
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = (HERE / "gemm_sm90.cu").read_bytes()
    check(nvrtc().nvrtcCreateProgram(ctypes.byref(program), source, b"gemm.cu", 0, None, None))
    options = ["--gpu-architecture=sm_90a", "-std=c++20", "--fmad=false", f"-I{TEMPLATES}"]
    options += ["--device-as-default-execution-space"]
    options += [f"-D{name}={value}" for name, value in macros.items()]
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = nvrtc().nvrtcCompileProgram(program, len(options), words)
    if code != 0:
        nvrtc().nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc().nvrtcGetProgramLog(program, log)
        raise AssertionError(log.value.decode())
    check(nvrtc().nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    check(nvrtc().nvrtcGetCUBIN(program, cubin))
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver().cuModuleLoadData(ctypes.byref(module), cubin))
    check(driver().cuModuleGetFunction(ctypes.byref(kernel), module, b"gemm"))
    return kernel


class GemmArgs(ctypes.Structure):
    _fields_ = [
        ("c", ctypes.c_void_p),
        ("m", ctypes.c_int),
        ("n", ctypes.c_int),
        ("k", ctypes.c_int),
        ("group_rows", ctypes.c_int),
        ("counter", ctypes.c_void_p),
    ]


class Attribute(ctypes.Structure):
    """CUlaunchAttribute; kind 4: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION."""

    _fields_ = [("kind", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("num_attributes", ctypes.c_uint),
    ]


class TensorMap:
    """128 bytes on a multiple of 64."""

    def __init__(self, matrix, box_rows: int) -> None:
        self._matrix = matrix  # kept: a map is an address
        self._room = ctypes.create_string_buffer(192)
        self.address = (ctypes.addressof(self._room) + 63) // 64 * 64
        rows, cols = matrix.shape
        kind = MAP_TYPES[str(matrix.dtype).removeprefix("torch.")]
        code = driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.address), kind, 2, ctypes.c_void_p(matrix.data_ptr()),
            (ctypes.c_uint64 * 2)(cols, rows), (ctypes.c_uint64 * 1)(matrix.stride(0) * 2),
            (ctypes.c_uint32 * 2)(64, box_rows), (ctypes.c_uint32 * 2)(1, 1), 0, 3, 3, 0,
        )  # fmt: skip
        check(code)


def along_lanes(matrix):
    """[k][lane], rows of whole 16 bytes."""
    lanes, terms = matrix.shape
    room = torch.zeros(terms, -(-lanes // 8) * 8, device="cuda", dtype=matrix.dtype)
    room[:, :lanes] = matrix.T
    return room


def product(kernel, a, b, m: int, n: int, k: int, loop: tuple, majors: tuple, blocks: int):
    rows, stages, _, _, cluster = loop
    blocks = -(-blocks // cluster) * cluster
    shared_bytes = (rows + 192) * 64 * 2 * stages
    check(driver().cuFuncSetAttribute(kernel, MAX_DYNAMIC_SHARED, shared_bytes))
    c = torch.full((m, n), float("nan"), device="cuda")
    counter = torch.zeros(1, device="cuda", dtype=torch.int32)
    maps = (
        TensorMap(along_lanes(a) if majors[0] else a, 64 if majors[0] else rows),
        TensorMap(along_lanes(b) if majors[1] else b, (64 if majors[1] else 192) // cluster),
    )
    args = GemmArgs(c.data_ptr(), m, n, k, 2, counter.data_ptr())
    pointers = (ctypes.c_void_p * 3)(ctypes.addressof(args), maps[0].address, maps[1].address)
    clusters = Attribute(kind=4, value=(cluster, 1, 1))
    config = LaunchConfig(
        (blocks, 1, 1), (384, 1, 1), shared_bytes, torch.cuda.current_stream().cuda_stream,
        ctypes.pointer(clusters), 1,
    )  # fmt: skip
    check(driver().cuLaunchKernelEx(ctypes.byref(config), kernel, pointers, None))
    torch.cuda.synchronize()
    return c


def operands(m: int, n: int, k: int, dtype: str):
    generator = torch.Generator("cuda").manual_seed(m)
    a = torch.randn(m, k, device="cuda", generator=generator).to(getattr(torch, dtype))
    b = torch.randn(n, k, device="cuda", generator=generator).to(getattr(torch, dtype))
    return a, b


@pytest.mark.parametrize("majors", list(itertools.product((0, 1), (0, 1))), ids=str)
@pytest.mark.parametrize("dtype", CODES)
def test_products(dtype, majors):
    torch.manual_seed(0)
    first: dict[tuple, torch.Tensor] = {}
    for loop in LOOPS:
        kernel = compiled(dtype, loop, majors)
        for m, n, k in SIZES:
            a, b = operands(m, n, k, dtype)
            for blocks in (1, 7, 132):
                c = product(kernel, a, b, m, n, k, loop, majors, blocks)
                what = f"{m} x {n} x {k}, loop {loop}, {blocks} blocks"
                # Bits do not follow the tile, the schedule or the grid.
                want = first.setdefault((m, n, k), c)
                assert torch.equal(c, want), what
            exact = a.double() @ b.double().T
            error = (c.double() - exact).abs().max() / exact.abs().max()
            assert error < 1e-5, what


@pytest.mark.parametrize("tail", [0, 1, 64, 65, 128, 129, 191])
def test_no_promise_of_the_tail_changes_bits(tail):
    majors = (0, 0)
    for loop in LOOPS[:2]:
        any_tail, kernel = (
            compiled("bfloat16", loop, majors),
            compiled("bfloat16", loop, majors, tail),
        )
        for n in (1, 63, 64, 65, 128, 129, 191, 192, 193, 256, 257, 320, 321, 384):
            a, b = operands(200, n, 136, "bfloat16")
            want, got = (
                product(of, a, b, 200, n, 136, loop, majors, 7) for of in (any_tail, kernel)
            )
            assert torch.equal(got, want), f"{n} columns, loop {loop}"
