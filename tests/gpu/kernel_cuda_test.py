# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of linear_logp against an fp64 reference, on a GPU machine.

python -m pytest -m gpu tests/gpu/kernel_cuda_test.py
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device and its driver", allow_module_level=True)

from linear_logp_driver import Problem  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Relative error of gradients, as a norm: a little over the rounding of dZ and of the result.
GRADIENT_BOUND = {torch.bfloat16: 6e-3, torch.float16: 1e-3, torch.float32: 3e-6}


@pytest.fixture(autouse=True)
def _seed(request):
    torch.manual_seed(hash(request.node.name) % 2**31)


def draw(n, dim, vocab, dtype, spread=1.0):
    hidden = (torch.randn(n, dim, device="cuda") * 0.5 * spread).to(dtype)
    weight = (torch.randn(vocab, dim, device="cuda") / dim**0.5).to(dtype)
    return hidden, weight, torch.randint(0, vocab, (n,), device="cuda")


def reference(hidden, weight, target, grad, *, bias=None, temperature=1.0, active=None):
    """log p and the gradients of hidden, weight and bias, in fp64."""
    if active is None:
        active = torch.ones(len(target), dtype=torch.bool, device="cuda")
    h = torch.where(active[:, None], hidden.double(), 0.0).requires_grad_()
    w = weight.double().requires_grad_()
    z = h @ w.T
    b = None
    if bias is not None:
        b = bias.double().requires_grad_()
        z = z + b
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.double()[:, None]
    logp = torch.log_softmax(z / temperature, -1)
    logp = logp.gather(1, target.long().clamp(0, len(weight) - 1)[:, None]).squeeze(1)
    logp = torch.where(active, logp, 0.0)
    logp.backward(grad.double())
    return logp.detach(), h.grad, w.grad, b.grad if b is not None else None


def relative(x, expected):
    return ((x.double() - expected).norm() / expected.norm().clamp_min(1e-300)).item()


def same_bits(a, b):
    as_int = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.contiguous().view(as_int), b.contiguous().view(as_int))


def run(grad, *args, **options):
    problem = Problem(*args, **options)
    logp = problem.forward()[0].clone()
    grads = [None if g is None else g.clone() for g in problem.backward(grad)]
    torch.cuda.synchronize()
    return problem, logp, grads


