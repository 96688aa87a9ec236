# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.trl on stand-ins with TRL's names, against the formulas that TRL documents.

tests/integrations has the same beside TRL itself.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rlk
from rlk.integrations import _trl_loss, trl

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.usefixtures("generic")

B, T, STEPS = 4, 6, 3
LOSS_TYPES = (*_trl_loss.CLIPPED, *_trl_loss.OTHERS)


def signature(parameters: str, body: Any = None) -> Any:
    """A function with these parameters."""
    names = parameters.split(", ")
    scope: dict[str, Any] = {"body": body}
    exec(f"def function({', '.join(f'{n}=None' for n in names)}): return body(locals())", scope)
    return scope["function"]


class Accelerator:
    """Of one process."""

    num_processes = 1
    sync_gradients = True
    reduce = staticmethod(lambda x, reduction: x)
    gather = gather_for_metrics = staticmethod(lambda x: x)


@pytest.fixture
def package(monkeypatch):
    """trl and what of it is replaced or called."""
    called = {path.rpartition(".")[2]: parameters for path, parameters in _trl_loss.CALLED}

    class GRPOTrainer:
        _compute_loss = signature("self, model, inputs", lambda _: "theirs")
        _get_per_token_logps_and_entropies = signature(
            called["_get_per_token_logps_and_entropies"], lambda given: given["self"].outputs
        )
        get_high_entropy_mask = signature(
            called["get_high_entropy_mask"],
            lambda given: (given["entropies"] >= given["threshold"]) & (given["mask"] > 0),
        )
        get_off_policy_mask = staticmethod(
            signature(called["get_off_policy_mask"], lambda _: torch.tensor([[1], [0], [1], [1]]))
        )
        get_gamma_weights = staticmethod(
            signature(called["get_gamma_weights"], lambda _: torch.tensor([[0.5], [2], [1], [0]]))
        )

    class Function:
        forward = staticmethod(
            signature(
                "ctx, hidden, weight, bias, targets, temperature, chunk_size, "
                "final_logit_softcapping, logit_scale, outputs"
            )
        )
        apply = staticmethod(lambda *arguments: ("theirs", *arguments))

    modules = {
        "trl": {"__version__": "1.16.2"},
        "trl.kernels": {"ChunkedLogProbFunction": Function},
        "trl.trainer": {},
        "trl.trainer.utils": {
            "_ChunkedLogProbFunction": Function,
            "maybe_gather_lm_head_ctx": lambda *params: nullcontext(),
        },
        "trl.trainer.grpo_trainer": {"GRPOTrainer": GRPOTrainer},
    }
    made = {}
    for name, values in modules.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(values)
        monkeypatch.setitem(sys.modules, name, made[name])
    monkeypatch.setattr(
        rlk.integrations._patch.importlib.metadata, "version", lambda name: "1.16.2"
    )
    yield made
    trl.unpatch()


@pytest.fixture
def outputs():
    """Log-probs and entropies with gradients, and a mask with an empty sequence."""
    torch.manual_seed(0)
    log_probs = (-torch.rand(B, T) - 0.1).requires_grad_()
    entropies = torch.rand(B, T).requires_grad_()
    mask = (torch.arange(T) < torch.tensor([[T], [3], [0], [4]])).long()
    return log_probs, entropies, mask


