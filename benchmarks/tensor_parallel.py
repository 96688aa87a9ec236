# SPDX-License-Identifier: Apache-2.0
"""linear_logp with the vocabulary over the GPUs of one host, beside one GPU and other ways.

python benchmarks/tensor_parallel.py [--ranks 2 4] [--shape NxDxV ...] [--burst MS]
                                     [--profile] [--out FILE.json]

A process a GPU, NCCL. A sample is calls in a row for --burst milliseconds, as long as those of the
slowest rank; all ranks begin together, their first calls queued. As many calls that do not count
come before, since a card's clock falls with what it has just done. Samples of all candidates are
taken in rounds, each in another order. One GPU's time is that of the slowest rank too, of calls
with the whole weight that all ranks make for themselves at once: cards of a host differ. The bits
of every rank are compared with a call of its own on the whole weight.

--profile: prints instead, by rank, times and kernels of forwards with the whole weight, with this
rank's part alone and over ranks, with the time between kernels and the clock after the calls.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import socket
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import torch
import torch.distributed as dist
from gpu import over_ranks as timing
from gpu import peers
from torch.distributed.nn import functional as over_ranks

from rlk import jit

SHAPES = ("4096x4096x128256", "8192x4096x151936")
FIRST, ROUNDS, MOST_CALLS = 3, 7, 64

Call = Callable[[], Any]


# --- Candidates -----------------------------------------------------------------------------------


def torch_gathered(hidden: Any, weight: Any, target: Any) -> Any:
    """Logits of all ranks side by side on each, in the storage type."""
    shards = over_ranks.all_gather(torch.nn.functional.linear(hidden, weight))
    logits = torch.cat(tuple(shards), -1)
    return torch.log_softmax(logits.float(), -1).gather(-1, target[:, None])[:, 0]


class _Same(torch.autograd.Function):
    """The identity, whose gradient is summed over ranks, as a column-parallel layer's input."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        dist.all_reduce(grad := grad.contiguous())
        return grad


class _VocabParallel(torch.autograd.Function):
    """Log-probs of logits whose columns ranks share: maximum, sum and target by all-reduces."""

    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any) -> Any:
        z = logits.float()
        most = z.amax(-1)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        z -= most[:, None]
        begin = dist.get_rank() * z.shape[1]
        here = (target >= begin) & (target < begin + z.shape[1])
        column = torch.where(here, target - begin, 0)
        of_target = torch.where(here, z.gather(-1, column[:, None])[:, 0], 0.0)
        dist.all_reduce(of_target)
        total = z.exp_().sum(-1)
        dist.all_reduce(total)
        ctx.save_for_backward(z.div_(total[:, None]), column, here)
        ctx.dtype = logits.dtype
        return of_target - total.log()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        p, column, here = ctx.saved_tensors
        dz = p.mul_(-grad[:, None])
        dz.scatter_add_(-1, column[:, None], torch.where(here, grad, 0.0)[:, None])
        return dz.to(ctx.dtype), None


def torch_parallel(hidden: Any, weight: Any, target: Any) -> Any:
    """Logits in the storage type, softmax over ranks in float32: Megatron-LM's way."""
    logits = torch.nn.functional.linear(_Same.apply(hidden), weight)
    return _VocabParallel.apply(logits, target)


def verl(hidden: Any, weight: Any, target: Any) -> Any:
    return peers.verl(dist.group.WORLD)(hidden, weight, target)


def rlk(hidden: Any, weight: Any, target: Any, **options: Any) -> Any:
    return jit.linear_logp(hidden, weight, target, group=dist.group.WORLD, **options)


OVER_RANKS: dict[str, Callable[..., Any]] = {
    "rlk": rlk,
    "rlk, saved_mib=0": lambda h, w, t: rlk(h, w, t, saved_mib=0),
    "verl": verl,
    "torch, parallel softmax": torch_parallel,
    "torch, gathered logits": torch_gathered,
}


def passes(name: str, function: Any, hidden: Any, weight: Any, drawn: Any) -> dict[str, Call]:
    hidden, weight = (x.detach().requires_grad_() for x in (hidden, weight))

    def forward() -> Any:
        with torch.no_grad():
            return function(hidden, weight, drawn["target"])

    def both() -> Any:
        logp = function(hidden, weight, drawn["target"])
        return logp.detach(), *torch.autograd.grad(logp, (hidden, weight), drawn["upstream"])

    return {f"{name}, fwd": forward, f"{name}, fwd+bwd": both}


# --- Measuring ------------------------------------------------------------------------------------


