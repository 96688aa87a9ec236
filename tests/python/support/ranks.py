# SPDX-License-Identifier: Apache-2.0
"""Several ranks: processes of this machine, or one process that stands for all of them."""

from __future__ import annotations

import importlib.util
import inspect
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

SIZE = 2


@contextmanager
def pretended() -> Iterator[Any]:
    """A mesh of SIZE ranks of which this process is the first; collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=SIZE)
    try:
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (SIZE,))
    finally:
        torch.distributed.destroy_process_group()


def _one_rank(rank: int, kind: str, file: str, name: str, folder: str, size: int) -> None:
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        {"cpu": "gloo", "cuda": "nccl"}[kind],
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=size,
    )
    rlk.jit.configure(specialize=False)
    # By its file: the name that pytest gave its module need not be one here.
    spec = importlib.util.spec_from_file_location("work_of_ranks", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.save(getattr(module, name)(kind, rank), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def worlds(cpu: int, *cards: int) -> list[Any]:
    """Parameters (kind, size) of a fixture that calls run(): so many processes, or cards."""
    of_cards = [pytest.param(("cuda", n), id=f"cuda-{n}", marks=pytest.mark.gpu) for n in cards]
    return [pytest.param(("cpu", cpu), id="cpu"), *of_cards]


def run(kind: str, work: Callable[..., Any], folder: Path, size: int = SIZE) -> list[Any]:
    """What work(kind, rank) returns in each of `size` processes, on "cpu" or one GPU each.

    `work` is a function of a module; what it returns is tensors in dictionaries and lists.
    """
    if kind == "cuda" and torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} CUDA devices")
    file = inspect.getsourcefile(work)
    # Forked from a process that has imported torch, once for all tests.
    multiprocessing.set_forkserver_preload(["torch", "rlk"])
    torch.multiprocessing.start_processes(
        _one_rank,
        (kind, file, work.__name__, str(folder), size),
        size,
        start_method="forkserver",
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]
