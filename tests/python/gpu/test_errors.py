# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments on the device: ids that only the kernel sees, and another device."""

import re

import pytest
from on_device import DEVICE
from problems import Problem
from reference import same_bits
from tensors import leaves, make, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

ROWS, DIM, VOCAB = 20, 16, 310
BAD = [-1, VOCAB, 2**31 - 1, 2**31, 2**32, 2**32 + 1, -(2**63), 2**63 - 1]


def with_id(p: Problem, row: int, bad: int) -> Problem:
    target = p.target.clone()
    target[row] = bad
    return Problem(p.hidden, p.weight, target, p.bias, p.upstream)


def message(row: int, bad: int) -> str:
    return rf"linear_logp: target: expected .*{VOCAB}.*, got {bad} in row {row}"


def expect_report(row: int, bad: int) -> None:
    with pytest.raises(rlk.InvalidArgument, match=message(row, bad)) as caught:
        rlk.jit.check_errors()
    assert isinstance(caught.value, ValueError)
    rlk.jit.check_errors()  # said once


def rows_but(row: int):
    return torch.arange(ROWS, device=DEVICE) != row


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_id_is_nan_in_its_row_and_reported_once(bad):
    # 2^32 + 1 narrowed to 32 bits would be a valid id.
    p = make(ROWS, DIM, VOCAB, "bfloat16", bias="float32")
    want = p.logp()
    logp = with_id(p, 7, bad).logp()
    expect_report(7, bad)
    assert logp[7].isnan()
    assert same_bits(logp[rows_but(7)], want[rows_but(7)])
    assert same_bits(p.logp(), want)  # and the device works on


def test_the_next_call_reports_it():
    p = make(ROWS, DIM, VOCAB)
    want = p.logp()
    with_id(p, 3, VOCAB).logp()
    torch.cuda.synchronize()
    with pytest.raises(rlk.InvalidArgument, match=message(3, VOCAB)):
        p.logp()
    assert same_bits(p.logp(), want)
    rlk.jit.check_errors()


def test_one_of_several_is_reported():
    p = make(ROWS, DIM, VOCAB)
    target = p.target.clone()
    target[4], target[11] = -5, VOCAB + 6
    logp = rlk.jit.linear_logp(p.hidden, p.weight, target)
    with pytest.raises(rlk.InvalidArgument) as caught:
        rlk.jit.check_errors(torch.cuda.current_device())
    assert any(re.search(message(row, bad), str(caught.value)) for row, bad in ((4, -5), (11, 316)))
    assert logp.isnan().nonzero()[:, 0].tolist() == [4, 11]
    rlk.jit.check_errors()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_gradient_of_a_row_with_a_bad_id_is_nan(dtype):
    p = make(ROWS, DIM, VOCAB, dtype, bias="float32")
    given = leaves(with_id(p, 7, -7))
    logp = rlk.jit.linear_logp(**given)
    expect_report(7, -7)
    logp.backward(p.upstream)
    rlk.jit.check_errors()  # the forward has said it
    got, want = given["hidden"].grad, p.grads(needs=("hidden",)).hidden
    assert got[7].isnan().all()
    assert same_bits(got[rows_but(7)], want[rows_but(7)])


def test_a_bad_id_in_a_call_of_two_passes():
    # Its backward may see already what its forward found.
    p = with_id(make(ROWS, DIM, VOCAB), 7, VOCAB)

    def call():
        p.grads()
        rlk.jit.check_errors()

    with pytest.raises(rlk.InvalidArgument, match=message(7, VOCAB)):
        call()
    rlk.jit.check_errors()


def test_rows_are_counted_with_the_inactive_ones():
    p = with_id(make((4, 5), DIM, VOCAB), (3, 1), 400)
    p.target[0, 0] = -100
    mask = torch.ones(4, 5, device=DEVICE)
    mask[1] = 0
    logp = p.logp(mask=mask)
    expect_report(16, 400)
    assert logp[3, 1].isnan()
    assert int(logp.isnan().sum()) == 1


def test_ids_of_inactive_rows_are_not_looked_at():
    p = make(ROWS, DIM, VOCAB)
    mask = rows_but(7)
    want = p.logp(mask=mask)
    for bad in BAD:
        wild = with_id(p, 7, bad)
        assert same_bits(wild.logp(mask=mask), want)
        wild.grads(mask=mask)
    rlk.jit.check_errors()


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**32 + 1])
def test_sync_validation_raises_before_the_launch(bad):
    p = make(ROWS, DIM, VOCAB, bias="float32")
    want = p.logp()
    rlk.jit.configure(validate="sync")
    wrong = with_id(p, 7, bad)
    for call in (wrong.logp, wrong.grads):
        with pytest.raises(rlk.InvalidArgument, match=message(7, bad)):
            call()
    given = leaves(wrong)
    with pytest.raises(rlk.InvalidArgument, match=message(7, bad)):
        rlk.jit.linear_logp(**given)
    assert same_bits(p.logp(), want)
    assert same_bits(wrong.logp(mask=rows_but(7)), p.logp(mask=rows_but(7)))
    rlk.jit.check_errors()  # nothing was launched that could report


def test_no_call_waits_for_the_check_of_ids():
    # Validation that synchronized would take what the sleeping device has not done yet.
    p = with_id(make(ROWS, DIM, VOCAB), 7, -1)
    make(ROWS, DIM, VOCAB).logp()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    asleep = torch.cuda.Event()
    asleep.record()
    p.logp()
    assert not asleep.query()
    expect_report(7, -1)


@pytest.mark.parametrize("name", ["hidden", "weight", "target", "bias", "mask", "temperature"])
def test_an_argument_on_another_device(name):
    p = make(4, 8, 50, bias="float32")
    given = {"hidden": p.hidden, "weight": p.weight, "target": p.target, "bias": p.bias}
    given |= {"mask": torch.ones(4, device=DEVICE), "temperature": torch.ones(4, device=DEVICE)}
    given[name] = given[name].cpu()
    named = "weight" if name == "hidden" else name  # the first that differs from hidden
    with pytest.raises(rlk.InvalidArgument, match=f"linear_logp: {named}: expected device c"):
        rlk.jit.linear_logp(**given)