def extra_mib(call: Call) -> float:
    """Most memory of a rank beyond what is there, the results included."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    most = torch.tensor([torch.cuda.max_memory_allocated() - before], device="cuda")
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most) / 2**20


def draw(rows: int, dim: int, vocab: int) -> dict[str, Any]:
    """The same on every rank."""
    generator = torch.Generator("cuda").manual_seed(rows + vocab)

    def normal(*sizes: int) -> Any:
        return torch.randn(sizes, device="cuda", generator=generator)

    return {
        "hidden": normal(rows, dim).bfloat16(),
        "weight": (normal(vocab, dim) / dim**0.5).bfloat16(),
        "target": torch.randint(0, vocab, (rows,), device="cuda", generator=generator),
        "upstream": normal(rows),
    }


def same_bits(drawn: dict[str, Any], shard: slice) -> bool:
    whole = passes("", jit.linear_logp, drawn["hidden"], drawn["weight"], drawn)
    logp, hidden, weight = whole[", fwd+bwd"]()
    parts = passes("", rlk, drawn["hidden"], drawn["weight"][shard], drawn)
    found = parts[", fwd+bwd"]()
    good = all(torch.equal(a, b) for a, b in zip(found, (logp, hidden, weight[shard]), strict=True))
    all_good = torch.tensor([int(good)], device="cuda")
    dist.all_reduce(all_good, dist.ReduceOp.MIN)
    return bool(all_good)


def calls_of(call: Call, burst_ms: float) -> int:
    """How many take so long, the same on every rank."""
    call()
    ms, _ = timing.burst(call, FIRST, held=True)
    return min(max(round(burst_ms / timing.of_slowest(ms)), 1), MOST_CALLS)


def measure(shape: tuple[int, int, int], burst_ms: float) -> list[dict[str, Any]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    drawn = draw(*shape)
    rows = shape[2] // ranks
    shard = slice(rank * rows, (rank + 1) * rows)
    facts = dict(zip(("rows", "dim", "vocab"), shape, strict=True)) | {"ranks": ranks}
    bits = same_bits(drawn, shard)
    calls = passes("one GPU", jit.linear_logp, drawn["hidden"], drawn["weight"], drawn)
    found: dict[str, dict[str, Any]] = {}
    for name, function in OVER_RANKS.items():
        calls |= passes(name, function, drawn["hidden"], drawn["weight"][shard].clone(), drawn)
    in_a_row: dict[str, int] = {}
    for name, call in list(calls.items()):
        try:
            in_a_row[name] = calls_of(call, burst_ms)
            found[name] = {"extra_mib": extra_mib(call)}
        except Exception as error:  # a peer that cannot run; the same on every rank
            found[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            del calls[name]
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    order = random.Random(0)  # the same on every rank
    for _ in range(ROUNDS):
        order.shuffle(names)
        for name in names:
            for _ in range(2):
                ms, _ = timing.burst(calls[name], in_a_row[name], held=True)
            times[name].append(timing.of_slowest(ms))
    for name, taken in times.items():
        which = name.rsplit(", ", 1)[1]
        ratio = harness.paired_ratio(taken, times[f"one GPU, {which}"])
        found[name] |= {"ms": statistics.median(taken), "of_one_gpu_by_degree": ratio * ranks}
    found["rlk, fwd+bwd"]["same_bits"] = bits
    return [facts | {"candidate": name} | row for name, row in found.items()]


def profile(shape: tuple[int, int, int]) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    drawn = draw(*shape)
    hidden, weight, target = (drawn[name] for name in ("hidden", "weight", "target"))
    rows = shape[2] // ranks
    part = weight[rank * rows : (rank + 1) * rows].clone()
    own_target = target % rows
    parts = [torch.zeros(n, 3, shape[0], device="cuda") for n in (1, ranks)]  # as it exchanges
    if rank == 0:
        print("{}x{}x{} on {}".format(*shape, ranks), flush=True)
    with torch.no_grad():
        timing.profile(
            {
                "whole weight": lambda: jit.linear_logp(hidden, weight, target),
                "part alone": lambda: jit.linear_logp(hidden, part, own_target),
                "over ranks": lambda: rlk(hidden, part, target),
                "its all-gather": lambda: dist.all_gather_into_tensor(parts[1], parts[0]),
            }
        )


def show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        size = f"{row['rows']}x{row['dim']}x{row['vocab']} on {row['ranks']}"
        if "failed" in row:
            print(f"{size:26s} {row['candidate']:34s} {row['failed']}", flush=True)
            continue
        bits = f", same bits: {row['same_bits']}" if "same_bits" in row else ""
        print(
            f"{size:26s} {row['candidate']:34s} {row['ms']:8.3f} ms, x degree / one GPU "
            f"{row['of_one_gpu_by_degree']:6.3f}, {row['extra_mib']:7.0f} MiB{bits}",
            flush=True,
        )


def work(
    rank: int,
    ranks: int,
    port: int,
    shapes: list[tuple[int, int, int]],
    burst_ms: float,
    profiles: bool,
    out: str,
) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0"}
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank)
    )
    rows: list[dict[str, Any]] = []
    try:
        for shape in shapes:
            if profiles:
                profile(shape)
            else:
                rows += measure(shape, burst_ms)
            torch.cuda.empty_cache()
    except Exception:
        traceback.print_exc()
        raise
    finally:
        if rank == 0:
            Path(out).write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", nargs="+", type=int, default=[torch.cuda.device_count()])
    add("--shape", nargs="+", default=list(SHAPES), metavar="NxDxV")
    add("--burst", type=float, default=40.0, metavar="MS")
    add("--profile", action="store_true")
    add("--out", type=Path)
    asked = parser.parse_args()
    shapes = [tuple(map(int, word.split("x"))) for word in asked.shape]
    rows: list[dict[str, Any]] = []
    for ranks in asked.ranks:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        part = Path(os.environ.get("TMPDIR", "/tmp")) / f"tensor_parallel_{port}.json"
        options = (asked.burst, asked.profile, str(part))
        torch.multiprocessing.spawn(work, (ranks, port, shapes, *options), ranks)
        rows += json.loads(part.read_text(encoding="utf-8"))
        part.unlink()
    show(rows)
    if asked.out:
        card = {"card": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count()}
        facts = harness.environment() | {"torch": torch.__version__} | card
        harness.write_json(asked.out, "tensor_parallel", facts, {"runs": rows})
    return 0 if all(row.get("same_bits", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
