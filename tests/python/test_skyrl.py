# SPDX-License-Identifier: Apache-2.0
"""The SkyRL drop-in, with a stand-in for its config and registry."""

from types import SimpleNamespace

import pytest
from losses import batch, same

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from rlk.integrations import skyrl  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")


class PolicyLossRegistry:
    """As SkyRL's: names to functions, kept in the class."""

    functions: dict = {}

    @classmethod
    def register(cls, name, function):
        if name in cls.functions:
            raise ValueError(f"{name} is registered")
        cls.functions[name] = function


@pytest.fixture
def tensors():
    b = batch(8, 64)
    found = {
        "log_probs": b.log_probs,
        "old_log_probs": b.old,
        "advantages": b.advantages,
        "loss_mask": b.mask.astype("float32"),
        "rollout_logprobs": b.others["rollout_logprobs"],
    }
    return {name: torch.tensor(x) for name, x in found.items()}


def eager(t, c=None, cap=None):
    """SkyRL's loss, as its users know it."""
    ratio = (t["log_probs"] - t["old_log_probs"]).clamp(-20, 20).exp()
    a, mask = t["advantages"], t["loss_mask"]
    first, second = ratio * a, ratio.clamp(0.8, 1.2) * a
    loss = -torch.min(first, second)
    clip = ((-second > -first) * mask).sum() / mask.sum()
    if c is not None:
        loss = torch.where(a < 0, torch.min(-a * c, loss), loss)
    if cap is not None:
        loss = loss * (t["old_log_probs"] - t["rollout_logprobs"]).clamp(-20, 20).exp().clamp(
            max=cap
        )
    return (loss * mask).sum() / mask.sum(), clip


def test_the_example_call(tensors):
    """Every argument by name, switches off included."""
    loss, clip_ratio = skyrl.fused_ppo_loss(
        log_probs=tensors["log_probs"].requires_grad_(),
        old_log_probs=tensors["old_log_probs"],
        advantages=tensors["advantages"],
        loss_mask=tensors["loss_mask"],
        eps_clip_low=0.2,
        eps_clip_high=0.2,
        use_dual_clip=False,
        clip_ratio_c=3.0,
        use_tis=False,
        rollout_logprobs=None,
        tis_imp_ratio_cap=10.0,
    )
    want, clip = eager(tensors)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(clip_ratio, clip)
    assert not clip_ratio.requires_grad
    loss.backward()
    (grad,) = torch.autograd.grad(eager(tensors)[0], tensors["log_probs"])
    torch.testing.assert_close(tensors["log_probs"].grad, grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("dual", "tis"), [(True, False), (False, True), (True, True)])
def test_its_switches(tensors, dual, tis):
    loss, _ = skyrl.fused_ppo_loss(
        **tensors, use_dual_clip=dual, clip_ratio_c=2.0, use_tis=tis, tis_imp_ratio_cap=1.5
    )
    want, _ = eager(tensors, 2.0 if dual else None, 1.5 if tis else None)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["regular", "dual_clip", "ppo_fused"])
@pytest.mark.parametrize("as_mapping", [True, False])
def test_the_registered_loss(tensors, kind, as_mapping):
    PolicyLossRegistry.functions = {}
    skyrl.register(PolicyLossRegistry)
    function = PolicyLossRegistry.functions["ppo_fused"]
    assert function is skyrl.ppo_policy_loss_fused
    config = {
        "policy_loss_type": kind,
        "loss_reduction": "token_mean",
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.2,
        "clip_ratio_c": 2.0,
        "use_tis": True,
        "tis_imp_ratio_cap": 1.5,
    }
    rollout = tensors.pop("rollout_logprobs")
    mask = tensors.pop("loss_mask")
    given = config if as_mapping else SimpleNamespace(**config)
    loss, clip_ratio = function(
        tensors["log_probs"],
        tensors["old_log_probs"],
        tensors["advantages"],
        given,
        loss_mask=mask,
        rollout_logprobs=rollout,
    )
    tensors |= {"loss_mask": mask, "rollout_logprobs": rollout}
    want, clip = eager(tensors, 2.0 if kind == "dual_clip" else None, 1.5)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(clip_ratio, clip)


def test_its_stock_config(tensors):
    """Whose cap is a placeholder as long as use_tis is off."""
    stock = {"use_tis": False, "tis_imp_ratio_cap": -1.0, "max_seq_len": None}
    del tensors["rollout_logprobs"]
    loss, _ = skyrl.ppo_policy_loss_fused(**tensors, config=stock)
    torch.testing.assert_close(loss, eager(tensors)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "seq_mean_token_sum_norm"])
def test_reductions_of_the_config(tensors, reduction):
    config = SimpleNamespace(loss_reduction=reduction, max_seq_len=64)
    rollout = tensors.pop("rollout_logprobs")
    loss, _ = skyrl.ppo_policy_loss_fused(**tensors, config=config, rollout_logprobs=rollout)
    want = rlk.jit.ppo_loss(**tensors, loss_reduction=reduction, max_seq_len=64).loss
    assert same(loss, want)


def test_a_config_that_asks_for_what_is_not_there(tensors):
    del tensors["rollout_logprobs"]
    with pytest.raises(rlk.InvalidArgument, match="rollout_logprobs"):
        skyrl.ppo_policy_loss_fused(**tensors, config=SimpleNamespace(use_tis=True))
    with pytest.raises(rlk.InvalidArgument, match="policy_loss"):
        skyrl.ppo_policy_loss_fused(**tensors, config=SimpleNamespace(policy_loss_type="kl_cov"))
