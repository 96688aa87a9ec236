# SPDX-License-Identifier: Apache-2.0
"""ratio_kl: values and gradients in float64, logp's bits, masks, clamps, layouts, errors."""

import numpy as np
import pytest
from devices import jit, on_cpu_alone
from grpo import Tokens, draw, filled, two_columns, with_garbage, with_nan
from layouts import LAYOUTS, turned
from paths import GOLDEN
from problems import DTYPES
from reference import Exactly, assert_within, same_bits

import rlk

pytestmark = pytest.mark.usefixtures("device", "generic")

OPTION_SETS = [
    {},
    {"temperature": 0.7},
    {"softcap": 2.0, "logit_scale": -0.25, "temperature": 1.3},
    {"kl": "k1"},
    {"kl": "abs"},
    {"kl": "k2"},
    {"kl_gradient": "unbiased"},
    {"kl_gradient": "importance", "kl_clamp": 0.1},
    {"kl": "k2", "kl_gradient": "importance", "kl_clamp": 0.1},
    {"kl": "k1", "kl_gradient": "importance"},
    {"kl": "k1", "kl_clamp": 0.1},
    {"kl": "abs", "kl_clamp": 0.1, "kl_gradient": "unbiased"},
    {"kl_clamp": 0.25, "log_ratio_clamp": 0.5},
    {"ignore_index": 3},
]


def upstream(p: Tokens, seed: int = 1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((2, *np.shape(p.ids))).astype(np.float32)


def check(p: Tokens, **options) -> None:
    exact, found = Exactly(p, **options), p.ratio_kl(**options)
    for name, got, want in zip(("ratio", "kl"), found, exact.outputs(), strict=True):
        assert got.dtype == np.float32
        assert_within(got, want, name)
    g_ratio, g_kl = upstream(p)
    zero = np.zeros_like(g_ratio)
    for a, b in ((g_ratio, g_kl), (g_ratio, None), (None, g_kl)):
        want = exact.ratio_kl_grad(zero if a is None else a, zero if b is None else b)
        assert_within(p.ratio_kl_grad(a, b, **options), want, "gradient")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTION_SETS, ids=str)
def test_against_float64(options, dtype):
    check(draw(dtype=dtype), **options)


def test_a_wider_clamp():
    check(draw(), log_ratio_clamp=30.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 3, 127, 128, 129, 193, 385, 3331])
@pytest.mark.parametrize(
    "options",
    [{}, {"kl": "k2", "temperature": 0.7}, {"kl_gradient": "unbiased", "softcap": 2.0}],
    ids=str,
)
def test_sizes(device, options, vocab, dtype):
    rows, length = {"cpu": (3, 4), "cuda": (6, 9)}[device]
    check(draw(rows, length, vocab, dtype), **options)


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_golden_kl(kl):
    given = {k: np.asarray(v) for k, v in GOLDEN["inputs"].items()}
    mask = given["mask"] != 0
    p = Tokens(*(two_columns(given[k]) for k in ("logp", "ref")), mask * 0, mask, None, None)
    p = p.but(old=given["old"].astype(np.float32))
    # A reference's log-prob above 0 is none of logits, so it is given as it is.
    got = p.ratio_kl(kl=kl, ref_logps=given["ref"])
    assert got.kl[mask].mean() == pytest.approx(GOLDEN["kl"][kl]["mean"], rel=1e-5)
    ratio = np.where(mask, np.exp(given["logp"] - given["old"]), 1.0)
    np.testing.assert_allclose(got.ratio, ratio, rtol=1e-5)
    grad = p.ratio_kl_grad(None, np.full((4, 4), 1 / 9, np.float32), kl=kl, ref_logps=given["ref"])
    # dz of the chosen column is (1 - p) times the log-prob's.
    want = np.asarray(GOLDEN["kl"][kl]["grad_token_mean"]) * np.where(
        mask, -np.expm1(given["logp"]), 0
    )
    np.testing.assert_allclose(grad[..., 0], want, rtol=2e-5, atol=1e-6)


