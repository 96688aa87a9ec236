# SPDX-License-Identifier: Apache-2.0
"""What ppo_loss refuses, and that each option that is on matters."""

import dataclasses
import re

import numpy as np
import pytest
from losses import FLOAT, Batch, batch, same, same_metrics

import rlk
from rlk._loss_options import ELSEWHERE
from rlk._ops.ppo_loss import GROUPS, OPTIONS
from rlk._rules import OF_SYSTEM
from rlk.check.specs.ppo_loss_inputs import LIVE
from rlk.losses import DIALECTS, Rules

pytestmark = pytest.mark.usefixtures("generic")

STARTS = np.array([0, 3, 6])


def refused(match: str, b: Batch | None = None, **options):
    with pytest.raises(rlk.InvalidArgument, match=match):
        (b or batch()).loss(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dialect", "verl2"),
        ("policy_loss", "grpo"),
        ("loss_reduction", "mean"),
        ("kl_estimator", "k4"),
        ("kl_gradient", "biased"),
        ("kl_weight", "two"),
        ("kl_reduction", "mean"),
        ("tis_mode", "clip"),
        ("tis_level", "batch"),
        ("tis_overflow", "nan"),
        ("cispo_bounds", "2+eps"),
    ],
)
def test_unknown_words(name, value):
    _, switch = LIVE.get(name, (None, {}))
    expected = f"^ppo_loss: {name}: expected .*got '{re.escape(value)}'"
    refused(expected, **{**switch, name: value})


@pytest.mark.parametrize(("word", "here"), [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3")])
def test_estimators_of_verl_are_told_their_name(word, here):
    _, switch = LIVE["kl_estimator"]
    refused(f"got '{word}', which is '{here}' here$", **{**switch, "kl_estimator": word})


def test_unknown_options():
    """RLinf 316: nothing is swallowed."""
    b = batch()
    for name, here in (
        ("clip_ratio", "here it is eps_clip_low"),
        ("mask", "here it is loss_mask"),
        ("clips", "see help(rlk.jit"),
    ):
        message = rf"^ppo_loss: {name}: expected an option that exists; {re.escape(here)}"
        for call in (b.loss, b.grads):
            with pytest.raises(TypeError, match=message):
                call(**{name: 0.2})
    with pytest.raises(TypeError, match=r"^ppo_loss: clip_ratio: expected"):
        rlk.jit.explain(rlk.jit.ppo_loss, b.log_probs, b.old, b.advantages, clip_ratio=0.2)


def test_names_elsewhere_lead_to_options():
    known = {*OPTIONS, "loss_mask"}
    assert not known & set(ELSEWHERE)
    for here in ELSEWHERE.values():
        assert set(here.split(" and ")) <= known


def test_a_reduction_of_another_dialect_is_told():
    end = "got 'token-mean', a name of dialect verl and verl_old"
    refused(f"loss_reduction: expected token_mean, .*{end}$", loss_reduction="token-mean")
    refused("loss_reduction: expected .*got 'dr_grpo', a name of", loss_reduction="dr_grpo")
    refused("loss_reduction: expected .*got 'mean'$", loss_reduction="mean")


@pytest.mark.parametrize("policy", ["cispo", "sapo", "gpg"])
def test_dual_clip_is_of_ppo(policy):
    refused("use_dual_clip: expected False", policy_loss=policy, use_dual_clip=True)
    for loss in (policy, "gspo"):  # whose default it is
        b = batch(spread=2.0)
        assert int(b.loss(policy_loss=loss, dialect="verl").metrics.num_dual_clip) == 0
    capped = b.loss(policy_loss="gspo", use_dual_clip=True, clip_ratio_c=1.1).metrics
    assert int(capped.num_dual_clip) > 0


def test_contradictions():
    refused(
        "ratio_level: expected 'sequence' or 'sequence_token' with gspo, got 'token'",
        policy_loss="gspo",
        ratio_level="token",
    )
    refused(
        "importance_weights: expected None with use_tis, which makes the weights, got both",
        use_tis=True,
        importance_weights=np.ones(6, FLOAT),
    )
    groups = {"loss_reduction": "prompt_mean", "samples_per_prompt": 2}
    refused("group_boundaries", group_boundaries=STARTS, **groups)
    refused("delta: expected None with policy_loss='cispo'", policy_loss="cispo", delta=2.0)
    refused("use_dual_clip: expected False with delta", use_dual_clip=True, delta=2.0)
    batch().loss(dialect="verl", delta=2.0)  # whose default dual clip is
    weights = np.ones(6, FLOAT)
    refused("loss_weights", loss_weights=weights, loss_reduction="token_mean")
    plain = batch().but(others={})
    refused("rollout_logprobs: expected a tensor with use_tis", plain, use_tis=True)
    refused("ref_log_probs: expected a tensor with kl_coef", plain, kl_coef=0.1)
    refused("entropy: expected a tensor with entropy_coef", plain, entropy_coef=0.1)
    for reduction in ("seq_mean_token_sum_norm", "token_sum_over_L"):
        refused("max_seq_len: expected a number", loss_reduction=reduction)
    for reduction in ("prompt_mean", "rollout_mean"):
        refused("samples_per_prompt: expected a number", loss_reduction=reduction)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eps_clip_low", -0.1),
        ("eps_clip_low", 1.5),
        ("eps_clip_high", float("nan")),
        ("eps_clip_high", "0.2"),
        ("clip_ratio_c", 0.5),
        ("delta", -0.5),
        ("delta", "3"),
        ("delta", True),
        ("tis_imp_ratio_floor", 11.0),
        ("kl_clamp", -1.0),
        ("log_ratio_clamp", 0.0),
        ("log_ratio_clamp", (1.0, -1.0)),
        ("use_dual_clip", 1),
        ("max_seq_len", 0),
        ("samples_per_prompt", 0),
        ("samples_per_prompt", 4),
        ("samples_per_prompt", 2.0),
        ("samples_per_prompt", True),
        ("max_seq_len", True),
        ("max_seq_len", "64"),
        ("global_tokens", 0),
    ],
)
def test_numbers(name, value):
    refused(f"^ppo_loss: {name}: expected", **{**switch_of(name), name: value})


