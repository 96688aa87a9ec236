# SPDX-License-Identifier: Apache-2.0
"""The integrations under the systems' own options: what their sources gave, from dialects.SETS."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from devices import torch_name
from dialects import SETS, Set

import rlk

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rlk.integrations import areal, liger, nemo_rl, slime  # noqa: E402

pytestmark = pytest.mark.usefixtures("device", "generic")


class Got(NamedTuple):
    loss: Any
    metrics: dict[str, float]


def tensors(one: Set) -> SimpleNamespace:
    """The inputs; advantages [B, T]."""
    t = {name: torch.from_numpy(x.copy()).to(torch_name()) for name, x in one.inputs.items()}
    rows = len(t["log_probs"])
    t["advantages"] = t["advantages"].reshape(rows, -1).expand_as(t["log_probs"]).clone()
    for name in ("log_probs", "entropy"):
        if name in t:
            t[name].requires_grad_()
    absent = dict.fromkeys(("ref", "rollout", "entropy", "weights"))
    return SimpleNamespace(**{**absent, **t})


def of_nemo(one: Set, t: Any) -> Got:
    o = {
        "force_on_policy_ratio": False,
        "positive_example_nll_weight": 0.0,
        "loss_type": SimpleNamespace(
            value="token_level" if one.options["token_level_loss"] else "sequence_level"
        ),
        **one.options,
    }

    def shifted(x: Any) -> Any:  # NeMo-RL leaves the first position out
        return torch.nn.functional.pad(x, (1, 0))

    data = {
        "token_mask": shifted(t.mask),
        "sample_mask": torch.ones_like(t.mask[:, 0]),
        "advantages": shifted(t.advantages),
        "prev_logprobs": shifted(t.old_log_probs),
        "generation_logprobs": shifted(t.rollout),
    }
    if t.ref is not None:
        data["reference_policy_logprobs"] = shifted(t.ref)
    counts = (t.mask.any(1).sum(), t.mask.sum())
    return Got(*nemo_rl.clipped_pg_loss(SimpleNamespace(**o), t.log_probs, data, *counts))


def of_areal(one: Set, t: Any, is_packed: bool = False) -> Got:
    o, mask = one.options, t.mask.bool()
    shared = {"importance_sampling_level": o["importance_sampling_level"]}

    def flat(x: Any) -> Any:
        return x.reshape(-1) if is_packed else x

    if is_packed:
        length = mask.shape[1]
        shared["cu_seqlens"] = torch.arange(
            0, mask.numel() + 1, length, dtype=torch.int32, device=mask.device
        )
    parts = [flat(x) for x in (t.log_probs, t.old_log_probs)]
    if o["loss"] == "sapo":
        taus = (o["tau_pos"], o["tau_neg"])
        loss, stat = areal.sapo_loss_fn(*parts, flat(t.advantages), *taus, flat(mask), **shared)
    else:
        rejection = o["rejection_sampling"]
        loss, stat = areal.ppo_actor_loss_fn(
            *parts,
            flat(t.old_log_probs if t.rollout is None else t.rollout),
            flat(t.advantages),
            o["eps_clip"],
            flat(mask),
            eps_clip_higher=o["eps_clip_higher"],
            c_clip=o["c_clip"],
            rejection_sampling=rejection and SimpleNamespace(**rejection),
            **shared,
        )
    found = {
        f"{name}_mean": float((x.float() * flat(mask)).sum() / mask.sum())
        for name, x in stat.items()
        if torch.is_tensor(x)
    }
    return Got(loss, {**found, "filtered_fraction": stat.get("filtered_fraction", 0.0)})


def of_areal_packed(one: Set, t: Any) -> Got:
    return of_areal(one, t, is_packed=True)


def of_liger(one: Set, t: Any) -> Got:
    defaults = {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    options = SimpleNamespace(**defaults, **one.options)
    loss, metrics = liger.grpo_loss_of_log_probs(
        options, t.log_probs, t.mask, t.advantages[:, 0], t.ref, t.old_log_probs, t.weights
    )
    return Got(loss, {"kl_mean": float(metrics[0]), "clip_ratio": float(metrics[-1])})


def icepop(args: Any, *, pg_loss: Any, train_log_probs: Any, rollout_log_probs: Any, **more: Any):
    """slime's second TIS function, in its formula."""
    ratio = (torch.cat(train_log_probs) - torch.cat(rollout_log_probs)).exp()
    inside = (ratio >= args.tis_clip_low) & (ratio <= args.tis_clip)
    logged = {"tis": ratio, "tis_clipfrac": (~inside).float(), "tis_abs": (ratio - 1).abs()}
    return pg_loss * ratio * inside, more["loss_masks"], logged


