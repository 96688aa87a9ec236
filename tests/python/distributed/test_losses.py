# SPDX-License-Identifier: Apache-2.0
"""Losses of a batch that lies on several ranks: the bits of one process that has all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import losses
import pytest
import ranks
from ranks import torch
from torch.distributed.device_mesh import init_device_mesh

import rlk
from rlk.losses import DIALECTS, REDUCTIONS

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]

ROWS, LENGTH, VOCAB = 8, 37, 50
EVERY_LEVEL = {"policy_loss": "gspo", "ratio_level": "sequence", "advantage_level": "sequence"}
TIS = {"use_tis": True, "tis_imp_ratio_cap": 2.0, "kl_coef": 0.1}
GROUPS = {"samples_per_prompt": 2}

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


class Part(NamedTuple):
    """What a rank holds of the batch [ROWS, LENGTH]: tokens `at` of its sequences `rows`, as a
    tensor of `shape` or packed behind `starts`."""

    rows: list[int]
    at: Any
    shape: tuple[int, ...]
    starts: Any = None

    def of_tokens(self, tensor: Any) -> Any:
        return tensor.reshape(-1, *tensor.shape[2:])[self.at].reshape(
            *self.shape, *tensor.shape[2:]
        )


def columns_of(index: int, count: int, length: int) -> list[int]:
    """Zigzag: the piece that a rank has of a sequence, as Megatron cuts it for context parallel."""
    cuts = torch.arange(length).tensor_split(2 * count)
    return [*cuts[index].tolist(), *cuts[2 * count - 1 - index].tolist()]


def padded(rows: list[int], columns: list[int]) -> Part:
    at = torch.tensor(
        [row * LENGTH + column for row in rows for column in columns], dtype=torch.long
    )
    return Part(rows, at, (len(rows), len(columns)))


def packed(rows: list[int], pieces: list[list[int]]) -> Part:
    at = [
        row * LENGTH + column for row, piece in zip(rows, pieces, strict=True) for column in piece
    ]
    starts = torch.tensor([0, *map(len, pieces)]).cumsum(0)
    return Part(rows, torch.tensor(at, dtype=torch.long), (len(at),), starts)


#: Sequences of each rank; groups of two, and those of `boundaries of groups`, are whole.
ROWS_OF = {
    1: [range(8)],
    2: [range(6), range(6, 8)],
    4: [range(4), range(0), range(4, 6), range(6, 8)],
}


def part_of(split: str, rank: int, size: int) -> Part:
    contexts = {"data": 1, "context": size, "both": 2, "packed": size}[split]
    rows = list(ROWS_OF[size // contexts][rank // contexts])
    if split != "packed":
        return padded(rows, columns_of(rank % contexts, contexts, LENGTH))
    lengths = [LENGTH, 30, 5, 1, 0, 36, 2, 17]
    return packed(rows, [columns_of(rank, size, lengths[row]) for row in rows])


def groups_of(split: str, kind: str, size: int) -> dict[str, Any]:
    if split == "data":
        return {"loss_group": init_device_mesh(kind, (size,))}
    if split == "both":
        mesh = init_device_mesh(kind, (size // 2, 2), mesh_dim_names=("data", "context"))
        everyone = torch.distributed.group.WORLD
        return {"loss_group": everyone, "context_group": mesh["context"]}
    return {"context_group": torch.distributed.group.WORLD}


SPLITS = ("data", "context", "both", "packed")


def batch(kind: str) -> dict[str, Any]:
    b = losses.batch(ROWS, LENGTH, seed=1)
    b.mask[:, 0] |= b.mask.any(1)
    drawn = {"log_probs": b.log_probs, "old_log_probs": b.old, "advantages": b.advantages}
    found = {name: torch.tensor(x).to(kind) for name, x in {**drawn, **b.others}.items()}
    return {**found, "loss_mask": torch.tensor(b.mask).to(kind)}


def given(case: str, split: str, kind: str) -> dict[str, Any]:
    """Arguments of the whole batch."""
    options = dict(CASES[case])
    found = batch(kind)
    lengths = torch.full((ROWS,), LENGTH)
    if split == "packed":
        lengths = torch.tensor([LENGTH, 30, 5, 1, 0, 36, 2, 17])
    found["loss_mask"] &= (torch.arange(LENGTH) < lengths[:, None]).to(kind)
    if options.pop("loss_mask", None):
        found["loss_mask"][:] = False
    if options.pop("advantages", None):
        found["advantages"] = found["advantages"][:, :1].contiguous()
    if options.pop("log_probs", None):
        found["old_log_probs"][0, 0], found["log_probs"][0, 1] = -torch.inf, torch.nan
    if options.pop("loss_weights", None):
        found["loss_weights"] = torch.linspace(0, 1e-2, ROWS * LENGTH).view(ROWS, -1).to(kind)
    return {**found, **options}


def of_part(value: Any, part: Part) -> Any:
    """An argument of the whole batch as that of what a rank holds."""
    if not isinstance(value, torch.Tensor):
        return value
    return part.of_tokens(value) if value.shape[:2] == (ROWS, LENGTH) else value[part.rows]


def arguments_of(whole: dict[str, Any], part: Part) -> dict[str, Any]:
    found = {name: of_part(value, part) for name, value in whole.items()}
    if "group_boundaries" in whole:
        within = [at - min(part.rows, default=0) for at in whole["group_boundaries"]]
        found["group_boundaries"] = [at for at in within if 0 <= at <= len(part.rows)]
    if part.starts is not None:
        found["cu_seqlens"] = part.starts.to(whole["log_probs"].device)
    return found


def loss_and_gradients(arguments: dict[str, Any], **groups: Any) -> dict[str, Any]:
    arguments = dict(arguments)
    device = arguments["log_probs"].device
    if "group_boundaries" in arguments:
        arguments["group_boundaries"] = torch.tensor(arguments["group_boundaries"], device=device)
    leaves = {name: arguments[name].clone().requires_grad_() for name in ("log_probs", "entropy")}
    loss, metrics = rlk.jit.ppo_loss(**{**arguments, **leaves}, **groups)
    (3 * loss).backward()
    grads = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    of_all = [loss.detach(), *metrics]
    return {"loss": [x.cpu() for x in of_all], "grads": {n: g.cpu() for n, g in grads.items()}}


def grpo_inputs(kind: str, length: int = LENGTH) -> dict[str, Any]:
    drawn = torch.Generator().manual_seed(5)
    shape = (ROWS, length)
    found = {
        "policy_logits": 2 * torch.randn(*shape, VOCAB, generator=drawn),
        "ref_logits": 2 * torch.randn(*shape, VOCAB, generator=drawn),
        "action_ids": torch.randint(VOCAB, shape, generator=drawn),
        "old_logps": -3 - torch.rand(shape, generator=drawn),
        "completion_mask": torch.rand(shape, generator=drawn) < 0.8,
        "rewards": torch.randn(ROWS, generator=drawn),
    }
    return {name: x.to(kind) for name, x in found.items()}


GRPO_CASES = {
    "grpo": {},
    "grpo trl": {"dialect": "trl", "policy_loss": "gspo"},
    "grpo entropy": {"entropy_coef": 0.01, "loss_reduction": "sequence_mean_valid"},
}


def grpo(arguments: dict[str, Any], **groups: Any) -> dict[str, Any]:
    logits = arguments["policy_logits"].clone().requires_grad_()
    found = rlk.jit.grpo_loss(**{**arguments, "policy_logits": logits}, **GROUPS, **groups)
    (3 * found.loss).backward()
    return {
        "loss": [x.detach().cpu() for x in found],
        "grads": {"policy_logits": logits.grad.cpu()},
    }


def messages(rank: int, kind: str) -> dict[str, str]:
    """What each rank is told of calls that do not fit, with validate="sync"."""
    world = {"loss_group": torch.distributed.group.WORLD}
    context = {"context_group": torch.distributed.group.WORLD}
    arguments = {n: x for n, x in batch(kind).items() if n not in losses.TENSORS}
    bad = {**arguments, "old_log_probs": arguments["old_log_probs"][:, : LENGTH - (rank == 1)]}
    calls = {
        "error": lambda: rlk.jit.ppo_loss(**bad, **world),
        "option": lambda: rlk.jit.ppo_loss(**arguments, eps_clip_low=0.2 + 0.1 * rank, **world),
        "length": lambda: rlk.jit.ppo_loss(
            **arguments, loss_reduction="token_sum_over_L", max_seq_len=9 + rank, **world
        ),
        "sequences": lambda: rlk.jit.ppo_loss(
            **{n: x[: ROWS - rank] for n, x in arguments.items()}, **context
        ),
        "fine": lambda: rlk.jit.ppo_loss(**arguments, **world),
    }
    found = {}
    rlk.jit.configure(validate="sync")
    for name, call in calls.items():
        try:
            call()
            found[name] = "no error"
        except rlk.InvalidArgument as error:
            found[name] = str(error)
    rlk.jit.configure(validate="async")
    return found


def work(kind: str, rank: int) -> dict[str, Any]:
    size = torch.distributed.get_world_size()
    found: dict[str, Any] = {}
    for split in SPLITS:
        own, groups = part_of(split, rank, size), groups_of(split, kind, size)
        for case in CASES:
            found[f"{split}/{case}"] = loss_and_gradients(
                arguments_of(given(case, split, kind), own), **groups
            )
        for case, options in GRPO_CASES.items():
            if not own.rows:  # grpo_loss takes no batch of none
                continue
            inputs = {n: of_part(x, own) for n, x in grpo_inputs(kind).items()}
            if own.starts is not None:
                inputs["cu_seqlens"] = own.starts.to(kind)
            found[f"{split}/{case}"] = grpo({**inputs, **options}, **groups)
    found["messages"] = messages(rank, kind)
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
    check(found, split, case, loss_and_gradients(given(case, split, found[0])))


@pytest.mark.parametrize("split", ["data", "context", "both"])
@pytest.mark.parametrize("case", GRPO_CASES)
def test_grpo_loss(found, split, case):
    check(found, split, case, grpo({**grpo_inputs(found[0]), **GRPO_CASES[case]}))
