# SPDX-License-Identifier: Apache-2.0
"""Fills `torch.ops.rlk`, for those who call operators by name or load an exported program.

Example:
    >>> from rlk import operators
    >>> torch.ops.rlk.logp(logits, tokens)[0]
"""

from rlk._ops import torch_det_gemm_operators, torch_logp_operators, torch_loss_operators

__all__: list[str] = []

_ = (torch_det_gemm_operators, torch_logp_operators, torch_loss_operators)
