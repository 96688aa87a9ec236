# SPDX-License-Identifier: Apache-2.0
"""Liger's fused linear GRPO loss beside ours: its loss of log-probs in float64, and all of it."""

from __future__ import annotations

from typing import Any

import losses
import pytest
import torch
from liger_kernel.chunked_loss.grpo_loss import (
    LigerFusedLinearGRPOFunction,
    LigerFusedLinearGRPOLoss,
)

import rlk
from rlk.integrations import liger

pytestmark = pytest.mark.tried("LigerFusedLinearGRPOLoss, each option", "liger-kernel")

CHOICES: dict[str, tuple[Any, ...]] = {
    "loss_type": ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo"),
    "importance_sampling_level": ("token", "sequence"),
    "beta": (0.0, 0.2),
    "epsilon_low": (0.2, 0.05),
    "epsilon_high": (0.2, 1.1),
    "delta": (None, 1.1, 1.5),
    "use_bias_correction_kl": (False, True),
    "max_completion_length": (9, 20),
    "sapo_temperature_pos": (1.0, 2.0),
    "sapo_temperature_neg": (1.05, 0.5),
    "vespo_k_pos": (2.0, 1.0),
    "vespo_k_neg": (3.0, 1.0),
    "vespo_lambda_pos": (3.0, 1.5),
    "vespo_lambda_neg": (2.0, 1.0),
    "weights": (None, "B", "B1", "BT"),
    "num_items_in_batch": (None, 41.5),
    "ref": (True, False),
    "old": (True, False),
}
OF_THE_CALL = ("weights", "num_items_in_batch", "ref", "old")
SHAPES = {"B": (losses.B,), "B1": (losses.B, 1), "BT": (losses.B, losses.T)}


def made(options: dict[str, Any], **more: Any) -> LigerFusedLinearGRPOLoss:
    own = {n: v for n, v in options.items() if n not in OF_THE_CALL}
    return LigerFusedLinearGRPOLoss(compiled=False, chunk_size=losses.B, **own, **more)


def inputs(options: dict[str, Any], b: Any) -> dict[str, Any]:
    shape = SHAPES.get(options["weights"])
    weights = None if shape is None else b.weights.flatten()[: torch.Size(shape).numel()]
    return {
        "ref_per_token_logps": b.ref if options["ref"] else None,
        "old_per_token_logps": b.old if options["old"] else None,
        "vllm_is_ratio": None if weights is None else weights.view(shape),
        "num_items_in_batch": options["num_items_in_batch"],
    }


def named(loss: Any, metrics: Any) -> losses.Found:
    return losses.Found(loss, {str(i): x for i, x in enumerate(metrics)})


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    given, mask = inputs(options, b), b.mask.to(b.ref.dtype)
    if options["loss_type"] == "luspo" and (
        options["importance_sampling_level"] == "token"
        or options["beta"] != 0
        or options["weights"] == "BT"
    ):
        raise ValueError("refused here")
    if options["weights"] == "B":  # as its forward makes it
        given["vllm_is_ratio"] = given["vllm_is_ratio"].unsqueeze(-1)
    own = {n: v for n, v in options.items() if n not in OF_THE_CALL}
    loss = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        b.log_probs, mask, b.advantages[:, 0], mask, **own, **given
    )
    return named(*loss)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    given = inputs(options, b)
    order = ("ref_per_token_logps", "old_per_token_logps", "vllm_is_ratio", "num_items_in_batch")
    args = (b.log_probs, b.mask, b.advantages[:, 0], *(given[n] for n in order))
    return named(*liger.grpo_loss_of_log_probs(made(options), *args))


@losses.alone(CHOICES)
@pytest.mark.parametrize(
    "more",
    [{}, {"beta": 0.2}, {"loss_type": "sapo"}, {"loss_type": "vespo", "weights": "BT"}],
    ids=str,
)
def test_each_option_alone(options: dict[str, Any], more: dict[str, Any]) -> None:
    losses.compare(of_theirs, of_ours, {**options, **more}, 0)


@pytest.mark.parametrize("seed", range(40))
def test_options_together(seed: int) -> None:
    losses.together(of_theirs, of_ours, CHOICES, seed)


@pytest.mark.parametrize(
    "more",
    [{"beta": 0.2}, {"beta": 0.2, "level": "token"}, {"weights": "BT"}],
    ids=["kl", "token", "weights"],
)
def test_luspo_of_several_columns_is_refused(more: dict[str, Any]) -> None:
    level = more.pop("level", "sequence")
    first = {name: values[0] for name, values in CHOICES.items()}
    options = {**first, "loss_type": "luspo", "importance_sampling_level": level, **more}
    with pytest.raises(rlk.InvalidArgument, match="loss_type: expected another"):
        of_ours(options, losses.batch(0))


@pytest.mark.parametrize("reference", ["log-probs", "head", "none"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("more", [{}, {"temperature": 0.7}, {"loss_type": "grpo"}], ids=str)
def test_from_hidden_states(reference: str, has_bias: bool, more: dict[str, Any]) -> None:
    b, (hidden_size, vocab) = losses.batch(1), (8, 40)
    torch.manual_seed(0)
    loss_fn = LigerFusedLinearGRPOLoss(
        beta=0.1, compiled=False, use_ref_model=reference != "none", **more
    )
    ids = torch.randint(vocab, (losses.B, losses.T))
    head, ref_head = 0.2 * torch.randn(2, vocab, hidden_size)
    bias = torch.randn(vocab) if has_bias else None
    ref_input = torch.randn(losses.B, losses.T, hidden_size)
    refs = {
        "log-probs": {"ref_per_token_logps": b.ref},
        "head": {"ref_input": ref_input, "ref_weight": ref_head, "ref_bias": bias},
        "none": {},
    }[reference]
    start = torch.randn(losses.B, losses.T, hidden_size)

    def run() -> tuple[Any, ...]:
        leaves = [x.clone().requires_grad_() for x in (start, head)]
        of_bias = None if bias is None else bias.clone().requires_grad_()
        args = (*leaves, ids, b.mask.float(), b.advantages[:, 0], of_bias)
        loss, metrics = loss_fn(*args, old_per_token_logps=b.old, **refs)
        loss.backward()
        grads = [x.grad for x in (*leaves, *([] if of_bias is None else [of_bias]))]
        return (loss.detach(), *metrics, *grads)

    want = run()
    liger.patch()
    try:
        assert LigerFusedLinearGRPOLoss.forward is liger.grpo_loss
        got = run()
    finally:
        liger.unpatch()
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-6)
    assert torch.equal(run()[0], want[0])