@pytest.mark.parametrize(
    "wrong", [np.zeros(3), [1.0], {}, b"1", 10**400, 10**5000], ids=lambda w: str(type(w))
)
def test_what_is_no_value_of_an_option(wrong):
    for name in (*RULES, "max_seq_len", "samples_per_prompt", "dialect"):
        refused(f"^ppo_loss: {name}: expected", **{**switch_of(name), name: wrong})
    if isinstance(wrong, int):
        refused("^ppo_loss: global_tokens: expected", global_tokens=wrong)


def test_a_bool_of_numpy_is_one():
    b = batch()
    got, want = (b.loss(use_dual_clip=flag, clip_ratio_c=1.1) for flag in (np.True_, True))
    assert same_metrics(got.metrics, want.metrics)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["eps_clip_low", "eps_clip_high", "kl_coef"])
def test_a_number_of_few_bits_is_taken_as_it_is(name):
    number = np.float16(0.2)
    switch = switch_of(name)
    got, want = (batch().loss(**{**switch, name: n}) for n in (number, float(number)))
    assert same_metrics(got.metrics, want.metrics)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("use_dual_clip", True, 1),
        ("use_tis", True, 1.0),
        ("clip_ratio_c", 1, True),
        ("eps_clip_high", 1.0, True),
        ("kl_coef", 1, True),
        ("max_seq_len", 1, True),
        ("samples_per_prompt", 1, 1.0),
        ("log_ratio_clamp", 1, True),
        ("log_ratio_clamp", (0, 1), (False, True)),
    ],
)
def test_equal_values_of_another_type_after_a_right_call(name, right, wrong):
    switch = switch_of(name)
    batch().loss(**{**switch, name: right})
    refused(f"^ppo_loss: {name}: expected", **{**switch, name: wrong})


