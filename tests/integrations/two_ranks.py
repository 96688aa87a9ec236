# SPDX-License-Identifier: Apache-2.0
"""two_ranks.py on|off LOSS_TYPE FILE: one of two processes that train; the first writes logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpo
import tiny
import torch

from rlk.integrations import trl

if sys.argv[1] == "on":
    trl.patch()
torch.manual_seed(5)
trainer = grpo.trainer(
    tiny.model("gemma2"),
    loss_type=sys.argv[2],
    num_iterations=2,
    gradient_accumulation_steps=2,
    max_steps=6,
    per_device_train_batch_size=2,
    entropy_coef=0.01,
    top_entropy_quantile=0.7,
    ddp_backend="gloo",
)
trainer.train()
if trainer.accelerator.is_main_process:
    found = {"ranks": trainer.accelerator.num_processes, "logs": trainer.state.log_history}
    Path(sys.argv[3]).write_text(json.dumps(found))
