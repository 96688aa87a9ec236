# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA kernels of linear_logp through libcuda: the launch sequence, step by step.

It is the prototype of the library's own host code: what is copied first, which grid every step has,
how rows are cut into strips and the vocabulary into waves.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools

import torch
from compile_template import SHARED_LIMIT, Binary, compile_template

LEAF = 192
CODES = {
    torch.float32: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.float64: 4,
    torch.int8: 17,
    torch.int16: 18,
    torch.int32: 20,
    torch.int64: 24,
    torch.uint8: 33,
    torch.bool: 33,
}

_i64, _i32, _f32, _ptr = ctypes.c_longlong, ctypes.c_int, ctypes.c_float, ctypes.c_void_p


class Array(ctypes.Structure):
    _fields_ = [("data", _ptr), ("stride", _i64), ("type", _i32)]


class Args(ctypes.Structure):
    """LinearLogpCudaArgs of templates/linear_logp/cuda_args.h."""

    _fields_ = [
        ("vocab", _i64),
        ("dim", _i64),
        ("num_rows", _i64),
        ("rows", _ptr),
        ("num_active", _ptr),
        ("hidden", _ptr),
        ("hidden_pitch", _i64),
        ("hidden_packed", _i32),
        ("weight", _ptr),
        ("weight_pitch", _i64),
        ("bias", Array),
        ("target", Array),
        ("temperature", Array),
        ("inverse_temperature", _f32),
        ("mask", Array),
        ("has_ignore_index", _i32),
        ("ignore_index", _i64),
        ("logp", _ptr),
        ("row_max", _ptr),
        ("row_log_sum", _ptr),
        ("error", _ptr),
        ("first_row", _i64),
        ("strip_rows", _i64),
        ("partial_max", _ptr),
        ("partial_sum", _ptr),
        ("target_logit", _ptr),
        ("group_tiles", _i32),
        ("grad", Array),
        ("row_grad", _ptr),
        ("row_shift", _ptr),
        ("call_shift", _ptr),
        ("hidden_shifted", _ptr),
        ("hidden_shifted_pitch", _i64),
        ("wave_begin", _i64),
        ("wave_cols", _i64),
        ("wave_pitch", _i64),
        ("grad_logits", _ptr),
        ("grad_hidden_sum", _ptr),
        ("hidden_sum_pitch", _i64),
        ("grad_hidden", _ptr),
        ("grad_hidden_row_stride", _i64),
        ("grad_hidden_col_stride", _i64),
        ("grad_weight", _ptr),
        ("grad_weight_row_stride", _i64),
        ("grad_weight_col_stride", _i64),
        ("grad_bias", _ptr),
        ("grad_bias_stride", _i64),
    ]


class Copy(ctypes.Structure):
    """LinearLogpCudaCopy of templates/linear_logp/cuda_args.h."""

    _fields_ = [
        ("source", _ptr),
        ("to", _ptr),
        ("num_rows", _i64),
        ("num_cols", _i64),
        ("pitch", _i64),
        ("col_stride", _i64),
        ("num_axes", _i32),
        ("sizes", _i64 * 8),
        ("strides", _i64 * 8),
        ("element_bytes", _i32),
        ("rows", _ptr),
        ("num_active", _ptr),
    ]


@functools.cache
def _cuda() -> ctypes.CDLL:
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int) -> None:
    if status != 0:
        name = ctypes.c_char_p()
        _cuda().cuGetErrorName(status, ctypes.byref(name))
        raise RuntimeError(f"CUDA driver error {status} {name.value!r}")


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, unit: int) -> int:
    return ceil_div(a, unit) * unit