def test_bits_are_those_of_logp():
    p = draw()
    log_prob = jit.logp(p.policy, p.ids, mask=p.mask)
    ref = jit.logp(p.ref, p.ids, mask=p.mask)
    assert same_bits(p.ratio_kl().kl, p.ratio_kl(ref_logps=ref).kl)
    # Of each token's sums ppo_loss tells, one alone is exact in fp32.
    for at in np.argwhere(p.mask)[:5]:
        alone = np.zeros_like(p.mask)
        alone[tuple(at)] = True
        metrics = jit.ppo_loss(
            log_prob, p.old, p.rewards, alone, kl_coef=1.0, ref_log_probs=ref
        ).metrics
        assert metrics.ratio_max == p.ratio_kl().ratio[tuple(at)]
        assert metrics.kl_loss == p.ratio_kl().kl[tuple(at)]
    for dtype in ("float16", "float64"):
        old = p.old.astype(dtype)
        got = p.but(old=old).ratio_kl().ratio
        assert same_bits(got, p.but(old=old.astype(np.float32)).ratio_kl().ratio)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_tokens_may_hold_anything(dtype):
    """RL-Kernel #161, #162; SkyRL #1633; AReaL #1412: no bit changes, in no argument."""
    p = draw(dtype=dtype)
    off, garbage = ~p.mask, with_garbage(p)
    g_ratio, g_kl = (filled(g, off) for g in upstream(p))
    for options in ({}, {"kl": "k1"}, {"log_ratio_clamp": np.inf, "kl_clamp": np.inf}):
        for got, want in zip(garbage.ratio_kl(**options), p.ratio_kl(**options), strict=True):
            assert same_bits(got, want)
        assert (garbage.ratio_kl(**options).ratio[off] == 1).all()
        assert same_bits(garbage.ratio_kl(**options).kl[off], np.zeros(off.sum(), np.float32))
        grad = garbage.ratio_kl_grad(g_ratio, g_kl, **options)
        assert same_bits(grad, p.ratio_kl_grad(*upstream(p), **options))
        assert same_bits(grad[off], np.zeros_like(grad[off]))
    got = garbage.ratio_kl(ref_logps=filled(p.old, off))
    assert same_bits(got.kl, p.ratio_kl(ref_logps=p.old).kl)


def test_ignored_ids_are_inactive():
    p = draw()
    ids = np.where(p.mask, p.ids, -100)
    for got, want in zip(p.but(ids=ids, mask=None).ratio_kl(), p.ratio_kl(), strict=True):
        assert same_bits(got, want)
    assert same_bits(
        p.but(ids=ids, mask=None).ratio_kl_grad(*upstream(p)), p.ratio_kl_grad(*upstream(p))
    )


def test_no_active_token():
    p = draw().map(lambda x: np.full_like(x, np.nan) if x.dtype.kind == "f" else x)
    p = p.but(mask=np.zeros_like(p.mask))
    found = p.ratio_kl()
    assert (found.ratio == 1).all()
    assert not found.kl.any()
    assert not p.ratio_kl_grad(*upstream(p)).any()


def test_far_beyond_the_clamps():
    """RL-Kernel: a ratio of e^90 times a gradient of 0 is no NaN. TRL #3015, #6550: e = 200."""
    logits = np.zeros((4, 3), np.float32)
    log_prob = np.float32(-np.log(3.0))
    far = np.float32([90.0, -90.0, 0.0, 1e4])
    p = Tokens(logits, None, np.zeros(4, int), None, log_prob - far, None)
    ref = log_prob + np.float32([200.0, -200.0, 0.0, 1e4])
    found = p.ratio_kl(ref_logps=ref)
    np.testing.assert_allclose(found.ratio, np.exp([20.0, -20.0, 0.0, 20.0]), rtol=3e-5)
    np.testing.assert_allclose(found.kl, [np.expm1(20) - 20, 19.0, 0, np.expm1(20) - 20], rtol=1e-5)
    one, none = np.ones(4, np.float32), np.zeros(4, np.float32)
    assert not p.ratio_kl_grad(none, one, ref_logps=ref)[[0, 1, 3]].any()
    assert not p.ratio_kl_grad(one, none, ref_logps=ref)[[0, 1, 3]].any()
    free = {"log_ratio_clamp": np.inf, "kl_clamp": np.inf, "ref_logps": ref}
    assert np.isinf(p.ratio_kl(**free).ratio[[0, 3]]).all()
    assert np.isnan(p.ratio_kl_grad(none, one, **free)[3]).any()  # inf, where nothing is clamped
    unbiased = p.ratio_kl_grad(none, one, ref_logps=ref, kl_gradient="unbiased")
    np.testing.assert_allclose(unbiased[0], -200 * np.float32([2 / 3, -1 / 3, -1 / 3]), rtol=1e-5)


def test_a_nan_stays_in_its_token():
    p = draw()
    bad, at, others = with_nan(p)
    found, good = bad.ratio_kl(), p.ratio_kl()
    for got, want in zip(found, good, strict=True):
        assert np.isnan(got[at])
        assert same_bits(got[others], want[others])
    grad = bad.ratio_kl_grad(*upstream(p))
    assert np.isnan(grad[at]).all()
    assert same_bits(grad[others], p.ratio_kl_grad(*upstream(p))[others])


