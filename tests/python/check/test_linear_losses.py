# SPDX-License-Identifier: Apache-2.0
"""The checker on the losses from hidden states: it finds defects planted in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import broken_linear_losses as broken
import pytest

import rlk
import rlk.check
from rlk._ops import torch_linear_chunks
from rlk.check import contract, runner
from rlk.check.candidates import Candidate, make_framework
from rlk.check.checks import Session
from rlk.check.report import line
from rlk.check.specs import SPECS

OPS = ("linear_ppo_loss", "linear_grpo_loss", "linear_cross_entropy")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]


@pytest.fixture
def rows() -> Iterator[list[int]]:
    """Of the chunks that calls are taken by."""
    own, taken = torch_linear_chunks.chunk_rows, []

    def counted(*given: Any) -> int:
        taken.append(own(*given))
        return taken[-1]

    with mock.patch.object(torch_linear_chunks, "chunk_rows", counted):
        yield taken


def bits_of_parts(op: str) -> Any:
    spec = SPECS[op]
    made = Candidate("rlk", getattr(rlk.jit, op), make_framework("torch", "cpu"), spec.own_adapter)
    case = spec.suite("float32", False, 0)[0]
    job = runner.Job("rule", spec.rules()["bits_of_parts"], case)
    return runner.run_job(Session(spec, made, contract.load(), None), job)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("defect", [nullcontext, *broken.BROKEN], ids=lambda f: f.__name__)
def test_a_defect_planted_in_chunks_is_named(op: str, defect: Any, rows: list[int]) -> None:
    pytest.importorskip("torch")
    with defect():
        found = bits_of_parts(op)
    assert found.failure == (None if defect is nullcontext else "parts_variant"), line(found)
    if defect is nullcontext:
        several, whole, parts = rows[:3]
        assert 0 < several < whole == 900
        assert parts == 0


@pytest.mark.parametrize("op", OPS)
def test_torch_is_within_the_bounds(op: str) -> None:
    pytest.importorskip("torch")
    report = rlk.check.run(op, "torch", dtype="fp32", grad=True)
    assert report.ok, "\n".join(map(line, report.failures()))


def doubled(**given: Any) -> Any:
    return rlk.jit.linear_cross_entropy(**given) * 2


def one_id_off(**given: Any) -> Any:
    target = given["target"]
    return rlk.jit.linear_cross_entropy(**{**given, "target": target.clamp(max=255) + (target > 0)})


def unmasked(**given: Any) -> Any:
    return rlk.jit.linear_cross_entropy(**{**given, "target": given["target"].clamp(min=0)})


def half_of_weight(**given: Any) -> Any:
    weight = 0.5 * given["weight"]
    return rlk.jit.linear_cross_entropy(**{**given, "weight": weight + weight.detach()})


def squared_alone(**given: Any) -> Any:
    return rlk.jit.linear_cross_entropy(**{**given, "lse_square_scale": 1e-5})


@pytest.mark.parametrize(
    ("defect", "word"),
    [
        (doubled, "accuracy"),
        (one_id_off, "accuracy"),
        (unmasked, "accuracy"),
        (squared_alone, "accuracy"),
        (half_of_weight, "grad_accuracy"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_wrong_loss_is_named(defect: Any, word: str) -> None:
    pytest.importorskip("torch")
    report = rlk.check.run("linear_cross_entropy", defect, dtype="fp32", grad=True)
    assert word in {result.failure for result in report.failures()}
