# SPDX-License-Identifier: Apache-2.0
"""A kernel with each of the known bugs: rlk's own, called otherwise than it was asked to be, or the
op in torch with the bug in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rlk import jit
from rlk.check.specs.group_advantages import torch_group_advantages
from rlk.check.specs.linear_logp import torch_linear_logp

Kernel = Callable[..., Any]
OPS = {name: getattr(jit, name) for name in (
    *("linear_logp", "logp", "det_gemm", "ppo_loss", "grpo_loss", "ratio_kl", "group_advantages"),
    *("linear_cross_entropy", "linear_ppo_loss", "linear_grpo_loss"),
)}  # fmt: skip


def but(op: str, **changes: Any) -> Kernel:
    """rlk's own with other arguments; a function makes one from all that were given."""

    def kernel(**a: Any) -> Any:
        changed = {n: v(a) if callable(v) else v for n, v in changes.items()}
        return OPS[op](**{**a, **changed})

    return kernel


def after(op: str, change: Callable[[Any, dict[str, Any]], Any]) -> Kernel:
    """rlk's own, whose first output is changed."""

    def kernel(**a: Any) -> Any:
        result = OPS[op](**a)
        first, *rest = result if isinstance(result, tuple) else (result,)
        changed = change(first, a)
        if op == "ppo_loss":
            return changed, rest[0].clip_ratio
        return (changed, *rest) if rest else changed

    return kernel


def of_logits(change: Callable[[Any, Any], Any]) -> Kernel:
    """linear_logp in fp32 from logits, [N, V], and target ids."""

    def kernel(hidden: Any, weight: Any, target: Any, bias: Any = None, mask: Any = None) -> Any:
        z = torch.nn.functional.linear(hidden.float(), weight.float())
        z = z.reshape(-1, z.shape[-1])
        active = (target != -100) if mask is None else (target != -100) & (mask != 0)
        ids = target.long().masked_fill(~active, 0).reshape(-1)
        logp = change(z if bias is None else z + bias.float(), ids)
        return torch.where(active, logp.reshape(target.shape), 0.0)

    return kernel


def chosen(z: Any, ids: Any) -> Any:
    return z.gather(-1, ids[:, None])[:, 0]


def without_target(z: Any, ids: Any) -> Any:
    return chosen(z, ids) - z.scatter(-1, ids[:, None], -torch.inf).logsumexp(-1)


def maximum_from_zero(z: Any, ids: Any) -> Any:
    most = z.amax(-1).clamp(min=0.0)
    return chosen(z, ids) - most - (z - most[:, None]).exp().sum(-1).log()


def columns_beyond(z: Any, ids: Any) -> Any:
    return chosen(z, ids) - torch.nn.functional.pad(z, (0, 61)).logsumexp(-1)


def sum_in_fp16(z: Any, ids: Any) -> Any:
    most = z.amax(-1)
    return chosen(z, ids) - most - (z - most[:, None]).exp().half().sum(-1).log().float()


def nan_of_masked(z: Any, ids: Any) -> Any:
    logp = torch.log_softmax(z, -1)
    return chosen(logp, ids) + 0.0 * (logp.exp() * logp).sum(-1)


def in_bf16(z: Any, ids: Any) -> Any:
    return chosen(torch.log_softmax(z.bfloat16(), -1), ids).float()


def by_batch(logp: Any, a: dict[str, Any]) -> Any:
    return logp * (1.0 + 2.0**-21 * (logp.shape[0] % 3))


def of_the_mean(logp: Any, a: dict[str, Any]) -> Any:
    return logp.detach() + logp.mean() - logp.mean().detach()


def in_place(**a: Any) -> Any:
    a["hidden"].detach().div_(a["temperature"])
    return OPS["linear_logp"](**{**a, "temperature": 1.0})


def expanded_read_wrongly(**a: Any) -> Any:
    logp = OPS["linear_logp"](**a)
    if logp.requires_grad:

        def read(g: Any) -> Any:
            if 0 not in g.stride():
                return g
            return g * (torch.arange(g.numel()) == 0).reshape(g.shape)

        logp.register_hook(read)
    return logp


