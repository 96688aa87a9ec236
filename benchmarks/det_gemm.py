# SPDX-License-Identifier: Apache-2.0
"""det_gemm on a GPU: its bits and values, then its times beside cuBLAS's in the same run.

python benchmarks/det_gemm.py [--out FILE.json] [--check-seconds N] [--only large,few,wide,types]
                              [--tiles] [--rounds N]

Large products are timed by bursts, each between two bursts of torch.matmul on the same operands;
few rows by CUDA graphs of 32 calls, with 8 weights in turn, so that none is in the L2 cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu.clock import Clock, Runner

import rlk
from rlk import _core

TILES = ("128x192", "128x256", "64x128", "64x64", "64x32", "128x192-cluster")
LARGE_TILES = ("128x192", "128x256", "128x192-cluster")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# M, K, N of large products.
LARGE = ((4096, 4096, 4096), (8192, 4096, 14336), (4096, 4096, 12288))
FEW = ((1, 4096, 4096), (16, 4096, 4096), (64, 4096, 4096), (256, 4096, 4096), (256, 4096, 12288))
ROWS = (1, 2, 7, 16, 17, 63, 64, 65, 127, 129, 255, 256, 500)
WEIGHTS, CALLS = 8, 32


def normal(*sizes: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed + sum(sizes))
    return torch.randn(sizes, device="cuda", generator=generator).to(dtype)


def laid(matrix: Any, transposed: bool) -> Any:
    return matrix.T.contiguous().T if transposed else matrix


def same(a: Any, b: Any) -> bool:
    kind = torch.int32 if a.dtype == torch.float32 else torch.int16
    return a.shape == b.shape and bool(
        torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
    )


def accumulated(a: Any, g: Any, cuts: Sequence[int]) -> Any:
    into = torch.zeros(a.shape[1], g.shape[1], device="cuda")
    bounds = [0, *cuts, len(a)]
    for first, last in itertools.pairwise(bounds):
        _core.det_gemm_accumulate({"a": a[first:last], "grad_output": g[first:last], "into": into})
    return into


class Checks:
    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    def expect(self, good: bool, what: str) -> None:
        if good:
            self.passed += 1
        else:
            self.failed.append(what)
            print("FAIL", what, flush=True)

    def near(self, found: Any, a: Any, b: Any, what: str) -> None:
        exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        unit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
        bound = unit[found.dtype] * exact.abs() + (a.shape[1] / 8 + 2) * 2.0**-23 * size + 1e-30
        bound += 2.0**-25 if found.dtype == torch.float16 else 0.0
        worst = float(((found.double() - exact).abs() / bound).max())
        self.expect(worst <= 1.0, f"{what}: {worst:.3g} of the bound")  # NaN fails


def check(dtype: Any, name: str, m: int, k: int, n: int, checks: Checks) -> None:
    """Every tile and layout against the first, rows alone, gradients, sums over tokens."""
    x, b, g = (normal(*sizes, dtype=dtype) for sizes in ((m, k), (k, n), (m, n)))
    x[m // 3] = 0.0  # sums of nothing but zeros, of either sign
    bias = normal(n, dtype=torch.float32)
    label = f"{name} {m}x{k}x{n}"
    rlk.jit.configure(tile="tuned")
    first = rlk.jit.det_gemm(x, b)
    with_bias = rlk.jit.det_gemm(x, b, bias, out_dtype="float32")
    grads = rlk.jit.det_gemm_backward(g, x, b)
    total = accumulated(x, g, [])
    rows = torch.randperm(m, device="cuda")[: min(m, 48)]
    checks.near(first[rows], x[rows], b, f"{label} values")
    checks.near(grads.a[rows], g[rows], b.T, f"{label} dA")
    cols = torch.randperm(k, device="cuda")[: min(k, 48)]
    checks.near(grads.b[cols], x.T[cols], g, f"{label} dB")
    checks.near(total[cols], x.T[cols], g, f"{label} dB kept in float32")
    checks.expect(same(total.to(dtype), grads.b), f"{label} dB is its float32 sum, rounded")
    tiles = TILES if dtype != torch.float32 else ("64x64", "128x128")
    for tile in tiles:
        rlk.jit.configure(tile=tile)
        for at, bt in ((0, 0), (0, 1), (1, 0), (1, 1)):
            what = f"{label} tile {tile} a{'.T' * at} b{'.T' * bt}"
            own, other = laid(x, bool(at)), laid(b, bool(bt))
            checks.expect(same(rlk.jit.det_gemm(own, other), first), what)
            wide = rlk.jit.det_gemm(own, other, bias, out_dtype="float32")
            checks.expect(same(wide, with_bias), f"{what} bias, float32")
        got = rlk.jit.det_gemm_backward(g, x, laid(b, True))
        checks.expect(same(got.a, grads.a), f"{label} tile {tile} dA")
        checks.expect(same(got.b, grads.b), f"{label} tile {tile} dB")
        unit = 192 if dtype == torch.float32 else 16
        for cuts in ([unit], [unit, 5 * unit], [m // unit // 2 * unit]):
            if cuts[-1] < m:
                checks.expect(same(accumulated(x, g, cuts), total), f"{label} {tile} cuts {cuts}")
        for count in (c for c in ROWS if c <= m):
            part = torch.randperm(m, device="cuda")[:count]
            checks.expect(same(rlk.jit.det_gemm(x[part], b), first[part]), f"{what} {count} rows")
    rlk.jit.configure(tile="tuned", specialize=False)
    checks.expect(same(rlk.jit.det_gemm(x, b), first), f"{label} generic")
    checks.expect(same(rlk.jit.det_gemm_backward(g, x, b).b, grads.b), f"{label} generic dB")
    checks.expect(same(accumulated(x, g, []), total), f"{label} generic dB kept in float32")
    rlk.jit.configure(specialize=True)
    for count in (c for c in ROWS if c <= m):
        part = torch.randperm(m, device="cuda")[:count]
        checks.expect(same(rlk.jit.det_gemm(x[part], b), first[part]), f"{label} {count} rows")
        checks.expect(
            same(rlk.jit.det_gemm_backward(g[part], x[part], b, needs=("a",)).a, grads.a[part]),
            f"{label} dA of {count} rows",
        )


def run_checks(seconds: float) -> Checks:
    checks, start = Checks(), time.monotonic()
    cases = [
        *((name, 500, 1032, 776) for name in DTYPES),
        *((name, 130, 77, 301) for name in DTYPES),
        ("bf16", 1, 8, 1),
        ("bf16", 64, 64, 64),
        ("fp16", 1025, 200, 264),
        ("bf16", 2048, 4096, 4096),
    ]
    for name, m, k, n in cases:
        if time.monotonic() - start > seconds:
            checks.failed.append(f"no time was left for {name} {m}x{k}x{n}")
            break
        try:
            check(DTYPES[name], name, m, k, n, checks)
        except Exception as error:  # the rest may still tell something
            checks.failed.append(f"{name} {m}x{k}x{n}: {type(error).__name__}: {error}"[:400])
            print("FAIL", checks.failed[-1], flush=True)
            torch.cuda.synchronize()
    print(f"checks: {checks.passed} passed, {len(checks.failed)} failed", flush=True)
    return checks


def graph_ms(call: Callable[[int], Any]) -> Callable[[], float]:
    """A replayer of CALLS calls, that gives milliseconds a call."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(i % WEIGHTS) for i in range(CALLS)]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay() -> float:
        del kept[:]  # the graph's pool keeps what they point to
        graph.replay()
        begin.record()
        for _ in range(3):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / (3 * CALLS)

    return replay


