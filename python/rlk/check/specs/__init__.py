# SPDX-License-Identifier: Apache-2.0
"""The ops that the checker knows: one explicit list."""

from __future__ import annotations

from ..spec import OpSpec
from .det_gemm import DetGemm
from .group_advantages import GroupAdvantages
from .grpo_loss import GrpoLoss
from .linear_logp import LinearLogp
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
    )
}
