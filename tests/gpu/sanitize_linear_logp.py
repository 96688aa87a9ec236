# SPDX-License-Identifier: Apache-2.0
"""Small calls of linear_logp, to be run under each tool of compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \
        python tests/gpu/sanitize_linear_logp.py

Without torch's cache every array is an allocation of its own, so that a step beyond it is seen.
Each call runs on fresh memory as it comes, for initcheck, and on memory full of NaN, which must not
show. `--specialize` runs the kernels compiled for the shape, too. Exits with 1 for a wrong result.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import rlk

# Rows, hidden size, vocabulary: around tile and leaf, odd, and with several waves of 1 MiB.
SHAPES = ((3, 40, 193), (70, 33, 400), (700, 136, 1000))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Every option and output; what the gradient of each output is times that of the log-prob.
OPTIONS = {"softcap": 2.0, "logit_scale": 0.5}
OUTPUTS = {"return_entropy": True, "return_lse": True}
UPSTREAM = (1.0, 0.5, -0.25)
BOUND = {torch.bfloat16: 8e-3, torch.float16: 2e-3, torch.float32: 1e-5}


def spread(t: torch.Tensor) -> torch.Tensor:
    """The same values, every second of longer rows, NaN between them."""
    room = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 3), torch.nan, dtype=t.dtype)
    room[..., 1 : 1 + 2 * t.shape[-1] : 2] = t
    return room.to(DEVICE)[..., 1 : 1 + 2 * t.shape[-1] : 2]


def calls(operands: tuple, upstream: torch.Tensor, options: dict[str, Any]) -> list[torch.Tensor]:
    """Outputs and gradients of one forward, one with its backward, and one of no gradients."""
    hidden, weight, target, bias = operands
    leaves = [t.detach().requires_grad_() for t in (hidden, weight, bias)]
    found = rlk.jit.linear_logp(leaves[0], leaves[1], target, leaves[2], **options)
    plain = rlk.jit.linear_logp(*operands, **options)
    found, plain = ((r,) if isinstance(r, torch.Tensor) else r for r in (found, plain))
    assert all(torch.equal(a, b.detach()) for a, b in zip(plain, found, strict=True))
    with_stats = rlk.jit.linear_logp(*operands, **options, return_stats=True)
    assert torch.equal(with_stats.log_prob, plain[0])
    assert (with_stats.stats.max_logit[with_stats.stats.argmax < 0] == 0).all()  # inactive rows
    upstreams = [upstream * factor for factor in UPSTREAM[: len(found)]]
    grads = torch.autograd.grad(found, leaves, upstreams)
    return [t.detach().cpu() for t in (*found, *grads)]


def filled_with_nan(call: Any) -> Any:
    """The call where torch hands out memory full of NaN."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        return call()
    finally:
        torch.use_deterministic_algorithms(False)


def expected(
    operands: list, upstream: torch.Tensor, active: torch.Tensor, heat: Any, every: bool
) -> list:
    """The same in float64 on the CPU."""
    hidden, weight, target, bias = operands
    leaves = [t.double().requires_grad_() for t in (hidden, weight, bias)]
    h = torch.where(active[:, None], leaves[0], 0.0)
    z = h @ leaves[1].T + leaves[2]
    if every:
        z = OPTIONS["softcap"] * torch.tanh(z * OPTIONS["logit_scale"] / OPTIONS["softcap"])
    z = z / heat
    ids = torch.where(active, target, 0)[:, None]
    logs = z.log_softmax(-1)
    found = (logs.gather(-1, ids)[:, 0], -(logs.exp() * logs).sum(-1), z.logsumexp(-1))
    found = tuple(torch.where(active, value, 0.0) for value in found[: 3 if every else 1])
    upstreams = [upstream.double() * factor for factor in UPSTREAM[: len(found)]]
    return [*(t.detach() for t in found), *torch.autograd.grad(found, leaves, upstreams)]


