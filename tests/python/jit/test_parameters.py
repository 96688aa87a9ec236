# SPDX-License-Identifier: Apache-2.0
"""The public signatures of the ops are what their tables of parameters say."""

import inspect

import pytest

import rlk
from rlk import _core
from rlk._ops.common import PARAMETERS

#: What says how ranks share a vocabulary.
SPREAD = {"group", "vocab_range", "vocab_size"}
#: Public functions of an op, and what each takes besides its table, or leaves out of it.
FUNCTIONS = {
    "linear_logp": (
        "linear_logp",
        {"stream", "lora", "compute_dtype", "sequence_parallel", *SPREAD},
        set(),
    ),
    "linear_logp_backward": (
        "linear_logp",
        {"stream", "grad_output", "grad_entropy", "grad_lse", "needs"},
        {"return_entropy", "return_lse", "return_stats", "saved_mib", "entropy_grad"},
    ),
    "logp": ("logp", {"stream", *SPREAD}, set()),
    "logp_backward": (
        "logp",
        {"stream", "grad_output", "grad_entropy", "grad_lse"},
        {"return_entropy", "return_lse", "return_stats", "inplace_backward"},
    ),
}
#: Ops that are made of logp: the names of its parameters there.
COMPOSITES = {
    "ratio_kl": {"logits": "policy_logits", "target": "action_ids", "mask": "attention_mask"},
    "grpo_loss": {"logits": "policy_logits", "target": "action_ids", "mask": "completion_mask"},
}


def default_of(parameter):
    return None if parameter.default is parameter.empty else parameter.default


@pytest.mark.parametrize("function", FUNCTIONS)
def test_signatures_are_the_table(function):
    op, more, without = FUNCTIONS[function]
    table = PARAMETERS[op]
    found = inspect.signature(getattr(rlk.jit, function)).parameters
    assert set(found) == (set(table) - without) | more
    for name in set(table) - without:
        _, default = table[name]
        assert default_of(found[name]) == default, name
        assert type(default_of(found[name])) is type(default), name


@pytest.mark.parametrize("function", COMPOSITES)
def test_ops_made_of_logp_take_its_options(function):
    names = COMPOSITES[function]
    found = inspect.signature(getattr(rlk.jit, function)).parameters
    for name, (_, default) in PARAMETERS["grpo_loss"].items():
        assert default_of(found[names.get(name, name)]) == default, name


@pytest.mark.parametrize("function", ["linear_logp", "logp"])
def test_the_docstring_names_each_parameter(function):
    text = getattr(rlk.jit, function).__doc__
    for name in inspect.signature(getattr(rlk.jit, function)).parameters:
        assert f"{name}:" in text or f"{name}," in text, name


def test_kinds_are_known():
    kinds = {kind for op in _core.ops() for _, kind, _ in _core.parameters(op)}
    assert {"tensor", "number", "optional_number", "number_per_row", "flag"} <= kinds
