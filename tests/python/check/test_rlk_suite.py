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


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_suite_passes_on_torch_tensors(dtype: str) -> None:
    pytest.importorskip("torch")
    expect_ok(rlk.check.run(suite=True, dtype=dtype, framework="torch"))


def test_random_cases_pass_on_numpy_arrays() -> None:
    expect_ok(rlk.check.run(random=200, framework="numpy"))