def run(
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    number: int,
    *,
    strided: bool = False,
    every: bool = False,
) -> None:
    rows, dim, vocab = shape
    g = torch.Generator().manual_seed(number)
    hidden = torch.randn(rows, dim, generator=g).to(dtype)
    weight = (torch.randn(vocab, dim, generator=g) / dim**0.5).to(dtype)
    bias = torch.randn(vocab, generator=g).to(torch.float32 if strided else dtype)
    target = torch.randint(vocab, (rows,), generator=g)
    upstream = torch.randn(rows, generator=g)
    active = torch.ones(rows, dtype=torch.bool)
    options: dict[str, Any] = {"temperature": 0.7}
    heat: Any = torch.tensor(0.7)
    if number % 2 or strided:  # inactive rows hold what must not be read
        active = torch.rand(rows, generator=g) > 0.3
        hidden[~active], target[~active], upstream[~active] = torch.nan, 2**40, torch.nan
        heat = torch.linspace(0.5, 2, rows)[:, None]
        options = {"temperature": heat[:, 0].to(DEVICE), "mask": active.to(DEVICE)}
    if every:
        options.update(OPTIONS, **OUTPUTS)
    inputs = [hidden, weight, target, bias]
    want = expected(inputs, upstream.nan_to_num(), active, heat.double(), every)
    move = spread if strided else lambda t: t.to(DEVICE)
    operands = (move(hidden), move(weight), target.to(DEVICE), move(bias))
    first = calls(operands, upstream.to(DEVICE), options)
    again = filled_with_nan(lambda: calls(operands, upstream.to(DEVICE), options))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)), "unwritten memory"
    for got, exact in zip(first[:-3], want[:-3], strict=True):
        assert (got.double() - exact).abs().max() < 2e-4, "output"
    for name, got, exact in zip(("hidden", "weight", "bias"), first[-3:], want[-3:], strict=True):
        error = (got.double() - exact).norm() / exact.norm()
        assert error < BOUND[dtype], f"gradient of {name}: {error:.2g}"


def run_bad_ids() -> None:
    hidden, weight = torch.randn(9, 40, device=DEVICE), torch.randn(193, 40, device=DEVICE)
    for bad in (-1, 193, 2**32 + 1, -(2**63)):
        target = torch.zeros(9, dtype=torch.long, device=DEVICE)
        target[5] = bad
        for call in (
            lambda target=target: rlk.jit.linear_logp(hidden, weight, target),
            lambda target=target: rlk.jit.linear_logp_backward(
                hidden[:, 0], hidden, weight, target
            ),
        ):
            said = "nothing"
            try:
                call()
                rlk.jit.check_errors()
            except ValueError as error:
                said = str(error)
            assert f"got {bad} in row 5" in said, said


def run_edges() -> None:
    """No rows, no active rows, columns and rows at -inf."""
    hidden, weight = torch.randn(9, 40, device=DEVICE), torch.randn(193, 40, device=DEVICE)
    target = torch.zeros(9, dtype=torch.long, device=DEVICE)
    for some in (hidden[:0], hidden):
        ids = torch.full_like(target[: len(some)], -100)
        grads = rlk.jit.linear_logp_backward(
            torch.ones(len(some), device=DEVICE), some, weight, ids
        )
        assert not grads.weight.any()
    bias = torch.zeros(193, device=DEVICE)
    bias[1:] = -torch.inf
    assert not rlk.jit.linear_logp(hidden, weight, target, bias).any()
    assert rlk.jit.linear_logp(hidden, weight, target, bias - torch.inf).isnan().all()


def main() -> None:
    number = 0
    for specialize in (False, True) if "--specialize" in sys.argv[1:] else (False,):
        rlk.jit.configure(specialize=specialize, workspace_mib=1)
        for dtype in BOUND:
            for shape in SHAPES:
                run(dtype, shape, number)
                number += 1
            run(dtype, SHAPES[1], number, strided=True)
            run(dtype, SHAPES[1], number, strided=True, every=True)
            run(dtype, SHAPES[2], number, every=True)
            print(f"{dtype}: as expected{', specialized' if specialize else ''}", flush=True)
    run_edges()
    run_bad_ids()
    print("all as expected", flush=True)


if __name__ == "__main__":
    main()
