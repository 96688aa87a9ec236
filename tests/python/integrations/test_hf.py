# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.hf, on models made for the test: neither transformers nor PEFT is needed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
from reference import same_bits

import rlk
from rlk.integrations import hf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn
pytestmark = pytest.mark.usefixtures("generic")

N, V, D = 5, 23, 8


class Config:
    """As a PretrainedConfig, as far as it is read."""

    def __init__(self, **values: Any) -> None:
        self.values = {"hidden_size": D, "vocab_size": V - 3, **values}

    def to_json_string(self, use_diff: bool) -> str:
        assert not use_diff  # a default that the class has must be there
        return json.dumps(self.values)


class Model(nn.Module):
    def __init__(self, module: Any = None, **config: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lm_head = nn.Linear(D, V, bias=False) if module is None else module
        self.config = Config(**{"model_type": "llama", **config})

    def get_output_embeddings(self) -> Any:
        return self.lm_head


@pytest.fixture
def rows():
    torch.manual_seed(1)
    return torch.randn(N, D, requires_grad=True), torch.randint(V, (N,))


@pytest.mark.parametrize(
    ("config", "softcap", "scale"),
    [
        ({}, None, 1.0),
        ({"model_type": "gemma2", "final_logit_softcapping": 3.0}, 3.0, 1.0),
        ({"model_type": "gemma2"}, 30.0, 1.0),  # the class's, where the file leaves it out
        ({"model_type": "cohere", "logit_scale": 0.25}, None, 0.25),
        ({"model_type": "granite", "logits_scaling": 4.0}, None, 0.25),
        ({"model_type": "hyperclovax", "logits_scaling": 4.0}, None, 4.0),
        ({"model_type": "falcon_h1", "lm_head_multiplier": 0.5}, None, 0.5),
        ({"model_type": "t5", "scale_decoder_outputs": True}, None, D**-0.5),
        (
            {
                "model_type": "gemma3",
                "text_config": {"hidden_size": D, "vocab_size": V, "final_logit_softcapping": 7.0},
            },
            7.0,
            1.0,
        ),
    ],
)
def test_numbers_are_those_of_the_configuration(config, softcap, scale):
    found = hf.head(Model(**config))
    assert (found.softcap, found.logit_scale) == (softcap, pytest.approx(scale))
    given = hf.head(Model(**config), softcap=2.0, logit_scale=0.5)
    assert (given.softcap, given.logit_scale) == (2.0, 0.5)


@pytest.mark.parametrize("has_bias", [True, False])
def test_log_probs_are_those_of_the_head(rows, has_bias):
    hidden, target = rows
    model = Model(nn.Linear(D, V, bias=has_bias), model_type="gemma2", final_logit_softcapping=0.7)
    logits = 0.7 * torch.tanh(model.lm_head(hidden) / 0.7) / 0.6
    want = torch.distributions.Categorical(logits=logits)
    got = hf.linear_logp(model, hidden, target, temperature=0.6, return_entropy=True)
    torch.testing.assert_close(got.log_prob, want.log_prob(target), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.entropy, want.entropy(), rtol=1e-5, atol=1e-5)
    tensors = (hidden, *model.parameters())
    grads = [
        torch.autograd.grad(value.sum(), tensors)
        for value in (got.log_prob + got.entropy, want.log_prob(target) + want.entropy())
    ]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    mask = torch.arange(N) < 2
    assert (hf.linear_logp(model, hidden, target, mask=mask)[2:] == 0).all()


def test_dtypes_meet_as_in_a_linear_layer(rows):
    hidden, target = rows
    model = Model()
    half = hf.linear_logp(model, hidden.bfloat16(), target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        auto = hf.linear_logp(model, hidden, target)
    assert torch.equal(half, auto)
    whole = hf.linear_logp(model, hidden, target)
    assert (half - whole).abs().max() > 1e-4
    (grad,) = torch.autograd.grad(half.sum(), [model.lm_head.weight])
    assert grad.dtype == torch.float32


def test_wrappers_are_looked_through(rows):
    model = Model(model_type="granite", logits_scaling=4.0)
    found = hf.head(SimpleNamespace(module=SimpleNamespace(module=model)))
    assert found.weight is model.lm_head.weight
    assert found.logit_scale == 0.25
    bare = SimpleNamespace(lm_head=model.lm_head, config={"model_type": "cohere", "hidden_size": D})
    assert hf.head(bare).logit_scale == 0.0625
    nothing = SimpleNamespace(lm_head=model.lm_head)
    assert hf.head(nothing, softcap=None, logit_scale=1.0).weight is model.lm_head.weight
    with pytest.raises(rlk.InvalidArgument, match=r"hf\.head: model: .*softcap= and logit_scale="):
        hf.head(nothing)
    with pytest.raises(rlk.InvalidArgument, match="one with a head"):
        hf.head(nn.Linear(2, 2))
    output = SimpleNamespace(last_hidden_state=torch.zeros(N, D))
    with pytest.raises(rlk.InvalidArgument, match=r"hidden: expected .*, such as last_hidden"):
        hf.linear_logp(model, output, torch.zeros(N, dtype=torch.int64))
    with pytest.raises(rlk.Unsupported, match=r"the head's 8 columns .* with 99"):
        hf.head(Model(hidden_size=99))
    with pytest.raises(rlk.InvalidArgument, match="final_logit_softcapping: expected a number"):
        hf.head(Model(final_logit_softcapping="high"))


def test_unknown_scales_are_told(capfd):
    assert hf.head(Model(output_logits_temperature=0.37)).logit_scale == 1.0
    assert "output_logits_temperature=0.37 may cap or scale the logits" in capfd.readouterr().err


class Adapted(nn.Module):
    """A linear layer with adapters, by PEFT's names."""

    def __init__(self, num: int = 1, rank: int = 2, bias: bool = False, p: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(2)
        names = [f"a{i}" for i in range(num)]
        self.base_layer = nn.Linear(D, V, bias=False).requires_grad_(False)
        self.lora_A = nn.ModuleDict({n: nn.Linear(D, rank, bias=False) for n in names})
        self.lora_B = nn.ModuleDict({n: nn.Linear(rank, V, bias=bias) for n in names})
        self.lora_dropout = nn.ModuleDict({n: nn.Dropout(p) if p else nn.Identity() for n in names})
        self.scaling = {n: 1.5 + i for i, n in enumerate(names)}
        self.active_adapters = [*names, "of other layers"]
        self.merged_adapters: list[str] = []
        self.lora_variant: dict[str, Any] = {}
        self.disable_adapters = False

    def forward(self, x: Any) -> Any:
        result = self.base_layer(x)
        for name in self.lora_A:
            result = result + self.lora_B[name](self.lora_A[name](x)) * self.scaling[name]
        return result


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("options", [{}, {"num": 2}, {"bias": True}], ids=str)
def test_lora_on_the_head_has_gradients(rows, options, frozen):
    hidden, target = rows
    model = Model(Adapted(**options))
    model.lm_head.base_layer.requires_grad_(not frozen)
    assert (hf.head_and_adapter(model.lm_head)[2] is not None) == frozen
    want = model.lm_head(hidden).log_softmax(-1).gather(1, target[:, None])[:, 0]
    got = hf.linear_logp(model, hidden, target)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    trained = [hidden, *(p for p in model.parameters() if p.requires_grad)]
    grads = [torch.autograd.grad(value.square().sum(), trained) for value in (got, want)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    model.lm_head.disable_adapters = True
    assert hf.head(model).weight is model.lm_head.base_layer.weight


def test_modules_to_save_are_used_while_active():
    original, copy = nn.Linear(D, V), nn.Linear(D, V)
    module = SimpleNamespace(
        original_module=original,
        modules_to_save={"default": copy},
        active_adapters=["default"],
        disable_adapters=False,
    )
    assert hf.head(Model(module=None)).bias is None
    model = Model()
    model.get_output_embeddings = lambda: module
    assert hf.head(model).weight is copy.weight
    module.disable_adapters = True
    assert hf.head(model).weight is original.weight
    module.modules_to_save = None
    with pytest.raises(rlk.Unsupported, match="modules_to_save or a LoRA adapter"):
        hf.head(model)


class Params4bit(nn.Parameter):
    pass


class NormHead(nn.Linear):
    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, nn.functional.normalize(self.weight))


class QuantLinear(nn.Module):
    """Without a weight, as GPTQ's and AWQ's."""


class LoHa(nn.Module):
    base_layer = None


def with_weight(weight: Any) -> Any:
    module = nn.Linear(D, V, bias=False)
    module.weight = weight
    return module


def sharded_by_deepspeed() -> Any:
    module = with_weight(nn.Parameter(torch.empty(0)))
    module.weight.ds_id = 3
    return module


def change(**values: Any) -> Any:
    module = Adapted()
    for name, value in values.items():
        setattr(module, name, value)
    return module


def as_integers() -> Any:
    return nn.Parameter(torch.zeros(V, D, dtype=torch.uint8), requires_grad=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (QuantLinear, "QuantLinear, which may be quantized"),
        (lambda: with_weight(as_integers()), r"torch\.uint8"),
        (
            lambda: with_weight(Params4bit(torch.zeros(V * D // 2, 1))),
            "Params4bit in torch.float32",
        ),
        (
            lambda: with_weight(nn.Parameter(torch.zeros(V, D).to(torch.float8_e4m3fn), False)),
            "float8_e4m3fn",
        ),
        (sharded_by_deepspeed, r"GatheredParameters.*ZeRO-3"),
        (
            lambda: with_weight(nn.Parameter(torch.zeros(V * D // 2))),
            r"the forward of the module that FSDP wraps.*\(92,\)",
        ),
        (lambda: nn.Linear(D, V, device="meta"), "meta device"),
        (lambda: NormHead(D, V), "NormHead with a forward of its own"),
        (LoHa, "LoHa of PEFT"),
        (lambda: Adapted(p=0.1), r"lora_dropout=0.*0\.1 in training"),
        (
            lambda: change(lora_variant={"a0": Params4bit()}),
            "plain LoRA.*Params4bit in adapter 'a0'",
        ),
        (lambda: change(use_dora={"a0": True}), "DoRA in adapter 'a0'"),
        (lambda: change(fan_in_fan_out=True), "fan_in_fan_out=False"),
        (
            lambda: change(merged_adapters=["a0"], disable_adapters=True),
            "not merged where they are",
        ),
        (lambda: change(base_layer=QuantLinear()), "QuantLinear, which may be quantized"),
    ],
)
def test_heads_that_are_no_plain_matrix_are_refused_by_name(make, words):
    with pytest.raises(rlk.Unsupported, match=rf"hf\.head: lm_head: expected .*{words}"):
        hf.head(Model(make()))


def test_a_head_that_ranks_hold_parts_of():
    from torch.distributed.tensor import DTensor, Replicate, Shard

    model = Model(nn.Linear(D, V, bias=False))
    hidden, target = torch.randn(3, D), torch.zeros(3, dtype=torch.int64)
    want = hf.linear_logp(model, hidden, target)
    weight = model.lm_head.weight
    with ranks.pretended() as mesh:
        for placement in (Shard(0), Replicate()):
            placed = DTensor.from_local(weight.detach(), mesh, [placement], run_check=False)
            model.lm_head.weight = nn.Parameter(placed)
            if placement == Shard(0):
                words = (
                    r"hf\.head: lm_head: expected a tensor that each rank has whole, got .*Shard"
                )
                with pytest.raises(rlk.Unsupported, match=words):
                    hf.linear_logp(model, hidden, target)
                continue
            with torch.no_grad():
                assert same_bits(hf.linear_logp(model, hidden, target), want)


def test_dropout_is_none_outside_of_training():
    model = Model(Adapted(p=0.1)).eval()
    assert hf.head(model).weight.shape == (V, D)
