# SPDX-License-Identifier: Apache-2.0
"""A row's bits depend on that row alone, and no result depends on variant, layout or workspace."""

from functools import cache

import numpy as np
import pytest
from on_device import (
    CUDA,
    DEVICE,
    DIM,
    NAMES,
    VOCAB,
    Problem,
    cuda_only,
    expected_target,
    make,
    padded,
    shifted,
    spaced,
    torch,
    transposed,
)
from problems import DTYPES, only
from reference import same_bits

import rlk

pytestmark = pytest.mark.gpu

# Several leaves of V and of its merge, several tiles of rows, all odd; D is whole 16-byte chunks,
# so that operands are read in place unless a test moves them.
ROWS = 4224
SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4096)


@cache
def whole(dtype: str) -> Problem:
    return make(ROWS, DIM, VOCAB, dtype, bias="float32", seed=11)


@cache
def wanted(dtype: str) -> tuple:
    """Log-probs and gradients of the hidden states of all rows, by the specialized kernels."""
    rlk.jit.configure(specialize=True)
    return results(whole(dtype))


def results(p: Problem, **options) -> tuple:
    return p.logp(**options), p.grads(**options, needs=("hidden",)).hidden


def assert_equal(got: tuple, want: tuple, what: str) -> None:
    for name, one, other in zip(("log-prob", *NAMES), got, want, strict=False):
        assert same_bits(one, other), f"{name}: {what}"


def assert_rows(dtype: str, rows, what: str) -> None:
    """These rows in a call of their own have the bits that they have among all."""
    if not isinstance(rows, slice):
        rows = torch.as_tensor(rows, device=DEVICE)
    want = tuple(result[rows] for result in wanted(dtype))
    assert_equal(results(only(whole(dtype), rows)), want, what)


def everything(p: Problem, **options) -> tuple:
    """Log-probs and all three gradients."""
    return p.logp(**options), *p.grads(**options)


def test_the_target_and_the_variants():
    p = whole("bfloat16")
    for backward, name in ((False, "fwd"), (True, "bwd")):
        explained = rlk.jit.explain(*p.operands, backward=backward)
        assert explained.variant == "specialized"
        assert explained.kernel.startswith(f"linear_logp.{name}[x=bf16 V={VOCAB} D={DIM}")
        assert explained.kernel.endswith(f"@{expected_target()}")
    rlk.jit.configure(specialize=False)
    assert rlk.jit.explain(*p.operands).variant == "generic"
    assert rlk.jit.explain(*p.operands).kernel.endswith(f"@{expected_target()}")


