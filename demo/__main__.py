# SPDX-License-Identifier: Apache-2.0
"""Run the demo: `./dev demo`, or `python -m demo` where rlk is installed."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from demo import corpus, numpy_way, progress

BATCH = 1024
NUM_STEPS = 250
COMPARE_ROWS = 16384
# Both are float32 rounding over sums of D products; a wrong formula is off by far more.
MAX_LOGP_ERROR = 1e-4
MAX_GRADIENT_ERROR = 1e-4


def headline(text: str) -> None:
    """Print the title of a part."""
    print(f"\n{text}" if not sys.stdout.isatty() else f"\n\033[1m{text}\033[0m", flush=True)


def seconds(value: float) -> str:
    """A time with a fitting unit."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def expect(true: bool, what: str) -> None:
    """End the demo with an error if `what` did not hold."""
    if not true:
        sys.exit(f"demo: expected {what}")


def timed(call: Any) -> tuple[float, Any]:
    """The time of `call()` and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def show_first_calls(model: Any, context: Any, target: Any) -> None:
    """The first call compiles, the next one does not."""
    import rlk.jit

    hidden = model.hidden(context)

    def call() -> Any:
        return rlk.jit.linear_logp(hidden, model.weight, target, model.bias)

    headline("The first call compiles a kernel for this vocabulary, width and processor")
    plan = rlk.jit.explain(rlk.jit.linear_logp, hidden, model.weight, target, model.bias)
    print(f"  {plan.kernel}: {plan.variant}, source: {plan.source}")
    cold, _ = timed(call)
    warm = min(timed(call)[0] for _ in range(5))
    info = rlk.jit.cache_info()
    print(f"  first call  {seconds(cold):>9}   (kernels compiled: {info.compiles})")
    print(f"  warm call   {seconds(warm):>9}   for {len(target)} words")
    expect(info.compiles == 1, f"one compiled kernel, got {info}")


def train(model: Any, contexts: Any, targets: Any) -> None:
    """Train with the loss falling."""
    rng = np.random.default_rng(0)
    losses = []
    headline(f"Training: {NUM_STEPS} steps of {BATCH} words")
    with progress.bar(NUM_STEPS) as advance:
        for step in range(NUM_STEPS):
            rows = rng.integers(len(targets), size=BATCH)
            rate = 4e-3 * (1 - step / NUM_STEPS) + 1e-4
            losses.append(model.train_step(contexts[rows], targets[rows], rate))
            advance(step + 1, losses[-1])
    first, last = losses[0], float(np.mean(losses[-10:]))
    blind = np.log(len(model.weight))
    print(f"  loss {first:.3f} -> {last:.3f}; a blind guess has log V = {blind:.3f}")
    expect(last < 0.75 * first, f"a falling loss, got {first:.3f} -> {last:.3f}")


def arrays_of(model: Any, context: Any, target: Any) -> dict[str, Any]:
    """The arguments of the loss and of its gradients, by name."""
    return {
        "grad_output": np.full(len(target), -1.0 / len(target), np.float32),
        "hidden": model.hidden(context),
        "weight": model.weight,
        "target": target,
        "bias": model.bias,
    }


def check(model: Any, context: Any, target: Any) -> None:
    """Compare log-probs and gradients with float64."""
    import rlk.jit

    a = arrays_of(model, context, target)
    logp = rlk.jit.linear_logp(a["hidden"], a["weight"], a["target"], a["bias"])
    grad = rlk.jit.linear_logp_backward(**a)
    doubles = {k: v if k == "target" else v.astype(np.float64) for k, v in a.items()}
    exact_logp, exact = numpy_way.log_probs_and_gradients(doubles)
    headline("The trained model's log-probs and gradients against NumPy in float64")
    error = float(np.abs(logp - exact_logp).max())
    print(f"  log-prob         largest error {error:.1e}")
    expect(error < MAX_LOGP_ERROR, f"log-probs within {MAX_LOGP_ERROR}, got {error}")
    for name in ("hidden", "weight", "bias"):
        want = getattr(exact, name)
        error = float(np.abs(getattr(grad, name) - want).max() / np.abs(want).max())
        print(f"  gradient {name:<7} largest error {error:.1e} of the largest gradient")
        expect(error < MAX_GRADIENT_ERROR, f"gradients within {MAX_GRADIENT_ERROR}, got {error}")


def compare(model: Any, contexts: Any, targets: Any, folder: Path) -> None:
    """A second process loads from the cache; time and memory against NumPy's [N, V]."""
    rows = np.arange(COMPARE_ROWS) % len(targets)
    file = folder / "arrays.npz"
    np.savez(file, **arrays_of(model, contexts[rows], targets[rows]))

    headline("A second process loads the kernels from the cache and compiles nothing")
    second = measure("rlk", "gradients", file)
    cache = second["cache"]
    print(f"  first calls, forward and backward  {seconds(second['first_s'])}")
    print(f"  loaded from disk: {cache['disk_hits']}, compiled: {cache['compiles']}")
    expect(cache["compiles"] == 0 and cache["disk_hits"] == 2, f"two disk hits, got {cache}")

    headline(f"{len(rows)} words at once, against NumPy with all logits [N, V]")
    print(f"  {'':<24}{'NumPy':>20}{'rlk':>20}", flush=True)
    for part, label in (("logp", "log-probs"), ("gradients", "log-probs, gradients")):
        ours = second if part == "gradients" else measure("rlk", part, file)
        pair = [measure("numpy", part, file), ours]
        print(f"  {label:<24}" + "".join(f"{seconds(r['best_s']):>20}" for r in pair))
        memory = (f"{r['extra_bytes'] / 2**20:.0f} MiB" for r in pair)
        print(f"  {'  extra memory':<24}" + "".join(f"{text:>20}" for text in memory), flush=True)
    print(f"  [N, V] in float32 alone is {len(rows) * len(model.weight) * 4 / 2**20:.0f} MiB")


