# SPDX-License-Identifier: Apache-2.0
"""Time of ratio_kl and grpo_loss, in units of reading or writing the logits once.

    python benchmarks/grpo_loss.py --device cuda [--shape 32x256x131072] [--dtype float16]

A unit is half of a copy of the logits, measured beside: a copy reads and writes. Peers are the same
formulas in PyTorch, eager and through torch.compile, on --peer-shape, whose units are its own: they
need several tensors of the logits' size in fp32. On CUDA times are of bursts between events, on the
CPU of single calls by the clock. Exit status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import torch
from harness import Figure
from logp import measure

import rlk

SHAPES = {"cpu": (8, 32, 32768), "cuda": (32, 256, 131072)}
PEER_SHAPES = {"cpu": (8, 8, 32768), "cuda": (8, 128, 131072)}
GROUP, BETA, EPS = 8, 0.04, 0.2
UNIT, BOTH, TENTH = "unit", ", forward + backward", ", a tenth active"
RATIO, GRPO, LOGPS = "ratio_kl", "grpo_loss", ", ref_logps given"
EAGER, COMPILED = "eager", "torch.compile"


def draw(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> dict[str, Any]:
    g = torch.Generator(device).manual_seed(0)
    policy = torch.randn(shape, generator=g, device=device, dtype=dtype)
    ids = torch.randint(shape[-1], shape[:-1], generator=g, device=device)
    log_probs = rlk.jit.logp(policy, ids)
    noise = 0.1 * torch.randn((2, *shape[:-1]), generator=g, device=device)
    return {
        "policy": policy.requires_grad_(),
        "ref": torch.randn(shape, generator=g, device=device, dtype=dtype),
        "ids": ids,
        "old": log_probs + noise[0],
        "ref_logps": log_probs + noise[1],
        "rewards": torch.randn(shape[0], generator=g, device=device),
        "mask": torch.ones(shape[:-1], dtype=torch.bool, device=device),
        "few": torch.rand(shape[:-1], generator=g, device=device) < 0.1,
        "upstream": torch.randn((2, *shape[:-1]), generator=g, device=device),
    }


def grad_of(t: dict[str, Any], outputs: Any, upstream: Any = None) -> Any:
    return torch.autograd.grad(outputs, t["policy"], upstream)


def ratio_kl(t: dict[str, Any], mask: str = "mask", grad: bool = False) -> Any:
    with torch.set_grad_enabled(grad):
        found = rlk.jit.ratio_kl(t["policy"], t["ref"], t["ids"], t[mask], t["old"])
    return grad_of(t, found, list(t["upstream"])) if grad else found


def grpo_loss(t: dict[str, Any], mask: str = "mask", **options: Any) -> Any:
    ref = None if options else t["ref"]
    arguments = (t["policy"], ref, t["ids"], t["old"], t["rewards"], t[mask])
    return grad_of(t, rlk.jit.grpo_loss(*arguments, samples_per_prompt=GROUP, **options).loss)


def cases(t: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    logits = t["policy"].detach()
    other = torch.empty_like(logits)
    return {
        UNIT: lambda: other.copy_(logits),
        RATIO: lambda: ratio_kl(t),
        RATIO + BOTH: lambda: ratio_kl(t, grad=True),
        RATIO + TENTH: lambda: ratio_kl(t, "few"),
        RATIO + BOTH + TENTH: lambda: ratio_kl(t, "few", grad=True),
        GRPO + BOTH: lambda: grpo_loss(t),
        GRPO + BOTH + LOGPS: lambda: grpo_loss(t, ref_logps=t["ref_logps"]),
        GRPO + BOTH + TENTH: lambda: grpo_loss(t, "few"),
    }


def log_prob(logits: Any, ids: Any) -> Any:
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[..., None])[..., 0]


def plain_ratio_kl(policy: Any, ref: Any, ids: Any, mask: Any, old: Any) -> tuple[Any, Any]:
    """As PyTorch users write it; masked before exp."""
    now = log_prob(policy, ids)
    delta = torch.where(mask, now - old, 0.0).clamp(-20, 20)
    e = torch.where(mask, log_prob(ref, ids) - now, 0.0).clamp(-20, 20)
    return delta.exp(), torch.expm1(e) - e


def plain_grpo_loss(
    policy: Any, ref: Any, ids: Any, mask: Any, old: Any, rewards: Any
) -> tuple[Any]:
    ratio, kl = plain_ratio_kl(policy, ref, ids, mask, old)
    grouped = rewards.reshape(-1, GROUP)
    away = grouped - grouped.mean(-1, keepdim=True)
    a = (away / (grouped.std(-1, keepdim=True) + 1e-6)).reshape(-1, 1)
    loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - EPS, 1 + EPS)) + BETA * kl
    return ((loss * mask).sum() / mask.sum(),)


def both_passes(t: dict[str, Any], call: Any, arguments: list[Any], upstream: Any) -> Any:
    return grad_of(t, call(*arguments), upstream)


def peers(t: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """rlk's calls and the same by PyTorch."""
    arguments = [t[name] for name in ("policy", "ref", "ids", "mask", "old")]
    found = {name: run for name, run in cases(t).items() if TENTH not in name and LOGPS not in name}
    for name, plain, more, upstream in (
        (RATIO, plain_ratio_kl, [], list(t["upstream"])),
        (GRPO, plain_grpo_loss, [t["rewards"]], None),
    ):
        for peer in (EAGER, COMPILED):
            call = plain if peer == EAGER else torch.compile(plain, dynamic=False)
            run = partial(both_passes, t, call, [*arguments, *more], upstream)
            try:
                run()
            except Exception as error:  # no memory, or no compiler
                print(f"{peer}, {name}: not run: {str(error).splitlines()[0][:100]}")
                continue
            found[f"{name}{BOTH}, {peer}"] = run
    return found


