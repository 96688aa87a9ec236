# SPDX-License-Identifier: Apache-2.0
"""rlk's own kernels on the CPU under the whole suite and random cases, generic and specialized.

Torch's tensors meet the kernels of NumPy's arrays, so each has a dtype of its own; the long tests
have all of them.
"""

from __future__ import annotations

import pytest
from long_run import LONG

import rlk.check
from rlk.check.report import line, summary

LOSSES = ("logp", "ratio_kl", "grpo_loss", "ppo_loss", "group_advantages", "det_gemm")
LINEAR_LOSSES = ("linear_ppo_loss", "linear_grpo_loss", "linear_cross_entropy")


def expect_ok(report: rlk.check.Report) -> None:
    print(summary(report))
    assert report.ok, "\n".join(line(failure) for failure in report.failures())
    assert {result.variant for result in report.results} == {"generic", "specialized"}
    assert all(result.kernel.get("key") for result in report.results)
    assert report.target is not None
    assert all(f"@{report.target}" in result.kernel["name"] for result in report.results)


def test_settings_are_put_back() -> None:
    before = rlk.jit.settings()
    rlk.check.run(dtype="fp32", framework="numpy", target="x86-64-v2")
    assert rlk.jit.settings() == before


def test_an_unknown_target_is_misuse() -> None:
    with pytest.raises(rlk.check.Misuse, match="target: expected one that runs here, got z80"):
        rlk.check.run(target="z80")


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"] if LONG else ["bf16"])
def test_the_suite_passes_on_torch_tensors(dtype: str) -> None:
    pytest.importorskip("torch")
    expect_ok(rlk.check.run(suite=True, dtype=dtype, framework="torch"))


def test_random_cases_pass_on_numpy_arrays() -> None:
    expect_ok(rlk.check.run(random=200 if LONG else 100, framework="numpy"))


@pytest.mark.parametrize("op", LOSSES)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_suite_of_the_losses_passes(op: str, framework: str) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    dtype = None if LONG else {"numpy": "bf16", "torch": "fp32"}[framework]
    expect_ok(rlk.check.run(op, suite=True, framework=framework, dtype=dtype))


@pytest.mark.parametrize("op", LOSSES)
def test_random_cases_of_the_losses_pass(op: str) -> None:
    expect_ok(rlk.check.run(op, random=300 if LONG else 60, framework="numpy"))


@pytest.mark.torch
@pytest.mark.parametrize("op", LINEAR_LOSSES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"] if LONG else ["bf16"])
def test_the_suite_of_the_losses_from_hidden_states_passes(op: str, dtype: str) -> None:
    pytest.importorskip("torch")
    expect_ok(rlk.check.run(op, suite=True, dtype=dtype, framework="torch"))


@pytest.mark.parametrize("op", LINEAR_LOSSES)
def test_numpy_arrays_give_the_losses_from_hidden_states_alone(op: str) -> None:
    report = rlk.check.run(op, suite=True, dtype="fp32", framework="numpy", variant="generic")
    assert report.ok, "\n".join(map(line, report.failures()))
    assert not any(result.check == "gradient" for result in report.results)


@pytest.mark.torch
@pytest.mark.parametrize("op", LINEAR_LOSSES)
def test_random_cases_of_the_losses_from_hidden_states_pass(op: str) -> None:
    pytest.importorskip("torch")
    expect_ok(rlk.check.run(op, random=100 if LONG else 20, framework="torch"))