def test_a_stream_of_too_many_bits():
    for stream in (1 << 63, 10**400, 10**5000):
        refused("^ppo_loss: stream: expected None for tensors of the CPU", stream=stream)


def test_shapes_and_dtypes():
    b = batch()
    refused("log_probs: expected a tensor, got None", b.but(log_probs=None))
    refused(r"log_probs: expected shape \[B, T\]", b.but(log_probs=b.log_probs[None]))
    refused(r"old_log_probs: expected shape \[6, 37\]", b.but(old=b.old[:, 1:]))
    refused(r"advantages: expected shape \[6, 37\] or \[6\]", b.but(advantages=np.ones(37, FLOAT)))
    refused("loss_mask: expected shape", b.but(mask=b.mask[0]))
    refused("log_probs: expected a floating dtype", b.but(log_probs=b.mask))
    refused("loss_mask: expected 0 or 1, got 2", b.but(mask=b.mask * 2.0))
    refused("loss_mask: expected 0 or 1, got 3", b.but(mask=b.mask * np.int8(3)))
    refused("ref_log_probs: expected shape", b.with_others(ref_log_probs=b.old[0]), kl_coef=1.0)
    refused(r"log_probs: expected shape \[N\]", b, cu_seqlens=np.array([0, 222]))


def test_boundaries():
    b = Batch(*(np.zeros(6, FLOAT) for _ in range(3)))
    for starts, why in (
        ([1, 6], "start at 0, got 1"),
        ([0, 5], "end at 6, got 5"),
        ([0, 4, 3, 6], "not to decrease"),
        ([0.0, 6.0], "integer"),
    ):
        refused(f"cu_seqlens: expected .*{why}", b, cu_seqlens=np.array(starts))
    packed = b.with_others(cu_seqlens=np.array([0, 2, 4, 6]))
    for groups, why in (
        ([0, 1, 1, 3], "to increase"),
        ([1, 3], "start at 0"),
        ([0, 2], "end at 3"),
    ):
        options = {"loss_reduction": "prompt_mean", "group_boundaries": np.array(groups)}
        refused(f"group_boundaries: expected .*{why}", packed, **options)


@pytest.mark.parametrize("name", ["global_tokens", "global_sequences", "global_groups"])
@pytest.mark.parametrize("value", [0, -3])
def test_a_global_count_of_none(name, value):
    """The same as a number and as a tensor: no loss of 0."""
    for given in (value, np.array(value), np.array([value])):
        expected = f"^ppo_loss: {name}: expected an? (int|number) above 0.*, got {value}"
        refused(expected, **{**switch_of(name), name: given})


@pytest.mark.parametrize("wrong", [True, 6.0])
@pytest.mark.parametrize("name", ["global_tokens", "global_sequences", "global_groups"])
def test_true_and_floats_are_no_counts(name, wrong):
    expected = f"^ppo_loss: {name}: expected an int above 0 or a tensor of one int64, got {wrong}$"
    refused(expected, **{**switch_of(name), name: wrong})


@pytest.mark.parametrize(
    "wrong", [None, 3, "log_probs", [[1]], ["entropy", 1], ["bias"], np.array(2.0)]
)
def test_needs(wrong):
    with pytest.raises(rlk.InvalidArgument, match=r"^ppo_loss: needs: expected a tuple of 'log_pr"):
        batch().grads(needs=wrong)


CALL = {  # options that are no rule
    **{name: LIVE[name] for name in LIVE if name.startswith(("max_", "samples_", "global_"))},
    "group_boundaries": (STARTS, {"loss_reduction": "prompt_mean", "samples_per_prompt": 1}),
    "loss_weights": (np.full(6, 0.5, FLOAT), {}),
    "importance_weights": (np.full(6, 0.5, FLOAT), {}),
}
RULES = {name: live for name, live in LIVE.items() if name not in CALL and name != "dialect"}


def switch_of(name: str) -> dict:
    """What switches the option on, without a value of its own."""
    return {k: v for k, v in (RULES | CALL).get(name, (None, {}))[1].items() if k != name}


