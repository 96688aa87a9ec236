# SPDX-License-Identifier: Apache-2.0
"""Public bugs of other systems' policy losses, as tests; more stand beside what they are about."""

import numpy as np
import pytest
from devices import call
from losses import FLOAT, Batch, batch, check, same

import rlk
from rlk._loss_options import WORDS, WORDS_OF_RULES

pytestmark = pytest.mark.usefixtures("device", "generic")


def tokens(log_ratios, advantages=1.0, **others) -> Batch:
    """One sequence; log_probs of -1."""
    log_ratios = np.asarray(log_ratios, FLOAT)[None]
    log_probs = np.full_like(log_ratios, -1.0)
    a = np.broadcast_to(np.asarray(advantages, FLOAT), log_probs.shape)
    tensors = {name: np.asarray(x, FLOAT)[None] for name, x in others.items()}
    return Batch(log_probs, log_probs - log_ratios, a, None, tensors)


def weighted(weights, **options) -> np.ndarray:
    """The importance weight of each token that has exp(old - rollout) as given: its gradient."""
    b = tokens(np.zeros(len(weights)), -1.0, rollout_logprobs=-1.0 - np.log(weights))
    return b.grads(loss_reduction="token_sum", use_tis=True, **options).log_probs[0]


def test_gspo_clamps_the_mean_and_takes_it_exactly():
    """verl 2775: a clamp of the tokens before the mean gives -3 here, bfloat16 no third digit."""
    wide = {"policy_loss": "gspo", "eps_clip_high": 1e9, "loss_reduction": "sequence_mean"}
    got = tokens([30, -10, -19]).loss(**wide).loss
    assert float(got) == pytest.approx(-np.exp(1 / 3), rel=1e-6)
    assert float(tokens([12, 12.5]).loss(dialect="verl", **wide).loss) == pytest.approx(
        -np.exp(10), rel=1e-6
    )
    near = np.full(4096, 1e-3, FLOAT)
    assert float(tokens(near).loss(**wide).loss) == pytest.approx(-np.exp(1e-3), rel=1e-6)


def test_a_token_mean_over_the_batch_is_none_of_the_prompts():
    """verl 2776: groups of 2 and 6 tokens, losses of 1 and 3 a token."""
    a = -np.array([[1, 1, 0, 0, 0, 0], [3, 3, 3, 3, 3, 3]], FLOAT)
    zero = np.zeros((2, 6), FLOAT)
    b = Batch(zero, zero, a, np.array([[1, 1, 0, 0, 0, 0], [1] * 6]))
    assert float(b.loss(loss_reduction="token_mean").loss) == pytest.approx(20 / 8)
    assert float(b.loss(loss_reduction="prompt_mean", samples_per_prompt=1).loss) == 2.0


def test_a_mean_of_micro_batches_means_is_no_token_mean():
    """SkyRL 1296: its token_mean_legacy; no reduction has it, a global count gives the true one."""
    b = batch(4)
    parts = [
        Batch(b.log_probs[r], b.old[r], b.advantages[r], b.mask[r])
        for r in (slice(0, 1), slice(1, 4))
    ]
    count = int(b.mask.sum())
    legacy = np.mean([float(part.loss().loss) for part in parts])
    pieces = [part.loss(global_tokens=count).metrics for part in parts]
    assert same(call(rlk.losses.combine, pieces)[0], b.loss().loss)
    assert abs(legacy - float(b.loss().loss)) > 1e-3
    with pytest.raises(rlk.InvalidArgument, match=r"loss_reduction: .*got 'token_mean_legacy'"):
        b.loss(dialect="skyrl", loss_reduction="token_mean_legacy")


def test_the_denominator_follows_the_mask():
    """TRL 6369, 7068: truncated sequences leave it, tokens without advantage stay."""
    b = batch(6)
    truncated = b.mask & (np.arange(6) != 0)[:, None]
    less = b.but(mask=truncated)
    assert int(less.loss().metrics.num_active) == truncated.sum() < b.mask.sum()
    check(less)
    none = np.where(np.arange(37) < 5, 0, b.advantages).astype(FLOAT)
    check(b.but(advantages=none))
    assert int(b.but(advantages=none).loss().metrics.num_active) == b.mask.sum()
    check(less, global_tokens=int(b.mask.sum()))


