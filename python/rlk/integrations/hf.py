# SPDX-License-Identifier: Apache-2.0
"""Log-probs from the head of a model of Hugging Face's transformers, as the model's class has it.

The head's weight and bias come from the module; its softcap and logit scale come from the
configuration, by the table of model types that `rlk-jit warm` reads too. Neither torch nor
transformers is imported before a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn

from rlk import _core, jit
from rlk.errors import Fault, Unsupported, fail
from rlk.integrations._head_module import head_and_adapter, head_tensors

__all__ = ["Head", "head", "linear_logp"]

Tensor = Any
FromModel = Literal["model"]


class Head(NamedTuple):
    """What a model does to its last hidden states to get logits.

    `logits = cap(logit_scale * (hidden @ weight.T + bias))`, `cap(x) = softcap * tanh(x /
    softcap)`: arguments of `rlk.jit.linear_logp` by its names.
    """

    weight: Tensor  #: ``[V, D]``; a LoRA adapter is merged into it, with autograd to both parts
    bias: Tensor | None  #: ``[V]``
    softcap: float | None
    logit_scale: float


def head(
    model: Any,
    *,
    softcap: float | FromModel | None = "model",
    logit_scale: float | FromModel = "model",
) -> Head:
    """The head of a `transformers` model, also inside DDP, torch.compile or a PEFT model.

    Args:
        model: a model with `get_output_embeddings` or `lm_head`, and with `config`.
        softcap, logit_scale: "model": what its configuration says; else this. A key of the
            configuration that sounds like a cap or scale and is not known is logged as a warning
            that says what was assumed, once.

    Returns:
        `Head`. The weight is the module's own tensor, so a tied one is the embedding's. A LoRA
        adapter on the head is merged anew in each call: in float32, which takes 4 V D bytes and as
        much again in the weight's dtype while the call's graph lives. `linear_logp` merges none
        where the weight under it is frozen.

    Raises:
        rlk.InvalidArgument: no head, or a configuration that cannot be read.
        rlk.Unsupported: a head that is no plain matrix here and now: quantized, sharded (DTensor,
            FSDP, ZeRO-3), on the meta device, of a class with a forward of its own, or with an
            adapter that does not merge. The message says which and what to do.

    Example:
        >>> weight, bias, softcap, logit_scale = rlk.integrations.hf.head(model)
    """
    owner, module = _find(model)
    weight, bias = head_tensors(module)
    return Head(weight, bias, *_cap_and_scale(owner, weight, softcap, logit_scale))


def linear_logp(
    model: Any,
    hidden: Tensor,
    target: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    return_entropy: bool = False,
    softcap: float | FromModel | None = "model",
    logit_scale: float | FromModel = "model",
    **options: Any,
) -> Any:
    """`rlk.jit.linear_logp` with the head of a `transformers` model; see `head`.

    Args:
        model, softcap, logit_scale: as in `head`.
        hidden: ``[..., D]``, the model's last hidden states: what its head multiplies, such as
            ``model.model(...).last_hidden_state``.
        target: ``[...]``, the ids whose log-probs are wanted: position t of hidden predicts token
            t + 1.
        temperature, mask, return_entropy, options: as in `rlk.jit.linear_logp`.

    Returns:
        As `rlk.jit.linear_logp`. Hidden states and weight are used in the autocast dtype where
        autocast is on, which keeps the weight's copy, else in that of hidden: a weight in another
        dtype is converted, and so copied, in each call.

    Raises:
        rlk.InvalidArgument, rlk.Unsupported: as `head` and `rlk.jit.linear_logp`.

    Example:
        >>> hidden = model.model(ids).last_hidden_state[:, :-1]
        >>> log_probs = rlk.integrations.hf.linear_logp(model, hidden, ids[:, 1:], temperature=0.7)
    """
    if not hasattr(hidden, "device"):  # the model's output, say
        expected = "a torch tensor, such as last_hidden_state"
        fail("hf.linear_logp", "hidden", expected, type(hidden).__name__)
    owner, module = _find(model)
    weight, bias, lora = head_and_adapter(module)
    cap, scale = _cap_and_scale(owner, weight, softcap, logit_scale)
    weight, bias, dtype = in_one_dtype(hidden, weight, bias)
    if lora is not None:
        first, second, factor = lora
        lora = (_fitting(first, hidden), _fitting(second, hidden), factor)
    return jit.linear_logp(
        hidden,
        weight,
        target,
        bias,
        temperature=temperature,
        softcap=cap,
        logit_scale=scale,
        mask=mask,
        return_entropy=return_entropy,
        lora=lora,
        **{"compute_dtype": dtype, **options},
    )


def _fitting(matrix: Tensor, hidden: Tensor) -> Tensor:
    """A matrix of an adapter in a dtype that `lora` takes."""
    import torch

    casts = torch.is_autocast_enabled(hidden.device.type)
    return matrix if matrix.dtype == hidden.dtype and not casts else matrix.float()


def in_one_dtype(
    hidden: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Any]:
    """(weight, bias, compute_dtype) with which `rlk.jit.linear_logp` works in the dtype that a
    linear layer would work in here: autocast's, else hidden's."""
    import torch

    if torch.is_autocast_enabled(hidden.device.type):
        return weight, bias, None
    if hidden.dtype in (torch.bfloat16, torch.float16):
        return weight, bias, hidden.dtype
    return weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype), None


def _find(model: Any) -> tuple[Any, Any]:
    """(the model inside of its wrappers, its head)."""
    owner = model
    while owner is not None:
        get = getattr(owner, "get_output_embeddings", None)
        module = get() if callable(get) else getattr(owner, "lm_head", None)
        if module is not None:
            return owner, module
        owner = getattr(owner, "module", None)  # of DDP and the like
    got = type(model).__name__
    fail("hf.head", "model", "one with a head: get_output_embeddings() or lm_head", got)


def _cap_and_scale(owner: Any, weight: Tensor, softcap: Any, logit_scale: Any) -> tuple[Any, Any]:
    """What was given; in the place of "model" what the configuration says."""
    given = {"softcap": softcap, "logit_scale": logit_scale}
    if "model" in given.values():
        numbers = _numbers(owner, int(weight.shape[0]), int(weight.shape[1]))
        given = {n: numbers[n] if value == "model" else value for n, value in given.items()}
    return given["softcap"], given["logit_scale"]


def _numbers(model: Any, vocab: int, columns: int) -> dict[str, Any]:
    """softcap and logit_scale of the model's configuration."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):
        content = config.to_json_string(use_diff=False)
    elif isinstance(config, Mapping):
        content = json.dumps(dict(config), default=str)
    else:
        got = f"{type(model).__name__} without one"
        fail("hf.head", "model", "a config, or softcap= and logit_scale= in its place", got)
    found, numbers = _read(type(config).__name__, content, vocab)
    if found != columns:
        _refuse(
            "config",
            f"the head's {columns} columns in it (softcap= and logit_scale= take its place)",
            f"{type(config).__name__} with {found}",
        )
    return {"softcap": numbers.get("softcap"), "logit_scale": numbers.get("logit_scale", 1.0)}


@lru_cache(maxsize=64)
def _read(name: str, content: str, vocab: int) -> tuple[int, dict[str, float]]:
    return _core.read_head(name, content, vocab)


def _refuse(argument: str, expected: str, got: str) -> NoReturn:
    raise Unsupported(Fault("hf.head", argument, expected, got))
