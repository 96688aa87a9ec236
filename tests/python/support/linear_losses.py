# SPDX-License-Identifier: Apache-2.0
"""Batches of the losses from hidden states as torch tensors on the current device, the loss by its
parts, and the exact one in float64."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import devices
from losses import loss_oracle
from tensors import torch

import rlk

#: Options of linear_logp that both policies share, and those of the policy.
LOGITS = ("temperature", "softcap", "logit_scale", "ignore_index", "compute_dtype")
OWN = ("saved_mib", "accumulate_into", "lora")
HEAD = ("hidden", "weight", "bias")
REF = {name: f"ref_{name}" for name in HEAD}


@dataclass(frozen=True)
class Batch:
    """Tensors by the names of linear_ppo_loss, and rewards."""

    hidden: Any
    weight: Any
    bias: Any
    target: Any
    loss_mask: Any
    old_log_probs: Any
    advantages: Any
    rewards: Any
    rollout_logprobs: Any
    ref_hidden: Any
    ref_weight: Any
    ref_bias: Any

    def but(self, **changes: Any) -> Batch:
        return replace(self, **changes)

    def map(self, change: Any) -> Batch:
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{k: None if v is None else change(v) for k, v in found.items()})

    def leaves(self) -> Batch:
        """With a head that asks for gradients."""
        own = {name: getattr(self, name) for name in HEAD}
        made = {n: x.detach().clone().requires_grad_() for n, x in own.items() if x is not None}
        return self.but(**made)

    @property
    def head(self) -> list[Any]:
        return [x for x in (self.hidden, self.weight, self.bias) if x is not None]

    def given(self, options: dict[str, Any]) -> dict[str, Any]:
        """Arguments of linear_ppo_loss."""
        names = {*HEAD, "target", "loss_mask", "old_log_probs", "advantages"}
        if options.get("kl_coef") and "ref_log_probs" not in options:
            names |= set(REF.values())
        if options.get("use_tis"):
            names.add("rollout_logprobs")
        return {**{name: getattr(self, name) for name in names}, **options}

    def loss(self, **options: Any) -> Any:
        return rlk.jit.linear_ppo_loss(**self.given(options))


def by_parts(given: dict[str, Any]) -> Any:
    """linear_ppo_loss of these arguments, written out."""
    given = dict(given)
    logits = {name: given.pop(name) for name in LOGITS if name in given}
    own = {name: given.pop(name) for name in OWN if name in given}
    head, target = {name: given.pop(name) for name in HEAD}, given.pop("target")
    ref = {name: given.pop(of, None) for name, of in REF.items()}
    mask = given.pop("loss_mask")
    found = rlk.jit.linear_logp(
        **head, target=target, mask=mask, return_entropy=True, entropy_grad=True, **logits, **own
    )
    if given.get("entropy_coef"):
        given["entropy"] = found.entropy
    if ref["hidden"] is not None:
        with torch.no_grad():
            given["ref_log_probs"] = rlk.jit.linear_logp(**ref, target=target, mask=mask, **logits)
    ignored = logits.get("ignore_index", -100)
    active = torch.ones_like(target, dtype=torch.bool) if mask is None else mask != 0
    if ignored is not None:
        active = active & (target != ignored)
    return rlk.jit.ppo_loss(found.log_prob, loss_mask=active, **given)


def logits_of(head: list[Any], options: dict[str, Any]) -> Any:
    """float64 logits that the softmax is taken of."""
    hidden, weight, *bias = head
    x = hidden @ weight.T
    x = (x + bias[0] if bias else x) * options.get("logit_scale", 1.0)
    if options.get("softcap"):
        x = options["softcap"] * torch.tanh(x / options["softcap"])
    heat = options.get("temperature", 1.0)
    return x / (heat[..., None].double() if hasattr(heat, "ndim") else heat)


def exact(b: Batch, options: dict[str, Any]) -> tuple[loss_oracle.LossAnswer, list[Any]]:
    """In float64 on the host: the loss, and the gradients of hidden, weight and bias."""
    options = dict(options)
    logits = {name: options.pop(name) for name in LOGITS if name in options}
    ignored = logits.get("ignore_index", -100)
    b = b.map(lambda x: x.detach().cpu())
    active = (
        torch.ones_like(b.target, dtype=torch.bool) if b.loss_mask is None else b.loss_mask != 0
    )
    if ignored is not None:
        active = active & (b.target != ignored)
    ids = torch.where(active, b.target, 0)[..., None]

    def distribution(head: list[Any]) -> tuple[Any, Any]:
        logs = logits_of(head, logits).log_softmax(-1)
        return logs.gather(-1, ids)[..., 0], -(logs.exp() * logs).sum(-1)

    head = [x.double().requires_grad_() for x in b.head]
    log_probs, entropy = distribution(head)
    given = {name: getattr(b, name).numpy() for name in ("rollout_logprobs",)}
    if options.get("kl_coef"):
        ref = [x.double() for x in (b.ref_hidden, b.ref_weight, b.ref_bias) if x is not None]
        given["ref_log_probs"] = distribution(ref)[0].numpy()
    answer = loss_oracle.ppo_loss(
        log_probs.detach().numpy(),
        b.old_log_probs.numpy(),
        b.advantages.numpy(),
        active.numpy(),
        entropy=entropy.detach().numpy(),
        **given,
        **options,
    )
    upstream = [torch.from_numpy(x) for x in (answer.grad, answer.grad_entropy)]
    return answer, list(torch.autograd.grad([log_probs, entropy], head, upstream))


def draw(
    shape: tuple[int, ...] = (6, 9),
    dim: int = 24,
    vocab: int = 210,
    dtype: str = "float32",
    *,
    bias: bool = True,
    seed: int = 0,
) -> Batch:
    """Ragged; a sequence without active tokens; ids that tests ignore; garbage nowhere."""
    drawn = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Any:
        return torch.randn(size, generator=drawn)

    hidden, weight = normal(*shape, dim), normal(vocab, dim) / dim**0.5
    of_bias = normal(vocab)
    target = torch.randint(vocab, shape, generator=drawn)
    mask = torch.rand(shape, generator=drawn) < 0.8
    mask.view(shape[0], -1)[shape[0] // 2] = False
    ref_hidden, ref_weight = (
        hidden + 0.1 * normal(*hidden.shape),
        weight + 0.02 * normal(vocab, dim),
    )
    head = [x.to(getattr(torch, dtype)) for x in (hidden, weight)]
    now = logits_of([x.double() for x in (*head, of_bias)], {}).log_softmax(-1)
    now = now.gather(-1, target[..., None])[..., 0].float()
    found = Batch(
        *head,
        of_bias if bias else None,
        target,
        mask,
        now + 0.3 * normal(*shape),
        normal(*shape),
        normal(shape[0]),
        now + 0.4 * normal(*shape),
        *(x.to(getattr(torch, dtype)) for x in (ref_hidden, ref_weight)),
        of_bias + 0.1 * normal(vocab) if bias else None,
    )
    return found.map(lambda x: x.to(devices.torch_name()))