def test_a_chosen_logit_of_minus_infinity():
    p = draw(2, 3, 50).but(mask=None)
    policy = p.policy.copy()
    policy[0, 0, p.ids[0, 0]] = -np.inf
    p = p.but(policy=policy, old=p.old * 0 - 1)
    assert p.ratio_kl().ratio[0, 0] == pytest.approx(np.exp(-20.0), rel=1e-5)
    assert not p.ratio_kl_grad(np.ones((2, 3), np.float32), None)[0, 0].any()


@pytest.mark.parametrize("spread", [1e-5, 1e-4, 1e-3, 1e-2])
def test_k3_is_never_negative(spread):
    rng = np.random.default_rng(0)
    p = draw(20, 50, 5)
    log_prob = jit.logp(p.policy, p.ids)
    ref = (log_prob + spread * rng.standard_normal(log_prob.shape)).astype(np.float32)
    kl = p.but(mask=None).ratio_kl(ref_logps=ref).kl
    e = ref.astype(float) - log_prob
    np.testing.assert_allclose(kl, np.expm1(e) - e, rtol=1e-5, atol=1e-14)
    assert (kl >= 0).all()


def test_layouts_and_neighbours():
    p = draw(5, 8, 130)
    g = upstream(p)
    want, grad = p.ratio_kl(), p.ratio_kl_grad(*g)
    for view in (*LAYOUTS.values(), turned):
        q = p.map(view)
        assert all(same_bits(got, one) for got, one in zip(q.ratio_kl(), want, strict=True))
        assert same_bits(q.ratio_kl_grad(*map(view, g)), grad)
    wide = p.but(old=p.old.astype(float), mask=p.mask.astype("f4"), ids=p.ids.astype("i4"))
    assert same_bits(wide.ratio_kl_grad(*g), grad)
    one = np.broadcast_to(np.float32(1), p.ids.shape)
    assert same_bits(p.ratio_kl_grad(one, one), p.ratio_kl_grad(one.copy(), one.copy()))
    order = np.random.default_rng(3).permutation(40)
    flat = p.but(rewards=None).map(lambda x: x.reshape(40, *x.shape[2:])[order])
    for got, one in zip(flat.ratio_kl(), want, strict=True):
        assert same_bits(got, one.reshape(40)[order])
    flat_grad = flat.ratio_kl_grad(*g.reshape(2, 40)[:, order])
    assert same_bits(flat_grad, grad.reshape(40, -1)[order])
    scalar = p.but(rewards=None).map(lambda x: x[0, 0])
    ids = {"ids": np.asarray(scalar.ids), "mask": np.asarray(scalar.mask)}
    scalar = scalar.but(**ids, old=np.asarray(scalar.old))
    assert same_bits(np.asarray(scalar.ratio_kl().ratio), np.asarray(want.ratio[0, 0]))


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int64", "float32", "float64"])
def test_a_mask_of_any_type(kind):
    p = draw()
    for got, want in zip(p.but(mask=p.mask.astype(kind)).ratio_kl(), p.ratio_kl(), strict=True):
        assert same_bits(got, want)


@on_cpu_alone
@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads(num_threads):
    p = draw(30, 400, 3)
    want, g = p.ratio_kl(), upstream(p)
    grad = p.ratio_kl_grad(*g)
    rlk.jit.configure(num_threads=num_threads)
    for got, one in zip(p.ratio_kl(), want, strict=True):
        assert same_bits(got, one)
    assert same_bits(p.ratio_kl_grad(*g), grad)


def test_every_option_is_alive():
    p = draw()
    base = p.ratio_kl(), p.ratio_kl_grad(*upstream(p))
    for options in OPTION_SETS[1:]:
        found = p.ratio_kl(**options), p.ratio_kl_grad(*upstream(p), **options)
        assert not same_bits(found[1], base[1]), options


