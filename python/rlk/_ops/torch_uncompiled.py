# SPDX-License-Identifier: Apache-2.0
"""Calls that torch.compile does not follow: each is a graph break. Imported where its module is."""

import torch

from rlk._ops import torch_parallel

_REASON = "rlk: ranks share the vocabulary of this call, whose collectives are in no graph"

linear_logp = torch.compiler.disable(torch_parallel.linear_logp, reason=_REASON)
explain = torch_parallel.explain
logp = torch.compiler.disable(torch_parallel.logp, reason=_REASON)
