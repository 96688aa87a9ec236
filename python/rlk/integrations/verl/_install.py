# SPDX-License-Identifier: Apache-2.0
"""The policy losses in verl's registry, made for the rules of the verl that is installed."""

from __future__ import annotations

import importlib
from typing import Any

from rlk.errors import Fault, Unsupported
from rlk.integrations.verl._policy_loss import KINDS, Version, make_policy_loss

_EACH = {"dp_size": 1, "batch_num_tokens": 3, "global_batch_size": 2, "loss_scale_factor": 1}


def register() -> None:
    algos = _algos()
    version = installed_version(algos)
    for name, kind in KINDS.items():
        algos.register_policy_loss(name)(make_policy_loss(kind, version))


def unregister() -> None:
    for name in KINDS:
        _algos().POLICY_LOSS_REGISTRY.pop(name, None)


def installed_version(algos: Any) -> Version:
    """Asked of verl's functions, as its version number does not tell: 0.9.1 has a gspo unlike that
    of 0.9.0 and of 0.10, and snapshots of one number have two kinds of seq-mean-token-sum-norm."""
    import torch

    one = torch.ones(2, 1)
    norm = float(algos.agg_loss(one, one, "seq-mean-token-sum-norm", **_EACH))
    if norm not in (1.0, 2.0):
        _fail("agg_loss", "a mean or a sum of the sequences", f"{norm} for two of 1")
    by_sequence = tuple(kind for kind in ("gspo", "sapo") if not _reads_mode(algos, kind))
    return Version("verl" if norm == 1.0 else "verl_old", by_sequence)


def _reads_mode(algos: Any, kind: str) -> bool:
    """Whether verl's loss of this kind is reduced as loss_agg_mode says."""
    import torch

    name = f"policy loss {kind}"
    if kind not in algos.POLICY_LOSS_REGISTRY:
        _fail(name, "one in the registry", "none")
    config = algos.ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True)
    log_prob, mask = torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    losses = [
        float(algos.POLICY_LOSS_REGISTRY[kind](log_prob, log_prob, mask, mask, mode, config)[0])
        for mode in ("seq-mean-token-mean", "seq-mean-token-sum")
    ]
    return losses[0] != losses[1]


def _algos() -> Any:
    return importlib.import_module("verl.trainer.ppo.core_algos")


def _fail(argument: str, expected: str, got: str) -> None:
    raise Unsupported(Fault("verl", argument, expected, got))
