# SPDX-License-Identifier: Apache-2.0
"""The SkyRL drop-in, with a stand-in for its config and registry."""

from types import SimpleNamespace

import pytest
from losses import batch, same

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from rlk.integrations import skyrl  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")


class PolicyLossRegistry:
    """As SkyRL's: names to functions, kept in the class."""

    functions: dict = {}

    @classmethod
    def register(cls, name, function):
        if name in cls.functions:
            raise ValueError(f"{name} is registered")
        cls.functions[name] = function


@pytest.fixture
def tensors():
    b = batch(8, 64)
    found = {
        "log_probs": b.log_probs,
        "old_log_probs": b.old,
        "advantages": b.advantages,
        "loss_mask": b.mask.astype("float32"),
        "rollout_logprobs": b.others["rollout_logprobs"],
    }
    return {name: torch.tensor(x) for name, x in found.items()}


def eager(t, c=None, cap=None):
    """SkyRL's loss, as its users know it."""
    ratio = (t["log_probs"] - t["old_log_probs"]).clamp(-20, 20).exp()
    a, mask = t["advantages"], t["loss_mask"]
    first, second = ratio * a, ratio.clamp(0.8, 1.2) * a
    loss = -torch.min(first, second)
    clip = ((-second > -first) * mask).sum() / mask.sum()
    if c is not None:
        loss = torch.where(a < 0, torch.min(-a * c, loss), loss)
    if cap is not None:
        loss = loss * (t["old_log_probs"] - t["rollout_logprobs"]).clamp(-20, 20).exp().clamp(
            max=cap
        )
    return (loss * mask).sum() / mask.sum(), clip


def test_the_example_call(tensors):
    """Every argument by name, switches off included."""
    loss, clip_ratio = skyrl.fused_ppo_loss(
        log_probs=tensors["log_probs"].requires_grad_(),
        old_log_probs=tensors["old_log_probs"],
        advantages=tensors["advantages"],
        loss_mask=tensors["loss_mask"],
        eps_clip_low=0.2,
        eps_clip_high=0.2,
        use_dual_clip=False,
        clip_ratio_c=3.0,
        use_tis=False,
        rollout_logprobs=None,
        tis_imp_ratio_cap=10.0,
    )
    want, clip = eager(tensors)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(clip_ratio, clip)
    assert not clip_ratio.requires_grad
    loss.backward()
    (grad,) = torch.autograd.grad(eager(tensors)[0], tensors["log_probs"])
    torch.testing.assert_close(tensors["log_probs"].grad, grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("dual", "tis"), [(True, False), (False, True), (True, True)])
def test_its_switches(tensors, dual, tis):
    loss, _ = skyrl.fused_ppo_loss(
        **tensors, use_dual_clip=dual, clip_ratio_c=2.0, use_tis=tis, tis_imp_ratio_cap=1.5
    )
    want, _ = eager(tensors, 2.0 if dual else None, 1.5 if tis else None)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["regular", "dual_clip", "ppo_fused", "of_my_own"])
@pytest.mark.parametrize("as_mapping", [True, False])
def test_the_registered_loss(tensors, kind, as_mapping):
    PolicyLossRegistry.functions = {}
    skyrl.register(PolicyLossRegistry)
    skyrl.register(PolicyLossRegistry, "of_my_own")
    function = PolicyLossRegistry.functions["of_my_own" if kind == "of_my_own" else "ppo_fused"]
    assert function is skyrl.ppo_policy_loss_fused
    config = {
        "policy_loss_type": kind,
        "loss_reduction": "token_mean",
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.2,
        "clip_ratio_c": 2.0,
        "use_tis": True,
        "tis_imp_ratio_cap": 1.5,
    }
    rollout = tensors.pop("rollout_logprobs")
    mask = tensors.pop("loss_mask")
    given = config if as_mapping else SimpleNamespace(**config)
    loss, clip_ratio = function(
        tensors["log_probs"],
        tensors["old_log_probs"],
        tensors["advantages"],
        given,
        loss_mask=mask,
        rollout_logprobs=rollout,
    )
    tensors |= {"loss_mask": mask, "rollout_logprobs": rollout}
    want, clip = eager(tensors, 2.0 if kind == "dual_clip" else None, 1.5)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(clip_ratio, clip)


@pytest.mark.parametrize("wrong", [None, {}])
def test_what_is_no_registry(wrong):
    with pytest.raises(rlk.InvalidArgument, match=r"^skyrl: registry: expected an object with reg"):
        skyrl.register(wrong)


