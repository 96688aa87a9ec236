# SPDX-License-Identifier: Apache-2.0
"""rlk in TRL: one call before a trainer is made.

    import rlk.integrations.trl

    rlk.integrations.trl.patch()

GRPOTrainer and RLOOTrainer then get log-probs and entropies from `rlk.jit.linear_logp`, and
GRPOTrainer its loss from `rlk.jit.ppo_loss`. Trainers whose metrics need more than log-probs and
entropies of the head (SFT, DPO, KTO) keep TRL's own head.
"""

from __future__ import annotations

from typing import Any

from rlk import jit
from rlk.integrations import _trl_loss
from rlk.integrations._patch import Patch, Seam
from rlk.integrations.hf import in_one_dtype

__all__ = ["patch", "unpatch"]

Tensor = Any
#: What the head here gives, in TRL's order of results.
GIVEN = ("log_probs", "entropy")
NUM_RESULTS = 5


def patch(*, allow_untried: bool = False) -> None:
    """Puts rlk into TRL; a second call does nothing.

    Call it before a trainer is made: its head is then marked as one to replace. Every option of
    GRPOConfig keeps its meaning, and every metric its name and value.

    Args:
        allow_untried: go on with a TRL outside of the versions that this was tried with, as long
            as the functions that it replaces have the signatures known here.

    Raises:
        rlk.LoadError: TRL cannot be imported.
        rlk.Unsupported: an untried version, or functions that are not the ones known here.

    Example:
        >>> rlk.integrations.trl.patch()
        >>> trainer = GRPOTrainer(model, reward_funcs=reward, args=args, train_dataset=dataset)
    """
    PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Puts TRL's own functions back.

    Raises:
        rlk.Unsupported: something else has replaced one of them since, which stays.
    """
    PATCH.off()


class Outputs(tuple[str, ...]):
    """What a trainer asks of its head, of one that asks for no more than is given here.

    A policy and its reference have one head: in DPO the policy's is TRL's, which gives more, and
    with another one beside it their equal log-probs would differ by rounding.
    """


def make_add_head(original: Any) -> Any:
    """Of the modules of GRPOTrainer and RLOOTrainer, for their policies and references."""

    def add_fused_lm_head(
        model: Any,
        temperature: float = 1.0,
        cast_lm_head_to_fp32: bool = False,
        outputs: tuple[str, ...] = ("log_probs",),
    ) -> None:
        original(model, temperature, cast_lm_head_to_fp32, Outputs(outputs))

    return add_fused_lm_head


def make_head(original: Any) -> Any:
    """A stand-in for TRL's autograd function of the head, which is called by `apply` alone."""

    class LinearLogp:
        """`rlk.jit.linear_logp` for heads of `make_add_head`, else TRL's own."""

        forward = original.forward
        trl = original

        @staticmethod
        def apply(
            hidden: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            targets: Tensor,
            temperature: float,
            chunk_size: int,
            final_logit_softcapping: float | None = None,
            logit_scale: float = 1.0,
            outputs: tuple[str, ...] | None = None,
        ) -> Any:
            if not isinstance(outputs, Outputs) or not set(outputs) <= set(GIVEN):
                rest = () if outputs is None else (outputs,)
                return original.apply(
                    *(hidden, weight, bias, targets, temperature, chunk_size),
                    *(final_logit_softcapping, logit_scale),
                    *rest,
                )
            hidden, weight, bias = in_one_dtype(hidden, weight, bias)
            result = jit.linear_logp(
                hidden,
                weight,
                targets,
                bias,
                temperature=temperature,
                softcap=final_logit_softcapping,
                logit_scale=logit_scale,
                ignore_index=None,
                return_entropy="entropy" in outputs,
            )
            found = (result.log_prob, result.entropy) if "entropy" in outputs else (result, None)
            return (*found, *(None,) * (NUM_RESULTS - len(found)))

    return LinearLogp


PATCH = Patch(
    "trl",
    since="1.16.0",
    before="1.17",
    seams=(
        Seam(
            "trl.kernels:ChunkedLogProbFunction.forward",
            None,
            "ctx, hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping, "
            "logit_scale, outputs",
        ),
        Seam("trl.trainer.utils:_ChunkedLogProbFunction", make_head),
        *(
            Seam(
                f"trl.trainer.{name}_trainer:add_fused_lm_head",
                make_add_head,
                "model, temperature, cast_lm_head_to_fp32, outputs",
                references=False,
            )
            for name in ("grpo", "rloo")
        ),
        Seam(
            "trl.trainer.grpo_trainer:GRPOTrainer._compute_loss",
            lambda original: _trl_loss.compute_loss,
            "self, model, inputs",
        ),
        *(Seam(path, None, parameters) for path, parameters in _trl_loss.CALLED),
    ),
)
