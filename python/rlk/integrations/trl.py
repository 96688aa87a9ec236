# SPDX-License-Identifier: Apache-2.0
"""rlk in TRL: one call before a trainer is made.

    import rlk.integrations.trl

    rlk.integrations.trl.patch()

Trainers then get what they ask of their head (log-probs, entropies and statistics of the logits)
from `rlk.jit.linear_logp`: those of GRPO, RLOO, SFT, DPO and KTO. GRPOTrainer gets its loss from
`rlk.jit.ppo_loss` as well.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rlk import jit
from rlk.errors import fail
from rlk.integrations import _trl_loss
from rlk.integrations._patch import Patch, Seam
from rlk.integrations.hf import in_one_dtype

__all__ = ["patch", "unpatch"]

Tensor = Any
#: What a head gives beside log-probs, in TRL's order of results.
OPTIONAL = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
STATISTICS = frozenset(OPTIONAL[1:])


def patch(*, allow_untried: bool = False) -> None:
    """Puts rlk into TRL; a second call does nothing.

    Call it before a trainer is made or after: each step looks the functions up. Every option of
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


def make_head(original: Any) -> Any:
    """A stand-in for TRL's autograd function of the head, which is called by `apply` alone."""

    class LinearLogp:
        """`rlk.jit.linear_logp` by TRL's arguments and results."""

        forward = original.forward

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
            outputs: tuple[str, ...] = OPTIONAL,
        ) -> tuple[Tensor | None, ...]:
            unknown = sorted(set(outputs) - {"log_probs", *OPTIONAL})
            if unknown:
                fail("trl", "outputs", ", ".join(OPTIONAL), ", ".join(unknown))
            own, own_bias, dtype = in_one_dtype(hidden, weight, bias)
            result = jit.linear_logp(
                hidden,
                own,
                targets,
                own_bias,
                temperature=temperature,
                softcap=final_logit_softcapping,
                logit_scale=logit_scale,
                ignore_index=None,
                return_entropy="entropy" in outputs,
                return_stats=not STATISTICS.isdisjoint(outputs),
                compute_dtype=dtype,
            )
            log_probs = getattr(result, "log_prob", result)
            if hasattr(weight, "ds_id") and log_probs.grad_fn is not None:
                _gather_in_backward(log_probs.grad_fn, weight, bias)
            stats = getattr(result, "stats", None)
            found: dict[str, Tensor] = {}
            if "entropy" in outputs:
                found["entropy"] = result.entropy
            if stats is not None:
                found["log_sum_sq_probs"] = stats.sum_p2.log()
                found["mean_logits"] = stats.mean_logit
                # Of equal logits the first is the argmax, in TRL as here.
                found["is_top1"] = stats.argmax == targets
            others = (found.get(name) if name in outputs else None for name in OPTIONAL)
            return log_probs, *others

    return LinearLogp


def _gather_in_backward(node: Any, *parameters: Tensor | None) -> None:
    """Makes a head that ZeRO-3 shards whole while this node of the graph runs, as TRL's own
    backward does: what TRL gathers for the forward is a shard again by then."""
    from trl.trainer import utils

    gathered = ExitStack()

    def gather(_: Any) -> None:
        gathered.enter_context(utils.maybe_gather_lm_head_ctx(*parameters))

    node.register_prehook(gather)
    node.register_hook(lambda *_: gathered.close())


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
        Seam("trl.trainer.utils:maybe_gather_lm_head_ctx", None, "params"),
        Seam(
            "trl.trainer.grpo_trainer:GRPOTrainer._compute_loss",
            lambda original: _trl_loss.compute_loss,
            "self, model, inputs",
        ),
        *(Seam(path, None, parameters) for path, parameters in _trl_loss.CALLED),
    ),
)