def measure(way: str, part: str, file: Path) -> dict[str, Any]:
    """Run demo.measure in a process of its own."""
    command = [sys.executable, "-m", "demo.measure", way, part, str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def show_list() -> None:
    """What rlk-jit shows of this demo's cache."""
    command = [sys.executable, "-m", "rlk._cli", "list"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines()
    ours = [line for line in lines if " built-in " not in line]
    headline("rlk-jit list")
    print("\n".join(ours))
    print(f"and {len(lines) - len(ours)} generic kernels that come with rlk (built-in)")


def main() -> None:
    """Tell the whole story once, with a cache of its own that is empty at first."""
    with tempfile.TemporaryDirectory(prefix="rlk-demo-") as name:
        folder = Path(name)
        os.environ["RLK_CACHE_DIR"] = str(folder / "cache")
        for variable in ("RLK_CACHE_PATH", "RLK_JIT"):
            os.environ.pop(variable, None)
        tell(folder)


def tell(folder: Path) -> None:
    """All parts, in order."""
    from demo.model import CONTEXT, HIDDEN, NextWordModel

    text = corpus.load()
    headline("A next-word language model, trained by NumPy with rlk's loss")
    print(f"  text: {text.source}, {len(text.ids)} words")
    print(f"  vocabulary V = {len(text.words)}, hidden size D = {HIDDEN}, context {CONTEXT} words")
    runs = corpus.windows(text.ids, CONTEXT + 1)
    contexts, targets = runs[:, :CONTEXT], runs[:, CONTEXT]
    model = NextWordModel(len(text.words))
    sample = slice(0, BATCH)

    show_first_calls(model, contexts[sample], targets[sample])
    train(model, contexts, targets)
    start = contexts[len(contexts) // 3].tolist()
    written = " ".join(text.words[i] for i in model.continue_text(start, 20))
    print(f'  it writes: "{written}"')
    check(model, contexts[sample], targets[sample])
    compare(model, contexts, targets, folder)
    show_list()


if __name__ == "__main__":
    main()
