# SPDX-License-Identifier: Apache-2.0
"""group_advantages: golden cases, equal rewards, boundaries, cancellation."""

from itertools import pairwise

import numpy as np
import pytest
from devices import get, jit, on_cpu_alone, torch_name
from paths import GOLDEN
from problems import numpy_type
from reference import expected_advantages, leave_one_out

import rlk
from rlk.losses import ADVANTAGES, DIALECTS

pytestmark = pytest.mark.usefixtures("device", "generic")

CASES = GOLDEN["adv"]
#: Boundaries that the host gives for a call on CUDA are checked there, all at once.
ON_CUDA = {
    "start at 0": "from 0 to 6",
    "end at 6": "from 0 to 6",
    "to increase": "that increase from 0 to 6",
    "shape": "from 0 to 6",
    "by at least 2, got 6 after 5": "by at least 2 from 0 to 6",
}
KINDS = {
    "pop_max1e6": {"ddof": 0, "eps_mode": "max"},
    "bessel_add1e6": {},
    "bessel_add1e4": {"eps": 1e-4},
    "center": {"normalize": "center"},
}


def advantages(rewards, dtype="float32", **options):
    if "group_boundaries" not in options:
        options.setdefault("samples_per_prompt", 4)
    return jit.group_advantages(np.asarray(rewards, numpy_type(dtype)), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_golden(case, kind):
    """verl 6348: "tiny"; one pass in float32 is 20 times off in "offset"."""
    rewards = CASES[case]["rewards"]
    got = advantages(rewards, "float64", samples_per_prompt=len(rewards), **KINDS[kind])
    np.testing.assert_allclose(got, CASES[case][kind], rtol=1e-5)


NORMALIZE = ("std", "center", "rloo", "loo_std")


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("reward", [0.95, 0.1, -3.7e8, 0.0])
def test_equal_rewards_give_zero(normalize, reward):
    """Noise over eps elsewhere: 0.92 in one system."""
    for dtype in ("float32", "float64", "bfloat16"):
        got = advantages([reward] * 64, dtype, samples_per_prompt=8, normalize=normalize, eps=1e-9)
        assert not got.any()
        assert not np.signbit(got).any()


def test_a_group_of_one_gives_zero():
    got = advantages([3.0, 5.0, 1.0, 2.0], group_boundaries=[0, 1, 2, 4])
    assert not got[:2].any()
    assert got[2] == -got[3]


@pytest.mark.parametrize(
    ("rewards", "want"),
    [
        ([0, *[0.95] * 7], [-0.95, *[0.95 / 7 / (np.std([0, *[0.95] * 6], ddof=1) + 1e-6)] * 7]),
        ([1, 0, 0, 0], [1, *[-1 / 3 / (np.std([1, 0, 0], ddof=1) + 1e-6)] * 3]),
        ([0.3, 0.1], [0.2, -0.2]),
        ([0.7], [0.0]),
        ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0]),
        ([0.1, 0.1, 0.4], [-0.15 / (np.sqrt(0.045) + 1e-6)] * 2 + [0.3]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nemo_leaves_one_out_of_mean_and_std(rewards, want, dtype):
    """NeMo 4158, 4161, 1518, 1519: others that tie have a standard deviation of exactly 0, and
    their sample is not divided; nor are two."""
    got = advantages(rewards, dtype, samples_per_prompt=len(rewards), dialect="nemo")
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-9])
def test_an_outlier_hides_no_digit_of_the_others(spread):
    rewards = [1.0, *(1e4 + spread * np.arange(5))]
    got = advantages(rewards, "float64", samples_per_prompt=6, normalize="loo_std", eps=0.0)
    want = leave_one_out(np.array(rewards), 1, 0.0, "add")
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_leave_one_out():
    """NeMo 4158, 1518: no -2075, no 1e6."""
    got = advantages([0, *[0.95] * 7], samples_per_prompt=8, normalize="rloo")
    np.testing.assert_allclose(got, [-0.95, *[0.95 / 7] * 7], rtol=1e-6)
    got = advantages([1, 0, 0, 0], normalize="rloo")
    np.testing.assert_allclose(got, [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-6)


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps_mode", ["add", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_ragged_groups(normalize, ddof, eps_mode, dtype):
    starts = [0, 1, 3, 10, 40, 41, 140, 5000]
    rewards = np.random.default_rng(0).normal(size=5000).astype(numpy_type(dtype))
    options = {"normalize": normalize, "ddof": ddof, "eps_mode": eps_mode, "eps": 1e-3}
    want = expected_advantages(rewards, starts, **options)
    for given in (starts, np.array(starts), np.array(starts, np.int32)):
        got = advantages(rewards, dtype, group_boundaries=given, **options)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    for first, last in pairwise(starts):
        assert abs(got[first:last].sum()) <= 1e-5 * (last - first) or normalize == "loo_std"
        alone = advantages(
            rewards[first:last], dtype, group_boundaries=[0, last - first], **options
        )
        assert np.array_equal(alone, got[first:last])


def test_specialized_is_generic_bit_for_bit():
    rewards = np.random.default_rng(1).normal(size=48)
    choices = [{}, {"eps_mode": "max"}, {"normalize": "center"}, {"normalize": "rloo"}]
    choices += [{"normalize": "loo_std"}, {"normalize": "loo_std", "eps_mode": "max"}]
    want = [advantages(rewards, "float64", **choice) for choice in choices]
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info().fallbacks
    for choice, generic in zip(choices, want, strict=True):
        assert np.array_equal(advantages(rewards, "float64", **choice), generic)
    assert rlk.jit.cache_info().fallbacks == before


# Of each system: its formula of one group, from its source, in float64.
def _bessel(eps):
    return lambda x: (x - x.mean()) / (x.std(ddof=1) + eps)


FORMULAS = {
    "rlk": _bessel(1e-6),
    "rl_kernel": lambda x: (x - x.mean()) / max(x.std(), 1e-6),
    "verl": _bessel(1e-6),
    "verl_old": _bessel(1e-6),
    "skyrl": _bessel(1e-6),
    "trl": _bessel(1e-4),
    "openrlhf": _bessel(1e-9),
    "nemo": lambda x: leave_one_out(x, 1, 1e-6, "add"),
    "slime": _bessel(1e-6),
    "areal": _bessel(1e-5),
    "liger": _bessel(1e-4),
}
RAW = ("verl", "verl_old", "skyrl")


def test_the_table_of_dialects_is_that_of_the_losses():
    assert tuple(ADVANTAGES) == tuple(DIALECTS) == tuple(FORMULAS)
    assert np.array_equal(advantages([1, 2, 4, 8]), advantages([1, 2, 4, 8], dialect="rlk"))


@pytest.mark.parametrize("dialect", FORMULAS)
def test_dialects(dialect):
    """D2, D3 of the reference: a spread of 1e-5 shows every eps."""
    rng = np.random.default_rng(3)
    for scale in (1.0, 1e-5):
        rewards = scale * rng.normal(size=24)
        got = advantages(rewards, "float64", samples_per_prompt=6, dialect=dialect)
        want = np.concatenate([FORMULAS[dialect](x) for x in rewards.reshape(4, 6)])
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("dialect", FORMULAS)
def test_ragged_groups_of_dialects(dialect):
    starts = [0, 2, 10, 18] if dialect == "openrlhf" else [0, 1, 3, 10, 18]
    rewards = np.random.default_rng(0).normal(size=18)
    rewards[10:17] = 0.95  # others that tie
    got = advantages(rewards, "float64", group_boundaries=starts, dialect=dialect)
    want = expected_advantages(rewards, starts, **vars(ADVANTAGES[dialect]))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    own = {"samples_per_prompt": 1, "dialect": dialect, "group_of_one": "reward"}
    np.testing.assert_array_equal(advantages(rewards, "float64", **own), rewards.astype("f4"))


@pytest.mark.parametrize("dialect", FORMULAS)
def test_a_group_of_one_of_each_dialect(dialect):
    """D4, item 22: raw reward in verl and SkyRL, refused by OpenRLHF, 0 elsewhere."""
    options = {"group_boundaries": [0, 3, 4], "dialect": dialect}
    rewards = [1, 2, 4, 0.7]
    if dialect == "openrlhf":
        with pytest.raises(rlk.InvalidArgument, match=r"group_boundaries: expected .*increase by"):
            advantages(rewards, **options)
        with pytest.raises(rlk.InvalidArgument, match="samples_per_prompt: expected at least 2"):
            advantages(rewards, samples_per_prompt=1, dialect=dialect)
    else:
        want = np.float32(0.7) if dialect in RAW else 0.0
        assert advantages(rewards, **options)[3] == want
    assert advantages(rewards, **options, group_of_one="reward")[3] == np.float32(0.7)
    assert advantages(rewards, **options, group_of_one="zero")[3] == 0


def test_a_count_that_is_no_multiple_is_an_error_in_every_dialect():
    """Item 22: slime normalises over the whole batch then, which boundaries say in words."""
    rewards = np.random.default_rng(0).normal(size=6)
    for dialect in FORMULAS:
        with pytest.raises(rlk.InvalidArgument, match="samples_per_prompt: expected a divisor"):
            advantages(rewards, samples_per_prompt=4, dialect=dialect)
    got = advantages(rewards, "float64", group_boundaries=[0, 6], dialect="slime")
    np.testing.assert_allclose(got, _bessel(1e-6)(rewards), rtol=1e-6)


@pytest.mark.parametrize("dialect", FORMULAS)
def test_an_option_beside_a_dialect_overrides(dialect):
    rewards = 1e-3 * np.random.default_rng(5).normal(size=12)
    own = {"normalize": "std", "ddof": 0, "eps": 1e-3, "eps_mode": "max"}
    got = advantages(rewards, "float64", dialect=dialect, **own)
    assert np.array_equal(got, advantages(rewards, "float64", **own))
    for name, value in own.items():
        rules = {**vars(ADVANTAGES[dialect]), name: value}
        alone = advantages(rewards, "float64", dialect=dialect, **{name: value})
        assert np.array_equal(alone, advantages(rewards, "float64", **rules))


@pytest.mark.parametrize("name", ["ddof", "eps", "eps_mode"])
@pytest.mark.parametrize("normalize", ["center", "rloo"])
def test_what_a_denominator_without_std_does_not_read_may_be_anything(name, normalize):
    got = advantages([1, 2, 4, 8], normalize=normalize, **{name: "no"})
    assert np.array_equal(got, advantages([1, 2, 4, 8], normalize=normalize))


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("size", [1e308, 1.7e308, 1e200, 1e-200, 4e-323, 5e-324])
def test_rewards_at_the_ends_of_float64(normalize, size):
    """Neither their sum nor their squares overflow or vanish: the same as with ordinary ones."""
    plain = np.array([-1.0, 1.0, 1.0, 0.0])
    options = {"samples_per_prompt": 4, "normalize": normalize, "eps": 0.0}
    got = advantages(size * plain, "float64", **options)
    want = advantages(plain, "float64", **options)
    if normalize in ("center", "rloo"):
        with np.errstate(over="ignore"):
            want = (size * want.astype(float)).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    with_eps = advantages(size * plain, "float64", **{**options, "eps": 1e-6})
    if normalize in ("std", "loo_std"):
        np.testing.assert_allclose(with_eps, want if size > 1 else 0 * want, rtol=1e-6)


def test_shapes_and_strides():
    rewards = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    got = jit.group_advantages(rewards, samples_per_prompt=4)
    assert got.shape == (6, 4)
    assert np.array_equal(got.reshape(-1), advantages(rewards.reshape(-1)))
    turned = np.asfortranarray(rewards)
    assert np.array_equal(jit.group_advantages(turned, samples_per_prompt=4), got)
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
        ({"samples_per_prompt": None}, "got neither$"),
        ({"samples_per_prompt": 3, "normalize": "mean"}, "std, center, rloo, loo_std"),
        ({"samples_per_prompt": 3, "group_of_one": "raw"}, "zero, reward, error"),
        ({"samples_per_prompt": 1, "group_of_one": "error"}, "at least 2 .* got 1"),
        ({"group_boundaries": [0, 5, 6], "group_of_one": "error"}, "by at least 2, got 6 after 5"),
        ({"samples_per_prompt": 3, "dialect": "grpo"}, "dialect: expected rlk, .* got 'grpo'"),
        ({"samples_per_prompt": 3, "eps_mode": "sum"}, "add, max"),
        ({"samples_per_prompt": 3, "ddof": 2}, "0 or 1"),
        ({"samples_per_prompt": 3, "eps": -1.0}, "from 0 up"),
    ],
)
def test_errors(device, options, why):
    """RL-Kernel seed PR 97: translated boundaries."""
    why = ON_CUDA.get(why, why) if device == "cuda" else why
    with pytest.raises(rlk.InvalidArgument, match=f"^group_advantages: .*{why}"):
        jit.group_advantages(np.zeros(6, np.float32), **options)
    with pytest.raises(rlk.InvalidArgument, match="floating"):
        jit.group_advantages(np.zeros(6, np.int64), samples_per_prompt=3)


