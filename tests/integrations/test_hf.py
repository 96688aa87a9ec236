# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.hf beside transformers and PEFT: models' own logits, adapters, dtypes."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import tiny
import torch

import rlk
from rlk.integrations import hf

N = 11


def tokens() -> torch.Tensor:
    return torch.randint(3, tiny.VOCAB, (2, N), generator=torch.Generator().manual_seed(1))


def theirs(model: Any, ids: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs, entropies) of the logits that the model's own forward gives."""
    logits = model(input_ids=ids).logits[:, :-1].float() / temperature
    want = torch.distributions.Categorical(logits=logits)
    return want.log_prob(ids[:, 1:]), want.entropy()


def ours(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    base = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    hidden = base.model(input_ids=ids).last_hidden_state[:, :-1]
    return hf.linear_logp(model, hidden, ids[:, 1:], return_entropy=True, **options)


def check(model: Any, temperature: float = 0.7) -> None:
    """Values and the gradients of all parameters that are trained."""
    ids = tokens()
    want = theirs(model, ids, temperature)
    got = ours(model, ids, temperature=temperature)
    trained = [p for p in model.parameters() if p.requires_grad]
    grads = []
    for log_probs, entropies in (want, (got.log_prob, got.entropy)):
        loss = (log_probs * torch.linspace(-1, 1, N - 1)).sum() + entropies.square().sum()
        grads.append(torch.autograd.grad(loss, trained, allow_unused=True))
    torch.testing.assert_close(got.log_prob, want[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.entropy, want[1], rtol=1e-5, atol=1e-5)
    assert sum(grad is not None for grad in grads[0]) > 0
    for their_grad, our_grad in zip(*grads, strict=True):
        assert (their_grad is None) == (our_grad is None)
        if their_grad is not None:
            torch.testing.assert_close(our_grad, their_grad, rtol=1e-3, atol=1e-4)


@pytest.mark.tried("hf.linear_logp of each model", "transformers")
@pytest.mark.parametrize("name", tiny.MODELS)
def test_log_probs_are_those_of_the_model(name):
    check(tiny.model(name))


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "cohere", "granite"])
def test_the_numbers_matter(name):
    """Without what its class does to the logits a model's log-probs are others."""
    model, ids = tiny.model(name), tokens()
    want = theirs(model, ids, 1.0)[0]
    assert (ours(model, ids, softcap=None, logit_scale=1.0).log_prob - want).abs().max() > 0.1


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "granite"])
def test_bfloat16_is_no_farther_from_float64_than_the_models_logits(name):
    model, ids = tiny.model(name, torch.bfloat16), tokens()
    with torch.no_grad():
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        weight, _, softcap, scale = hf.head(model)
        z = scale * (hidden.double() @ weight.double().T)
        z = softcap * torch.tanh(z / softcap) if softcap else z
        want = torch.distributions.Categorical(logits=z).log_prob(ids[:, 1:])
        far = (theirs(model, ids, 1.0)[0] - want).abs().max()
        near = (ours(model, ids).log_prob - want).abs().max()
    assert near <= far
    assert near < 1e-5


def adapted(name: str, **options: Any) -> Any:
    options = {"r": 4, "lora_alpha": 12, "init_lora_weights": False, **options}
    config = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    torch.manual_seed(3)
    return peft.get_peft_model(tiny.model(name), config)


@pytest.mark.tried("hf.linear_logp with LoRA on the head", "peft", "transformers")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {"target_modules": ["lm_head", "q_proj"]}),
        ("gemma2", {"target_modules": ["lm_head"]}),
        ("llama", {"target_modules": ["lm_head"], "use_rslora": True}),
        ("llama", {"target_modules": ["q_proj"]}),
        ("qwen3", {"target_modules": ["q_proj"]}),
        ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    ],
    ids=str,
)
def test_adapters_count(name, options):
    model = adapted(name, **options)
    check(model)
    with model.disable_adapter(), torch.no_grad():
        got = ours(model, tokens()).log_prob
        torch.testing.assert_close(got, theirs(model, tokens(), 1.0)[0], rtol=1e-5, atol=1e-5)


def test_two_adapters_and_merged_ones_count():
    model = adapted("llama", target_modules=["lm_head"])
    torch.manual_seed(4)
    second = peft.LoraConfig(r=2, init_lora_weights=False, target_modules=["lm_head"])
    model.add_adapter("second", second)
    model.base_model.set_adapter(["default", "second"])
    check(model)
    model.merge_adapter()
    with torch.no_grad():
        got = ours(model, tokens()).log_prob
        torch.testing.assert_close(got, theirs(model, tokens(), 1.0)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (peft.LoraConfig(use_dora=True, target_modules=["lm_head"]), "DoraLinearVariant"),
        (
            peft.LoraConfig(lora_dropout=0.1, target_modules=["lm_head"]),
            r"lora_dropout=0 .*got 0\.1",
        ),
        (peft.AdaLoraConfig(target_modules=["lm_head"], total_step=9), "SVDLinear"),
        (peft.IA3Config(target_modules=["lm_head"], feedforward_modules=[]), "ia3"),
        (peft.VeraConfig(target_modules=["lm_head"]), "vera"),
        (peft.OFTConfig(target_modules=["lm_head"], oft_block_size=8), "oft"),
        (
            peft.LoraConfig(target_modules=["q_proj"], trainable_token_indices={"lm_head": [3]}),
            "Trainable",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, peft.PeftConfig) else value,
)
@pytest.mark.tried("adapters that are refused by name", "peft")
def test_other_adapters_are_refused_by_name(config, words):
    model = peft.get_peft_model(tiny.model("llama"), config)
    with pytest.raises(rlk.Unsupported, match=f"(?i)hf.head: lm_head: .*{words}"):
        hf.head(model)


@pytest.fixture
def mesh():
    """One process as a group of one."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29631", world_size=1, rank=0)
    yield
    dist.destroy_process_group()


@pytest.mark.tried("a head that FSDP 2 has sharded", "transformers")
def test_a_head_that_fsdp_has_sharded_over_one_rank(mesh):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, ids = tiny.model("gemma2"), tokens()
    want = theirs(model, ids, 1.0)[0].detach()
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1].detach()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    for _ in range(2):
        got = hf.linear_logp(model, hidden, ids[:, 1:])
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        model.unshard()
