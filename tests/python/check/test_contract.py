# SPDX-License-Identifier: Apache-2.0
"""The contract file: complete as shipped, and an error names what is missing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rlk.check import contract
from rlk.check.contract import ContractError


@pytest.fixture
def document() -> Any:
    return copy.deepcopy(json.loads(contract.DEFAULT_PATH.read_text()))


def test_the_shipped_contract_has_the_bounds_of_linear_logprob() -> None:
    loaded = contract.load()
    c = loaded.coefficients("linear_logprob", "bfloat16")
    assert (c["atol"], c["rtol"], c["chain_unit"]) == (2e-5, 1e-6, 2.0**-23)
    grad = loaded.coefficients("linear_logprob_grad", "float16")
    assert (grad["store_rtol"], grad["factor_rtol"]) == (2.0**-11, 2.0**-10)
    assert grad["probability_floor"] == 2.0**-38


@pytest.mark.parametrize("name", sorted(contract.COEFFICIENTS))
def test_a_missing_class_is_named(document: Any, name: str) -> None:
    del document["classes"][name]
    with pytest.raises(ContractError, match=rf"classes: expected {name}, got nothing"):
        contract.check_schema(document)


@pytest.mark.parametrize("dtype", contract.DTYPES)
def test_a_missing_dtype_is_named(document: Any, dtype: str) -> None:
    del document["classes"]["reduction_grad"][dtype]
    message = rf"reduction_grad\.{dtype}: expected store_atol, store_rtol, got nothing"
    with pytest.raises(ContractError, match=message):
        contract.check_schema(document)


@pytest.mark.parametrize("value", [None, "1e-5", -1e-5, float("nan"), True])
def test_a_coefficient_that_is_no_number_is_named(document: Any, value: Any) -> None:
    document["classes"]["kl"]["float16"] = {"rtol": value}
    with pytest.raises(ContractError, match=r"kl\.float16\.rtol: expected a number >= 0"):
        contract.check_schema(document)


def test_invariance_has_no_tolerance(document: Any) -> None:
    document["invariance"]["atol"] = 1e-12
    with pytest.raises(ContractError, match="invariance: expected 0/0"):
        contract.check_schema(document)


def test_an_override_holds_for_its_target_alone(document: Any, tmp_path: Path) -> None:
    document["arch_overrides"] = {"sm_90a": {"linear_logprob": {"bfloat16": {"atol": 3e-5}}}}
    file = tmp_path / "contract.json"
    file.write_text(json.dumps(document))
    loaded = contract.load(file)
    assert loaded.coefficients("linear_logprob", "bfloat16", "sm_90a")["atol"] == 3e-5
    assert loaded.coefficients("linear_logprob", "bfloat16", "sm_90a")["rtol"] == 1e-6
    assert loaded.coefficients("linear_logprob", "bfloat16", "sm_80")["atol"] == 2e-5
    assert loaded.coefficients("linear_logprob", "float32", "sm_90a")["atol"] == 2e-5


def test_an_override_may_name_all_targets_of_a_family() -> None:
    """The shipped ones are CUDA's, which rounds shifted rows of fp16."""
    loaded = contract.load()

    def shifted(dtype: str, arch: str | None) -> float:
        return loaded.coefficients("linear_logprob_grad", dtype, arch)["shifted_atol"]

    for arch in ("sm_80", "sm_90a", "sm_120", "compute_80"):
        assert shifted("float16", arch) == 2.0**-25
        assert shifted("bfloat16", arch) == shifted("float32", arch) == 0.0
    for other in ("x86-64-v4", None):
        assert shifted("float16", other) == 0.0


def test_an_override_of_an_unknown_coefficient_is_named(document: Any) -> None:
    document["arch_overrides"] = {"sm_80": {"kl": {"float32": {"slack": 1}}}}
    with pytest.raises(ContractError, match=r"sm_80\.kl\.float32: expected one of .*, got slack"):
        contract.check_schema(document)


def test_an_unknown_class_or_dtype_is_an_error() -> None:
    loaded = contract.load()
    with pytest.raises(ContractError, match="got attention"):
        loaded.coefficients("attention", "float32")
    with pytest.raises(ContractError, match="got float64"):
        loaded.coefficients("kl", "float64")
