# SPDX-License-Identifier: Apache-2.0
"""A row's bits depend on that row alone: not on its batch, place, strides, threads, multiprocessors
or variant; no result depends on the workspace."""

from functools import cache

import devices
import numpy as np
import pytest
from devices import jit, on_cuda_alone, on_each_level_alone
from layouts import padded, shifted, spaced, transposed
from problems import DIM, DTYPES, NAMES, VOCAB, Problem, only, problem
from reference import same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device")

# On the CPU more than one block of D and several leaves of V, both odd. On a GPU several leaves of
# V and of its merge, several tiles of rows, all odd; D is whole 16-byte chunks, so that operands
# are read in place unless a test moves them.
SIZES = {"cpu": (1000, 203, 451), "cuda": (4224, DIM, VOCAB)}
BATCHES = (1, 2, 15, 16, 17, 63, 64, 65, 127)
MORE_BATCHES = {"cpu": (), "cuda": (128, 129, 1000, 4096)}


@cache
def problem_of(dtype: str, device: str) -> Problem:
    return problem(*SIZES[device], dtype, bias="float32", seed=11)


@cache
def results_of(dtype: str, device: str) -> tuple:
    """Log-probs and gradients of the hidden states of all rows, by the specialized kernels."""
    rlk.jit.configure(specialize=True)
    return results(problem_of(dtype, device))


def whole(dtype: str) -> Problem:
    return problem_of(dtype, devices.name())


def wanted(dtype: str) -> tuple:
    return results_of(dtype, devices.name())


def results(p: Problem, **options) -> tuple:
    return p.logp(**options), p.grads(**options, needs=("hidden",)).hidden


def everything(p: Problem, **options) -> tuple:
    """Log-probs and all three gradients."""
    return p.logp(**options), *p.grads(**options)


def assert_equal(got: tuple, want: tuple, what: str) -> None:
    for name, one, other in zip(("log-prob", *NAMES), got, want, strict=False):
        assert one is other is None or same_bits(one, other), f"{name}: {what}"


def assert_rows(p: Problem, want: tuple, rows, what: str) -> None:
    """These rows of p, in a call of their own, have the bits of `want`."""
    assert_equal(results(only(p, rows)), tuple(whole[rows] for whole in want), what)


def options_of(rows: int) -> dict:
    row = np.arange(rows)
    return {"temperature": 0.5 + row % 5 / 4, "mask": row % 7 != 3, "ignore_index": 5}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_target_and_the_variants(device, dtype):
    p = whole(dtype)
    short = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]
    for backward, name in ((False, "fwd"), (True, "bwd")):
        explained = jit.explain(rlk.jit.linear_logp, *p.operands, backward=backward)
        assert explained.variant == "specialized"
        _, dim, vocab = SIZES[device]
        assert explained.kernel.startswith(f"linear_logp.{name}[x={short} V={vocab} D={dim}")
        assert explained.kernel.endswith(f"@{devices.expected_target()}")
    rlk.jit.configure(specialize=False)
    assert jit.explain(rlk.jit.linear_logp, *p.operands).variant == "generic"
    assert jit.explain(rlk.jit.linear_logp, *p.operands).kernel.endswith(
        f"@{devices.expected_target()}"
    )


@on_each_level_alone
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_with_any_threads(dtype):
    p = whole(dtype)
    want = results(p)  # specialized, all rows, all threads
    explained = rlk.jit.explain(rlk.jit.linear_logp, *p.operands)
    assert explained.kernel.endswith(f"@{devices.expected_target()}")
    check_batches(p, want)
    check_orders(p, want)
    for threads in (1, 2, 5):
        rlk.jit.configure(num_threads=threads)
        assert_rows(p, want, slice(None), f"{threads} threads")
    rlk.jit.configure(specialize=False)
    assert_rows(p, want, slice(None), "generic")
    check_batches(p, want)


