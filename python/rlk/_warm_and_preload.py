# SPDX-License-Identifier: Apache-2.0
"""What is done ahead of the first call: compiling for a model, loading what is compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from rlk import _core, errors
from rlk._program import command

Word = str | os.PathLike[str]


class Preloaded(NamedTuple):
    """Kernels by name."""

    loaded: list[str]  #: now, or before
    missing: list[str]  #: asked for, and in no cache layer


class Warmed(NamedTuple):
    """Kernels by name."""

    compiled: list[str]  #: by this call
    present: list[str]  #: a cache layer had them
    failed: dict[str, str]  #: and why


def _words(op: str, argument: str, given: Word | Iterable[Word]) -> list[str]:
    if isinstance(given, (str, os.PathLike)):
        given = [given]
    words = list(given) if isinstance(given, Iterable) else [given]
    for word in words:
        if not isinstance(word, (str, os.PathLike)):
            errors.fail(op, argument, "a string, a path, or several", repr(given))
    return [os.fspath(word) for word in words]


def _current_cuda() -> int:
    torch = _core.ready_torch()
    return torch.cuda.current_device() if torch and torch.cuda.is_available() else 0


def _cuda_index(device: Any) -> int | None:
    """The number of a CUDA device; None: the CPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    kind, _, index = str(device).partition(":")
    if kind == "cpu" and index in ("", "0"):
        return None
    if kind == "cuda" and index == "":
        return _current_cuda()
    if kind == "cuda" and index.isdigit():
        return int(index)
    errors.fail("preload", "device", '"cpu", "cuda", "cuda:0" or a number', repr(device))


def _own_device() -> int | None:
    """The current CUDA device where there is one that works, else the CPU."""
    try:
        _core.target_and_folders(_current_cuda())
    except (errors.Unsupported, errors.DriverError, errors.InvalidArgument):
        return None
    return _current_cuda()


def preload(
    names: Word | Iterable[Word] | None = None,
    *,
    device: Any = None,
    strict: bool = False,
) -> Preloaded:
    """Load compiled kernels ahead of their first call; nothing is compiled.

    After it, calls of these kernels work at once, under policy "off" and inside a CUDA graph
    capture too.

    Args:
        names: kernels by name, traces that RLK_TRACE recorded, or models: a config.json, a folder
            with one, or "V=128256,D=4096", of which each op and pass is loaded in whatever dtypes
            there are. None: what the manifests of the cache layers list (`rlk-jit warm` writes
            them).
        device: "cpu", "cuda", "cuda:1", a torch device, or the number of a CUDA device. None: the
            current CUDA device (torch's, else the first) where there is one, else the CPU.
            Kernels of other targets in a manifest or trace are passed over.
        strict: raise where a kernel is missing, or where no manifest lists any.

    Returns:
        The names that are loaded and those that are in no cache layer.

    Raises:
        rlk.InvalidArgument: names or device mean nothing.
        rlk.LoadError: strict, and something is missing; the message names it.
        rlk.Unsupported: the device can run nothing of ours.

    Example:
        >>> rlk.jit.configure(policy="off")
        >>> rlk.jit.preload(strict=True).loaded
        ['linear_logp.fwd[x=bf16 V=128256 D=4096]@sm_90a', ...]
    """
    strict = errors.check_flag("preload", "strict", strict)
    words = None if names is None else _words("preload", "names", names)
    index = _own_device() if device is None else _cuda_index(device)
    loaded, missing = _core.preload(words, index)
    if strict and missing:
        raise errors.LoadError(
            f"preload: {len(missing)} kernels are in no cache layer: {', '.join(missing)}"
        )
    if strict and not loaded:
        target, folders = _core.target_and_folders(index)
        if words is not None:
            raise errors.LoadError(f"preload: names: expected kernels for {target}, got none")
        # Most likely a folder that is not mounted.
        told = [path if os.path.isdir(path) else f"{path} (no such folder)" for path in folders]
        raise errors.LoadError(
            f"preload: expected kernels for {target} in a manifest, found none in "
            f"{', '.join(told)}; rlk-jit warm writes one"
        )
    return Preloaded(loaded, missing)


