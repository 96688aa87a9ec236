# SPDX-License-Identifier: Apache-2.0
"""Losses over ranks with a GPU each, where a GPU has a path of its own."""

import losses
import pytest
import ranks
from batch_parts import EVERY_LEVEL, TIS, arguments_of, given, groups_of, grpo, grpo_inputs, part_of
from ranks import torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.gpu, pytest.mark.usefixtures("generic")]

MANY = 600  # tokens a sequence: enough for the kernel that looks once at each row


def many_rows(rank, size):
    """grpo_loss of every size-th token of each sequence, on a GPU of its own."""
    inputs = grpo_inputs("cuda", MANY)
    own = {n: x if x.dim() == 1 else x[:, rank::size].contiguous() for n, x in inputs.items()}
    groups = {} if size == 1 else {"context_group": torch.distributed.group.WORLD}
    options = {"use_tis": True, "tis_level": "sequence"}
    return grpo(own, **options, rollout_logprobs=own["old_logps"] + 0.1, **groups)


def graphed(rank, size):
    """(loss, gradient) of two replays, and of calls outside of the graph."""
    own = part_of("both", rank, size)
    options = {**EVERY_LEVEL, **TIS, "tis_level": "sequence"}
    arguments = arguments_of(given(options, "both", "cuda"), own)
    groups = groups_of("both", "cuda", size)
    log_probs = arguments.pop("log_probs").clone().requires_grad_()

    def step():
        loss = rlk.jit.ppo_loss(log_probs, **arguments, **groups).loss
        return loss, *torch.autograd.grad(loss, log_probs)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog, another thread, asks for events.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = step()
    found = []
    for shift in (0.0, 0.25):
        with torch.no_grad():
            log_probs.sub_(shift)
        graph.replay()
        torch.cuda.synchronize()
        replayed = [x.detach().clone().cpu() for x in results]
        found.append((replayed, [x.detach().cpu() for x in step()]))
    return found


def on_gpus(kind, rank):
    size = torch.distributed.get_world_size()
    return {"many rows": many_rows(rank, size), "graph": graphed(rank, size)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return ranks.run("cuda", on_gpus, tmp_path_factory.mktemp("gpus"))


def test_one_look_at_each_row(found):
    want = many_rows(0, 1)
    for rank, results in enumerate(found):
        got = results["many rows"]
        assert all(losses.same(x, y) for x, y in zip(got["loss"], want["loss"], strict=True))
        part = want["grads"]["policy_logits"][:, rank :: len(found)]
        assert losses.same(got["grads"]["policy_logits"], part)


def test_a_cuda_graph(found):
    for results in found:
        (first, _), (second, _) = results["graph"]
        assert not losses.same(first[0], second[0])
        for replayed, eager in results["graph"]:
            assert all(losses.same(x, y) for x, y in zip(replayed, eager, strict=True))
