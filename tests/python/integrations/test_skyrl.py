# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.skyrl: SkyRL's numbers for its own options, its masks, and patch."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace

import pytest

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import systems  # noqa: E402

from rlk.integrations import skyrl  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")

# The defaults of SkyRL's dataclasses.
OFF_POLICY = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_high": 1.01,
    "geo_mask_low": 0.99,
    "product_mask_high": 2.0,
    "product_mask_low": 0.5,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None,
}
ALGORITHM = {
    "policy_loss_type": "regular",
    "loss_reduction": "token_mean",
    "eps_clip_low": 0.2,
    "eps_clip_high": 0.2,
    "clip_ratio_c": 3.0,
    "max_seq_len": None,
    "use_tis": False,
    "tis_imp_ratio_cap": -1.0,
}


def config(**changes):
    parts = {name: changes.get(name, value) for name, value in OFF_POLICY.items()}
    own = {name: changes.get(name, value) for name, value in ALGORITHM.items()}
    return SimpleNamespace(
        **own,
        off_policy_correction=SimpleNamespace(**parts),
        cispo=SimpleNamespace(cispo_eps_clip_low=1.0, cispo_eps_clip_high=4.0, cispo_anchor="old"),
        sapo=SimpleNamespace(tau_pos=1.0, tau_neg=1.05),
    )


def scaled(t, options):
    """The advantages as SkyRL's trainer scales them, so that its losses are sums."""
    a, mask, reduction = t["advantages"], t["mask"], options["loss_reduction"]
    tokens = mask.sum(-1, keepdim=True)
    if reduction == "token_mean":
        return a / mask.sum()
    if reduction == "sequence_mean":
        return a / (len(a) * tokens.clamp(min=1))
    if reduction == "seq_mean_token_sum_norm":
        return a / (len(a) * options["max_seq_len"])
    of_prompt = tokens.view(-1, options["samples_per_prompt"]).sum(-1).clamp(min=1)
    of_prompt = of_prompt.repeat_interleave(options["samples_per_prompt"])[:, None]
    return a / (of_prompt * len(a) / options["samples_per_prompt"])


# Losses that sum, and those that reduce themselves, which know no prompts.
CASES = [
    pytest.param(one, sums, id=f"{one.id}{'-sums' if sums else ''}")
    for one in systems.of("skyrl")
    for sums in (True, False)
    if sums or one.options["loss_reduction"] != "prompt_mean"
]


@pytest.mark.parametrize(("one", "sums"), CASES)
def test_real_sets(one, sums):
    options = one.options
    t = systems.tensors(one)
    given = (t["log_probs"], t["old_log_probs"], scaled(t, options) if sums else t["advantages"])
    function = skyrl.ppo_policy_loss_metrics if sums else skyrl.ppo_policy_loss_fused
    loss, metrics = function(*given, config(**options), t["mask"], t.get("rollout"))
    kl = systems.other_terms(
        one,
        t,
        dialect="skyrl",
        kl_coef=options["kl_loss_coef"],
        kl_estimator=options["kl_estimator_type"],
        ref_log_probs=t.get("ref"),
    )
    systems.check(one, t, loss + kl, metrics if sums else one.result["metrics"])


@pytest.fixture
def batch():
    torch.manual_seed(0)
    old = -torch.rand(4, 7) - 0.1
    mask = (torch.arange(7) < torch.tensor([[7], [0], [3], [5]])).float()
    rollout = old + 0.3 * torch.randn(4, 7)
    return old + torch.randn(4, 7), old, torch.randn(4, 7), mask, rollout


def run(batch, kind="regular", **changes):
    log_prob, old, advantages, mask, rollout = batch
    call = (log_prob, old, advantages, config(**changes), mask, rollout)
    return skyrl.ppo_policy_loss_metrics(*call, kind=kind)


SEQUENCES = [("geometric", 0.9, 1.1), ("product", 0.8, 1.25)]


@pytest.mark.parametrize("kind", ["regular", "gspo", "cispo", "sapo"])
@pytest.mark.parametrize(("metric", "low", "high"), SEQUENCES)
def test_masks_of_sequences(batch, kind, metric, low, high):
    """Sequences out of bounds have no loss; the metrics are of all."""
    name = {"geometric": "geo", "product": "product"}[metric]
    bounds = {f"{name}_mask_low": low, f"{name}_mask_high": high}
    loss, metrics = run(batch, kind, sequence_mask_metric=metric, **bounds)
    log_prob, old, advantages, mask, rollout = batch
    u = ((old - rollout) * mask).sum(-1)
    statistic = (u / mask.sum(-1).clamp(min=1) if metric == "geometric" else u).exp()
    inside = (statistic >= low) & (statistic <= high)
    assert 0 < inside.sum() < 4
    want, plain = run((log_prob, old, advantages * inside[:, None], mask, rollout), kind)
    assert loss.item() == pytest.approx(want.item(), rel=1e-6)
    assert metrics[f"{name}_sequence_mask_masked_ratio"] == (~inside).float().mean().item()
    assert metrics[f"{name}_sequence_mask_over_high_ratio"] == (statistic > high).sum().item() / 4
    assert metrics[f"{name}_sequence_mask_under_low_ratio"] == (statistic < low).sum().item() / 4
    assert metrics["clip_ratio"] == run(batch, kind)[1]["clip_ratio"]
    assert plain.keys() & {"is_ratio_mean"} == set()