@on_cuda_alone
@pytest.mark.parametrize("specialize", [True, False], ids=["specialized", "generic"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype, specialize):
    want = wanted(dtype)
    rlk.jit.configure(specialize=specialize)
    check_batches(whole(dtype), want)


def check_orders(p: Problem, want: tuple) -> np.ndarray:
    order = np.random.default_rng(0).permutation(len(p.target))
    assert_rows(p, want, order, "in another order")
    assert_rows(p, want, slice(None, None, -1), "backwards")
    assert_rows(p, want, slice(3, None, 7), "each seventh")
    assert_rows(p, want, np.full(300, 123), "one row 300 times")
    return order


def check_batches(p: Problem, want: tuple) -> None:
    rows = len(p.target)
    for size in (*BATCHES, *MORE_BATCHES[devices.name()]):
        for first in sorted({0, 1, 77, 500, min(2077, rows - size), rows - size}):
            if first + size <= rows:
                assert_rows(p, want, slice(first, first + size), f"{size} rows from {first}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_neighbours_and_micro_batches(dtype):
    p, want = whole(dtype), wanted(dtype)
    rlk.jit.configure(specialize=False)
    for part in np.array_split(check_orders(p, want), 5):
        assert_rows(p, want, part, "a fifth of the rows")


@on_each_level_alone
@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradients_of_variants_and_threads(dtype):
    p = whole(dtype)
    want = p.grads()
    for threads, specialize in ((1, True), (2, False), (1, False), (3, True)):
        rlk.jit.configure(num_threads=threads, specialize=specialize)
        for got, exact in zip(p.grads(), want, strict=True):
            assert same_bits(got, exact), f"{threads} threads, specialize={specialize}"


@on_cuda_alone
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_multiprocessors(dtype):
    want = wanted(dtype)
    for max_sms in (1, 7, 131, 0):
        rlk.jit.configure(max_sms=max_sms)
        assert same_bits(whole(dtype).logp(), want[0]), f"{max_sms} multiprocessors"


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_row_alone(device, dtype):
    p, want = whole(dtype), wanted(dtype)
    rlk.jit.configure(specialize=False)
    for row in range(150) if device == "cpu" else range(0, len(p.target), 97):
        assert_rows(p, want, slice(row, row + 1), f"row {row} alone")


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_neighbours_of_any_content(dtype):
    p, want = whole(dtype), wanted(dtype)
    rlk.jit.configure(specialize=False)
    active = np.arange(len(p.target)) % 3 == 1
    wild = p.but(
        hidden=np.where(active[:, None], p.hidden, np.array(np.nan, p.hidden.dtype)),
        target=np.where(active, p.target, 2**40),
        upstream=np.where(active, p.upstream, np.float32(np.nan)),
    )
    got = results(wild, mask=active)
    assert_equal(tuple(r[active] for r in got), tuple(r[active] for r in want), "NaN beside it")
    # Sums over rows: the active ones alone, wherever they stand.
    dense = only(p, active).grads()
    assert_equal(wild.grads(mask=active)[1:], dense[1:], "sums of active rows")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_temperature_of_the_neighbours(dtype):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 65))
    heat = np.linspace(0.2, 3, 65).astype(np.float32)
    want = results(p, temperature=heat)
    for row in (0, 1, 30, 64):
        alone = results(only(p, slice(row, row + 1)), temperature=float(heat[row]))
        assert_equal(alone, tuple(r[row : row + 1] for r in want), f"temperature of row {row}")


