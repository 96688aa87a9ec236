# SPDX-License-Identifier: Apache-2.0
"""The ops that the checker knows: one explicit list."""

from __future__ import annotations

from ..spec import OpSpec
from .det_gemm import DetGemm
from .group_advantages import GroupAdvantages
from .grpo_loss import GrpoLoss
from .linear_cross_entropy import LinearCrossEntropy
from .linear_logp import LinearLogp
from .linear_loss import LinearGrpoLoss, LinearPpoLoss
from .logp import Logp
from .ppo_loss import PpoLoss
from .ratio_kl import RatioKl

SPECS: dict[str, OpSpec] = {
    spec.name: spec
    for spec in (
        LinearLogp(),
        Logp(),
        RatioKl(),
        GrpoLoss(),
        PpoLoss(),
        GroupAdvantages(),
        DetGemm(),
        LinearPpoLoss(),
        LinearGrpoLoss(),
        LinearCrossEntropy(),
    )
}
