# SPDX-License-Identifier: Apache-2.0
"""One comparison of linear_logp with its peers: candidates, times, memory and errors.

As a program it is the fresh process in which extra_bytes() measures.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import harness
import numpy as np
import torch
from harness import Candidate

from rlk import jit
from rlk.check import contract, oracle

PRODUCT, PEAK, RLK = "bare product", "FMA peak", "rlk"
PEERS = ("torch eager", "torch.compile")


@dataclass(frozen=True)
class Case:
    """What all candidates of a comparison run on."""

    rows: int
    dim: int
    vocab: int
    dtype: str = "float32"
    which: str = "fwd"
    threads: int = 1

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.dim}x{self.vocab}"

    @property
    def flops(self) -> float:
        """Of the products that the formula asks for: one forward, three with the backward."""
        return 2.0 * self.rows * self.dim * self.vocab * (1 if self.which == "fwd" else 3)


@functools.lru_cache(maxsize=1)
def draw(rows: int, dim: int, vocab: int, dtype: str, device: str = "cpu") -> dict[str, Any]:
    """hidden 0.5 N(0,1), weight N(0,1)/sqrt(D), as trained heads about are; torch tensors."""
    random = torch.Generator(device).manual_seed(1)
    normal = functools.partial(torch.randn, generator=random, device=device)
    kind = getattr(torch, dtype)
    return {
        "hidden": (0.5 * normal(rows, dim)).to(kind),
        "weight": (normal(vocab, dim) / dim**0.5).to(kind),
        "target": torch.randint(vocab, (rows,), generator=random, device=device),
        "upstream": normal(rows),
    }


# --- Candidates -----------------------------------------------------------------------------------


def torch_logp(hidden: Any, weight: Any, target: Any) -> Any:
    """The usual way: logits in memory, from 16 bits widened before the softmax."""
    logits = torch.nn.functional.linear(hidden, weight).float()
    return torch.log_softmax(logits, -1).gather(-1, target[:, None])[:, 0]


@functools.lru_cache
def function_named(name: str) -> Callable[..., Any]:
    """The log-prob function of a candidate."""
    if name == "torch eager":
        return torch_logp
    if name == "torch.compile":
        # One process may hold many shapes: none of them shall fall back to eager in silence.
        torch._dynamo.config.recompile_limit = 1000
        return torch.compile(torch_logp, dynamic=False)
    return jit.linear_logp


def call_of(name: str, case: Case, rows: int | None = None) -> Callable[[], Any]:
    """One call of a candidate's pass, on the first `rows` rows."""
    drawn = draw(case.rows, case.dim, case.vocab, case.dtype)
    some = {part: drawn[part][:rows] for part in ("hidden", "target", "upstream")}
    return pass_of(function_named(name), drawn | some, case.which)


def pass_of(function: Callable[..., Any], drawn: dict[str, Any], which: str) -> Callable[[], Any]:
    """One call of a log-prob function's pass: the log-probs, or (log-probs, *gradients)."""
    inputs = drawn["hidden"], drawn["weight"]

    def forward() -> Any:
        with torch.no_grad():
            return function(*inputs, drawn["target"])

    leaves = [tensor.detach().requires_grad_() for tensor in inputs]

    def both() -> Any:
        logp = function(*leaves, drawn["target"])
        return logp, *torch.autograd.grad(logp, leaves, drawn["upstream"])

    return forward if which == "fwd" else both


def bare_product(case: Case) -> Callable[[], Any]:
    """The products alone, into memory that is there: with the backward, all three."""
    drawn = draw(case.rows, case.dim, case.vocab, case.dtype)
    hidden, weight = drawn["hidden"], drawn["weight"]
    logits = torch.zeros(case.rows, case.vocab, dtype=hidden.dtype)
    grads = torch.empty_like(hidden), torch.empty_like(weight)

    def run() -> None:
        torch.mm(hidden, weight.T, out=logits)
        if case.which != "fwd":
            torch.mm(logits, weight, out=grads[0])
            torch.mm(logits.T, hidden, out=grads[1])

    return run


def use(case: Case, arch: str | None = None) -> None:
    """Threads for all, and the CPU level that rlk compiles for."""
    torch.set_num_threads(case.threads)
    jit.configure(num_threads=case.threads, arch=arch)