@pytest.mark.parametrize("options", [False, True], ids=["plain", "options"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized_and_generic_give_the_same_bits(dtype, options):
    p = only(whole(dtype), slice(0, 300))
    given = options_of(300) if options else {}
    want = everything(p, **given)
    rlk.jit.configure(specialize=False)
    assert_equal(everything(p, **given), want, "generic")


@on_cuda_alone
@pytest.mark.parametrize("options", [False, True], ids=["plain", "options"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_result_depends_on_the_workspace(dtype, options):
    # 4,224 rows of 3,331 logits: with 1 MiB each wave and strip is the least that there is.
    rlk.jit.configure(specialize=False)
    p = whole(dtype)
    given = options_of(len(p.target)) if options else {"ignore_index": None}
    want = everything(p, **given)
    for mib in (1, 3, 16, 64, 256, 4096):
        rlk.jit.configure(workspace_mib=mib)
        assert_equal(everything(p, **given), want, f"{mib} MiB of workspace")


# Vocabularies of one segment and of five, of no whole box, leaf or chunk of 16 bytes.
@on_cuda_alone
@pytest.mark.parametrize(
    "sizes",
    [(300, 9, 1), (1, 200, 5), (300, 8, 1537), (129, 200, 6283), (129, 9, 50257), (1, 8, 50257)],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_sizes_in_any_workspace(dtype, sizes):
    rlk.jit.configure(specialize=False)
    p = problem(*sizes, dtype, bias="float32", seed=5)
    want = everything(p)
    last = sizes[0] - 1
    for mib in (1, 3, 16, 256, 768):
        rlk.jit.configure(workspace_mib=mib)
        assert_equal(everything(p), want, f"{mib} MiB of workspace")
        for row in {0, last // 2, last}:
            assert_rows(p, want, slice(row, row + 1), f"row {row} alone, {mib} MiB")
        for name, exact in zip(NAMES, want[1:], strict=True):  # the others are frozen
            assert same_bits(getattr(p.grads(needs=(name,)), name), exact), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_addresses(dtype):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 129))
    want = everything(p)
    for offset in (0, 4, 8, 16) if dtype == "float32" else (0, 2, 8, 16):
        hidden, weight = shifted(p.hidden, offset), shifted(p.weight, offset)
        both = {"hidden": hidden, "weight": weight, "target": shifted(p.target, 8)}
        for moved in ({"hidden": hidden}, {"weight": weight}, both):
            assert_equal(everything(p.but(**moved)), want, f"{offset} bytes off")
    for offset in (4, 8):
        moved = {"bias": shifted(p.bias, offset), "upstream": shifted(p.upstream, offset)}
        assert_equal(everything(p.but(**moved)), want, f"bias and upstream {offset} bytes off")


@pytest.mark.parametrize("view", [padded, spaced, transposed], ids=lambda view: view.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(dtype, view):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 129))
    want = everything(p)
    for names in (("hidden",), ("weight",), ("hidden", "weight")):
        moved = {name: view(getattr(p, name)) for name in names}
        assert_equal(everything(p.but(**moved)), want, " and ".join(names))


# Fuzz: sizes around the widths of lanes, panels, blocks and leaves, strips of rows; of chunks of 16
# bytes, instructions, warps and tiles.
@pytest.mark.parametrize("seed", range(40))
def test_odd_sizes(device, seed):
    rng = np.random.default_rng([99, seed])
    workspace_mib = int(rng.choice([1, 2, 512]))
    rlk.jit.configure(specialize=False, workspace_mib=workspace_mib)
    most = {"cpu": 700, "cuda": 2500}[device]
    dim, vocab = int(rng.integers(1, 420)), int(rng.integers(1, most))
    rows = int(rng.choice([1, 3, 16, 17, 31, 48, 65, 127, 257, 300, 600]))
    p = problem(rows, dim, vocab, str(rng.choice(DTYPES)), seed=seed)
    want = results(p)
    for _ in range(4):
        first = int(rng.integers(0, rows))
        size = int(rng.integers(1, rows - first + 1))
        if device == "cpu":
            rlk.jit.configure(num_threads=int(rng.integers(1, 4)))
        what = f"{size} of {rows} rows, {dim} x {vocab}"
        assert_rows(p, want, slice(first, first + size), what)


def test_more_rows_than_a_strip():
    rlk.jit.configure(specialize=False)
    p = problem(9000, 16, 300, seed=3)
    want = results(p)
    for first, size in ((0, 1), (8999, 1), (4095, 2), (1000, 5000), (511, 1025)):
        assert_rows(p, want, slice(first, first + size), f"{size} rows from {first}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_run_after_run(dtype):
    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 1500))
    want = everything(p)
    for _ in range(3):
        problem(20, 64, 500, dtype).grads()
        assert_equal(everything(p), want, "another run")


@on_cuda_alone
@pytest.mark.parametrize("dtype", DTYPES)
def test_beside_other_work_on_the_device(dtype):
    # Another stream keeps some of the multiprocessors busy, and blocks finish in another order.
    import torch

    rlk.jit.configure(specialize=False)
    p = only(whole(dtype), slice(0, 1500))
    want = everything(p)
    given = Problem(*(devices.put(x) for x in (*p.operands, p.upstream)))
    other = torch.cuda.Stream()
    matrix = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(other):
            for _ in range(20):
                matrix @ matrix
        assert_equal(tuple(map(devices.get, everything(given))), want, "beside another stream")
    torch.cuda.synchronize()


def test_the_vocabulary_s_last_leaf_has_one_column(device):
    for vocab in (192, 193, 384, 385, 192 * 16 + 1, 192 * 17):
        rlk.jit.configure(specialize=False, workspace_mib=512)
        p = problem(130, 64, vocab, "bfloat16" if device == "cuda" else "float32", seed=vocab)
        want = results(p)
        rlk.jit.configure(workspace_mib=1)
        assert_rows(p, want, slice(60, 61), str(vocab))