def make(package: Any, outputs: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A trainer with these attributes, and inputs."""
    trl.patch()
    trainer = package["trl.trainer.grpo_trainer"].GRPOTrainer()
    trainer.outputs = (outputs[0], outputs[1], torch.tensor(0.7))
    trainer.args = SimpleNamespace(
        delta=None,
        use_bias_correction_kl=True,
        steps_per_generation=6,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        vespo_k_pos=2.0,
        vespo_lambda_pos=3.0,
        vespo_k_neg=3.0,
        vespo_lambda_neg=2.0,
        entropy_target=0.2,
        entropy_coef_delta=0.01,
        entropy_coef_max=1.0,
        entropy_coef_min=0.0,
    )
    defaults = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.1,
        "epsilon_high": 0.3,
        "beta": 0.0,
        "max_completion_length": 9,
        "current_gradient_accumulation_steps": STEPS,
        "accelerator": Accelerator(),
        "model": SimpleNamespace(training=True),
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "_last_world_entropy": float("inf"),
        "_entropy_window_stats": None,
        "aux_loss_enabled": False,
        "router_aux_loss_coef": 0.5,
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
    }
    for name, value in {**defaults, **options}.items():
        setattr(trainer, name, value)
    trainer._entropy_bonus_enabled = trainer.entropy_coef != 0 or trainer.use_adaptive_entropy
    torch.manual_seed(1)
    inputs = {
        "prompt_ids": torch.zeros(B, 2, dtype=torch.long),
        "prompt_mask": torch.ones(B, 2, dtype=torch.long),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": outputs[2],
        "advantages": torch.tensor([1.0, -0.5, 0.3, -1.2]),
        "old_per_token_logps": outputs[0].detach() + 0.4 * torch.randn(B, T),
        "ref_per_token_logps": outputs[0].detach() + 0.4 * torch.randn(B, T),
        "importance_sampling_ratio": torch.rand(B, T) * 2,
        "num_items_in_batch": torch.tensor(17),
    }
    return trainer, inputs


def ratio_of(trainer: Any, inputs: dict[str, Any], log_probs: Any, mask: Any) -> Any:
    away = log_probs - inputs["old_per_token_logps"]
    if trainer.importance_sampling_level == "sequence":
        away = ((away * mask).sum(1) / mask.sum(1).clamp(min=1))[:, None]
    return away.exp()


def terms(trainer: Any, inputs: dict[str, Any], log_probs: Any, r: Any) -> Any:
    """The policy's loss a token."""
    a = inputs["advantages"][:, None]
    low, high, kind = trainer.epsilon_low, trainer.epsilon_high, trainer.loss_type
    if kind == "cispo":
        return -r.clamp(max=high).detach() * a * log_probs
    if kind == "sapo":
        tau = torch.where(a > 0, 1.0, 1.05)
        return -a * 4 / tau * (tau * (r - 1)).sigmoid()
    if kind == "vespo":
        return -torch.tensor([[0.5], [2], [1], [0]]) * a * log_probs
    return torch.maximum(-a * r, -a * r.clamp(1 - low, 1 + high))


def reduced(trainer: Any, loss: Any, mask: Any) -> Any:
    loss = (loss * mask).expand(B, T)
    count = mask.sum()
    return {
        "grpo": (loss.sum(1) / mask.sum(1).clamp(min=1)).mean() / STEPS,
        "bnpo": loss.sum() / count / STEPS,
        "dr_grpo": loss.sum() / (B * 9) / STEPS,
        "luspo": loss.sum(1).mean() / STEPS,
        "sapo": (loss.sum(1) / mask.sum(1).clamp(min=1)).mean() / STEPS,
    }.get(trainer.loss_type, loss.sum() / (17 * STEPS / 6))


def same(got: Any, want: Any, *tensors: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(y, tensors, retain_graph=True) for y in (got, want)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_with_kl_and_weights(package, outputs, loss_type, level):
    log_probs, entropies, mask = outputs
    trainer, inputs = make(
        package,
        outputs,
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=0.2,
        use_vllm=True,
    )
    r = ratio_of(trainer, inputs, log_probs, mask)
    loss = terms(trainer, inputs, log_probs, r)
    if loss_type != "vespo":
        loss = loss * inputs["importance_sampling_ratio"]
    away = inputs["ref_per_token_logps"] - log_probs
    kl = (away.exp() - away - 1) * r
    same(trainer._compute_loss(None, inputs), reduced(trainer, loss + 0.2 * kl, mask), log_probs)

    log = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    assert log.pop("kl") == pytest.approx(((kl * mask).sum() / mask.sum()).item(), rel=1e-5)
    mean = ((entropies * mask).sum() / mask.sum()).item()
    assert log.pop("entropy") == pytest.approx(mean, rel=1e-5)
    a = inputs["advantages"][:, None]
    active = mask if level == "token" else torch.ones(B, 1)
    if loss_type in _trl_loss.CLIPPED:
        below, above = (r < 0.9) & (a < 0), (r > 1.3) & (a > 0)
        means = {"low": below, "high": above, "region": below | above}
        for name, which in means.items():
            want = ((which * active).sum() / active.sum()).item()
            assert log.pop(f"clip_ratio/{name}_mean") == pytest.approx(want)
        rows = active.sum(1) > 0
        for name, which, pick in (("low_min", below, torch.min), ("high_max", above, torch.max)):
            want = pick(((which * active).sum(1) / active.sum(1))[rows]).item()
            assert log.pop(f"clip_ratio/{name}") == pytest.approx(want)
    elif loss_type == "cispo":
        want = (((r > 0.3) & (a > 0)) * active).sum() / active.sum()
        assert log.pop("cispo_clip_ratio") == pytest.approx(want.item())
    elif loss_type == "vespo":
        assert log.pop("vespo/phi_seq_mean") == pytest.approx(0.875)
    assert not log


def test_a_clip_below_a_ratio_of_0_is_at_0(package, outputs):
    losses = []
    for low in (1.5, 1.0):
        trainer, inputs = make(package, outputs, epsilon_low=low)
        losses.append(trainer._compute_loss(None, inputs))
    assert torch.equal(*losses)


def test_masks_of_tokens_and_sequences_take_the_policy_alone(package, outputs):
    log_probs, entropies, mask = outputs
    trainer, inputs = make(
        package, outputs, beta=0.2, top_entropy_quantile=0.6, off_policy_mask_threshold=0.1
    )
    r = ratio_of(trainer, inputs, log_probs, mask)
    away = inputs["ref_per_token_logps"] - log_probs
    chosen = (entropies >= 0.4) * torch.tensor([[1], [0], [1], [1]])
    loss = terms(trainer, inputs, log_probs, r) * chosen + 0.2 * (away.exp() - away - 1) * r
    same(trainer._compute_loss(None, inputs), reduced(trainer, loss, mask), log_probs)


def test_tools_and_evaluation_and_no_old_log_probs(package, outputs):
    log_probs, _, mask = outputs
    trainer, inputs = make(package, outputs, model=SimpleNamespace(training=False))
    del inputs["old_per_token_logps"]
    inputs["tool_mask"] = (torch.arange(T) != 1).long().expand(B, T)
    mask = mask * inputs["tool_mask"]
    on_policy = (log_probs - log_probs.detach()).exp() * -inputs["advantages"][:, None]
    want = reduced(trainer, on_policy, mask) * STEPS  # no steps are accumulated
    same(trainer._compute_loss(None, inputs), want, log_probs)
    assert trainer._metrics["train"] == {}
    assert trainer._metrics["eval"]["clip_ratio/region_mean"] == [0.0]


def test_entropy_bonus_and_auxiliary_loss(package, outputs):
    log_probs, entropies, mask = outputs
    trainer, inputs = make(
        package, outputs, entropy_coef=0.1, top_entropy_quantile=0.6, aux_loss_enabled=True
    )
    chosen = mask * (entropies >= 0.4)
    r = ratio_of(trainer, inputs, log_probs, mask)
    policy = reduced(trainer, terms(trainer, inputs, log_probs, r) * chosen, mask)
    bonus = 0.1 * (entropies * chosen).sum() / chosen.sum() / STEPS
    got = trainer._compute_loss(None, inputs)
    same(got, policy - bonus + 0.5 * 0.7 / STEPS, log_probs, entropies)
    log = trainer._metrics["train"]
    assert log["policy_loss"] == [pytest.approx(policy.item() * STEPS, rel=1e-5)]
    assert (log["entropy_coef"], log["aux_loss"]) == ([0.1], [pytest.approx(0.7)])


@pytest.mark.parametrize(("target", "coef"), [(0.2, 0.0), (9.0, 0.12)])
def test_adaptive_entropy(package, outputs, target, coef):
    """At a step's end the coefficient moves by its delta, within the bounds."""
    _, entropies, mask = outputs
    trainer, inputs = make(package, outputs, entropy_coef=0.1, use_adaptive_entropy=True)
    trainer.args.entropy_target, trainer.args.entropy_coef_delta = target, 0.15
    trainer.args.entropy_coef_max = 0.12
    trainer.accelerator.sync_gradients = False
    trainer._compute_loss(None, inputs)
    assert trainer.entropy_coef == 0.1
    assert trainer._metrics["train"]["entropy_coef"] == []
    trainer.accelerator.sync_gradients = True
    trainer._compute_loss(None, inputs)
    assert trainer._metrics["train"]["entropy_coef"] == [trainer.entropy_coef]
    assert trainer.entropy_coef == pytest.approx(coef)
    mean = (entropies * mask).sum() / mask.sum()
    assert trainer._last_world_entropy == pytest.approx(mean.item(), rel=1e-5)
    assert trainer._entropy_window_stats is None
    # The bonus is off above the target: the policy's loss is all.
    loss = trainer._compute_loss(None, inputs).item()
    policy = trainer._metrics["train"]["policy_loss"][-1] / STEPS
    bonus = (policy - loss) * STEPS
    assert bonus == pytest.approx(coef * mean.item() if target == 9.0 else 0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon_low": -1.0}, "epsilon: expected a number from 0 to 1, got -1.0"),
        ({"epsilon_high": None}, "epsilon_high: expected a value, got None"),
        ({"beta": float("nan")}, "beta: expected a number"),
    ],
    ids=str,
)
def test_errors_name_options_of_trl(package, outputs, options, message):
    trainer, inputs = make(package, outputs, **options)
    with pytest.raises(rlk.InvalidArgument, match=f"ppo_loss: {message}"):
        trainer._compute_loss(None, inputs)


@pytest.mark.parametrize("name", ["loss_type", "importance_sampling_level"])
def test_words_that_are_not_known_are_refused(package, outputs, name):
    trainer, inputs = make(package, outputs, **{name: "new"})
    with pytest.raises(rlk.Unsupported, match=rf"trl: {name}: expected .*'new'"):
        trainer._compute_loss(None, inputs)


@pytest.mark.parametrize(
    "outputs",
    [
        ("log_probs",),
        ("log_probs", "entropy"),
        ("log_probs", "entropy", "is_top1"),
        ("log_probs", "entropy", "mean_logits"),
        None,
    ],
)
def test_head_gives_what_is_asked_for(package, outputs):
    trl.patch()
    head = package["trl.trainer.utils"]._ChunkedLogProbFunction
    assert package["trl.kernels"].ChunkedLogProbFunction is head
    torch.manual_seed(0)
    hidden = torch.randn(9, 8, requires_grad=True)
    weight, bias = torch.randn(11, 8, dtype=torch.float64), torch.randn(11)
    targets = torch.randint(11, (9,))
    z = 3 * torch.tanh(0.5 * (hidden.double() @ weight.T + bias) / 3) / 0.7
    targets[::2] = z.argmax(1)[::2]
    given = (hidden, weight, bias, targets, 0.7, 256, 3.0, 0.5)
    got = head.apply(*given) if outputs is None else head.apply(*given, outputs)
    want = torch.distributions.Categorical(logits=z)
    values = {
        "log_probs": want.log_prob(targets),
        "entropy": want.entropy(),
        "log_sum_sq_probs": want.probs.square().sum(1).log(),
        "mean_logits": z.mean(1),
        "is_top1": z.argmax(1) == targets,
    }
    for (name, value), ours in zip(values.items(), got, strict=True):
        if outputs is not None and name not in outputs:
            assert ours is None
        elif name == "is_top1":
            assert torch.equal(ours, value)
        elif name in ("log_probs", "entropy"):
            same(ours.sum(), value.float().sum(), hidden)
        else:
            torch.testing.assert_close(ours, value.float().detach(), rtol=1e-5, atol=1e-5)
            assert not ours.requires_grad


@pytest.mark.parametrize("outputs", [("log_probs",), ("log_probs", "entropy")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_trained", [True, False])
def test_a_head_of_zero3_is_gathered_for_the_backward_too(package, outputs, dtype, is_trained):
    trl.patch()
    utils = package["trl.trainer.utils"]
    head, targets = utils._ChunkedLogProbFunction, torch.randint(11, (9,))
    hidden = torch.randn(9, 8, dtype=dtype).requires_grad_()
    whole = {"weight": torch.randn(11, 8), "bias": torch.randn(11)}
    shards = {n: torch.nn.Parameter(x.clone(), is_trained) for n, x in whole.items()}
    for parameter in shards.values():
        parameter.ds_id = 3

    @contextmanager
    def gather(*parameters: Any) -> Iterator[None]:
        assert [id(x) for x in parameters] == [id(x) for x in shards.values()]
        for name, parameter in shards.items():
            parameter.data = whole[name].clone()
        yield
        for parameter in shards.values():
            parameter.data = torch.empty(0)

    def gradients() -> Any:
        with utils.maybe_gather_lm_head_ctx(*shards.values()):
            found = head.apply(hidden, *shards.values(), targets, 0.7, 256, None, 1.0, outputs)
        inputs = [x for x in (hidden, *shards.values()) if x.requires_grad]
        return torch.autograd.grad(sum(x.sum() for x in found if x is not None), inputs)

    want = gradients()
    utils.maybe_gather_lm_head_ctx = gather
    got = gradients()
    assert all(map(torch.equal, got, want))
    assert not any(x.numel() for x in shards.values())


def test_outputs_that_are_not_known_are_refused(package):
    trl.patch()
    head = package["trl.trainer.utils"]._ChunkedLogProbFunction
    with pytest.raises(rlk.InvalidArgument, match=r"trl: outputs: expected .*, got logits"):
        head.apply(None, None, None, None, 1.0, 1, outputs=("logits",))