def bias_without_stride(**a: Any) -> Any:
    if not a["bias"].is_contiguous():
        a["bias"] = a["bias"].roll(1)
    return OPS["linear_logp"](**a)


def rows_in_bf16(**a: Any) -> Any:
    """The gradient of the weight added up in bf16 over chunks of rows."""
    weight = a["weight"]
    rows = [row for sequence in a["hidden"] for row in sequence.split(16)]
    ids = [row for sequence in a["target"] for row in sequence.split(16)]
    parts = [
        OPS["linear_logp"](**{**a, "hidden": x, "target": t, "weight": weight})
        for x, t in zip(rows, ids, strict=True)
    ]
    return torch.cat(parts).reshape(a["target"].shape)


def refuses_wild_ids(op: str, ids: str, vocab: Callable[[dict[str, Any]], int]) -> Kernel:
    def kernel(**a: Any) -> Any:
        if bool((a[ids].long() >= vocab(a)).any()):
            raise ValueError("an id out of range")
        return OPS[op](**a)

    return kernel


def clamped_ids(op: str, ids: str, vocab: Callable[[dict[str, Any]], int]) -> Kernel:
    return but(op, **{ids: lambda a: a[ids].clamp(0, vocab(a) - 1)})


def vocab_of_weight(a: dict[str, Any]) -> int:
    return int(a["weight"].shape[0])


def vocab_of_policy(a: dict[str, Any]) -> int:
    return int(a["policy_logits"].shape[-1])


def no_token(**a: Any) -> Any:
    count = ((a["target"] != -100) if a.get("mask") is None else a["mask"] != 0).sum()
    return OPS["linear_cross_entropy"](**{**a, "reduction": "sum"}) / count


def active(a: dict[str, Any], mask: str) -> Any:
    return 1.0 if a.get(mask) is None else (a[mask] != 0).float()


def clip_ratio_of_both_signs(**a: Any) -> Any:
    ratio = (a["log_probs"] - a["old_log_probs"]).exp()
    outside = (ratio > 1.2) | (ratio < 0.8)
    return OPS["ppo_loss"](**a)[0], outside.float().mean()


def masked_tokens_counted(**a: Any) -> Any:
    ratio = (a["log_probs"] - a["old_log_probs"]).exp()
    return OPS["ppo_loss"](**a)[0], ((ratio > 1.2) & (a["advantages"] > 0)).float().mean()


def dual_clip_of_all(loss: Any, a: dict[str, Any]) -> Any:
    return torch.minimum(loss, -(a["advantages"] * a.get("clip_ratio_c", 3.0)).mean())


def k3_as_written(**a: Any) -> Any:
    ratio, _ = OPS["ratio_kl"](**a)
    own, ref = (
        torch_linear_logp(a[name], None, a["action_ids"])
        for name in ("policy_logits", "ref_logits")
    )
    d = ref.detach() - own
    return ratio, d.exp() - d - 1.0


def one_pass(a: dict[str, Any], ddof: int = 1) -> Any:
    x = a["rewards"].float().reshape(-1, a["samples_per_prompt"])
    mean = x.mean(-1, keepdim=True)
    count = x.shape[-1]
    variance = ((x * x).mean(-1, keepdim=True) - mean * mean) * count / max(count - ddof, 1)
    return (x - mean) / (variance.clamp(min=0).sqrt() + 1e-6)


def without_itself_in_one_pass(**a: Any) -> Any:
    x = a["rewards"].float().reshape(-1, a["samples_per_prompt"])
    count = x.shape[-1] - 1
    mean = (x.sum(-1, keepdim=True) - x) / count
    square = ((x * x).sum(-1, keepdim=True) - x * x) / count
    std = ((square - mean * mean).clamp(min=0) * count / (count - 1)).sqrt()
    return ((x - mean) / (std + 1e-6)).reshape(a["rewards"].shape)


def of_bits(tensor: Any) -> Any:
    """TF32: ten bits of the fraction."""
    return ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