def test_an_outlier_takes_its_sequence_and_leaves_the_weights(batch):
    """SkyRL's order: outliers, tokens, weights of what is left, then sequences."""
    log_prob, old, advantages, mask, rollout = batch
    rollout = old.clone()
    rollout[0, 1] = old[0, 1] - 6.0
    rollout[2, 0] = old[2, 0] - 0.3
    options = {"tis_ratio_type": "sequence", "outlier_token_is_threshold_high": 100.0}
    loss, metrics = run((log_prob, old, advantages, mask, rollout), **options)
    weight = torch.tensor([0.0, 1.0, 0.3, 0.0]).exp() * torch.tensor([0.0, 1.0, 1.0, 1.0])
    want = run((log_prob, old, advantages * weight[:, None], mask, rollout))[0]
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    assert metrics["outlier_seq_masked_ratio"] == 0.25
    assert metrics["tis_seq_clip_high_ratio"] == 0  # the outlier's sum is over no token


def test_masked_tokens_may_hold_anything(batch):
    options = {
        "tis_ratio_type": "token",
        "token_mask_is_threshold_low": 0.9,
        "token_mask_is_threshold_high": 1.1,
    }
    want = run(batch, "cispo", **options)
    for tensor in (*batch[:3], batch[4]):
        tensor[1] = float("nan")
    assert run(batch, "cispo", **options) == want


def test_a_correction_needs_rollout_log_probs(batch):
    for options in ({"tis_ratio_type": "token"}, {"sequence_mask_metric": "product"}):
        with pytest.raises(rlk.InvalidArgument, match="rollout_logprobs: expected a tensor with"):
            run((*batch[:4], None), **options)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_batches_without_tokens(shape):
    empty = torch.zeros(shape)
    options = {"tis_ratio_type": "sequence", "sequence_mask_metric": "geometric"}
    loss, metrics = run((empty,) * 5, **options)
    assert loss == 0
    assert metrics["is_ratio_max"] == metrics["is_ratio_std"] == 0


@pytest.mark.parametrize(
    ("cap", "expected"), [(-1.0, "a number from 0 up"), (float("nan"), "a number or None")]
)
def test_a_cap_is_checked_beside_masks_too(batch, cap, expected):
    options = {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}
    for level in ("token", "sequence"):
        name = f"{level}_tis_ratio_clip_high"
        with pytest.raises(rlk.InvalidArgument, match=f"{name}: expected {expected}"):
            run(batch, tis_ratio_type=level, **options, **{name: cap})


def test_a_bound_that_is_nan_is_refused(batch):
    with pytest.raises(rlk.InvalidArgument, match="threshold_high: expected a number or None"):
        run(batch, outlier_token_is_threshold_high=float("nan"))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("regular", "eps_clip_low", -1.0),
        ("dual_clip", "clip_ratio_c", 0.5),
        ("sapo", "sapo.tau_pos", 0.0),
        ("cispo", "cispo", 9.0),
    ],
)
def test_errors_name_options_of_skyrl(batch, kind, name, value):
    given = config(**({} if kind in ("sapo", "cispo") else {name: value}))
    given.sapo.tau_pos = value if kind == "sapo" else 1.0
    given.cispo.cispo_eps_clip_high = -value if kind == "cispo" else 4.0
    log_prob, old, advantages, mask, rollout = batch
    call = (log_prob, old, advantages, given, mask, rollout)
    with pytest.raises(rlk.InvalidArgument, match=rf"^ppo_loss: config\.{name}: expected"):
        skyrl.ppo_policy_loss_metrics(*call, kind=kind)


def test_a_clip_below_a_ratio_of_0_is_at_0(batch):
    assert run(batch, eps_clip_low=1.5) == run(batch, eps_clip_low=1.0)


class HFModelWrapper:
    def forward(self, logits, ids, compute_entropy=False, entropy_requires_grad=True):
        wrapper = sys.modules["skyrl.backends.skyrl_train.workers.model_wrapper"]
        return wrapper.logprobs_from_logits(logits, ids, inplace_backward=True)