@pytest.mark.parametrize("specialize", [True, False], ids=["specialized", "generic"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype, specialize):
    wanted(dtype)
    rlk.jit.configure(specialize=specialize)
    for size in SIZES:
        for first in sorted({0, 1, min(2077, ROWS - size), ROWS - size}):
            assert_rows(dtype, slice(first, first + size), f"{size} rows from {first}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_neighbours_and_micro_batches(dtype):
    wanted(dtype)
    rlk.jit.configure(specialize=False)
    order = np.random.default_rng(0).permutation(ROWS)
    assert_rows(dtype, order, "in another order")
    assert_rows(dtype, slice(3, None, 7), "each seventh")
    assert_rows(dtype, np.full(300, 123), "one row 300 times")
    for part in np.array_split(order, 5):
        assert_rows(dtype, part, "a fifth of the rows")


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_multiprocessors(dtype):
    for max_sms in (1, 7, 131, 0):
        rlk.jit.configure(max_sms=max_sms)
        assert same_bits(whole(dtype).logp(), wanted(dtype)[0]), f"{max_sms} multiprocessors"


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_row_alone(dtype):
    wanted(dtype)
    rlk.jit.configure(specialize=False)
    for row in range(0, ROWS, 97):
        assert_rows(dtype, slice(row, row + 1), f"row {row} alone")


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_neighbours_of_any_content(dtype):
    wanted(dtype)
    rlk.jit.configure(specialize=False)
    p = whole(dtype)
    active = torch.arange(ROWS, device=DEVICE) % 3 == 1
    wild = Problem(
        torch.where(active[:, None], p.hidden, torch.nan),
        p.weight,
        torch.where(active, p.target, 2**40),
        p.bias,
        torch.where(active, p.upstream, torch.nan),
    )
    got = results(wild, mask=active)
    assert_equal(
        tuple(result[active] for result in got),
        tuple(result[active] for result in wanted(dtype)),
        "NaN beside it",
    )
    # Sums over rows: the active ones alone, wherever they stand.
    rows = active.nonzero()[:, 0]
    assert_equal(wild.grads(mask=active)[1:], only(p, rows).grads()[1:], "sums of active rows")


def test_the_temperature_of_the_neighbours():
    rlk.jit.configure(specialize=False)
    p = only(whole("bfloat16"), slice(0, 65))
    heat = torch.linspace(0.2, 3, 65, device=DEVICE)
    want = results(p, temperature=heat)
    for row in (0, 1, 30, 64):
        alone = results(only(p, slice(row, row + 1)), temperature=heat[row].item())
        assert_equal(alone, tuple(r[row : row + 1] for r in want), f"temperature of row {row}")


def options_of(rows: int) -> dict:
    row = torch.arange(rows, device=DEVICE)
    return {"temperature": 0.5 + row % 5 / 4, "mask": row % 7 != 3, "ignore_index": 5}


@pytest.mark.parametrize("options", [False, True], ids=["plain", "options"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized_and_generic_give_the_same_bits(dtype, options):
    p = only(whole(dtype), slice(0, 300))
    given = options_of(300) if options else {}
    want = everything(p, **given)
    rlk.jit.configure(specialize=False)
    assert_equal(everything(p, **given), want, "generic")


@pytest.mark.parametrize("options", [False, True], ids=["plain", "options"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_result_depends_on_the_workspace(dtype, options):
    # 4,224 rows of 3,331 logits: with 1 MiB each wave and strip is the least that there is.
    rlk.jit.configure(specialize=False)
    given = options_of(ROWS) if options else {"ignore_index": None}
    want = everything(whole(dtype), **given)
    for mib in (1, 5, 23, 64, 4096):
        rlk.jit.configure(workspace_mib=mib)
        assert_equal(everything(whole(dtype), **given), want, f"{mib} MiB of workspace")


@pytest.mark.parametrize("dtype", DTYPES)
def test_addresses(dtype):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 129))
    want = everything(p)
    for offset in (0, 4, 8, 16) if dtype == "float32" else (0, 2, 8, 16):
        hidden, weight = shifted(p.hidden, offset), shifted(p.weight, offset)
        moved = [
            Problem(hidden, p.weight, p.target, p.bias, p.upstream),
            Problem(p.hidden, weight, p.target, p.bias, p.upstream),
            Problem(hidden, weight, shifted(p.target, 8), p.bias, p.upstream),
        ]
        for other in moved:
            assert_equal(everything(other), want, f"{offset} bytes off")
    for offset in (4, 8):
        bias, upstream = shifted(p.bias, offset), shifted(p.upstream, offset)
        other = Problem(p.hidden, p.weight, p.target, bias, upstream)
        assert_equal(everything(other), want, f"bias and upstream {offset} bytes off")


@pytest.mark.parametrize("view", [padded, spaced, transposed], ids=lambda view: view.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(dtype, view):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 129))
    want = everything(p)
    for names in (("hidden",), ("weight",), ("hidden", "weight")):
        values = {n: getattr(p, n) for n in ("hidden", "weight", "target", "bias", "upstream")}
        moved = {n: view(values[n]) for n in names}
        assert_equal(everything(Problem(**{**values, **moved})), want, " and ".join(names))


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_gradient_alone_has_the_bits_that_it_has_beside_the_others(dtype):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 129))
    full = p.grads()
    for bits in range(1, 8):
        needs = tuple(name for i, name in enumerate(NAMES) if bits >> i & 1)
        some = p.grads(needs=needs)
        for name in NAMES:
            got = getattr(some, name)
            assert (got is not None) == (name in needs)
            assert got is None or same_bits(got, getattr(full, name)), f"{name} of {needs}"


# Fuzz: sizes around chunks of 16 bytes, instructions, warps, tiles and leaves.
@pytest.mark.parametrize("seed", range(30))
def test_odd_sizes(seed):
    rng = np.random.default_rng([99, seed])
    rlk.jit.configure(specialize=False, workspace_mib=int(rng.choice([1, 2, 512])))
    dim, vocab = int(rng.integers(1, 420)), int(rng.integers(1, 2500))
    rows = int(rng.choice([1, 3, 17, 65, 127, 257, 600]))
    p = make(rows, dim, vocab, str(rng.choice(DTYPES)), seed=seed)
    want = results(p)
    for _ in range(4):
        first = int(rng.integers(0, rows))
        size = int(rng.integers(1, rows - first + 1))
        part = slice(first, first + size)
        got = results(only(p, part))
        what = f"{size} of {rows} rows, {dim} x {vocab}"
        assert_equal(got, tuple(result[part] for result in want), what)


@pytest.mark.parametrize("dtype", DTYPES)
def test_run_after_run(dtype):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 1500))
    want = everything(p)
    for _ in range(3):
        make(20, 64, 500, dtype).grads()
        assert_equal(everything(p), want, "another run")


@cuda_only
@pytest.mark.parametrize("dtype", DTYPES)
def test_beside_other_work_on_the_device(dtype):
    # Another stream keeps some of the multiprocessors busy, and blocks finish in another order.
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 1500))
    want = everything(p)
    other = torch.cuda.Stream()
    matrix = torch.randn(2048, 2048, device=DEVICE)
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(other):
            for _ in range(20):
                matrix @ matrix
        assert_equal(everything(p), want, "beside another stream's work")
    torch.cuda.synchronize()


def test_the_vocabulary_s_last_leaf_has_one_column():
    rlk.jit.configure(specialize=False)
    for vocab in (192, 193, 384, 385, 192 * 16 + 1, 192 * 17):
        p = make(130, 64, vocab, "bfloat16" if CUDA else "float32", seed=vocab)
        want = everything(p)
        rlk.jit.configure(workspace_mib=1)
        assert_equal(results(only(p, slice(60, 61))), tuple(r[60:61] for r in want[:2]), str(vocab))
