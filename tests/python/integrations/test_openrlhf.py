# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.openrlhf: OpenRLHF's numbers for its own options, and patch."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import systems  # noqa: E402

from rlk.integrations import openrlhf  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")

OPTIONS = {
    "policy_loss_type": "ppo",
    "token_level_loss": True,
    "clip_eps_low": 0.2,
    "clip_eps_high": 0.2,
    "dual_clip": None,
}
OLDER = {  # 0.11.0
    "enable_vllm_is_correction": False,
    "vllm_is_truncated_threshold": None,
    "vllm_is_correction_type": "tis",
}
NEWER = {  # 0.11.2
    "is_correction_level": "off",
    "is_correction_mode": "mask",
    "is_correction_gating": "ratio",
    "is_correction_threshold": (0.5, 5.0),
}
COUNTS = ("dp_size", "batch_num_tokens", "global_batch_size")


@pytest.mark.parametrize("one", systems.of("openrlhf"), ids=lambda one: one.id)
def test_real_sets(one):
    t, options = systems.tensors(one), one.options
    own = {name: options.get(name, value) for name, value in {**OPTIONS, **OLDER}.items()}
    loss, clip_ratio, ppo_kl, vllm_kl = openrlhf.policy_loss(
        SimpleNamespace(**own),
        t["log_probs"],
        t["old_log_probs"],
        t["advantages"],
        t["mask"],
        t.get("rollout"),
        **{name: options[name] for name in COUNTS if name in options},
    )
    metrics = {"clip_ratio": clip_ratio.item(), "ppo_kl": ppo_kl.item()}
    if vllm_kl is not None:
        metrics["vllm_kl"] = vllm_kl.item()
    own = {n: v for n, v in one.rlk_options.items() if n.startswith(("kl_", "global_", "loss_"))}
    kl = systems.other_terms(one, t, dialect="openrlhf", ref_log_probs=t.get("ref"), **own)
    systems.check(one, t, loss + kl, metrics)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    old = -torch.rand(4, 7) - 0.1
    mask = torch.arange(7) < torch.tensor([[7], [0], [3], [5]])
    rollout = old + 0.3 * torch.randn(4, 7)
    return old + torch.randn(4, 7), old, torch.randn(4, 7), mask, rollout


def run(batch, **changes):
    known = NEWER if any(name.startswith("is_") for name in changes) else OLDER
    return openrlhf.policy_loss(SimpleNamespace(**{**OPTIONS, **known, **changes}), *batch)


def mean(values, mask):
    return values[mask].mean().item()


