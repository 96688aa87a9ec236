# SPDX-License-Identifier: Apache-2.0
"""A row's bits depend on that row alone: not on its batch, place, strides, threads or variant."""

from functools import cache

import numpy as np
import pytest
from problems import DTYPES, LEVELS, Problem, host_levels, only, problem
from reference import same_bits

import rlk

# More than one block of D and several leaves of V, both odd.
ROWS, DIM, VOCAB = 1000, 203, 451
BATCHES = (1, 2, 15, 16, 17, 63, 64, 65, 127)


@cache
def rows_of(dtype: str) -> Problem:
    return problem(ROWS, DIM, VOCAB, dtype, bias="float32", seed=11)


def results(p: Problem) -> tuple[np.ndarray, np.ndarray]:
    return p.logp(), p.grads(needs=("hidden",)).hidden


def assert_rows(p: Problem, want: tuple[np.ndarray, np.ndarray], rows, what: str) -> None:
    """These rows of p, in a call of their own, have the bits of `want`."""
    for name, got, whole in zip(
        ("log-prob", "gradient"), results(only(p, rows)), want, strict=True
    ):
        assert same_bits(got, np.ascontiguousarray(whole[rows])), f"{name}: {what}"


@pytest.fixture(params=LEVELS)
def level(request):
    if request.param not in host_levels():
        pytest.skip(f"this processor is no {request.param}")
    rlk.jit.configure(arch=request.param)
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(level, dtype):
    p = rows_of(dtype)
    want = results(p)  # specialized, all rows, all threads
    assert f"@{level}" in rlk.jit.explain(*p.operands).kernel
    assert rlk.jit.explain(*p.operands).variant == "specialized"
    for size in BATCHES:
        for first in (0, 1, 500, ROWS - size):
            assert_rows(p, want, slice(first, first + size), f"{size} rows from {first}")
    assert_rows(p, want, slice(None, None, -1), "backwards")
    assert_rows(p, want, slice(3, None, 7), "each seventh")
    assert_rows(p, want, np.random.default_rng(0).permutation(ROWS), "in another order")
    assert_rows(p, want, np.full(70, 123), "one row 70 times")
    for threads in (1, 2, 5):
        rlk.jit.configure(num_threads=threads)
        assert_rows(p, want, slice(None), f"{threads} threads")

    rlk.jit.configure(specialize=False)
    assert rlk.jit.explain(*p.operands).variant == "generic"
    assert_rows(p, want, slice(None), "generic")
    for size in BATCHES:
        assert_rows(p, want, slice(77, 77 + size), f"generic, {size} rows")


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradients_of_variants_and_threads(level, dtype):
    p = rows_of(dtype)
    want = p.grads()
    for threads, specialize in ((1, True), (2, False), (1, False), (3, True)):
        rlk.jit.configure(num_threads=threads, specialize=specialize)
        for got, whole in zip(p.grads(), want, strict=True):
            assert same_bits(got, whole), f"{threads} threads, specialize={specialize}"


def test_each_row_alone():
    rlk.jit.configure(specialize=False)
    p = only(rows_of("float32"), slice(0, 150))
    want = results(p)
    for row in range(150):
        assert_rows(p, want, slice(row, row + 1), f"row {row} alone")


def test_padding_and_garbage_beside_a_row():
    rlk.jit.configure(specialize=False)
    p = rows_of("float32")
    want = results(p)
    active = np.arange(ROWS) % 3 == 1
    hidden = np.where(active[:, None], p.hidden, np.float32(np.nan))
    masked = Problem(hidden, p.weight, p.target, p.bias, p.upstream)
    assert same_bits(masked.logp(mask=active)[active], want[0][active])
    assert same_bits(masked.grads(mask=active).hidden[active], want[1][active])


def test_temperature_of_the_neighbours():
    rlk.jit.configure(specialize=False)
    p = only(rows_of("float32"), slice(0, 65))
    heat = np.linspace(0.2, 3, 65).astype(np.float32)
    want = p.logp(temperature=heat)
    for row in (0, 1, 30, 64):
        alone = only(p, slice(row, row + 1)).logp(temperature=float(heat[row]))
        assert same_bits(alone, want[row : row + 1])


# Fuzz: sizes around the widths of lanes, panels, blocks and leaves, and strips of rows.
@pytest.mark.parametrize("seed", range(40))
def test_odd_sizes(seed):
    rlk.jit.configure(specialize=False)
    rng = np.random.default_rng([99, seed])
    dim, vocab = int(rng.integers(1, 420)), int(rng.integers(1, 700))
    rows = int(rng.choice([1, 3, 16, 31, 48, 65, 127, 300]))
    p = problem(rows, dim, vocab, str(rng.choice(["float32", "float16"])), seed=seed)
    want = results(p)
    first = int(rng.integers(0, rows))
    size = int(rng.integers(1, rows - first + 1))
    rlk.jit.configure(num_threads=int(rng.integers(1, 4)))
    assert_rows(p, want, slice(first, first + size), f"{size} of {rows} rows, {dim} x {vocab}")


def test_more_rows_than_a_strip():
    rlk.jit.configure(specialize=False)
    p = problem(9000, 16, 300, seed=3)
    want = results(p)
    for first, size in ((0, 1), (8999, 1), (4095, 2), (1000, 5000), (511, 1025)):
        assert_rows(p, want, slice(first, first + size), f"{size} rows from {first}")
