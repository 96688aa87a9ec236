# SPDX-License-Identifier: Apache-2.0
"""SkyRL's policy losses in float64 beside ours, and its model wrapper with rlk and without."""

from __future__ import annotations

import sys
import typing
from types import SimpleNamespace
from typing import Any

import losses
import pytest
import tiny
import torch
import typing_extensions

from rlk.integrations import skyrl as rlk_skyrl

typing.TypedDict = typing_extensions.TypedDict  # pydantic wants this one on Python 3.11
# Of a package that builds on a GPU machine alone; for packed sequences, which are not tried here.
sys.modules["flash_attn.bert_padding"] = SimpleNamespace(pad_input=None, unpad_input=None)
import skyrl.backends.skyrl_train.utils.ppo_utils as ppo_utils  # noqa: E402
import skyrl.backends.skyrl_train.workers.model_wrapper as model_wrapper  # noqa: E402
from skyrl.train.config import AlgorithmConfig  # noqa: E402

pytestmark = pytest.mark.tried("policy losses and log-probs", "skyrl")

KINDS = {kind: name for name, kind in rlk_skyrl.KINDS.items()}
#: The first of each is the default. What begins with a dot is of off_policy_correction.
CHOICES: dict[str, tuple[Any, ...]] = {
    "policy_loss_type": tuple(KINDS),
    "loss_reduction": ("token_mean", "sequence_mean"),
    "eps_clip_low": (0.2, 0.05),
    "eps_clip_high": (0.2, 0.4),
    "clip_ratio_c": (3.0, 1.2),
    "sapo.tau_pos": (1.0, 1.5),
    "sapo.tau_neg": (1.05, 2.0),
    "cispo.cispo_eps_clip_low": (1.0, 0.2, 10.0),
    "cispo.cispo_eps_clip_high": (4.0, 0.3),
    ".tis_ratio_type": (None, "token", "sequence"),
    ".token_tis_ratio_clip_high": (2.0, 1.1),
    ".sequence_tis_ratio_clip_high": (5.0, 1.1),
    ".sequence_mask_metric": (None, "geometric", "product"),
    ".geo_mask_high": (1.01, 1.2),
    ".geo_mask_low": (0.99, 0.8),
    ".product_mask_high": (2.0, 1.2),
    ".product_mask_low": (0.5, 0.9),
    ".outlier_token_is_threshold_low": (None, 0.6, 0.3),
    ".outlier_token_is_threshold_high": (None, 1.6, 3.0),
    "token_mask": (None, (0.8, 1.2), (0.5, 2.0)),
    "advantages": ("sequence", "token", "zeros"),
    "empty": (False, True),
}
if hasattr(AlgorithmConfig().cispo, "cispo_anchor"):
    CHOICES["cispo.cispo_anchor"] = ("old", "rollout")


@pytest.fixture(autouse=True, scope="module")
def patched() -> Any:
    rlk_skyrl.patch()
    yield
    rlk_skyrl.unpatch()


def config(options: dict[str, Any]) -> Any:
    made = AlgorithmConfig()
    for name, value in options.items():
        *parts, last = name.split(".")
        place = made
        for part in parts:
            place = getattr(place, part or "off_policy_correction")
        setattr(place, last, value)
    return made


def run(names: dict[str, str], options: dict[str, Any], b: Any) -> losses.Found:
    options = dict(options)
    kind, is_empty = options.pop("advantages"), options.pop("empty")
    bounds = options.pop("token_mask") or (None, None)
    for side, bound in zip(("low", "high"), bounds, strict=True):
        options[f".token_mask_is_threshold_{side}"] = bound
    mask = b.mask.to(b.log_probs.dtype)
    if is_empty:
        mask[1] = 0
    advantages = b.advantages.expand_as(mask) if kind == "sequence" else b.token_advantages
    if kind == "zeros":
        advantages = advantages * (b.weights > 1)
    function = ppo_utils.PolicyLossRegistry.get(names[options["policy_loss_type"]])
    found = function(
        b.log_probs,
        b.old,
        advantages,
        config=config(options),
        loss_mask=mask,
        rollout_logprobs=b.rollout,
    )
    return losses.Found(*found)


def of_theirs(options: dict[str, Any], b: Any) -> losses.Found:
    return run({kind: kind for kind in KINDS}, options, b)


def of_ours(options: dict[str, Any], b: Any) -> losses.Found:
    loss, metrics = run(KINDS, options, b)
    if "cispo.cispo_anchor" not in CHOICES:  # 0.3.0 has no metrics of the ratio yet
        metrics = {name: x for name, x in metrics.items() if not name.startswith("cispo/")}
    return losses.Found(loss, metrics)


@losses.alone(CHOICES)
def test_each_option_alone(options):
    losses.compare(of_theirs, of_ours, options, 1)


@pytest.mark.parametrize("of", ["sapo", "cispo", "token", "sequence", "geometric", "product"])
@losses.alone({name: values for name, values in CHOICES.items() if "." in name})
def test_each_option_of_a_part_that_is_on(options, of):
    on = {"sapo": "policy_loss_type", "cispo": "policy_loss_type", "token": ".tis_ratio_type"}
    on |= {"sequence": ".tis_ratio_type"}
    first = {name: values[0] for name, values in CHOICES.items()}
    name = on.get(of, ".sequence_mask_metric")
    losses.compare(of_theirs, of_ours, {**first, **options, name: of}, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_options_together(kind, seed):
    options = {**losses.picked(CHOICES, seed), "policy_loss_type": kind}
    losses.compare(of_theirs, of_ours, options, seed)


@pytest.mark.parametrize(
    "asks", [{}, {"entropy_requires_grad": False}, {"entropy_requires_grad": True}]
)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_model_wrapper(name, asks):
    """Log-probs, entropies and gradients with rlk are those without."""
    ids = torch.randint(3, tiny.VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    found = []
    for is_on in (True, False):
        (rlk_skyrl.patch if is_on else rlk_skyrl.unpatch)()
        model = tiny.model(name)
        wrapper = model_wrapper.HFModelWrapper(model)
        log_prob, out = wrapper(
            ids,
            5,
            attention_mask=torch.ones_like(ids),
            temperature=0.7,
            return_output=True,
            compute_entropy=bool(asks),
            **asks,
        )
        parts = [log_prob, *([out["entropy"]] if asks else [])]
        loss = (parts[0] * torch.linspace(-1, 1, 5)).sum()
        if asks.get("entropy_requires_grad"):
            loss = loss + parts[1].sum()
        loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append((parts, grads))
    (ours, our_grads), (theirs, their_grads) = found
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert our_grads.keys() == their_grads.keys()
    for key, want in their_grads.items():
        torch.testing.assert_close(our_grads[key], want, rtol=1e-4, atol=1e-5)
