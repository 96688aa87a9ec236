# SPDX-License-Identifier: Apache-2.0
"""What ./dev gpu-test runs on a GPU machine: builds rlk and tries it there, part by part.

python tests/gpu/parts.py [--out DIR] [--limit SECONDS] [PART ...]

Needs the folder gpu_pack/ that ./dev gpu-pack fills; installs nothing outside build/. A part that
fails does not stop the later ones; each may take its share of what is left of the limit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import card
from card import PACK, ROOT

BUILD = ROOT / "build" / "gpu"
SITE = BUILD / "site-packages"  # the name matters to QuACK
BUILTIN = BUILD / "builtin"
NVRTC_12 = BUILD / "nvrtc" / "libnvrtc.so.12"
JOBS = str(len(os.sched_getaffinity(0)))
SANITIZER_TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")

Command = list[str]


@dataclass
class Run:
    """Where the logs go and how many seconds a part may take."""

    out: Path
    limit_s: float


@dataclass
class Part:
    """Steps in order, the commands of a step at once."""

    name: str
    share: int  # of the time
    steps: Callable[[Run], list[list[Command]]]
    must_say: str = ""  # pattern in the output of each command that went well
    if_named: bool = False  # not among those that run without a name


def build(_: Run) -> list[list[Command]]:
    for wheel in (PACK / "wheels").glob("*.whl"):
        shutil.unpack_archive(wheel, SITE, format="zip")
    for pattern, folder in (("nvrtc-*.tar.xz", NVRTC_12.parent), ("builtin.tar.xz", BUILTIN)):
        for archive in PACK.glob(pattern):
            shutil.unpack_archive(archive, folder, filter="data")
    configure = ["cmake", "--fresh", "--preset", "gpu", f"-DPython_EXECUTABLE={sys.executable}"]
    # Warnings of a compiler that nobody tried are no failure.
    configure += ["--compile-no-warning-as-error"]
    configure += [f"-DRLK_NVRTC_12={NVRTC_12}"] if NVRTC_12.exists() else []
    configure += [f"-DRLK_HEADERS={PACK / 'headers'}", f"-DRLK_BUILTIN={BUILTIN}"]
    return [[configure], [["cmake", "--build", str(BUILD), "--parallel", JOBS]]]


def ctest(_: Run) -> list[list[Command]]:
    # What compiles every template needs no GPU: CI has it.
    return [[["ctest", "--preset", "gpu", "--parallel", JOBS, "-E", "CudaCompileTest"]]]


def pytest(_: Run) -> list[list[Command]]:
    # Other packages of that machine may warn of what they like. Folders that hold no case of a card
    # are left out: some import what that machine lacks.
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-W", "default", "--durations=15"]
    without = ("cache", "check", "docs", "jit", "tools")
    return [[[*command, "tests/python", *(f"--ignore=tests/python/{name}" for name in without)]]]


def check(_: Run) -> list[list[Command]]:
    command = [sys.executable, "-m", "rlk.check.cli", "--device", "cuda", "--all", "--quiet"]
    return [[[*command, "--dtype", dtype] for dtype in ("fp32", "fp16", "bf16")]]


def sanitize(_: Run) -> list[list[Command]]:
    def command(number: int, tool: str, script: Path) -> Command:
        options = ["--tool", tool, "--error-exitcode", "99", "--port", str(49152 + 16 * number)]
        if tool == "memcheck":  # PyTorch asks the driver for more than it has, and minds no refusal
            options += ["--report-api-errors", "no"]
        return ["compute-sanitizer", *options, sys.executable, str(script)]

    scripts = sorted((ROOT / "tests" / "gpu").glob("sanitize_*.py"))
    pairs = [(tool, script) for script in scripts for tool in SANITIZER_TOOLS]
    return [[command(number, *pair) for number, pair in enumerate(pairs)]]


def bench(run: Run) -> list[list[Command]]:
    # A part of it that has begun takes a minute more.
    seconds = str(max(30, int(run.limit_s) - 70))
    command = [sys.executable, "benchmarks/linear_logp.py", "--device", "cuda"]
    return [[[*command, "--seconds", seconds, "--out", str(run.out)]]]


def losses(run: Run) -> list[list[Command]]:
    return [
        [[sys.executable, "benchmarks/linear_loss.py", "--out", str(run.out / "linear_loss.json")]]
    ]


def everyone(run: Run) -> list[list[Command]]:
    command = [sys.executable, "benchmarks/check_everyone.py"]
    seconds = str(max(30, int(run.limit_s) - 10))
    return [[[*command, "--seconds", seconds, "--out", str(run.out / "check_everyone.json")]]]


PARTS = (
    Part("build", 200, build),
    Part("ctest", 60, ctest),
    Part("pytest", 200, pytest, must_say=r"\b\d+ passed"),  # not: all skipped
    Part("check", 100, check),
    Part("sanitize", 90, sanitize, must_say="SUMMARY: 0"),
    Part("bench", 100, bench),
    Part("losses", 100, losses, if_named=True),
    Part("everyone", 100, everyone, if_named=True),
)


def environment() -> dict[str, str]:
    """rlk from the build, packed wheels beside it; caches stay in the build folder."""
    given = dict(os.environ)
    paths = [str(BUILD / "python"), str(SITE), str(SITE / "nvidia_cutlass_dsl" / "dsl_packages")]
    paths.append(given.get("PYTHONPATH", ""))
    nvrtc = [path for path in (card.wheel_nvrtc(), NVRTC_12) if path and path.exists()]
    return given | {
        "PATH": f"{given.get('PATH', '')}:/usr/local/cuda/bin",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "RLK_CACHE_DIR": str(BUILD / "cache"),
        "RLK_TEST_NVRTC": ":".join(map(str, nvrtc)),
        "TRITON_CACHE_DIR": str(BUILD / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(BUILD / "inductor"),
    }


def kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_step(
    commands: list[Command], log: Path, must_say: str, deadline: float, env: dict[str, str]
) -> str:
    """Runs the commands at once and appends their output to the log; what went wrong, or ''."""
    started = []
    wrong = ""
    try:
        for number, command in enumerate(commands):
            output = log.with_suffix(f".{number}.tmp")
            with output.open("wb") as file:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            started.append((process, command, output))
        for process, command, output in started:
            name = " ".join(command[:3]).replace(sys.executable, "python3")
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong = wrong or f"out of time: {name}"
                continue
            if status != 0:
                wrong = wrong or f"status {status}: {name}"
            elif not re.search(must_say, output.read_text(errors="replace")):
                wrong = wrong or f"does not say {must_say!r}: {name}"
    except OSError as error:
        wrong = str(error)
    finally:
        for process, _, _ in started:
            kill(process)
        with log.open("ab") as file:
            for process, command, output in started:
                file.write(f"$ {' '.join(command)}\n".encode())
                file.write(output.read_bytes())
                file.write(f"[status {process.returncode}]\n\n".encode())
                output.unlink()
    return wrong


def run_part(part: Part, run: Run) -> str:
    """What went wrong, or ''."""
    log = run.out / f"{part.name}.log"
    log.write_bytes(b"")
    deadline = time.monotonic() + run.limit_s
    env = environment()
    if part.name == "sanitize":  # else one allocation hides the bounds of those in it
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    wrong = ""
    for step in part.steps(run):
        wrong = wrong or run_step(step, log, part.must_say, deadline, env)
    if wrong:
        lines = log.read_text(errors="replace").splitlines()
        print("\n".join(f"    {line[:300]}" for line in lines[-25:]), flush=True)
    return wrong


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="./dev gpu-test", description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {' '.join(names)} (all but the last two)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-test", metavar="DIR")
    parser.add_argument("--limit", type=float, default=530.0, metavar="SECONDS", help="in all")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(names):
        parser.error(f"PART: expected {', '.join(names)}, got {', '.join(sorted(unknown))}")
    if not PACK.is_dir():
        print("dev: no gpu_pack here; fill it by ./dev gpu-pack where there is a network")
        return 1
    # So that what a part started ends too, and the table is printed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    facts = card.facts()
    (out / "card.txt").write_text(facts)
    print(facts, flush=True)
    end = time.monotonic() + given.limit
    left = [p for p in PARTS if p.name in given.parts or not (given.parts or p.if_named)]
    rows = []
    try:
        while left:
            part = left[0]
            start = time.monotonic()
            limit_s = (end - start) * part.share / sum(each.share for each in left)
            print(f"{part.name} (at most {limit_s:.0f} s) ...", flush=True)
            rows.append((part.name, "cut off", 0.0))
            wrong = run_part(part, Run(out, limit_s))
            rows[-1] = (part.name, wrong or "ok", time.monotonic() - start)
            left.pop(0)
    finally:
        rows += [(part.name, "not run", 0.0) for part in left if part.name != rows[-1][0]]
        table = "\n".join(
            f"{name:9} {seconds:6.1f} s  {outcome}" for name, outcome, seconds in rows
        )
        (out / "card.txt").write_text(f"{facts}\n{table}\n")
        print(f"\nlogs in {out}\n{table}", flush=True)
    return int(any(outcome != "ok" for _, outcome, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