def candidates_for(
    case: Case, peers: Sequence[str], archs: Sequence[str]
) -> tuple[list[Candidate], dict[str, str]]:
    """What can run, and why the others cannot. The first CPU level is plain rlk."""
    found, not_run = [], {}
    for i, arch in enumerate(archs):
        name = RLK if i == 0 else f"{RLK} {arch}"
        prepare = functools.partial(use, case, arch)
        found.append(Candidate(name, call_of(RLK, case), prepare))
    for peer in peers:
        try:
            call = call_of(peer, case)
            call()
            found.append(Candidate(peer, call))
        except Exception as error:  # whatever a peer's compiler may raise
            not_run[peer] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    found.append(Candidate(PRODUCT, bare_product(case)))
    library = harness.built("librlk_fma_peak.so")
    if library is None:
        not_run[PEAK] = "librlk_fma_peak.so is not built (./dev bench builds it)"
    else:
        found.append(Candidate(PEAK, harness.FmaPeak(library, case.threads).run))
    return found, not_run


# --- What is measured -----------------------------------------------------------------------------


def extra_bytes(name: str, case: Case, arch: str) -> int:
    """Resident memory that one call adds at its peak, its results included; a fresh process."""
    question = json.dumps({"name": name, "case": asdict(case), "arch": arch})
    extra: int = harness.run_child([__file__, question])["extra_bytes"]
    return extra


def answer_memory_question(question: str) -> None:
    """The other side of extra_bytes: prints JSON."""
    asked = json.loads(question)
    case = Case(**asked["case"])
    use(case, asked["arch"])
    # Code, threads and compilers come with a few rows; a compiled peer is made for one shape.
    call_of(asked["name"], case, None if asked["name"] == "torch.compile" else 2)()
    call = call_of(asked["name"], case)
    before = harness.forget_peak()
    result = call()
    peak = harness.peak_bytes()
    del result
    print(json.dumps({"extra_bytes": peak - before}))


def errors(name: str, case: Case) -> dict[str, float]:
    """Largest and mean distance of the log-probs from float64 over the same stored inputs; with
    the backward, of hidden's and weight's gradients too, relative to the largest of each."""
    drawn = draw(case.rows, case.dim, case.vocab, case.dtype)
    exact = {k: t.double().numpy() for k, t in drawn.items() if k != "target"}
    ones = np.ones(case.rows)
    rows = oracle.LinearRows(exact["hidden"], exact["weight"], drawn["target"].numpy(), ones, None)
    coefficients = contract.load().coefficients("linear_logprob", case.dtype)
    forward = oracle.linear_logprob(rows, coefficients)
    got = call_of(name, case)()
    logp = got if case.which == "fwd" else got[0]
    error = np.abs(logp.detach().double().numpy() - forward.logp)
    found = {"max_error": float(error.max()), "mean_error": float(error.mean())}
    if case.which != "fwd":
        store = contract.load().coefficients("linear_logprob_grad", case.dtype)
        parts = ("hidden", "weight")
        grads = oracle.linear_logprob_gradients(
            rows, {"logp": exact["upstream"]}, forward, store, dict.fromkeys(parts, store)
        )
        for part, grad in zip(parts, got[1:], strict=True):
            value = grads[part].value
            distance = np.abs(grad.double().numpy() - value).max() / np.abs(value).max()
            found[f"max_error_grad_{part}"] = float(distance)
    return found


def compare(
    case: Case,
    peers: Sequence[str] = PEERS,
    archs: Sequence[str] = (),
    seconds: float = 30.0,
    rounds: int = 15,
    with_errors: bool = True,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One row a candidate, and who did not run.

    Up to `rounds` samples each, as long as `seconds` allow, at least 3.
    """
    archs = archs or [jit.settings()["arch"]]
    use(case, archs[0])
    candidates, not_run = candidates_for(case, peers, archs)
    fitting = harness.rounds_for(seconds, candidates, most=rounds)
    samples = harness.interleave(candidates, fitting)
    peak = samples.get(PEAK)
    peak_flops = next((c.run() for c in candidates if c.name == PEAK), 0.0)
    rows = []
    for candidate in candidates:
        name, taken = candidate.name, samples[candidate.name]
        flops = peak_flops if name == PEAK else case.flops
        row = asdict(case) | {"candidate": name, "samples_s": taken}
        row |= {"median_ms": 1e3 * statistics.median(taken), "least_ms": 1e3 * min(taken)}
        row["gflops"] = flops / statistics.median(taken) / 1e9
        if peak and name != PEAK:
            row["peak_share"] = harness.paired_ratio(peak, taken) * flops / peak_flops
        if name not in (RLK, PEAK):
            row["rlk_ratio"] = harness.paired_ratio(samples[RLK], taken)
        if name not in (PRODUCT, PEAK):
            arch = name.removeprefix(RLK).strip() if name.startswith(RLK) else ""
            plain = RLK if name.startswith(RLK) else name
            row["arch"] = arch or archs[0]
            row["extra_bytes"] = extra_bytes(plain, case, row["arch"])
            if with_errors:
                use(case, row["arch"])
                row |= errors(plain, case)
        rows.append(row)
    return rows, not_run


if __name__ == "__main__":
    answer_memory_question(sys.argv[1])
