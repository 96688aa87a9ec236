# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.prime_rl against PRIME-RL's formulas."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rlk.integrations import prime_rl  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")

N = 40


class LossOutputs(NamedTuple):
    loss: Any
    metrics: dict[str, Any]


@pytest.fixture(autouse=True)
def its_outputs(monkeypatch):
    name = "prime_rl.trainer.rl.loss"
    module = ModuleType(name)
    module.LossOutputs = LossOutputs
    monkeypatch.setitem(sys.modules, name, module)


def sample(has_weights: bool = True) -> Any:
    torch.manual_seed(0)
    log_probs = -2 * torch.rand(N)
    return SimpleNamespace(
        trainer_logprobs=log_probs.requires_grad_(),
        inference_logprobs=log_probs.detach() + 0.4 * torch.randn(N),
        ref_logprobs=log_probs.detach() + 0.4 * torch.randn(N),
        advantages=torch.randn(N),
        loss_mask=torch.rand(N) < 0.7,
        loss_weights=torch.rand(N) if has_weights else None,
    )


def check(got: Any, s: Any, each: Any) -> None:
    weights = 1.0 if s.loss_weights is None else s.loss_weights
    want = torch.where(s.loss_mask, weights * each, 0.0).sum()
    torch.testing.assert_close(got.loss, want, rtol=1e-5, atol=1e-6)
    (grad,) = torch.autograd.grad(want, s.trainer_logprobs)
    (got_grad,) = torch.autograd.grad(got.loss, s.trainer_logprobs)
    torch.testing.assert_close(got_grad, grad, rtol=1e-5, atol=1e-6)


def mean(x: Any, mask: Any) -> float:
    return float(x.detach()[mask].float().sum() / max(int(mask.sum()), 1))


@pytest.mark.parametrize("has_weights", [True, False])
@pytest.mark.parametrize("kind", ["default", "ipo", "ref_kl"])
def test_its_own_losses(kind: str, has_weights: bool):
    s = sample(has_weights)
    moved = s.trainer_logprobs.detach().exp() - s.inference_logprobs.exp()
    log_ratio = s.trainer_logprobs - s.inference_logprobs
    advantages, kl_tau = 0.7 * s.advantages, 0.3
    if kind == "default":
        config = SimpleNamespace(dppo_mask_low=0.1, dppo_mask_high=0.05, adv_tau=0.7, kl_tau=0.3)
        got = prime_rl.default_loss_fn(s, config)
        dropped = torch.where(s.advantages > 0, moved > 0.05, moved < -0.1)
    elif kind == "ipo":
        config = SimpleNamespace(ipo_threshold=0.1, adv_tau=0.7, kl_tau=0.3)
        got, dropped = prime_rl.ipo_loss_fn(s, config), moved.abs() > 0.1
    else:
        got, dropped, kl_tau = prime_rl.ref_kl_loss_fn(s), moved < -0.2, 1e-3
        advantages = (s.ref_logprobs - s.trainer_logprobs).detach()
    check(got, s, -(~dropped).float() * advantages * log_ratio.exp() + kl_tau * log_ratio**2)
    mask, prefix = s.loss_mask, "ref_kl/" if kind == "ref_kl" else ""
    mismatch = (log_ratio.exp() - log_ratio - 1).detach()
    want = {
        "masked_mismatch_kl": mean(mismatch, mask & dropped),
        "unmasked_mismatch_kl": mean(mismatch, mask & ~dropped),
        "is_masked": mean(dropped, mask),
    }
    want = {prefix + name: value for name, value in want.items()}
    if kind == "default":
        positive = s.advantages > 0
        want |= {
            "is_masked_high": mean(dropped & positive, mask),
            "is_masked_low": mean(dropped & ~positive, mask),
            "masked_advantage_positive": mean(positive, mask & dropped),
            "masked_advantage_negative": mean(~positive, mask & dropped),
        }
    elif kind == "ref_kl":
        want["ref_kl"] = mean(advantages, mask)
    assert {n: float(x) for n, x in got.metrics.items()} == pytest.approx(want, rel=1e-5)


def test_its_cross_entropy():
    s = sample()
    got = prime_rl.ce_loss_fn(s)
    check(got, s, -s.trainer_logprobs)
    assert float(got.metrics["nll"]) == pytest.approx(mean(-s.trainer_logprobs, s.loss_mask))


@pytest.mark.parametrize("policy_loss", ["ppo", "gspo", "cispo", "sapo"])
def test_a_loss_of_its_configuration(policy_loss: str):
    s = sample()
    options = {"policy_loss": policy_loss, "eps_clip_high": 0.28, "kl_coef": 0.1}
    got = prime_rl.policy_loss(s, **options)
    tensors = (s.trainer_logprobs, s.inference_logprobs, s.advantages, s.loss_mask)
    shared = {"loss_weights": s.loss_weights, "ref_log_probs": s.ref_logprobs}
    want, metrics = rlk.jit.ppo_loss(*tensors, **options, **shared)
    assert torch.equal(got.loss, want)
    assert got.metrics.keys() == {"clip_ratio", "mean_ratio", "mismatch_kl", "ref_kl"}
    assert float(got.metrics["clip_ratio"]) == float(metrics.clip_ratio)
    count = float(metrics.num_active)
    assert float(got.metrics["mean_ratio"]) == pytest.approx(float(metrics.ratio_sum) / count)
    plain = sample(has_weights=False)
    total = prime_rl.policy_loss(plain, policy_loss=policy_loss).loss
    tensors = (plain.trainer_logprobs, *tensors[1:])
    by_sum = rlk.jit.ppo_loss(*tensors, policy_loss=policy_loss, loss_reduction="token_sum").loss
    assert torch.equal(total, by_sum)


@pytest.mark.parametrize("dialect", rlk.losses.DIALECTS)
def test_the_kl_of_each_dialect_is_summed(dialect: str):
    s = sample(has_weights=False)
    options = {"dialect": dialect, "kl_estimator": "k2"}
    plain, kl = (prime_rl.policy_loss(s, **options, kl_coef=c).loss for c in (0.0, 1.0))
    want = ((s.ref_logprobs - s.trainer_logprobs).square() / 2)[s.loss_mask].sum()
    torch.testing.assert_close(kl - plain, want, rtol=1e-4, atol=1e-5)


def test_what_is_refused():
    s = sample()
    for name, value in (
        ("loss_reduction", "token_mean"),
        ("global_tokens", 3),
        ("loss_weights", s.advantages),
    ):
        with pytest.raises(rlk.InvalidArgument, match=f"{name}: expected None: the trainer"):
            prime_rl.policy_loss(s, **{name: value})
    with pytest.raises(rlk.InvalidArgument, match="use_tis: expected False"):
        prime_rl.policy_loss(s, use_tis=True)
    with pytest.raises(TypeError, match="no_such_option"):
        prime_rl.policy_loss(s, no_such_option=1)
    s.ref_logprobs = None
    for run in (prime_rl.ref_kl_loss_fn, lambda s: prime_rl.policy_loss(s, kl_coef=0.1)):
        with pytest.raises(rlk.InvalidArgument, match="ref_logprobs: expected a tensor"):
            run(s)