class PolicyLossRegistry:
    functions: dict = {}

    @classmethod
    def register(cls, name, func):
        if name in cls.functions:
            raise ValueError(f"{name} is registered")
        cls.functions[name] = func

    @classmethod
    def unregister(cls, name):
        del cls.functions[name]


@pytest.fixture
def fake(monkeypatch):
    """The modules of SkyRL that are replaced, as far as they are looked at."""

    def logprobs_from_logits(logits, labels, inplace_backward=True):
        return "theirs"

    names = frozenset({"regular", "gspo"})
    monkeypatch.setattr(HFModelWrapper, "forward", HFModelWrapper.forward)
    monkeypatch.setattr(PolicyLossRegistry, "functions", {"regular": "theirs"})
    systems.make_modules(
        monkeypatch,
        skyrl={"__version__": "0.3.0"},
        skyrl__backends__skyrl_train__utils__ppo_utils={
            "PolicyLossRegistry": PolicyLossRegistry,
            "LOSSES_WITH_OLD_LOGPROBS": names,
        },
        skyrl__backends__skyrl_train__utils__torch_utils={
            "logprobs_from_logits": logprobs_from_logits
        },
        skyrl__backends__skyrl_train__workers__model_wrapper={
            "HFModelWrapper": HFModelWrapper,
            "logprobs_from_logits": logprobs_from_logits,
        },
        skyrl__train__fully_async_trainer={"LOSSES_WITH_OLD_LOGPROBS": names},
    )
    yield SimpleNamespace(names=names, registry=PolicyLossRegistry.functions)
    skyrl.unpatch()


def test_one_call_switches_it_on_and_off(fake):
    skyrl.patch()
    skyrl.patch()
    assert fake.registry.keys() == {"regular", *skyrl.KINDS}
    known = sys.modules["skyrl.train.fully_async_trainer"].LOSSES_WITH_OLD_LOGPROBS
    assert known == fake.names | set(skyrl.KINDS)
    assert next(name for name in known if name == "rlk_gspo").value == "rlk_gspo"
    skyrl.unpatch()
    assert fake.registry == {"regular": "theirs"}
    assert sys.modules["skyrl.train.fully_async_trainer"].LOSSES_WITH_OLD_LOGPROBS is fake.names


@pytest.mark.parametrize(("name", "kind"), list(skyrl.KINDS.items()))
def test_a_registered_name_is_its_loss_whatever_the_config_says(fake, batch, name, kind):
    """As where a call names another loss than the config does."""
    skyrl.patch()
    log_prob, old, advantages, mask, rollout = batch
    call = {"config": config(), "loss_mask": mask, "rollout_logprobs": rollout}
    found = fake.registry[name](log_prob, old, advantages, **call)
    assert found == run(batch, kind)
    call["config"] = config(policy_loss_type=name)
    assert skyrl.ppo_policy_loss_metrics(log_prob, old, advantages, **call) == found


def test_a_loss_that_arrives_in_a_worker_switches_log_probs_on(fake):
    skyrl.patch()
    sent = pickle.dumps(fake.registry["rlk_gspo"])
    skyrl.unpatch()
    wrapper = sys.modules["skyrl.backends.skyrl_train.workers.model_wrapper"]
    assert wrapper.logprobs_from_logits(None, None) == "theirs"
    assert pickle.loads(sent).kind == "gspo"
    ids = torch.zeros(2, dtype=torch.long)
    torch.testing.assert_close(
        wrapper.logprobs_from_logits(torch.zeros(2, 4), ids), torch.full((2,), 4.0).log().neg()
    )


@pytest.mark.parametrize("asks", [{}, {"compute_entropy": True, "entropy_requires_grad": False}])
def test_the_backward_writes_over_the_logits(fake, asks):
    skyrl.patch()
    logits = torch.randn(3, 5, requires_grad=True) * 1.0
    before = logits.detach().clone()
    HFModelWrapper().forward(logits, torch.tensor([0, 1, 2]), **asks).sum().backward()
    assert not torch.equal(logits, before)


def test_the_backward_leaves_logits_to_the_entropy(fake):
    skyrl.patch()
    base, ids = torch.randn(3, 5, requires_grad=True), torch.tensor([0, 1, 2])
    logits = base * 1.0
    log_prob = HFModelWrapper().forward(logits, ids, compute_entropy=True)
    p = logits.softmax(-1)
    entropy = logits.logsumexp(-1) - (p * logits).sum(-1)
    (grad,) = torch.autograd.grad((log_prob + entropy).sum(), base)
    want = torch.distributions.Categorical(logits=base)
    (right,) = torch.autograd.grad((want.log_prob(ids) + want.entropy()).sum(), base)
    torch.testing.assert_close(grad, right)
