# SPDX-License-Identifier: Apache-2.0
"""logp's inactive rows, and what it refuses."""

import re

import numpy as np
import pytest
from devices import on_cpu_alone
from logits import Logits, draw
from problems import DTYPES
from reference import Exact, assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

ROWS = 37
MASK = np.arange(ROWS) % 3 != 1


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int64", "float32", "float16"])
def test_a_mask_of_any_type(kind):
    p = draw(ROWS, 310)
    want = Exact(p, active=MASK)
    found = p.outputs(mask=MASK.astype(kind))
    for name, bounded in want.outputs().items():
        assert_within(getattr(found, name), bounded, name)
    grad = p.grad(mask=MASK.astype(kind))
    assert_within(grad, want.gradient(p.upstream), "gradient")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [310, 1536, 50257])
def test_inactive_rows_may_hold_anything(vocab, dtype):
    """RL-Kernel #161, #162: ids out of range; NaN and infinities in logits and upstream."""
    p = draw(ROWS, vocab, dtype)
    dense = p.rows(MASK)
    wild = Logits(p.logits.copy(), p.target.copy(), p.upstream.copy())
    wild.logits[~MASK] = np.resize([np.nan, np.inf, -np.inf], vocab)
    wild.target[~MASK] = np.resize([-100, vocab, 2**62, -1, 2**40], (~MASK).sum())
    wild.upstream[~MASK] = np.nan
    ignored = wild.but(target=np.where(MASK, wild.target, -100))

    def run(p, **options):
        every = {"grad_entropy": p.upstream * 0.5, "grad_lse": p.upstream + 1}
        return (*p.outputs(**options), p.grad(**options), p.grad(**options, **every))

    for given, options in ((wild, {"mask": MASK}), (ignored, {})):
        for got, want in zip(run(given, **options), run(dense), strict=True):
            assert same_bits(got[MASK], want)
            assert same_bits(got[~MASK], np.zeros_like(got[~MASK]))
    heat = np.where(MASK, 0.7, np.nan)
    assert same_bits(wild.logp(mask=MASK, temperature=heat)[MASK], dense.logp(temperature=0.7))


@pytest.mark.parametrize("ignored", [-100, 0, 2**40])
def test_ignore_index(ignored):
    p = draw(ROWS, 310)
    p.target[~MASK] = ignored
    active = p.target != ignored
    want = p.but(target=np.where(active, p.target, 1))
    assert same_bits(p.logp(ignore_index=ignored), want.logp(mask=active))
    assert same_bits(p.grad(ignore_index=ignored), want.grad(mask=active))


def test_no_index_is_ignored():
    p = draw(ROWS, 310)
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: target: .*got -100 in row 5$"):
        p.but(target=np.where(np.arange(ROWS) == 5, -100, p.target)).logp(ignore_index=None)


def test_no_active_row():
    p = draw((3, 4), 100)
    nothing = p.but(logits=np.full_like(p.logits, np.nan))
    mask = np.zeros((3, 4), bool)
    assert all(not out.any() for out in nothing.outputs(mask=mask))
    assert same_bits(nothing.grad(mask=mask), np.zeros_like(p.logits))


@on_cpu_alone
@pytest.mark.parametrize("bad", [310, -1, 2**31, 2**32 + 3, 2**63 - 1])
def test_targets_out_of_range(bad):
    p = draw((2, 5), 310)
    target = p.target.copy()
    target[1, 2] = bad
    wrong = p.but(target=target)
    message = rf"^logp: target: expected ids in \[0, 310\), got {bad} in row 7$"
    for call in (wrong.logp, wrong.grad):
        with pytest.raises(rlk.InvalidArgument, match=message):
            call()


@on_cpu_alone
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits": np.zeros((4, 9))}, "logits: expected dtype float32, .*, got float64"),
        ({"logits": np.zeros((4, 9), int)}, "logits: expected dtype float32, .*, got int64"),
        ({"logits": np.float32(1)}, r"logits: expected shape \[..., V\] .*, got \[\]"),
        ({"logits": np.zeros((4, 0), "f")}, r"logits: expected shape .*, got \[4, 0\]"),
        ({"logits": None}, "logits: expected .*, got None.*"),
        ({"target": None}, "target: expected a tensor, got None"),
        ({"target": np.zeros(5, int)}, r"target: expected shape \[4\], got \[5\]"),
        ({"target": np.zeros(4)}, "target: expected an integer dtype, got float64"),
        ({"mask": np.ones(3)}, r"mask: expected shape \[4\], got \[3\]"),
        ({"mask": np.full(4, 2)}, "mask: expected 0 or 1, got 2 in row 0"),
        ({"mask": np.zeros(4, complex)}, "mask: expected a bool, .*"),
        ({"temperature": 0.0}, "temperature: expected a finite number above 0 .*, got 0"),
        ({"temperature": np.full(4, -1.0)}, "temperature: expected a finite number above 0 .*"),
        ({"temperature": "hot"}, r"temperature: expected a number or a tensor \[...\], got str"),
        ({"softcap": 0.0}, "softcap: expected a finite number above 0 .*"),
        ({"softcap": "x"}, "softcap: expected a number or None, got str"),
        ({"logit_scale": np.inf}, "logit_scale: expected a finite number of float32, got inf"),
        ({"ignore_index": 1.5}, "ignore_index: expected an int of 64 bits or None, got 1.5"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_wrong_arguments(changed, message):
    given = {"logits": np.zeros((4, 9), np.float32), "target": np.zeros(4, np.int64), **changed}
    for call in (rlk.jit.logp, lambda **a: rlk.jit.logp_backward(np.ones(4, "f"), **a)):
        with pytest.raises(rlk.InvalidArgument, match=f"^logp: {message}$"):
            call(**given)


@on_cpu_alone
def test_wrong_gradients():
    p = draw(4, 9)
    for given, message in (
        ({}, "grad_output: expected a tensor, got None"),
        ({"grad_entropy": np.ones(3)}, "grad_entropy: expected shape [4], got [3]"),
        ({"grad_lse": np.ones(4, int)}, "grad_lse: expected a floating dtype, got int64"),
    ):
        with pytest.raises(rlk.InvalidArgument, match=f"^logp: {re.escape(message)}$"):
            rlk.jit.logp_backward(None, p.logits, p.target, **given)