def of_slime(one: Set, t: Any) -> Got:
    rows, length = t.mask.shape
    o = {
        "use_opsm": False,
        "get_mismatch_metrics": False,
        "use_rollout_logprobs": False,
        "custom_tis_function_path": "icepop" if one.options["tis_function"] == "icepop" else None,
        **one.options,
    }
    by_token = o["calculate_per_token_loss"]
    masks = list(t.mask)
    batch = {
        "advantages": list(t.advantages),
        "loss_masks": masks,
        "log_probs": list(t.old_log_probs),
        "rollout_log_probs": list(t.rollout) if t.rollout is not None else None,
        "ref_log_probs": list(t.ref) if t.ref is not None else None,
        "response_lengths": [length] * rows,
        "total_lengths": [length] * rows,
    }

    def reduce(values: Any) -> Any:
        parts = zip(values.split([length] * rows), masks, strict=True)
        return sum((x * m).sum() / (1 if by_token else m.sum().clamp(min=1)) for x, m in parts)

    entropy = torch.zeros_like(t.mask) if t.entropy is None else t.entropy
    loss, metrics = slime.policy_loss_of_log_probs(
        SimpleNamespace(**o), batch, list(t.log_probs), list(entropy), reduce
    )
    count = float(t.mask.sum()) if by_token else rows
    return Got(loss / count, {name: float(x) / count for name, x in metrics.items()})


RUNS = {
    "nemo": (of_nemo,),
    "areal": (of_areal, of_areal_packed),
    "liger": (of_liger,),
    "slime": (of_slime,),
}
CASES = [(run, one) for one in SETS for run in RUNS.get(one.framework, ())]
REFUSED = {  # luspo of several columns, where masked tokens count in Liger's own
    f"liger-{n:02}" for n in (8, 10, 11, 25)
}


@pytest.fixture(autouse=True)
def slime_finds_functions(monkeypatch):
    for name in ("slime", "slime.utils", "slime.utils.misc"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["slime.utils.misc"].load_function = {"icepop": icepop}.__getitem__


@pytest.mark.parametrize(
    ("run", "one"), CASES, ids=[f"{one.id}-{run.__name__}" for run, one in CASES]
)
def test_loss_gradients_and_metrics_of_the_source(run, one: Set):
    t = tensors(one)
    if one.id in REFUSED:
        with pytest.raises(rlk.InvalidArgument, match="loss_type: expected another with"):
            run(one, t)
        return
    got, want = run(one, t), one.result
    assert got.loss.item() == pytest.approx(want["loss"], rel=1e-5, abs=2e-6)
    for name, value in want["metrics"].items():
        assert got.metrics[name] == pytest.approx(value, rel=1e-5, abs=2e-6), name
    got.loss.backward()
    for name, of in (("grad", t.log_probs), ("grad_entropy", t.entropy)):
        if want.get(name) is not None:
            exact = torch.tensor(want[name])
            assert (of.grad.cpu() - exact).abs().max() <= 1e-5 * exact.abs().max(), name


def test_every_set_is_run():
    assert len(CASES) == 5 * 30