@pytest.mark.parametrize("masked", [False, True], ids=["all_rows", "masked"])
@pytest.mark.parametrize(
    ("n", "dim", "vocab"),
    [
        (1, 64, 7),
        (3, 40, 193),
        (130, 904, 1025),
        (300, 1032, 5003),
        (64, 33, 300),
        (257, 2048, 3001),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_generic_bits(dtype, n, dim, vocab, masked):
    hidden, weight, target = draw(n, dim, vocab, dtype, 4.0)
    bias = torch.randn(vocab, device="cuda").to(dtype)
    temperature = torch.rand(n, device="cuda") + 0.7
    grad = torch.randn(n, device="cuda")
    mask, active = None, torch.ones(n, dtype=torch.bool, device="cuda")
    if masked:  # masked rows may hold anything
        mask = torch.rand(n, device="cuda") > 0.3
        active = mask.clone()
        hidden[~active] = float("nan")
        target[~active] = 10**9
    expected = reference(
        hidden, weight, target, grad, bias=bias, temperature=temperature, active=active
    )
    options = {"bias": bias, "temperature": temperature, "mask": mask, "ignore_index": None}
    problem, logp, grads = run(grad, hidden, weight, target, **options)
    assert (logp.double() - expected[0]).abs().max() < 2e-4
    for g, e in zip(grads, expected[1:], strict=True):
        assert relative(g, e) < GRADIENT_BOUND[dtype]
    assert problem.error[0] == 0
    # Sizes at run time, the smallest waves and strips: the same bits.
    small = n * dim * 4 + n * hidden.element_size() * 192 * 2
    _, other_logp, other_grads = run(
        grad,
        hidden,
        weight,
        target,
        specialized=False,
        budget_bytes=small,
        strip_bytes=1,
        **options,
    )
    assert same_bits(logp, other_logp)
    for g, e in zip(grads, other_grads, strict=True):
        assert same_bits(g, e)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_a_row_depend_on_the_row(dtype):
    hidden, weight, target = draw(1000, 512, 3001, dtype)
    grad = torch.randn(1000, device="cuda")
    _, logp, (grad_hidden, _, _) = run(grad, hidden, weight, target, ignore_index=None)
    for n in (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257, 999):
        rows = torch.randperm(1000, device="cuda")[:n]
        for offset in (0, 1, 4):  # elements: 0, 2, 8 bytes for 16-bit types
            spaced = torch.empty(n * 512 + offset, device="cuda", dtype=dtype)[offset:].view(n, 512)
            spaced.copy_(hidden[rows])
            _, l2, (g2, _, _) = run(
                grad[rows], spaced, weight, target[rows], ignore_index=None, specialized=offset == 0
            )
            assert same_bits(l2, logp[rows]), (n, offset)
            assert same_bits(g2, grad_hidden[rows]), (n, offset)


def test_ptx_has_the_bits_of_the_cubin():
    hidden, weight, target = draw(300, 512, 3001, torch.bfloat16)
    grad = torch.randn(300, device="cuda")
    _, logp, grads = run(grad, hidden, weight, target, ignore_index=None)
    _, logp2, grads2 = run(grad, hidden, weight, target, ignore_index=None, arch="compute_80")
    assert same_bits(logp, logp2)
    assert same_bits(grads[0], grads2[0])
    assert same_bits(grads[1], grads2[1])


def test_target_out_of_range_is_reported():
    hidden, weight, target = draw(200, 64, 500, torch.bfloat16)
    target[5], target[17], target[30] = -100, 500, 499
    problem = Problem(hidden, weight, target)
    logp = problem.forward()[0]
    torch.cuda.synchronize()
    assert problem.error.tolist() == [2, 17, 500]
    assert logp[5] == 0
    assert logp[17].isnan()
    assert logp.isnan().sum() == 1


def test_infinite_logits():
    hidden, weight, target = draw(70, 64, 400, torch.bfloat16)
    bias = torch.randn(400, device="cuda")
    bias[200:] = -float("inf")  # one leaf whole, one in part
    bias[3] = -float("inf")
    target[:] = torch.randint(4, 200, (70,), device="cuda")
    target[9] = 3
    grad = torch.randn(70, device="cuda")
    _, logp, (dh, dw, db) = run(grad, hidden, weight, target, bias=bias, ignore_index=None)
    z = hidden.double() @ weight.double().T + bias.double()
    expected = torch.log_softmax(z, -1).gather(1, target[:, None]).squeeze(1)
    keep = torch.arange(70, device="cuda") != 9
    assert (logp[keep].double() - expected[keep]).abs().max() < 1e-4
    assert logp[9] == -float("inf")
    assert dw[200:].eq(0).all()
    assert db[200:].eq(0).all()
    assert torch.isfinite(dh).all()
    _, logp, _ = run(
        grad, hidden, weight, target, bias=torch.full_like(bias, -float("inf")), ignore_index=None
    )
    assert logp.isnan().all()


def test_nan_stays_in_its_row():
    hidden, weight, target = draw(300, 64, 400, torch.bfloat16)
    hidden[7, 3] = float("nan")
    hidden[8, 3] = float("inf")
    logp = Problem(hidden, weight, target).forward()[0]
    assert logp.isnan().nonzero().flatten().tolist() == [7, 8]


def test_log_prob_is_never_above_zero():
    hidden, weight, _target = draw(256, 128, 1000, torch.bfloat16, 40.0)
    z = hidden.double() @ weight.double().T
    logp = Problem(hidden, weight, z.argmax(1)).forward()[0]
    assert (logp <= 0).all()
    assert (logp > -1e-6).any()


def test_temperature_as_number_and_per_row_agree():
    hidden, weight, target = draw(100, 64, 500, torch.bfloat16)
    grad = torch.randn(100, device="cuda")
    for t in (0.7, 1.3, 3.0):
        _, logp, grads = run(grad, hidden, weight, target, temperature=t)
        every = torch.full((100,), t, device="cuda", dtype=torch.float64)
        _, logp2, grads2 = run(grad, hidden, weight, target, temperature=every)
        assert same_bits(logp, logp2)
        assert same_bits(grads[0], grads2[0])
    every[5] = 0.0
    _, logp, _ = run(grad, hidden, weight, target, temperature=every)
    assert logp.isnan().nonzero().flatten().tolist() == [5]


def test_small_fp16_gradients_survive():
    """1/4096 spread over 128,256 columns, beside a row with a gradient of 1."""
    hidden, weight, target = draw(64, 256, 128256, torch.float16)
    grad = torch.full((64,), 1 / 4096, device="cuda")
    grad[0], grad[1] = 1.0, 0.0
    expected = reference(hidden, weight, target, grad)
    _, _, (dh, dw, _) = run(grad, hidden, weight, target, ignore_index=None)
    assert relative(dh[2:], expected[1][2:]) < 2e-3  # the result itself is subnormal in fp16
    assert dh[1].eq(0).all()
    assert relative(dw, expected[2]) < 1e-3


@pytest.mark.parametrize("needs", [(h, w, b) for h in (0, 1) for w in (0, 1) for b in (0, 1)])
def test_needed_gradients_alone(needs):
    hidden, weight, target = draw(100, 72, 700, torch.bfloat16)
    bias = torch.randn(700, device="cuda")
    grad = torch.randn(100, device="cuda")
    problem = Problem(hidden, weight, target, bias=bias)
    problem.forward()
    every = [g.clone() for g in problem.backward(grad)]
    some = problem.backward(grad, needs)
    for need, e, s in zip(needs, every, some, strict=True):
        assert (s is not None) == bool(need)
        if need:
            assert same_bits(e, s)


def test_strides_and_types():
    hidden, weight, target = draw(6 * 5, 48, 300, torch.bfloat16)
    grad = torch.randn(30, device="cuda")
    _, logp, grads = run(grad, hidden, weight, target, ignore_index=None)
    apart = torch.empty(5, 6, 48, device="cuda", dtype=hidden.dtype).transpose(0, 1)
    apart.copy_(hidden.view(6, 5, 48))
    ids = torch.empty(5, 6, device="cuda", dtype=torch.int32).t()
    ids.copy_(target.view(6, 5))
    across = weight.t().contiguous().t()
    _, logp2, grads2 = run(grad, apart, across, ids, ignore_index=None)
    assert same_bits(logp, logp2)
    assert same_bits(grads[0], grads2[0])
    assert same_bits(grads[1], grads2[1])


def test_no_rows_and_no_active_rows():
    hidden, weight, target = draw(40, 64, 500, torch.bfloat16)
    grad = torch.randn(40, device="cuda")
    _, logp, (dh, dw, _) = run(grad, hidden, weight, torch.full_like(target, -100))
    assert logp.eq(0).all()
    assert dh.eq(0).all()
    assert dw.eq(0).all()
    _, logp, (_, dw, _) = run(grad[:0], hidden[:0], weight, target[:0])
    assert logp.numel() == 0
    assert dw.eq(0).all()


@pytest.mark.parametrize(
    ("n", "dim", "vocab"),
    [(70000, 64, 32768), (130, 2048, 1_100_000)],
    ids=["rows_x_vocab", "vocab_x_dim"],
)
def test_beyond_31_bits(n, dim, vocab):
    hidden, weight, target = draw(n, dim, vocab, torch.bfloat16)
    target[-1] = vocab - 1
    grad = torch.randn(n, device="cuda")
    _, logp, (dh, dw, _) = run(grad, hidden, weight, target, ignore_index=None)
    z = hidden[-64:].double() @ weight.double().T
    expected = torch.log_softmax(z, -1).gather(1, target[-64:, None]).squeeze(1)
    assert (logp[-64:].double() - expected).abs().max() < 1e-4
    assert torch.isfinite(dh).all()
    p = torch.softmax(z, -1)
    dz = -p * grad[-64:, None].double()
    dz[torch.arange(64), target[-64:]] += grad[-64:].double()
    assert relative(dh[-64:], dz @ weight.double()) < 6e-3
    # Rows of dW of the last columns.
    last = weight[-64:].double()
    z = hidden.double() @ last.T
    lse = torch.empty(n, device="cuda", dtype=torch.float64)
    for i in range(0, n, 4096):
        part = hidden[i : i + 4096].float() @ weight.float().T
        lse[i : i + 4096] = torch.logsumexp(part, 1)
    dz = -torch.exp(z - lse[:, None]) * grad[:, None].double()
    ids = target - (vocab - 64)
    rows = (ids >= 0).nonzero().flatten()
    dz[rows, ids[rows]] += grad[rows].double()
    assert relative(dw[-64:], dz.T @ hidden.double()) < 6e-3
