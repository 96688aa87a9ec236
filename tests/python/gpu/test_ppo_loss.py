# SPDX-License-Identifier: Apache-2.0
"""ppo_loss and group_advantages on a GPU: boundaries that only the kernel sees, graphs."""

import numpy as np
import pytest
from losses import ALL_ON, Batch, batch, mapped, same, same_metrics
from on_device import DEVICE, graph_of
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]


def upload(b: Batch) -> Batch:
    others = {name: tensor(x) for name, x in b.others.items()}
    return Batch(*(tensor(x) for x in (b.log_probs, b.old, b.advantages, b.mask)), others)


def reported(match: str) -> None:
    """By check_errors, once."""
    with pytest.raises(rlk.InvalidArgument, match=match):
        rlk.jit.check_errors()
    rlk.jit.check_errors()


WRONG_STARTS = ([0, 1 << 40, -7, 64], [5, 20, 30, 64], [0, 20, 30, 63], [0, 30, 20, 64])


@pytest.mark.parametrize("starts", WRONG_STARTS)
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_wrong_boundaries_lead_nowhere_and_are_reported(starts, dtype):
    b = batch(2, 64)  # its last row is empty
    flat = mapped(b, lambda x, _: x[0])
    starts = np.array(starts) if dtype == "int64" else np.array(starts) % (1 << 20)
    upload(flat.with_others(cu_seqlens=starts.astype(dtype))).loss()
    reported(r"ppo_loss: cu_seqlens: expected to start at 0, not to decrease and end")
    groups = {"loss_reduction": "prompt_mean", "group_boundaries": tensor(np.array([0, 2, 2, 3]))}
    good = flat.with_others(cu_seqlens=np.array([0, 20, 20, 64]))
    upload(good).loss(**groups)
    torch.cuda.synchronize()
    next_call = upload(good)
    with pytest.raises(rlk.InvalidArgument, match=r"group_boundaries: .* got 2 to 2 at 1"):
        next_call.loss()
    upload(good).loss()
    rlk.jit.check_errors()


@pytest.mark.parametrize("groups", [[1, 3, 6], [0, 3, 5], [0, 3, 3, 6], [0, 5, 3, 6], [0, 1 << 40]])
def test_wrong_groups_of_rewards_are_reported(groups):
    rewards = tensor(np.arange(6.0))
    rlk.jit.group_advantages(rewards, group_boundaries=tensor(np.array(groups)))
    reported("group_advantages: group_boundaries: expected to start at 0, to increase and end")
    rlk.jit.group_advantages(rewards, group_boundaries=tensor(np.array([0, 3, 6])))
    rlk.jit.check_errors()


def test_sync_validation_looks_at_them_before_the_launch():
    b = batch(2, 64)  # its last row is empty
    flat = mapped(b, lambda x, _: x[0])
    good = upload(flat.with_others(cu_seqlens=np.array([0, 20, 20, 64])))
    want = good.loss()
    rlk.jit.configure(validate="sync")
    assert same(good.loss().loss, want.loss)
    for starts, why in ((WRONG_STARTS[0], "got -7 after"), (WRONG_STARTS[1], "start at 0, got 5")):
        wrong = upload(flat.with_others(cu_seqlens=np.array(starts)))
        with pytest.raises(rlk.InvalidArgument, match=f"ppo_loss: cu_seqlens: .*{why}"):
            wrong.loss()
    groups = {"loss_reduction": "prompt_mean", "group_boundaries": tensor(np.array([0, 2, 2, 3]))}
    with pytest.raises(rlk.InvalidArgument, match=r"ppo_loss: group_boundaries: .*got 2 after 2"):
        good.loss(**groups)
    mask = tensor(2 * b.mask[0].astype(np.int32))
    with pytest.raises(rlk.InvalidArgument, match=r"ppo_loss: loss_mask: expected 0 or 1, got 2"):
        good.but(mask=mask).loss()
    with pytest.raises(
        rlk.InvalidArgument, match="ppo_loss: global_tokens: expected a number abov"
    ):
        good.loss(global_tokens=torch.tensor(0, device=DEVICE))
    rewards, given = tensor(np.arange(6.0)), tensor(np.array([0, 5]))
    with pytest.raises(rlk.InvalidArgument, match=r"group_advantages: .*end at 6, got 5"):
        rlk.jit.group_advantages(rewards, group_boundaries=given)
    rlk.jit.check_errors()  # nothing was launched that could report


def test_a_graph_captures_it():
    b = batch(16, 300)
    t = upload(b)
    leaf = t.log_probs.detach().requires_grad_()
    t = t.but(log_probs=leaf)
    want, grads = b.loss(**ALL_ON), b.grads(**ALL_ON)

    def step():
        loss, metrics = t.loss(**ALL_ON)
        return (loss.detach(), *metrics, *torch.autograd.grad(loss, leaf))

    graph, (loss, *metrics, grad) = graph_of(step)
    grad.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert same(loss, want.loss)
    assert same_metrics(metrics, want.metrics)
    assert same(grad, grads.log_probs)


def test_a_group_of_one_is_refused():
    rewards = tensor(np.arange(6.0))
    options = {"group_of_one": "error"}
    with pytest.raises(rlk.InvalidArgument, match="increase by at least 2 from 0 to 6"):
        rlk.jit.group_advantages(rewards, group_boundaries=[0, 5, 6], **options)
    given = tensor(np.array([0, 5, 6]))  # seen by the kernel alone
    got = rlk.jit.group_advantages(rewards, group_boundaries=given, **options)
    assert got.isnan().tolist() == [False] * 5 + [True]
    rlk.jit.configure(validate="sync")
    with pytest.raises(rlk.InvalidArgument, match="to increase by at least 2, got 6 after 5"):
        rlk.jit.group_advantages(rewards, group_boundaries=given, **options)