class Times:
    def __init__(self, rounds: int) -> None:
        self.rounds, self.clock, self.rows = rounds, Clock("cuda"), []

    def add(
        self, what: str, way: str, ms: float, base_ms: float, ratio: float, flops: float
    ) -> None:
        row = {"what": what, "way": way, "ms": ms, "cublas_ms": base_ms, "ratio": ratio}
        self.rows.append(row | {"tflops": flops / ms / 1e9})
        print(
            f"{what:34s} {way:12s} {ms:9.4f} {base_ms:9.4f} {ratio:6.3f} {flops / ms / 1e9:6.0f}",
            flush=True,
        )

    def large(self, what: str, base: Any, ways: dict[str, Any], flops: float) -> None:
        def runner(name: str, run: Any) -> Runner:
            tile = name if name in TILES else "tuned"
            return Runner(run, lambda: rlk.jit.configure(tile=tile))

        runners = {name: runner(name, run) for name, run in ways.items()}
        samples, failed = self.clock.race(base, runners, self.rounds, 6.0)
        for name, taken in samples.items():
            s = taken.summary()
            self.add(what, name, s["ms"], s["g_ms"], s["ratio"], flops)
        for name, why in failed.items():
            print("FAIL", what, name, why, flush=True)

    def few(self, what: str, base: Any, ways: dict[str, Any], flops: float) -> None:
        product = graph_ms(base)
        replays = {}
        for name, run in ways.items():
            try:
                replays[name] = graph_ms(run)
            except Exception as error:
                print("FAIL", what, name, error, flush=True)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in replays}
        for _ in range(self.rounds + 2):
            before = product()
            for name, replay in replays.items():
                ms, after = replay(), product()
                taken[name].append((ms, (before + after) / 2))
                before = after
        for name, pairs in taken.items():
            ratio = statistics.median(ms / base for ms, base in pairs)
            ms, base_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
            self.add(what, name, ms, base_ms, ratio, flops)


