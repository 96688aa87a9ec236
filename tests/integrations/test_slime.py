# SPDX-License-Identifier: Apache-2.0
"""slime's policy loss of its source in float64 beside ours. RLK_TEST_SLIME names its folder."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import losses
import pytest
import sources
import torch

from rlk.integrations import slime

torch.compiler.set_stance("force_eager")  # slime compiles small functions
theirs = sources.load(
    "slime.backends.megatron_utils.loss",
    "megatron transformers ray sglang sglang_router wandb httpx",
    "RLK_TEST_SLIME",
)
ONE_RANK = SimpleNamespace(
    get_context_parallel_world_size=lambda: 1,
    get_context_parallel_group=lambda: None,
    get_tensor_model_parallel_group=lambda: None,
)
original_loss = theirs.policy_loss_function
of_logits = theirs.get_log_probs_and_entropy, theirs.get_rollout_top_p_logprob_kwargs
theirs.mpu = ONE_RANK
theirs.get_sum_of_sample_mean.__globals__["mpu"] = ONE_RANK

pytestmark = pytest.mark.tried("slime's policy loss, each option", "slime 624b824")

CHOICES: dict[str, tuple[Any, ...]] = {
    "advantage_estimator": ("grpo", "gspo", "cispo", "ppo"),
    "eps_clip": (0.2, 0.05, 1.0),
    "eps_clip_high": (0.2, 0.4),
    "eps_clip_c": (None, 1.05, 3.0),
    "entropy_coef": (0.0, 0.03),
    "use_kl_loss": (False, True),
    "kl_loss_coef": (0.1, 0.0),
    "kl_loss_type": ("k1", "k2", "k3", "low_var_kl"),
    "use_unbiased_kl": (False, True),
    "use_rollout_logprobs": (False, True),
    "use_tis": (False, True),
    "tis_clip": (2.0, 1.1),
    "tis_clip_low": (0, 0.9),
    "get_mismatch_metrics": (False, True),
    "custom_tis_function_path": (None, "icepop_function", "rejecting"),
    "custom_pg_loss_reducer_function_path": (None, "constant"),
    "use_opsm": (False, True),
    "opsm_delta": (1e-4, 0.1),
    "calculate_per_token_loss": (False, True),
    "old": (True, False),
    "sums": ("own", "of groups"),
    "opd": (False, True),
}


def rejecting(args: Any, *, pg_loss: Any, loss_masks: Any, **more: Any) -> Any:
    """Leaves out tokens whose engine had another opinion."""
    gaps = zip(more["train_log_probs"], more["rollout_log_probs"], strict=True)
    masks = [m * ((a - b).abs() < 0.3) for m, (a, b) in zip(loss_masks, gaps, strict=True)]
    kept = torch.cat(masks)
    return pg_loss * kept, masks, {"kept": kept.double()}


def constant(total_lengths: Any, response_lengths: Any, masks: Any, by_token: bool) -> Any:
    return lambda x: (x * torch.cat(masks)).sum() / 7.0


CUSTOM = {
    "icepop_function": theirs.icepop_function,
    "rejecting": rejecting,
    "constant": constant,
}
for module in (theirs, sys.modules["slime.utils.misc"]):
    module.load_function = CUSTOM.__getitem__


def run(is_ours: bool, options: dict[str, Any], b: Any) -> losses.Found:
    args = SimpleNamespace(**options)
    lengths = [9, 7, 9, 4, 9]

    def samples(x: Any) -> list[Any]:
        return [row[:n] for row, n in zip(x, lengths, strict=True)]

    masks = [m.to(b.ref.dtype) for m in samples(b.mask)]
    sums = [m.sum() + (2.0 if args.sums == "of groups" else 0.0) for m in masks]
    batch: dict[str, Any] = {
        "advantages": samples(b.advantages.expand_as(b.old)),
        "loss_masks": masks,
        "rollout_mask_sums": sums,
        "rollout_log_probs": samples(b.rollout),
        "ref_log_probs": samples(b.ref),
        "response_lengths": lengths,
        "total_lengths": [n + 3 for n in lengths],
        "unconcat_tokens": None,
    }
    if args.old:
        batch["log_probs"] = samples(b.old)
    if args.opd:
        batch["opd_reverse_kl"] = samples(b.other)
    reduce = theirs.get_sum_of_sample_mean(
        batch["total_lengths"], lengths, masks, sums, args.calculate_per_token_loss
    )
    found = {"log_probs": samples(b.log_probs), "entropy": samples(b.entropy)}
    if is_ours:
        return losses.Found(*slime.policy_loss_of_log_probs(args, batch, *found.values(), reduce))
    theirs.get_log_probs_and_entropy = lambda *_, **__: (None, found)
    theirs.get_rollout_top_p_logprob_kwargs = lambda *_: {}
    try:
        return losses.Found(*original_loss(args, batch, None, reduce))
    finally:
        theirs.get_log_probs_and_entropy, theirs.get_rollout_top_p_logprob_kwargs = of_logits


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    return run(False, options, b)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    return run(True, options, b)


@losses.alone(CHOICES)
@pytest.mark.parametrize(
    "more", [{}, {"use_tis": True, "use_kl_loss": True}, {"advantage_estimator": "gspo"}], ids=str
)
def test_each_option_alone(options: dict[str, Any], more: dict[str, Any]) -> None:
    losses.compare(of_theirs, of_ours, {**options, **more}, 0)


@pytest.mark.parametrize("seed", range(40))
def test_options_together(seed: int) -> None:
    losses.together(of_theirs, of_ours, CHOICES, seed)


@pytest.mark.parametrize("with_entropy", [True, False])
def test_the_patch(with_entropy: bool) -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(7, 30), torch.randint(30, (7,))
    original = theirs.policy_loss_function

    def results() -> list[Any]:
        values = logits.clone().requires_grad_()
        found = theirs.calculate_log_probs_and_entropy(values, tokens, None, with_entropy)
        sum(x.sum() for x in found if x is not None).backward()
        return [*found, values.grad]

    want = results()
    slime.patch(allow_untried=True)  # a source folder tells no version
    try:
        assert theirs.policy_loss_function is slime.policy_loss_function
        assert theirs.calculate_log_probs_and_entropy.__module__ == "rlk.integrations.slime"
        got = results()
    finally:
        slime.unpatch()
    assert theirs.policy_loss_function is original
    for x, y in zip(got, want, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_the_loss_of_logits() -> None:
    """Through slime's own log-probs of each sample, and as its custom loss is called."""
    torch.manual_seed(0)
    b, prompt = losses.batch(3), 3
    total = prompt + losses.T
    args = SimpleNamespace(
        **{name: values[0] for name, values in CHOICES.items()},
        allgather_cp=False,
        log_probs_chunk_size=-1,
        rollout_temperature=0.8,
        rollout_top_p=1.0,
    )
    batch = {
        "advantages": list(b.advantages.expand_as(b.old)),
        "loss_masks": list(b.mask.float()),
        "log_probs": list(b.old),
        "response_lengths": [losses.T] * losses.B,
        "total_lengths": [total] * losses.B,
        "unconcat_tokens": list(torch.randint(30, (losses.B, total))),
        "rollout_log_probs": list(b.rollout),
    }
    reduce = theirs.get_sum_of_sample_mean(
        batch["total_lengths"], batch["response_lengths"], batch["loss_masks"]
    )
    start = torch.randn(1, losses.B * total, 30)
    found = []
    for function in (original_loss, slime.policy_loss_function):
        logits = start.clone().requires_grad_()
        loss, metrics = function(args, batch, logits, reduce)
        loss.backward()
        found.append((loss, metrics, logits.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
