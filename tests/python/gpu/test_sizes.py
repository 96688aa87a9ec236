# SPDX-License-Identifier: Apache-2.0
"""N x V, V x D and N x D beyond 2^31, and strides as long. Some rows are held to float64."""

import pytest
from on_device import DEVICE
from problems import Problem
from reference import same_bits
from tensors import make, torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

FAR = 2**31 + 8  # elements
# A norm's relative error, a little over what dZ and the result lose by rounding.
BOUND = {torch.bfloat16: 6e-3, torch.float16: 1e-3, torch.float32: 3e-6}


def expect_room(gib: float) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] / 2**30
    if free < gib:
        pytest.skip(f"needs {gib} GiB of free device memory, got {free:.0f}")


@pytest.fixture(autouse=True)
def give_memory_back():
    yield
    torch.cuda.empty_cache()


def drawn(rows: int, dim: int, vocab: int, dtype) -> Problem:
    """As problems.problem, drawn on the device in the storage type."""
    g = torch.Generator(DEVICE).manual_seed(0)
    hidden = torch.empty(rows, dim, dtype=dtype, device=DEVICE).normal_(generator=g)
    weight = torch.empty(vocab, dim, dtype=dtype, device=DEVICE).normal_(0, dim**-0.5, generator=g)
    target = torch.randint(vocab, (rows,), generator=g, device=DEVICE)
    target[-1], target[0] = vocab - 1, 0
    return Problem(hidden, weight, target, None, torch.zeros(rows, device=DEVICE))


def sampled(p: Problem, rows) -> Problem:
    return Problem(p.hidden[rows], p.weight, p.target[rows], None, p.upstream[rows])


def blocks(count: int, width: int):
    return (slice(first, min(first + width, count)) for first in range(0, count, width))


