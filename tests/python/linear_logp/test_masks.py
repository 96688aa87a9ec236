# SPDX-License-Identifier: Apache-2.0
"""Inactive rows: mask and ignore_index. They cost nothing, give zeros and may hold anything."""

import numpy as np
import pytest
from problems import DTYPES, Problem, check, numpy_type, only, problem, with_garbage
from reference import same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")

ROWS = 37
MASK = np.arange(ROWS) % 3 != 1


@pytest.mark.parametrize(
    "kind", ["bool", "int8", "uint8", "int64", "float32", "float64", "float16"]
)
def test_a_mask_of_any_type(kind):
    p = problem(ROWS, 16, 310)
    mask = MASK.astype(kind)
    assert same_bits(p.logp(mask=mask), p.logp(mask=MASK))
    check(p, mask=mask)


def test_a_bfloat16_mask():
    p = problem(ROWS, 16, 310)
    assert same_bits(p.logp(mask=MASK.astype(numpy_type("bfloat16"))), p.logp(mask=MASK))


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_rows_may_hold_anything(dtype):
    p = problem(ROWS, 16, 310, dtype, bias="float32")
    wild, dense = with_garbage(p, MASK), only(p, MASK)
    logp = wild.logp(mask=MASK)
    assert not logp[~MASK].any()
    assert same_bits(logp[MASK], dense.logp())
    grads, want = wild.grads(mask=MASK), dense.grads()
    assert not grads.hidden[~MASK].any()
    assert same_bits(grads.hidden[MASK], want.hidden)
    assert same_bits(grads.weight, want.weight)
    assert same_bits(grads.bias, want.bias)


def test_inactive_temperatures_may_hold_anything():
    p = problem(ROWS, 16, 310)
    heat = np.full(ROWS, 0.7, np.float32)
    wild = heat.copy()
    wild[~MASK] = np.resize([0, -1, np.nan, np.inf], (~MASK).sum())
    assert same_bits(p.logp(mask=MASK, temperature=wild), p.logp(mask=MASK, temperature=heat))


@pytest.mark.parametrize("ignored", [-100, 0, 309, 2**40, -(2**63)])
def test_ignore_index(ignored):
    p = problem(ROWS, 16, 310, bias="float32")
    target = p.target.copy()
    target[~MASK] = ignored
    marked = Problem(p.hidden, p.weight, target, p.bias, p.upstream)
    active = target != ignored
    logp = marked.logp(ignore_index=ignored)
    assert not logp[~active].any()
    assert same_bits(logp[active], only(marked, active).logp(ignore_index=None))
    check(marked, ignore_index=ignored)


def test_minus_one_hundred_is_the_default():
    p = problem(4, 16, 310)
    target = np.array([1, -100, 2, 3])
    logp = rlk.jit.linear_logp(p.hidden, p.weight, target)
    assert logp[1] == 0
    assert (logp[[0, 2, 3]] < 0).all()


@pytest.mark.parametrize("kind", ["int8", "int16", "int32"])
def test_ignore_index_in_a_narrow_type(kind):
    p = problem(4, 16, 100)
    target = np.array([1, -100, 2, 3], kind)
    assert rlk.jit.linear_logp(p.hidden, p.weight, target)[1] == 0


def test_an_unsigned_id_is_not_taken_for_a_negative_one():
    p = problem(4, 16, 310)
    target = np.array([1, 2**64 - 100, 2, 3], np.uint64)  # the bits of -100
    with pytest.raises(rlk.InvalidArgument, match=r"target: expected ids in \[0, 310\).* in row 1"):
        rlk.jit.linear_logp(p.hidden, p.weight, target)


def test_none_ignores_nothing():
    p = problem(4, 16, 310)
    target = np.array([1, -100, 2, 3])
    with pytest.raises(rlk.InvalidArgument, match=r"got -100 in row 1"):
        rlk.jit.linear_logp(p.hidden, p.weight, target, ignore_index=None)
    assert (p.logp(ignore_index=None) < 0).all()


def test_mask_and_ignore_index_together():
    p = problem(ROWS, 16, 310, bias="float32")
    target = p.target.copy()
    target[::4] = -100
    both = Problem(p.hidden, p.weight, target, p.bias, p.upstream)
    check(both, mask=MASK)
    active = MASK & (target != -100)
    assert same_bits(both.logp(mask=MASK)[active], p.logp()[active])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["mask", "ignore_index"])
def test_no_active_row_at_all(how, dtype):
    p = problem(5, 16, 310, dtype, bias="float32")
    if how == "mask":
        wild, options = with_garbage(p, np.zeros(5, bool)), {"mask": np.zeros(5, bool)}
    else:
        target = np.full(5, -100)
        wild, options = Problem(p.hidden, p.weight, target, p.bias, p.upstream), {}
    assert same_bits(wild.logp(**options), np.zeros(5, np.float32))
    grads = wild.grads(**options)
    for name in ("hidden", "weight", "bias"):
        assert getattr(grads, name).shape == getattr(p, name).shape
        assert not getattr(grads, name).any()


def test_a_mask_of_ones_is_no_mask():
    p = problem(ROWS, 16, 310)
    assert same_bits(p.logp(mask=np.ones(ROWS, bool)), p.logp())
    assert same_bits(p.grads(mask=np.ones(ROWS, bool)).weight, p.grads().weight)


def test_zeros_of_inactive_rows_have_no_sign():
    p = problem(ROWS, 16, 310)
    assert not np.signbit(p.logp(mask=MASK)[~MASK]).any()
    assert not np.signbit(p.grads(mask=MASK).hidden[~MASK]).any()


def test_masks_of_two_axes():
    p = problem((4, 9), 16, 310, bias="float32")
    mask = np.arange(36).reshape(4, 9) % 5 != 0
    check(p, mask=mask)
    check(p, mask=np.asfortranarray(mask))
    check(p, mask=np.broadcast_to(np.arange(9) < 5, (4, 9)))
