# SPDX-License-Identifier: Apache-2.0
"""Errors of grpo_loss name the argument, what was expected and what came."""

import re

import numpy as np
import pytest
from grpo import PAIRS, draw

import rlk

pytestmark = pytest.mark.usefixtures("generic")

ERRORS = [
    ({"ref": None}, {}, r"ref_logits or ref_logps: expected a tensor with beta, got None"),
    ({"policy": None}, {}, "policy_logits: expected a tensor"),
    ({"ids": None}, {}, "action_ids: expected a tensor"),
    ({"old": None}, {}, "old_logps: expected a tensor, got None"),
    ({"rewards": None}, {}, "rewards: expected a tensor, got None"),
    ({"old": np.zeros((6, 8))}, {}, r"old_logps: expected shape \[6, 9\] \(that of action_ids\)"),
    ({"ids": np.zeros((6, 8), int)}, {}, r"action_ids: expected shape \[6, 9\], got \[6, 8\]"),
    ({"ids": np.full((6, 9), 210)}, {}, r"action_ids: expected ids in \[0, 210\), got 210"),
    ({"mask": np.full((6, 9), 2)}, {}, "completion_mask: expected 0 or 1, got 2"),
    ({"mask": np.ones((6, 8))}, {}, r"completion_mask: expected shape \[6, 9\]"),
    ({"policy": np.zeros((6, 9, 210), int)}, {}, "policy_logits: expected dtype float32"),
    ({"ref": np.zeros((6, 9, 210), int)}, {}, "ref_logits: expected dtype float32"),
    ({"rewards": np.zeros((6, 9), np.float32)}, {}, r"rewards: expected shape \[6\]"),
    ({"rewards": np.zeros(4, np.float32)}, {}, r"rewards: expected shape \[6\] .*got \[4\]"),
    ({"rewards": np.zeros(6, int)}, {}, "rewards: expected a floating dtype, got int64"),
    ({}, {"samples_per_prompt": None}, "samples_per_prompt: expected it or group_boundaries"),
    ({}, {"samples_per_prompt": 4}, "samples_per_prompt: expected a divisor of the 6"),
    ({}, {"samples_per_prompt": 0}, "samples_per_prompt: expected an int from 1 up"),
    ({}, {"group_boundaries": [0, 6]}, "samples_per_prompt: expected"),
    ({}, {"beta": "much"}, "beta: expected a number"),
    ({}, {"beta": None}, r"beta: expected a number \(0: no KL term\), got None"),
    ({"ref": np.zeros((6, 9, 211))}, {}, r"ref_logits: expected shape \[6, 9, 210\] .*9, 211\]"),
    ({"ref": np.zeros((6, 8, 210))}, {}, r"ref_logits: expected shape \[6, 9, 210\]"),
    ({"rewards": np.zeros(5)}, {}, r"rewards: expected shape \[6\] .*got \[5\]"),
    ({"rewards": np.float32(1)}, {}, r"rewards: expected shape \[6\] .*got \[\]"),
    ({}, {"cu_seqlens": 54}, "cu_seqlens: expected a torch tensor, NumPy array"),
    ({}, {"clip_eps": -0.1}, "clip_eps: expected a number from 0 to 1, got -0.1"),
    ({}, {"clip_eps": -0.1, "eps_clip_low": 0.2}, "clip_eps: expected a number from 0 to inf"),
    ({}, {"clip_eps": 0.2, "eps_clip_high": -0.1}, "eps_clip_high: expected a number from 0"),
    (
        {},
        {"clip_eps": 0.1, "eps_clip_low": 0.2, "eps_clip_high": 0.3},
        "clip_eps: expected None with eps_clip_low and eps_clip_high, got 0.1",
    ),
    ({}, {"normalize": "all"}, "normalize: expected std"),
    ({}, {"temperature": 0.0}, "temperature: expected a finite number above 0"),
    ({}, {"loss_reduction": "mean"}, "loss_reduction: expected token_mean"),
    ({}, {"dialect": "mine"}, "dialect: expected rlk"),
    ({}, {"use_tis": True}, "rollout_logprobs: expected a tensor with use_tis, got None"),
    ({}, {"cu_seqlens": np.array([0, 54])}, r"action_ids: expected shape \[N\] with cu_seqlens"),
]


@pytest.mark.parametrize(("changes", "options", "message"), ERRORS, ids=lambda x: str(x)[:30])
def test_errors_name_the_argument(changes, options, message):
    with pytest.raises(rlk.InvalidArgument, match=f"^grpo_loss: {message}"):
        draw().but(**changes).loss(**{**PAIRS, **options})


def test_a_batch_of_more_axes_is_the_tokens_error():
    p = draw()
    four = p.policy[None], p.ref[None], p.ids[None], p.old[None], p.rewards, p.mask[None]
    with pytest.raises(
        rlk.InvalidArgument, match=r"^grpo_loss: action_ids: expected shape \[B, T\]"
    ):
        rlk.jit.grpo_loss(*four, **PAIRS)


def test_packed_starts_of_none_are_named():
    p = draw(2, 3).but(rewards=None).map(lambda x: x.reshape(6, *x.shape[2:]))
    p = p.but(rewards=np.zeros(2, np.float32))
    with pytest.raises(rlk.InvalidArgument, match=r"^grpo_loss: cu_seqlens: expected"):
        p.loss(**PAIRS, cu_seqlens=np.zeros(0, int))


def test_other_errors():
    p = draw()
    with pytest.raises(rlk.InvalidArgument, match=r"^grpo_loss: ref_logits: .*got both"):
        rlk.jit.grpo_loss(
            p.policy, p.ref, p.ids, p.old, p.rewards, p.mask, ref_logps=p.old, **PAIRS
        )
    for name, here in (
        ("kl_coef", "here it is beta"),
        ("kl_loss_coef", "here it is beta"),
        ("ref_log_probs", "here it is ref_logps"),
        ("epsilon", "here it is eps_clip_low and eps_clip_high"),
        ("scale_rewards", "here it is normalize"),
        ("mask", "here it is completion_mask"),
        ("response_mask", "here it is completion_mask"),
        ("advantages", "see help(rlk.jit.grpo_loss)"),
        ("log_probs", "see help(rlk.jit.grpo_loss)"),
        ("entropy", "see help(rlk.jit.grpo_loss)"),
        ("clip", "see help(rlk.jit.grpo_loss)"),
    ):
        message = f"grpo_loss: {name}: expected an option that exists; {here}"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            p.loss(**PAIRS, **{name: 1.0})
    with pytest.raises(rlk.InvalidArgument, match=r"^grpo_loss: grad_output: expected one float32"):
        rlk.jit.grpo_loss_backward(
            np.float64(1), p.policy, p.ref, p.ids, p.old, p.rewards, p.mask, **PAIRS
        )
