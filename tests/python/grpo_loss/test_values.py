# SPDX-License-Identifier: Apache-2.0
"""grpo_loss: values and gradients in float64, the bits of its parts, masks, packing."""

import numpy as np
import pytest
from devices import jit, on_cpu_alone
from grpo import PAIRS, Tokens, draw, filled, two_columns, with_garbage, with_nan
from layouts import LAYOUTS, turned
from paths import GOLDEN
from problems import DTYPES
from reference import Exactly, assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

OPTION_SETS = [
    {},
    {"beta": 0.0},
    {"beta": 1.0, "clip_eps": 0.1},
    {"eps_clip_high": 0.4},
    {"eps_clip_low": 0.1},
    {"temperature": 0.7},
    {"softcap": 2.0, "logit_scale": -0.25},
    {"normalize": "center"},
    {"ddof": 0, "eps": 0.5},
    {"eps": 0.5, "eps_mode": "max"},
    {"loss_reduction": "sequence_mean"},
    {"loss_reduction": "prompt_mean"},
    {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 32},
    {"beta": 0.3, "kl_reduction": "token_sum"},
    {"beta": 0.3, "kl_estimator": "k1"},
    {"beta": 0.3, "kl_gradient": "unbiased"},
    {"beta": 0.3, "kl_weight": "ratio", "log_ratio_clamp": 3.0},
    {"use_dual_clip": True, "clip_ratio_c": 1.5},
    {"policy_loss": "gspo"},
    {"policy_loss": "gspo", "loss_reduction": "token_sum", "gspo_log_ratio_clamp": 3.0},
    {"policy_loss": "cispo"},
    {"policy_loss": "sapo"},
    {"global_tokens": 1000},
    {"ignore_index": 3},
]


def check(p: Tokens, **options) -> None:
    options = {**PAIRS, **options}
    exact = Exactly(p, **options)
    want, found = exact.loss(), p.loss(**options)
    assert isinstance(found, rlk.jit.GrpoLoss)
    # A small KL keeps 1e-5 of the log-probs, not of itself.
    beta = options.get("beta", 0.04)
    assert abs(found.loss - want.loss) <= 4e-5 * want.abs_loss_sum + 1e-5 * beta + 1e-9
    assert abs(found.policy_loss - want.sums["policy_loss"]) <= 4e-5 * (want.abs_loss_sum + 1e-3)
    kl = want.sums.get("kl_loss", 0.0)
    assert abs(found.kl - kl) <= 3e-5 * abs(kl) + 1e-5 * (kl != 0)
    for upstream in (1.0, -2.5):
        grad = p.grad(upstream, **options)
        assert grad.dtype == p.policy.dtype
        assert_within(grad, exact.loss_grad(upstream), "gradient")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTION_SETS, ids=str)
def test_against_float64(options, dtype):
    check(draw(dtype=dtype), **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 129, 3331])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta": 0.0},
        {"beta": 0.5, "loss_reduction": "sequence_mean", "temperature": 0.7},
        {"use_dual_clip": True, "kl_estimator": "k2"},
    ],
    ids=str,
)
def test_sizes(device, options, vocab, dtype):
    rows, length = {"cpu": (4, 5), "cuda": (6, 9)}[device]
    check(draw(rows, length, vocab, dtype), **options)


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("case", GOLDEN["loss"])
def test_golden_losses(case, beta):
    """A fifth sequence without tokens makes the golden advantages those of centered rewards."""
    kind, reduction = case.split("/")
    given = {k: np.asarray(v) for k, v in GOLDEN["inputs"].items()}

    def padded(x):
        return np.concatenate([x, np.zeros_like(x[:1])])

    mask = padded(given["mask"] != 0)
    rewards = np.append(given["advantages"], -given["advantages"].sum())
    policy = two_columns(padded(given["logp"]))
    p = Tokens(policy, None, mask * 0, mask, padded(given["old"]), rewards)
    # Counted over the four that the golden case has.
    sequences = {} if reduction != "seq_mean_token_sum_norm" else {"global_sequences": 4}
    options = {
        "samples_per_prompt": 5,
        "normalize": "center",
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.28,
        "policy_loss": kind.removesuffix("_dual"),
        "use_dual_clip": kind.endswith("_dual"),
        "loss_reduction": reduction,
        "max_seq_len": 8,
        "beta": beta,
        "ref_logps": padded(given["ref"]),
        "kl_reduction": "token_mean",
        **sequences,
    }
    want = GOLDEN["loss"][case]
    kl, found = GOLDEN["kl"]["k3"], p.loss(**options)
    assert float(found.policy_loss) == pytest.approx(want["loss"], rel=2e-5)
    assert float(found.kl) == pytest.approx(kl["mean"] * (beta != 0), rel=1e-5)
    assert float(found.loss) == pytest.approx(want["loss"] + beta * kl["mean"], rel=2e-5)
    if kind != "gspo":  # whose golden gradient is not in token form
        slope = np.asarray(want["grad_logp"]) + beta * np.asarray(kl["grad_token_mean"])
        slope = slope * np.where(given["mask"], -np.expm1(given["logp"]), 0)
        np.testing.assert_allclose(p.grad(**options)[:4, :, 0], slope, rtol=5e-5, atol=1e-6)


