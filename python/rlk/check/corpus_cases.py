# SPDX-License-Identifier: Apache-2.0
"""The known bugs: what was reported of other implementations, as inputs of the ops here.

Each was read in its thread, or where a file is named in the code. A case shows what the bug made
wrong; it says nothing of a package's version of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .known_bug import BOTH, Known, replaced

VERL, TRL, LIGER = "verl-project/verl#", "huggingface/trl#", "linkedin/Liger-Kernel#"
RLK, CCE = "RL-Align/RL-Kernel#", "apple/ml-cross-entropy#"
NEMO, PRIME = "NVIDIA-NeMo/RL#", "PrimeIntellect-ai/prime-rl#"
SKYRL, SLIME, AREAL = "NovaSky-AI/SkyRL#", "THUDM/slime#", "inclusionAI/AReaL#"
TORCH, VLLM = "pytorch/pytorch#", "vllm-project/vllm#"
INVARIANT = "thinking-machines-lab/batch_invariant_ops#"
BF16, FP16 = "bfloat16", "float16"
WEIGHTS = {"loss_weights": True}


def head(lead: tuple[int, ...], vocab: int, depth: int, **more: Any) -> Mapping[str, Any]:
    return {"lead": lead, "sizes": {"vocab": vocab, "hidden": depth}, **more}


def plain(**more: Any) -> Mapping[str, Any]:
    """Of linear_logp and the losses of it: the sizes that most share, without a bias."""
    return head((2, 8), 257, 96, **{**more, "options": {"bias": "none", **more.get("options", {})}})


def logits(lead: tuple[int, ...] = (2, 8), vocab: int = 257, **more: Any) -> Mapping[str, Any]:
    return {"lead": lead, "sizes": {"vocab": vocab}, **more}


def tokens(lead: tuple[int, ...] = (4, 19), **more: Any) -> Mapping[str, Any]:
    return {"lead": lead, **more}


def groups(**more: Any) -> Mapping[str, Any]:
    return {"lead": (12,), "sizes": {"length": 7, "vocab": 130}, **more}


# --- Edits ----------------------------------------------------------------------------------------


def _one_column(bias: np.ndarray) -> np.ndarray:
    return np.where(np.arange(bias.size) % 3 == 0, 40.0, 0.0)


def _first_sequence_off(mask: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(mask))[:, None] == 0, False, True) & np.ones(mask.shape, bool)


def _quadrants(advantage: float, log_ratio: float) -> Any:
    """One token each of A and r, both signs; or of these alone."""
    return replaced(
        log_probs=-1.0,
        old_log_probs=lambda raw: np.full(raw.shape, -1.0 - log_ratio),
        advantages=advantage,
    )


def _four(raw: np.ndarray, values: tuple[float, ...]) -> np.ndarray:
    return np.resize(np.array(values), raw.shape)


FOUR_SIGNS = replaced(
    log_probs=-1.0,
    old_log_probs=lambda raw: _four(raw, (-2.0, 0.0, -2.0, 0.0)),
    advantages=lambda raw: _four(raw, (1.0, 1.0, -1.0, -1.0)),
)


KNOWN: tuple[Known, ...] = (
    # --- linear_logp: numbers ---
    Known(
        "verl_2656_positive_log_probs",
        "linear_logp",
        "the fused kernel gave log-probs up to +123.7, and the reward collapsed",
        (VERL + "2656",),
        plain(kind="dominant"),
        BF16,
        (*BOTH, "rule logp_not_positive"),
    ),
    Known(
        "verl_maximum_starts_at_zero",
        "linear_logp",
        "the running maximum starts at 0: rows of logits below -104 sum to 0, log p is infinite",
        ("verl-project/verl:verl/utils/kernel/kernels.py",),
        plain(kind="negative"),
        BF16,
    ),
    Known(
        "verl_5349_columns_beyond_the_vocabulary",
        "linear_logp",
        "columns beyond a vocabulary that is no multiple of the tile took part in the sum",
        (VERL + "5349",),
        head((2, 8), 4099, 64, kind="negative", options={"bias": "none"}),
        BF16,
    ),
    Known(
        "cce_59_padded_shard",
        "linear_logp",
        "a rank's mark of no target was a padded column of an uneven shard, and the loss infinite",
        (CCE + "59",),
        head((2, 8), 1153, 64, options={"bias": "none"}),
        checks=(*BOTH, "invariance degrees"),
    ),
    Known(
        "cce_52_bias_added_more_than_once",
        "linear_logp",
        "the bias was added to the target's logit once a block of the hidden size",
        (CCE + "52", CCE + "53"),
        head((2, 8), 257, 512),
        BF16,
        edit=replaced(bias=_one_column),
    ),
    Known(
        "cce_48_softcap_left_out",
        "linear_logp",
        "an adapter for Gemma 2 left the softcap out",
        (CCE + "48",),
        plain(options={"softcap": 30.0}),
        BF16,
    ),
    Known(
        "cce_14_gradient_of_the_classifier",
        "linear_logp",
        "the gradient of the classifier was far off",
        (CCE + "14",),
        head((2, 64), 1000, 128, options={"bias": "none"}),
        BF16,
    ),
    Known(
        "pytorch_195829_offset",
        "linear_logp",
        "a large number that all logits share destroyed the loss",
        (TORCH + "195829", TORCH + "11752", "ml-explore/mlx#4188"),
        head((2, 8), 257, 96, kind="offset"),
    ),
    Known(
        "pytorch_187053_sum_in_fp16",
        "linear_logp",
        "the sum of the softmax left fp16's range at a long vocabulary",
        (TORCH + "187053",),
        head((2,), 262144, 4, kind="flat", options={"bias": "none"}),
        FP16,
    ),
    Known(
        "liger_512_weight_gradient_in_bf16",
        "linear_logp",
        "training diverged; the weight's gradient was added up in bf16 over chunks of rows",
        (LIGER + "512", LIGER + "827", LIGER + "1391", "axolotl-ai-cloud/axolotl#1601"),
        head((8, 128), 64, 33, options={"bias": "none"}),
        BF16,
    ),
    Known(
        "liger_862_masked_vocabulary",
        "linear_logp",
        "logits at -inf made NaN of finite ones beside them",
        (LIGER + "862",),
        head((2, 8), 257, 96, kind="neg_inf"),
    ),
    Known(
        "liger_968_gradients_of_single_rows",
        "linear_logp",
        "without a reduction the gradients were wrong, or zero",
        (LIGER + "968", LIGER + "678", LIGER + "1298"),
        plain(kind="zero_upstream"),
        BF16,
    ),
    Known(
        "liger_507_nothing_without_grad",
        "linear_logp",
        "the loss was 0 where nothing required a gradient",
        (LIGER + "507", LIGER + "1157"),
        plain(),
        checks=("forward", "invariance skipping"),
    ),
    Known(
        "rl_kernel_197_reference_in_bf16",
        "linear_logp",
        "a reference in bf16 showed an error of 0.476 that was its own, at log-probs of -160",
        (RLK + "197", "allenai/open-instruct#1387"),
        head((2, 8), 257, 1024, kind="dominant", options={"bias": "none"}),
        BF16,
    ),
    # --- linear_logp: options ---
    Known(
        "trl_3029_temperature_left_out",
        "linear_logp",
        "one of two paths did not divide by the temperature",
        (TRL + "3029", TRL + "5731", VERL + "3133", NEMO + "1900", "unslothai/unsloth-zoo#832"),
        plain(options={"temperature": 0.3}),
        BF16,
    ),
    Known(
        "rl_kernel_86_temperature_twice",
        "linear_logp",
        "logits were divided by the temperature twice",
        (RLK + "86",),
        plain(options={"temperature": 1.5}),
        BF16,
    ),
    Known(
        "verl_4787_temperature_of_each_row",
        "linear_logp",
        "samples of other temperatures in one batch",
        (VERL + "4787",),
        plain(options={"temperature": "row"}),
        BF16,
    ),
    Known(
        "verl_6935_temperature_in_place",
        "linear_logp",
        "a view was divided by the temperature in place: the caller's tensor changed",
        (VERL + "6935",),
        plain(layout="strided", options={"temperature": 0.7}),
        BF16,
    ),
    # --- linear_logp: ids and masks ---
    Known(
        "torchtune_2341_nothing_left",
        "linear_cross_entropy",
        "the mean over no token was NaN",
        ("pytorch/torchtune#2341", "allenai/open-instruct#1625", "allenai/open-instruct#1685"),
        plain(options={"ignored": 1.0}),
        BF16,
    ),
    Known(
        "pytorch_106467_bad_target",
        "linear_logp",
        "targets out of range were read, in silence or with an illegal access",
        (TORCH + "106467", TORCH + "117532", TORCH + "49882"),
        plain(),
        checks=("refusals",),
    ),
    Known(
        "rl_kernel_162_ids_in_masked_rows",
        "linear_logp",
        "ids of masked rows were held against the vocabulary",
        (RLK + "162", RLK + "122"),
        plain(kind="garbage"),
        BF16,
        (*BOTH, "invariance neighbours"),
    ),
    Known(
        "liger_588_id_0_ignored",
        "linear_logp",
        "ignored ids were used as indices",
        (LIGER + "588", LIGER + "884", LIGER + "974"),
        plain(options={"ignore_index": 0, "ignored": 0.4}),
        BF16,
    ),
    Known(
        "liger_974_last_id_ignored",
        "linear_logp",
        "the same with the last id",
        (LIGER + "974",),
        plain(options={"ignore_index": 256, "ignored": 0.4}),
        BF16,
    ),
    # --- linear_logp: layouts, invariance ---
    Known(
        "verl_6960_expanded_upstream",
        "linear_logp",
        "an upstream gradient of stride 0 was read as if it were contiguous",
        (VERL + "6960",),
        plain(layout="expanded"),
        BF16,
    ),
    Known(
        "rl_kernel_189_strided",
        "linear_logp",
        "a bias with a stride was read as if it had none",
        (RLK + "189", "NVIDIA/TransformerEngine#2734"),
        head((2, 8), 257, 96, layout="strided"),
        BF16,
    ),
    Known(
        "verl_2996_micro_batches",
        "linear_logp",
        "old log-probs and log-probs differed where the micro-batches did",
        (VERL + "2996", VERL + "6280", VLLM + "55131"),
        head((2, 65), 257, 96, options={"bias": "none"}),
        BF16,
        ("invariance batch_size", "invariance micro_batches"),
    ),
    Known(
        "megatron_7050_ranks",
        "linear_logp",
        "the bits depended on how many ranks share the vocabulary",
        ("NVIDIA/Megatron-LM#7050", "NVIDIA/Megatron-LM#7562"),
        head((2, 8), 1535, 64, options={"bias": "none"}),
        BF16,
        ("forward", "invariance degrees"),
    ),
    # --- logp ---
    Known(
        "maxtext_5231_rounded_log_probs",
        "logp",
        "log-probs in bf16 were above 0, in steps of 0.03",
        ("AI-Hypercomputer/maxtext#5231",),
        logits(kind="dominant"),
        BF16,
        (*BOTH, "rule logp_not_positive"),
    ),
    Known(
        "vllm_49367_parts_of_the_vocabulary",
        "logp",
        "into how many parts log_softmax cut a row depended on the batch",
        (VLLM + "49367",),
        logits((2, 65)),
        BF16,
        ("invariance batch_size", "invariance row_position"),
    ),
    Known(
        "torchtitan_3629_expanded",
        "logp",
        "log-probs were gathered wrongly from expanded tensors",
        ("pytorch/torchtitan#3629",),
        logits(layout="expanded"),
        BF16,
    ),
    # --- det_gemm ---
    Known(
        "batch_invariant_ops_6_one_shape",
        "det_gemm",
        "a shape was not batch-invariant",
        (INVARIANT + "6", VLLM + "55131"),
        head((2, 65), 257, 96, options={"bias": "none"}),
        BF16,
        ("forward", "invariance batch_size", "invariance micro_batches"),
    ),
    Known(
        "batch_invariant_ops_23_tf32",
        "det_gemm",
        "fp32 products were done in TF32",
        (INVARIANT + "23",),
        head((2, 8), 257, 96, kind="cancel", options={"bias": "none"}),
    ),
    Known(
        "sglang_34758_fp32_result",
        "det_gemm",
        "a deterministic product gave no fp32 result",
        ("sgl-project/sglang#34758", "sgl-project/sglang#38176"),
        head((2, 8), 257, 96, options={"bias": "none", "out_dtype": "float32"}),
        BF16,
    ),
    # --- Losses: masks and NaN ---
    Known(
        "trl_3248_all_masked",
        "ppo_loss",
        "all completions truncated and masked: the loss was NaN",
        (TRL + "3248", "unslothai/unsloth-zoo#1262", "unslothai/unsloth-zoo#1286", TRL + "5890"),
        tokens(kind="none_active", options={"kl_coef": 0.1}),
    ),
    Known(
        "trl_3248_all_masked_grpo",
        "grpo_loss",
        "the same from logits",
        (TRL + "3248",),
        groups(kind="none_active", options={"beta": 0.5}),
        BF16,
    ),
    Known(
        "skyrl_1633_masked_by_multiplying",
        "ppo_loss",
        "the mask was multiplied by: NaN of padded tokens reached the KL term and the metrics",
        (SKYRL + "1633", "OpenRLHF/OpenRLHF#1240", TRL + "5413"),
        tokens((2, 65), kind="garbage", options={"kl_coef": 0.1, **WEIGHTS}),
        checks=(*BOTH, "invariance neighbours"),
    ),
    Known(
        "openrlhf_1314_infinity_times_zero",
        "ppo_loss",
        "IcePop multiplied an infinite importance weight by 0",
        ("OpenRLHF/OpenRLHF#1314",),
        tokens(
            kind="far",
            options={
                "use_tis": True,
                "tis_mode": "mask",
                "tis_imp_ratio_cap": 2.0,
                "tis_imp_ratio_floor": 0.5,
            },
        ),
    ),
    Known(
        "areal_1412_where_after_exp",
        "ppo_loss",
        "masked after exp: an inactive log-ratio of 1e4 made the gradient NaN",
        (AREAL + "1412", NEMO + "4120"),
        tokens(kind="garbage", options={"ratio_level": "sequence", "kl_coef": 0.1}),
    ),
    Known(
        "trl_6297_nan_of_the_sampler",
        "ppo_loss",
        "the sampler gave NaN for tokens that are masked",
        (TRL + "6297", TRL + "5413"),
        tokens(kind="garbage", options={"use_tis": True, "tis_level": "sequence"}),
    ),
    Known(
        "verl_3915_sequence_without_tokens",
        "ppo_loss",
        "a sequence that rejection had emptied made the mean over sequences NaN",
        (VERL + "3915",),
        tokens(options={"loss_reduction": "sequence_mean_valid", "use_tis": True}),
        edit=replaced(loss_mask=_first_sequence_off),
    ),
    Known(
        "rl_kernel_161_ids_in_masked_tokens",
        "ratio_kl",
        "ids of masked tokens ended the process with a device assert",
        (RLK + "161", RLK + "162"),
        logits(kind="garbage"),
        BF16,
    ),
    Known(
        "rl_kernel_234_ids_in_active_tokens",
        "ratio_kl",
        "-100 in active tokens was not held against the vocabulary",
        (RLK + "234", RLK + "122"),
        logits(),
        checks=("refusals",),
    ),
    # --- Losses: overflow and clamps ---
    Known(
        "trl_3015_k3_overflow",
        "ppo_loss",
        "k3 overflowed far from the reference",
        (TRL + "3015", TRL + "6550", TRL + "6637", PRIME + "2085"),
        tokens(kind="far", options={"kl_coef": 0.1}),
    ),
    Known(
        "trl_3015_k3_overflow_of_logits",
        "ratio_kl",
        "the same from logits",
        (TRL + "3015",),
        logits(kind="far"),
        BF16,
    ),
    Known(
        "rl_kernel_ratio_kl_infinity_times_zero",
        "grpo_loss",
        "a ratio of infinity, clipped, times a gradient of 0 made NaN of a row",
        ("RL-Align/RL-Kernel:rl_engine/kernels/ops/triton/loss/ratio_kl.py",),
        groups(kind="far", options={"beta": 0.5}),
        BF16,
    ),
    Known(
        "k3_below_zero",
        "ratio_kl",
        "k3 written as exp(d) - d - 1 is negative for a tenth of the tokens near the reference",
        ("verl-project/verl:verl/trainer/ppo/core_algos.py",),
        logits(kind="near"),
        checks=(*BOTH, "rule kl_not_negative"),
    ),
    Known(
        "trl_4772_long_sequence",
        "ppo_loss",
        "the importance weight of a long sequence exploded",
        (TRL + "4772",),
        tokens((1, 8192), options={"use_tis": True, "tis_level": "sequence"}),
        edit=replaced(old_log_probs=-1.0, rollout_logprobs=-1.05),
    ),
    Known(
        "verl_2775_gspo_in_bf16",
        "ppo_loss",
        "the mean log-ratio of a sequence was clamped before, and rounded to bf16",
        (VERL + "2775",),
        tokens((2, 513), options={"policy_loss": "gspo", "loss_reduction": "sequence_mean"}),
        BF16,
    ),
    Known(
        "nemo_2958_clamped_kl_has_a_gradient",
        "ratio_kl",
        "beyond the clamp of the KL input the sampling weight still had a gradient",
        (NEMO + "2958",),
        logits(kind="far", options={"kl_gradient": "importance", "kl_clamp": 0.25}),
    ),
    # --- Losses: advantages ---
    Known(
        "verl_6348_smallest_deviation",
        "group_advantages",
        "the deviation of a group was floored, so that close rewards had small advantages",
        (VERL + "6348",),
        {"lead": (5,), "options": {"samples": 4}},
        checks=("forward",),
        edit=replaced(rewards=lambda raw: 1.0 + 1e-5 * np.resize(np.arange(4.0), raw.shape)),
    ),
    Known(
        "nemo_4158_advantage_of_2075",
        "group_advantages",
        "seven equal rewards and one of 0, without itself: the advantage was -2075",
        (NEMO + "4158", NEMO + "4161"),
        {"lead": (5,), "options": {"samples": 8, "normalize": "loo_std"}},
        checks=("forward",),
        edit=replaced(rewards=lambda raw: np.resize(np.array([0.0] + 7 * [0.95]), raw.shape)),
    ),
    Known(
        "nemo_1518_advantages_of_a_million",
        "group_advantages",
        "one reward of 1 among zeros, without itself: advantages of 1e6",
        (NEMO + "1518", NEMO + "1519"),
        {"lead": (5,), "options": {"samples": 8, "normalize": "loo_std"}},
        checks=("forward",),
        edit=replaced(rewards=lambda raw: np.resize(np.array([1.0] + 7 * [0.0]), raw.shape)),
    ),
    Known(
        "equal_rewards",
        "group_advantages",
        "rounding over a small number: equal rewards had advantages up to 0.9",
        ("OpenRLHF/OpenRLHF:openrlhf/trainer/ppo_utils/experience_maker.py",),
        {"lead": (5,), "kind": "equal", "options": {"samples": 8}},
        checks=("forward",),
    ),
    Known(
        "one_pass_variance",
        "group_advantages",
        "a variance of E[x^2] - E[x]^2 in fp32 keeps no digit of rewards around 4000",
        ("RL-Align/RL-Kernel:rl_engine/kernels/ops/pytorch/loss/grpo_loss.py",),
        {"lead": (5,), "options": {"samples": 8}},
        checks=("forward",),
        edit=replaced(rewards=lambda raw: 4000.1 + 0.1 * np.resize(np.arange(2.0), raw.shape)),
    ),
    # --- Losses: denominators ---
    Known(
        "verl_3741_dr_grpo",
        "ppo_loss",
        "the mean over sequences was left out where a token's weight is 1 / L",
        (VERL + "3741",),
        tokens(options={"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 64}),
    ),
    Known(
        "verl_2776_mean_of_a_group",
        "ppo_loss",
        "tokens were averaged over each group in place of the batch",
        (VERL + "2776",),
        tokens((6, 20)),
    ),
    Known(
        "verl_5625_micro_batches",
        "ppo_loss",
        "the mean over tokens was that of each micro-batch",
        (
            *(VERL + n for n in ("5625", "5877", "906", "3332", "3994", "7321")),
            *(TRL + n for n in ("3021", "3231", "5619", "6024")),
            *(SKYRL + "1296", NEMO + "212", "modelscope/ms-swift#10116"),
        ),
        tokens((2, 65), options=WEIGHTS),
        checks=(*BOTH, "invariance micro_batches", "invariance padding"),
    ),
    Known(
        "trl_6369_denominator_of_the_mask",
        "ppo_loss",
        "the number of tokens was not that of the mask",
        (TRL + "6369", TRL + "7068", SLIME + "657"),
        tokens(options={"mask": "float32", "global_tokens": 1000}),
    ),
    Known(
        "areal_1088_rejected_tokens",
        "ppo_loss",
        "tokens that the importance weight rejects left the denominator, too",
        (AREAL + "1088",),
        tokens(
            options={
                "use_tis": True,
                "tis_mode": "mask",
                "tis_imp_ratio_cap": 1.5,
                "tis_imp_ratio_floor": 0.5,
            }
        ),
    ),
    Known(
        "prime_rl_1391_product_of_sums",
        "ppo_loss",
        "a sum of products was written as the product of sums",
        (PRIME + "1391",),
        tokens(options={"kl_coef": 0.1, "kl_weight": "ratio"}),
    ),
    # --- Losses: clips, levels, options ---
    Known(
        "trl_3032_clip_ratio",
        "ppo_loss",
        "the clip ratio counted the wrong signs: two of these four kinds of tokens are clipped",
        (TRL + "3032", TRL + "3144", TRL + "3175", "pytorch/rl#2021"),
        tokens((2, 8), options={"mask": "none"}),
        edit=FOUR_SIGNS,
    ),
    Known(
        "prime_rl_1329_masked_tokens_counted",
        "ppo_loss",
        "masked tokens took part in what is counted",
        (PRIME + "1329", AREAL + "1572"),
        tokens(kind="garbage"),
    ),
    Known(
        "verl_783_no_dual_clip",
        "ppo_loss",
        "without a dual clip a ratio of e^5 with a negative advantage made the loss sky-high",
        (VERL + "783", VERL + "784"),
        tokens(options={"use_dual_clip": True, "clip_ratio_c": 3.0}),
        edit=_quadrants(-1.0, 5.0),
    ),
    Known(
        "tianshou_433_dual_clip",
        "ppo_loss",
        "the dual clip was applied to positive advantages",
        ("thu-ml/tianshou#433",),
        tokens(options={"use_dual_clip": True, "clip_ratio_c": 3.0}),
        edit=_quadrants(1.0, -5.0),
    ),
    Known(
        "slime_2247_dead_option",
        "ppo_loss",
        "the dual clip's bound was taken and not used",
        (SLIME + "2247", "RLinf/RLinf#316", SKYRL + "546", VERL + "3237"),
        tokens(),
        checks=("option_liveness",),
    ),
    Known(
        "skyrl_1928_cispo_bounds",
        "ppo_loss",
        "CISPO's bounds were [1, 6] in place of [0, 5]",
        (SKYRL + "1928", SKYRL + "1859"),
        tokens(options={"policy_loss": "cispo", "cispo_bounds": "eps", "eps_clip_high": 2.0}),
    ),
    Known(
        "verl_6377_bounds_that_are_no_inverses",
        "ppo_loss",
        "a rejection's bound had the wrong sign where the two are no inverses",
        (VERL + "6377",),
        tokens(
            options={
                "use_tis": True,
                "tis_level": "geometric",
                "tis_mode": "band",
                "tis_imp_ratio_floor": 0.5,
                "tis_imp_ratio_cap": 5.0,
            }
        ),
    ),
    Known(
        "slime_1917_level_of_the_statistic",
        "ppo_loss",
        "a statistic of tokens was used where that of the sequence was meant",
        (SLIME + "1917",),
        tokens(options={"use_tis": True, "tis_level": "sequence", "tis_imp_ratio_cap": 2.0}),
    ),
    Known(
        "liger_1082_importance_weight_left_out",
        "ppo_loss",
        "the sampler's importance weight was left out: the gradient's norm was 100 times off",
        (LIGER + "1082", LIGER + "1088", TRL + "5031"),
        tokens(options={"use_tis": True, "tis_imp_ratio_cap": 1.5}),
    ),
    Known(
        "liger_sequence_level_kl",
        "ppo_loss",
        "the KL weighted by a sequence's ratio had the gradient of single tokens",
        ("linkedin/Liger-Kernel:src/liger_kernel/ops/grpo_loss.py",),
        tokens(options={"ratio_level": "sequence", "kl_coef": 0.1, "kl_weight": "ratio"}),
    ),
    Known(
        "logic_rl_58_sign_of_the_kl",
        "grpo_loss",
        "the KL term had the other sign and drove the policy away from the reference",
        ("Unakar/Logic-RL#58",),
        groups(options={"beta": 0.5, "kl_estimator": "k1"}),
        BF16,
    ),
    Known(
        "openrlhf_773_no_kl",
        "grpo_loss",
        "the KL was 0 whatever the policies",
        ("OpenRLHF/OpenRLHF#773",),
        groups(options={"beta": 0.5, "kl_estimator": "k2"}),
        BF16,
    ),
    Known(
        "trl_2752_log_probs_in_bf16",
        "ppo_loss",
        "log-probs of the sampler came in bf16",
        (TRL + "2752", SLIME + "892"),
        tokens(options={"use_tis": True}),
        BF16,
    ),
    Known(
        "liger_1294_long_sequences",
        "grpo_loss",
        "sequences of 65,536 tokens were beyond the grid",
        (LIGER + "1294",),
        {"lead": (2,), "sizes": {"length": 65537, "vocab": 3}},
        BF16,
    ),
    Known(
        "axolotl_3510_temperature_of_the_loss",
        "linear_ppo_loss",
        "the loss from hidden states and the trainer had other temperatures",
        ("axolotl-ai-cloud/axolotl#3510",),
        plain(options={"temperature": 0.7}),
        BF16,
    ),
    Known(
        "trl_2752_log_probs_in_bf16_on_the_way",
        "linear_grpo_loss",
        "log-probs rounded to bf16 on the way to the loss",
        (TRL + "2752",),
        {
            "lead": (12,),
            "sizes": {"length": 7, "vocab": 257, "hidden": 96},
            "options": {"beta": 0.5, "bias": "none"},
        },
        BF16,
    ),
)
