# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of ppo_loss: golden cases, then every option against float64."""

from itertools import product

import numpy as np
import pytest
from devices import jit
from losses import FLOAT, OPTION_SETS, Batch, batch, check, mapped, same, same_metrics
from paths import GOLDEN
from problems import numpy_type

from rlk._rules import REDUCTIONS

pytestmark = pytest.mark.usefixtures("device", "generic")

INPUTS = GOLDEN["inputs"]
EPS = {"eps_clip_low": INPUTS["eps_low"], "eps_clip_high": INPUTS["eps_high"]}
TIS = {
    "tis_token": {"tis_imp_ratio_cap": 2.0},
    "icepop_token": {"tis_mode": "mask", "tis_imp_ratio_floor": 0.5, "tis_imp_ratio_cap": 2.0},
    "tis_seq": {"tis_level": "sequence", "tis_imp_ratio_cap": 2.0},
    "geo_mask_seq": {
        "tis_mode": "band",
        "tis_level": "geometric",
        "tis_imp_ratio_floor": 0.5,
        "tis_imp_ratio_cap": 2.0,
    },
}
TABLE = GOLDEN["table"]  # of the reference page, which has more reductions than the others
KINDS = ("ppo", "ppo_dual", "cispo", "sapo", "gspo")


def golden() -> Batch:
    arrays = {name: np.array(INPUTS[name], FLOAT) for name in ("logp", "old", "advantages")}
    others = {"rollout_logprobs": INPUTS["rollout"], "ref_log_probs": INPUTS["ref"]}
    return Batch(
        arrays["logp"],
        arrays["old"],
        arrays["advantages"],
        np.array(INPUTS["mask"], bool),
        {name: np.array(values, FLOAT) for name, values in others.items()},
    )


def options_of(kind: str, reduction: str) -> dict:
    options = {**EPS, "policy_loss": kind.removesuffix("_dual"), "loss_reduction": reduction}
    options["use_dual_clip"] = kind.endswith("_dual")
    if "norm" in reduction or reduction.endswith("_L"):
        options["max_seq_len"] = INPUTS["Lmax"]
    if reduction == "prompt_mean":
        options["samples_per_prompt"] = 2
    return options


@pytest.mark.parametrize("case", GOLDEN["loss"])
def test_golden_losses(case):
    kind, reduction = case.split("/")
    want, options = GOLDEN["loss"][case], options_of(kind, reduction)
    got = golden().loss(**options)
    assert float(got.loss) == pytest.approx(want["loss"], rel=4e-6)
    grads = golden().grads(**options)
    np.testing.assert_allclose(grads.log_probs, want["grad_logp"], rtol=1e-5, atol=1e-9)
    m = got.metrics
    assert int(m.num_active) == want["counts"]["active"]
    if kind.startswith("ppo"):
        counts = (int(m.num_clip_high), int(m.num_clip_low), int(m.num_dual_clip))
        assert counts == tuple(want["counts"][name] for name in ("hi", "lo", "dual"))
    if kind == "cispo":
        assert int(m.num_outside) == want["counts"]["hi"] + want["counts"]["lo"]


@pytest.mark.parametrize(("reduction", "kind"), list(product(TABLE, KINDS)))
def test_the_table_of_reductions(reduction, kind):
    want = TABLE[reduction][KINDS.index(kind)]
    got = golden().loss(**options_of(kind, reduction)).loss
    assert float(got) == pytest.approx(want, rel=4e-6)


