# SPDX-License-Identifier: Apache-2.0
"""det_gemm and linear: bad input is refused, and the message names the argument."""

from __future__ import annotations

import numpy as np
import pytest

import rlk

A, B, BIAS = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32), np.ones(5, np.float32)
G = np.ones((3, 5), np.float32)

CASES = [
    (lambda: rlk.jit.det_gemm(A, B[:3]), r"det_gemm: b: expected shape \[4, N\].*got \[3, 5\]"),
    (lambda: rlk.jit.det_gemm(A, BIAS), r"det_gemm: b: expected shape \[4, N\].*got \[5\]"),
    (lambda: rlk.jit.det_gemm(A[:, :0], B[:0]), r"det_gemm: b: .*K and N at least 1"),
    (lambda: rlk.jit.det_gemm(A, B[:, :0]), r"det_gemm: b: .*K and N at least 1"),
    (lambda: rlk.jit.det_gemm(A[0, 0], B), r"det_gemm: a: expected shape \[..., M, K\]"),
    (lambda: rlk.jit.det_gemm(A, B.astype(np.float16)), "det_gemm: b: expected dtype float32"),
    (lambda: rlk.jit.det_gemm(A.astype(np.float64), B), "det_gemm: a: expected dtype float32,"),
    (lambda: rlk.jit.det_gemm(A.astype(int), B), "det_gemm: a: expected dtype float32,"),
    (lambda: rlk.jit.det_gemm(None, B), "det_gemm: a: expected a tensor, got None"),
    (lambda: rlk.jit.det_gemm(A, None), "det_gemm: b: expected a tensor, got None"),
    (lambda: rlk.jit.det_gemm(A, B, BIAS[:4]), r"det_gemm: bias: expected shape \[5\]"),
    (lambda: rlk.jit.det_gemm(A, B, BIAS.astype(np.float16)), "bias: expected dtype float32, got"),
    (lambda: rlk.jit.det_gemm(A, B, out_dtype="float64"), "det_gemm: out_dtype: expected None"),
    (lambda: rlk.jit.det_gemm(A, B, out_dtype=3), "det_gemm: out_dtype: expected None"),
    (lambda: rlk.jit.det_gemm(A, B, out_dtype=np.float16), "det_gemm: out_dtype: expected None"),
    (lambda: rlk.jit.det_gemm(A, B, stream=7), "det_gemm: stream: expected None"),
    (lambda: rlk.jit.linear(A, B), r"linear: weight: expected shape \[N, 4\].*got \[4, 5\]"),
    (lambda: rlk.jit.linear(A, B.T[:0]), r"linear: weight: .*N at least 1.*got \[0, 4\]"),
    (lambda: rlk.jit.linear(A, BIAS), r"linear: weight: expected shape \[N, 4\].*got \[5\]"),
    (lambda: rlk.jit.linear(A[0, 0], B.T), r"linear: x: expected shape \[..., M, K\], got \[\]"),
    (lambda: rlk.jit.linear(A, None), "linear: weight: expected a tensor, got None"),
    (lambda: rlk.jit.linear(None, B), "linear: x: expected a tensor, got None"),
    (lambda: rlk.jit.det_gemm_backward(None, A, B), "det_gemm: grad_output: expected a tensor"),
    (lambda: rlk.jit.det_gemm_backward(G[:2], A, B), r"grad_output: expected shape \[3, 5\]"),
    (lambda: rlk.jit.det_gemm_backward(G.astype(np.float16), A, B), "grad_output: expected dtype"),
    (lambda: rlk.jit.det_gemm_backward(G, A, B, needs=("c",)), "det_gemm: needs: expected a tuple"),
]


@pytest.mark.parametrize(("call", "message"), CASES)
def test_bad_input_is_refused(call, message):
    with pytest.raises(rlk.InvalidArgument, match=message):
        call()


def test_what_is_added_to_must_be_float32_and_dense():
    from rlk import _core

    for into in (np.ones((4, 5), np.float16), np.ones((5, 4), np.float32).T, np.ones((5, 4))):
        with pytest.raises(rlk.InvalidArgument, match="det_gemm: into: expected"):
            _core.det_gemm_accumulate({"a": A, "grad_output": G, "into": into})


def test_float32_of_float32_is_allowed():
    for same in ("float32", np.float32, np.dtype("float32")):
        assert (rlk.jit.det_gemm(A, B, out_dtype=same) == 4).all()
