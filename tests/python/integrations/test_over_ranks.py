# SPDX-License-Identifier: Apache-2.0
"""Faces of a vocabulary that ranks share: verl's fused kernel and Megatron's output layer, with the
bits of one device."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import ranks
from ranks import torch
from reference import same_bits
from torch import distributed

import rlk
from rlk.integrations import megatron, verl

pytestmark = pytest.mark.torch

S, B, D, V = 12, 2, 24, 8 * 40
KINDS = (torch.float32, torch.bfloat16)


def drawn(kind: str, dtype: Any = torch.float32) -> Any:
    """hidden [s, b, h], weight, bias, labels [b, s], and one upstream gradient [b, s]."""
    g = torch.Generator().manual_seed(3)
    tensors = [torch.randn(size, generator=g) for size in ((S, B, D), (V, D), (V,), (B, S))]
    hidden, weight, bias, upstream = (x.to(kind) for x in tensors)
    labels = torch.randint(V, (B, S), generator=g).to(kind)
    return *(x.to(dtype) for x in (hidden, weight, bias)), labels, upstream


def layer_of(weight: Any, bias: Any = None, **changes: Any) -> Any:
    """What is read of a ColumnParallelLinear."""
    found = {
        "weight": weight,
        "bias": bias,
        "skip_bias_add": False,
        "tp_group": None,
        "sequence_parallel": False,
        "gradient_accumulation_fusion": False,
        "disable_grad_reduce": False,
        "explicit_expert_comm": False,
        "config": SimpleNamespace(defer_embedding_wgrad_compute=False),
    }
    return SimpleNamespace(**found | changes)


def of_one_device(kind: str, dtype: Any, **options: Any) -> dict[str, Any]:
    """Results and gradients of the whole, rows in Megatron's order."""
    hidden, weight, bias, labels, upstream = drawn(kind, dtype)
    leaves = {"hidden": hidden, "weight": weight, "bias": bias}
    leaves = {name: x.requires_grad_() for name, x in leaves.items()}
    if not options.pop("has_bias", True):
        del leaves["bias"]
    out = rlk.jit.linear_logp(target=labels.T, **leaves, return_entropy=True, **options)
    ((out.log_prob + 0.5 * out.entropy) * upstream.T).sum().backward()
    found = {"log_prob": out.log_prob.detach(), "entropy": out.entropy.detach()}
    return found | {f"of {name}": leaf.grad for name, leaf in leaves.items()}


