# SPDX-License-Identifier: Apache-2.0
"""rlk.losses: the table of dialects, what overrides it, and what diff prints."""

import dataclasses

import numpy as np
import pytest
from losses import FLOAT, Batch, batch, same

import rlk
from rlk import _core
from rlk._rules import OF_SYSTEM, WORDS
from rlk.losses import ADVANTAGES, DIALECTS, diff

pytestmark = pytest.mark.usefixtures("generic")

NAMES = (
    "rlk",
    "rl_kernel",
    "verl",
    "verl_old",
    "skyrl",
    "trl",
    "openrlhf",
    "nemo",
    "slime",
    "areal",
    "liger",
)
OWN = OF_SYSTEM


def test_the_names():
    assert tuple(DIALECTS) == NAMES


def test_rlk_is_the_default():
    b = batch(spread=1.5)
    assert same(b.loss().loss, b.loss(dialect="rlk").loss)
    rules = dataclasses.asdict(DIALECTS["rlk"])
    assert same(b.loss().loss, b.loss(**{n: v for n, v in rules.items() if n not in OWN}).loss)


def test_words_are_those_of_the_core():
    for dialect in NAMES:
        rules = dataclasses.asdict(DIALECTS[dialect])
        rules |= dataclasses.asdict(ADVANTAGES[dialect])
        for name in WORDS.keys() & rules.keys():
            assert rules[name] in WORDS[name]
    with pytest.raises(KeyError, match="LossOptions: a name that no option has"):
        _core.LossOptions({"kl_estimater": "k3"})
    with pytest.raises(
        rlk.InvalidArgument, match="kl_estimator: expected k1, abs, k2, k3, got 'k4'"
    ):
        _core.LossOptions({"kl_estimator": "k4"})


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("policy", ["ppo", "gspo", "cispo", "sapo"])
def test_a_dialect_is_its_rules(dialect, policy):
    """The loss is that of the rules passed one by one, and of float64."""
    b = batch(spread=1.0)
    rules = dataclasses.asdict(DIALECTS[dialect])
    fixed = dict(rules["reduction_of"])
    level = rules["gspo_ratio_level"]
    rules = {name: value for name, value in rules.items() if name not in OWN}
    if policy == "gspo":
        rules["ratio_level"] = level
    rules |= {"policy_loss": policy, "kl_coef": 0.05, "use_tis": True}
    rules["loss_reduction"] = fixed.get(policy, rules["loss_reduction"])
    if policy != "ppo":
        rules["use_dual_clip"] = False
    options = {"kl_coef": 0.05, "use_tis": True, "policy_loss": policy}
    got = b.loss(dialect=dialect, **options)
    assert same(got.loss, b.loss(**rules).loss)
    want = b.answer(**rules)
    assert abs(float(got.loss) - want.loss) <= 4e-6 * want.abs_loss_sum


@pytest.mark.parametrize("dialect", NAMES)
def test_an_option_beside_it_overrides(dialect):
    b = batch(spread=1.5)
    got = b.loss(dialect=dialect, eps_clip_low=0.05, eps_clip_high=0.05, log_ratio_clamp=3.0)
    rules = dataclasses.replace(
        DIALECTS[dialect], eps_clip_low=0.05, eps_clip_high=0.05, log_ratio_clamp=3.0
    )
    options = {n: v for n, v in dataclasses.asdict(rules).items() if n not in OWN}
    assert same(got.loss, b.loss(**options).loss)


def test_own_names_of_reductions():
    """verl 3741: the older one lacks 1 / B."""
    b = batch()
    options = {"loss_reduction": "seq-mean-token-sum-norm", "max_seq_len": 50}
    new, old = (b.loss(dialect=name, **options).loss for name in ("verl", "verl_old"))
    num_valid = int((b.mask.sum(1) > 0).sum())
    assert float(old) == pytest.approx(float(new) * num_valid, rel=1e-6)
    trl = b.loss(dialect="trl", loss_reduction="dr_grpo", max_seq_len=50).loss
    assert same(
        trl, b.loss(dialect="trl", loss_reduction="seq_mean_token_sum_norm", max_seq_len=50).loss
    )
    with pytest.raises(rlk.InvalidArgument, match=r"loss_reduction: expected .*dr_grpo"):
        b.loss(dialect="trl", loss_reduction="token-mean")


def single(log_ratio, advantage, e=0.0):
    lp = np.array([[-2.0]], FLOAT)
    return Batch(
        lp,
        lp - FLOAT(log_ratio),
        np.array([[advantage]], FLOAT),
        None,
        {"ref_log_probs": lp + FLOAT(e)},
    )


