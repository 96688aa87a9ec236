# SPDX-License-Identifier: Apache-2.0
"""Device memory: what a call takes beyond its results stays within the workspace's budget."""

import pytest
from on_device import DEVICE, MIB
from tensors import make, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

ROWS, DIM, VOCAB = 4096, 512, 131072  # 1 GiB of 16-bit logits


def operands(rows: int = ROWS, dtype=torch.bfloat16):
    hidden = torch.randn(rows, DIM, device=DEVICE).to(dtype)
    weight = torch.randn(VOCAB, DIM, device=DEVICE).to(dtype)
    return hidden, weight, torch.randint(VOCAB, (rows,), device=DEVICE)


def extra_mib(call) -> float:
    """Most memory that a call had at once beyond what there was before and what it returned."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    kept = torch.cuda.memory_allocated() - before
    del results
    return (peak - before - kept) / MIB


def allowed_mib(budget: int, rows: int, bytes_each: int) -> float:
    # Not of the budget: two copies of the hidden rows (compacted, and scaled for fp16), some
    # 100 bytes a row (saved values, lists), and 2 MiB for what the allocator does not split off.
    apart = rows * (2 * DIM * bytes_each + 100) + 2 * MIB
    # The least a backward can do with: 24 leaves of dZ and four sums of hidden's gradient.
    least = rows * (24 * 192 * bytes_each + 4 * 4 * DIM)
    return (max(budget * MIB, least) + apart) / MIB


def backward(given):
    upstream = torch.ones(len(given[0]), device=DEVICE)
    return lambda: rlk.jit.linear_logp_backward(upstream, *given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("budget", [None, 8, 64, 200])
def test_the_workspace_of_both_passes(budget, dtype):
    if budget is not None:
        rlk.jit.configure(workspace_mib=budget)
    given = operands(dtype=dtype)
    most = allowed_mib(budget or 768, ROWS, 2)
    assert extra_mib(lambda: rlk.jit.linear_logp(*given)) <= most
    assert extra_mib(backward(given)) <= most


def test_the_workspace_under_autograd():
    hidden, weight, target = operands()
    hidden.requires_grad_()
    weight.requires_grad_()

    def step():
        logp = rlk.jit.linear_logp(hidden, weight, target, saved_mib=0)
        return torch.autograd.grad(logp.sum(), (hidden, weight))

    assert extra_mib(step) <= allowed_mib(768, ROWS, 2)


def test_a_float32_weights_gradient_is_all_that_autocast_makes_of_its_size():
    rlk.jit.configure(workspace_mib=64)
    hidden, weight, target = operands(dtype=torch.float32)
    given = [hidden.requires_grad_(), weight.requires_grad_()]

    def step():
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            logp = rlk.jit.linear_logp(*given, target, saved_mib=0)
        return torch.autograd.grad(logp.sum(), given)

    copies_mib = 2 * (hidden.numel() + weight.numel()) / MIB
    assert extra_mib(step) <= allowed_mib(64, ROWS, 2) + copies_mib


def test_main_grad_takes_no_memory():
    rlk.jit.configure(workspace_mib=64)
    hidden, weight, target = operands()
    weight.requires_grad_().main_grad = torch.zeros(weight.shape, device=DEVICE)

    def step():
        logp = rlk.jit.linear_logp(hidden, weight, target, saved_mib=0, accumulate_into="main_grad")
        logp.sum().backward()
        return weight.grad

    assert extra_mib(step) <= allowed_mib(64, ROWS, 2)
    assert step() is None


def test_float32():
    given = operands(1024, torch.float32)
    rlk.jit.configure(workspace_mib=100)
    assert extra_mib(backward(given)) <= allowed_mib(100, 1024, 4)


def test_the_workspace_does_not_grow_with_the_logits():
    # 1 and 8 GiB of them. The budget is small, so that strips and waves are what keeps to it.
    rlk.jit.configure(workspace_mib=64)
    for rows in (ROWS, 8 * ROWS):
        given = operands(rows)
        assert extra_mib(lambda given=given: rlk.jit.linear_logp(*given)) <= allowed_mib(
            64, rows, 2
        )


@pytest.mark.parametrize(("rows", "most_mib"), [(ROWS, 40), (8 * ROWS, 64), (64 * ROWS, 64)])
def test_a_forward_without_inactive_rows(rows, most_mib):
    hidden = torch.randn(1, DIM, device=DEVICE).bfloat16().expand(rows, DIM).contiguous()
    _, weight, target = operands(1)
    target = target.expand(rows).contiguous()
    assert extra_mib(lambda: rlk.jit.linear_logp(hidden, weight, target, ignore_index=None)) < (
        most_mib
    )


def test_what_was_saved_for_the_backward_is_three_numbers_a_row():
    hidden, weight, target = operands()
    hidden.requires_grad_()
    rlk.jit.linear_logp(hidden, weight, target, saved_mib=0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    logp = rlk.jit.linear_logp(hidden, weight, target, saved_mib=0)
    assert torch.cuda.memory_allocated() - before <= 4 * 4 * ROWS + 4 * 512
    assert logp.requires_grad


def test_nothing_is_kept_from_call_to_call():
    given = operands()
    call = backward(given)
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        call()
        rlk.jit.linear_logp(*given)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_gradients_without_an_active_row_are_zero_whatever_lay_there(rows, dtype):
    p = make(rows, 40, 3001, dtype, bias="float32")
    p = p.but(upstream=torch.zeros_like(p.upstream))
    for options in ({}, {"mask": torch.zeros(rows, device=DEVICE)}):
        used = [torch.full_like(x, torch.nan) for x in (p.hidden, p.weight, p.bias)]
        del used  # the results lie where it was
        for grad in p.grads(**options):
            assert not grad.count_nonzero()


def test_entropy_and_lse_cost_no_memory_of_the_logits():
    rows, vocab = 1024, 65536
    p = make(rows, 64, vocab, "bfloat16")
    options = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}
    assert extra_mib(lambda: p.outputs(**options)) < rows * vocab * 2 / 8 / MIB
