# SPDX-License-Identifier: Apache-2.0
"""docs/integrations.md: every block is run, against stand-ins with the systems' own formulas."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from paths import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.usefixtures("generic")

PAGE = (ROOT / "docs/integrations.md").read_text()
B, T, V, D = 4, 6, 11, 8
TEMPERATURE = 0.7


def block(word: str) -> str:
    """The only block that has this word."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (only,) = [text for text in found if word in text]
    return only


def test_every_block_is_run():
    source = Path(__file__).read_text()
    words = set(re.findall(r'block\("(.*?)"\)', source)) - {"(.*?)"}
    languages = re.findall(r"^```(\w+)$", PAGE, re.MULTILINE)
    assert languages == ["python"] * len(words)


@pytest.fixture
def module(monkeypatch):
    """Makes modules by dotted names, parents included."""

    def make(name: str, **values: Any) -> ModuleType:
        parent = None
        for end in [m.start() for m in re.finditer(r"\.", name)] + [len(name)]:
            path = name[:end]
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
                if parent is not None:
                    setattr(parent, path.rpartition(".")[2], sys.modules[path])
            parent = sys.modules[path]
        for key, value in values.items():
            setattr(parent, key, value)
        return parent

    return make


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(text, names)
    return names


@pytest.fixture
def batch():
    torch.manual_seed(0)
    mask = torch.arange(T) < torch.tensor([[T], [3], [1], [4]])
    logp = -torch.rand(B, T) - 0.1
    return SimpleNamespace(
        logp=logp.requires_grad_(),
        old=logp.detach() + 0.4 * torch.randn(B, T),
        ref=logp.detach() + 0.4 * torch.randn(B, T),
        advantages=torch.randn(B, 1).expand(B, T),
        mask=mask.long(),
        weights=torch.rand(B, T) * 2,
    )


def tokens(b: Any, low: float, high: float, dual: float | None = None) -> Any:
    """The clipped loss a token, and which are clipped, as all three have it."""
    r = (b.logp - b.old).exp()
    plain, bounded = -b.advantages * r, -b.advantages * r.clamp(1 - low, 1 + high)
    loss = torch.maximum(plain, bounded)
    if dual is not None:
        loss = torch.where(b.advantages < 0, torch.minimum(loss, -b.advantages * dual), loss)
    return loss, (bounded > plain) & (b.mask > 0)


def same_with_gradient(got: Any, want: Any, x: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(y, x, retain_graph=True)[0] for y in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


def chosen(logits: Any, labels: Any) -> Any:
    return logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)


def check_logprobs(function: Any, **options: Any) -> None:
    base = torch.randn(B, T, V, requires_grad=True)
    labels = torch.randint(V, (B, T))
    want = chosen(base / TEMPERATURE, labels)
    (grad,) = torch.autograd.grad(want.sum(), base)
    got = function(base / TEMPERATURE, labels, **options)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), base)[0], grad)
    with torch.no_grad():
        torch.testing.assert_close(function(base.detach() / TEMPERATURE, labels), want)


def test_verl_log_probs(module):
    found = module("verl.utils.torch_functional", logprobs_from_logits=None)
    run(block("verl_F.logprobs_from_logits"))
    check_logprobs(found.logprobs_from_logits)
    check_logprobs(found.logprobs_from_logits, inplace_backward=False)


def test_verl_fused_log_probs(module):
    class FusedLinearForPPO(torch.nn.Module):
        pass

    module("verl.utils.experimental.torch_functional", FusedLinearForPPO=FusedLinearForPPO)
    run(block("FusedLinearForPPO.forward"))
    hidden, weight = torch.randn(1, T, D, requires_grad=True), torch.randn(V, D)
    ids = torch.randint(V, (1, T))
    log_probs, entropy = FusedLinearForPPO()(hidden, weight, ids, temperature=TEMPERATURE)
    logits = (hidden @ weight.T / TEMPERATURE).log_softmax(-1)
    same_with_gradient(log_probs.sum(), chosen(logits, ids).sum(), hidden)
    same_with_gradient(entropy.sum(), -(logits.exp() * logits).sum(), hidden)


@pytest.mark.parametrize("is_global", [True, False])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_verl_policy_loss(module, batch, mode, is_global):
    registry: dict[str, Any] = {}
    module(
        "verl.trainer.ppo.core_algos",
        register_policy_loss=lambda name: lambda function: registry.setdefault(name, function),
    )
    run(block("actor/pg_clipfrac"))
    counts = {"dp_size": 2, "batch_num_tokens": 50, "global_batch_size": 12}
    config = SimpleNamespace(
        clip_ratio_low=0.1,
        clip_ratio_high=0.3,
        clip_ratio_c=1.5,
        global_batch_info=counts if is_global else {},
    )
    got, metrics = registry["rlk"](
        old_log_prob=batch.old,
        log_prob=batch.logp,
        advantages=batch.advantages,
        response_mask=batch.mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=batch.weights,
    )
    loss, clipped = tokens(batch, 0.1, 0.3, 1.5)
    loss = loss * batch.weights * batch.mask
    active = batch.mask.sum()
    num_tokens, num_sequences, ranks = (50, 12, 2) if is_global else (active, B, 1)
    want = {
        "token-mean": loss.sum() / num_tokens,
        "seq-mean-token-mean": (loss.sum(1) / batch.mask.sum(1)).sum() / num_sequences,
        "seq-mean-token-sum-norm": loss.sum() / (num_sequences * T),
    }[mode]
    same_with_gradient(got, want * ranks, batch.logp)
    assert metrics["actor/pg_clipfrac"] == pytest.approx((clipped.sum() / active).item())
    kl = ((batch.old - batch.logp) * batch.mask).sum() / active
    assert metrics["actor/ppo_kl"] == pytest.approx(kl.item(), rel=1e-5)


