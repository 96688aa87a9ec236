# SPDX-License-Identifier: Apache-2.0
"""rlk.check.run(): the command line's work as one function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from . import contract as contracts
from .candidates import (
    Candidate,
    Misuse,
    foreign_candidate,
    from_function,
    torch_candidate,
)
from .case import SHORT, Case
from .checks import Session
from .corpus import corpus_jobs, known_bugs
from .peers import NAMES as PEERS
from .peers import peer_candidate
from .report import Report
from .result import Result
from .rlk_candidate import VARIANTS, rlk_candidate
from .runner import (
    Job,
    Shared,
    case_jobs,
    expect_positive,
    invariance_jobs,
    nothing,
    random_jobs,
    refusal_jobs,
    rule_jobs,
    run_jobs,
    suite_jobs,
)
from .spec import OpSpec
from .specs import SPECS

DTYPES = {**{short: dtype for dtype, short in SHORT.items()}, **{d: d for d in SHORT}}
INPUT_MODES = ("random", "constant", "adversarial", "benchmark")
BLOCKS = (1, 7, 132)
MOST_BLOCKS = 1 << 20  # that the setting max_sms takes
# What says how one size is checked; the suite, random cases and known bugs have their own.
OF_ONE_SIZE = (
    *("batch", "seq", "vocab", "hidden", "input_mode", "constant_value", "token_value"),
    *("options", "grad", "invariance"),
)


def run(
    op: str = "linear_logp",
    candidate: str | Callable[..., Any] = "rlk",
    *,
    device: str = "cpu",
    dtype: str | Sequence[str] | None = None,
    variant: str | None = None,
    framework: str | None = None,
    adapter: str | None = None,
    target: str | None = None,
    arch_key: str | None = None,
    options: Mapping[str, Any] | str | None = None,
    batch: int = 2,
    seq: int = 8,
    vocab: int = 257,
    hidden: int = 96,
    input_mode: str = "random",
    constant_value: float | None = None,
    token_value: int | None = None,
    seed: int = 0,
    grad: bool = False,
    invariance: bool = False,
    suite: bool = False,
    random: int | None = None,
    corpus: str | None = None,
    blocks: Sequence[int] | None = None,
    contract: Path | str | None = None,
    on_start: Callable[[Report, Result], None] = nothing,
    on_result: Callable[[Result], None] = nothing,
) -> Report:
    """Checks a candidate and returns a Report; a failing candidate is no exception.

    candidate: "rlk", "torch", the name of a peer (rlk.check.peers.NAMES), "MODULE:FUNCTION" or a
    function. dtype: fp32, fp16, bf16 or a list
    (default all). variant: generic, specialized or both (rlk alone; default both). suite=True
    runs the whole suite, random=N adds N random cases; else the sizes batch x seq, vocab and
    hidden are checked, gradients with grad=True, the transforms and rules with invariance=True.
    input_mode: random, constant, benchmark, another of the op's kinds, or adversarial for these.
    blocks: for how many multiprocessors the transform of that name forces grids (default 1, 7 and
    132), where the candidate lets it (rlk on CUDA).
    corpus="all", or a name, runs the known bugs of the op alone, see docs/corpus.md. What has no
    part in a run, as vocab beside suite=True, is refused.
    options: what such a case passes besides, {"temperature": "row", "bias": "none"}, or "all" for
    each set of the suite; by default with and without a bias.

    The candidate runs in this process: one that ends it ends the check. rlk-check does not share
    its process.

    Raises Misuse (a ValueError that names the argument) before any work.

    Example:
        report = rlk.check.run(candidate=my_kernel, vocab=50257, hidden=768, grad=True)
        assert report.ok, report.failures()
    """
    spec = _spec(op)
    _expect_whole(dict(locals()))
    _expect_a_part(spec, dict(locals()))
    expect_positive(batch=batch, seq=seq, vocab=vocab, hidden=hidden)
    if random is not None:
        expect_positive(random=random)
    if seed < 0:
        raise Misuse(f"seed: expected >= 0, got {seed}")
    if blocks is not None and (not blocks or not all(0 < n <= MOST_BLOCKS for n in blocks)):
        got = ", ".join(map(str, blocks)) or "none"
        raise Misuse(f"blocks: expected numbers from 1 to {MOST_BLOCKS}, got {got}")
    if token_value is not None and not 0 <= token_value < vocab:
        raise Misuse(f"token_value: expected 0 to {vocab - 1}, got {token_value}")
    modes = dict.fromkeys((*INPUT_MODES, *spec.kinds))
    if input_mode not in modes:
        raise Misuse(f"input_mode: expected one of {', '.join(modes)}, got {input_mode}")
    if invariance and input_mode not in ("random", "constant"):
        raise Misuse(f"invariance: expected an input_mode of random or constant, got {input_mode}")
    dtypes = _dtypes(dtype)
    rules = contracts.load(contract or contracts.DEFAULT_PATH)
    if arch_key is not None and not rules.knows(arch_key):
        raise Misuse(f"arch_key: expected a target such as x86-64-v3 or sm_90a, got {arch_key}")
    values: dict[str, Any] = {}
    if constant_value is not None:
        values["constant_value"] = constant_value
    if token_value is not None:
        values |= {"token_value": token_value, "ignored": 0}
    kinds = spec.adversarial if input_mode == "adversarial" else (input_mode,)
    sizes = spec.sizes_of(vocab=vocab, hidden=hidden)
    cases = [
        Case(op, name, (batch, seq), sizes, kind, "contiguous", {**chosen, **values}, seed)
        for name in dtypes
        for kind in kinds
        for chosen in _option_sets(spec, kind, options)
    ]
    try:
        for case in cases:
            spec.build(case)  # what cannot be built is misuse, said before any work
    except (MemoryError, ValueError) as error:
        sides = {"batch": batch, "seq": seq, **sizes}
        name = max(sides, key=lambda side: sides[side])
        if isinstance(error, ValueError) and sides[name] < 1 << 40:  # not NumPy's of a huge size
            raise
        got = f"got {sides[name]}"
        raise Misuse(f"{name}: expected a size that memory has room for, {got}") from error
    shared = Shared()
    bugs = [] if corpus is None else known_bugs(corpus)
    if bugs and op not in {bug.op for bug in bugs}:
        raise Misuse(f"op: expected {bugs[0].op} for {corpus}, got {op}")

    def jobs(chosen: Candidate) -> Iterator[Job]:
        if corpus is not None:
            yield from corpus_jobs(spec, chosen, corpus, seed)
        if suite:
            yield from suite_jobs(spec, chosen, dtypes, seed, shared)
        if random:
            yield from random_jobs(spec, chosen, random, seed)
        if suite or random or corpus is not None:
            return
        for case in cases:
            yield from case_jobs(spec, chosen, case, grad)
            if invariance:
                yield from invariance_jobs(spec, chosen, case)
                yield from rule_jobs(spec, chosen, case)
                yield from refusal_jobs(chosen, case)

    results: list[Result] = []
    report = None
    for make in _candidates(spec, candidate, device, framework, adapter, variant, target):
        found = make()
        if blocks is not None and found.set_blocks is None:
            raise Misuse(f"blocks: expected none for {found.name} on {device}, which sets no grids")
        found.blocks = tuple(blocks or BLOCKS)
        arch = arch_key or found.target
        report = Report(
            op,
            found.name,
            device,
            found.framework.name,
            found.target,
            arch,
            found.framework.gpu(),
            rules,
            results,
            found.packages,
        )

        def start(pending: Result, report: Report = report) -> None:
            on_start(report, pending)

        def finish(result: Result) -> None:
            results.append(result)
            on_result(result)

        with found.scope():
            run_jobs(Session(spec, found, rules, arch), jobs(found), start, finish)
    assert report is not None
    return report


def _expect_whole(given: Mapping[str, Any]) -> None:
    """Raises Misuse for an argument of run() that is no number where it must be a whole one."""
    for name in ("batch", "seq", "vocab", "hidden", "token_value", "seed", "random"):
        value = given[name]
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole and (value is not None or name not in ("token_value", "random")):
            raise Misuse(f"{name}: expected a whole number, got {value!r}")


def _expect_a_part(spec: OpSpec, given: Mapping[str, Any]) -> None:
    """Raises Misuse for an argument of run() that would be ignored."""
    defaults = {name: one.default for name, one in inspect.signature(run).parameters.items()}
    modes = {"corpus": "known bugs", "suite": "the whole suite", "random": "random cases"}
    chosen = [words for name, words in modes.items() if given[name] != defaults[name]]
    unused = dict.fromkeys(OF_ONE_SIZE, f"none with {chosen[0]}") if chosen else {}
    if given["corpus"] is not None:  # these alone
        unused |= dict.fromkeys(("suite", "random"), "none with known bugs")
    if chosen and not given["suite"]:
        unused["dtype"] = f"none with {chosen[0]}, which have their own"
    for name in {"vocab", "hidden"} - {*spec.sizes}:
        unused.setdefault(name, f"none for {spec.name}, which has no such size")
    if spec.ids is None:
        unused.setdefault("token_value", f"none for {spec.name}, which has no token ids")
    if given["input_mode"] != "constant":
        unused.setdefault("constant_value", "an input_mode of constant")
    if not (given["suite"] or given["corpus"] is not None or given["invariance"]):
        unused["blocks"] = "invariance, the whole suite or known bugs with it"
    for name, expected in unused.items():
        if given[name] != defaults[name]:
            raise Misuse(f"{name}: expected {expected}, got {given[name]}")


def _candidates(
    spec: OpSpec,
    candidate: str | Callable[..., Any],
    device: str,
    framework: str | None,
    adapter: str | None,
    variant: str | None,
    target: str | None,
) -> list[Callable[[], Candidate]]:
    """How to make each candidate, in the order to run; all misuse is found here already."""
    if candidate == "rlk":
        chosen = VARIANTS if variant in (None, "both") else (variant or "",)
        if adapter is not None:
            raise Misuse(f"adapter: expected none for rlk, got {adapter}")
        rlk_candidate(spec, device, framework, chosen[0], target)
        return [_maker(spec, device, framework, v, target) for v in chosen]
    if variant is not None:
        raise Misuse(f"variant: expected none for another candidate than rlk, got {variant}")
    if target is not None:
        raise Misuse(f"target: expected none for another candidate than rlk, got {target}")
    if candidate == "torch" or (isinstance(candidate, str) and candidate in PEERS):
        if framework not in (None, "torch"):
            raise Misuse(f"framework: expected torch for {candidate}, got {framework}")
        if adapter is not None:
            raise Misuse(f"adapter: expected none for {candidate}, got {adapter}")
        if candidate == "torch":
            found = torch_candidate(spec, device)
        else:
            found = peer_candidate(spec, str(candidate), device)
    elif isinstance(candidate, str):
        named = ("rlk", "torch", *PEERS)
        found = foreign_candidate(spec, candidate, device, framework, adapter, named)
    else:
        label = getattr(candidate, "__name__", type(candidate).__name__)
        found = from_function(spec, label, candidate, device, framework, adapter)
    return [lambda: found]


def _maker(
    spec: OpSpec, device: str, framework: str | None, variant: str, target: str | None
) -> Callable[[], Candidate]:
    return lambda: rlk_candidate(spec, device, framework, variant, target)


def _option_sets(
    spec: OpSpec, kind: str, options: Mapping[str, Any] | str | None
) -> Sequence[Mapping[str, Any]]:
    if options is None:
        return spec.plain_options(kind)
    if options == "all":
        return spec.option_sets
    if isinstance(options, str):
        raise Misuse(f"options: expected names with values, or all, got {options}")
    found = {}
    for name, value in options.items():
        if name not in spec.option_values:
            raise Misuse(f"options: expected one of {', '.join(spec.option_values)}, got {name}")
        try:
            found[name] = spec.option_values[name](str(value))
        except ValueError as error:
            raise Misuse(f"options: {name}: {error}") from error
    return [found]


def _spec(op: str) -> OpSpec:
    if op not in SPECS:
        raise Misuse(f"op: expected one of {', '.join(SPECS)}, got {op}")
    return SPECS[op]


def _dtypes(dtype: str | Sequence[str] | None) -> list[str]:
    names = list(SHORT) if dtype is None else [dtype] if isinstance(dtype, str) else list(dtype)
    for name in names:
        if name not in DTYPES:
            raise Misuse(f"dtype: expected one of {', '.join(DTYPES)}, got {name}")
    return [DTYPES[name] for name in names]
