# SPDX-License-Identifier: Apache-2.0
"""One of several ranks: Megatron's output layer and its cross entropy, and rlk in their place."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import distributed

from rlk.integrations import megatron

S, B, H, V = 12, 2, 32, 8 * 48


def layer_of(size: int, **options: Any) -> Any:
    config = ModelParallelConfig(
        tensor_model_parallel_size=size,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=torch.float32,
        **options,
    )
    return tensor_parallel.ColumnParallelLinear(
        H, V, config=config, init_method=torch.nn.init.normal_, bias=False, skip_bias_add=True
    )


def by_megatron(layer: Any, hidden: Any, labels: Any) -> Any:
    logits, _ = layer(hidden)
    return -tensor_parallel.vocab_parallel_cross_entropy(logits, labels.T.contiguous()).T


def work(rank: int, size: int, folder: str) -> None:
    """Writes by name what Megatron and what rlk give: log-probs, gradients of hidden and weight."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
    )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    g = torch.Generator().manual_seed(0)
    whole, head, upstream = (torch.randn(n, generator=g) for n in ((S, B, H), (V, H), (B, S)))
    labels = torch.randint(V, (B, S), generator=g)
    found = {}
    for name, call, is_cut in (
        ("Megatron", by_megatron, False),
        ("rlk", megatron.linear_logp, False),
        ("rlk, sequence parallel", megatron.linear_logp, size > 1),
    ):
        layer = layer_of(size, sequence_parallel=is_cut)
        layer.weight.data.copy_(head.chunk(size)[rank])
        hidden = (whole.chunk(size)[rank] if is_cut else whole).clone().requires_grad_()
        log_probs = call(layer, hidden, labels)
        (log_probs * upstream).sum().backward()
        grad = hidden.grad
        if is_cut:
            rows = [torch.empty_like(grad) for _ in range(size)]
            distributed.all_gather(rows, grad)
            grad = torch.cat(rows)
        found[name] = [log_probs.detach(), grad, layer.weight.grad]
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()
