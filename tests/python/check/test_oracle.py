# SPDX-License-Identifier: Apache-2.0
"""The oracle against finite differences and closed forms, and its blocks against one block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlk.check import contract, loss_oracle, oracle
from rlk.check.case import Case
from rlk.check.compare import deviation
from rlk.check.specs import SPECS

SPEC = SPECS["linear_logp"]
CONTRACT = contract.load()


def rows(seed: int = 0, num: int = 5, vocab: int = 23, depth: int = 7) -> oracle.LinearRows:
    rng = np.random.default_rng(seed)
    return oracle.LinearRows(
        hidden=rng.normal(size=(num, depth)),
        weight=rng.normal(size=(vocab, depth)),
        target=rng.integers(0, vocab, size=num),
        temperature=rng.uniform(0.5, 2.0, size=num),
        bias=rng.normal(size=vocab),
    )


def forward(r: oracle.LinearRows) -> oracle.LinearLogprob:
    return oracle.linear_logprob(r, CONTRACT.coefficients("linear_logprob", "float32"), True)


def gradients(r: oracle.LinearRows, g: np.ndarray, output: str = "logp") -> dict[str, Any]:
    c = CONTRACT.coefficients("linear_logprob_grad", "float32")
    store = dict.fromkeys(("hidden", "weight", "bias"), c)
    return oracle.linear_logprob_gradients(r, {output: g}, forward(r), c, store)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 1.5},
    "logit_scale": {"logit_scale": -0.5},
    "both": {"softcap": 1.5, "logit_scale": 0.5},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("output", ["logp", "entropy", "lse"])
@pytest.mark.parametrize("name", ["hidden", "weight", "bias"])
def test_gradients_are_finite_differences(name: str, output: str, options: str) -> None:
    r, g = replace(rows(), **OPTIONS[options]), np.random.default_rng(1).normal(size=5)
    exact = gradients(r, g, output)[name].value
    array = getattr(r, name)
    numeric = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + 1e-6
        above = (g * getattr(forward(r), output)).sum()
        array[index] = old - 1e-6
        numeric[index] = (above - (g * getattr(forward(r), output)).sum()) / 2e-6
        array[index] = old
    np.testing.assert_allclose(exact, numeric, rtol=1e-6, atol=1e-8)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    r, g = replace(rows(vocab=64), softcap=2.0), np.ones(5)
    whole, whole_gradients = forward(r), gradients(r, g, "entropy")
    monkeypatch.setattr(oracle, "BLOCK_ELEMENTS", 5 * 7)
    for value in ("logp", "bound", "entropy", "entropy_bound", "lse", "lse_bound"):
        np.testing.assert_allclose(getattr(forward(r), value), getattr(whole, value), rtol=1e-12)
    for name, exact in gradients(r, g, "entropy").items():
        np.testing.assert_allclose(exact.value, whole_gradients[name].value, atol=1e-13)
        np.testing.assert_allclose(exact.bound, whole_gradients[name].bound, rtol=1e-12)


def test_the_bound_is_the_contracts_formula() -> None:
    r = rows()
    found = forward(r)
    a = (np.abs(r.hidden) @ np.abs(r.weight).T + np.abs(r.bias)) / r.temperature[:, None]
    expected = 2e-5 + 1e-6 * np.abs(found.logp) + (7 / 8 + 2) * 2.0**-23 * a.max(axis=1)
    np.testing.assert_allclose(found.bound, expected, rtol=1e-12)


def test_a_column_at_minus_infinity_has_no_gradient_even_as_the_target() -> None:
    r = rows()
    assert r.bias is not None
    r.bias[r.target[0]] = -np.inf
    found = forward(r)
    assert found.logp[0] == -np.inf
    assert np.isfinite(found.bound).all()
    exact = gradients(r, np.ones(5))
    assert exact["bias"].value[r.target[0]] == 0.0
    assert np.isfinite(exact["hidden"].value).all()


def test_a_row_of_minus_infinity_is_nan() -> None:
    r = rows()
    assert r.bias is not None
    r.bias[:] = -np.inf
    assert np.isnan(forward(r).logp).all()
    assert np.isnan(forward(r).entropy).all()
    assert (forward(r).lse == -np.inf).all()


def test_a_row_without_upstream_has_no_gradient_whatever_it_holds() -> None:
    r, g = rows(), np.array([1.0, 0.0, -2.0, 0.5, 0.0])
    clean = gradients(r, g)
    r.hidden[1], r.hidden[4] = np.nan, np.inf
    exact = gradients(r, g)
    for name, found in exact.items():
        np.testing.assert_array_equal(found.value, clean[name].value)
        np.testing.assert_array_equal(found.bound, clean[name].bound)
    assert not exact["hidden"].value[[1, 4]].any()
    assert not exact["hidden"].bound[[1, 4]].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("rounds", "holds"), [((2,), True), ((0, 2), True), ((0, 1, 2), False)], ids=["1", "2", "3"]
)
def test_a_factor_of_16_bits_is_rounded_twice_at_most(
    dtype: str, rounds: tuple[int, ...], holds: bool
) -> None:
    """An exponential, then dZ; a third rounding, such as that of a probability, is found."""
    kind = np.float16 if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    c = CONTRACT.coefficients("linear_logprob_grad", dtype)
    single = CONTRACT.coefficients("linear_logprob_grad", "float32")  # of a bias
    worst = 0.0
    for seed in range(40):
        r, g = rows(seed, num=1, vocab=200), np.array([1.0 + seed / 64])
        exact = oracle.linear_logprob_gradients(r, {"logp": g}, forward(r), c, {"bias": single})
        z = (r.hidden @ r.weight.T + r.bias)[0] / r.temperature[0]
        probability = np.exp(z.max() - np.logaddexp.reduce(z))
        dz = 2.0**13 * np.exp(z - z.max())
        for step, factor in enumerate((1.0, probability, -g[0] / r.temperature[0])):
            dz = dz * factor
            if step in rounds:
                dz = dz.astype(kind).astype(float)
        error = np.abs(2.0**-13 * dz - exact["bias"].value) / exact["bias"].bound
        others = (np.arange(200) != r.target[0]) & (dz < -1.0)  # what fp16 has no subnormals for
        worst = max(worst, error[others].max())
    assert (worst <= 1.0) == holds, worst


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("output", ["logp", "entropy"])
def test_rows_far_below_the_largest_are_rounded_in_fp16_on_cuda_alone(
    output: str, lost: int
) -> None:
    """Hidden rows are divided by the power of two between the bounds of dZ and rounded; two bits
    more than that are too many."""
    single = CONTRACT.coefficients("linear_logprob_grad", "float32")  # stores the gradient
    worst = {"sm_90a": 0.0, "x86-64-v3": 0.0}
    for seed in range(20):
        r = rows(seed, num=2)
        r.hidden[:] = r.hidden.astype(np.float16)
        r.hidden[0] = 0.0  # the largest row, which shows in no element
        g = np.array([1.0, 2.0**-16 * (1 + seed / 20)])
        found = forward(r)
        bounds = g / r.temperature * (found.entropy + 1 if output == "entropy" else 1.0)
        shift = np.diff(np.frexp(bounds)[1])[0] - lost
        rounded = np.ldexp(np.ldexp(r.hidden, shift).astype(np.float16).astype(float), -shift)
        exact = gradients(r, g, output)
        with_rounded = exact["weight"].value / r.hidden[1] * rounded[1]
        error = np.abs(with_rounded - exact["weight"].value)
        for arch in worst:
            c = CONTRACT.coefficients("linear_logprob_grad", "float16", arch)
            one = oracle.linear_logprob_gradients(r, {output: g}, found, c, {"weight": single})
            worst[arch] = max(worst[arch], (error / one["weight"].bound).max())
    assert worst["x86-64-v3"] > 2.0
    assert (0.5 < worst["sm_90a"] <= 1.0) == (lost == 0), worst


def test_a_tiny_gradient_may_underflow() -> None:
    r, g = rows(), np.full(5, 2.0**-127)
    found = gradients(r, g)
    for name, one in found.items():
        assert (np.abs(one.value) <= one.bound).all(), name
    larger = gradients(r, 2.0**20 * g)["hidden"]  # is not lost
    assert (np.abs(larger.value) > larger.bound).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_may_round_to_infinity_may_be_infinite(dtype: str) -> None:
    last = {
        "float16": 65504.0,
        "bfloat16": (2 - 2.0**-7) * 2.0**127,
        "float32": (2 - 2.0**-23) * 2.0**127,
    }[dtype]
    half = {"float16": 2.0**4, "bfloat16": 2.0**119, "float32": 2.0**103}[dtype]
    for value, got, wanted in (
        (last, np.inf, 0.5),  # half a step, and the bound is one
        (last + half, np.inf, 0.0),
        (last + 3 * half, np.inf, 0.0),
        (last + half, last, 0.5),
        (last - 2 * half, np.inf, 1.5),
        (-last, -np.inf, 0.5),
        (np.inf, np.inf, 0.0),
        (np.inf, last, np.inf),
        (last, np.nan, np.inf),
    ):
        exact = oracle.Bounded(np.array([value]), np.array([2 * half]))
        assert deviation(np.array([got]), exact, dtype).worst == wanted, (value, got)
    far = oracle.Bounded(np.array([last]), np.array([2 * half]))
    assert deviation(np.array([-np.inf]), far, dtype).worst > 500


def test_closed_forms_of_entropy_and_log_sum_exp() -> None:
    r = rows()
    assert r.bias is not None
    for array in (r.hidden, r.bias):
        array[:] = 0.0
    np.testing.assert_allclose(forward(r).entropy, np.log(23), rtol=1e-12)
    np.testing.assert_allclose(forward(r).lse, np.log(23), rtol=1e-12)
    r.bias[5:] = -np.inf  # a distribution over five
    np.testing.assert_allclose(forward(r).entropy, np.log(5), rtol=1e-12)
    r.bias[1:] = -np.inf
    assert (forward(r).entropy == 0).all()


def test_options_widen_the_bound_and_a_capped_infinity_does_not() -> None:
    r = rows()
    capped = replace(r, softcap=1e6)  # bends nothing
    more = forward(capped).bound - forward(r).bound
    a = (np.abs(r.hidden) @ np.abs(r.weight).T + np.abs(r.bias)) / r.temperature[:, None]
    np.testing.assert_allclose(more, 4 * 2.0**-23 * a.max(axis=1), rtol=1e-4)
    assert capped.bias is not None
    capped.bias[3] = -np.inf
    assert np.isfinite(forward(capped).bound).all()
    for exact in gradients(replace(capped, softcap=2.0), np.ones(5)).values():
        assert np.isfinite(exact.bound).all()


def test_constant_inputs_give_minus_log_v() -> None:
    case = Case("linear_logp", "float16", (2, 3), {"vocab": 50, "hidden": 8}, kind="constant")
    exact = SPEC.expected(case, SPEC.build(case), CONTRACT.coefficients).outputs["logp"].value
    active = SPEC.active(SPEC.build(case)).reshape(exact.shape)
    np.testing.assert_allclose(exact[active], -np.log(50), rtol=1e-12)
    assert (exact[~active] == 0).all()


def test_inputs_follow_from_the_case_alone() -> None:
    for case in SPEC.suite("bfloat16", specialized=True, seed=3):
        first, second = SPEC.build(case), SPEC.build(case)
        for name, value in first.values.items():
            if hasattr(value, "base"):
                assert value.base.tobytes() == second[name].base.tobytes(), case.text()
    other = SPEC.build(case.but(seed=9))
    assert other["hidden"].base.tobytes() != first["hidden"].base.tobytes()


def test_the_specialized_suite_has_few_sizes() -> None:
    # Each is a compile a pass and dtype: minutes with NVRTC, were there many.
    cases = [*SPEC.suite("float32", True, 0), *SPEC.invariance_cases("float32", 0)]
    assert len({tuple(case.sizes.values()) for case in cases}) == 4
    values = {(name, value) for options in SPEC.option_sets for name, value in options.items()}
    assert all(name in SPEC.option_values for name, _ in values)


def test_the_oracle_of_the_losses_agrees_with_finite_differences() -> None:
    """At random points away from ties."""
    rng = np.random.default_rng(0)
    lp, old, a, ref = rng.normal(size=(4, 3, 5))
    for options in (
        {},
        {"policy_loss": "sapo"},
        {"policy_loss": "gpg"},
        {"use_dual_clip": True, "clip_ratio_c": 1.5},
        {"kl_coef": 0.5},
        {"kl_coef": 0.5, "kl_estimator": "k2", "kl_weight": "ratio"},
        {"policy_loss": "gspo", "advantages_of_sequence": True},
    ):
        own = {k: v for k, v in options.items() if k != "advantages_of_sequence"}
        given = a[:, 0] if "advantages_of_sequence" in options else a

        def loss(x: np.ndarray, own: dict = own, given: np.ndarray = given) -> float:
            return loss_oracle.ppo_loss(x, old, given, ref_log_probs=ref, **own).loss

        grad = loss_oracle.ppo_loss(lp, old, given, ref_log_probs=ref, **own).grad
        for at in np.ndindex(lp.shape):
            step = np.zeros(lp.shape)
            step[at] = 1e-6
            slope = (loss(lp + step) - loss(lp - step)) / 2e-6
            assert slope == pytest.approx(grad[at], rel=1e-5, abs=1e-8), (options, at)


def moved_grads(log_probs: oracle.Bounded, ref: oracle.Bounded, *operands: Any, **options: Any):
    """Gradients with every log-prob anywhere within its bound, and the bounded one."""
    c, c_grad = (CONTRACT.coefficients(name, "float32") for name in ("reduction", "reduction_grad"))
    found = loss_oracle.bounded_ppo_loss(c, c_grad, log_probs, *operands, ref=ref, **options)
    rng, grads = np.random.default_rng(1), []
    for _ in range(50):
        here, there = (
            one.value + rng.choice([-1, 1], size=one.value.shape) * one.bound
            for one in (log_probs, ref)
        )
        moved = loss_oracle.ppo_loss(here, *operands, ref_log_probs=there, **options)
        grads.append(np.where(moved.ties | (found.grad.bound > 1e20), found.grad.value, moved.grad))
    return np.array(grads), found.grad


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
@pytest.mark.parametrize("weight", ["1", "ratio"])
def test_log_probs_may_be_off_either_way_each(level: str, weight: str) -> None:
    """A sequence's ratio and its tokens do not move together."""
    worst = 0.0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        lp, a, ref = rng.normal(size=(3, 2, 4))
        old = lp + 0.05 * rng.normal(size=lp.shape)
        off = np.full(lp.shape, 4e-3)
        bounded = (oracle.Bounded(one, off) for one in (lp, ref))
        options = {"kl_coef": 0.1, "kl_weight": weight, "ratio_level": level}
        grads, found = moved_grads(*bounded, old, a, **options)
        worst = max(worst, (np.abs(grads - found.value) / found.bound).max())
    assert 0.2 < worst <= 1.01, worst  # bends are not quite straight


def test_the_derivative_of_sapo_may_be_lost_where_its_exponential_underflows() -> None:
    old = np.array([-4.4, -4.6, -4.0])
    answer = loss_oracle.ppo_loss(np.zeros(3), old, np.ones(3), policy_loss="sapo")
    z = np.exp(-(np.exp(-old) - 1))
    lost = z < 2.0**-124
    np.testing.assert_array_equal(answer.grad_lost, np.where(lost, np.abs(answer.grad), 0.0))
    assert lost.any()
    assert not lost.all()