@pytest.mark.parametrize("reduction", ["grpo", "bnpo", "dapo", "dr_grpo"])
def test_liger_has_trls_denominators(reduction):
    """TRL 5890, unsloth-zoo 1286: one count, also of none."""
    b = batch()
    empty = b.but(mask=np.zeros_like(b.mask))
    options = {"loss_reduction": reduction, "max_seq_len": 40, "eps_clip_high": 0.3}
    for each in (b, empty):
        trl, liger = (each.loss(dialect=name, **options) for name in ("trl", "liger"))
        assert same(trl.loss, liger.loss)
        assert np.isfinite(trl.loss)
    assert empty.loss(dialect="liger", **options).loss == 0


def test_rejection_in_shards_of_a_sequence():
    """slime 657, 429: context-parallel halves add up to the whole, rejected tokens included."""
    b = batch(4)
    count = int(b.mask.sum())
    options = {"use_tis": True, "tis_mode": "mask", "tis_imp_ratio_cap": 1.1}
    whole = b.loss(global_tokens=count, **options)
    assert 0 < int(whole.metrics.num_tis_rejected) < count
    parts = []
    for at in (slice(0, 11), slice(11, 37)):
        others = {name: x[:, at] for name, x in b.others.items()}
        half = Batch(b.log_probs[:, at], b.old[:, at], b.advantages[:, at], b.mask[:, at], others)
        parts.append(half.loss(global_tokens=count, **options).metrics)
    loss, metrics = call(rlk.losses.combine, parts)
    assert same(loss, whole.loss)
    for name in ("num_active", "num_tis_rejected", "num_tis_high", "tis_sum", "tis_sq_sum"):
        assert same(getattr(metrics, name), getattr(whole.metrics, name)), name