def test_trl_head(module):
    found = module("trl.trainer.utils", _ChunkedLogProbFunction=None)
    run(block("_ChunkedLogProbFunction"))
    torch.manual_seed(0)
    hidden = torch.randn(B * T, D, requires_grad=True)
    weight, bias = torch.randn(V, D, dtype=torch.float64), torch.randn(V)
    target = torch.randint(V, (B * T,))
    outputs = ("log_probs", "entropy")
    got = found._ChunkedLogProbFunction.apply(
        hidden, weight, bias, target, TEMPERATURE, 256, 3.0, 0.5, outputs
    )
    z = 3 * torch.tanh(0.5 * (hidden.double() @ weight.T + bias) / 3) / TEMPERATURE
    want = torch.distributions.Categorical(logits=z)
    same_with_gradient(got[0].sum(), want.log_prob(target).float().sum(), hidden)
    same_with_gradient(got[1].sum(), want.entropy().float().sum(), hidden)
    assert got[2:] == (None, None, None)


def test_trl_log_probs(module):
    module("trl.trainer.grpo_trainer")
    with pytest.raises(AssertionError, match="not in this TRL"):
        run(block("grpo_trainer.selective_log_softmax"))
    found = module("trl.trainer.grpo_trainer", selective_log_softmax=None)
    run(block("grpo_trainer.selective_log_softmax"))
    check_logprobs(found.selective_log_softmax)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("has_weights", [True, False])
def test_trl_loss(module, batch, loss_type, has_weights):
    class GRPOTrainer:
        """What TRL's has, as far as the loss reads it."""

        importance_sampling_level = "token"
        epsilon_low, epsilon_high, beta = 0.1, 0.3, 0.2
        max_completion_length = 9
        current_gradient_accumulation_steps = 3
        accelerator = SimpleNamespace(num_processes=2)
        args = SimpleNamespace(
            steps_per_generation=6, delta=None, use_bias_correction_kl=has_weights
        )
        model = SimpleNamespace(training=True)

        def __init__(self) -> None:
            self.loss_type = loss_type
            self._metrics: Any = {"train": defaultdict(list), "eval": defaultdict(list)}

        def _get_per_token_logps_and_entropies(self, model, ids, attention_mask, keep):
            assert ids.shape == attention_mask.shape == (B, 3 + T)
            assert keep == T
            return batch.logp, None, None

    module("trl", GRPOTrainer=GRPOTrainer)
    trainer = run(block("_compute_loss"))["Trainer"]()
    inputs = {
        "prompt_ids": torch.zeros(B, 3, dtype=torch.long),
        "prompt_mask": torch.ones(B, 3, dtype=torch.long),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": batch.mask,
        "advantages": batch.advantages[:, 0],
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.ref,
        "num_items_in_batch": torch.tensor(50),
    }
    if has_weights:
        inputs["importance_sampling_ratio"] = batch.weights
    got = trainer._compute_loss(None, inputs)
    loss, clipped = tokens(batch, 0.1, 0.3)
    if has_weights:
        loss = loss * batch.weights
    away = batch.ref - batch.logp
    ratio = (batch.logp - batch.old).exp() if has_weights else 1
    loss = (loss + 0.2 * (away.exp() - away - 1) * ratio) * batch.mask
    active = batch.mask.sum()
    want = {
        "grpo": (loss.sum(1) / batch.mask.sum(1)).mean() / 3,
        "bnpo": loss.sum() / active / 3,
        "dr_grpo": loss.sum() / (B * 9) / 3,
        "dapo": loss.sum() / (50 / 2 * 3 / 6),
    }[loss_type]
    same_with_gradient(got, want, batch.logp)
    (ratio,) = trainer._metrics["train"]["clip_ratio/region_mean"]
    assert ratio == pytest.approx((clipped.sum() / active).item())

    # Without old log-probs the update is on-policy: every ratio is 1.
    del inputs["old_per_token_logps"]
    trainer._compute_loss(None, inputs)
    assert trainer._metrics["train"]["clip_ratio/region_mean"][-1] == 0


def test_skyrl_log_probs(module):
    name = "skyrl.backends.skyrl_train.workers.model_wrapper"
    found = module(name, logprobs_from_logits=None)
    run(block("model_wrapper.logprobs_from_logits"))
    check_logprobs(found.logprobs_from_logits, inplace_backward=True)


def test_skyrl_policy_loss(module, batch):
    registry: dict[str, Any] = {}
    module(
        "skyrl.backends.skyrl_train.utils.ppo_utils",
        PolicyLossRegistry=SimpleNamespace(register=registry.__setitem__),
    )
    run(block("skyrl.register"))
    got, metrics = registry["ppo_fused"](
        batch.logp,
        batch.old,
        batch.advantages,
        SimpleNamespace(policy_loss_type="ppo_fused", eps_clip_low=0.1, eps_clip_high=0.3),
        loss_mask=batch.mask,
    )
    loss, clipped = tokens(batch, 0.1, 0.3)
    same_with_gradient(got, (loss * batch.mask).sum(), batch.logp)
    assert metrics == {"clip_ratio": pytest.approx((clipped.sum() / batch.mask.sum()).item())}
