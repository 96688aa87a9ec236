# SPDX-License-Identifier: Apache-2.0
"""Inactive rows: mask and ignore_index, in the backward zero upstream gradients too. They cost
nothing, give zeros and may hold anything."""

import numpy as np
import pytest
from devices import and_with_torch, on_each_level
from problems import DTYPES, NAMES, check, numpy_type, only, problem, with_garbage
from reference import assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

# The longer is more than one step of a GPU's list of active rows.
numbers_of_rows = pytest.mark.parametrize("rows", [37, 1300])
FLOATS = ("float32", "float64", "float16", "bfloat16")


def masked(rows: int, dtype: str = "float32", bias: str | None = "float32"):
    """A problem and its mask."""
    return problem(rows, 16, 310, dtype, bias=bias), np.arange(rows) % 3 != 1


@and_with_torch
@numbers_of_rows
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int64", *FLOATS])
def test_a_mask_of_any_type(kind, rows):
    p, mask = masked(rows)
    given = mask.astype(numpy_type(kind))
    assert same_bits(p.logp(mask=given), p.logp(mask=mask))
    check(p, mask=given)


@on_each_level
@numbers_of_rows
@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_rows_may_hold_anything(dtype, rows):
    p, mask = masked(rows, dtype)
    wild, dense = with_garbage(p, mask), only(p, mask)
    logp = wild.logp(mask=mask)
    assert same_bits(logp[~mask], np.zeros((~mask).sum(), np.float32))  # of no sign
    assert same_bits(logp[mask], dense.logp())
    grads, want = wild.grads(mask=mask), dense.grads()
    assert same_bits(grads.hidden[~mask], np.zeros_like(grads.hidden[~mask]))
    assert same_bits(grads.hidden[mask], want.hidden)
    assert same_bits(grads.weight, want.weight)
    assert same_bits(grads.bias, want.bias)


LEFT_OUT = {
    "each third": lambda row, rows: row % 3 == 1,
    "the first half": lambda row, rows: row < rows // 2,
    "the last half": lambda row, rows: row > rows // 2,
    "all but the last": lambda row, rows: row < rows - 1,
    "one": lambda row, rows: row == rows // 3,
}


@on_each_level
@pytest.mark.parametrize("where", LEFT_OUT)
@numbers_of_rows
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_an_upstream_gradient_may_hold_nan(dtype, rows, where):
    p = problem(rows, 16, 310, dtype, bias="float32")
    has = ~LEFT_OUT[where](np.arange(rows), rows)
    wild = p.but(
        hidden=np.where(has[:, None], p.hidden, np.array(np.nan, p.hidden.dtype)),
        upstream=np.where(has, p.upstream, np.resize(np.float32([0, -0.0]), rows)),
    )
    grads, want = wild.grads(), only(p, has).grads()
    assert same_bits(grads.hidden[~has], np.zeros_like(grads.hidden[~has]))
    assert same_bits(grads.hidden[has], want.hidden)
    assert same_bits(grads.hidden[has], p.grads().hidden[has])  # as beside rows that have one
    assert same_bits(grads.weight, want.weight)
    assert same_bits(grads.bias, want.bias)
    # Beside rows that are inactive already, and with nothing left.
    mask = np.arange(rows) % 2 == (rows - 1) % 2
    both = only(p, has & mask)
    assert same_bits(wild.grads(mask=mask).weight, both.grads().weight)
    none = wild.but(upstream=np.zeros(rows, np.float32)).grads()
    for name in NAMES:
        assert same_bits(getattr(none, name), np.zeros_like(getattr(p, name)))


def test_a_row_is_without_gradient_where_those_of_all_outputs_are_zero():
    p, _ = masked(37)
    rows = np.arange(37)
    upstream, entropy, lse = (np.where(rows % 4 == i, np.float32(0.5), 0) for i in range(3))
    has = rows % 4 != 3
    wild = p.but(hidden=np.where(has[:, None], p.hidden, np.float32(np.nan)), upstream=upstream)
    got = wild.grads(grad_entropy=entropy, grad_lse=lse)
    dense = only(wild, has).grads(grad_entropy=entropy[has], grad_lse=lse[has])
    assert same_bits(got.hidden[has], dense.hidden)
    assert not got.hidden[~has].any()
    assert same_bits(got.weight, dense.weight)
    want = only(p.but(upstream=upstream), has).reference()
    exact = want.gradients(upstream[has], entropy[has], lse[has])
    assert_within(got.weight, exact["weight"])


def test_a_gradient_of_nan_is_one():
    p, _ = masked(37)
    upstream = np.where(np.arange(37) == 5, np.float32(np.nan), p.upstream)
    grads = p.but(upstream=upstream).grads()
    assert np.isnan(grads.hidden[5]).all()
    assert np.isnan(grads.weight).all()


