# SPDX-License-Identifier: Apache-2.0
"""Inactive rows: mask and ignore_index. They give zeros, cost no error and may hold anything."""

import numpy as np
import pytest
from on_device import DEVICE, Problem, leaves, make, tensor, torch, upload
from problems import DTYPES, check, only, problem, with_garbage
from reference import same_bits

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

ROWS = 1300  # more than one step of the list of active rows
MASK = np.arange(ROWS) % 3 != 1


def drawn(bias: str | None = "float32") -> Problem:
    return problem(ROWS, 16, 310, bias=bias)


@pytest.mark.parametrize(
    "kind", ["bool", "int8", "uint8", "int64", "float32", "float64", "float16", "bfloat16"]
)
def test_a_mask_of_any_type(kind):
    check(upload(drawn()), mask=tensor(MASK, kind))


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_rows_may_hold_anything(dtype):
    wild, dense = upload(with_garbage(drawn(), MASK), dtype), upload(only(drawn(), MASK), dtype)
    mask = tensor(MASK)
    logp = wild.logp(mask=mask)
    assert same_bits(logp[~mask], torch.zeros(int((~MASK).sum())))
    assert same_bits(logp[mask], dense.logp())
    grads, want = wild.grads(mask=mask), dense.grads()
    assert not grads.hidden[~mask].any()
    assert not grads.hidden[~mask].signbit().any()
    assert same_bits(grads.hidden[mask], want.hidden)
    assert same_bits(grads.weight, want.weight)
    assert same_bits(grads.bias, want.bias)


def test_inactive_temperatures_may_hold_anything():
    p = upload(drawn())
    heat = np.full(ROWS, 0.7, np.float32)
    wild = heat.copy()
    wild[~MASK] = np.resize([0, -1, np.nan, np.inf], (~MASK).sum())
    options = [{"mask": tensor(MASK), "temperature": tensor(h)} for h in (heat, wild)]
    assert same_bits(p.logp(**options[1]), p.logp(**options[0]))
    assert same_bits(p.grads(**options[1]).weight, p.grads(**options[0]).weight)


@pytest.mark.parametrize("ignored", [-100, 0, 309, -1, 2**40, -(2**63)])
def test_ignore_index(ignored):
    p = drawn()
    p.target[~MASK] = ignored
    active = p.target != ignored
    marked = upload(p)
    logp = marked.logp(ignore_index=ignored)
    assert not logp[tensor(~active)].any()
    want = upload(only(p, active)).logp(ignore_index=None)
    assert same_bits(logp[tensor(active)], want)
    check(marked, ignore_index=ignored)


def test_minus_one_hundred_is_the_default():
    p = make(4, 16, 310)
    logp = rlk.jit.linear_logp(p.hidden, p.weight, tensor([1, -100, 2, 3]))
    assert logp[1] == 0
    assert (logp[[0, 2, 3]] < 0).all()


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32])
def test_ignore_index_in_a_narrow_type(kind):
    p = make(4, 16, 100)
    logp = rlk.jit.linear_logp(p.hidden, p.weight, tensor([1, -100, 2, 3]).to(kind))
    assert logp[1] == 0


def test_an_unsigned_id_is_not_taken_for_a_negative_one():
    p = make(4, 16, 310)
    target = torch.tensor([1, 2**64 - 100, 2, 3], dtype=torch.uint64).to(DEVICE)  # bits of -100

    def call():
        logp = rlk.jit.linear_logp(p.hidden, p.weight, target)
        rlk.jit.check_errors()
        return logp

    with pytest.raises(rlk.InvalidArgument, match=r"target: expected ids in \[0, 310\).* in row 1"):
        call()


def test_mask_and_ignore_index_together():
    p = drawn()
    p.target[::4] = -100
    both = upload(p)
    check(both, mask=tensor(MASK))
    active = tensor(MASK & (p.target != -100))
    assert same_bits(both.logp(mask=tensor(MASK))[active], upload(drawn()).logp()[active])


@pytest.mark.parametrize("how", ["mask", "ignore_index"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_active_row_at_all(how, dtype):
    p = problem(5, 16, 310, bias="float32")
    if how == "mask":
        nothing = np.zeros(5, bool)
        wild, options = with_garbage(p, nothing), {"mask": tensor(nothing)}
    else:
        wild = Problem(p.hidden, p.weight, np.full(5, -100), p.bias, p.upstream)
        options = {}
    given = upload(wild, dtype, "same")
    assert same_bits(given.logp(**options), torch.zeros(5))
    grads = given.grads(**options)
    for name in ("hidden", "weight", "bias"):
        found = getattr(grads, name)
        assert found.shape == getattr(given, name).shape
        assert not found.any()
        assert not found.signbit().any()


def test_no_rows():
    p = make((0, 4), 16, 310, "bfloat16", bias="same")
    assert p.logp().shape == (0, 4)
    grads = p.grads()
    assert grads.hidden.shape == (0, 4, 16)
    assert grads.weight.shape == (310, 16)
    assert not grads.weight.any()
    assert not grads.bias.any()


def test_one_active_row_among_many():
    for row in (0, 700, ROWS - 1):
        p = upload(drawn())
        mask = torch.arange(ROWS, device=DEVICE) == row
        alone = only(p, slice(row, row + 1))
        assert same_bits(p.logp(mask=mask)[row : row + 1], alone.logp())
        assert same_bits(p.grads(mask=mask).weight, alone.grads().weight)


def test_a_mask_of_ones_is_no_mask():
    p = upload(drawn())
    ones = torch.ones(ROWS, dtype=torch.bool, device=DEVICE)
    for options in ({"mask": ones}, {}, {"mask": ones, "ignore_index": None}):
        assert same_bits(p.logp(**options), p.logp(ignore_index=None))
        pairs = zip(p.grads(**options), p.grads(ignore_index=None), strict=True)
        assert all(same_bits(one, other) for one, other in pairs)


def test_masks_of_two_axes():
    p = make((4, 9), 16, 310, bias="float32")
    mask = torch.arange(36, device=DEVICE).reshape(4, 9) % 5 != 0
    check(p, mask=mask)
    check(p, mask=mask.t().contiguous().t())
    check(p, mask=(torch.arange(9, device=DEVICE) < 5).expand(4, 9))


def test_under_autograd():
    p = upload(with_garbage(drawn(), MASK), "bfloat16")
    mask = tensor(MASK)
    given = leaves(p)
    rlk.jit.linear_logp(**given, mask=mask).backward(p.upstream)
    want = p.grads(mask=mask)
    for name in ("hidden", "weight", "bias"):
        assert same_bits(given[name].grad, getattr(want, name))
