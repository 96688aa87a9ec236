# SPDX-License-Identifier: Apache-2.0
"""What no set of dialects.SETS has: refusals, batches without tokens, and rarer options."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rlk.integrations import areal, nemo_rl, slime  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")

B, T = 4, 6
NEMO = {
    "disable_ppo_ratio": False,
    "sequence_level_importance_ratios": False,
    "ratio_clip_min": 0.2,
    "ratio_clip_max": 0.2,
    "ratio_clip_c": None,
    "reference_policy_kl_penalty": 0.1,
    "reference_policy_kl_type": "k3",
    "kl_input_clamp_value": 20.0,
    "kl_output_clamp_value": 10.0,
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio": None,
    "truncated_importance_sampling_ratio_min": None,
    "use_on_policy_kl_approximation": False,
    "force_on_policy_ratio": False,
    "use_cispo": False,
    "positive_example_nll_weight": 0.0,
    "loss_type": SimpleNamespace(value="token_level"),
}
SLIME = {
    "advantage_estimator": "grpo",
    "eps_clip": 0.2,
    "eps_clip_high": 0.2,
    "eps_clip_c": None,
    "entropy_coef": 0.0,
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "use_rollout_logprobs": False,
    "use_tis": False,
    "get_mismatch_metrics": False,
    "custom_tis_function_path": None,
    "use_opsm": False,
    "opsm_delta": 1e-4,
    "calculate_per_token_loss": False,
}


@pytest.fixture
def b():
    torch.manual_seed(0)
    log_probs = -torch.rand(B, T)
    near = {n: log_probs + 0.3 * torch.randn(B, T) for n in ("old", "rollout", "ref", "other")}
    mask = torch.rand(B, T) < 0.8
    return SimpleNamespace(
        log_probs=log_probs.requires_grad_(), advantages=torch.randn(B, T), mask=mask, **near
    )


def of_nemo(b: Any, counts: Any = None, **options: Any) -> Any:
    own = ("rewards", "unfiltered", "sample_mask")
    data = {"sample_mask": torch.ones(B)}
    data |= {name: options.pop(name) for name in own if name in options}
    if "unfiltered" in data:
        data["curr_logprobs_unfiltered"] = data.pop("unfiltered")
    data |= {
        "prev_logprobs": b.old,
        "generation_logprobs": b.rollout,
        "reference_policy_logprobs": b.ref,
        "token_mask": b.mask,
        "advantages": b.advantages,
    }
    for name in ("prev", "generation", "reference_policy"):
        name = f"{name}_logprobs"
        data[name] = torch.nn.functional.pad(data[name], (1, 0))
    for name in ("token_mask", "advantages"):
        data[name] = torch.nn.functional.pad(data[name].float(), (1, 0))
    counts = counts or (torch.tensor(B), b.mask.sum())
    return nemo_rl.clipped_pg_loss(
        SimpleNamespace(**{**NEMO, **options}), b.log_probs, data, *counts
    )


def masked_mean(x: Any, mask: Any) -> Any:
    return torch.where(mask, x, 0.0).sum() / mask.sum()


def test_nemo_rl_with_a_kl_of_unfiltered_log_probs(b):
    unfiltered = (b.log_probs.detach() * 0.9).requires_grad_()
    loss, metrics = of_nemo(b, unfiltered=unfiltered)
    plain, _ = of_nemo(b, reference_policy_kl_penalty=0)
    e = b.ref - unfiltered
    kl = masked_mean(e.exp() - 1 - e, b.mask)
    torch.testing.assert_close(loss, plain + 0.1 * kl, rtol=1e-5, atol=1e-6)
    assert metrics["kl_penalty"] == pytest.approx(kl.item(), rel=1e-5)
    own, of_kl = torch.autograd.grad(loss, [b.log_probs, unfiltered])
    assert torch.equal(own, torch.autograd.grad(plain, b.log_probs)[0])
    want = torch.where(b.mask, -0.1 * e.detach() / b.mask.sum(), 0.0)  # k + k'
    torch.testing.assert_close(of_kl, want, rtol=1e-4, atol=1e-7)


def test_nemo_rl_with_positive_examples(b):
    rewards = torch.tensor([1.0, 0.0, 2.0, -1.0])
    plain, _ = of_nemo(b)
    loss, metrics = of_nemo(b, rewards=rewards, positive_example_nll_weight=0.5)
    nll = masked_mean(-b.log_probs, b.mask & (rewards > 0)[:, None])
    torch.testing.assert_close(loss, plain + 0.5 * nll, rtol=1e-5, atol=1e-6)
    assert metrics["positive_nll_loss"] == pytest.approx(nll.item(), rel=1e-5)
    none, metrics = of_nemo(b, rewards=-rewards.abs(), positive_example_nll_weight=0.5)
    assert (none.item(), metrics["positive_nll_loss"]) == (plain.item(), 0.0)


def test_nemo_rl_takes_no_part_of_a_sample(b):
    whole, _ = of_nemo(b, sample_mask=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    assert whole.isfinite()
    with pytest.raises(
        rlk.InvalidArgument, match="sample_mask: expected 0 or 1, as in token_mask, got"
    ):
        of_nemo(b, sample_mask=torch.tensor([1.0, 0.5, 1.0, 1.0]))


@pytest.mark.parametrize(
    ("kind", "ratio", "message"),
    [
        (None, 2.0, "type: expected tis, icepop, seq-mask-tis, got None"),
        ("clip", 2.0, "type: expected tis, icepop, seq-mask-tis, got 'clip'"),
        ("tis", None, "ratio: expected a number with a type, got None"),
    ],
)
def test_nemo_rl_takes_no_half_of_a_truncation(b, kind, ratio, message):
    options = {
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio": ratio,
    }
    with pytest.raises(rlk.InvalidArgument, match=f"truncated_importance_sampling_{message}"):
        of_nemo(b, use_importance_sampling_correction=True, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio_clip_min": -1.0}, "ratio_clip_min: expected a number from 0 to 1, got -1.0"),
        ({"ratio_clip_max": None}, "ratio_clip_max: expected a value, got None"),
        ({"ratio_clip_c": 0.5}, "ratio_clip_c: expected a number from 1"),
        ({"reference_policy_kl_type": "abs"}, "reference_policy_kl_type: expected k1, k2, k3, got"),
        (
            {"reference_policy_kl_type": None, "reference_policy_kl_penalty": 0},
            "reference_policy_kl_type: expected k1, k2, k3, got None",
        ),
        ({"kl_input_clamp_value": -1.0}, "kl_input_clamp_value: expected a number"),
    ],
    ids=str,
)
def test_errors_name_options_of_nemo_rl(b, options, message):
    with pytest.raises(rlk.InvalidArgument, match=f"ppo_loss: {message}"):
        of_nemo(b, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps_clip": -1.0}, "eps_clip: expected a number from 0 to 1, got -1.0"),
        ({"eps_clip_higher": -1.0}, "eps_clip_higher: expected a number"),
        ({"c_clip": 0.5}, "c_clip: expected a number from 1"),
        ({"importance_sampling_level": None}, "importance_sampling_level: expected a value, got"),
        ({"proximal_logprobs": torch.zeros(3)}, "proximal_logprobs: expected"),
    ],
    ids=lambda x: "" if isinstance(x, str) else next(iter(x)),
)
def test_errors_name_options_of_areal(b, options, message):
    names = ("logprobs", "proximal_logprobs", "old_logprobs", "advantages", "eps_clip", "loss_mask")
    values = (b.log_probs, b.old, b.rollout, b.advantages, 0.2, b.mask)
    call = {**dict(zip(names, values, strict=True)), **options}
    with pytest.raises(rlk.InvalidArgument, match=f"ppo_loss: {message}"):
        areal.ppo_actor_loss_fn(**call)


@pytest.mark.parametrize(("name", "value"), [("tau_pos", 0.0), ("tau_neg", None)])
def test_errors_name_temperatures_of_areal(b, name, value):
    taus = {"tau_pos": 1.0, "tau_neg": 1.0, name: value}
    with pytest.raises(rlk.InvalidArgument, match=f"ppo_loss: {name}: expected"):
        areal.sapo_loss_fn(b.log_probs, b.old, b.advantages, loss_mask=b.mask, **taus)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps_clip": -1.0}, "eps_clip: expected a number from 0 to 1, got -1.0"),
        ({"eps_clip_high": None}, "eps_clip_high: expected a value, got None"),
        ({"eps_clip_c": 0.5}, "eps_clip_c: expected a number from 1"),
        ({"entropy_coef": None}, "entropy_coef: expected a value, got None"),
        ({"kl_loss_type": None}, "kl_loss_type: expected a value, got None"),
        ({"kl_loss_type": "k4"}, "kl_loss_type: expected .*k3.*, got 'k4'"),
        ({"kl_loss_coef": float("nan")}, "kl_loss_coef: expected a number"),
    ],
    ids=str,
)
def test_errors_name_options_of_slime(b, options, message):
    kl = {"use_kl_loss": True, "kl_loss_type": "k3", "kl_loss_coef": 0.1, "use_unbiased_kl": False}
    with pytest.raises(rlk.InvalidArgument, match=f"ppo_loss: {message}"):
        of_slime(b, **{**kl, **options})


def test_sequences_of_areal_are_counted_past_what_bfloat16_counts():
    old, mask = -torch.ones(1, 2000), torch.ones(1, 2000, dtype=torch.bool)
    away = torch.where(torch.arange(2000) < 1000, 0.125, 0.375)
    tensors = [x.bfloat16() for x in (old + away, old, old, -old)]
    _, stat = areal.ppo_actor_loss_fn(*tensors, 0.2, mask, importance_sampling_level="sequence")
    want = torch.full_like(old, 0.25).exp()
    torch.testing.assert_close(stat["importance_weight"].float(), want, rtol=4e-3, atol=0)


def test_batches_without_tokens(b):
    b.mask = torch.zeros(B, T, dtype=torch.bool)
    losses = [
        of_nemo(b, counts=(torch.tensor(0.0), torch.tensor(0.0)))[0],
        areal.ppo_actor_loss_fn(b.log_probs, b.old, b.rollout, b.advantages, 0.2, b.mask)[0],
        areal.sapo_loss_fn(b.log_probs, b.old, b.advantages, 1.0, 1.0, b.mask)[0],
        of_slime(b)[0],
    ]
    for loss in losses:
        assert loss.item() == 0.0
        (grad,) = torch.autograd.grad(loss, b.log_probs, allow_unused=True)
        assert grad is None or not grad.any()


def test_inactive_tokens_may_hold_nan(b):
    """In metrics too."""
    losses = []
    for fill in (0.0, float("nan")):
        own = {n: torch.where(b.mask, getattr(b, n).detach(), fill) for n in ("old", "rollout")}
        log_probs = torch.where(b.mask, b.log_probs.detach(), fill).requires_grad_()
        one = SimpleNamespace(**{**vars(b), **own, "log_probs": log_probs})
        tensors = (log_probs, one.old, one.rollout, one.advantages, 0.2, one.mask)
        config = SimpleNamespace(**{**REJECTION, "upper": 1.2, "lower": 0.8})
        loss, stat = areal.ppo_actor_loss_fn(*tensors, rejection_sampling=config)
        results = [loss, *(x[b.mask] for x in stat.values() if torch.is_tensor(x))]
        tis = {"use_tis": True, "tis_clip": 2.0, "tis_clip_low": 0.0}
        for found in (of_nemo(one), of_slime(one), of_slime(one, **tis)):
            results += [found[0], *map(torch.as_tensor, found[1].values())]
        losses.append(results)
    for plain, filled in zip(*losses, strict=True):
        assert torch.equal(plain, filled)


REJECTION = {"level": "token", "action": "mask", "metric": "ratio", "agg": "mean"}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"level": "word"}, "level: expected token, sequence, got 'word'"),
        ({"action": "drop"}, "action: expected mask, clamp"),
        ({"metric": "kl_k4"}, "metric: expected ratio, kl_k1, kl_k2, kl_k3"),
        ({"agg": "median", "level": "sequence"}, "agg: expected sum, mean, max"),
    ],
)
def test_words_that_areal_does_not_have(b, option, expected):
    config = SimpleNamespace(**{**REJECTION, "upper": 2.0, "lower": None, **option})
    tensors = (b.log_probs, b.old, b.rollout, b.advantages, 0.2, b.mask)
    with pytest.raises(rlk.InvalidArgument, match=rf"rejection_sampling\.{expected}"):
        areal.ppo_actor_loss_fn(*tensors, rejection_sampling=config)


@pytest.mark.parametrize(
    "option",
    [
        {"importance_sampling_level": "sequence"},
        {"rejection_sampling": {**REJECTION, "level": "sequence"}},
    ],
    ids=["ratio", "rejection"],
)
def test_packed_tokens_of_areal_need_boundaries_by_sequence(b, option):
    if "rejection_sampling" in option:
        config = {**option["rejection_sampling"], "upper": 2.0, "lower": None}
        option = {"rejection_sampling": SimpleNamespace(**config)}
    packed = [x.reshape(-1) for x in (b.log_probs, b.old, b.rollout, b.advantages, b.mask)]
    *tensors, mask = packed
    with pytest.raises(rlk.InvalidArgument, match="cu_seqlens: expected a tensor of packed tokens"):
        areal.ppo_actor_loss_fn(*tensors, 0.2, mask, **option)
    with pytest.raises(rlk.InvalidArgument, match="importance_sampling_level: expected"):
        areal.ppo_actor_loss_fn(*tensors, 0.2, mask, importance_sampling_level="word")


def of_slime(b: Any, sums: float | None = None, parts: int = T, **options: Any) -> Any:
    def split(x: Any) -> list[Any]:
        return list(x[:, :parts])

    batch = {
        "advantages": split(b.advantages),
        "loss_masks": list(b.mask.float()),
        "log_probs": split(b.old),
        "ref_log_probs": split(b.ref),
        "response_lengths": [T] * B,
        "total_lengths": [T] * B,
    }
    if options.pop("has_rollout", True):
        batch["rollout_log_probs"] = split(b.rollout)
    weights = b.mask[:, :parts].float() / (sums or 1.0)
    args = SimpleNamespace(**{**SLIME, **options})
    log_probs, entropy = split(b.log_probs), split(torch.zeros(B, T))
    reduce = lambda x: (x * weights.reshape(-1)).sum()  # noqa: E731
    return slime.policy_loss_of_log_probs(args, batch, log_probs, entropy, reduce)


def test_slime_over_ranks_of_a_sequence(b):
    for option in ({"advantage_estimator": "gspo"}, {"use_opsm": True}):
        with pytest.raises(rlk.InvalidArgument, match="log_probs: expected whole samples with"):
            of_slime(b, parts=T // 2, **option)
    loss, _ = of_slime(b, parts=T // 2)  # by token: a rank's part of the sum
    b.mask[:, T // 2 :] = False
    assert loss.item() == of_slime(b)[0].item()


def test_slime_tis_without_the_engines_log_probs(b):
    with pytest.raises(rlk.InvalidArgument, match="rollout_log_probs: expected tensors"):
        of_slime(b, use_tis=True, has_rollout=False)


def test_a_kl_of_slime_that_is_logged_alone(b):
    options = {"use_kl_loss": True, "kl_loss_type": "k3", "use_unbiased_kl": False}
    plain, metrics = of_slime(b, **options, kl_loss_coef=0.0)
    e = b.ref - b.log_probs.detach()
    want = torch.where(b.mask, e.exp() - 1 - e, 0.0).sum().item()
    assert metrics["kl_loss"].item() == pytest.approx(want, rel=1e-5)
    loss, _ = of_slime(b, **options, kl_loss_coef=0.5)
    assert loss.item() == pytest.approx(plain.item() + 0.5 * want, rel=1e-5)


def test_functions_that_slime_takes_by_path(b, monkeypatch):
    def tis(args, *, pg_loss, loss_masks, **more):
        return 0.5 * pg_loss, loss_masks, {"half": torch.ones_like(pg_loss)}

    def reducer(total_lengths, response_lengths, masks, by_token):
        assert total_lengths == response_lengths == [T] * B
        return lambda x: (x * torch.cat(masks)).sum() / 8.0

    for name in ("slime", "slime.utils", "slime.utils.misc"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["slime.utils.misc"].load_function = {"tis": tis, "reducer": reducer}.__getitem__
    plain, _ = of_slime(b)
    loss, metrics = of_slime(b, use_tis=True, custom_tis_function_path="tis")
    assert loss.item() == pytest.approx(plain.item() / 2, rel=1e-6)
    assert metrics["half"].item() == float(b.mask.sum())
    options = {"use_kl_loss": True, "kl_loss_type": "k2", "use_unbiased_kl": False}
    with_kl, _ = of_slime(b, **options, kl_loss_coef=0.5)
    loss, metrics = of_slime(
        b, **options, kl_loss_coef=0.5, custom_pg_loss_reducer_function_path="reducer"
    )
    assert metrics["pg_loss"].item() == pytest.approx(plain.item() / 8, rel=1e-6)
    want = with_kl.item() - plain.item() + plain.item() / 8
    assert loss.item() == pytest.approx(want, rel=1e-5)
