# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.verl: verl's numbers for its own options, and a stand-in for its modules."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import systems  # noqa: E402
from dialects import Set  # noqa: E402

from rlk.integrations import verl  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")

KINDS = {"vanilla": "ppo", "gspo": "gspo", "sapo": "sapo", "cispo": "cispo", "gpg": "gpg"}
CONFIG = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
CONFIG |= {"tau_pos": 1.0, "tau_neg": 1.05, "global_batch_info": {}}


def config(**changes):
    return SimpleNamespace(**{**CONFIG, **changes})


def bypass(**changes):
    """verl's policy_loss.rollout_correction, whose defaults neither reject nor weigh."""
    correction = {"bypass_mode": True, "rollout_is": "sequence", "rollout_rs": None}
    return {"rollout_correction": {**correction, "loss_type": "ppo_clip", **changes}}


def other_terms(one: Set, t: dict) -> object:
    """verl's ppo_loss adds the KL term and the entropy bonus, both by loss_agg_mode."""
    own = {n: v for n, v in one.rlk_options.items() if n.startswith(("kl_", "global_", "entropy"))}
    options = {**own, "dialect": one.framework, "max_seq_len": one.rlk_options["max_seq_len"]}
    for name in ("ref_log_probs", "entropy"):
        if name in one.rlk_options:
            options[name] = t[{"ref_log_probs": "ref"}.get(name, name)]
    return systems.other_terms(one, t, **options, loss_reduction=one.options["loss_agg_mode"])


@pytest.mark.parametrize("one", systems.of("verl", "verl_old"), ids=lambda one: one.id)
def test_real_sets(one):
    t = systems.tensors(one)
    loss_of = verl.make_policy_loss(KINDS[one.options["loss_mode"]], verl.Version(one.framework))
    own = {name: value for name, value in one.options.items() if name in CONFIG}
    loss, metrics = loss_of(
        old_log_prob=t["old_log_probs"],
        log_prob=t["log_probs"],
        advantages=t["advantages"],
        response_mask=t["mask"],
        loss_agg_mode=one.options["loss_agg_mode"],
        config=config(**own),
        rollout_is_weights=t.get("weights"),
    )
    systems.check(one, t, loss + other_terms(one, t), metrics)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    old = -torch.rand(4, 7) - 0.1
    log_prob = old + torch.randn(4, 7)
    mask = torch.arange(7) < torch.tensor([[7], [0], [3], [1]])
    return old, log_prob.requires_grad_(), torch.randn(4, 7), mask


def run(kind, batch, mode="token-mean", version=None, weights=None, **changes):
    version = version or verl.Version()
    return verl.make_policy_loss(kind, version)(*batch, mode, config(**changes), weights)


def test_clip_ratio_stands_in_for_bounds_that_are_none(batch):
    got = run("ppo", batch, clip_ratio=0.1, clip_ratio_low=None, clip_ratio_high=None)
    want = run("ppo", batch, clip_ratio_low=0.1, clip_ratio_high=0.1)
    assert got[0].item() == want[0].item() != run("ppo", batch)[0].item()


@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo"])
def test_a_lower_bound_above_1_is_none(kind, batch):
    """As clip_ratio_low=10, which recipes of cispo have."""
    old, log_prob, *rest = batch
    low = (old, log_prob.detach() - 8.0, *rest)
    got, metrics = run(kind, low, clip_ratio_low=10.0)
    assert metrics["actor/pg_clipfrac"] == 0
    assert got.item() != run(kind, low, clip_ratio_low=0.2)[0].item()


@pytest.mark.parametrize("kind", ["gspo", "sapo"])
def test_whose_reduction_it_is(kind, batch):
    """0.9.1's gspo reads loss_agg_mode, other versions' and sapo do not."""
    fixed = [run(kind, batch, mode)[0].item() for mode in ("token-mean", "seq-mean-token-mean")]
    assert fixed[0] == fixed[1]
    reads = verl.Version(by_sequence=())
    assert run(kind, batch, version=reads)[0].item() != fixed[0]


@pytest.mark.parametrize("kind", KINDS.values())
def test_without_an_active_token(kind, batch):
    old, log_prob, advantages, mask = batch
    loss, metrics = run(kind, (old, log_prob, advantages, mask & False))
    loss.backward()
    assert loss.item() == 0
    assert not log_prob.grad.any()
    assert all(value == 0 for value in metrics.values())


@pytest.mark.parametrize("kind", KINDS.values())
def test_masked_tokens_may_hold_anything(kind, batch):
    old, log_prob, advantages, mask = batch
    weights = torch.rand(4, 7)
    want = run(kind, (old, log_prob.detach(), advantages, mask), weights=weights)
    filled = [torch.where(mask, x.detach(), torch.nan) for x in (*batch[:3], weights)]
    assert run(kind, (*filled[:3], mask), weights=filled[3]) == want


