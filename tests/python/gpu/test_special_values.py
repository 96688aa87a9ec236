# SPDX-License-Identifier: Apache-2.0
"""Infinite logits, NaN, and what must stay in its own row."""

import numpy as np
import pytest
from on_device import DEVICE, Problem, cuda_only, make, tensor, torch, upload
from problems import DTYPES, check, problem
from reference import same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_vocabulary(dtype):
    p = problem(6, 12, 600)
    bias = np.random.default_rng(4).standard_normal(600).astype(np.float32)
    gone = np.r_[0:3, 190:400, 599]  # a leaf and more of nothing but -inf
    bias[gone] = -np.inf
    target = np.array([5, 50, 100, 450, 598, 189])
    masked = upload(Problem(p.hidden, p.weight, target, bias, p.upstream), dtype)
    check(masked)
    assert masked.logp().isfinite().all()
    grads = masked.grads()
    assert not grads.weight[gone].any()
    assert not grads.bias[gone].any()
    assert grads.hidden.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_at_minus_infinity(dtype):
    p = make(4, 12, 200, dtype)
    bias = torch.zeros(200, device=DEVICE)
    bias[p.target[1]] = -torch.inf
    masked = Problem(p.hidden, p.weight, p.target, bias, p.upstream)
    logp = masked.logp()
    assert logp[1] == -torch.inf
    assert logp[[0, 2, 3]].isfinite().all()
    check(masked)  # the other columns keep -g * p
    assert masked.grads().weight.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_logits_at_minus_infinity_are_nan(dtype):
    p = make(3, 4, 150, dtype)
    bias = tensor(np.full(150, -np.inf, np.float32))
    given = Problem(p.hidden, p.weight, p.target, bias, p.upstream)
    assert given.logp().isnan().all()


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_in_its_row(dtype, odd):
    p = make(300, 12, 200, dtype)
    hidden = p.hidden.clone()
    hidden[[7, 130, 299], 3] = odd
    broken = Problem(hidden, p.weight, p.target, None, p.upstream)
    is_nan = torch.zeros(300, dtype=torch.bool, device=DEVICE)
    is_nan[[7, 130, 299]] = True
    logp, grad = broken.logp(), broken.grads(needs=("hidden",)).hidden
    assert (logp.isnan() == is_nan).all()
    assert same_bits(logp[~is_nan], p.logp()[~is_nan])
    assert grad[is_nan].isnan().all()
    assert same_bits(grad[~is_nan], p.grads(needs=("hidden",)).hidden[~is_nan])


def test_nan_in_the_weights_is_nan_everywhere():
    p = make(5, 12, 200)
    weight = p.weight.clone()
    weight[77, 3] = float("nan")
    assert Problem(p.hidden, weight, p.target, None, p.upstream).logp().isnan().all()


def test_a_nan_upstream_gradient_stays_in_its_row():
    p = make(20, 12, 200, "float16")
    upstream = p.upstream.clone()
    upstream[4] = float("nan")
    grad = Problem(*p.operands, upstream).grads(needs=("hidden",)).hidden
    want = p.grads(needs=("hidden",)).hidden
    others = torch.arange(20, device=DEVICE) != 4
    assert grad[4].isnan().all()
    assert same_bits(grad[others], want[others])


@cuda_only  # the CPU raises at once
def test_a_temperature_that_is_none_makes_its_row_nan():
    p = make(6, 12, 200)
    heat = torch.full((6,), 0.7, device=DEVICE)
    want = p.logp(temperature=heat)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        wrong = heat.clone()
        wrong[2] = bad
        logp = p.logp(temperature=wrong)
        assert logp[2].isnan()
        assert same_bits(logp[[0, 1, 3, 4, 5]], want[[0, 1, 3, 4, 5]])