@on_each_level
@numbers_of_rows
def test_inactive_temperatures_may_hold_anything(rows):
    p, mask = masked(rows)
    heat = np.full(rows, 0.7, np.float32)
    wild = heat.copy()
    wild[~mask] = np.resize([0, -1, np.nan, np.inf], (~mask).sum())
    given, want = ({"mask": mask, "temperature": t} for t in (wild, heat))
    assert same_bits(p.logp(**given), p.logp(**want))
    assert same_bits(p.grads(**given).weight, p.grads(**want).weight)


@numbers_of_rows
@pytest.mark.parametrize("ignored", [-100, 0, 309, -1, 2**40, -(2**63)])
def test_ignore_index(ignored, rows):
    p, mask = masked(rows)
    p.target[~mask] = ignored
    active = p.target != ignored
    logp = p.logp(ignore_index=ignored)
    assert not logp[~active].any()
    assert same_bits(logp[active], only(p, active).logp(ignore_index=None))
    check(p, ignore_index=ignored)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
def test_minus_one_hundred_is_the_default_in_any_type(kind):
    logp = problem(4, 16, 100).but(target=np.array([1, -100, 2, 3], kind)).logp()
    assert logp[1] == 0
    assert (logp[[0, 2, 3]] < 0).all()


def test_an_unsigned_id_is_not_taken_for_a_negative_one():
    target = np.array([1, 2**64 - 100, 2, 3], np.uint64)  # the bits of -100
    with pytest.raises(rlk.InvalidArgument, match=r"target: expected ids in \[0, 310\).* in row 1"):
        problem(4, 16, 310).but(target=target).logp()


def test_none_ignores_nothing():
    p = problem(4, 16, 310)
    with pytest.raises(rlk.InvalidArgument, match=r"got -100 in row 1"):
        p.but(target=np.array([1, -100, 2, 3])).logp(ignore_index=None)
    assert (p.logp(ignore_index=None) < 0).all()


@numbers_of_rows
def test_mask_and_ignore_index_together(rows):
    p, mask = masked(rows)
    want = p.logp()
    p.target[::4] = -100
    check(p, mask=mask)
    active = mask & (p.target != -100)
    assert same_bits(p.logp(mask=mask)[active], want[active])


@pytest.mark.parametrize("bias", ["same", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["mask", "ignore_index"])
def test_no_active_row_at_all(how, dtype, bias):
    p = problem(5, 16, 310, dtype, bias=dtype if bias == "same" else bias)
    nothing = np.zeros(5, bool)
    if how == "mask":
        wild, options = with_garbage(p, nothing), {"mask": nothing}
    else:
        wild, options = p.but(target=np.full(5, -100)), {}
    assert same_bits(wild.logp(**options), np.zeros(5, np.float32))
    grads = wild.grads(**options)
    for name in NAMES:
        assert same_bits(getattr(grads, name), np.zeros_like(getattr(p, name)))


@numbers_of_rows
def test_one_active_row_among_many(rows):
    p, _ = masked(rows)
    for row in (0, rows // 2 + 50 * (rows > 100), rows - 1):
        mask = np.arange(rows) == row
        alone = only(p, slice(row, row + 1))
        assert same_bits(p.logp(mask=mask)[row : row + 1], alone.logp())
        assert same_bits(p.grads(mask=mask).weight, alone.grads().weight)


@numbers_of_rows
def test_a_mask_of_ones_is_no_mask(rows):
    p, _ = masked(rows)
    ones, plain = np.ones(rows, bool), {"ignore_index": None}
    for options in ({"mask": ones}, {}, {"mask": ones, "ignore_index": None}):
        assert same_bits(p.logp(**options), p.logp(**plain))
        pairs = zip(p.grads(**options), p.grads(**plain), strict=True)
        assert all(same_bits(one, other) for one, other in pairs)


def test_masks_of_two_axes():
    p = problem((4, 9), 16, 310, bias="float32")
    mask = np.arange(36).reshape(4, 9) % 5 != 0
    check(p, mask=mask)
    check(p, mask=np.asfortranarray(mask))
    check(p, mask=np.broadcast_to(np.arange(9) < 5, (4, 9)))


def test_any_byte_but_zero_is_true():
    p, mask = masked(9)
    true = (np.arange(9) * 37 % 255 + 1).astype(np.uint8)
    odd = np.where(mask, true, 0).astype(np.uint8).view(bool)
    for view in (odd, np.repeat(odd, 2)[::2]):
        assert same_bits(p.logp(mask=view), p.logp(mask=mask))
