# SPDX-License-Identifier: Apache-2.0
"""Losses from hidden states in CUDA graphs: nothing waits for the device, replays follow inputs."""

import contextlib

import numpy as np
import pytest
from linear_losses import draw
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

EVERYTHING = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}


@pytest.fixture(autouse=True)
def on_cuda():
    import devices

    devices.use("cuda")
    yield
    devices.use("cpu")


def ppo(options):
    def call(b, scale):
        return b.loss(grad_scale=scale, **options).loss

    return call


def grpo(b, scale):
    given = b.hidden, b.weight, b.target, b.old_log_probs, b.rewards, b.loss_mask
    head = {"ref_hidden": b.ref_hidden, "ref_weight": b.ref_weight, "ref_bias": b.ref_bias}
    return rlk.jit.linear_grpo_loss(
        *given, bias=b.bias, samples_per_prompt=2, grad_scale=scale, **head
    ).loss


def cross_entropy(**options):
    def call(b, scale):
        given = b.hidden, b.weight, b.target
        options_of_call = {"bias": b.bias, "mask": b.loss_mask, "grad_scale": scale, **options}
        return rlk.jit.linear_cross_entropy(*given, **options_of_call)

    return call


LOSSES = {
    "ppo": ppo({}),
    "everything": ppo(EVERYTHING),
    "gspo": ppo({"policy_loss": "gspo"}),
    "grpo": grpo,
    "cross entropy": cross_entropy(),
    "label smoothing": cross_entropy(label_smoothing=0.1, lse_square_scale=1e-3),
}


@contextlib.contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_replays_follow_changed_inputs(dtype, name):
    b = draw(dtype=dtype).leaves()
    scale = tensor(np.float32(0.5))

    def calls():
        loss = LOSSES[name](b, scale)
        return [loss.detach(), *torch.autograd.grad(loss, b.head)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls()
        with no_waiting():
            calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = calls()
    for seed in (1, 2):
        other = draw(dtype=dtype, seed=seed)
        with torch.no_grad():
            for field in vars(b):
                getattr(b, field).copy_(getattr(other, field))
            scale.fill_(seed)
        graph.replay()
        torch.cuda.synchronize()
        got = [x.clone() for x in results]
        assert all(torch.equal(x, y) for x, y in zip(got, calls(), strict=True)), seed
    assert got[1].abs().max() > 0
