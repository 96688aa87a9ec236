# SPDX-License-Identifier: Apache-2.0
"""Times of calls that ranks make at once, and where a forward over ranks spends its own."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness
import torch
import torch.distributed as dist

Call = Callable[[], Any]
Kernel = tuple[str, float, float]  # name, start and duration in us

ROUNDS, TRACED = 7, 4
#: Cycles that a stream is held while the host queues calls, and those that tell the clock; 0.5 ms.
HELD = 1_000_000
#: (column, whether the device waits for the host first, calls in a row)
WAYS = (("1, idle", False, 1), ("4, idle", False, 4), ("4", True, 4), ("16", True, 16))


def begin_together(held: bool) -> None:
    """All ranks come here; `held`: what follows begins at once on all devices, with the first calls
    in their queues, so that it shows no time of the host unless that is slower for long."""
    torch.cuda.synchronize()
    dist.barrier()
    if held:
        torch.cuda._sleep(HELD)
        dist.all_reduce(torch.zeros(1, device="cuda"))


def burst(call: Call, calls: int, held: bool) -> tuple[float, float]:
    """(milliseconds, microseconds of the host) a call of this rank."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_together(held)
    start.record()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    host = 1e6 * (time.perf_counter() - begun) / calls
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls, host


def of_slowest(value: float) -> float:
    most = torch.tensor([value], device="cuda")
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


# --- Where the time goes --------------------------------------------------------------------------


def megahertz() -> float:
    """The clock of this device just now."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(HELD)
    end.record()
    end.synchronize()
    return HELD / start.elapsed_time(end) / 1e3


def traced(call: Call) -> list[Kernel]:
    """What the device ran for TRACED calls, in order; none where torch's profiler cannot tell."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler: Any = None
    try:
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
    except Exception as error:  # the others make their calls: so does this rank
        print(f"no profile: {error}", flush=True)
        profiler = None
    begin_together(held=True)
    for _ in range(TRACED):
        call()
    torch.cuda.synchronize()
    if profiler is None:
        return []
    try:
        profiler.stop()
        events = profiler.events()
    except Exception as error:
        print(f"no profile: {error}", flush=True)
        return []
    found = [
        (event.name, event.time_range.start, event.time_range.elapsed_us())
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith("nccl:")  # an annotation around a kernel
        and not getattr(event, "is_user_annotation", False)
    ]
    found.sort(key=lambda kernel: kernel[1])
    begins = [i for i, (name, *_) in enumerate(found) if "AllReduce" in name]
    return found[begins[-1] + 1 :] if begins else found


def by_place(kernels: Sequence[Kernel]) -> list[tuple[str, float, float]]:
    """(name, duration, time between it and the one before) of each kernel of a call, medians over
    the calls after the first."""
    count, rest = divmod(len(kernels), TRACED)
    if rest:  # not as many in each call: the last ones as they are
        pairs = itertools.pairwise(kernels[-12:])
        return [(after[0], after[2], after[1] - sum(before[1:])) for before, after in pairs]
    found = []
    for place in range(count):
        indices = range(count + place, len(kernels), count)
        durations = [kernels[i][2] for i in indices]
        gaps = [kernels[i][1] - sum(kernels[i - 1][1:]) for i in indices]
        name = kernels[place][0]
        found.append((name, statistics.median(durations), statistics.median(gaps)))
    return found


def profile(calls: dict[str, Call]) -> None:
    """Prints what each rank's device does in these calls, which all ranks make."""
    rank = dist.get_rank()
    for call in calls.values():
        for _ in range(3):
            call()
    alone, call_alone = next(iter(calls.items()))  # as a figure of one GPU, while the others idle
    others = {f"{alone}, rank 0 alone": call_alone if rank == 0 else lambda: None}
    own: dict[str, Any] = {}
    for name, call in (calls | others).items():
        own[name] = {}
        for column, held, count in WAYS:
            samples = [(*burst(call, count, held), megahertz()) for _ in range(ROUNDS)]
            own[name][column] = [statistics.median(of) for of in zip(*samples, strict=True)]
    show_times(of_all(own))
    traced(call_alone)  # the profiler's own first time
    show_kernels(of_all({name: by_place(traced(call)) for name, call in calls.items()}))


def of_all(own: Any) -> list[Any]:
    """What each rank has, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def show_times(of_ranks: Sequence[Any]) -> None:
    rows = []
    for rank, times in enumerate(of_ranks):
        for name, columns in times.items():
            if rank == 0 or "rank 0 alone" not in name:
                cells = [f"{ms:.3f} {mhz:.0f}" for ms, _, mhz in columns.values()]
                rows.append([name, rank, *cells, f"{columns['16'][1]:.0f}"])
    titles = [f"ms MHz: {column}" for column, *_ in WAYS]
    show("A call, by calls in a row", ["call", "rank", *titles, "host us"], rows)


def show_kernels(of_ranks: Sequence[Any]) -> None:
    rows: list[list[Any]] = []
    for rank, kernels in enumerate(of_ranks):
        for name, places in kernels.items():
            rows += [[name, rank, kernel[:48], us, gap] for kernel, us, gap in places]
            total = sum(us for _, us, _ in places), sum(gap for *_, gap in places)
            rows.append([name, rank, "all", *total])
    show("Kernels of a call", ["call", "rank", "kernel", "us", "gap before"], rows)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if dist.get_rank() == 0:
        harness.print_table(title, columns, rows)