@pytest.mark.parametrize("vocab", [210, 3331])
@pytest.mark.parametrize(
    "options",
    [{}, {"loss_reduction": "sequence_mean", "beta": 0.5, "use_dual_clip": True}],
    ids=str,
)
def test_bits_are_those_of_the_parts(options, vocab):
    p = draw(8, 12, vocab)
    rest = {k: v for k, v in options.items() if k != "beta"}
    log_probs, ref = (jit.logp(x, p.ids, mask=p.mask) for x in (p.policy, p.ref))
    arguments = (log_probs, p.old, jit.group_advantages(p.rewards, **PAIRS), p.mask)
    rest |= {"kl_coef": options.get("beta", 0.04), "ref_log_probs": ref}
    want = jit.ppo_loss(*arguments, **rest)
    assert p.loss(**PAIRS, **options) == (
        want.loss,
        want.metrics.policy_loss,
        want.metrics.kl_loss,
    )
    c = jit.ppo_loss_backward(np.array(3, np.float32), *arguments, **rest).log_probs
    grad = jit.logp_backward(c, p.policy, p.ids, mask=p.mask)
    assert same_bits(p.grad(3.0, **PAIRS, **options), grad)
    assert same_bits(p.grad(3.0, **PAIRS, **options, ref_logps=ref), grad)


def test_specialized_is_generic(device):
    vocab, dtype = {"cpu": (210, "float16"), "cuda": (3331, "bfloat16")}[device]
    p = draw(vocab=vocab, dtype=dtype)
    want, grad = p.loss(**PAIRS), p.grad(**PAIRS)
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info().fallbacks
    assert p.loss(**PAIRS) == want
    assert same_bits(p.grad(**PAIRS), grad)
    assert rlk.jit.cache_info().fallbacks == before


def test_an_entropy_bonus():
    p = draw()
    out = jit.logp(p.policy, p.ids, mask=p.mask, return_entropy=True)
    ref = jit.logp(p.ref, p.ids, mask=p.mask)
    arguments = (out.log_prob, p.old, jit.group_advantages(p.rewards, **PAIRS), p.mask)
    rest = {"kl_coef": 0.04, "ref_log_probs": ref, "entropy": out.entropy, "entropy_coef": 0.3}
    assert p.loss(**PAIRS, entropy_coef=0.3).loss == jit.ppo_loss(*arguments, **rest).loss
    grads = jit.ppo_loss_backward(np.array(1, np.float32), *arguments, **rest)
    want = jit.logp_backward(
        grads.log_probs, p.policy, p.ids, mask=p.mask, grad_entropy=grads.entropy
    )
    assert same_bits(p.grad(**PAIRS, entropy_coef=0.3), want)