@pytest.mark.parametrize("case", GOLDEN["is"])
def test_golden_importance_weights(case):
    want = GOLDEN["is"][case]
    options = {**options_of("ppo_dual", "token_mean"), "use_tis": True, **TIS[case]}
    got = golden().loss(**options)
    assert float(got.loss) == pytest.approx(want["ppo_dual_token_mean"], rel=4e-6)
    weights = np.array(want["weights"])
    assert float(got.metrics.tis_sum) == pytest.approx(weights.sum(), rel=1e-5)
    assert float(got.metrics.tis_sq_sum) == pytest.approx((weights**2).sum(), rel=1e-5)
    if "grad_logp" in want:
        grads = golden().grads(**options)
        np.testing.assert_allclose(grads.log_probs, want["grad_logp"], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("case", GOLDEN["kl"])
def test_golden_kl(case):
    want, name = GOLDEN["kl"][case], case.partition("_")[0]
    b = golden().but(advantages=np.zeros(4, FLOAT))  # the KL term alone
    options = {"kl_coef": 1.0, "kl_estimator": name}
    if "clamp" in case:
        options["kl_output_clamp"] = 10.0
    got = b.loss(**options)
    assert float(got.loss) == pytest.approx(want["mean"], rel=1e-5)
    if "grad_token_mean" in want:
        grads = b.grads(**options)
        np.testing.assert_allclose(grads.log_probs, want["grad_token_mean"], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("options", OPTION_SETS)
@pytest.mark.parametrize("shape", [(6, 37), (3, 4099), (300, 7)])
def test_values(options, shape):
    check(batch(*shape, spread=0.8), -2.0, **options)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 4096, 131072 * 5 + 3])
def test_sizes(count):
    rng = np.random.default_rng(count)
    log_probs = -rng.exponential(1.0, count).astype(FLOAT)
    old = log_probs + rng.normal(0, 0.2, count).astype(FLOAT)
    b = Batch(log_probs, old, rng.normal(size=count).astype(FLOAT))
    check(b)
    assert b.loss().metrics.num_active == count


POLICIES = ("ppo", "gspo", "cispo", "sapo", "gpg")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_loss_under_every_reduction(policy, reduction):
    options = {"max_seq_len": 40, "group_boundaries": np.array([0, 2, 3, 6])}
    check(batch(), policy_loss=policy, loss_reduction=reduction, **options)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "mask", "band"])
def test_every_importance_weight(policy, level, mode):
    options = {"tis_level": level, "tis_mode": mode, "tis_imp_ratio_cap": 1.5}
    check(batch(), policy_loss=policy, use_tis=True, tis_imp_ratio_floor=0.6, **options)


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
@pytest.mark.parametrize("gradient", ["pathwise", "unbiased", "importance"])
@pytest.mark.parametrize("weight", ["one", "ratio"])
@pytest.mark.parametrize("most", [10.0, np.inf])
def test_every_kl_term(estimator, gradient, weight, most):
    options = {"kl_estimator": estimator, "kl_gradient": gradient, "kl_weight": weight}
    b = batch(spread=0.3)
    check(b, kl_coef=0.3, kl_output_clamp=most, log_ratio_clamp=5.0, kl_clamp=6.0, **options)
    check(b, kl_coef=0.3, kl_reduction="sequence_mean", **options)


@pytest.mark.parametrize("spread", [1e-5, 1e-4, 1e-3, 1e-2])
def test_k3_is_exact_near_zero(spread):
    b = batch(spread=spread).but(advantages=np.zeros(6, FLOAT))
    near = b.log_probs + FLOAT(spread) * np.random.default_rng(1).normal(size=(6, 37))
    b = b.with_others(ref_log_probs=near.astype(FLOAT))
    got, want = b.loss(kl_coef=1.0), b.answer(kl_coef=1.0)
    assert float(got.loss) > 0
    assert float(got.loss) == pytest.approx(want.loss, rel=1e-5)


def test_dual_clip_entropy_and_all_at_once():
    b = batch(spread=1.5)
    for clip in (1.5, 3.0):
        check(b, use_dual_clip=True, clip_ratio_c=clip)
    check(b, entropy_coef=0.01)
    everything = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}
    check(b, upstream=-3.5, eps_clip_high=0.28, **everything)


