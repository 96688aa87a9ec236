# SPDX-License-Identifier: Apache-2.0
"""rlk inside verl: its policy losses, log-probs from logits, fused head and fused kernel.

    from rlk.integrations import verl
    verl.patch()

in every worker, or ``actor_rollout_ref.model.external_lib=rlk.integrations.verl.auto``, which does
the same where verl imports it. Then ``actor_rollout_ref.actor.policy_loss.loss_mode`` takes "rlk"
(verl's vanilla), "rlk_gspo", "rlk_sapo", "rlk_cispo" and "rlk_gpg". verl's own names stay verl's.
"""

from __future__ import annotations

from rlk.integrations._patch import Patch, Seam
from rlk.integrations.verl import _install
from rlk.integrations.verl._head import head_of_model, model_of_head
from rlk.integrations.verl._linear_cross_entropy import linear_cross_entropy
from rlk.integrations.verl._log_probs import make_logprobs_from_logits
from rlk.integrations.verl._policy_loss import KINDS, Version, make_policy_loss

__all__ = ["KINDS", "Version", "linear_cross_entropy", "make_policy_loss", "patch", "unpatch"]

_ALGOS = "verl.trainer.ppo.core_algos"
_KERNEL = "verl.utils.kernel.linear_cross_entropy"
_PATCH = Patch(
    "verl",
    since="0.8.0",
    before="0.10.1",
    seams=(
        Seam(f"{_ALGOS}:register_policy_loss", None, "name"),
        Seam(
            "verl.utils.torch_functional:logprobs_from_logits",
            make_logprobs_from_logits,
            "logits, labels, inplace_backward",
        ),
        Seam(
            "verl.utils.experimental.torch_functional:FusedLinearForPPO.forward",
            head_of_model,
            "self, hidden_states, vocab_weights, input_ids, temperature",
        ),
        Seam(
            "verl.models.transformers.monkey_patch:patch_forward_with_backends",
            model_of_head,
            "model, use_fused_kernels, fused_kernels_backend",
        ),
        Seam(
            f"{_KERNEL}:LinearCrossEntropy.forward",
            None,
            "ctx, hidden, weight, labels, temperature, reduction, dist_process_group",
            optional=True,
        ),
        Seam(f"{_KERNEL}:linear_cross_entropy", lambda _: linear_cross_entropy, optional=True),
    ),
    extra=((_install.register, _install.unregister),),
)


def patch(*, allow_untried: bool = False) -> None:
    """Registers the policy losses, replaces log-probs, head and kernel. A second call does nothing.

    Args:
        allow_untried: go on with a version of verl outside of 0.8.0 to 0.10.0.

    Raises:
        rlk.LoadError: verl cannot be imported.
        rlk.Unsupported: an untried version, or one in which a function that this replaces is
            absent or has other parameters, or whose losses cannot be told apart.

    Example:
        >>> from rlk.integrations import verl
        >>> verl.patch()
    """
    _PATCH.on(allow_untried=allow_untried)


def unpatch() -> None:
    """Undoes `patch`.

    Raises:
        rlk.Unsupported: as `rlk.integrations._patch.Patch.off`.
    """
    _PATCH.off()
