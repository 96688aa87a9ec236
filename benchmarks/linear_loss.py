# SPDX-License-Identifier: Apache-2.0
"""From hidden states to a loss, forward and backward, beside other ways, on one GPU.

python benchmarks/linear_loss.py [--only grpo,half,long,ce] [--seconds S] [--out FILE.json]

Times are of bursts in turn, each beside bursts of the plain product hidden x weight^T, g. Memory is
the most that torch's allocator gave out during a call beyond its results, the gradients among them.
rlk's fused op is compared bit by bit with its two ops in a row. A candidate that cannot be imported
or fails is named with the reason.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comparison
import harness
import torch
from gpu import peers
from gpu.clock import Clock, Runner, said, tensors, time_limit
from gpu.shapes import plain_product

from rlk import jit

Call = Callable[[], Any]
Shape = tuple[int, int, int, int]  # sequences, tokens of each, hidden size, vocabulary

GRPO: tuple[Shape, ...] = ((16, 256, 2048, 131072), (32, 256, 3584, 152064))
CROSS_ENTROPY: tuple[Shape, ...] = ((16, 256, 2048, 131072), (32, 256, 4096, 151936))
LONG: Shape = (16, 8192, 4096, 151936)
ACCUMULATE = "rlk, accumulate_into"  # float32, of the caller
ACCUMULATE_MIB = {GRPO[0]: 1024, GRPO[1]: 1152}
CLIP, ROUNDS, FIRST_SECONDS = 0.2, 9, 60.0


def draw(shape: Shape, half: bool = False) -> dict[str, Any]:
    """Hidden states, weight, targets, and what a GRPO loss takes. half: that of the tokens have a
    ratio beyond the clip, and so no derivative."""
    sequences, length, dim, vocab = shape
    drawn = comparison.draw(sequences * length, dim, vocab, "bfloat16", "cuda")
    drawn["hidden"] = drawn["hidden"].detach().requires_grad_()
    drawn["weight"] = drawn["weight"].detach().requires_grad_()
    with torch.no_grad():
        log_probs = jit.linear_logp(drawn["hidden"], drawn["weight"], drawn["target"])
    g = torch.Generator(device="cuda").manual_seed(1)
    kind = {"generator": g, "device": "cuda"}
    rows = (sequences, length)
    old = log_probs.view(rows) + 0.02 * torch.randn(rows, **kind)
    advantages = torch.randn(sequences, **kind)
    if half:
        far = torch.rand(rows, **kind) < 0.5
        old = torch.where(far, old - torch.sign(advantages)[:, None], old)
    mask = torch.ones(rows, dtype=torch.bool, device="cuda")
    return drawn | {"old": old, "advantages": advantages, "mask": mask, "shape": shape}


def log_probs_by_torch(d: dict[str, Any]) -> Any:
    logits = torch.nn.functional.linear(d["hidden"], d["weight"]).float()
    return torch.log_softmax(logits, -1).gather(-1, d["target"][:, None])[:, 0]


def clipped(log_probs: Any, d: dict[str, Any]) -> Any:
    ratio = (log_probs.view_as(d["old"]) - d["old"]).exp()
    advantages = d["advantages"][:, None]
    other = ratio.clamp(1 - CLIP, 1 + CLIP) * advantages
    mask = d["mask"].float()
    return -(torch.minimum(ratio * advantages, other) * mask).sum() / mask.sum()


def with_gradients(loss_of: Call, d: dict[str, Any]) -> Call:
    def run() -> Any:
        loss = loss_of()
        return loss, *torch.autograd.grad(loss, (d["hidden"], d["weight"]), allow_unused=True)

    return run


def rows_of(d: dict[str, Any], name: str) -> Any:
    return d[name].view(*d["shape"][:2], *d[name].shape[1:])


def options_of(d: dict[str, Any]) -> dict[str, Any]:
    return {"eps_clip_low": CLIP, "eps_clip_high": CLIP, "loss_mask": d["mask"]}


def grpo_by_rlk(d: dict[str, Any], **options: Any) -> Call:
    def loss() -> Any:
        hidden, target = rows_of(d, "hidden"), rows_of(d, "target")
        given = (hidden, d["weight"], target, d["old"], d["advantages"])
        return jit.linear_ppo_loss(*given, **options_of(d), **options).loss

    return loss


def grpo_by_two_ops(d: dict[str, Any], **options: Any) -> Call:
    def loss() -> Any:
        log_probs = jit.linear_logp(d["hidden"], d["weight"], d["target"], **options)
        given = log_probs.view_as(d["old"]), d["old"], d["advantages"]
        return jit.ppo_loss(*given, **options_of(d)).loss

    return loss


def compiled(function: Call, d: dict[str, Any]) -> Call:
    return functools.partial(torch.compile(function), d)


def grpo_by_liger(d: dict[str, Any], chunk: int) -> Call:
    module = importlib.import_module("liger_kernel.chunked_loss")
    loss = module.LigerFusedLinearGRPOLoss(
        beta=0.0,
        use_ref_model=False,
        epsilon_low=CLIP,
        epsilon_high=CLIP,
        loss_type="bnpo",
        temperature=1.0,
        chunk_size=chunk,
    )

    def run() -> Any:
        hidden, target = rows_of(d, "hidden"), rows_of(d, "target")
        given = (hidden, d["weight"], target, d["mask"].long(), d["advantages"])
        return loss(*given, old_per_token_logps=d["old"])[0]

    return run


def grpo_by_liger_head(d: dict[str, Any]) -> Call:
    head = peers.liger_sm90()
    return lambda: clipped(head(d["hidden"], d["weight"], d["target"]), d)


def grpo_added(d: dict[str, Any]) -> Call:
    """With weight's gradient added to a float32 tensor of the caller's, in MiB for its chunks."""
    into = torch.zeros(d["weight"].shape, device="cuda")
    mib = ACCUMULATE_MIB[d["shape"]]
    return grpo_by_rlk(d, accumulate_into=into, workspace_mib=mib)


def grpo_calls(d: dict[str, Any]) -> dict[str, Callable[[], Call]]:
    return {
        "rlk": lambda: grpo_by_rlk(d),
        ACCUMULATE: lambda: grpo_added(d),
        "rlk, two ops": lambda: grpo_by_two_ops(d),
        "torch.compile": lambda: compiled(lambda d: clipped(log_probs_by_torch(d), d), d),
        "Liger GRPO": lambda: grpo_by_liger(d, 1),
        "Liger GRPO, one chunk": lambda: grpo_by_liger(d, d["shape"][0]),
        "Liger sm_90 + torch": lambda: grpo_by_liger_head(d),
    }


def half_calls(d: dict[str, Any]) -> dict[str, Callable[[], Call]]:
    return {
        "rlk": lambda: grpo_by_rlk(d),
        "rlk, two ops": lambda: grpo_by_two_ops(d, saved_mib=1024),
        "torch.compile": lambda: compiled(lambda d: clipped(log_probs_by_torch(d), d), d),
    }


def entropy_by_rlk(d: dict[str, Any], **options: Any) -> Call:
    return lambda: jit.linear_cross_entropy(d["hidden"], d["weight"], d["target"], **options)


def entropy_by_torch(d: dict[str, Any]) -> Any:
    logits = torch.nn.functional.linear(d["hidden"], d["weight"])
    return torch.nn.functional.cross_entropy(logits.float(), d["target"])


def entropy_by_liger(d: dict[str, Any]) -> Call:
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    apply = module.LigerFusedLinearCrossEntropyFunction.apply
    return lambda: apply(d["hidden"], d["weight"], d["target"])[0]


def entropy_by_cce(d: dict[str, Any]) -> Call:
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy
    return lambda: function(d["hidden"], d["weight"], d["target"], filter_eps=None)


def entropy_by_head(d: dict[str, Any], make: Callable[[], Any]) -> Call:
    head = make()
    return lambda: -head(d["hidden"], d["weight"], d["target"]).mean()


def entropy_calls(d: dict[str, Any]) -> dict[str, Callable[[], Call]]:
    sums = {
        name: lambda make=make: functools.partial(make(), d["hidden"], d["weight"], d["target"])
        for name, make in peers.SUMS.items()
    }
    return {
        "rlk": lambda: entropy_by_rlk(d),
        "torch.compile": lambda: compiled(entropy_by_torch, d),
        "Liger": lambda: entropy_by_liger(d),
        "Liger sm_90": lambda: entropy_by_head(d, peers.liger_sm90),
        "CCE, exact": lambda: entropy_by_cce(d),
    } | sums


def measure(
    what: str, d: dict[str, Any], makers: dict[str, Callable[[], Call]], seconds: float
) -> list[dict[str, Any]]:
    """A row a candidate."""
    clock = Clock("cuda", burst_ms=40.0, most_calls=20)
    found: dict[str, dict[str, Any]] = {}
    runners: dict[str, Runner] = {}
    first: tuple[Any, ...] = ()
    for name, make in makers.items():
        found[name] = {"what": what, "candidate": name}
        try:
            with time_limit(FIRST_SECONDS):
                run = with_gradients(make(), d)
                result = tensors(run())
                torch.cuda.synchronize()
        except Exception as error:
            torch.cuda.synchronize()  # raises where the device is lost
            found[name]["failed"] = said(error)
            continue
        found[name]["loss"] = float(result[0].detach())
        if not first:
            first = result
        elif name.startswith("rlk"):
            # The sum that the caller has is no result.
            pairs = list(zip(result, first, strict=True))[: 2 if name == ACCUMULATE else 3]
            found[name]["same_bits"] = all(torch.equal(a, b) for a, b in pairs)
        del result
        found[name]["extra_mib"] = clock.extra_mib(run)
        runners[name] = Runner(run)
    first = ()
    operands = {name: d[name].detach() for name in ("hidden", "weight")}
    samples, failed = clock.race(plain_product(operands), runners, ROUNDS, seconds)
    for name, taken in samples.items():
        found[name] |= taken.summary()
    for name, why in failed.items():
        found[name]["failed"] = why
    return [{"shape": list(d["shape"]), "dtype": "bfloat16"} | row for row in found.values()]


def measure_long() -> list[dict[str, Any]]:
    """Time and memory of a batch whose logits would not fit, and of a quarter of it."""
    rows = []
    for part in (4, 1):
        sequences, *others = LONG
        before = torch.cuda.memory_allocated()  # what candidates that failed hold
        d = draw((sequences // part, *others))
        run = with_gradients(grpo_by_rlk(d), d)
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        row = {"what": "long", "candidate": "rlk", "shape": list(d["shape"]), "dtype": "bfloat16"}
        row["ms"] = 1e3 * (time.perf_counter() - begin)
        row["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / (1 << 30)
        rows.append(row)
        del d, run
        torch.cuda.empty_cache()
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    columns = ["candidate", "ms", "/ g", "extra MiB", "note"]
    tables: dict[str, list[list[object]]] = {}
    for row in rows:
        note = row.get("failed", "")
        if "same_bits" in row:
            note = "same bits" if row["same_bits"] else "OTHER BITS"
        if "peak_gib" in row:
            note = f"{row['peak_gib']:.1f} GiB at most"
        cells = [row["candidate"], row.get("ms"), row.get("ratio"), row.get("extra_mib"), note[:70]]
        shape = "x".join(map(str, row["shape"]))
        tables.setdefault(f"{row['what']}: {shape}", []).append(cells)
    for title, cells in tables.items():
        harness.print_table(title, columns, cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=())
    parser.add_argument("--seconds", type=float, default=6.0, help="of one shape's samples")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    parts: dict[str, Any] = {
        "grpo": (GRPO, grpo_calls, {}),
        "half": (GRPO[:1], half_calls, {"half": True}),
        "ce": (CROSS_ENTROPY, entropy_calls, {}),
    }
    rows: list[dict[str, Any]] = []
    for what, (shapes, calls, options) in parts.items():
        if asked.only and what not in asked.only:
            continue
        for shape in shapes:
            torch.compiler.reset()  # what was compiled for another shape
            d = draw(shape, **options)
            rows += measure(what, d, calls(d), asked.seconds)
            del d
            torch.cuda.empty_cache()
    if not asked.only or "long" in asked.only:
        rows += measure_long()
    show(rows)
    if asked.out:
        facts = harness.environment() | {"card": torch.cuda.get_device_name()}
        facts |= {"torch": torch.__version__, "packages": peers.versions()}
        harness.write_json(asked.out, "linear_loss", facts, {"runs": rows})
    return 0 if all(row.get("same_bits", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
