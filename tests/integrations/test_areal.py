# SPDX-License-Identifier: Apache-2.0
"""AReaL's losses of its source in float64 beside ours. RLK_TEST_AREAL names its folder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import losses
import pytest
import sources
import torch

from rlk.integrations import areal as areal_losses

torch.compiler.set_stance("force_eager")  # AReaL compiles small functions

theirs = sources.load(
    "areal.utils.functional.functional",
    "aiofiles aiohttp colorlog datasets einops fastapi flask httpx hydra lark numba omegaconf "
    "openai orjson PIL pybase64 psutil ray requests swanlab tenacity tensorboardX "
    "torchdata tqdm trackio transformers uvicorn uvloop wandb werkzeug yaml",
    "RLK_TEST_AREAL",
)

pytestmark = pytest.mark.tried("AReaL's losses, each option", "AReaL 4aef98d")

CHOICES: dict[str, tuple[Any, ...]] = {
    "loss": ("ppo", "sapo"),
    "importance_sampling_level": ("token", "sequence"),
    "eps_clip": (0.2, 0.05),
    "eps_clip_higher": (None, 0.4),
    "c_clip": (None, 1.05, 3.0),
    "rejection": (False, True),
    "level": ("token", "sequence"),
    "action": ("mask", "clamp"),
    "metric": ("ratio", "kl_k1", "kl_k2", "kl_k3"),
    "agg": ("mean", "sum", "max"),
    "upper": (1.1, 0.2, 2.0),
    "lower": (None, 0.05, 0.9),
    "tau_pos": (1.0, 2.0),
    "tau_neg": (1.05, 0.5),
    "packed": (False, True),
    "by_token": (False, True),  # advantages
}
REJECTION = ("level", "action", "metric", "agg", "upper", "lower")


def run(module: Any, options: dict[str, Any], b: Any) -> losses.Found:
    o = SimpleNamespace(**options)
    shared: dict[str, Any] = {"importance_sampling_level": o.importance_sampling_level}

    def flat(x: Any) -> Any:
        return x.reshape(-1) if o.packed else x

    advantages = b.token_advantages if o.by_token else b.advantages.expand_as(b.old)
    mask = flat(b.mask)
    if o.packed:
        shared["cu_seqlens"] = torch.arange(losses.B + 1, dtype=torch.int32) * losses.T
    if o.loss == "sapo":
        given = [flat(x) for x in (b.log_probs, b.old, advantages)]
        loss, stat = module.sapo_loss_fn(*given, o.tau_pos, o.tau_neg, mask, **shared)
    else:
        rejection = SimpleNamespace(**{n: options[n] for n in REJECTION}) if o.rejection else None
        loss, stat = module.ppo_actor_loss_fn(
            *(flat(x) for x in (b.log_probs, b.old, b.rollout, advantages)),
            o.eps_clip,
            mask,
            eps_clip_higher=o.eps_clip_higher,
            c_clip=o.c_clip,
            rejection_sampling=rejection,
            **shared,
        )
    seen = {n: x[mask] if torch.is_tensor(x) else x for n, x in stat.items()}
    return losses.Found(loss, seen)


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    return run(theirs, options, b)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    return run(areal_losses, options, b)


@losses.alone(CHOICES)
@pytest.mark.parametrize("more", [{}, {"rejection": True}, {"loss": "sapo"}], ids=str)
def test_each_option_alone(options: dict[str, Any], more: dict[str, Any]) -> None:
    assert losses.compare(of_theirs, of_ours, {**options, **more}, 0) is not None


@pytest.mark.parametrize("seed", range(40))
def test_options_together(seed: int) -> None:
    losses.together(of_theirs, of_ours, CHOICES, seed)


def test_the_patch() -> None:
    import areal.utils.functional as functional

    torch.manual_seed(0)
    logits, labels = torch.randn(7, 30), torch.randint(30, (7,))

    def results() -> list[Any]:
        values = logits.clone().requires_grad_()
        found = functional.gather_logprobs_entropy(values, labels, 0.7)
        (found[0] + 0.1 * found[1]).sum().backward()
        return [functional.gather_logprobs(logits, labels, 0.7), *found, values.grad]

    want = results()
    areal_losses.patch(allow_untried=True)  # a source folder tells no version
    try:
        assert functional.ppo_actor_loss_fn is areal_losses.ppo_actor_loss_fn
        assert theirs.sapo_loss_fn is areal_losses.sapo_loss_fn
        assert functional.gather_logprobs.__module__ == "rlk.integrations.areal"
        got = results()
    finally:
        areal_losses.unpatch()
    assert functional.ppo_actor_loss_fn.__module__ == "areal.utils.functional.functional"
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