def exact(p: Problem) -> tuple:
    """log p and the gradients of hidden and weight in float64, the vocabulary in blocks."""
    h, num_vocab = p.hidden.double(), p.weight.shape[0]
    width = max(1, 2**27 // p.weight.shape[1])
    parts = [h @ p.weight[part].double().T for part in blocks(num_vocab, width)]
    z = torch.cat(parts, 1)
    logp = z.log_softmax(1)
    dz = -logp.exp()
    rows = torch.arange(len(h), device=DEVICE)
    dz[rows, p.target] += 1
    dz *= p.upstream.double()[:, None]
    grad = torch.zeros_like(h)
    for part in blocks(num_vocab, width):
        grad += dz[:, part] @ p.weight[part].double()
    return logp[rows, p.target], grad, dz.T @ h


def distance(got, want) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def tolerance(p: Problem) -> float:
    return 1e-4 + 1e-8 * p.weight.shape[1]


def check_rows(p: Problem, rows, scale: float = 1.0) -> None:
    """The rows against float64; all the others have no gradient, so that the sums are theirs.

    scale: of the upstream gradient, so that those of a wide vocabulary are normal float16 numbers.
    """
    p.upstream[rows] = torch.linspace(-scale, 2 * scale, len(rows), device=DEVICE)
    few = sampled(p, rows)
    logp = p.logp()
    grads = p.grads()
    want, want_hidden, want_weight = exact(few)
    bound = BOUND[p.weight.dtype]
    assert logp.isfinite().all()
    assert (logp[rows].double() - want).abs().max() < tolerance(p)
    assert same_bits(logp[rows], few.logp())
    assert distance(grads.hidden[rows], want_hidden) < bound
    others = torch.ones(len(p.target), dtype=torch.bool, device=DEVICE)
    others[rows] = False
    assert grads.hidden[others].count_nonzero() == 0
    for part in blocks(len(want_weight), 1 << 14):  # each part by itself: none is lost among many
        assert distance(grads.weight[part], want_weight[part]) < bound


@pytest.mark.parametrize(
    ("rows", "dim", "vocab"),
    [(18423, 64, 131072), (40000, 16, 65536), (262144, 64, 32769)],
)
def test_more_logits_than_two_to_the_31(rows, dim, vocab):
    assert rows * vocab > 2**31
    expect_room(8)
    p = drawn(rows, dim, vocab, torch.bfloat16)
    edge = 2**31 // vocab
    some = [0, 1, 255, 256, edge - 1, edge, edge + 1, rows - 257, rows - 2, rows - 1]
    check_rows(p, torch.tensor(sorted(set(some)), device=DEVICE))


def test_a_weight_of_more_than_two_to_the_31_elements():
    rows, dim, vocab = 130, 8448, 262144
    assert vocab * dim > 2**31
    expect_room(40)
    p = drawn(rows, dim, vocab, torch.float16)
    p.target[5:9] = torch.tensor([2**31 // dim - 1, 2**31 // dim, 2**31 // dim + 1, vocab - 2])
    check_rows(p, torch.tensor([0, 5, 6, 7, 8, 64, 128, 129], device=DEVICE), scale=256)


@pytest.mark.parametrize("options", [{}, {"ignore_index": None}], ids=["listed", "all_rows"])
def test_hidden_states_of_more_than_two_to_the_31_elements(options):
    rows, dim, vocab = 262144, 8448, 300
    assert rows * dim > 2**31
    expect_room(40)
    p = drawn(rows, dim, vocab, torch.float16)
    edge = 2**31 // dim
    some = torch.tensor([0, 1, edge - 1, edge, edge + 1, rows - 2, rows - 1], device=DEVICE)
    p.upstream[some] = 1.0
    few = sampled(p, some)
    logp, grads = p.logp(**options), p.grads(**options)
    want, want_hidden, want_weight = exact(few)
    assert (logp[some].double() - want).abs().max() < tolerance(p)
    assert distance(grads.hidden[some], want_hidden) < BOUND[torch.float16]
    assert distance(grads.weight, want_weight) < BOUND[torch.float16]


def far_apart(values, dim: int = 0):
    """The values, FAR elements from one to the next along `dim`; between them is unused memory."""
    steps = [FAR if axis == dim else 1 for axis in range(values.dim())]
    length = sum((size - 1) * step for size, step in zip(values.shape, steps, strict=True)) + 1
    room = torch.empty(length, dtype=values.dtype, device=DEVICE)
    view = room.as_strided(values.shape, steps)
    view.copy_(values)
    return view


def test_rows_and_columns_far_apart():
    expect_room(30)
    p = make(3, 3, 3, "bfloat16")
    want, grads = p.logp(), p.grads()
    for name in ("hidden", "weight"):
        for dim in (0, 1):
            values = {n: getattr(p, n) for n in ("hidden", "weight", "target", "bias", "upstream")}
            values[name] = far_apart(values[name], dim)
            far = Problem(**values)
            assert far.operands[0].stride(dim) == FAR or far.weight.stride(dim) == FAR
            assert same_bits(far.logp(), want)
            assert same_bits(far.grads().hidden, grads.hidden)
            assert same_bits(far.grads().weight, grads.weight)
            del far, values
            torch.cuda.empty_cache()


def test_values_a_row_far_apart():
    expect_room(30)
    p = make(3, 8, 50)
    mask = torch.tensor([True, False, True], device=DEVICE)
    want = p.logp(mask=mask)
    target = far_apart(p.target.to(torch.int8))
    assert same_bits(rlk.jit.linear_logp(p.hidden, p.weight, target, mask=far_apart(mask)), want)
    upstream = far_apart(p.upstream)
    grads = rlk.jit.linear_logp_backward(upstream, p.hidden, p.weight, p.target, mask=mask)
    assert same_bits(grads.weight, p.grads(mask=mask).weight)


# Each row of a sequence far behind has the bits of a call of its sequence alone.
def test_losses_of_more_elements_than_int32_counts():
    expect_room(40)
    shape = (4, FAR // (4 * 131072) + 4, 131072)
    assert shape[0] * shape[1] * shape[2] > FAR
    g = torch.Generator(DEVICE).manual_seed(0)
    policy, ref = (
        torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(generator=g)
        for _ in range(2)
    )
    ids = torch.randint(shape[2], shape[:2], generator=g, device=DEVICE)
    old = torch.full(shape[:2], -11.0, device=DEVICE)
    rewards = torch.randn(shape[0], generator=g, device=DEVICE)
    options = {"samples_per_prompt": 1, "group_of_one": "reward", "global_tokens": ids.numel()}
    upstream = torch.randn(shape[:2], generator=g, device=DEVICE)

    def run(part):
        q = policy[part].detach().requires_grad_()
        log_probs = rlk.jit.logp(q, ids[part])
        (first,) = torch.autograd.grad(log_probs, q, upstream[part])
        yield log_probs.detach()[-1]
        yield first[-1]
        del first
        found = rlk.jit.ratio_kl(q, ref[part], ids[part], None, old[part])
        (second,) = torch.autograd.grad(found, q, [upstream[part]] * 2)
        yield from (*(x.detach()[-1] for x in found), second[-1])
        del second
        loss, *_ = rlk.jit.grpo_loss(
            q, ref[part], ids[part], old[part], rewards[part], None, **options
        )
        (third,) = torch.autograd.grad(loss, q)
        yield third[-1]

    for got, want in zip(run(slice(None)), run(slice(3, 4)), strict=True):
        assert same_bits(got, want)
        assert got.count_nonzero() > 0