def test_its_stock_config(tensors):
    """Whose cap is a placeholder as long as use_tis is off."""
    stock = {"use_tis": False, "tis_imp_ratio_cap": -1.0, "max_seq_len": None}
    del tensors["rollout_logprobs"]
    loss, _ = skyrl.ppo_policy_loss_fused(**tensors, config=stock)
    torch.testing.assert_close(loss, eager(tensors)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "seq_mean_token_sum_norm"])
def test_reductions_of_the_config(tensors, reduction):
    config = SimpleNamespace(loss_reduction=reduction, max_seq_len=64)
    rollout = tensors.pop("rollout_logprobs")
    loss, _ = skyrl.ppo_policy_loss_fused(**tensors, config=config, rollout_logprobs=rollout)
    want = rlk.jit.ppo_loss(**tensors, loss_reduction=reduction, max_seq_len=64).loss
    assert same(loss, want)


def test_a_config_that_asks_for_what_is_not_there(tensors):
    del tensors["rollout_logprobs"]
    with pytest.raises(rlk.InvalidArgument, match="rollout_logprobs"):
        skyrl.ppo_policy_loss_fused(**tensors, config=SimpleNamespace(use_tis=True))
    with pytest.raises(rlk.InvalidArgument, match="policy_loss"):
        skyrl.ppo_policy_loss_fused(**tensors, config=SimpleNamespace(policy_loss_type="kl_cov"))


OFF_POLICY = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_high": 1.01,
    "geo_mask_low": 0.99,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
}


def nested(kind="regular", **off_policy):
    """As SkyRL's: dataclasses within one."""
    return SimpleNamespace(
        policy_loss_type=kind,
        loss_reduction="token_mean",
        eps_clip_low=0.2,
        eps_clip_high=0.2,
        clip_ratio_c=3.0,
        cispo=SimpleNamespace(cispo_eps_clip_low=0.4, cispo_eps_clip_high=0.6, cispo_anchor="old"),
        sapo=SimpleNamespace(tau_pos=2.0, tau_neg=0.5),
        off_policy_correction=SimpleNamespace(**{**OFF_POLICY, **off_policy}),
    )


def run(tensors, config, function=skyrl.ppo_policy_loss_fused):
    return function(
        *(tensors[name] for name in ("log_probs", "old_log_probs", "advantages")),
        config,
        loss_mask=tensors["loss_mask"],
        rollout_logprobs=tensors.get("rollout_logprobs"),
    )[0]


def weights(t, level, cap):
    """compute_tis_ratio, in its words."""
    log_ratio = t["old_log_probs"] - t["rollout_logprobs"]
    if level == "sequence":
        log_ratio = (log_ratio * t["loss_mask"]).sum(-1, keepdim=True)
    return log_ratio.clamp(-20, 20).exp().clamp(max=cap)


@pytest.mark.parametrize("as_mapping", [True, False])
def test_its_cispo_and_sapo(tensors, as_mapping):
    def given(kind):
        config = nested(kind)
        if not as_mapping:
            return config
        return {
            k: vars(v) if isinstance(v, SimpleNamespace) else v for k, v in vars(config).items()
        }

    t = tensors
    ratio = (t["log_probs"] - t["old_log_probs"]).clamp(-20, 20).exp()
    each = -t["advantages"] * ratio.clamp(0.6, 1.6) * t["log_probs"]
    want = (each * t["loss_mask"]).sum() / t["loss_mask"].sum()
    torch.testing.assert_close(run(t, given("cispo")), want, rtol=1e-5, atol=1e-6)
    tau = torch.where(t["advantages"] > 0, 2.0, 0.5)
    each = -t["advantages"] * torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    want = (each * t["loss_mask"]).sum() / t["loss_mask"].sum()
    torch.testing.assert_close(run(t, given("sapo")), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("level", "cap"), [("token", 1.5), ("sequence", 3.0)])
def test_its_importance_weights(tensors, level, cap):
    config = nested(**{"tis_ratio_type": level, f"{level}_tis_ratio_clip_high": cap})
    each = eager_each(tensors) * weights(tensors, level, cap)
    want = (each * tensors["loss_mask"]).sum() / tensors["loss_mask"].sum()
    torch.testing.assert_close(run(tensors, config), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("level", "cap"), [("token", 2.0), ("sequence", 5.0)])