def _run(words: list[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr. An interrupt lets the program finish what it has begun."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.terminate()
            process.communicate()
            raise
        return process.returncode, out, err


def warm(
    models: Word | Iterable[Word] = (),
    *,
    arch: str | Iterable[str] | None = None,
    op: str | Iterable[str] | None = None,
    dtype: str | Iterable[str] = "bf16",
    passes: str | Iterable[str] = ("fwd", "bwd"),
    tp: int = 1,
    vocab: int | None = None,
    entropy: bool = False,
    stats: bool = False,
    trace: Word | Iterable[Word] = (),
    cuda: int | None = None,
    jobs: int | None = None,
    cache_dir: Word | None = None,
) -> Warmed:
    """Compile what a model's calls will ask for, into the cache; no GPU is needed.

    Runs `rlk-jit warm` in processes of its own, so nothing is loaded here. Also writes the cache
    folder's manifest, from which `preload` reads. An interrupt keeps what is done.

    Args:
        models: Hugging Face config.json files, folders with one, or "V=128256,D=4096". Of a
            configuration, softcap and logit scale are read too: the kernels are those of calls
            that pass them. "V=256000,D=2304,softcap=30,logit_scale=0.5" says them without one.
        arch: targets such as "sm_90a" or "x86-64-v4"; None: for models, what `preload` without a
            device loads; for traces, the recorded ones. Of a trace, kernels of others are left out.
        op: "linear_logp", "logp", "grpo_loss"; None: all of these. "linear_ppo_loss",
            "linear_grpo_loss", "linear_cross_entropy": the kernels of their head, linear_logp's.
            "det_gemm": the products of the model's linear layers, or of one given as
            "K=4096,N=12288". The kernels of the others follow from a call's options, not from a
            model; RLK_TRACE records them.
        dtype: of hidden states and weight, and of logits: "bf16", "fp16", "fp32".
        passes: "fwd", "bwd". Forwards that keep something for a backward are of "fwd".
        tp: ranks that share the vocabulary: each has V / tp of its rows.
        vocab: rows of the head as it is, where the embeddings were resized.
        entropy: also compile for calls that ask for the entropy, and its gradient.
        stats: also compile for calls that ask for the statistics (return_stats).
        trace: files that RLK_TRACE has recorded.
        cuda: compile by NVRTC of this CUDA major; None: the newest that the driver takes.
        jobs: compile so many at once; None: one a core, as far as memory goes.
        cache_dir: folder to fill; None: that of the settings.

    Raises:
        rlk.InvalidArgument: what rlk-jit says of an argument or a model, such as one that has no
            part in the kernels.
        rlk.CompileError: nothing can be compiled, or stored.

    Example:
        >>> rlk.jit.warm("V=128256,D=4096", arch="sm_90a").compiled
        ['linear_logp.fwd[x=bf16 V=128256 D=4096]@sm_90a', ...]
    """
    words = _words("warm", "models", models)
    if words and not arch:
        arch = _core.target_and_folders(_own_device())[0]
    folder = cache_dir or _core.settings().get("cache_dir")  # None: there is none that is of use
    options = ["--json"] if folder is None else ["--json", "--cache-dir", os.fspath(folder)]
    repeated = {"--arch": arch, "--op": op, "--dtype": dtype, "--pass": passes, "--trace": trace}
    for flag, given in repeated.items():
        values = _words("warm", flag, given or ())
        options += [word for value in values for word in (flag, value)]
    for name, is_asked in {"entropy": entropy, "stats": stats}.items():
        options += [f"--{name}"] if errors.check_flag("warm", name, is_asked) else []
    single = {"--tp": tp, "--vocab": vocab, "--cuda": cuda, "--jobs": jobs}
    for flag, number in single.items():
        options += [] if number is None else [flag, str(number)]
    status, out, said = _run(command(["warm", *options, "--", *words]))
    if not out:
        kind = errors.InvalidArgument if status == 2 else errors.CompileError
        # Above the error may stand lines about what was left out.
        last_line = said.strip().rpartition("\n")[2]
        raise kind(f"warm: {last_line.removeprefix('rlk-jit: ')}")
    sys.stderr.write(said)  # what was assumed of a model, or left out of a trace
    kernels = json.loads(out)["kernels"]
    names = {
        outcome: [kernel["name"] for kernel in kernels if kernel["outcome"] == outcome]
        for outcome in ("compiled", "present")
    }
    failed = {
        kernel["name"]: kernel["problem"] or kernel["outcome"]
        for kernel in kernels
        if kernel["outcome"] not in names
    }
    return Warmed(**names, failed=failed)