def test_inputs_that_share_their_memory():
    """torchtitan 3629: strides of 0, backwards and over two rows."""
    b = batch(6)
    row = {name: x[1] for name, x in b.others.items()}
    options = {"use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}

    def wide(x):
        return np.broadcast_to(x, (6, 37))

    shared = b.but(old=wide(b.old[1]), mask=wide(b.mask[1]), advantages=wide(b.advantages[:1]))
    shared = shared.with_others(**{name: wide(x) for name, x in row.items()})
    dense = Batch(shared.log_probs, *(x.copy() for x in (shared.old, shared.advantages)))
    dense = dense.but(mask=shared.mask.copy())
    dense = dense.with_others(**{name: x.copy() for name, x in shared.others.items()})
    assert same(shared.loss(**options).loss, dense.loss(**options).loss)
    assert same(shared.grads(**options).log_probs, dense.grads(**options).log_probs)
    flipped = b.but(log_probs=b.log_probs[:, ::-1].copy()[:, ::-1], mask=b.mask[::-1].copy()[::-1])
    assert same(flipped.loss().loss, b.loss().loss)


def test_every_metric_is_alive():
    """RLinf 1529, 1530: a ratio that is 0 whatever happens."""
    b = batch(8, 64, spread=1.5)
    lp = b.log_probs.copy()
    lp[tuple(np.argwhere(b.mask)[0])] = -np.inf
    options = {"use_tis": True, "tis_mode": "mask", "tis_imp_ratio_floor": 0.5, "kl_coef": 0.1}
    options |= {"tis_imp_ratio_cap": 2.0, "use_dual_clip": True, "entropy_coef": 0.1}
    for name, value in b.loss(**options).metrics.named().items():
        assert np.any(value != 0) or name == "num_nonfinite", name
    assert b.but(log_probs=lp).loss(**options).metrics.num_nonfinite == 1


# Bounds of cispo at eps_clip_low=0.3, eps_clip_high=0.4; None: no bound.
CISPO_BOUNDS = {
    "rlk": (0.7, 1.4),
    "verl": (0.7, 1.4),
    "verl_old": (0.7, 1.4),
    "skyrl": (0.0, 5.0),
    "trl": (None, 0.4),
    "liger": (None, 0.4),
    "nemo": (0.7, 1.4),
    "slime": (0.7, 1.4),
}


@pytest.mark.parametrize("dialect", CISPO_BOUNDS)
def test_bounds_of_cispo_by_dialect(dialect):
    """SkyRL 1928: [1, 6] in place of [0, 5]; D7."""
    low, high = CISPO_BOUNDS[dialect]
    options = {"dialect": dialect, "policy_loss": "cispo", "loss_reduction": "token_sum"}
    options |= {"eps_clip_low": 0.3, "eps_clip_high": 0.4}
    weights = -tokens([-7.0, 7.0]).grads(**options).log_probs[0]
    least = np.exp(-7.0) if low is None else max(low, np.exp(-7.0))
    np.testing.assert_allclose(weights, [least, high], rtol=1e-5)


def test_bounds_of_rejection_need_no_symmetry():
    """verl 6377: [0.5, 5], whose logarithms are no negatives of each other."""
    got = weighted(
        [0.49, 0.51, 4.9, 5.1], tis_mode="mask", tis_imp_ratio_floor=0.5, tis_imp_ratio_cap=5.0
    )
    np.testing.assert_allclose(got, [0, 0.51, 4.9, 0], rtol=1e-6)


@pytest.mark.parametrize(("option", "word"), [(o, w) for o in WORDS_OF_RULES for w in WORDS[o]])
def test_every_word_is_reachable(option, word):
    """verl's "k3+" and "k2+" raised NotImplementedError."""
    switches = {"tis_": {"use_tis": True}, "kl_": {"kl_coef": 0.1}}
    options = {option: word, **switches.get(option[: option.index("_") + 1], {})}
    if word == "gspo":
        options["loss_reduction"] = "sequence_mean"
    check(batch(), **options)


def test_the_level_says_whose_statistic_rejects():
    """slime 1917, GMPO: weights of 2 and 1/4: their product is 1/2, its root 0.7."""
    weights = [2.0, 0.25]
    at = {"tis_imp_ratio_floor": 0.0, "tis_imp_ratio_cap": 1.9}
    truncated = {level: weighted(weights, tis_level=level, **at) for level in WORDS["tis_level"]}
    np.testing.assert_allclose(truncated["token"], [1.9, 0.25], rtol=1e-6)
    np.testing.assert_allclose(truncated["sequence"], [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(truncated["geometric"], [0.5**0.5] * 2, rtol=1e-6)
    at = {"tis_imp_ratio_floor": 0.6, "tis_imp_ratio_cap": 1.9}
    kept = {
        (mode, level): weighted(weights, tis_level=level, tis_mode=mode, **at)
        for mode in ("mask", "band")
        for level in WORDS["tis_level"]
    }
    for mode in ("mask", "band"):
        assert not kept[mode, "token"].any()
        assert not kept[mode, "sequence"].any()
    np.testing.assert_allclose(kept["mask", "geometric"], [0.5**0.5] * 2, rtol=1e-6)
    np.testing.assert_allclose(kept["band", "geometric"], weights, rtol=1e-6)


def bfloat16(x):
    """Rounded to it, to the nearest, ties to even."""
    bits = np.asarray(x, FLOAT).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(FLOAT)


def test_a_rollout_in_bfloat16_moves_weights_by_its_rounding():
    """TRL 2752, slime 892: at most 2^-8 of the log-prob, relative."""
    rng = np.random.default_rng(0)
    old = -rng.exponential(3.0, (1, 512)).astype(FLOAT)
    rollout = old - rng.normal(0, 0.1, old.shape).astype(FLOAT)
    zero = np.zeros_like(old)
    options = {"loss_reduction": "token_sum", "use_tis": True, "tis_imp_ratio_cap": 1e9}
    exact, rounded = (
        Batch(old, old, zero - 1, None, {"rollout_logprobs": x}).grads(**options).log_probs
        for x in (rollout, bfloat16(rollout))
    )
    error, bound = np.abs(rounded / exact - 1), np.expm1(2.0**-8 * np.abs(rollout)) + 1e-6
    assert (error <= bound).all()
    assert error.max() > 1e-3  # and it is there: no weight is rounded away


def test_a_sampler_of_a_part_of_the_vocabulary_shifts_its_weights():
    """TRL 6789: top-p renormalises by the mass S that it keeps; log S added to what it reports
    gives the weights of the whole distribution."""
    mass, whole = 0.9, np.array([1.2, 0.8, 1.0])
    reported = whole * mass  # its log-probs are log S too high
    np.testing.assert_allclose(weighted(reported), whole * mass, rtol=1e-6)
    np.testing.assert_allclose(weighted(reported / np.exp(np.log(mass))), whole, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 65_600), (66_000, 3)])
def test_more_than_65535_of_either(shape):
    """Liger 1294."""
    b = batch(*shape)
    check(b, use_tis=True)
    check(b, policy_loss="gspo", loss_reduction="sequence_mean_valid")