@pytest.mark.parametrize("gating", ["ratio", "binary_kl", "tv"])
@pytest.mark.parametrize("level", ["token", "seq"])
def test_gates_of_0_11_2(batch, gating, level):
    log_prob, old, advantages, mask, rollout = batch
    low, high = {"ratio": (0.9, 1.1), "binary_kl": (0.0, 0.02), "tv": (0.0, 0.08)}[gating]
    p, q = rollout.exp(), old.exp()
    each = {
        "ratio": old - rollout,
        "tv": (p - q).abs(),
        "binary_kl": p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log(),
    }[gating]
    if level == "seq":  # of no token: NaN, out of bounds
        each = (each * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    statistic = each.exp() if gating == "ratio" else each
    keep = (statistic >= low) & (statistic <= high)
    weights = torch.where(keep, (old - rollout).exp(), 0.0)
    options = {"is_correction_level": level, "is_correction_gating": gating}
    loss, _, _, vllm_kl, filtered = run(batch, **options, is_correction_threshold=(low, high))
    want = run((log_prob, old, advantages * weights, mask, rollout))[0]
    assert 0 < (keep & mask).sum() < mask.sum()
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    assert vllm_kl.item() == pytest.approx(mean(rollout - old, mask), rel=1e-5)
    share = (~keep).float().mean().item() if level == "seq" else mean((~keep).float(), mask)
    assert filtered.item() == pytest.approx(share)


@pytest.mark.parametrize("gating", ["ratio", "binary_kl", "tv"])
@pytest.mark.parametrize("level", ["token", "seq"])
def test_masked_tokens_may_hold_anything(batch, gating, level):
    options = {"is_correction_level": level, "is_correction_gating": gating}
    options["is_correction_threshold"] = (0.9, 1.1) if gating == "ratio" else (0.0, 0.05)
    mask = batch[3]
    filled = [torch.where(mask, x, torch.nan) if x is not mask else x for x in batch]
    assert run(filled, **options) == run(batch, **options)


def test_clip_of_0_11_2_is_tis(batch):
    bounds = (0.9, 1.1)
    newer = run(
        batch,
        is_correction_level="token",
        is_correction_mode="clip",
        is_correction_threshold=bounds,
    )
    older = run(batch, enable_vllm_is_correction=True, vllm_is_truncated_threshold=bounds)
    assert newer[:4] == older
    assert len(run(batch, is_correction_level="off")) == 5
    assert run(batch, is_correction_level="off")[3:] == (None, None)


@pytest.mark.parametrize("cap", [1.1, 1.5])
@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_dual_clip_is_of_both_losses(batch, kind, cap):
    """The last has one token more than a clip: caps below the upper bound count too."""
    log_prob, old, advantages, mask, _ = batch
    loss = run(batch, policy_loss_type=kind, dual_clip=cap)[0]
    d = log_prob - old
    if kind == "gspo":
        d = ((d * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).expand(
            4, 7
        )
    first = torch.minimum(d.exp() * advantages, d.exp().clamp(0.8, 1.2) * advantages)
    each = -torch.where(advantages < 0, torch.maximum(first, cap * advantages), first) * mask
    rows = each.sum(-1) / mask.sum(-1).clamp(min=1)
    want = rows.sum() / 3 if kind == "gspo" else each.sum() / mask.sum()
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_a_clip_below_a_ratio_of_0_is_at_0(batch, kind):
    losses = [run(batch, policy_loss_type=kind, clip_eps_low=low)[0] for low in (1.5, 1.0)]
    assert torch.equal(*losses)


def test_without_any_token():
    found = run((torch.zeros(2, 0),) * 3 + (None, None))
    assert [part.item() for part in found[:3]] == [0, 0, 0]


def test_without_an_active_token(batch):
    log_prob, old, advantages, mask, rollout = batch
    found = run(
        (log_prob, old, advantages, mask & False, rollout),
        enable_vllm_is_correction=True,
        vllm_is_truncated_threshold=[0.5, 5.0],
    )
    assert [part.item() for part in found] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy_loss_type": "sapo"}, "policy_loss_type: expected ppo, gspo"),
        ({"dual_clip": 0.5}, "dual_clip: expected a number from 1"),
        ({"clip_eps_low": "x"}, "clip_eps_low: expected a number"),
        ({"enable_vllm_is_correction": True}, "vllm_is_truncated_threshold: expected .low, high"),
        (
            {"enable_vllm_is_correction": True, "vllm_is_correction_type": "seq"},
            "vllm_is_correction_type: expected tis, icepop",
        ),
        ({"is_correction_level": "sequence"}, "is_correction_level: expected token, seq"),
        (
            {"is_correction_level": "seq", "is_correction_mode": "clip"},
            "is_correction_mode: expected mask but for ratios of tokens",
        ),
    ],
)
def test_what_is_wrong_is_named(batch, changes, words):
    with pytest.raises(rlk.InvalidArgument, match=f"^policy_loss: {words}"):
        run(batch, **changes)


def test_a_correction_needs_rollout_log_probs(batch):
    with pytest.raises(rlk.InvalidArgument, match="rollout_log_probs: expected a tensor"):
        run((*batch[:4], None), is_correction_level="token")


def test_one_call_switches_it_on_and_off(monkeypatch, batch):
    class PolicyLoss(SimpleNamespace):
        def forward(
            self,
            log_probs,
            old_log_probs,
            advantages,
            action_mask=None,
            rollout_log_probs=None,
            dp_size=1,
            batch_num_tokens=None,
            global_batch_size=None,
        ):
            return "theirs"

    def log_probs_from_logits(logits, labels, temperature=1.0):
        return "theirs"

    systems.make_modules(
        monkeypatch,
        openrlhf={"__version__": "0.11.1"},
        openrlhf__models__loss={"PolicyLoss": PolicyLoss},
        openrlhf__models__utils={"log_probs_from_logits": log_probs_from_logits},
        openrlhf__models__actor={"log_probs_from_logits": log_probs_from_logits},
    )
    actor, module = sys.modules["openrlhf.models.actor"], PolicyLoss(**OPTIONS, **OLDER)
    openrlhf.patch()
    openrlhf.patch()
    logits, ids = torch.randn(3, 5), torch.tensor([0, 1, 2])
    before = logits.clone()
    want = (logits / 0.7).log_softmax(-1)[torch.arange(3), ids]
    torch.testing.assert_close(actor.log_probs_from_logits(logits, ids, temperature=0.7), want)
    assert torch.equal(logits, before)
    assert module.forward(*batch) == run(batch)
    openrlhf.unpatch()
    assert module.forward(*batch) == actor.log_probs_from_logits(logits, ids) == "theirs"