@pytest.mark.torch
def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], requires_grad=True, device=torch_name())
    got = rlk.jit.group_advantages(rewards, samples_per_prompt=2)
    assert not got.requires_grad
    assert np.array_equal(get(got), advantages([1.0, 0, 0, 1], samples_per_prompt=2))


@on_cpu_alone
@pytest.mark.parametrize(
    "name",
    ["dialect", "normalize", "eps_mode", "group_of_one", "ddof", "eps", "samples_per_prompt"],
)
@pytest.mark.parametrize(
    "wrong", [np.zeros(2), [1], {}, b"1", 10**400, 10**5000, -1.5], ids=lambda w: str(type(w))
)
def test_what_is_no_value_of_an_option(name, wrong):
    with pytest.raises(rlk.InvalidArgument, match=f"^group_advantages: {name}: expected"):
        jit.group_advantages(np.zeros(6, np.float32), **{"samples_per_prompt": 3, name: wrong})


@on_cpu_alone
def test_numbers_of_numpy():
    rewards = np.float32([1, 0, 3, 5])
    want = rlk.jit.group_advantages(rewards, samples_per_prompt=2, ddof=0, eps=0.5)
    options = {"samples_per_prompt": np.int64(2), "ddof": np.int32(0), "eps": np.float32(0.5)}
    np.testing.assert_array_equal(rlk.jit.group_advantages(rewards, **options), want)


@on_cpu_alone
def test_boundaries_of_several_lengths_and_unknown_options():
    rewards = np.zeros(6, np.float32)
    with pytest.raises(rlk.InvalidArgument, match=r"^group_advantages: group_boundaries: expected"):
        rlk.jit.group_advantages(rewards, group_boundaries=[[0], [1, 6]])
    with pytest.raises(TypeError, match=r"^group_advantages: groups: expected"):
        rlk.jit.explain(rlk.jit.group_advantages, rewards, groups=2)