def test_importance_weights():
    p = draw()
    rollout = p.old + np.float32(0.3)
    options = {"use_tis": True, "rollout_logprobs": rollout, "tis_imp_ratio_cap": 0.5}
    check(p, **options)
    assert p.loss(**PAIRS, **options).policy_loss != p.loss(**PAIRS).policy_loss


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_tokens_may_hold_anything(dtype):
    """SkyRL #1633, OpenRLHF #1240, RL-Kernel #161: no bit changes, in no argument."""
    p = draw(dtype=dtype)
    off, garbage = ~p.mask, with_garbage(p)
    rollout = {"use_tis": True, "rollout_logprobs": filled(p.old, off)}
    assert garbage.loss(**PAIRS) == p.loss(**PAIRS)
    grad = garbage.grad(**PAIRS)
    assert same_bits(grad, p.grad(**PAIRS))
    assert same_bits(grad[off], np.zeros_like(grad[off]))
    clean = {**rollout, "rollout_logprobs": p.old}
    assert garbage.loss(**PAIRS, **rollout) == p.loss(**PAIRS, **clean)


def test_ignored_ids_are_inactive():
    p = draw()
    ids = np.where(p.mask, p.ids, -100)
    for mask in (None, np.ones_like(p.mask), p.mask.astype(np.float32)):
        q = p.but(ids=ids, mask=mask)
        assert q.loss(**PAIRS) == p.loss(**PAIRS)
        assert same_bits(q.grad(**PAIRS), p.grad(**PAIRS))
    every = p.but(mask=None)
    assert every.loss(**PAIRS, ignore_index=None) == every.loss(**PAIRS)


def test_no_active_token():
    """TRL #3248."""
    p = draw().map(lambda x: np.full_like(x, np.nan) if x.ndim > 1 and x.dtype.kind == "f" else x)
    p = p.but(mask=np.zeros_like(p.mask))
    assert p.loss(**PAIRS) == (0, 0, 0)
    assert same_bits(p.grad(**PAIRS), np.zeros_like(p.policy))


def test_far_beyond_the_clamps():
    """RL-Kernel: delta 90 with A > 0 is clipped, not 0 * inf; TRL #3015: a reference e^200 away."""
    log_prob = np.float32(-np.log(3.0))
    old = np.float32([[log_prob - 90], [log_prob]])
    p = Tokens(np.zeros((2, 1, 3), np.float32), None, np.zeros((2, 1), int), None, old, None)
    p = p.but(rewards=np.float32([1, -1]))
    ref = np.float32([[log_prob + 200], [log_prob - 200]])
    found = p.loss(**PAIRS, ref_logps=ref)
    assert np.isfinite(found).all()
    grad = p.grad(**PAIRS, ref_logps=ref)
    assert not grad[0].any()
    assert np.isfinite(grad).all()
    assert grad[1].any()


def test_a_nan_in_an_active_token_is_shown():
    p = draw()
    bad, _, others = with_nan(p)
    assert np.isnan(bad.loss(**PAIRS).loss)
    assert same_bits(bad.grad(**PAIRS)[others], p.grad(**PAIRS)[others])


@on_cpu_alone
def test_without_beta_no_reference_is_read():
    p = draw()
    want = p.loss(**PAIRS, beta=0)
    nothing = p.but(ref=None)
    assert nothing.loss(**PAIRS, beta=0) == want
    assert p.but(ref="not looked at").loss(**PAIRS, beta=0.0) == want
    assert want.kl == 0
    assert want.loss == want.policy_loss
    assert same_bits(nothing.grad(**PAIRS, beta=0), p.grad(**PAIRS, beta=0))


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean_valid", "prompt_mean"])
@pytest.mark.parametrize("lengths", [None, [0, 3, 1, 0, 2, 0]], ids=["", "a token a sequence"])
def test_packed_is_padded(reduction, lengths):
    p = draw(6, 9)
    if lengths is None:
        lengths = [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in p.mask]
    kept = np.arange(9) < np.array(lengths)[:, None]
    p = p.but(mask=p.mask & kept)
    packed = p.but(rewards=None).map(lambda x: x[kept]).but(rewards=p.rewards)
    options = {**PAIRS, "loss_reduction": reduction, "beta": 0.5}
    starts = np.cumsum([0, *lengths])
    assert packed.loss(**options, cu_seqlens=starts) == p.loss(**options)
    grad = packed.grad(**options, cu_seqlens=starts.astype(np.int32))
    assert same_bits(grad, p.grad(**options)[kept])