@pytest.mark.parametrize("bounds", ["1+eps", "eps", (0.0, 5.0)])
def test_bounds_of_cispo(bounds):
    check(batch(spread=1.5), policy_loss="cispo", cispo_bounds=bounds, eps_clip_high=1.7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_read_as_float32(dtype):
    kind = numpy_type(dtype)
    options = {"use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.1}

    def other(x, fill):
        return x if fill is False else x.astype(kind)

    def single(x, fill):
        return x if fill is False else x.astype(kind).astype(FLOAT)

    b = batch()
    found, wide = mapped(b, other), mapped(b, single)
    assert found.loss(**options).loss == wide.loss(**options).loss
    grads, want = found.grads(**options).log_probs, wide.grads(**options).log_probs
    assert grads.dtype in (kind, np.float32)
    assert grads.dtype == kind or dtype == "float64"
    with np.errstate(over="ignore"):
        assert same(grads.astype(FLOAT), want.astype(grads.dtype).astype(FLOAT))


MASKS = ["bool", "int8", "uint8", "int64", "int32", "float32", "float64", "bfloat16"]


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_of_any_type(kind):
    b = batch()
    got, want = b.but(mask=b.mask.astype(numpy_type(kind))).loss(), b.loss()
    assert same(got.loss, want.loss)
    assert same_metrics(got.metrics, want.metrics)


def test_shapes_of_advantages_and_weights():
    b = batch()
    a = np.random.default_rng(3).normal(size=6).astype(FLOAT)
    wide = b.but(advantages=np.repeat(a[:, None], 37, 1))
    assert b.but(advantages=a).loss().loss == wide.loss().loss
    assert b.but(advantages=a[:, None]).loss().loss == wide.loss().loss
    check(b, loss_weights=a)
    check(b, loss_weights=np.abs(b.advantages))
    row = Batch(b.log_probs[0], b.old[0], b.advantages[0], b.mask[0])
    check(row)
    assert jit.ppo_loss(row.log_probs, row.old, a[:1], row.mask).loss.shape == ()


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
def test_the_kl_term_is_told_apart(reduction):
    """By the loss's own weights, and exact where it is far below the policy term."""
    b = batch()
    close = b.log_probs + np.float32(1e-4) * b.others["ref_log_probs"]
    b = b.with_others(ref_log_probs=close.astype(np.float32))
    got = b.loss(kl_coef=0.1, loss_reduction=reduction).metrics.kl_loss
    want = b.answer(kl_coef=0.1, loss_reduction=reduction).sums["kl_loss"]
    assert 0 < want < 1e-6
    assert abs(got - want) <= 1e-5 * want
    assert b.loss(loss_reduction=reduction).metrics.kl_loss == 0


@pytest.mark.parametrize("policy", ["ppo", "gspo"])
@pytest.mark.parametrize("delta", [0.9, 1.1, 1.28, 2.0, np.inf])
@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
def test_a_capped_ratio(policy, delta, reduction):
    b = batch(spread=1.0, seed=2)
    options = {"policy_loss": policy, "loss_reduction": reduction, "eps_clip_high": 0.28}
    check(b, delta=delta, **options)
    check(b, delta=delta, log_ratio_clamp=np.inf, gspo_log_ratio_clamp=np.inf, **options)
    if delta == np.inf:
        assert b.loss(delta=delta, **options).loss == b.loss(**options).loss


@pytest.mark.parametrize("delta", [1.1, 1.27, 1.29, 3.0])
def test_a_capped_ratio_is_the_dual_clip_above_the_clip_alone(delta):
    """D6: where delta >= 1 + eps_clip_high."""
    b = batch(spread=1.0, seed=2)
    options = {"eps_clip_high": 0.28}
    dual = {"use_dual_clip": True, "clip_ratio_c": delta, **options}
    got, want = b.loss(delta=delta, **options), b.loss(**dual)
    grads, others = b.grads(delta=delta, **options).log_probs, b.grads(**dual).log_probs
    is_same = got.loss == want.loss and np.array_equal(grads, others)
    assert is_same == (delta >= 1.28)
    if is_same:
        assert got.metrics.num_dual_clip == want.metrics.num_dual_clip > 0


def test_the_dialects_of_delta():
    """TRL and Liger cap only where it is given."""
    b = batch(spread=1.0)
    for dialect in ("trl", "liger"):
        own = {"dialect": dialect, "log_ratio_clamp": 5.0}
        assert b.loss(**own).loss != b.loss(**own, delta=1.3).loss
        assert b.loss(**own, delta=1.3).metrics.num_dual_clip > 0
    assert b.loss(dialect="verl", delta=3.0).loss == b.loss(dialect="verl").loss
