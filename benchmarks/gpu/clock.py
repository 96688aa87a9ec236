# SPDX-License-Identifier: Apache-2.0
"""Times and memory on a device: bursts between CUDA events, torch's peak; on the CPU, the clock."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import harness
import torch
from harness import MIB

BURST_MS = 20.0
MOST_CALLS = 50


@dataclass
class Samples:
    """Milliseconds a call of each burst, and of the plain products around it."""

    calls: int
    ms: list[float] = field(default_factory=list)
    product_ms: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {
            "ms": statistics.median(self.ms),
            "g_ms": statistics.median(self.product_ms),
            "ratio": harness.paired_ratio(self.ms, self.product_ms),
            "calls": self.calls,
            "samples_ms": self.ms,
            "g_samples_ms": self.product_ms,
        }


@dataclass(frozen=True)
class Runner:
    """A candidate ready to be timed."""

    run: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None  # before each burst, outside the clock


class Clock:
    def __init__(
        self, device: str, burst_ms: float = BURST_MS, most_calls: int = MOST_CALLS
    ) -> None:
        self._cuda = device == "cuda"
        self._burst_ms = burst_ms
        self._most_calls = most_calls

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def burst_ms(self, run: Callable[[], Any], calls: int) -> float:
        """Milliseconds a call. One call leads in, so that the queue is never empty."""
        run()
        if not self._cuda:
            start = time.perf_counter()
            for _ in range(calls):
                run()
            return 1e3 * (time.perf_counter() - start) / calls
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / calls

    def calls_for(self, run: Callable[[], Any]) -> int:
        """How many calls a burst has."""
        one = max(self.burst_ms(run, 2), 1e-3)
        return max(1, min(self._most_calls, math.ceil(self._burst_ms / one)))

    def race(
        self,
        product: Callable[[], Any],
        runners: dict[str, Runner],
        rounds: int,
        seconds: float,
        begin: Callable[[str], None] = lambda name: None,
    ) -> tuple[dict[str, Samples], dict[str, str]]:
        """Bursts of every runner in turn, a burst of the plain product before and after each.

        Each round has a random order of its own. Stops after `rounds`, or after `seconds` where
        three rounds are there. Returns the samples, and why a runner dropped out.
        """
        product_calls = self.calls_for(product)
        samples: dict[str, Samples] = {}
        failed: dict[str, str] = {}

        def attempt(name: str, what: Callable[[Callable[[], Any]], Any]) -> Any:
            begin(name)
            try:
                runners[name].prepare()
                return what(runners[name].run)
            except Exception as error:
                self.synchronize()  # raises where the device is lost: nothing here can go on
                failed[name] = said(error)
                return None

        for name in runners:
            calls = attempt(name, self.calls_for)
            if calls is not None:
                samples[name] = Samples(calls)
        order = random.Random(1)
        start = time.perf_counter()
        for number in range(rounds):
            if number >= 3 and time.perf_counter() - start > seconds:
                break
            names = [name for name in runners if name not in failed]
            before = self.burst_ms(product, product_calls)
            for name in order.sample(names, len(names)):
                calls = samples[name].calls
                ms = attempt(name, lambda run, calls=calls: self.burst_ms(run, calls))
                if ms is None:
                    continue
                after = self.burst_ms(product, product_calls)
                samples[name].ms.append(ms)
                samples[name].product_ms.append((before + after) / 2)
                before = after
        return {name: taken for name, taken in samples.items() if taken.ms}, failed

    def extra_mib(self, run: Callable[[], Any]) -> float | None:
        """The most that torch's allocator gave out during a call, beyond what was there before and
        what the call returned."""
        if not self._cuda:
            return None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = run()
        torch.cuda.synchronize()
        returned = sum(tensor.nbytes for tensor in tensors(result) if tensor is not None)
        return (torch.cuda.max_memory_allocated() - before - returned) / MIB

    def outside_torch_mib(self) -> float | None:
        """Device memory in use that torch's allocator does not hold: contexts, code, and what a
        library took for itself. Other processes' memory counts in."""
        if not self._cuda:
            return None
        free, total = torch.cuda.mem_get_info()
        return (total - free - torch.cuda.memory_reserved()) / MIB


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError where Python code is still inside after that; on the main thread alone."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tensors(result: Any) -> tuple[Any, ...]:
    """A call's result as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def said(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