def test_what_tells_dialects_apart():
    """D1, D6, D7, D11, D12, D14 of the reference, a token each."""
    far = single(30.0, -1.0)
    assert float(far.loss(dialect="skyrl").loss) == pytest.approx(np.exp(20.0), rel=1e-5)
    assert float(far.loss(dialect="trl").loss) == pytest.approx(np.exp(30.0), rel=1e-5)
    assert float(far.loss(dialect="verl").loss) == 3.0
    options = {"policy_loss": "cispo", "eps_clip_high": 4.0}
    high = single(3.0, 1.0)
    bounds = {d: float(high.loss(dialect=d, **options).loss) / 2 for d in ("verl", "skyrl", "trl")}
    assert bounds == pytest.approx({"verl": 5.0, "skyrl": 5.0, "trl": 4.0}, rel=1e-6)
    drifted = single(0.0, 0.0, 2.7)  # k3 is above 10
    grads = {
        d: float(drifted.grads(dialect=d, kl_coef=1.0, kl_estimator="k3").log_probs[0, 0])
        for d in ("rlk", "verl", "trl", "nemo")
    }
    assert grads["verl"] == grads["nemo"] == 0
    assert grads["rlk"] == grads["trl"] == pytest.approx(-np.expm1(2.7), rel=1e-5)
    b = batch()
    assert not same(b.loss(dialect="slime").loss, b.loss(loss_reduction="sequence_mean_valid").loss)


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2"])
def test_which_estimators_a_dialect_clamps(estimator):
    """D11: verl and SkyRL clamp k3 alone, OpenRLHF, NeMo and AReaL the value of each."""
    far = single(0.0, 0.0, -15.0)
    value = {"k1": 15.0, "abs": 15.0, "k2": 112.5}[estimator]
    slope = {"k1": 1.0, "abs": 1.0, "k2": 15.0}[estimator]
    for dialect in ("rlk", "verl", "verl_old", "skyrl", "trl", "slime"):
        options = {"dialect": dialect, "kl_coef": 1.0, "kl_estimator": estimator}
        assert float(far.loss(**options).loss) == value, dialect
        assert float(far.grads(**options).log_probs[0, 0]) == slope, dialect
        clamped = far.loss(**options, kl_output_clamp=4.0)
        assert float(clamped.loss) == 4.0, dialect
    for dialect in ("openrlhf", "nemo", "areal"):
        options = {"dialect": dialect, "kl_coef": 1.0, "kl_estimator": estimator}
        assert float(far.loss(**options).loss) == 10.0, dialect
        assert float(far.grads(**options).log_probs[0, 0]) == 0.0, dialect


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
@pytest.mark.parametrize("gradient", ["pathwise", "importance"])
def test_a_clamp_that_is_given_is_of_every_estimator(estimator, gradient):
    far = single(0.0, 0.0, 3.0)
    options = {"kl_coef": 1.0, "kl_estimator": estimator, "kl_gradient": gradient}
    plain, clamped = (far.loss(**options, kl_clamp=c).loss for c in (20.0, 2.0))
    assert float(clamped) < float(plain) or estimator == "k1"  # -e
    for clamp in ({"kl_clamp": 2.0}, {"kl_output_clamp": 2.0}):
        assert float(far.grads(**options, **clamp).log_probs[0, 0]) == 0.0


def test_diff_prints_rules_and_losses():
    text = diff("verl", "trl")
    lines = text.splitlines()
    assert lines[0].split() == ["rule", "verl", "trl"]
    assert any(line.split() == ["use_dual_clip", "True", "False"] for line in lines)
    assert not any(line.startswith("eps_clip_low") for line in lines)
    assert lines[-1].split() == ["group_advantages.group_of_one", "reward", "zero"]
    last = diff("nemo", "areal").splitlines()[-2:]
    assert [line.split()[1:] for line in last] == [["loo_std", "std"], ["1e-06", "1e-05"]]
    assert diff("rlk", "rlk").splitlines() == ["rule  rlk  rlk"]
    b = batch(spread=1.5)
    arguments = {"log_probs": b.log_probs, "old_log_probs": b.old, "advantages": b.advantages}
    lines = diff("verl", "trl", {**arguments, "loss_mask": b.mask}).splitlines()
    losses = [float(word) for word in lines[-3].split()[1:]]
    want = [float(b.loss(dialect=name).loss) for name in ("verl", "trl")]
    assert losses == pytest.approx(want, rel=1e-7)
    with pytest.raises(rlk.InvalidArgument, match=r"dialect: expected rlk, .*got 'no'"):
        diff("no", "rlk")
    with pytest.raises(rlk.InvalidArgument, match=r"batch: expected one with delta, got None"):
        diff("verl", "trl", delta=2.0)
    for wrong in ({"foo": 1}, {"foo": 1, "batch": arguments}, {"dialect": "rlk"}):
        with pytest.raises(TypeError, match=r"^ppo_loss: (foo|dialect): expected an option that"):
            diff("trl", "verl", **wrong)
    with pytest.raises(TypeError, match=r"^ppo_loss: beta: .*; here it is kl_coef$"):
        diff("trl", "verl", beta=1)
    with pytest.raises(rlk.InvalidArgument, match=r"batch: expected a dict of .*, got tuple"):
        diff("verl", "trl", (b.log_probs, b.old, b.advantages))