def rows_of(part: int, size: int, length: int = V) -> slice:
    return slice(part * length // size, (part + 1) * length // size)


def of_verl(kind: str, dtype: Any, group: Any) -> dict[str, Any]:
    """As verl's engines call it: rows flat, the gradient of hidden summed by the caller."""
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    hidden, weight, _, labels, upstream = drawn(kind, dtype)
    flat = hidden.view(1, S * B, D).requires_grad_()
    weight = weight[rows_of(rank, size)].clone().requires_grad_()
    labels = labels.T.reshape(1, -1)
    log_prob, entropy = verl.linear_cross_entropy(flat, weight, labels, 0.7, "none", group)
    ((log_prob + 0.5 * entropy) * upstream.T.reshape(-1)).sum().backward()
    other = torch.ones(S * B, dtype=torch.bool, device=kind)
    other[rows_of(rank, size, S * B)] = False
    assert not flat.grad.view(S * B, D)[other].any()
    distributed.all_reduce(flat.grad, group=group)
    found = {"log_prob": log_prob.view(S, B), "entropy": entropy.view(S, B)}
    return found | {"of hidden": flat.grad.view(S, B, D), "of weight": weight.grad}


def of_megatron(kind: str, dtype: Any, group: Any, **changes: Any) -> dict[str, Any]:
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    hidden, weight, bias, labels, upstream = drawn(kind, dtype)
    if changes.get("sequence_parallel"):
        hidden = hidden[rows_of(rank, size, S)].clone()
    weight, bias = (x[rows_of(rank, size)].clone().requires_grad_() for x in (weight, bias))
    layer = layer_of(**{"weight": weight, "bias": bias, "tp_group": group} | changes)
    options = {}
    if changes.get("gradient_accumulation_fusion"):
        weight.main_grad, weight.grad_added_to_main_grad = (
            weight.detach().to(torch.float32, copy=True),
            False,
        )
    if layer.weight is None:  # tied embeddings
        options["weight"] = weight
    out = megatron.linear_logp(
        layer, hidden.requires_grad_(), labels, temperature=0.7, return_entropy=True, **options
    )
    assert out.log_prob.shape == (B, S)
    assert out.log_prob.is_contiguous()
    ((out.log_prob + 0.5 * out.entropy) * upstream).sum().backward()
    found = {"log_prob": out.log_prob.T, "entropy": out.entropy.T, "of hidden": hidden.grad}
    if changes.get("gradient_accumulation_fusion"):
        assert weight.grad_added_to_main_grad
        found["main_grad"] = weight.main_grad
    else:
        found["of weight"] = weight.grad
    if bias.grad is not None:
        found["of bias"] = bias.grad
    return found


FACES = {
    "verl": of_verl,
    "megatron": of_megatron,
    "megatron, sequence parallel": lambda *args: of_megatron(*args, sequence_parallel=True),
    "megatron, no bias": lambda *args: of_megatron(*args, skip_bias_add=True),
    "megatron, tied": lambda *args: of_megatron(*args, weight=None),
    "megatron, main_grad": lambda *args: of_megatron(*args, gradient_accumulation_fusion=True),
}


def unlike(name: str, kind: str, dtype: Any, group: Any) -> list[str]:
    """Names of results that have not the bits of one device's."""
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    options: dict[str, Any] = {"temperature": 0.7}
    if name in ("verl", "megatron, no bias"):
        options["has_bias"] = False
    if name == "megatron, main_grad":
        options["accumulate_into"] = drawn(kind, dtype)[1].float()
    want = of_one_device(kind, dtype, **options)
    if "accumulate_into" in options:
        want["main_grad"] = options["accumulate_into"]
        del want["of weight"]
    for of in {"of weight", "of bias", "main_grad"} & want.keys():
        want[of] = want[of][rows_of(rank, size)]
    if name == "megatron, sequence parallel":
        want["of hidden"] = want["of hidden"][rows_of(rank, size, S)]
    got = FACES[name](kind, dtype, group)
    assert got.keys() == want.keys(), name
    return [of for of in want if not same_bits(got[of].detach().cpu(), want[of].detach().cpu())]


def of_parallel_state(kind: str) -> list[str]:
    """A layer that has no group, as those of older versions, and one that is given another."""
    state: Any = ModuleType("megatron.core.parallel_state")
    state.get_tensor_model_parallel_group = lambda: distributed.group.WORLD
    sys.modules["megatron.core.parallel_state"] = state
    rank, size = distributed.get_rank(), distributed.get_world_size()
    hidden, weight, _, labels, _ = drawn(kind)
    want = rlk.jit.linear_logp(hidden, weight, labels.T)
    layer = layer_of(weight[rows_of(rank, size)])
    alone = distributed.new_subgroups(1)[0]
    found = {
        "parallel_state": megatron.linear_logp(layer, hidden, labels),
        "group": megatron.linear_logp(layer_of(weight), hidden, labels, group=alone),
    }
    return [name for name, out in found.items() if not same_bits(out.T.cpu(), want.cpu())]


def work(kind: str, rank: int) -> dict[str, Any]:
    rlk.jit.configure(num_threads=1, specialize=False)
    world = distributed.group.WORLD
    found: dict[str, Any] = {
        f"{name}, {dtype}": unlike(name, kind, dtype, world) for name in FACES for dtype in KINDS
    }
    found["groups"] = of_parallel_state(kind)
    return found


@pytest.fixture(scope="module", params=ranks.worlds(4, 2, 4))
def found(request, tmp_path_factory):
    kind, size = request.param
    return ranks.run(kind, work, tmp_path_factory.mktemp("ranks"), size)


@pytest.mark.parametrize("name", [*(f"{n}, {dtype}" for n in FACES for dtype in KINDS), "groups"])
def test_the_bits_of_one_device(found, name):
    for rank, of_rank in enumerate(found):
        assert of_rank[name] == [], f"rank {rank}"


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("reduction", ["none", "SUM", "mean"])
def test_verls_kernel_of_one_device(reduction):
    hidden, weight, _, labels, _ = drawn("cpu")
    flat = hidden.view(1, S * B, D).requires_grad_()
    log_prob, entropy = verl.linear_cross_entropy(flat, weight, labels, 0.7, reduction)
    z = flat.double()[0] @ weight.double().T / 0.7
    want = torch.distributions.Categorical(logits=z)
    exact = want.log_prob(labels.view(-1))
    if reduction != "none":
        exact = exact.sum() if reduction == "SUM" else exact.mean()
    torch.testing.assert_close(log_prob.double(), exact, rtol=1e-6, atol=2e-5)
    torch.testing.assert_close(entropy.double(), want.entropy(), rtol=1e-6, atol=2e-5)
    (grad,) = torch.autograd.grad(log_prob.sum() - entropy.sum(), flat, retain_graph=True)
    (right,) = torch.autograd.grad(exact.sum() - want.entropy().sum(), flat)
    torch.testing.assert_close(grad, right, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("generic")
def test_verls_kernel_with_a_temperature_a_row():
    hidden, weight, _, labels, _ = drawn("cpu")
    heat = torch.rand(B, S) + 0.5
    log_prob, _ = verl.linear_cross_entropy(hidden, weight, labels, heat)
    z = hidden.view(-1, D).double() @ weight.double().T / heat.view(-1, 1).double()
    want = z.log_softmax(-1).gather(-1, labels.view(-1, 1))[:, 0]
    torch.testing.assert_close(log_prob.double(), want, rtol=1e-6, atol=2e-5)


def test_verls_kernel_names_what_is_wrong():
    hidden, weight, _, labels, _ = drawn("cpu")
    words = "^linear_cross_entropy: reduction: expected none, sum or mean, got 'all'"
    with pytest.raises(rlk.InvalidArgument, match=words):
        verl.linear_cross_entropy(hidden, weight, labels, 1.0, "all")
    with pytest.raises(rlk.InvalidArgument, match=r"^linear_cross_entropy: labels: expected .*"):
        verl.linear_cross_entropy(hidden, weight, labels[:, 1:])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"disable_grad_reduce": True}, "output_layer.disable_grad_reduce: expected False"),
        ({"explicit_expert_comm": True}, "output_layer.explicit_expert_comm: expected False"),
        (
            {"config": SimpleNamespace(defer_embedding_wgrad_compute=True)},
            "output_layer.config.defer_embedding_wgrad_compute: expected False",
        ),
        ({"weight": None}, "weight: expected one where"),
    ],
)
def test_layers_that_are_refused(changes, words):
    hidden, weight, _, labels, _ = drawn("cpu")
    layer = layer_of(**{"weight": weight} | changes)
    with pytest.raises(rlk.InvalidArgument, match=f"^megatron.linear_logp: {words}"):
        megatron.linear_logp(layer, hidden, labels)


def test_megatrons_layouts_are_asked_for():
    hidden, weight, _, labels, _ = drawn("cpu")
    for tensors, name in (((hidden[0], labels), "hidden"), ((hidden, labels[0]), "labels")):
        with pytest.raises(rlk.InvalidArgument, match=f"^megatron.linear_logp: {name}: expected"):
            megatron.linear_logp(layer_of(weight), *tensors)


def test_which_main_grad_is_added_to():
    """Megatron's hook adds what autograd has to one that is not float32; a frozen weight has
    no gradient."""
    weight = torch.zeros(3, 2, requires_grad=True)
    fused = layer_of(weight, gradient_accumulation_fusion=True)
    assert megatron._accumulator(layer_of(weight), weight) is None
    weight.main_grad = torch.zeros(3, 2)
    assert megatron._accumulator(fused, weight) == "main_grad"
    weight.main_grad = torch.zeros(3, 2, dtype=torch.bfloat16)
    assert megatron._accumulator(fused, weight) is None
    frozen = torch.zeros(3, 2)
    assert megatron._accumulator(fused, frozen) is None