def figures(words: str, ms: dict[str, float]) -> list[Figure]:
    unit = ms[UNIT] / 2

    def bar(label: str, name: str, units: int, most: float | None) -> Figure:
        return Figure(label, ms[name] / unit / units, f"x {units} units", most, strict=False)

    return [
        bar(f"{RATIO}, {words}: forward", RATIO, 2, 1.15),
        bar(f"{RATIO}, {words}: forward + backward", RATIO + BOTH, 4, 1.3),
        bar(f"{GRPO}, {words}: forward + backward", GRPO + BOTH, 3, 1.3),
        bar(f"the same{LOGPS}", GRPO + BOTH + LOGPS, 3, None),
        *(
            Figure(f"{name}{TENTH}, over all", ms[name + TENTH] / ms[name], "x")
            for name in (RATIO, RATIO + BOTH, GRPO + BOTH)
        ),
    ]


def peer_figures(words: str, ms: dict[str, float]) -> list[Figure]:
    return [
        Figure(f"{name}{BOTH}, {words}: {peer} over rlk", ms[key] / ms[name + BOTH], "x")
        for name in (RATIO, GRPO)
        for peer in (EAGER, COMPILED)
        if (key := f"{name}{BOTH}, {peer}") in ms
    ]


def shape_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--shape", metavar="BxTxV", type=shape_of, help="8x32x32768, on CUDA 32x256x131072")
    add("--peer-shape", metavar="BxTxV", type=shape_of, help="8x8x32768, on CUDA 8x128x131072")
    add("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    add("--rounds", type=int, default=9, help="samples a candidate (9)")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    facts = harness.environment()
    if options.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
    dtype, content, listed = getattr(torch, options.dtype), {}, []
    for make, tell, shape in (
        (cases, figures, options.shape or SHAPES[options.device]),
        (peers, peer_figures, options.peer_shape or PEER_SHAPES[options.device]),
    ):
        ms = measure(make(draw(shape, dtype, options.device)), options.device, options.rounds)
        words = f"{'x'.join(map(str, shape))} {options.dtype}"
        harness.print_table(
            f"{words}, {options.device}",
            ["case", "median ms", "units"],
            ([name, time, time / (ms[UNIT] / 2)] for name, time in ms.items()),
        )
        gigabytes = math.prod(shape) * torch.finfo(dtype).bits / 8e9
        print(f"a copy moves {2e3 * gigabytes / ms[UNIT]:.0f} GB/s\n")
        listed += tell(words, ms)
        content[make.__name__] = {"shape": shape, "dtype": options.dtype, "ms": ms}
    table = harness.print_figures(
        f"ratio_kl and grpo_loss on {facts.get('card', facts['cpu'])}", listed
    )
    if options.json:
        harness.write_json(options.json, "grpo_loss", facts, {**content, "table": table})
    return int(options.device == "cuda" and any(figure.verdict == "no" for figure in listed))


if __name__ == "__main__":
    sys.exit(main())
