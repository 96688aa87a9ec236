# SPDX-License-Identifier: Apache-2.0
"""Other implementations of linear_logp, each imported when it is asked for.

A maker returns a function of (hidden, weight, target) that gives the log-probs, or raises; an
ImportError says that the peer is not there. peers.txt lists what pip can bring.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import comparison
import torch

from rlk.check.peers import import_below

LogProb = Callable[[Any, Any, Any], Any]
Sum = Callable[[Any, Any, Any], Any]  # of -log p


def eager_16_bit() -> LogProb:
    """Logits and softmax in the storage type, as a model's forward and loss often are."""

    def logp(hidden: Any, weight: Any, target: Any) -> Any:
        logits = torch.nn.functional.linear(hidden, weight)
        return torch.log_softmax(logits, -1).gather(-1, target[:, None])[:, 0].float()

    return logp


def liger_chunked() -> LogProb:
    """Rows in chunks, logits of a chunk in the storage type; Triton's softmax over them."""
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    apply = module.LigerFusedLinearCrossEntropyFunction.apply

    def logp(hidden: Any, weight: Any, target: Any) -> Any:
        # bias, class weights, ignore_index, z-loss, label smoothing, reduction
        return -apply(hidden, weight, target, None, None, -100, 0.0, 0.0, "none")[0]

    return logp


def liger_selective() -> LogProb:
    """The log-prob inside Liger's PPO and GRPO losses: rows and vocabulary in chunks, by torch."""
    module = importlib.import_module("liger_kernel.chunked_loss.fused_linear_ppo")
    apply = module._ChunkedSelectiveLogProbFunction.apply
    chunk = module._SELECTIVE_LOGPROB_VOCAB_CHUNK_SIZE
    return lambda hidden, weight, target: apply(hidden, weight, target, None, 1.0, chunk)


def liger_sm90() -> LogProb:
    """Liger's CuTe DSL kernel for sm_90; logits staged in fp16. Needs nvidia-cutlass-dsl."""
    module = importlib.import_module("liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90")
    apply = module.LigerFusedScaledCrossEntropySM90Function.apply
    return lambda hidden, weight, target: -apply(hidden, weight, target, 1.0, -100)


def cut_cross_entropy(filter_eps: str | None) -> LogProb:
    """CCE. Its default leaves small gradients out; filter_eps=None computes all."""
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy

    def logp(hidden: Any, weight: Any, target: Any) -> Any:
        return -function(hidden, weight, target, reduction="none", filter_eps=filter_eps)

    return logp


def verl(group: Any = None) -> LogProb:
    """verl's fused kernel, over the ranks of a group if any; it computes the entropy as well."""
    module = import_below("verl.utils.kernel.linear_cross_entropy")
    import_below("verl.utils.kernel.kernels")  # wanted at the first call only: fail here
    apply = module.linear_cross_entropy
    return lambda hidden, weight, target: apply(hidden, weight, target, 1.0, "none", group)[0]


def verl_chunked() -> LogProb:
    """verl's fallback in torch: rows in chunks of 512, logits computed again by the backward."""
    module = import_below("verl.utils.experimental.torch_functional")
    apply = module.FusedLinearForPPOFunction.apply
    return lambda hidden, weight, target: apply(hidden, weight, target, 1.0, 512)[0]


MAKERS: dict[str, Callable[[], LogProb]] = {
    "torch eager, fp32 softmax": lambda: comparison.function_named("torch eager"),
    "torch eager, 16-bit": eager_16_bit,
    "torch.compile": lambda: comparison.function_named("torch.compile"),
    "Liger chunked": liger_chunked,
    "Liger selective": liger_selective,
    "Liger sm_90": liger_sm90,
    "CCE, exact": lambda: cut_cross_entropy(None),
    "CCE, filtered": lambda: cut_cross_entropy("high"),
    "verl": verl,
    "verl chunked": verl_chunked,
}


def quack(use_scaled_exp: bool) -> Sum:
    """QuACK's chunks of rows: logits and their derivative in the storage type, or exponentials that
    the gradients' products scale. Needs nvidia-cutlass-dsl."""
    module = importlib.import_module("quack.linear_cross_entropy")

    def loss(hidden: Any, weight: Any, target: Any) -> Any:
        return module.chunked_linear_cross_entropy(
            hidden, weight, target, reduction="sum", use_scaled_exp=use_scaled_exp
        )

    return loss


# Those that give a sum alone, not each row's log-prob.
SUMS: dict[str, Callable[[], Sum]] = {
    "QuACK, exponentials": lambda: quack(True),
    "QuACK, logits": lambda: quack(False),
}


def versions() -> dict[str, str]:
    """Of those packages that are installed."""
    from importlib import metadata

    found = {}
    packages = (
        *("liger-kernel", "cut-cross-entropy", "verl", "quack-kernels"),
        *("triton", "nvidia-cutlass-dsl"),
    )
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