def test_weights_of_0_leave_the_metrics_alone(batch):
    want = run("ppo", batch)[1]
    loss, metrics = run("ppo", batch, weights=torch.zeros(4, 7))
    assert loss.item() == 0
    assert metrics == want
    assert want["actor/pg_clipfrac"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip_ratio_c": 1.0}, "config.clip_ratio_c: expected a number above 1, got 1.0"),
        ({"clip_ratio_low": -0.1}, "config.clip_ratio_low: expected a number from 0 up"),
        ({"clip_ratio_high": None, "clip_ratio": None}, "config.clip_ratio: expected a number"),
        ({"tau_pos": 0.0}, "config.tau_pos: expected a number"),
        ({"clip_ratio_c": "???"}, "config.clip_ratio_c: expected a value"),
        ({"global_batch_info": {"dp_size": 2}}, "batch_num_tokens: expected a number with token"),
        (
            {"global_batch_info": {"ranks": 2}},
            "global_batch_info: expected dp_size, .* got 'ranks'",
        ),
        ({"global_batch_info": {"dp_size": 0}}, "dp_size: expected a number from 1 up"),
        ({"global_batch_info": {"batch_num_tokens": 1.5}}, "batch_num_tokens: expected"),
        ({"global_batch_info": 3}, "global_batch_info: expected a dictionary"),
        (
            {"policy_loss": bypass(rollout_rs="token_k1")},
            r"rollout_correction\.rollout_rs: expected None with bypass_mode; .*'token_k1'",
        ),
        (
            {"policy_loss": bypass(loss_type="reinforce")},
            r"rollout_correction\.loss_type: expected ppo_clip with bypass_mode; .*'reinforce'",
        ),
    ],
)
def test_what_is_wrong_in_a_config_is_named(batch, changes, words):
    kind = "sapo" if "tau_pos" in changes else "ppo"
    with pytest.raises(rlk.InvalidArgument, match=f"^policy_loss: .*{words}"):
        run(kind, batch, **changes)


def test_a_correction_that_changes_no_loss_is_let_be(batch):
    plain, _ = run("ppo", batch)
    for policy_loss in (bypass(), bypass(bypass_mode=False, rollout_rs="token_k1")):
        assert torch.equal(run("ppo", batch, policy_loss=policy_loss)[0], plain)


def test_what_is_wrong_in_a_call_is_named(batch):
    with pytest.raises(rlk.InvalidArgument, match=r"^policy_loss: loss_agg_mode: expected"):
        run("ppo", batch, "mean")
    with pytest.raises(rlk.InvalidArgument, match=r"^policy_loss: config: expected the actor's"):
        verl.make_policy_loss("ppo")(*batch)
    with pytest.raises(rlk.InvalidArgument, match=r"^policy_loss: response_mask: expected"):
        run("ppo", (*batch[:3], batch[3][:, :2]))


class FusedLinearForPPO:
    impl_backend = "torch"

    def forward(self, hidden_states, vocab_weights, input_ids, temperature=1.0):
        return "theirs"


class LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, temperature, reduction, dist_process_group):
        raise NotImplementedError


class Model:
    """As a transformers model that verl has given a fused forward."""

    def __init__(self, **changes):
        self.lm_head = torch.nn.Linear(8, 11, bias=False)
        values = {"model_type": "llama", "hidden_size": 8, "vocab_size": 11, **changes}
        self.config = values

    def forward(self, hidden):
        raise NotImplementedError


def agg_loss(
    loss_mat,
    loss_mask,
    loss_agg_mode,
    dp_size=1,
    batch_num_tokens=None,
    global_batch_size=None,
    loss_scale_factor=None,
):
    assert loss_agg_mode == "seq-mean-token-sum-norm"
    return loss_mat.sum() / global_batch_size / loss_scale_factor


@pytest.fixture
def fake(monkeypatch):
    """The modules of verl that are replaced, as far as they are looked at."""
    registry = {"vanilla": "theirs"}

    def register_policy_loss(name):
        return lambda function: registry.setdefault(name, function)

    def patch_forward_with_backends(model, use_fused_kernels=False, fused_kernels_backend=None):
        if use_fused_kernels:
            type(model).forward, model.backend = fused, fused_kernels_backend

    kernel = LinearCrossEntropy.apply

    def fused(self, hidden, ids):
        if self.backend == "triton":
            kernel = sys.modules["verl.engine"].kernel
            return kernel(hidden, self.lm_head.weight, ids, 0.7, "none")
        return FusedLinearForPPO().forward(hidden, self.lm_head.weight, ids, temperature=0.7)

    def logprobs_from_logits(logits, labels, inplace_backward=True):
        return "theirs"

    registry["sapo"] = lambda *args: (args[3].sum(), {})
    registry["gspo"] = lambda *args: (2 * args[3].sum() if "sum" in args[4] else args[3].sum(), {})
    monkeypatch.setattr(FusedLinearForPPO, "forward", FusedLinearForPPO.forward)
    monkeypatch.setattr(Model, "forward", Model.forward)
    systems.make_modules(
        monkeypatch,
        verl={"__version__": "0.9.1"},
        verl__trainer__ppo__core_algos={
            "register_policy_loss": register_policy_loss,
            "POLICY_LOSS_REGISTRY": registry,
            "agg_loss": agg_loss,
            "ActorConfig": SimpleNamespace,
        },
        verl__utils__torch_functional={"logprobs_from_logits": logprobs_from_logits},
        verl__utils__experimental__torch_functional={"FusedLinearForPPO": FusedLinearForPPO},
        verl__models__transformers__monkey_patch={
            "patch_forward_with_backends": patch_forward_with_backends
        },
        verl__utils__kernel__linear_cross_entropy={
            "LinearCrossEntropy": LinearCrossEntropy,
            "linear_cross_entropy": kernel,
        },
        verl__engine={"by_name": logprobs_from_logits, "kernel": kernel},
    )
    yield SimpleNamespace(registry=registry, engine=sys.modules["verl.engine"])
    verl.unpatch()