def with_tile(tile: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        rlk.jit.configure(tile=tile)
        return run(*arguments)

    return call


def large_products(times: Times, tiles: Sequence[str]) -> None:
    for m, k, n in LARGE:
        x, w, g = normal(m, k), normal(n, k) / k**0.5, normal(m, n)
        given = {"a": x, "b": w.T, "grad_output": g}
        label, flops = f"{m}x{k}x{n} bf16", 2.0 * m * k * n

        def own(given: Any = given) -> Any:
            return rlk.jit.det_gemm(given["a"], given["b"])

        def grad_a(given: Any = given) -> Any:
            return _core.det_gemm_backward(given, True, False, False, True)

        def grad_b(given: Any = given) -> Any:
            return _core.det_gemm_backward(given, False, True, False, True)

        for what, run, base in (
            (label, own, lambda x=x, w=w: x @ w.T),
            (f"{label} dA", grad_a, lambda g=g, w=w: g @ w),
            (f"{label} dB", grad_b, lambda g=g, x=x: g.T @ x),
        ):
            times.large(what, base, dict.fromkeys(("own", *tiles), run), flops)


def float32_results(times: Times) -> None:
    m, k, n = LARGE[2]
    x, w, g = normal(m, k), normal(n, k) / k**0.5, normal(m, n)
    into, flops = torch.zeros(n, k, device="cuda"), 2.0 * m * k * n
    times.large(
        f"{m}x{k}x{n} float32 out",
        lambda: torch.mm(x, w.T, out_dtype=torch.float32),
        {"own": lambda: rlk.jit.det_gemm(x, w.T, out_dtype="float32")},
        flops,
    )
    times.large(
        f"{m}x{k}x{n} dB accumulated",
        lambda: torch.addmm(into, g.T, x, out_dtype=torch.float32),
        {"own": lambda: _core.det_gemm_accumulate({"a": g, "grad_output": x, "into": into})},
        flops,
    )


def other_types(times: Times) -> None:
    for name in ("fp16", "fp32"):
        x, w = (normal(4096, 4096, dtype=DTYPES[name], seed=i) / 8 for i in range(2))
        times.large(
            f"4096x4096x4096 {name}",
            lambda x=x, w=w: x @ w.T,
            {"own": lambda x=x, w=w: rlk.jit.det_gemm(x, w.T)},
            2.0 * 4096**3,
        )


def few_rows(times: Times, tiles: Sequence[str]) -> None:
    for m, k, n in FEW:
        weights = [normal(n, k, seed=i) / k**0.5 for i in range(WEIGHTS)]
        x = normal(m, k)

        def product(i: int, x: Any = x, weights: Any = weights) -> Any:
            return rlk.jit.det_gemm(x, weights[i].T)

        ways = {"own": with_tile("tuned", product)} | {t: with_tile(t, product) for t in tiles}
        base = lambda i, x=x, w=weights: x @ w[i].T  # noqa: E731
        times.few(f"{m}x{k}x{n} bf16 cold", base, ways, 2.0 * m * k * n)


def run_times(rounds: int, all_tiles: bool, only: Sequence[str]) -> list[dict[str, Any]]:
    times = Times(rounds)
    head = ("product", "way", "ms", "cuBLAS ms", "ratio", "TFLOP/s")
    print("{:34s} {:12s} {:>9s} {:>9s} {:>6s} {:>6s}".format(*head), flush=True)
    parts: dict[str, Callable[[], None]] = {
        "few": lambda: few_rows(times, TILES if all_tiles else ()),
        "types": lambda: other_types(times),
        "large": lambda: large_products(times, LARGE_TILES if all_tiles else ()),
        "wide": lambda: float32_results(times),
    }
    for name in only or parts:
        try:
            parts[name]()
        except Exception as error:  # the rest may still tell something
            print(f"FAIL {type(error).__name__}: {error}"[:400], flush=True)
            torch.cuda.synchronize()
    return times.rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check-seconds", type=float, default=90.0, help="0: no checks")
    parser.add_argument("--only", type=lambda text: text.split(","), default=())
    parser.add_argument("--tiles", action="store_true", help="times every tile, not only the own")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    if asked.check_seconds > 0:
        checks = run_checks(asked.check_seconds)
        found |= {"passed": checks.passed, "failed": checks.failed}
    with torch.no_grad():
        found["times"] = run_times(asked.rounds, asked.tiles, asked.only)
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if found.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
