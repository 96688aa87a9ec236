# SPDX-License-Identifier: Apache-2.0
"""Losses of a batch that lies on several ranks: the bits of one process that has all of it."""

from __future__ import annotations

from typing import Any

import losses
import pytest
import ranks
from batch_parts import (
    EVERY_LEVEL,
    GROUPS,
    LENGTH,
    SPLITS,
    TIS,
    arguments_of,
    batch,
    given,
    groups_of,
    grpo,
    grpo_inputs,
    loss_and_gradients,
    of_part,
    part_of,
)
from operator_cases import fresh_compiler  # noqa: F401
from ranks import torch

import rlk
from rlk.losses import DIALECTS, REDUCTIONS

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]

#: Options of ppo_loss by the name of the case.
CASES: dict[str, dict[str, Any]] = {
    **{f"options {i}": options for i, options in enumerate(losses.OPTION_SETS)},
    **{
        word: {"loss_reduction": word, "max_seq_len": LENGTH, **GROUPS, "kl_coef": 0.1}
        for word in REDUCTIONS
    },
    **{
        f"{dialect} {loss}": {"dialect": dialect, "policy_loss": loss, "max_seq_len": LENGTH}
        for dialect in DIALECTS
        for loss in ("ppo", "gspo", "cispo", "sapo")
    },
    "sequence levels": {**EVERY_LEVEL, **TIS, "tis_level": "sequence"},
    "rejected tokens leave": {
        **EVERY_LEVEL,
        **TIS,
        "tis_mode": "mask",
        "tis_rejected": "leave",
        "tis_imp_ratio_floor": 0.5,
    },
    "KL by another reduction": {"kl_coef": 0.2, "kl_reduction": "sequence_mean"},
    "B and B+": {
        "kl_coef": 0.2,
        "loss_reduction": "sequence_mean",
        "kl_reduction": "sequence_mean_valid",
    },
    "a weight a token": {"loss_weights": "tokens", **TIS},
    "one advantage a sequence": {"advantages": "sequences", **EVERY_LEVEL},
    "boundaries of groups": {"loss_reduction": "prompt_mean", "group_boundaries": [0, 1, 4, 6, 8]},
    "nothing is active": {"loss_mask": "none", "use_tis": True, "policy_loss": "gspo"},
    "an infinite and a missing number": {"log_probs": "with inf and NaN"},
}
#: Beside loss_group they are an error.
COUNTED = {
    "global tokens": {"global_tokens": 999, "kl_coef": 0.1, "kl_reduction": "sequence_mean"},
    "global sequences": {"loss_reduction": "sequence_mean", "global_sequences": 77},
}
ALONE = ("context", "packed")  # splits that have a context_group alone

GRPO_CASES = {
    "grpo": {},
    "grpo trl": {"dialect": "trl", "policy_loss": "gspo"},
    "grpo entropy": {"entropy_coef": 0.01, "loss_reduction": "sequence_mean_valid"},
}


def work(kind: str, rank: int) -> dict[str, Any]:
    size = torch.distributed.get_world_size()
    found: dict[str, Any] = {}
    for split in SPLITS:
        own, groups = part_of(split, rank, size), groups_of(split, kind, size)
        for case, options in (CASES | (COUNTED if split in ALONE else {})).items():
            found[f"{split}/{case}"] = loss_and_gradients(
                arguments_of(given(options, split, kind), own), **groups
            )
        if split != "packed":
            inputs = {n: of_part(x, own) for n, x in grpo_inputs(kind).items()}
            for case, options in GRPO_CASES.items():
                found[f"{split}/{case}"] = grpo({**inputs, **options}, **groups)
    return found


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("cpu", 2), id="2 ranks"),
        pytest.param(("cpu", 4), id="4 ranks"),
        pytest.param(("cuda", 2), id="2 GPUs", marks=pytest.mark.gpu),
    ],
)
def found(request, tmp_path_factory):
    """(kind of device, what each rank found)."""
    kind, size = request.param
    return kind, ranks.run(kind, work, tmp_path_factory.mktemp("ranks"), size)


def check(found, split, case, want):
    """Each rank has the loss and metrics of the whole batch, and the gradients of its tokens."""
    _, of_ranks = found
    for rank, results in enumerate(of_ranks):
        got = results.get(f"{split}/{case}")
        part = part_of(split, rank, len(of_ranks))
        for index, (one, other) in enumerate(zip(got["loss"], want["loss"], strict=True)):
            assert losses.same(one, other), (rank, index, one, other)
        assert got["grads"].keys() == want["grads"].keys()
        for name, grad in got["grads"].items():
            assert losses.same(grad, part.of_tokens(want["grads"][name])), (rank, name)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", CASES)
def test_ppo_loss(found, split, case):
    check(found, split, case, loss_and_gradients(given(CASES[case], split, found[0])))


@pytest.mark.parametrize("split", ["data", "context", "both"])
@pytest.mark.parametrize("case", GRPO_CASES)
def test_grpo_loss(found, split, case):
    check(found, split, case, grpo({**grpo_inputs(found[0]), **GRPO_CASES[case]}))


@pytest.mark.parametrize("split", ALONE)
@pytest.mark.parametrize("case", COUNTED)
def test_given_counts_stay(found, split, case):
    check(found, split, case, loss_and_gradients(given(COUNTED[case], split, found[0])))


def loss_of(log_probs, old, advantages, **groups):
    return rlk.jit.ppo_loss(2 * log_probs, old, advantages, **groups).loss * 3


# Of torch.compile, which looks at each input of a frame.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("fresh_compiler")
def test_compilers_and_transforms(tmp_path):
    """A graph break in the one, an error in the others; groups that are None change nothing."""
    rendezvous = f"file://{tmp_path}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    try:
        group = {"loss_group": torch.distributed.group.WORLD}
        inputs = [batch("cpu")[name] for name in ("log_probs", "old_log_probs", "advantages")]
        inputs[0].requires_grad_()
        want = loss_of(*inputs)
        (of_want,) = torch.autograd.grad(want, inputs[0])
        compiled = torch.compile(loss_of, backend="aot_eager")
        got = compiled(*inputs, **group)
        (of_got,) = torch.autograd.grad(got, inputs[0])
        assert torch.equal(got, want)
        assert torch.equal(of_got, of_want)
        torch._dynamo.reset()  # it would take what was compiled of the same function
        whole = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
        assert torch.equal(whole(*inputs, loss_group=None, context_group=None), want)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="loss_group or context_group"):
            whole(*inputs, **group)
        message = "^ppo_loss: loss_group: expected None in a transform of torch.func and in a mode"
        with pytest.raises(rlk.Unsupported, match=message):
            torch.func.grad(loss_of)(*inputs, **group)
    finally:
        torch.distributed.destroy_process_group()
