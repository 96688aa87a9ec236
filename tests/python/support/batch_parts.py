# SPDX-License-Identifier: Apache-2.0
"""A batch of the losses, and the parts of it that ranks hold."""

from __future__ import annotations

from typing import Any, NamedTuple

import losses
from ranks import torch
from torch.distributed.device_mesh import init_device_mesh

import rlk

ROWS, LENGTH, VOCAB = 8, 37, 50
LENGTHS = (LENGTH, 30, 5, 1, 0, 36, 2, 17)  # of the sequences where they are packed
EVERY_LEVEL = {"policy_loss": "gspo", "ratio_level": "sequence", "advantage_level": "sequence"}
TIS = {"use_tis": True, "tis_imp_ratio_cap": 2.0, "kl_coef": 0.1}
GROUPS = {"samples_per_prompt": 2}


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
    return packed(rows, [columns_of(rank, size, LENGTHS[row]) for row in rows])


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


def given(options: dict[str, Any], split: str, kind: str) -> dict[str, Any]:
    """Arguments of the whole batch."""
    options = dict(options)
    found = batch(kind)
    if split == "packed":
        held = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
        found["loss_mask"] &= held.to(kind)
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


def grpo(arguments: dict[str, Any], **groups: Any) -> dict[str, Any]:
    logits = arguments["policy_logits"].clone().requires_grad_()
    found = rlk.jit.grpo_loss(**{**arguments, "policy_logits": logits}, **GROUPS, **groups)
    (3 * found.loss).backward()
    return {
        "loss": [x.detach().cpu() for x in found],
        "grads": {"policy_logits": logits.grad.cpu()},
    }