BROKEN: dict[str, Kernel] = {
    "verl_2656_positive_log_probs": of_logits(without_target),
    "verl_maximum_starts_at_zero": of_logits(maximum_from_zero),
    "verl_5349_columns_beyond_the_vocabulary": of_logits(columns_beyond),
    "cce_59_padded_shard": of_logits(lambda z, ids: chosen(z, ids) - z.logsumexp(-1) - torch.inf),
    "cce_52_bias_added_more_than_once": but("linear_logp", bias=lambda a: 2 * a["bias"]),
    "cce_48_softcap_left_out": but("linear_logp", softcap=None),
    "cce_14_gradient_of_the_classifier": but(
        "linear_logp", weight=lambda a: 0.9 * a["weight"] + 0.1 * a["weight"].detach()
    ),
    "pytorch_195829_offset": of_logits(lambda z, ids: chosen(z, ids) - z.exp().sum(-1).log()),
    "pytorch_187053_sum_in_fp16": of_logits(sum_in_fp16),
    "liger_512_weight_gradient_in_bf16": rows_in_bf16,
    "liger_862_masked_vocabulary": of_logits(nan_of_masked),
    "liger_968_gradients_of_single_rows": after("linear_logp", of_the_mean),
    "liger_507_nothing_without_grad": after(
        "linear_logp", lambda logp, a: logp if torch.is_grad_enabled() else 0 * logp
    ),
    "rl_kernel_197_reference_in_bf16": of_logits(in_bf16),
    "trl_3029_temperature_left_out": but("linear_logp", temperature=1.0),
    "rl_kernel_86_temperature_twice": but(
        "linear_logp", temperature=lambda a: a["temperature"] ** 2
    ),
    "verl_4787_temperature_of_each_row": but(
        "linear_logp", temperature=lambda a: float(a["temperature"].mean())
    ),
    "verl_6935_temperature_in_place": in_place,
    "torchtune_2341_nothing_left": no_token,
    "pytorch_106467_bad_target": clamped_ids("linear_logp", "target", vocab_of_weight),
    "rl_kernel_162_ids_in_masked_rows": refuses_wild_ids("linear_logp", "target", vocab_of_weight),
    "liger_588_id_0_ignored": but("linear_logp", ignore_index=-100),
    "liger_974_last_id_ignored": but("linear_logp", ignore_index=-100),
    "verl_6960_expanded_upstream": expanded_read_wrongly,
    "rl_kernel_189_strided": bias_without_stride,
    "verl_2996_micro_batches": after("linear_logp", by_batch),
    "maxtext_5231_rounded_log_probs": after("logp", lambda logp, a: logp.bfloat16().float()),
    "vllm_49367_parts_of_the_vocabulary": after("logp", by_batch),
    "torchtitan_3629_expanded": after(
        "logp", lambda logp, a: logp.roll(1) if 0 in a["logits"].stride() else logp
    ),
    "batch_invariant_ops_6_one_shape": after(
        "det_gemm", lambda out, a: out * (1.0 + 2.0**-7 * (out.shape[0] % 3))
    ),
    "batch_invariant_ops_23_tf32": but("det_gemm", a=lambda a: of_bits(a["a"])),
    "sglang_34758_fp32_result": but("det_gemm", out_dtype=None),
    "trl_3248_all_masked": after(
        "ppo_loss", lambda loss, a: loss + 0.0 / active(a, "loss_mask").sum()
    ),
    "trl_3248_all_masked_grpo": after(
        "grpo_loss", lambda loss, a: loss + 0.0 / active(a, "completion_mask").sum()
    ),
    "skyrl_1633_masked_by_multiplying": after(
        "ppo_loss",
        lambda loss, a: (
            loss + 0.0 * (active(a, "loss_mask") * (a["log_probs"] - a["ref_log_probs"])).sum()
        ),
    ),
    "openrlhf_1314_infinity_times_zero": after(
        "ppo_loss",
        lambda loss, a: loss + (0.0 * (a["old_log_probs"] - a["rollout_logprobs"]).exp()).sum(),
    ),
    "areal_1412_where_after_exp": after(
        "ppo_loss",
        lambda loss, a: (
            loss
            + 0.0
            * torch.where(
                a["loss_mask"] != 0, (a["log_probs"] - a["old_log_probs"]).exp(), 0.0
            ).sum()
        ),
    ),
    "trl_6297_nan_of_the_sampler": after(
        "ppo_loss", lambda loss, a: loss + 0.0 * a["rollout_logprobs"].sum()
    ),
    "verl_3915_sequence_without_tokens": but("ppo_loss", loss_reduction="sequence_mean"),
    "rl_kernel_161_ids_in_masked_tokens": refuses_wild_ids(
        "ratio_kl", "action_ids", vocab_of_policy
    ),
    "rl_kernel_234_ids_in_active_tokens": clamped_ids("ratio_kl", "action_ids", vocab_of_policy),
    "trl_3015_k3_overflow": but("ppo_loss", kl_clamp=torch.inf),
    "trl_3015_k3_overflow_of_logits": but("ratio_kl", kl_clamp=torch.inf),
    "rl_kernel_ratio_kl_infinity_times_zero": but("grpo_loss", log_ratio_clamp=torch.inf),
    "k3_below_zero": k3_as_written,
    "trl_4772_long_sequence": but("ppo_loss", tis_imp_ratio_cap=torch.inf),
    "verl_2775_gspo_in_bf16": but("ppo_loss", gspo_log_ratio_clamp=1e-3),
    "nemo_2958_clamped_kl_has_a_gradient": but("ratio_kl", kl_gradient="unbiased"),
    "verl_6348_smallest_deviation": but("group_advantages", eps=1e-3, eps_mode="max"),
    "nemo_4158_advantage_of_2075": without_itself_in_one_pass,
    "nemo_1518_advantages_of_a_million": without_itself_in_one_pass,
    "equal_rewards": lambda **a: torch_group_advantages(**a),
    "one_pass_variance": lambda **a: one_pass(a).reshape(a["rewards"].shape),
    "verl_3741_dr_grpo": but("ppo_loss", loss_reduction="token_sum_over_L"),
    "verl_2776_mean_of_a_group": but(
        "ppo_loss", loss_reduction="prompt_mean", samples_per_prompt=3
    ),
    "verl_5625_micro_batches": after(
        "ppo_loss", lambda loss, a: loss * 65 / a["log_probs"].shape[0]
    ),
    "trl_6369_denominator_of_the_mask": but("ppo_loss", global_tokens=None),
    "areal_1088_rejected_tokens": after("ppo_loss", lambda loss, a: 1.1 * loss),
    "prime_rl_1391_product_of_sums": but("ppo_loss", kl_weight="one"),
    "trl_3032_clip_ratio": clip_ratio_of_both_signs,
    "prime_rl_1329_masked_tokens_counted": masked_tokens_counted,
    "verl_783_no_dual_clip": but("ppo_loss", use_dual_clip=False),
    "tianshou_433_dual_clip": after("ppo_loss", dual_clip_of_all),
    "slime_2247_dead_option": but("ppo_loss", clip_ratio_c=3.0),
    "skyrl_1928_cispo_bounds": but("ppo_loss", cispo_bounds="1+eps"),
    "verl_6377_bounds_that_are_no_inverses": but("ppo_loss", tis_imp_ratio_cap=1.05),
    "slime_1917_level_of_the_statistic": but("ppo_loss", tis_level="token"),
    "liger_1082_importance_weight_left_out": but(
        "ppo_loss", rollout_logprobs=lambda a: a["old_log_probs"]
    ),
    "liger_sequence_level_kl": but("ppo_loss", kl_ratio="token"),
    "logic_rl_58_sign_of_the_kl": but("grpo_loss", beta=lambda a: -a["beta"]),
    "openrlhf_773_no_kl": but("grpo_loss", beta=0.0),
    "trl_2752_log_probs_in_bf16": but("ppo_loss", rollout_logprobs=lambda a: a["old_log_probs"]),
    "liger_1294_long_sequences": but(
        "grpo_loss",
        completion_mask=lambda a: (
            (a["completion_mask"] != 0) & (torch.arange(a["action_ids"].shape[1]) < 65535)
        ),
    ),
    "axolotl_3510_temperature_of_the_loss": but("linear_ppo_loss", temperature=1.0),
    "trl_2752_log_probs_in_bf16_on_the_way": but(
        "linear_grpo_loss", old_logps=lambda a: a["old_logps"].bfloat16().float()
    ),
    "megatron_7050_ranks": lambda **a: OPS["linear_logp"](**a),
}