def test_one_call_switches_it_on_and_off(fake):
    before = dict(fake.registry)
    verl.patch()
    verl.patch()
    assert fake.registry.keys() - before.keys() == set(verl.KINDS)
    torch.manual_seed(0)
    logits, ids = torch.randn(2, 3, 11, requires_grad=True), torch.randint(11, (2, 3))
    found = fake.engine.by_name(logits=logits, labels=ids)  # a leaf: nothing is written over it
    want = logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    torch.testing.assert_close(found, want)
    verl.unpatch()
    assert fake.registry == before
    assert fake.engine.by_name(None, None) == "theirs"


def test_the_fused_kernel_is_replaced_where_it_was_imported(fake):
    before = fake.engine.kernel
    verl.patch()
    assert fake.engine.kernel is verl.linear_cross_entropy
    verl.unpatch()
    assert fake.engine.kernel is before


def test_the_module_that_patches(fake, monkeypatch):
    monkeypatch.delitem(sys.modules, "rlk.integrations.verl.auto", raising=False)
    import rlk.integrations.verl.auto  # noqa: F401

    assert "rlk_gspo" in fake.registry


def test_the_version_is_asked_of_verls_functions(fake):
    """This gspo reads the mode and this sapo does not, as those of 0.9.1."""
    from rlk.integrations.verl import _install

    algos = sys.modules["verl.trainer.ppo.core_algos"]
    assert _install.installed_version(algos) == verl.Version("verl", ("sapo",))
    algos.agg_loss = lambda loss_mat, *_, **__: loss_mat.sum()
    assert _install.installed_version(algos).dialect == "verl_old"
    algos.agg_loss = lambda loss_mat, *_, **__: 3 * loss_mat.sum()
    with pytest.raises(rlk.Unsupported, match="verl: agg_loss: expected a mean or a sum"):
        _install.installed_version(algos)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(
    ("changes", "cap", "scale"),
    [
        ({}, None, 1.0),
        ({"model_type": "gemma2", "final_logit_softcapping": 2.0}, 2.0, 1.0),
        ({"model_type": "granite", "logits_scaling": 4.0}, None, 0.25),
    ],
)
def test_the_fused_head_is_the_models(fake, changes, cap, scale, backend):
    verl.patch()
    model = Model(**changes)
    patch_forward = sys.modules["verl.models.transformers.monkey_patch"].patch_forward_with_backends
    patch_forward(model, use_fused_kernels=True, fused_kernels_backend=backend)
    hidden, ids = torch.randn(1, 5, 8), torch.randint(11, (1, 5))
    log_prob, entropy = type(model).forward(model, hidden, ids)
    z = scale * model.lm_head(hidden)
    z = (z if cap is None else cap * torch.tanh(z / cap)) / 0.7
    want = torch.distributions.Categorical(logits=z)
    torch.testing.assert_close(log_prob.view(1, -1), want.log_prob(ids))  # the kernel's are flat
    torch.testing.assert_close(entropy.view(1, -1), want.entropy())
    (grad,) = torch.autograd.grad(log_prob.sum(), model.lm_head.weight)
    (right,) = torch.autograd.grad(want.log_prob(ids).sum(), model.lm_head.weight)
    torch.testing.assert_close(grad, right)


def test_a_head_without_a_model_and_of_another_backend(fake):
    verl.patch()
    head, weight = FusedLinearForPPO(), torch.randn(11, 8)
    hidden, ids = torch.randn(5, 8), torch.randint(11, (5,))
    log_prob, _ = head.forward(hidden, weight, ids, torch.full((5,), 0.7))
    want = torch.distributions.Categorical(logits=hidden @ weight.T / 0.7).log_prob(ids)
    torch.testing.assert_close(log_prob, want)
    head.impl_backend = "liger"
    assert head.forward(hidden, weight, ids) == "theirs"
