# SPDX-License-Identifier: Apache-2.0
"""group_advantages: golden cases, equal rewards, boundaries, cancellation."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import rlk

pytestmark = pytest.mark.usefixtures("generic")

GOLDEN = json.loads((Path(__file__).parent / "cases/rl_losses_golden.json").read_text())["adv"]
KINDS = {
    "pop_max1e6": {"ddof": 0, "eps_mode": "max"},
    "bessel_add1e6": {},
    "bessel_add1e4": {"eps": 1e-4},
    "center": {"normalize": "center"},
}


def advantages(rewards, dtype="float32", **options):
    if "group_boundaries" not in options:
        options.setdefault("samples_per_prompt", 4)
    return rlk.jit.group_advantages(np.asarray(rewards, dtype), **options)


def expected(rewards, starts, normalize="std", ddof=1, eps=1e-6, eps_mode="add"):
    """In float64, group by group."""
    rewards = np.asarray(rewards, np.float64)
    found = np.zeros(len(rewards))
    for first, last in pairwise(starts):
        x = rewards[first:last]
        if (x == x[0]).all():
            continue
        std = np.sqrt(((x - x.mean()) ** 2).sum() / max(len(x) - ddof, 1))
        below = {
            "std": std + eps if eps_mode == "add" else max(std, eps),
            "center": 1.0,
            "rloo": (len(x) - 1) / len(x),
        }[normalize]
        found[first:last] = (x - x.mean()) / below
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, kind):
    """verl 6348: "tiny"; one pass in float32 is 20 times off in "offset"."""
    rewards = GOLDEN[case]["rewards"]
    got = advantages(rewards, "float64", samples_per_prompt=len(rewards), **KINDS[kind])
    np.testing.assert_allclose(got, GOLDEN[case][kind], rtol=1e-5)


@pytest.mark.parametrize("normalize", ["std", "center", "rloo"])
@pytest.mark.parametrize("reward", [0.95, 0.1, -3.7e8, 0.0])
def test_equal_rewards_give_zero(normalize, reward):
    """Noise over eps elsewhere: 0.92 in one system."""
    got = advantages([reward] * 8, samples_per_prompt=8, normalize=normalize, eps=1e-9)
    assert not got.any()
    assert not np.signbit(got).any()


def test_a_group_of_one_gives_zero():
    got = advantages([3.0, 5.0, 1.0, 2.0], group_boundaries=[0, 1, 2, 4])
    assert not got[:2].any()
    assert got[2] == -got[3]


def test_leave_one_out():
    """NeMo 4158, 1518: no -2075, no 1e6."""
    got = advantages([0, *[0.95] * 7], samples_per_prompt=8, normalize="rloo")
    np.testing.assert_allclose(got, [-0.95, *[0.95 / 7] * 7], rtol=1e-6)
    got = advantages([1, 0, 0, 0], normalize="rloo")
    np.testing.assert_allclose(got, [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-6)


@pytest.mark.parametrize("normalize", ["std", "center", "rloo"])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps_mode", ["add", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_ragged_groups(normalize, ddof, eps_mode, dtype):
    rng = np.random.default_rng(0)
    starts = np.array([0, 1, 3, 10, 40, 41, 140])
    rewards = rng.normal(size=140).astype(dtype)
    options = {"normalize": normalize, "ddof": ddof, "eps_mode": eps_mode, "eps": 1e-3}
    got = advantages(rewards, dtype, group_boundaries=starts, **options)
    want = expected(rewards, starts, **options)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    for first, last in pairwise(starts):
        assert abs(got[first:last].sum()) <= 1e-5 * (last - first)
        alone = advantages(
            rewards[first:last], dtype, group_boundaries=[0, last - first], **options
        )
        assert np.array_equal(alone, got[first:last])


def test_specialized_is_generic_bit_for_bit():
    rewards = np.random.default_rng(1).normal(size=48)
    choices = [{}, {"eps_mode": "max"}, {"normalize": "center"}, {"normalize": "rloo"}]
    want = [advantages(rewards, "float64", **choice) for choice in choices]
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info().fallbacks
    for choice, generic in zip(choices, want, strict=True):
        assert np.array_equal(advantages(rewards, "float64", **choice), generic)
    assert rlk.jit.cache_info().fallbacks == before


def test_shapes_and_strides():
    rewards = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    got = rlk.jit.group_advantages(rewards, samples_per_prompt=4)
    assert got.shape == (6, 4)
    assert np.array_equal(got.reshape(-1), advantages(rewards.reshape(-1)))
    turned = np.asfortranarray(rewards)
    assert np.array_equal(rlk.jit.group_advantages(turned, samples_per_prompt=4), got)
    assert advantages([]).shape == (0,)


def test_nan_stays_in_its_group():
    got = advantages([1, np.nan, 2, 3, 1, 2, 3, 4])
    assert np.isnan(got[:4]).all()
    assert np.isfinite(got[4:]).all()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"group_boundaries": [2, 4, 6]}, "start at 0"),
        ({"group_boundaries": [0, 4]}, "end at 6"),
        ({"group_boundaries": [0, 3, 3, 6]}, "to increase"),
        ({"group_boundaries": [0, 4, 2, 6]}, "to increase"),
        ({"group_boundaries": [0.0, 6.0]}, "integers"),
        ({"group_boundaries": [[0, 6]]}, "shape"),
        ({"samples_per_prompt": 4}, "divisor of the 6"),
        ({"samples_per_prompt": 0}, "from 1 up"),
        ({"samples_per_prompt": 2, "group_boundaries": [0, 6]}, "both"),
        ({"samples_per_prompt": None}, "neither"),
        ({"samples_per_prompt": 3, "normalize": "mean"}, "std, center, rloo"),
        ({"samples_per_prompt": 3, "eps_mode": "sum"}, "add, max"),
        ({"samples_per_prompt": 3, "ddof": 2}, "0 or 1"),
        ({"samples_per_prompt": 3, "eps": -1.0}, "from 0 up"),
    ],
)
def test_errors(options, why):
    """RL-Kernel seed PR 97: translated boundaries."""
    with pytest.raises(rlk.InvalidArgument, match=f"^group_advantages: .*{why}"):
        rlk.jit.group_advantages(np.zeros(6, np.float32), **options)
    with pytest.raises(rlk.InvalidArgument, match="floating"):
        rlk.jit.group_advantages(np.zeros(6, np.int64), samples_per_prompt=3)


def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], requires_grad=True)
    got = rlk.jit.group_advantages(rewards, samples_per_prompt=2)
    assert not got.requires_grad
    assert np.array_equal(got, advantages([1.0, 0, 0, 1], samples_per_prompt=2))


@pytest.mark.parametrize("name", ["normalize", "eps_mode", "ddof", "eps", "samples_per_prompt"])
@pytest.mark.parametrize(
    "wrong", [np.zeros(2), [1], {}, b"1", 10**400, 10**5000, -1.5], ids=lambda w: str(type(w))
)
def test_what_is_no_value_of_an_option(name, wrong):
    with pytest.raises(rlk.InvalidArgument, match=f"^group_advantages: {name}: expected"):
        rlk.jit.group_advantages(np.zeros(6, np.float32), **{"samples_per_prompt": 3, name: wrong})


def test_boundaries_of_several_lengths_and_unknown_options():
    rewards = np.zeros(6, np.float32)
    with pytest.raises(rlk.InvalidArgument, match=r"^group_advantages: group_boundaries: expected"):
        rlk.jit.group_advantages(rewards, group_boundaries=[[0], [1, 6]])
    with pytest.raises(TypeError, match=r"^group_advantages: groups: expected"):
        rlk.jit.explain_group_advantages(rewards, groups=2)
