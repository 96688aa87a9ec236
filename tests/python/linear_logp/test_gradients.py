# SPDX-License-Identifier: Apache-2.0
"""linear_logp_backward: what it computes, what it leaves out."""

import itertools

import numpy as np
import pytest
from devices import jit, on_each_level
from problems import DIM, DTYPES, NAMES, VOCAB, check, problem
from reference import Reference, assert_within, same_bits, worst

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")


@on_each_level
@pytest.mark.parametrize("sizes", [(9, 16, 310), (129, DIM, VOCAB)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_what_is_asked_for(dtype, sizes):
    p = problem(*sizes, dtype, bias="float32")
    full = p.grads()
    for needs in (n for k in range(4) for n in itertools.combinations(NAMES, k)):
        some = p.grads(needs=needs)
        for name in NAMES:
            got = getattr(some, name)
            assert (got is not None) == (name in needs)
            assert got is None or same_bits(got, getattr(full, name)), f"{name} of {needs}"


def test_no_gradient_of_an_absent_bias():
    grads = problem(9, 16, 310).grads()
    assert grads.bias is None
    assert isinstance(grads, rlk.jit.LinearLogpGrads)


@pytest.mark.parametrize(
    ("dtype", "bias"),
    [*((dtype, dtype) for dtype in DTYPES), *((d, "float32") for d in DTYPES[1:])],
)
def test_dtypes_follow_the_operands(dtype, bias):
    p = problem((2, 3), 16, 310, dtype, bias=bias)
    grads = p.grads()
    for name in NAMES:
        assert getattr(grads, name).dtype == getattr(p, name).dtype
        assert getattr(grads, name).shape == getattr(p, name).shape
    check(p)


def test_an_upstream_gradient_of_its_own_a_row():
    p = problem(50, 16, 310)
    sparse = np.zeros(50, np.float32)
    sparse[[3, 20]] = -2.5, 1e3
    grads = jit.linear_logp_backward(sparse, *p.operands)
    assert not np.delete(grads.hidden, [3, 20], axis=0).any()
    assert_within(grads.hidden, p.reference().gradients(sparse)["hidden"])
    assert_within(grads.weight, p.reference().gradients(sparse)["weight"])


def test_the_gradient_is_linear_in_its_upstream():
    p = problem(12, 16, 310)
    # A power of two scales every float32 exactly.
    scaled = jit.linear_logp_backward(p.upstream * 8, *p.operands)
    assert same_bits(scaled.hidden, p.grads().hidden * 8)
    assert same_bits(scaled.weight, p.grads().weight * 8)


# A GPU scales dZ of each row into float16's range, and hidden by what its row was scaled beyond
# the others.
@pytest.mark.parametrize("sizes", [(1e-6,), (1e4,), (1e4, 1e-6)], ids=str)
def test_float16_gradients_of_small_and_large_upstreams(sizes):
    p = problem(129, 40, 3001, "float16", bias="float32")
    p = p.but(upstream=np.resize(np.float32(sizes), 129) * np.linspace(-1, 1, 129, dtype="f"))
    check(p)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradients_over_many_rows_are_summed_in_float32(dtype):
    # Sums kept in 16 bits would lose most of 3,000 small terms.
    for bias in (dtype, "float32"):  # each gradient in the dtype of its own operand
        p = problem(3000, 8, 20, dtype, bias=bias)
        check(p.but(hidden=np.abs(p.hidden), target=p.target * 0, upstream=np.abs(p.upstream)))


def test_the_error_does_not_grow_with_rows_strips_or_waves():
    # A sum restarted or rounded at each would show in the worst ratio.
    rlk.jit.configure(workspace_mib=1)
    for vocab in (64, 500):
        ratios = []
        for rows in (64, 1000, 5000):
            p = problem(rows, 12, vocab)
            exact = p.reference().gradients(p.upstream)["weight"]
            ratios.append(worst(p.grads().weight, exact))
        assert max(ratios) < 0.5, ratios


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7}, {"softcap": 1.25, "logit_scale": 0.8, "temperature": 0.7}],
    ids=str,
)
def test_gradient_by_differences(options):
    # Independent of any formula for the gradient, the reference's included.
    p = problem(3, 5, 11, bias="float32")
    entropy, lse = np.float32([0.5, -1, 2]), np.float32([-0.3, 1, 0.2])
    if "softcap" not in options:
        entropy, lse = entropy * 0, lse * 0
    grads = p.grads(grad_entropy=entropy, grad_lse=lse, **options)
    step = 1e-5

    def loss(**changed) -> float:
        wide = {name: getattr(p, name).astype(np.float64) for name in NAMES} | changed
        exact = Reference(**wide, target=p.target, **options)
        return float((p.upstream * exact.logp + entropy * exact.entropy + lse * exact.lse).sum())

    for name in NAMES:
        base = getattr(p, name).astype(np.float64)
        slopes = np.zeros_like(base)
        for index in np.ndindex(base.shape):
            up, down = base.copy(), base.copy()
            up[index] += step
            down[index] -= step
            slopes[index] = (loss(**{name: up}) - loss(**{name: down})) / (2 * step)
        np.testing.assert_allclose(getattr(grads, name), slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_the_hidden_state_sum_over_the_whole_vocabulary(dtype):
    p = problem(3, 8, 5000, dtype)
    exact = p.reference().gradients(p.upstream)["hidden"]
    assert_within(p.grads(needs=("hidden",)).hidden, exact)


def tree(parts):
    """((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) over the parts that there are."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


@on_each_level
@pytest.mark.parametrize("vocab", [*range(1, 18), 310, 1000, VOCAB])
def test_gradients_of_the_hidden_state_are_a_tree_of_eight_segments(vocab):
    # Further columns of the weight, each for one segment and 0 in the others, where hidden is 0 and
    # so changes no logit: their gradients are what each segment adds to the column they repeat.
    p = problem(50, 5, vocab)
    size = -(-vocab // 8)
    segment = np.arange(vocab)[:, None] // size
    parts = [np.where(segment == s, p.weight, np.float32(0)) for s in range(segment[-1, 0] + 1)]
    wide = p.but(
        hidden=np.pad(p.hidden, ((0, 0), (0, 5 * len(parts)))),
        weight=np.concatenate([p.weight, *parts], axis=1),
    )
    whole, *sums = np.split(wide.grads(needs=("hidden",)).hidden, 1 + len(parts), axis=1)
    assert same_bits(whole, tree(sums))