class Tile:
    """A LinearLogpCudaTile; keep equal to the functions of cuda_args.h."""

    def __init__(self, rows, cols, k, stages, warp_rows, warp_cols, blocks):
        self.rows, self.cols, self.k, self.stages = rows, cols, k, stages
        self.warp_rows, self.warp_cols, self.blocks = warp_rows, warp_cols, blocks
        self.threads = 32 * warp_rows * warp_cols

    def shared_bytes(self, element_bytes: int) -> int:
        return (self.rows + self.cols) * self.k * self.stages * element_bytes

    def text(self) -> str:
        return (
            f"LinearLogpCudaTile{{{self.rows}, {self.cols}, {self.k}, {self.stages}, "
            f"{self.warp_rows}, {self.warp_cols}, {self.blocks}}}"
        )


def logits_tile(x: int, limit: int) -> Tile:
    if x == 1:
        return Tile(64, 192, 32, 2, 4, 2, 1)
    if limit >= 227 << 10:
        return Tile(256, 192, 64, 3, 4, 2, 1)
    if limit >= 163 << 10:
        return Tile(256, 192, 32, 5, 4, 2, 1)
    return Tile(256, 192, 32, 3, 4, 2, 1)


def gradient_tile(x: int, limit: int) -> Tile:
    if x == 1:
        return Tile(64, 192, 32, 2, 4, 2, 1)
    stages = 4 if limit >= 227 << 10 else 3 if limit >= 163 << 10 else 2
    return Tile(256, 128, 64, stages, 4, 2, 1)


class Module:
    """A loaded cubin or PTX."""

    def __init__(self, binary: Binary) -> None:
        self.binary = binary
        self._module = ctypes.c_void_p()
        _check(_cuda().cuModuleLoadData(ctypes.byref(self._module), binary.image))
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _function(self, name: str, shared_bytes: int) -> ctypes.c_void_p:
        if name not in self._functions:
            f = ctypes.c_void_p()
            _check(_cuda().cuModuleGetFunction(ctypes.byref(f), self._module, name.encode()))
            if shared_bytes:
                _check(_cuda().cuFuncSetAttribute(f, 8, shared_bytes))  # dynamic shared bytes
            self._functions[name] = f
        return self._functions[name]

    def launch(
        self, name: str, grid: int, threads: int, args: ctypes.Structure, shared_bytes: int = 0
    ) -> None:
        if grid == 0:
            return
        f = self._function(name, shared_bytes)
        params = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(
            _cuda().cuLaunchKernel(f, grid, 1, 1, threads, 1, 1, shared_bytes, stream, params, None)
        )


