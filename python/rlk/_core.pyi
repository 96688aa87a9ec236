# SPDX-License-Identifier: Apache-2.0
from os import PathLike
from typing import Any

__version__: str

def linear_logp_forward(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any,
    temperature: Any,
    mask: Any,
    ignore_index: int | None,
    save: bool,
) -> Any: ...
def linear_logp_backward(
    grad_output: Any,
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any,
    temperature: Any,
    mask: Any,
    ignore_index: int | None,
    row_max: Any,
    row_log_sum: Any,
    needs_hidden: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[Any, Any, Any]: ...
def linear_logp_explain(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any,
    temperature: Any,
    mask: Any,
    ignore_index: int | None,
    backward: bool,
) -> tuple[str, str, str, str, str]: ...
def configure(
    policy: str | None,
    arch: str | None,
    cache_dir: str | PathLike[str] | None,
    num_threads: int | None,
    log: str | None,
    specialize: bool | None,
) -> None: ...
def cache_info() -> tuple[int, int, int, int]: ...
def settings() -> dict[str, Any]: ...
