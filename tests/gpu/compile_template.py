# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA templates with NVRTC through ctypes, as the library's compiler does."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import glob
import os
import re
from pathlib import Path

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
SHARED_LIMIT = {
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90a": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
    "compute_80": 99 << 10,
}


class CompileError(RuntimeError):
    """NVRTC refused a program; the text is its log."""


@dataclasses.dataclass
class Usage:
    """What ptxas says of one entry point."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclasses.dataclass
class Binary:
    """A cubin or PTX, with what the compiler said of it."""

    image: bytes
    log: str
    usage: dict[str, Usage]


def find_nvrtc() -> str:
    """Path of libnvrtc: RLK_NVRTC, a wheel on sys.path, or the toolkit's."""
    if path := os.environ.get("RLK_NVRTC"):
        return path
    import site

    roots = [*site.getsitepackages(), "/usr/local/cuda/lib64", "/usr/local/cuda/targets"]
    for root in roots:
        for pattern in ("nvidia/**/libnvrtc.so.1?", "libnvrtc.so.1?", "**/libnvrtc.so.1?"):
            if hits := sorted(glob.glob(f"{root}/{pattern}", recursive=True)):
                return hits[-1]
    raise FileNotFoundError("no libnvrtc; set RLK_NVRTC")


@functools.cache
def _load_nvrtc() -> ctypes.CDLL:
    path = find_nvrtc()
    # NVRTC opens its builtins by bare name, which fails unless they are loaded or on the path.
    for builtins in glob.glob(f"{Path(path).parent}/libnvrtc-builtins.so.1?.*"):
        ctypes.CDLL(builtins)
    return ctypes.CDLL(path)


def _headers() -> dict[str, bytes]:
    files = [
        *TEMPLATES.glob("common/cuda/*.cuh"),
        *TEMPLATES.glob("*/*.cuh"),
        *TEMPLATES.glob("*/cuda_args.h"),
        *TEMPLATES.glob("common/cuda/*.h"),
    ]
    return {str(f.relative_to(TEMPLATES)): f.read_bytes() for f in files}


def _usage(log: str) -> dict[str, Usage]:
    usage: dict[str, Usage] = {}
    name, stack, spill = "", 0, 0
    for line in log.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            name = m[1]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            stack, spill = int(m[1]), int(m[2])
        elif m := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            usage[name] = Usage(int(m[1]), spill, stack, int(shared[1]) if shared else 0)
    return usage


def compile_template(
    op: str,
    constants: dict[str, int],
    target: str,
    *,
    backward: bool,
    edits: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Binary:
    """Compiles templates/<op>/kernel.cuh for a target.

    Args:
        op: folder of the template.
        constants: name to value, -1 for "run-time argument"; rendered before the template.
        target: "sm_90a", ... for a cubin or "compute_80" for PTX.
        backward: the pass.
        edits: text replacements in the template's files, to try variants.

    Raises:
        CompileError: with NVRTC's log.
    """
    nvrtc = _load_nvrtc()
    lines = [f"#define RLK_BACKWARD {int(backward)}", "namespace rlk {"]
    lines += [f"constexpr long long {k} = {v};" for k, v in constants.items()]
    lines += ["}", f"#define RLK_SHARED_LIMIT {SHARED_LIMIT[target]}", ""]
    source = "\n".join(lines).encode() + (TEMPLATES / op / "kernel.cuh").read_bytes()
    headers = _headers()
    for old, new in (edits or {}).items():
        hits = [name for name, text in headers.items() if old.encode() in text]
        if not hits:
            raise CompileError(f"no file holds {old!r}")
        for name in hits:
            headers[name] = headers[name].replace(old.encode(), new.encode())
    program = ctypes.c_void_p()
    strings = ctypes.c_char_p * len(headers)
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program),
        source,
        f"{op}.cu".encode(),
        len(headers),
        strings(*headers.values()),
        strings(*(n.encode() for n in headers)),
    )
    flags = [
        f"--gpu-architecture={target}",
        "--std=c++20",
        "--fmad=false",
        "--no-cache",
        "--device-as-default-execution-space",
        "--modify-stack-limit=false",
        *options,
    ]
    if target.startswith("sm_"):
        flags.append("--ptxas-options=-v")
    argv = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
    status = nvrtc.nvrtcCompileProgram(program, len(flags), argv)

    def fetch(what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, out)
        return out.raw

    log = fetch("ProgramLog").decode(errors="replace").rstrip("\0")
    if status != 0:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        raise CompileError(log or f"NVRTC error {status}")
    image = fetch("CUBIN" if target.startswith("sm_") else "PTX")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Binary(image, log, _usage(log))
