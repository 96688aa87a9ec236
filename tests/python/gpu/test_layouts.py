# SPDX-License-Identifier: Apache-2.0
"""Strides, broadcasts and order of axes: all valid inputs, all the same bits."""

import itertools

import pytest
from on_device import DEVICE, Problem, make, padded, shifted, spaced, torch, transposed
from problems import DTYPES, check
from reference import same_bits

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

FIELDS = ("hidden", "weight", "target", "bias", "upstream")
VIEWS = {
    "spaced": spaced,
    "padded": lambda t: padded(t) if t.is_floating_point() else spaced(t),
    "transposed": transposed,
    "one_off": lambda t: shifted(t, t.element_size()),
}


def fields(p: Problem) -> dict:
    return {name: getattr(p, name) for name in FIELDS}


def assert_same(p: Problem, other: Problem, **options) -> None:
    """Both give the same bits, forward and backward."""
    assert same_bits(other.logp(**options), p.logp(**options))
    for got, want in zip(other.grads(**options), p.grads(**options), strict=True):
        assert (got is None and want is None) or same_bits(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("lead", [29, (4, 7)])
def test_strided_operands(view, dtype, lead):
    p = make(lead, 37, 301, dtype, bias="same")
    for name in FIELDS:
        moved = VIEWS[view](fields(p)[name])
        assert_same(p, Problem(**fields(p) | {name: moved}))
    assert_same(p, Problem(**{name: VIEWS[view](t) for name, t in fields(p).items()}))


@pytest.mark.parametrize("view", VIEWS)
def test_strided_rows_of_options(view):
    p = make((4, 7), 37, 301)
    heat = torch.linspace(0.5, 2, 28, device=DEVICE).reshape(4, 7)
    mask = torch.arange(28, device=DEVICE).reshape(4, 7) % 4 != 0
    want = p.logp(temperature=heat, mask=mask)
    move = VIEWS[view] if view != "padded" else spaced
    assert same_bits(p.logp(temperature=move(heat), mask=move(mask)), want)
    assert same_bits(p.logp(temperature=move(heat.double()), mask=move(mask.int())), want)


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_leading_axes_in_any_order(axes):
    p = make((3, 4, 5), 12, 301, "bfloat16")

    def stored(t, how):
        back = [how.index(axis) for axis in range(len(how))]
        return t.permute(how).contiguous().permute(back)

    hidden = stored(p.hidden, (*axes, 3))
    target, upstream = stored(p.target, axes), stored(p.upstream, axes)
    assert hidden.shape == p.hidden.shape
    assert_same(p, Problem(hidden, p.weight, target, None, upstream))


def test_eight_axes_and_no_more():
    p = make((1, 2, 1, 3, 1, 1, 1), 12, 300)
    check(p)
    nine = make((1,) * 8, 12, 30)
    with pytest.raises(rlk.InvalidArgument, match="linear_logp: hidden: expected at most 8 dim"):
        nine.logp()


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_operands(dtype):
    p = make(6, 16, 301, dtype, bias="same")
    wide = {
        "hidden": p.hidden[2].expand(6, 16),
        "weight": p.weight[3].expand(301, 16),
        "target": p.target[1].expand(6),
        "bias": p.bias[0].expand(301),
        "upstream": p.upstream[0].expand(6),
    }
    for name, view in wide.items():
        dense = Problem(**fields(p) | {name: view.contiguous()})
        assert_same(dense, Problem(**fields(p) | {name: view}))
    column = p.hidden[:, :1].expand(6, 16)  # stride 0 along D
    assert_same(
        Problem(**fields(p) | {"hidden": column.contiguous()}),
        Problem(**fields(p) | {"hidden": column}),
    )


def test_one_row_without_leading_axes():
    p = make(5, 12, 301)
    logp = rlk.jit.linear_logp(p.hidden[2], p.weight, p.target[2])
    assert logp.shape == ()
    assert same_bits(logp, p.logp()[2])


def test_rows_that_overlap_in_memory():
    # A sliding window: rows are one element apart.
    memory = torch.randn(9 + 16, device=DEVICE)
    window = memory.as_strided((9, 16), (1, 1))
    p = make(9, 16, 100)
    assert_same(
        Problem(window.contiguous(), p.weight, p.target, None, p.upstream),
        Problem(window, p.weight, p.target, None, p.upstream),
    )