def test_diff_shows_gradients_where_losses_agree():
    """gspo with advantages that differ inside a sequence."""
    b = batch(spread=0.3)
    arguments = {"log_probs": b.log_probs, "old_log_probs": b.old, "advantages": b.advantages}
    arguments |= {"loss_mask": b.mask, "policy_loss": "gspo", "loss_reduction": "token_mean"}
    options = {"gspo_log_ratio_clamp": 20.0}
    lines = diff("rlk", "trl", arguments, **options).splitlines()
    loss, largest, off = (line.split() for line in lines[-3:])
    assert loss[1] == loss[2]
    grads = [
        b.grads(dialect=d, **{k: arguments[k] for k in ("policy_loss",)}, **options).log_probs
        for d in ("rlk", "trl")
    ]
    sizes = [np.abs(grad).max() for grad in grads]
    assert [float(x) for x in largest[2:]] == pytest.approx(sizes, rel=1e-7)
    want = np.abs(grads[0] - grads[1]).max() / max(sizes)
    assert want > 0.2
    assert float(off[3]) == pytest.approx(want, rel=1e-2)
    assert any(line.split() == ["gspo_ratio_level", "sequence_token", "sequence"] for line in lines)


def test_diff_fits_a_terminal():
    lines = diff("verl", "trl").splitlines()
    assert max(map(len, lines)) <= 120
    start = next(i for i, line in enumerate(lines) if line.startswith("reduction_names"))
    first, second = (line.split() for line in lines[start : start + 2])
    assert first[1:] == ["token-mean:", "token_mean", "grpo:", "sequence_mean"]
    assert second == ["token-sum:", "token_sum", "bnpo:", "token_mean"]
    of = next(line for line in lines if line.startswith("kl_output_clamp_of"))
    assert of.split()[1:] == ["k3", "k1,", "abs,", "k2,", "k3"]
    assert next(line for line in lines if line.startswith("gspo_log")).split()[1:3] == [
        "(-inf,",
        "10.0)",
    ]


def test_what_is_no_dialect_and_no_metrics():
    for wrong in ([], None, 1):
        with pytest.raises(rlk.InvalidArgument, match=r"dialect: expected rlk, .*got "):
            rlk.losses.rules(wrong)
        with pytest.raises(rlk.InvalidArgument, match=r"^group_advantages: dialect: .*got "):
            rlk.losses.advantage_rules(wrong)
    with pytest.raises(rlk.InvalidArgument, match=r"^ppo_loss: batch: expected"):
        diff("rlk", "trl", [1])
    metrics = batch().loss().metrics
    for wrong in (None, 1, metrics, [1], [metrics, 1], [metrics, None], []):
        with pytest.raises(rlk.InvalidArgument, match=r"^combine: parts: expected "):
            rlk.losses.combine(wrong)


def test_metrics_of_another_framework():
    """Its arrays are iterated over, and refused by combine until they are torch's or NumPy's."""

    class Other:
        def __init__(self, values):
            self.values = np.asarray(values)

        def __getitem__(self, i):
            return Other(self.values[i])

    want = batch().loss().metrics
    got = want._make(map(Other, want))
    named = {name: value.values for name, value in got.named().items()}
    assert all(same(value, getattr(want, name)) for name, value in named.items())
    with pytest.raises(
        rlk.InvalidArgument, match=r"combine: parts: expected .* got .*\.Other; tor"
    ):
        rlk.losses.combine([got])
    back = got._make(x.values for x in got)
    assert same(rlk.losses.combine([back, back])[1].counts, 2 * want.counts)
