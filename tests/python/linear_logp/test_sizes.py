# SPDX-License-Identifier: Apache-2.0
"""Offsets beyond 2^31: of logits, rows, columns and weights, none of which may need much memory."""

import os
import resource

import numpy as np
import pytest
from problems import Problem, problem
from reference import assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")

FAR = 2**31 + 8  # elements


def sparse_file(path, num_elements: int, kind="float32") -> np.ndarray:
    """A file of holes: disk is used only where something is written."""
    bytes_each = np.dtype(kind).itemsize
    with open(path, "wb") as file:
        os.truncate(file.fileno(), num_elements * bytes_each)
    return np.memmap(path, kind, "r+", shape=(num_elements,))


def far_apart(file: np.ndarray, values: np.ndarray, stride: int = FAR) -> np.ndarray:
    """values, its rows `stride` elements apart in the file."""
    rows, columns = values.shape
    sizes = (stride * file.itemsize, file.itemsize)
    view = np.lib.stride_tricks.as_strided(file, (rows, columns), sizes)
    view[...] = values
    return view


def test_more_logits_than_two_to_the_31():
    rows, vocab, dim = 18423, 131072, 3
    assert rows * vocab > 2**31
    p = problem(rows, dim, vocab)
    logp = p.logp()
    some = np.r_[0:8, 16380:16392, rows - 8 : rows]  # 16384 * 131072 = 2^31
    few = Problem(p.hidden[some], p.weight, p.target[some], None, p.upstream[some])
    assert_within(logp[some], few.reference().forward())
    assert same_bits(logp[some], few.logp())

    # All rows but these have no gradient, so that the exact answer needs no other row.
    upstream = np.zeros(rows, np.float32)
    upstream[some] = few.upstream
    grads = rlk.jit.linear_logp_backward(upstream, *p.operands)
    exact = few.reference().gradients(few.upstream)
    assert_within(grads.hidden[some], exact["hidden"])
    assert not np.delete(grads.hidden, some, axis=0).any()
    assert_within(grads.weight, exact["weight"])


def test_hidden_states_far_apart(tmp_path):
    p = problem(3, 12, 300)
    hidden = far_apart(sparse_file(tmp_path / "hidden", 2 * FAR + 12), p.hidden)
    far = Problem(hidden, p.weight, p.target, None, p.upstream)
    assert same_bits(far.logp(), p.logp())
    for got, want in zip(far.grads(), p.grads(), strict=True):
        assert (got is None and want is None) or same_bits(got, want)
    mask = np.array([True, False, True])
    assert same_bits(far.logp(mask=mask), p.logp(mask=mask))
    backwards = Problem(hidden[::-1], p.weight, p.target[::-1], None, p.upstream[::-1])
    assert same_bits(backwards.logp(), p.logp()[::-1].copy())


@pytest.mark.parametrize("specialize", [False, True])
def test_weights_far_apart(tmp_path, specialize):
    rlk.jit.configure(specialize=specialize)
    p = problem(5, 12, 3)
    weight = far_apart(sparse_file(tmp_path / "weight", 2 * FAR + 12), p.weight)
    far = Problem(p.hidden, weight, p.target, None, p.upstream)
    assert same_bits(far.logp(), p.logp())
    assert same_bits(far.grads().hidden, p.grads().hidden)


def test_columns_far_apart(tmp_path):
    p = problem(3, 2, 40)
    weight = far_apart(sparse_file(tmp_path / "weight", FAR + 40), p.weight.T.copy()).T
    hidden = far_apart(sparse_file(tmp_path / "hidden", FAR + 3), p.hidden.T.copy()).T
    far = Problem(hidden, weight, p.target, None, p.upstream)
    assert far.weight.strides[1] == FAR * 4
    assert same_bits(far.logp(), p.logp())
    assert same_bits(far.grads().hidden, p.grads().hidden)


def test_values_a_row_and_a_bias_far_apart(tmp_path):
    p = problem(2, 12, 2, bias="float32")
    file = sparse_file(tmp_path / "bytes", FAR + 1)
    bias = far_apart(file, p.bias[:, None])[:, 0]
    far = Problem(p.hidden, p.weight, p.target, bias, p.upstream)
    assert same_bits(far.logp(), p.logp())
    target = far_apart(sparse_file(tmp_path / "ids", FAR + 1, "int64"), p.target[:, None])[:, 0]
    far = Problem(p.hidden, p.weight, target, p.bias, p.upstream)
    assert same_bits(far.logp(), p.logp())


def correlated(long: np.ndarray, short: np.ndarray) -> np.ndarray:
    """sum_k long[i + k] * short[k] for every i, in float64."""
    size = 1 << (len(long) + len(short)).bit_length()
    product = np.fft.rfft(long, size) * np.conj(np.fft.rfft(short, size))
    return np.fft.irfft(product, size)[: len(long) - len(short) + 1]


def test_a_weight_of_more_than_two_to_the_31_elements():
    # Its rows lie 4 elements apart, one over the other, so that it needs next to no memory.
    vocab, dim, step = 2**19 + 5, 4099, 4
    assert vocab * dim > 2**31
    rng = np.random.default_rng(0)
    memory = (rng.standard_normal(step * (vocab - 1) + dim) / 64).astype(np.float16)
    weight = np.lib.stride_tricks.as_strided(memory, (vocab, dim), (2 * step, 2))
    hidden = rng.standard_normal((1, dim)).astype(np.float16)
    target = np.array([vocab - 1])

    z = correlated(memory.astype(np.float64), hidden[0].astype(np.float64))[::step]
    p = np.exp(z - z.max())
    logp = rlk.jit.linear_logp(hidden, weight, target)
    np.testing.assert_allclose(logp, z[-1] - z.max() - np.log(p.sum()), atol=1e-4)

    dz = np.zeros(step * (vocab - 1) + 1)
    dz[::step] = -p / p.sum()
    dz[-1] += 1
    grad = rlk.jit.linear_logp_backward(np.ones(1), hidden, weight, target, needs=("hidden",))
    exact = correlated(memory.astype(np.float64), dz)
    np.testing.assert_allclose(grad.hidden[0].astype(np.float64), exact, rtol=1e-3, atol=1e-5)


def test_memory_does_not_grow_with_rows_times_vocabulary():
    # 1 and 2 GiB of logits; the second call may add a few MiB to what the process ever used.
    p = problem(8192, 8, 32768)
    p.logp()
    hidden, target = np.concatenate([p.hidden] * 2), np.concatenate([p.target] * 2)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rlk.jit.linear_logp(hidden, p.weight, target)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 64 * 1024
