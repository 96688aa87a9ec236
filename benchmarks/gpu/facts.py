# SPDX-License-Identifier: Apache-2.0
"""What the figures depend on: card, driver, versions, NVRTC, clocks, measured ceilings."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import harness
import torch

from gpu import peers
from gpu.clock import Clock, said
from gpu.job import Job
from rlk import jit

QUERY = (
    "name,driver_version,vbios_version,pstate,temperature.gpu,power.draw,power.limit,"
    "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem"
)


def nvidia_smi() -> dict[str, str]:
    """State of the first device; {"failed": ...} where the tool is not."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        values = done.stdout.splitlines()[0].split(", ")
        return dict(zip(QUERY.split(","), values, strict=True))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        return {"failed": said(error)}


def under_load(product: Callable[[], Any]) -> dict[str, str]:
    """nvidia-smi's reading while products run."""
    clock = Clock("cuda")
    one = clock.burst_ms(product, 3)
    for _ in range(max(1, min(500, int(400 / one)))):
        product()
    state = nvidia_smi()
    torch.cuda.synchronize()
    return state


def doctor() -> str:
    """The text of `rlk-jit doctor`: driver, devices, every NVRTC and the one chosen."""
    try:
        return harness.rlk_jit("doctor")
    except (OSError, subprocess.SubprocessError) as error:
        return said(error)


def ceilings() -> dict[str, float]:
    """Copy bandwidth, bytes read and written counted, and the rate of a large bf16 product."""
    clock = Clock("cuda")
    source = torch.randn(1 << 30, device="cuda", dtype=torch.float16)
    target = torch.empty_like(source)
    copy = min(clock.burst_ms(lambda: target.copy_(source), 10) for _ in range(3))
    factor = torch.randn(2, 8192, 8192, device="cuda").bfloat16()
    out = torch.empty_like(factor[0])
    times = [clock.burst_ms(lambda: torch.mm(factor[0], factor[1], out=out), 10) for _ in range(3)]
    return {
        "copy_tb_s": 2 * source.nbytes / copy / 1e9,
        "product_tflop_s": 2 * 8192**3 / sorted(times)[1] / 1e9,
    }


def measure(job: Job) -> dict[str, Any]:
    """The card part."""
    job.begin("facts")
    found: dict[str, Any] = {
        "environment": harness.environment(),
        "settings": {key: str(value) for key, value in jit.settings().items()},
        "variables": {k: v for k, v in os.environ.items() if k.startswith(("RLK_", "CUDA_"))},
        "torch_cuda": torch.version.cuda,
        "packages": peers.versions(),
        "doctor": doctor(),
    }
    try:
        import cupy

        found["packages"]["cupy"] = cupy.__version__
    except ImportError as error:
        found["cupy"] = said(error)
    if job.device != "cuda":
        return found
    device = torch.cuda.get_device_properties(0)
    found |= {
        "card": device.name,
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "memory_mib": device.total_memory >> 20,
        "l2_mib": getattr(device, "L2_cache_size", 0) >> 20,
        "idle": nvidia_smi(),
    }
    job.begin("ceilings")
    found["ceilings"] = ceilings()
    return found
