# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.liger: refusals, rarer options, and the loss of hidden states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rlk.integrations import liger  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")

B, T = 4, 6
LIGER = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "beta": 0.1,
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "delta": None,
    "use_bias_correction_kl": False,
    "max_completion_length": None,
    "temperature": 0.8,
    "use_ref_model": True,
    **{f"sapo_temperature_{sign}": 1.0 for sign in ("pos", "neg")},
    **{f"vespo_{name}_{sign}": 2.0 for name in ("k", "lambda") for sign in ("pos", "neg")},
}


@pytest.fixture
def b():
    torch.manual_seed(0)
    log_probs = -torch.rand(B, T)
    old, ref = log_probs + 0.3 * torch.randn(2, B, T)
    mask = torch.rand(B, T) < 0.8
    own = {"log_probs": log_probs.requires_grad_(), "old": old, "ref": ref, "mask": mask}
    return SimpleNamespace(**own, advantages=torch.randn(B, T))


def of_liger(b: Any, run: Any = liger.grpo_loss_of_log_probs, **options: Any) -> Any:
    given = {n: options.pop(n) for n in ("vllm_is_ratio", "num_items_in_batch") if n in options}
    loss_fn = SimpleNamespace(**{**LIGER, **options})
    return run(loss_fn, b.log_probs, b.mask, b.advantages[:, 0], b.ref, b.old, **given)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"loss_type": "ppo"}, "loss_type: expected grpo, sapo"),
        ({"loss_type": "luspo"}, "loss_type: expected another with token ratios"),
        ({"importance_sampling_level": "word"}, "importance_sampling_level: expected token"),
        (
            {"loss_type": "vespo", "importance_sampling_level": "sequence"},
            "importance_sampling_level: expected 'token' with loss_type='vespo'",
        ),
        ({"loss_type": "dr_grpo"}, "max_completion_length: expected a number"),
        ({"epsilon_low": -1.0}, "epsilon_low: expected a number from 0 to 1, got -1.0"),
        ({"epsilon_high": None}, "epsilon_high: expected a value, got None"),
        ({"beta": None}, "beta: expected a value, got None"),
        ({"loss_type": "sapo", "sapo_temperature_pos": 0.0}, "sapo_temperature_pos: expected a"),
    ],
)
def test_what_liger_refuses_or_is_refused(b, option, expected):
    with pytest.raises(rlk.InvalidArgument, match=expected):
        of_liger(b, **option)


def test_a_count_of_liger_that_is_no_integer(b):
    loss, _ = of_liger(b)
    count = float(b.mask.sum())
    for items in (40.5, torch.tensor(40.5)):
        other, _ = of_liger(b, num_items_in_batch=items)
        assert other.item() == pytest.approx(loss.item() * count / 40.5, rel=1e-6)


def test_liger_from_hidden_states(b):
    hidden, weight = torch.randn(B, T, 8, requires_grad=True), torch.randn(11, 8)
    ids = torch.randint(11, (B, T))
    loss_fn = SimpleNamespace(**LIGER)
    tensors = (ids, b.mask, b.advantages[:, 0])
    ref = torch.randn(B, T, 8), torch.randn(11, 8)
    heads = {"ref_input": ref[0], "ref_weight": ref[1]}
    loss, metrics = liger.grpo_loss(
        loss_fn, hidden, weight, *tensors, old_per_token_logps=b.old, **heads
    )

    def log_probs(hidden: Any, weight: Any) -> Any:
        z = hidden @ weight.T / LIGER["temperature"]
        return torch.distributions.Categorical(logits=z).log_prob(ids)

    own = SimpleNamespace(**vars(b))
    own.log_probs, own.ref = log_probs(hidden, weight), log_probs(*ref)
    want, want_metrics = of_liger(own)
    torch.testing.assert_close(loss, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics, want_metrics, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(x, hidden)[0] for x in (loss, want)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)
    with pytest.raises(rlk.InvalidArgument, match="ref_per_token_logps: expected a tensor"):
        liger.grpo_loss(loss_fn, hidden, weight, *tensors)


def test_a_batch_without_tokens(b):
    b.mask = torch.zeros(B, T, dtype=torch.bool)
    loss, metrics = of_liger(b)
    loss.backward()
    assert (loss.item(), [x.item() for x in metrics]) == (0.0, [0.0, 0.0])
    assert not b.log_probs.grad.any()