class Problem:
    """One call: its operands, its kernels and the workspace of a step.

    Args:
        hidden: [..., D] of float32, bfloat16 or float16, any strides; weight: [V, D] likewise.
        target: [...] integers; bias: [V]; temperature: number or [...]; mask: [...].
        specialized: sizes as constants of the kernel or as arguments.
        tiles: other tiles than cuda_args.h has, to try them: {"logits": Tile, "gradient": Tile}.
        budget_bytes: workspace for waves of dZ.
    """

    modules: dict[tuple, Module] = {}

    def __init__(
        self,
        hidden,
        weight,
        target,
        *,
        bias=None,
        temperature=1.0,
        mask=None,
        ignore_index=-100,
        arch="sm_90a",
        specialized=True,
        tiles=None,
        budget_bytes=512 << 20,
        strip_bytes=64 << 20,
    ):
        self.hidden, self.weight, self.target = hidden, weight, target
        self.bias, self.temperature, self.mask = bias, temperature, mask
        self.ignore_index, self.arch, self.specialized = ignore_index, arch, specialized
        self.tiles, self.budget_bytes, self.strip_bytes = tiles or {}, budget_bytes, strip_bytes
        self.x = CODES[weight.dtype]
        self.vocab, self.dim = weight.shape
        self.num_rows = target.numel()
        self.logits_tile = self.tiles.get("logits") or logits_tile(self.x, SHARED_LIMIT[arch])
        self.gradient_tile = self.tiles.get("gradient") or gradient_tile(self.x, SHARED_LIMIT[arch])
        self.compact = mask is not None or ignore_index is not None
        self.error = torch.zeros(3, dtype=torch.int64, pin_memory=True)
        self.keep: list[torch.Tensor] = []  # workspace alive until the next call

    def module(self, backward: bool) -> Module:
        sizes = (self.vocab, self.dim) if self.specialized else (-1, -1)
        key = (
            self.x,
            sizes,
            self.arch,
            backward,
            self.logits_tile.text(),
            self.gradient_tile.text(),
        )
        if key not in self.modules:
            limit = SHARED_LIMIT[self.arch]
            edits = (
                {logits_tile(self.x, limit).text(): self.logits_tile.text()}
                if self.tiles.get("logits")
                else {}
            )
            if self.tiles.get("gradient"):
                edits[gradient_tile(self.x, limit).text()] = self.gradient_tile.text()
            constants = {"kX": self.x, "kV": sizes[0], "kD": sizes[1]}
            self.modules[key] = Module(
                compile_template(
                    "linear_logp", constants, self.arch, backward=backward, edits=edits
                )
            )
        return self.modules[key]

    def workspace(self, *shape, dtype):
        t = torch.empty(*shape, dtype=dtype, device="cuda")
        self.keep.append(t)
        return t

    # --- what both passes start with -----------------------------------------------------------

    def pack(self, module, prefix, source, cols, rows=None, count=None, pad=1, num_rows=None):
        """Copies a tensor of any strides: [..., cols] -> [num_rows][pitch]."""
        pitch = round_up(cols, pad)
        lead = source.shape[:-1] if cols > 1 or pad > 1 else source.shape
        strides = source.stride()[: len(lead)]
        n = 1
        for s in lead:
            n *= s
        out = self.workspace(max(num_rows or n, 1), pitch, dtype=source.dtype)
        copy = Copy(
            source.data_ptr(),
            out.data_ptr(),
            n,
            cols,
            pitch,
            source.stride(-1) if cols > 1 else 0,
            len(lead),
            (_i64 * 8)(*lead),
            (_i64 * 8)(*strides),
            source.element_size(),
            rows.data_ptr() if rows is not None else None,
            count.data_ptr() if count is not None else None,
        )
        module.launch(f"{prefix}_pack", min(n, 4096), 256, copy)
        return out

    def per_row(self, module, prefix, tensor):
        """A value a row: its one stride, or a copy where the axes have no common one."""
        if tensor is None:
            return Array(None, 0, 0)
        try:
            flat = tensor.view(-1) if tensor.numel() else tensor.reshape(-1)
        except RuntimeError:
            flat = self.pack(module, prefix, tensor, 1).view(-1)
        stride = flat.stride(0) if flat.numel() > 1 else 0
        return Array(flat.data_ptr(), stride, CODES[tensor.dtype])

    def aligned(self, matrix):
        """Rows contiguous, 16-byte aligned, whole 16-byte chunks."""
        unit = 16 // matrix.element_size()
        return (
            matrix.dim() == 2
            and matrix.stride(1) == 1
            and matrix.stride(0) % unit == 0
            and matrix.data_ptr() % 16 == 0
            and matrix.shape[1] % unit == 0
        )

    def common(self, module, prefix):
        a = Args()
        a.vocab, a.dim, a.num_rows = self.vocab, self.dim, self.num_rows
        a.error = self.error.data_ptr()
        a.target = self.per_row(module, prefix, self.target)
        a.mask = self.per_row(module, prefix, self.mask)
        if isinstance(self.temperature, torch.Tensor):
            a.temperature = self.per_row(module, prefix, self.temperature)
        else:
            t = torch.tensor(self.temperature, dtype=torch.float32)
            a.inverse_temperature = float(torch.tensor(1.0) / t)
        if self.bias is not None:
            stride = self.bias.stride(0) if self.bias.numel() > 1 else 0
            a.bias = Array(self.bias.data_ptr(), stride, CODES[self.bias.dtype])
        a.has_ignore_index = self.ignore_index is not None
        a.ignore_index = self.ignore_index if self.ignore_index is not None else 0
        return a

    def list_rows(self, module, prefix, a):
        if self.compact:
            self.rows = self.workspace(max(self.num_rows, 1), dtype=torch.int64)
            self.count = self.workspace(1, dtype=torch.int64)
            a.rows, a.num_active = self.rows.data_ptr(), self.count.data_ptr()
            module.launch(f"{prefix}_rows", 1, 1024, a)

    def operands(self, module, prefix, a, always_pack_hidden=False):
        unit = 16 // self.weight.element_size()
        hidden = self.hidden
        with contextlib.suppress(RuntimeError):
            hidden = hidden.view(-1, self.dim)
        if self.aligned(hidden) and not (always_pack_hidden and self.compact):
            a.hidden, a.hidden_pitch, a.hidden_packed = hidden.data_ptr(), hidden.stride(0), 0
        else:
            rows, count = (self.rows, self.count) if self.compact else (None, None)
            out = self.pack(
                module, prefix, self.hidden, self.dim, rows, count, pad=unit, num_rows=self.num_rows
            )
            a.hidden, a.hidden_pitch, a.hidden_packed = out.data_ptr(), out.stride(0), 1
        weight = self.weight
        if not self.aligned(weight):
            weight = self.pack(module, prefix, weight, self.dim, pad=unit)
        a.weight, a.weight_pitch = weight.data_ptr(), weight.stride(0)

    def group_tiles(self, tile_rows, row_bytes):
        return max(1, (16 << 20) // (tile_rows * row_bytes))

    # --- forward -------------------------------------------------------------------------------

    def forward(self):
        """logp, row_max, row_log_sum: [num_rows] fp32."""
        self.keep.clear()
        prefix = "rlk_linear_logp_fwd"
        module = self.module(backward=False)
        out = torch.full((3, max(self.num_rows, 1)), 123.0, dtype=torch.float32, device="cuda")
        a = self.common(module, prefix)
        a.logp, a.row_max, a.row_log_sum = (t.data_ptr() for t in out)
        self.list_rows(module, prefix, a)
        self.operands(module, prefix, a)
        tile = self.logits_tile
        leaves = ceil_div(self.vocab, LEAF)
        strip = max(tile.rows, self.strip_bytes // (leaves * 8) // tile.rows * tile.rows)
        strip = min(strip, round_up(self.num_rows, tile.rows))
        if self.num_rows:
            partials = self.workspace(2, leaves, strip, dtype=torch.float32)
            logit = self.workspace(strip, dtype=torch.float32)
            a.strip_rows = strip
            a.partial_max, a.partial_sum = (t.data_ptr() for t in partials)
            a.target_logit = logit.data_ptr()
            a.group_tiles = self.group_tiles(tile.rows, self.dim * self.weight.element_size())
        for first in range(0, self.num_rows, max(strip, 1)):
            a.first_row = first
            module.launch(
                f"{prefix}_main",
                strip // tile.rows * leaves,
                tile.threads,
                a,
                tile.shared_bytes(self.weight.element_size()),
            )
            module.launch(f"{prefix}_merge", ceil_div(strip, 32), 512, a)
        self.saved = out[:, : self.num_rows]
        return self.saved

    # --- backward ------------------------------------------------------------------------------

    def wave_cols(self, hidden_sum_bytes):
        """Columns of a wave: whole leaves, as many as the budget holds, waves of like size."""
        row_bytes = max(self.num_rows, 1) * self.weight.element_size()
        leaves = ceil_div(self.vocab, LEAF)
        most = max(1, self.budget_bytes // (row_bytes * LEAF))
        if most < leaves:  # the sums of dH between waves count too
            most = max(1, (self.budget_bytes - hidden_sum_bytes) // (row_bytes * LEAF))
        return ceil_div(leaves, ceil_div(leaves, most)) * LEAF

    def backward(self, grad, needs=(True, True, True)):
        """grad_hidden, grad_weight, grad_bias, or None where not needed. After forward()."""
        self.keep.clear()
        prefix = "rlk_linear_logp_bwd"
        module = self.module(backward=True)
        dh, dw, db = needs[0], needs[1], needs[2] and self.bias is not None
        n, size, dtype = max(self.num_rows, 1), self.weight.element_size(), self.weight.dtype
        a = self.common(module, prefix)
        a.logp, a.row_max, a.row_log_sum = (t.data_ptr() for t in self.saved)
        a.grad = self.per_row(module, prefix, grad)
        self.list_rows(module, prefix, a)
        self.operands(module, prefix, a, always_pack_hidden=True)
        values = self.workspace(2, n, dtype=torch.int32)
        call_shift = self.workspace(1, dtype=torch.int32)
        a.row_grad, a.row_shift = values[0].data_ptr(), values[1].data_ptr()
        a.call_shift = call_shift.data_ptr()
        module.launch(f"{prefix}_grads", 1, 512, a)
        a.hidden_shifted, a.hidden_shifted_pitch = a.hidden, a.hidden_pitch
        if self.x == 3 and dw:
            shifted = self.workspace(n, round_up(self.dim, 8), dtype=dtype)
            a.hidden_shifted, a.hidden_shifted_pitch = shifted.data_ptr(), shifted.stride(0)
            module.launch(f"{prefix}_shift", min(n, 4096), 256, a)

        out_h = out_w = out_b = None
        if dh:  # rows that are not active stay 0
            make = torch.zeros if self.compact else torch.empty
            out_h = make(n, self.dim, dtype=dtype, device="cuda")
            a.grad_hidden, a.grad_hidden_row_stride = out_h.data_ptr(), self.dim
            a.grad_hidden_col_stride = 1
        if dw:
            out_w = torch.empty(self.vocab, self.dim, dtype=dtype, device="cuda")
            a.grad_weight, a.grad_weight_row_stride = out_w.data_ptr(), self.dim
            a.grad_weight_col_stride = 1
        if db:
            out_b = torch.empty(self.vocab, dtype=self.bias.dtype, device="cuda")
            a.grad_bias, a.grad_bias_stride = out_b.data_ptr(), 1

        pitch = round_up(self.dim, 2)
        wave = self.wave_cols(n * pitch * 4 if dh else 0)
        a.wave_pitch = wave
        dz = self.workspace(n, wave, dtype=dtype)
        a.grad_logits = dz.data_ptr()
        if dh and wave < self.vocab:
            sums = self.workspace(n, pitch, dtype=torch.float32)
            a.grad_hidden_sum, a.hidden_sum_pitch = sums.data_ptr(), pitch
        logits, gradient = self.logits_tile, self.gradient_tile
        row_tiles = ceil_div(self.num_rows, logits.rows)
        grad_row_tiles = ceil_div(self.num_rows, gradient.rows)
        dim_tiles = ceil_div(self.dim, gradient.cols)
        for begin in range(0, self.vocab, wave):
            a.wave_begin, a.wave_cols = begin, min(wave, self.vocab - begin)
            a.group_tiles = self.group_tiles(logits.rows, self.dim * size)
            module.launch(
                f"{prefix}_dz",
                row_tiles * ceil_div(a.wave_cols, LEAF),
                logits.threads,
                a,
                logits.shared_bytes(size),
            )
            a.group_tiles = max(1, 128 // dim_tiles)  # as many as run at once, all columns of dim
            if dh:
                module.launch(
                    f"{prefix}_dh",
                    grad_row_tiles * dim_tiles,
                    gradient.threads,
                    a,
                    gradient.shared_bytes(size),
                )
            if dw:
                module.launch(
                    f"{prefix}_dw",
                    ceil_div(a.wave_cols, gradient.rows) * dim_tiles,
                    gradient.threads,
                    a,
                    gradient.shared_bytes(size),
                )
            if db:
                module.launch(f"{prefix}_db", ceil_div(a.wave_cols, 32), 256, a)
        return out_h, out_w, out_b
