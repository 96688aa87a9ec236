# SPDX-License-Identifier: Apache-2.0
"""return_stats of logp: values, bits, which are linear_logp's, special values, autograd."""

import numpy as np
import pytest
from devices import host_levels, jit, on_each_level
from layouts import LAYOUTS
from logits import Logits, draw
from problems import DTYPES
from reference import Exact, same_bits
from stats import STATS, check_stats, same_stats

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

OPTIONS = {"softcap": 2.0, "logit_scale": -0.25, "temperature": 1.3}
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
INF = np.inf


def stats_of(p: Logits, **options):
    return p.logp(**STATS, **options).stats


@on_each_level
@each_dtype
@pytest.mark.parametrize(
    "vocab", [1, 2, 3, 5, 17, 127, 129, 191, 193, 385, 1025, 3072, 4099, 50257]
)
def test_values(vocab, dtype):
    p = draw(5, vocab, dtype)
    for options in ({}, {"temperature": 0.7}, OPTIONS):
        check_stats(stats_of(p, **options), Exact(p, **options))


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 0), (3, 5), (40,)])
def test_shapes(lead):
    p = draw(lead, 65)
    check_stats(stats_of(p), Exact(p))


@pytest.mark.parametrize("kind", ["bool", "int64", "float32"])
def test_inactive_rows_are_neutral_whatever_they_hold(kind):
    p = draw(37, 1537)
    active = np.arange(37) % 3 != 1
    p.logits[~active] = np.nan
    p.target[~active] = 2**40
    check_stats(stats_of(p, mask=active.astype(kind)), Exact(p, active=active))


@pytest.mark.parametrize("vocab", [1, 17, 193, 1000, 6145, 50257])
def test_bits_are_those_of_linear_logp(device, vocab):
    p = draw(32, vocab)
    weight, eye = np.ascontiguousarray(p.logits.T), np.eye(32, dtype=np.float32)
    for level in host_levels() if device == "cpu" else [rlk.jit.settings()["arch"]]:
        rlk.jit.configure(arch=level)
        for options in ({}, OPTIONS):
            linear = jit.linear_logp(eye, weight, p.target, **STATS, **options)
            assert same_stats(stats_of(p, **options), linear.stats)


@on_each_level
@each_dtype
@pytest.mark.parametrize("vocab", [390, 3331])
def test_generic_and_specialized_give_the_same_bits(vocab, dtype):
    p = draw(33, vocab, dtype)
    for options in ({}, {**OPTIONS, "return_entropy": True}):
        found = []
        for specialize in (False, True):
            rlk.jit.configure(specialize=specialize)
            found.append(p.logp(**STATS, **options))
        explained = jit.explain(rlk.jit.logp, p.logits, p.target, **STATS, **options)
        assert (explained.variant, "stats=yes" in explained.kernel) == ("specialized", True)
        assert same_stats(*(one.stats for one in found))
        assert same_bits(found[0].log_prob, p.logp(**{**options, "return_entropy": True}).log_prob)


@on_each_level
def test_a_row_has_the_same_bits_in_every_batch():
    p = draw(300, 50257, "bfloat16")  # of a GPU: a block a row, and several where there are few
    whole = stats_of(p)
    for some in (slice(0, 1), slice(5, 8), slice(None, None, -1)):
        assert same_stats(stats_of(p.rows(some)), [value[some] for value in whole])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    p = draw(9, 310)
    assert same_stats(stats_of(p.but(logits=LAYOUTS[layout](p.logits))), stats_of(p))


@on_each_level
@pytest.mark.parametrize("vocab", [3, 200, 2000])
def test_special_values(vocab):
    p = draw(12, vocab)
    z = p.logits
    z[0, ::2] = -INF
    z[1] = -INF
    z[2], z[2, vocab // 2 :] = 0.5, 1.5  # ties
    z[3] = 1.0
    z[4, -1] = np.nan
    z[5, 0] = INF
    z[6] = np.nan
    z[7, : vocab - 1] = -INF
    stats = stats_of(p)
    check_stats(stats, Exact(p))
    assert stats.argmax[:4].tolist() == [z[0].argmax(), 0, vocab // 2, 0]
    assert stats.argmax[4:8].tolist() == [-1, -1, -1, vocab - 1]
    assert stats.mean_logit[5] == INF
    assert stats.max_logit[1] == -INF
    assert stats.sum_p2[7] == 1.0


@pytest.mark.torch
def test_no_gradient_flows_through_them():
    from tensors import tensor

    p = draw(9, 310)
    results = []
    for options in ({}, STATS):
        logits = tensor(p.logits).requires_grad_()
        found = rlk.jit.logp(logits, tensor(p.target), return_lse=True, **options)
        (found.log_prob.sum() + found.lse.sum()).backward()
        results.append((found, logits.grad))
    (_, want), (found, grad) = results
    assert same_bits(grad, want)
    assert not any(value.requires_grad for value in found.stats)
    check_stats(found.stats, Exact(p))