ERRORS = [
    ({"ref": None}, {}, "ref_logits: expected it or ref_logps, got neither"),
    ({"policy": None}, {}, "policy_logits: expected a tensor"),
    ({"ids": None}, {}, "action_ids: expected a tensor"),
    ({"old": None}, {}, "old_logps: expected a tensor, got None"),
    ({"old": np.zeros((6, 8), np.float32)}, {}, r"old_logps: expected shape \[6, 9\].*\[6, 8\]"),
    ({"old": np.zeros((6, 9), int)}, {}, "old_logps: expected a floating dtype, got int64"),
    ({"ids": np.zeros((6, 8), int)}, {}, r"action_ids: expected shape \[6, 9\], got \[6, 8\]"),
    ({"ids": np.full((6, 9), 210)}, {}, r"action_ids: expected ids in \[0, 210\), got 210"),
    ({"mask": np.full((6, 9), 2)}, {}, "attention_mask: expected 0 or 1, got 2"),
    ({"mask": np.ones((6, 8))}, {}, r"attention_mask: expected shape \[6, 9\]"),
    ({"policy": np.zeros((6, 9, 210), int)}, {}, "policy_logits: expected dtype float32"),
    ({"ref": np.zeros((6, 9, 210), int)}, {}, "ref_logits: expected dtype float32"),
    ({"ref": np.zeros((6, 8, 210), np.float32)}, {}, r"ref_logits: expected shape \[6, 9, 210\]"),
    ({"ref": np.zeros((6, 9, 211), np.float32)}, {}, r"ref_logits: expected shape .*9, 211\]"),
    ({"ref": np.zeros((6, 9, 1), np.float32)}, {}, r"ref_logits: expected shape .*9, 1\]"),
    ({}, {"ref_logps": np.zeros((9, 6), np.float32)}, "ref_logps: expected shape"),
    ({}, {"kl": "k4"}, "kl: expected k1, abs, k2, k3, got 'k4'"),
    ({}, {"kl_gradient": None}, "kl_gradient: expected pathwise"),
    ({}, {"kl_clamp": -1.0}, "kl_clamp: expected a number"),
    ({}, {"kl_clamp": (1, 2)}, "kl_clamp: expected a number"),
    ({}, {"kl_clamp": np.nan}, "kl_clamp: expected a number"),
    ({}, {"log_ratio_clamp": 0}, "log_ratio_clamp: expected a number above 0"),
    ({}, {"log_ratio_clamp": "wide"}, "log_ratio_clamp: expected a number"),
    ({}, {"temperature": 0.0}, "temperature: expected a finite number above 0"),
    ({}, {"softcap": -1.0}, "softcap: expected a finite number above 0"),
]


@on_cpu_alone
@pytest.mark.parametrize(("changes", "options", "message"), ERRORS, ids=lambda x: str(x)[:30])
def test_errors_name_the_argument(changes, options, message):
    with pytest.raises(rlk.InvalidArgument, match=f"^ratio_kl: {message}"):
        draw().but(**changes).ratio_kl(**options)


@on_cpu_alone
def test_other_errors():
    p = draw()
    with pytest.raises(rlk.InvalidArgument, match=r"^ratio_kl: ref_logits: .*got both"):
        rlk.jit.ratio_kl(p.policy, p.ref, p.ids, p.mask, p.old, ref_logps=p.old)
    with pytest.raises(rlk.InvalidArgument, match=r"^ratio_kl: grad_ratio: expected a tensor"):
        p.ratio_kl_grad(None, None)
    with pytest.raises(rlk.InvalidArgument, match=r"^ratio_kl: grad_kl: expected shape \[6, 9\]"):
        p.ratio_kl_grad(None, np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="unexpected keyword"):
        p.ratio_kl(beta=1)


def test_specialized_is_generic(device):
    vocab, dtype = {"cpu": (210, "float16"), "cuda": (3331, "bfloat16")}[device]
    p = draw(vocab=vocab, dtype=dtype)
    options = ({}, {"kl": "k1"}, {"kl": "k2", "temperature": 0.7}, {"kl_gradient": "unbiased"})
    for each in options:
        rlk.jit.configure(specialize=False, policy="off")
        want, grad = p.ratio_kl(**each), p.ratio_kl_grad(*upstream(p), **each)
        rlk.jit.configure(specialize=True, policy="sync")
        before = rlk.jit.cache_info().fallbacks
        for got, one in zip(p.ratio_kl(**each), want, strict=True):
            assert same_bits(got, one)
        assert same_bits(p.ratio_kl_grad(*upstream(p), **each), grad)
        assert rlk.jit.cache_info().fallbacks == before


@on_cpu_alone
def test_explain():
    p = draw()
    found = rlk.jit.explain(
        rlk.jit.ratio_kl, p.policy, p.ref, p.ids, p.mask, p.old, kl="k1", softcap=2.0
    )
    assert found.kernel.startswith("logp.fwd[x=f32")
    found = rlk.jit.explain(rlk.jit.ratio_kl, p.policy, p.ref, p.ids, backward=True)
    assert found.kernel.startswith("logp.bwd[x=f32")
