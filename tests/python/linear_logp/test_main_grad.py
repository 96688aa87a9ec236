# SPDX-License-Identifier: Apache-2.0
"""main_grad as Megatron-LM keeps it."""

import numpy as np
import pytest
from devices import torch_name
from problems import problem
from reference import STORE, Reference, as_float64
from tensors import leaves, tensor, torch, upload
from torch.nn.functional import embedding

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

SIZES = (12, 24, 331)


class MegatronParameter:
    """What Megatron-LM's DDP with overlap_grad_reduce does with a parameter."""

    def __init__(self, parameter, shared=False):
        self.parameter, self.num_ready = parameter, 0
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32).detach()
        parameter.grad_added_to_main_grad = False
        if shared:
            parameter.zero_out_wgrad = True
        self.node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self.node.register_hook(self.hook)

    def hook(self, *_):
        parameter = self.parameter
        assert parameter.grad is not None, "not safe with overlap_grad_reduce"
        added = parameter.grad_added_to_main_grad
        if not added or getattr(parameter, "zero_out_wgrad", False):
            parameter.main_grad.add_(parameter.grad)
        parameter.grad = None
        self.num_ready += 1


def batches(weight, num=16):
    for seed in range(num):
        drawn = upload(problem(*SIZES, bias="float32", seed=seed), "float32")
        yield {**leaves(drawn), "weight": weight}, drawn.upstream


def draw_weight(dtype="float32"):
    return tensor(problem(*SIZES).weight, dtype).requires_grad_()


class Sum:
    """The exact sum of weight's gradients, and how far a float32 sum may be from it."""

    def __init__(self):
        self.value = self.bound = 0.0

    def add(self, given, upstream, half="bfloat16"):
        there = {name: given[name].detach() for name in given}
        cast = {name: there[name].to(getattr(torch, half)) for name in ("hidden", "weight")}
        found = Reference(**{**there, **cast}).gradients(upstream)["weight"]
        self.value = self.value + found.value
        self.bound = self.bound + found.bound - STORE[half] * np.abs(found.value)
        self.add_rounding()

    def add_rounding(self):
        self.bound = self.bound + 2.0**-24 * np.abs(self.value) + 2.0**-149

    def expect(self, found):
        assert (np.abs(as_float64(found) - self.value) <= self.bound).all()


@pytest.mark.parametrize("own", ["float32", "bfloat16"])
def test_sixteen_micro_batches_in_autocast(own):
    weight, exact = draw_weight(own), Sum()
    ddp = MegatronParameter(weight)
    for given, upstream in batches(weight):
        with torch.autocast(torch_name(), dtype=torch.bfloat16):
            out = rlk.jit.linear_logp(**given, accumulate_into="main_grad")
        out.backward(upstream)
        exact.add(given, upstream)
    exact.expect(weight.main_grad)
    assert weight.grad is None
    assert weight.grad_added_to_main_grad is True
    assert ddp.num_ready == 16


def test_a_weight_that_is_the_embedding_too():
    weight, exact = draw_weight(), Sum()
    ddp = MegatronParameter(weight, shared=True)
    for given, upstream in batches(weight, 4):
        with torch.autocast(torch_name(), dtype=torch.bfloat16):
            out = rlk.jit.linear_logp(**given, accumulate_into="main_grad")
        ids = given["target"]
        (out @ upstream + embedding(ids, weight).sum()).backward()
        exact.add(given, upstream)
        uses = torch.bincount(ids, minlength=SIZES[2]).cpu().numpy()
        exact.value = exact.value + uses[:, None]
        exact.add_rounding()
    exact.expect(weight.main_grad)
    assert weight.grad is None
    assert ddp.num_ready == 4


def test_without_the_hook_the_placeholder_is_of_the_parameters_kind():
    for shared in (False, True):
        weight = draw_weight("bfloat16")
        weight.main_grad = torch.zeros(weight.shape, device=weight.device)
        weight.grad_added_to_main_grad = False
        weight.zero_out_wgrad = shared
        given, upstream = next(batches(weight))
        given["hidden"] = given["hidden"].detach().bfloat16()
        rlk.jit.linear_logp(**given, accumulate_into="main_grad").backward(upstream)
        assert (weight.grad.shape, weight.grad.dtype) == (weight.shape, torch.bfloat16)
        assert not shared or not weight.grad.any()
