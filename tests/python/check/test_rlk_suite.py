# SPDX-License-Identifier: Apache-2.0
"""rlk's own kernels on the CPU under the whole suite: generic and specialized, with gradients."""

from __future__ import annotations

import pytest

import rlk.check
from rlk.check.report import line, summary


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
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_suite_passes_on_torch_tensors(dtype: str) -> None:
    pytest.importorskip("torch")
    expect_ok(rlk.check.run(suite=True, dtype=dtype, framework="torch"))


def test_random_cases_pass_on_numpy_arrays() -> None:
    expect_ok(rlk.check.run(random=200, framework="numpy"))