def test_caps_by_level_are_the_dialects(tensors, level, cap):
    """2 a token and 5 a sequence, where config or call names none."""
    want = rlk.jit.ppo_loss(
        **tensors, dialect="skyrl", use_tis=True, tis_level=level, tis_imp_ratio_cap=cap
    ).loss
    got = rlk.jit.ppo_loss(**tensors, dialect="skyrl", use_tis=True, tis_level=level).loss
    assert same(got, want)
    correction = {"tis_ratio_type": level}
    assert same(run(tensors, {"off_policy_correction": correction}), want)


def eager_each(t):
    ratio = (t["log_probs"] - t["old_log_probs"]).clamp(-20, 20).exp()
    return -torch.min(ratio * t["advantages"], ratio.clamp(0.8, 1.2) * t["advantages"])


def test_cispo_of_the_rollout(tensors):
    config = nested("cispo")
    config.cispo.cispo_anchor = "rollout"
    want = run({**tensors, "old_log_probs": tensors["rollout_logprobs"]}, nested("cispo"))
    assert same(run(tensors, config), want)
    assert not same(want, run(tensors, nested("cispo")))
    config.off_policy_correction.tis_ratio_type = "token"
    with pytest.raises(rlk.InvalidArgument, match=r"config\.cispo\.cispo_anchor: expected 'old'"):
        run(tensors, config)
    config.off_policy_correction.tis_ratio_type = None
    del tensors["rollout_logprobs"]
    with pytest.raises(rlk.InvalidArgument, match="rollout_logprobs: expected a tensor with"):
        run(tensors, config)


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({"tis_ratio_type": "tokens"}, "tis_ratio_type", "token, sequence or None"),
        ({"tis_ratio_type": 1}, "tis_ratio_type", "token, sequence or None"),
        ({"sequence_mask_metric": "mean"}, "sequence_mask_metric", "geometric, product or None"),
        ({"sequence_mask_metric": "product"}, "product_mask_low", "a number with product"),
        ({"outlier_token_is_threshold_low": "x"}, "outlier_token_is_threshold_low", "a number"),
        ({"token_mask_is_threshold_low": 0.5}, "token_mask_is_threshold_high", "needs both"),
        ({"token_mask_is_threshold_high": 2.0}, "token_mask_is_threshold_low", "needs both"),
        ({"token_mask_eps_low": 0.5}, "token_mask_eps_low", "token_mask_is_threshold_low and"),
    ],
)
def test_what_it_cannot_honour_is_named(tensors, options, name, words):
    for function in (skyrl.ppo_policy_loss_fused, skyrl.ppo_policy_loss_metrics):
        with pytest.raises(rlk.InvalidArgument, match=rf"_correction\.{name}: expected .*{words}"):
            run(tensors, nested(**options), function)
    with pytest.raises(rlk.InvalidArgument, match=r"config\.policy_loss_type: expected regular"):
        run(tensors, nested("dppo"))


@pytest.mark.parametrize("kind", ["regular", "dual_clip", "cispo", "sapo", "gspo"])
def test_a_skyrl_whose_losses_return_metrics(tensors, kind):
    """It has scaled the advantages; the loss is the sum."""
    PolicyLossRegistry.functions = {}
    skyrl.register(PolicyLossRegistry, return_metrics=True)
    function = PolicyLossRegistry.functions["ppo_fused"]
    t = {**tensors, "log_probs": tensors["log_probs"].requires_grad_()}
    config = nested(kind, tis_ratio_type="token")
    loss, metrics = function(
        t["log_probs"],
        t["old_log_probs"],
        t["advantages"],
        config,
        t["loss_mask"],
        t["rollout_logprobs"],
    )
    ratio = (t["log_probs"] - t["old_log_probs"]).clamp(-20, 20).exp()
    a, mask = t["advantages"], t["loss_mask"]
    if kind == "gspo":
        mean = ((t["log_probs"] - t["old_log_probs"]) * mask).sum(-1, True)
        ratio = (mean / mask.sum(-1, True).clamp(min=1)).clamp(max=10).exp()
    each = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
    clipped = (-ratio.clamp(0.8, 1.2) * a > -ratio * a).float()
    if kind == "dual_clip":
        each = torch.where(a < 0, torch.min(-a * 3.0, each), each)
    if kind == "cispo":
        each = -a * ratio.clamp(0.6, 1.6).detach() * t["log_probs"]
        clipped = ((ratio < 0.6) | (ratio > 1.6)).float()
    if kind == "sapo":
        tau = torch.where(a > 0, 2.0, 0.5)
        each, clipped = -a * torch.sigmoid(tau * (ratio - 1)) * 4 / tau, torch.zeros_like(a)
    want = (each * weights(t, "token", 2.0) * mask).sum()
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-4)
    assert type(metrics["clip_ratio"]) is float
    clip_ratio = float((clipped * mask).sum() / mask.sum())
    assert metrics["clip_ratio"] == pytest.approx(clip_ratio)
    loss.backward()
    assert t["log_probs"].grad.count_nonzero() > 0