def test_order_within_and_of_groups():
    p = draw(8, 9)
    options = {"samples_per_prompt": 4, "normalize": "center", "beta": 0.3}
    # Rewards whose mean is exact, whatever the order.
    p = p.but(rewards=np.float32([1, 0, 0, 1, 2, 1, 1, 4]))
    order = np.array([6, 4, 7, 5, 1, 3, 0, 2])
    q = p.map(lambda x: x[order])
    assert q.loss(**options) == p.loss(**options)
    assert same_bits(q.grad(**options), p.grad(**options)[order])


@pytest.mark.parametrize("boundaries", [[0, 2, 3, 6], np.array([0, 2, 3, 6], np.int32)])
def test_boundaries(boundaries):
    p = draw(6, 9)
    check(p, samples_per_prompt=None, group_boundaries=boundaries)
    same = [0, 2, 4, 6]
    options = {"loss_reduction": "prompt_mean"}
    assert p.loss(group_boundaries=same, **options) == p.loss(**PAIRS, **options)


def test_one_sequence():
    p = draw(2, 9)
    row = Tokens(p.policy[0], p.ref[0], p.ids[0], p.mask[0], p.old[0], p.rewards[:1])
    found = row.loss(samples_per_prompt=1)
    assert found.policy_loss == 0  # a group of one
    assert found.kl > 0


def test_dialects():
    p = draw(6, 9, seed=2)
    for dialect in ("verl", "skyrl", "trl", "liger"):
        a = jit.group_advantages(p.rewards, **PAIRS, dialect=dialect)
        log_probs, ref = (jit.logp(x, p.ids, mask=p.mask) for x in (p.policy, p.ref))
        options = {"kl_coef": 0.04, "ref_log_probs": ref, "dialect": dialect}
        want = jit.ppo_loss(log_probs, p.old, a, p.mask, **options)
        assert p.loss(**PAIRS, dialect=dialect).loss == want.loss


def test_layouts():
    p = draw(6, 9)
    for view in (*LAYOUTS.values(), turned):
        q = p.map(view)
        assert q.loss(**PAIRS) == p.loss(**PAIRS)
        assert same_bits(np.ascontiguousarray(q.grad(**PAIRS)), p.grad(**PAIRS))
    wide = {"mask": p.mask.astype(float), "rewards": p.rewards.astype(float)}
    wide = p.but(old=p.old.astype(float), ids=p.ids.astype(np.int32), **wide)
    assert wide.loss(**PAIRS) == p.loss(**PAIRS)


@on_cpu_alone
@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads(num_threads):
    p = draw(8, 900, 3)
    want, grad = p.loss(**PAIRS), p.grad(**PAIRS)
    rlk.jit.configure(num_threads=num_threads)
    assert p.loss(**PAIRS) == want
    assert same_bits(p.grad(**PAIRS), grad)


def test_every_option_is_alive():
    """slime #2247."""
    p = draw(8, 9)
    base = p.grad(**PAIRS)
    kl = p.grad(**PAIRS, beta=0.3)
    seen = set()
    for options in OPTION_SETS[1:]:
        grad = p.grad(**{**PAIRS, **options})
        against = kl if options.get("beta") == 0.3 else base
        assert not same_bits(grad, against), options
        seen.add(grad.tobytes())
    assert len(seen) == len(OPTION_SETS) - 1


def test_the_kl_term_pulls_to_the_reference():
    """Logic-RL #58: where the policy is above its reference, descent pushes it down."""
    p = draw(4, 5).but(mask=None)
    equal = p.but(rewards=np.ones(4, np.float32))
    log_prob = jit.logp(p.policy, p.ids)
    grad = equal.grad(**PAIRS, ref_logps=log_prob - 1)
    assert (np.take_along_axis(grad, p.ids[..., None], -1) > 0).all()


def test_an_option_of_none_is_not_given():
    p = draw()
    want = p.grad(**PAIRS, clip_eps=0.05)
    assert not same_bits(want, p.grad(**PAIRS))
    nothing = {"eps_clip_low": None, "eps_clip_high": None}
    assert same_bits(p.grad(**PAIRS, clip_eps=0.05, **nothing), want)


@on_cpu_alone
def test_explain():
    p = draw()
    found = rlk.jit.explain(
        rlk.jit.grpo_loss, p.policy, p.ref, p.ids, p.old, p.rewards, p.mask, **PAIRS
    )
    assert found.kernel.startswith("logp.fwd[x=f32")