def test_the_lists_of_live_options_are_complete():
    """slime 2247."""
    rules = {f.name for f in dataclasses.fields(Rules)}
    rules -= set(OF_SYSTEM)
    assert set(RULES) == rules
    tensors = {"rollout_logprobs", "ref_log_probs", "entropy", "cu_seqlens", "dialect"}
    assert rules | set(CALL) | tensors | set(GROUPS) == OPTIONS


@pytest.mark.parametrize("name", [*RULES, *CALL])
def test_every_option_that_is_on_matters(name):
    """slime 2247, SkyRL 546, verl 3237, verl 3245."""
    value, switch = (RULES | CALL)[name]
    b = batch(spread=1.0, seed=4)
    if name == "tis_overflow":
        far = b.others["rollout_logprobs"].copy()
        far[b.mask] -= 150
        b = b.with_others(rollout_logprobs=far)
    before = {
        k: v for k, v in switch.items() if k != "samples_per_prompt" or name != "group_boundaries"
    }
    after = {**before, name: value}
    if name == "group_boundaries":
        before["samples_per_prompt"] = 1
    changed = not same(b.grads(**before).log_probs, b.grads(**after).log_probs)
    assert changed or name == "entropy_coef"
    assert not same(b.loss(**before).loss, b.loss(**after).loss) or name == "kl_gradient"


# What each option is off with: no value of it matters then, a wrong one neither.
OFF: dict[str, dict] = {
    name: {}
    for name in RULES
    if name in ("clip_ratio_c", "cispo_bounds", "gspo_log_ratio_clamp")
    or (name.startswith(("tis_", "kl_", "sapo_")) and name != "kl_coef")
} | {"log_ratio_clamp": {"policy_loss": "gspo"}}


@pytest.mark.parametrize("name", OFF)
@pytest.mark.parametrize("value", [None, -1.0, "no", True, [1], float("nan"), np.ones(2)])
def test_what_is_off_is_accepted_and_does_nothing(name, value):
    b = batch()
    value = LIVE[name][0] if value is None else value
    assert same(b.loss(**OFF[name], **{name: value}).loss, b.loss(**OFF[name]).loss)


# What the chosen reduction does not read.
UNREAD = (
    "max_seq_len",
    "samples_per_prompt",
    "group_boundaries",
    *(n for n in CALL if "global" in n),
)


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("value", [0, -1, "no", [1], float("nan"), np.ones(2), 4, 10**400])
def test_what_a_reduction_does_not_read_may_be_anything(name, value):
    b = batch()
    for options in ({"loss_reduction": "token_sum"}, {"loss_weights": np.ones(6, FLOAT)}):
        got = b.loss(**options, **{name: value})
        assert same(got.loss, b.loss(**options).loss)
        assert same_metrics(got.metrics, b.loss(**options).metrics)


def test_what_the_kl_reduction_alone_reads_is_read():
    b = batch()
    kl = {"kl_coef": 0.3, "loss_reduction": "token_sum"}
    refused("max_seq_len: expected a number", kl_reduction="token_sum_over_L", **kl)
    refused(
        "samples_per_prompt: expected a divisor",
        kl_reduction="prompt_mean",
        **kl,
        samples_per_prompt=4,
    )
    for reduction, name in (("token_mean", "tokens"), ("sequence_mean", "sequences")):
        options = {**kl, "kl_reduction": reduction}
        assert not same(b.loss(**options).loss, b.loss(**options, **{f"global_{name}": 999}).loss)


def test_a_kl_reduction_that_is_off_asks_for_nothing():
    b = batch()
    weights = {"loss_weights": np.ones(6, FLOAT)}
    for others in ({}, weights):
        got = b.loss(kl_reduction="token_sum_over_L", **others)
        assert same(got.loss, b.loss(**others).loss)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tis_acts_on_every_loss_of_every_dialect(dialect):
    """SkyRL 546."""
    b = batch()
    for policy in ("ppo", "gspo", "cispo", "sapo", "gpg"):
        options = {"dialect": dialect, "policy_loss": policy}
        assert not same(b.loss(use_tis=True, **options).loss, b.loss(**options).loss)