@pytest.mark.parametrize("function", [skyrl.ppo_policy_loss_fused, skyrl.ppo_policy_loss_metrics])
def test_what_is_wrong_in_a_config_is_named(tensors, function):
    for name in ("cispo_eps_clip_low", "cispo_eps_clip_high"):
        for wrong in ("x", [], {}, True, 10**400):
            config = {"policy_loss_type": "cispo", "cispo": {name: wrong}}
            message = rf"^ppo_loss: config\.cispo\.{name}: expected a number, got "
            with pytest.raises(rlk.InvalidArgument, match=message):
                run(tensors, config, function)
    with pytest.raises(rlk.InvalidArgument, match="use_dual_clip: expected True or False"):
        run(tensors, {"use_dual_clip": "no"}, function)
    for wrong in (None, tensors["loss_mask"]):  # a mask in the config's place
        with pytest.raises(rlk.InvalidArgument, match=r"^ppo_loss: config: expected the"):
            run(tensors, wrong, function)


def test_sums_of_gspo_without_torch_and_of_what_is_no_tensor(tensors):
    function, config = skyrl.ppo_policy_loss_metrics, nested("gspo")
    arrays = {name: x.numpy() for name, x in tensors.items()}
    assert float(run(arrays, config, function)) == float(run(tensors, config, function))
    for wrong in (None, 3):
        with pytest.raises(rlk.InvalidArgument, match=r"^ppo_loss: log_probs: expected"):
            run({**tensors, "log_probs": wrong}, config, function)


class Missing(SimpleNamespace):
    """As OmegaConf's: a missing value is an error where it is read."""

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if value == "???":
            raise type("MissingMandatoryValue", (Exception,), {})(name)
        return value


def with_missing(config, path):
    """The config of `path`, whose last part is still to be given."""
    part = config
    *parents, name = path.split(".")
    for parent in parents:
        part = getattr(part, parent)
    setattr(part, name, "???")
    return config


def converted(config, kind):
    """As namespaces, mappings or something that raises."""
    if not isinstance(config, SimpleNamespace):
        return config
    return kind(**{name: converted(value, kind) for name, value in vars(config).items()})


@pytest.mark.parametrize("kind", [SimpleNamespace, dict, Missing])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("policy_loss_type", {}),
        ("loss_reduction", {}),
        ("eps_clip_low", {}),
        ("use_dual_clip", {}),
        ("clip_ratio_c", {"kind": "dual_clip"}),
        ("off_policy_correction", {}),
        ("off_policy_correction.tis_ratio_type", {}),
        ("off_policy_correction.token_tis_ratio_clip_high", {"tis_ratio_type": "token"}),
        ("off_policy_correction.token_mask_eps_low", {"tis_ratio_type": "token"}),
        ("cispo", {"kind": "cispo"}),
        ("cispo.cispo_anchor", {"kind": "cispo"}),
        ("cispo.cispo_eps_clip_high", {"kind": "cispo"}),
        ("sapo.tau_pos", {"kind": "sapo"}),
    ],
)
def test_a_value_that_is_still_missing_is_named(tensors, path, more, kind):
    config = converted(with_missing(nested(**more), path), kind)
    with pytest.raises(rlk.InvalidArgument, match=rf"^ppo_loss: config\.{path}: .*missing one"):
        run(tensors, config)


@pytest.mark.parametrize("kind", [SimpleNamespace, dict, Missing])
def test_a_missing_value_that_nothing_reads_is_none(tensors, kind):
    config = nested()
    for path in ("clip_ratio_c", "max_seq_len", "tis_imp_ratio_cap", "sapo.tau_pos", "cispo"):
        with_missing(config, path)
    assert same(run(tensors, converted(config, kind)), run(tensors, nested()))
