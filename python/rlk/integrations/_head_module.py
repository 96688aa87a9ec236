# SPDX-License-Identifier: Apache-2.0
"""The weight and bias of a head's module, adapters included; what is no plain matrix is refused."""

from __future__ import annotations

from typing import Any, NoReturn

from rlk import _core
from rlk.errors import Fault, Unsupported

__all__ = ["head_and_adapter", "head_tensors"]

Tensor = Any
FLOATS = ("torch.float32", "torch.bfloat16", "torch.float16", "torch.float64")
#: What to do where a weight is not whole here, by what it is.
GATHER = {
    "ZeRO-3": "the call, the backward included, inside of deepspeed.zero.GatheredParameters",
    "FSDP": "the call inside of the forward of the module that FSDP wraps",
}


def head_tensors(module: Any) -> tuple[Tensor, Tensor | None]:
    """(weight ``[V, D]``, bias ``[V]`` or None) of a linear layer, PEFT's wrappers included.

    Raises rlk.Unsupported, which names what the head is and what to do.
    """
    weight, bias, adapters = _parts(module)
    return _merged(weight, adapters), bias


def head_and_adapter(module: Any) -> tuple[Tensor, Tensor | None, Any]:
    """The same, without merging what `rlk.jit.linear_logp` takes as its option lora, or None."""
    weight, bias, adapters = _parts(module)
    if not adapters or weight.requires_grad or type(_local(weight)) is not type(weight):
        return _merged(weight, adapters), bias, None
    if len(adapters) == 1:
        return weight, bias, adapters[0]
    import torch

    first = torch.cat([a for a, _, _ in adapters])
    second = torch.cat([b * scale for _, b, scale in adapters], 1)
    return weight, bias, (first, second, 1.0)


def _parts(module: Any) -> tuple[Tensor, Tensor | None, list[Any]]:
    """(weight, bias, (A ``[r, D]``, B ``[V, r]``, scale) of each active adapter)."""
    module = _of_modules_to_save(module)
    if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
        return _with_lora(module)
    if hasattr(module, "base_layer"):
        _refuse("a LoRA adapter, or the head merged into its base", f"{_class(module)} of PEFT")
    return *_plain(module), []


def _merged(weight: Tensor, adapters: list[Any]) -> Tensor:
    """weight + the sum of scale * B A, in float32, then in the weight's dtype."""
    if not adapters:
        return weight
    updates = [scale * (second.float() @ first.float()) for first, second, scale in adapters]
    return (weight.float() + sum(updates[1:], updates[0])).to(weight.dtype)


def _plain(module: Any) -> tuple[Tensor, Tensor | None]:
    import torch

    weight = getattr(module, "weight", None)
    if not isinstance(module, torch.nn.Linear) or weight is None:
        _refuse("a torch.nn.Linear", f"{_class(module)}, which may be quantized")
    local = _local(weight)
    if type(local) not in (torch.nn.Parameter, torch.Tensor) or str(weight.dtype) not in FLOATS:
        _refuse("a weight in a floating dtype of 16 or 32 bits", _quantized(module, weight))
    if weight.device.type == "meta":
        _refuse("a weight that is loaded", "one on the meta device (offloaded)")
    if type(module).forward is not torch.nn.Linear.forward:
        _refuse("torch.nn.Linear's forward", f"{_class(module)} with a forward of its own")
    return weight, module.bias


def _local(weight: Tensor) -> Tensor:
    """What this rank has of a weight, where that is all of it."""
    if hasattr(weight, "device_mesh"):  # a DTensor
        return _core.local_tensor("hf.head", "lm_head", weight.detach())
    if hasattr(weight, "ds_id") and weight.numel() == 0:
        _refuse(f"a whole weight: {GATHER['ZeRO-3']}", "a shard of DeepSpeed's ZeRO-3")
    if weight.ndim != 2 and "bit" not in type(weight).__name__:
        shape = tuple(weight.shape)
        _refuse(f"a whole weight: {GATHER['FSDP']}", f"a shard of shape {shape}")
    return weight


def _of_modules_to_save(module: Any) -> Any:
    """PEFT's copy of the head that is trained, or the original while adapters are off."""
    if not hasattr(module, "original_module"):
        return module
    copies = getattr(module, "modules_to_save", None)
    if copies is None:
        _refuse("modules_to_save or a LoRA adapter on the head", f"{_class(module)} of PEFT")
    active = [name for name in module.active_adapters if name in copies]
    if module.disable_adapters or not active:
        return module.original_module
    if len(active) > 1:
        _refuse("one active adapter in modules_to_save", ", ".join(active))
    return copies[active[0]]


def _with_lora(module: Any) -> tuple[Tensor, Tensor | None, list[Any]]:
    weight, bias = _plain(module.base_layer)
    if module.merged_adapters and module.disable_adapters:
        _refuse("adapters that are not merged where they are off", "merged ones")
    if module.merged_adapters or module.disable_adapters:
        return weight, bias, []
    adapters = []
    for name in module.active_adapters:
        if name not in module.lora_A:
            continue
        _check_adapter(module, name)
        first, second, scale = module.lora_A[name], module.lora_B[name], module.scaling[name]
        adapters.append((first.weight, second.weight, scale))
        if second.bias is not None:
            extra = scale * second.bias.float()
            bias = extra if bias is None else bias.float() + extra
    return weight, bias, adapters


def _check_adapter(module: Any, name: str) -> None:
    first = module.lora_A[name]
    if not hasattr(first, "weight") or getattr(module, "lora_E", None) is not None:
        _refuse("a plain LoRA adapter", f"{_class(module)} of PEFT")
    variants = getattr(module, "lora_variant", {})
    if name in variants:
        _refuse("a plain LoRA adapter", f"{type(variants[name]).__name__} in adapter {name!r}")
    if getattr(module, "use_dora", {}).get(name, False):  # of earlier versions
        _refuse("a plain LoRA adapter", f"DoRA in adapter {name!r}")
    if getattr(module, "fan_in_fan_out", False):
        _refuse("fan_in_fan_out=False on the head", "True")
    dropout = module.lora_dropout[name]
    if module.training and getattr(dropout, "p", 0.0) > 0:
        _refuse("lora_dropout=0 on the head", f"{dropout.p} in training")


def _quantized(module: Any, weight: Tensor) -> str:
    kind = type(weight)
    return f"{_class(module)} with {kind.__module__}.{kind.__name__} in {weight.dtype}"


def _class(module: Any) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__name__}"


def _refuse(expected: str, got: str) -> NoReturn:
    raise Unsupported(Fault("hf.head", "lm_head", expected, got))
