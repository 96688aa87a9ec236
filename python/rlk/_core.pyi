# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from os import PathLike
from typing import Any

__version__: str

def linear_logp_forward(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any,
    temperature: Any,
    softcap: float | None,
    logit_scale: float,
    mask: Any,
    ignore_index: int | None,
    stream: int | None,
    return_entropy: bool,
    return_lse: bool,
    save: bool,
) -> Any: ...
def linear_logp_backward(
    grad_output: Any,
    grad_entropy: Any,
    grad_lse: Any,
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any,
    temperature: Any,
    softcap: float | None,
    logit_scale: float,
    mask: Any,
    ignore_index: int | None,
    stream: int | None,
    row_max: Any,
    row_log_sum: Any,
    entropy: Any,
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
    softcap: float | None,
    logit_scale: float,
    mask: Any,
    ignore_index: int | None,
    stream: int | None,
    return_entropy: bool,
    return_lse: bool,
    backward: bool,
) -> tuple[str, str, str, str, str]: ...
def logp_forward(
    logits: Any,
    target: Any,
    temperature: Any,
    softcap: float | None,
    logit_scale: float,
    mask: Any,
    ignore_index: int | None,
    stream: int | None,
    return_entropy: bool,
    return_lse: bool,
    save: bool,
    in_place: bool,
) -> Any: ...
def logp_backward(
    grad_output: Any,
    grad_entropy: Any,
    grad_lse: Any,
    logits: Any,
    target: Any,
    temperature: Any,
    softcap: float | None,
    logit_scale: float,
    mask: Any,
    ignore_index: int | None,
    stream: int | None,
    row_max: Any,
    row_log_sum: Any,
    entropy: Any,
    in_place: bool,
    into: Any,
    unless_one: Any,
) -> Any: ...
def logp_explain(
    logits: Any,
    target: Any,
    temperature: Any,
    softcap: float | None,
    logit_scale: float,
    mask: Any,
    ignore_index: int | None,
    stream: int | None,
    return_entropy: bool,
    return_lse: bool,
    backward: bool,
) -> tuple[str, str, str, str, str]: ...
def ratio_kl_forward(
    log_prob: Any,
    old: Any,
    ref: Any,
    ids: Any,
    mask: Any,
    ignore_index: int | None,
    kl: int,
    kl_gradient: int,
    log_ratio_low: float,
    log_ratio_high: float,
    kl_clamp: float,
    stream: int | None,
    needs_slopes: bool,
) -> tuple[Any, Any, Any, Any]: ...
def ratio_kl_backward(
    grad_ratio: Any, grad_kl: Any, ratio_slope: Any, kl_slope: Any, stream: int | None
) -> Any: ...

class LossOptions:
    def __init__(
        self,
        choices: Sequence[int],
        values: Sequence[float],
        reduction: int,
        kl_reduction: int,
        length: float,
        group_size: int,
    ) -> None: ...

def ppo_loss_forward(
    call: tuple[Any, ...],
    options: LossOptions,
    stream: int | None,
    needs_grad: bool,
    needs_entropy: bool,
) -> tuple[Any, Any, Any, Any, Any, Any]: ...
def grpo_loss_fits(logits: Any) -> bool: ...
def grpo_loss_forward(
    logits: Any,
    target: Any,
    temperature: Any,
    softcap: Any,
    logit_scale: Any,
    mask: Any,
    ignore_index: Any,
    call: tuple[Any, ...],
    options: LossOptions,
    stream: int | None,
) -> tuple[Any, Any, Any, Any]: ...
def grpo_loss_explain(
    logits: Any,
    target: Any,
    temperature: Any,
    softcap: Any,
    logit_scale: Any,
    mask: Any,
    ignore_index: Any,
) -> tuple[str, str, str, str, str]: ...
def ppo_loss_backward(upstream: Any, saved: Any, like: Any) -> Any: ...
def ppo_loss_explain(
    call: tuple[Any, ...], options: LossOptions
) -> tuple[str, str, str, str, str]: ...
def group_advantages(
    rewards: Any,
    boundaries: Any,
    group_size: int,
    normalize: int,
    eps_is_max: bool,
    ddof: int,
    eps: float,
    group_of_one: int,
    stream: int | None,
) -> Any: ...
def group_advantages_explain(
    rewards: Any,
    boundaries: Any,
    group_size: int,
    normalize: int,
    eps_is_max: bool,
    ddof: int,
    eps: float,
    group_of_one: int,
) -> tuple[str, str, str, str, str]: ...
def configure(
    policy: str | None,
    arch: str | None,
    cache_dir: str | PathLike[str] | None,
    num_threads: int | None,
    log: str | None,
    specialize: bool | None,
    validate: str | None,
    workspace_mib: int | None,
    max_kernels: int | None,
    max_sms: int | None,
    tile: str | None,
) -> None: ...
def check_errors(device: int | None) -> None: ...
def wait(timeout_s: float | None) -> bool: ...
def cache_info() -> tuple[int, int, int, int, int, int, int]: ...
def settings() -> dict[str, Any]: ...
def preload(words: list[str] | None, cuda_index: int | None) -> tuple[list[str], list[str]]: ...
def target_and_folders(cuda_index: int | None) -> tuple[str, list[str]]: ...

class Array:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    def __getitem__(self, index: int) -> Array: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
