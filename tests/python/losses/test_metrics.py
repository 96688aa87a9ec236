# SPDX-License-Identifier: Apache-2.0
"""What a Metrics is: three tensors, and each metric by its name."""

import copy
import pickle

import numpy as np
import pytest
from losses import Batch, batch, same, same_metrics

import rlk
from rlk.losses import Metrics

pytestmark = pytest.mark.usefixtures("generic")

PROPERTIES = {name: x for name, x in vars(Metrics).items() if isinstance(x, property)}
OPTIONS = {"use_tis": True, "tis_imp_ratio_cap": 2.0, "kl_coef": 0.1, "entropy_coef": 0.1}


def of_torch(b: Batch) -> Batch:
    import torch

    others = {name: torch.from_numpy(x) for name, x in b.others.items()}
    arrays = (b.log_probs, b.old, b.advantages, b.mask)
    return Batch(*map(torch.from_numpy, arrays), others)


on_both = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(lambda b: b, id="numpy"),
        pytest.param(of_torch, id="torch", marks=pytest.mark.torch),
    ],
)


@on_both
def test_named_has_every_metric_in_order(kind):
    metrics = kind(batch()).loss(**OPTIONS).metrics
    named = metrics.named()
    assert list(named) == list(PROPERTIES)
    assert len(named) == metrics.counts.shape[0] + metrics.floats.shape[0] == 27
    for name, value in named.items():
        assert value.shape == ()
        assert str(value.dtype).endswith("int64" if name.startswith("num_") else "float32"), name
        assert same(value, getattr(metrics, name)), name
    assert len({float(value) for value in named.values()}) > 15  # else none could be another's


@on_both
def test_named_of_a_combination(kind):
    """Each metric in its place: combine makes the tensors anew."""
    metrics = kind(batch()).loss(**OPTIONS).metrics
    _, found = rlk.losses.combine([metrics])
    for one, other in zip(found, metrics, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert list(found.named()) == list(PROPERTIES)
    for name, value in found.named().items():
        assert same(value, getattr(metrics, name)), name


def test_every_metric_says_what_it_is():
    assert [name for name, x in PROPERTIES.items() if not x.__doc__] == []


def test_it_is_a_tuple_of_three_tensors():
    metrics = batch().loss().metrics
    counts, floats, exact = metrics
    assert counts is metrics.counts
    assert floats is metrics.floats
    assert exact is metrics.exact
    assert metrics._fields == ("counts", "floats", "exact")
    assert metrics._replace(counts=counts + 1).num_active == metrics.num_active + 1
    with pytest.raises(TypeError):
        metrics["num_active"]
    with pytest.raises(AttributeError):
        metrics.num_active = 1


@on_both
def test_copies(kind):
    metrics = kind(batch()).loss(**OPTIONS).metrics
    for found in (copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics))):
        assert type(found) is Metrics
        assert same_metrics(found, metrics)
        before = int(metrics.num_active)
        found.counts[0] += 1
        assert (int(found.num_active), int(metrics.num_active)) == (before + 1, before)


@pytest.mark.torch
def test_torchs_trees():
    from torch.utils import _pytree

    metrics = of_torch(batch()).loss(**OPTIONS).metrics
    leaves, _ = _pytree.tree_flatten(metrics)
    assert len(leaves) == 3
    found = _pytree.tree_map(lambda x: x.numpy(), metrics)
    assert type(found) is Metrics
    assert isinstance(found.counts, np.ndarray)
    assert same(found.clip_ratio, metrics.clip_ratio)
