# SPDX-License-Identifier: Apache-2.0
"""verl's policy losses in float64 beside ours, and its fused head on small models."""

from __future__ import annotations

from typing import Any

import losses
import pytest
import tiny
import torch
import verl.models.transformers.monkey_patch as monkey_patch
import verl.trainer.ppo.core_algos as algos
import verl.utils.tensordict_utils as tu
import verl.utils.torch_functional as verl_F
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from rlk.integrations import verl

pytestmark = pytest.mark.tried("policy losses, log-probs and fused head", "verl", "transformers")

KINDS = {"vanilla": "rlk", **{kind: f"rlk_{kind}" for kind in ("gspo", "sapo", "cispo", "gpg")}}
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean")
#: The first of each is the default.
CHOICES: dict[str, tuple[Any, ...]] = {
    "loss_mode": tuple(KINDS),
    "loss_agg_mode": (*MODES, "seq-mean-token-sum-norm"),
    "clip_ratio": (0.2, 0.1),
    "clip_ratio_low": (0.2, None, 0.05, 10.0),
    "clip_ratio_high": (0.2, None, 0.4),
    "clip_ratio_c": (3.0, 1.2),
    "tau_pos": (1.0, 1.5),
    "tau_neg": (1.05, 2.0),
    "weights": (False, True),
    "advantages": ("sequence", "token", "zeros"),
    "dp_size": (1, 2),
    "batch_num_tokens": (None, 90),
    "global_batch_size": (None, 12),
    "loss_scale_factor": (None, 50),
    "entropy_coeff": (0, 0.1),  # verl's ppo_loss reads these, and no policy loss does
    "kl_loss_type": ("low_var_kl", "mse"),
    "policy_loss": ({}, {"clip_cov_ratio": 0.3}, {"ppo_kl_coef": 1.0}),
}
INFO = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")


@pytest.fixture(autouse=True, scope="module")
def patched() -> Any:
    verl.patch()
    yield
    verl.unpatch()


def run(names: dict[str, str], options: dict[str, Any], b: Any) -> losses.Found:
    options = dict(options)
    name, mode = names[options.pop("loss_mode")], options.pop("loss_agg_mode")
    kind, has_weights = options.pop("advantages"), options.pop("weights")
    info = {key: options.pop(key) for key in INFO}
    options["policy_loss"] = PolicyLossConfig(**options["policy_loss"])
    config = algos.ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **options)
    config.global_batch_info.update(info)
    advantages = b.advantages.expand_as(b.log_probs) if kind == "sequence" else b.token_advantages
    if kind == "zeros":
        advantages = advantages * (b.weights > 1)
    weights = b.weights * (b.weights > 0.5) if has_weights else None
    call = (b.old, b.log_probs, advantages, b.mask, mode, config, weights)
    return losses.Found(*algos.POLICY_LOSS_REGISTRY[name](*call))


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    return run({name: name for name in KINDS}, options, b)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    return run(KINDS, options, b)


@losses.alone(CHOICES)
def test_each_option_alone(options):
    losses.compare(of_theirs, of_ours, options, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_options_together(kind, seed):
    options = {**losses.picked(CHOICES, seed), "loss_mode": kind}
    losses.compare(of_theirs, of_ours, options, seed)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_the_fused_head_is_the_models(name):
    """Of the class: the model's own logits, in float64, are made first."""
    model = tiny.model(name)
    ids = torch.randint(3, tiny.VOCAB, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model.double()(input_ids=ids).logits / 0.7
    model = model.float()
    before = type(model).forward
    try:
        monkey_patch.patch_forward_with_backends(
            model, use_fused_kernels=True, fused_kernels_backend="torch"
        )
        out = model(input_ids=ids, temperature=0.7, return_dict=True)
    finally:
        type(model).forward = before
    want = torch.distributions.Categorical(logits=logits)
    log_prob = want.log_prob(torch.roll(ids, -1, -1))
    torch.testing.assert_close(out.log_probs.double(), log_prob, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(out.entropy.double(), want.entropy(), rtol=1e-5, atol=2e-5)


def test_log_probs_where_the_engines_call_them():
    torch.manual_seed(0)
    base, ids = torch.randn(6, 11, requires_grad=True), torch.randint(11, (6,))
    log_prob = verl_F.logprobs_from_logits(base / 0.7, ids, inplace_backward=True)
    (grad,) = torch.autograd.grad(log_prob.sum(), base)
    want = verl_F.logprobs_from_logits_v2(base / 0.7, ids)
    torch.testing.assert_close(log_prob, want)
    torch.testing.assert_close(grad, torch.autograd.grad(want.sum(), base)[0])


@pytest.mark.parametrize("mode", [*MODES, "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("kind", KINDS)
def test_verls_ppo_loss_around_it(kind, mode):
    """With its KL loss and its entropy bonus, which it takes off the policy loss in place."""
    g = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4, 2, 3])
    total, mask = int(lengths.sum()) + 6, torch.arange(4) < lengths[:, None]
    found = []
    for name in (kind, KINDS[kind]):
        g.manual_seed(0)
        values = [-torch.rand(total, generator=g) for _ in range(2)]
        log_prob, entropy = (x.requires_grad_() for x in values)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), (lengths + 2).cumsum(0)])
        jagged = torch.nested.nested_tensor_from_jagged
        output = {"log_probs": jagged(log_prob, offsets), "entropy": jagged(entropy, offsets)}
        tensors = {
            "prompts": torch.zeros(3, 2, dtype=torch.long),
            "responses": torch.zeros(3, 4, dtype=torch.long),
            "attention_mask": torch.cat([torch.ones(3, 2), mask], dim=1).long(),
            "response_mask": mask,
            **{
                field: torch.randn(3, 4, generator=g) * 0.5 - 0.5
                for field in ("old_log_probs", "advantages", "ref_log_prob")
            },
            "rollout_is_weights": torch.rand(3, 4, generator=g),
        }
        counts = {"dp_size": 2, "batch_num_tokens": 20, "global_batch_size": 8}
        config = algos.ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            use_dynamic_bsz=True,
            policy_loss=PolicyLossConfig(loss_mode=name),
            loss_agg_mode=mode,
            use_kl_loss=True,
            kl_loss_coef=0.1,
            entropy_coeff=0.05,
        )
        loss, metrics = ppo_loss(config, output, tu.get_tensordict(tensors, counts))
        grads = torch.autograd.grad(loss, (log_prob, entropy))
        numbers = {key: getattr(m, "values", m) for key, m in metrics.items()}
        found.append((loss, *grads, numbers))
    (loss, *grads, metrics), (our_loss, *our_grads, our_metrics) = found
    torch.testing.assert_close([our_loss, *our_grads], [loss, *grads], rtol=1e-5, atol=1e-6)
    assert our_metrics.keys() == metrics.keys()
    for key, value in metrics.items():
        assert our_metrics[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key
