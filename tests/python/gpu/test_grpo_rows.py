# SPDX-License-Identifier: Apache-2.0
"""grpo_loss of many rows, whose gradient is made in one look: the bits of the parts it stands for.

Each test asks `explain` first that its call is of that way.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from grpo import Tokens
from on_device import DEVICE, graph_of, spaced, transposed
from reference import same_bits
from tensors import torch

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

ROWS, LENGTH = 700, 8  # half of the tokens are enough for 170 multiprocessors
GROUPS = {"samples_per_prompt": 4}
LOGP = ("temperature", "softcap", "logit_scale", "ignore_index")
DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = [
    {},
    {"beta": 0.0},
    {"beta": 0.3, "kl_estimator": "k2", "kl_gradient": "unbiased", "kl_weight": "ratio"},
    {"use_dual_clip": True, "loss_reduction": "sequence_mean"},
    {"delta": 2.0, "policy_loss": "ppo"},
    {"use_tis": True, "tis_imp_ratio_cap": 1.05},
    {"use_tis": True, "tis_level": "sequence", "tis_mode": "mask", "tis_imp_ratio_cap": 1.5},
    {"use_tis": True, "tis_level": "geometric"},
    {"policy_loss": "cispo"},
    {"policy_loss": "sapo", "loss_reduction": "token_sum"},
    {"policy_loss": "gpg", "loss_reduction": "prompt_mean"},
    {"softcap": 3.0, "logit_scale": 0.5, "temperature": 0.7},
    {"dialect": "trl"},
    {"ignore_index": 3, "global_tokens": 12345},
]


@dataclass(frozen=True)
class Batch(Tokens):
    rollout: Any

    def arguments(self, options):
        ref = None if "ref_logps" in options else self.ref
        return self.policy, ref, self.ids, self.old, self.rewards, self.mask


def draw(vocab, dtype="bfloat16", rows=ROWS, length=LENGTH):
    """Drawn on the device: ragged, some far off the clip."""
    g = torch.Generator(DEVICE).manual_seed(vocab)

    def normal(*shape):
        return torch.randn(*shape, generator=g, device=DEVICE)

    policy = (2 * normal(rows, length, vocab)).to(getattr(torch, dtype))
    ref = (policy + 0.3 * normal(rows, length, vocab)).to(policy.dtype)
    ids = torch.randint(vocab, (rows, length), generator=g, device=DEVICE)
    lengths = torch.randint(length + 1, (rows, 1), generator=g, device=DEVICE)
    mask = torch.arange(length, device=DEVICE) < lengths
    old = rlk.jit.logp(policy, ids) + 0.3 * normal(rows, length)
    rollout = old + 0.1 * normal(rows, length)
    return Batch(policy, ref, ids, mask, old, normal(rows), rollout)


def chosen(options, b):
    extra = {"rollout_logprobs": b.rollout} if options.get("use_tis") else {}
    return {**GROUPS, **extra, **options}


def at_once(b, upstream=1.0, **options):
    options = chosen(options, b)
    q = b.but(policy=b.policy.detach().requires_grad_())
    arguments = q.arguments(options)
    told = rlk.jit.explain(rlk.jit.grpo_loss, *arguments, backward=True, **options)
    assert told.kernel.startswith("grpo_loss."), told
    found = rlk.jit.grpo_loss(*arguments, **options)
    (grad,) = torch.autograd.grad(found.loss * upstream, q.policy)
    return (*(x.detach() for x in found), grad)


def by_parts(b, upstream=1.0, **options):
    options = chosen(options, b)
    logp = {name: options.pop(name) for name in LOGP if name in options}
    ref, beta = options.pop("ref_logps", None), options.pop("beta", 0.04)
    dialect = {"dialect": options["dialect"]} if "dialect" in options else {}
    per_group = {name: options[name] for name in GROUPS if name in options}
    advantages = rlk.jit.group_advantages(b.rewards, **per_group, **dialect)
    mask = b.mask & (b.ids != logp.get("ignore_index", -100))
    policy = b.policy.detach().requires_grad_()
    log_probs = rlk.jit.logp(policy, b.ids, mask=b.mask, **logp)
    if ref is None:
        ref = rlk.jit.logp(b.ref, b.ids, mask=b.mask, **logp)
    # A leaf of its own: autograd's multiplication by the upstream is ppo_loss's.
    leaf = log_probs.detach().requires_grad_()
    found = rlk.jit.ppo_loss(
        leaf, b.old, advantages, mask, kl_coef=beta, ref_log_probs=ref, **options
    )
    (of_log_probs,) = torch.autograd.grad(found.loss * upstream, leaf)
    (grad,) = torch.autograd.grad(log_probs, policy, of_log_probs)
    metrics = found.metrics
    return found.loss.detach(), metrics.policy_loss, metrics.kl_loss, grad


def assert_same(found, want):
    names = ("loss", "policy_loss", "kl", "gradient")
    for name, got, expected in zip(names, found, want, strict=True):
        assert same_bits(got, expected), name
    assert found[0].isfinite()
    assert found[3].count_nonzero() > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options, dtype):
    b = draw(1000, dtype)
    for upstream in (1.0, -2.5):
        assert_same(at_once(b, upstream, **options), by_parts(b, upstream, **options))


# One leaf, rows without alignment, what a multiprocessor keeps of one to four rows.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 191, 193, 1002, 3331, 8004, 20000, 40004])
def test_vocabularies(vocab, dtype):
    b = draw(vocab, dtype)
    if vocab == 1:  # log p is 0 and has no gradient
        found, want = at_once(b), by_parts(b)
        assert all(same_bits(x, y) for x, y in zip(found, want, strict=True))
        return
    assert_same(at_once(b), by_parts(b))


# Rows that do not fit whole, of 16 and of 8 aligned bytes, and too many leaves for one look.
@pytest.mark.parametrize(
    ("vocab", "dtype"), [(131072, "bfloat16"), (131076, "float16"), (131072, "float32")]
)
def test_long_rows(vocab, dtype):
    sms = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    b = draw(vocab, dtype, rows=4 * sms, length=4)
    assert_same(at_once(b), by_parts(b))


def test_specialized_is_generic():
    b = draw(3331)
    want = at_once(b), at_once(b, softcap=3.0)
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info().fallbacks
    assert_same(at_once(b), want[0])
    assert_same(at_once(b, softcap=3.0), want[1])
    assert rlk.jit.cache_info().fallbacks == before


def test_layouts_and_types():
    b = draw(1000)
    want = at_once(b)
    for change in (transposed, spaced):
        assert_same(at_once(b.but(policy=change(b.policy), ref=change(b.ref))), want)
        tokens = {"ids": change(b.ids), "old": change(b.old), "mask": transposed(b.mask)}
        assert_same(at_once(b.but(**tokens)), want)
    others = {"mask": b.mask.float(), "ids": b.ids.int(), "rewards": b.rewards.double()}
    assert_same(at_once(b.but(old=b.old.double(), **others)), want)
    temperature = torch.full(b.ids.shape, 0.7, device=DEVICE)
    assert_same(at_once(b, temperature=temperature), by_parts(b, temperature=0.7))
    ref = rlk.jit.logp(b.ref, b.ids, mask=b.mask)
    assert_same(at_once(b, ref_logps=ref), want)


def test_every_token_is_active_without_a_mask():
    b = draw(1000)
    assert_same(at_once(b.but(mask=None)), at_once(b.but(mask=torch.ones_like(b.mask))))


def test_packed_is_padded():
    b = draw(1000)
    want = at_once(b)
    kept = b.mask.clone()
    kept[:, 0] = True  # inactive tokens too
    lengths = kept.sum(1).tolist()
    names = ("policy", "ref", "ids", "old", "mask")
    packed = b.but(**{name: getattr(b, name)[kept] for name in names})
    assert packed.ids.numel() >= 16 * 132
    starts = torch.tensor(np.cumsum([0, *lengths]), device=DEVICE, dtype=torch.int32)
    *found, grad = at_once(packed, cu_seqlens=starts)
    assert_same((*found, grad), (*want[:3], want[3][kept]))


# Rewards, too, are [N] then.
def test_as_many_packed_tokens_as_sequences():
    b = draw(193, rows=3000, length=2)
    lengths = 2 * torch.randint(2, (1500, 1), device=DEVICE).repeat(1, 2)
    lengths[:, 1] = 2 - lengths[:, 0]
    kept = torch.arange(2, device=DEVICE) < lengths.view(3000, 1)
    b = b.but(mask=kept)
    names = ("policy", "ref", "ids", "old", "mask")
    packed = b.but(**{name: getattr(b, name)[kept] for name in names})
    assert packed.ids.numel() == len(b.rewards)
    starts = torch.tensor(np.cumsum([0, *kept.sum(1).tolist()]), device=DEVICE)
    *found, grad = at_once(packed, cu_seqlens=starts)
    *want, whole = at_once(b)
    assert_same((*found, grad), (*want, whole[kept]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_tokens_may_hold_anything(dtype):
    b = draw(3331, dtype)
    want = at_once(b)
    wild = b.but(**{name: getattr(b, name).clone() for name in ("policy", "ref", "old", "ids")})
    for tensor in (wild.policy, wild.ref, wild.old):
        tensor[~b.mask] = torch.nan
    wild.ids[~b.mask] = 2**40
    assert_same(at_once(wild), want)
    assert same_bits(want[3][~b.mask], torch.zeros_like(want[3][~b.mask]))
    nobody = at_once(b.but(mask=torch.zeros_like(b.mask)))
    assert nobody[0].item() == 0
    assert nobody[3].count_nonzero() == 0


def test_a_graph_captures_it():
    b = draw(3331)
    want = at_once(b, 2.0)
    graph, found = graph_of(lambda: at_once(b, 2.0))
    for tensor in found:
        tensor.fill_(torch.nan)
    graph.replay()
    assert_same(found, want)


# From a graph, so that no later launch of the same call tells the error first.
def test_an_id_out_of_range_shows():
    b = draw(1000)
    graph, (loss, _, _, grad) = graph_of(lambda: at_once(b))
    at = tuple(b.mask.nonzero()[0].tolist())
    b.ids[at] = 1000
    graph.replay()
    assert loss.isnan()
    assert grad[at].isnan().all()
    with pytest.raises(rlk.InvalidArgument, match="got 1000 in row"):
        rlk.jit.check_errors()


def test_nan_shows():
    b = draw(1000)
    at = tuple(b.mask.nonzero()[0].tolist())
    b.policy[(*at, 5)] = torch.nan
    found, want = at_once(b), by_parts(b)
    assert all(same_bits(x, y) for x, y in zip(found, want, strict=True))
    assert found[0].isnan()
    assert found[3][at].isnan().all()


def test_errors_name_the_arguments():
    b = draw(1000)
    for changes, match in (
        ({"mask": b.mask.to(torch.complex64)}, "grpo_loss: completion_mask"),
        ({"rewards": b.rewards[1:]}, "grpo_loss: rewards"),
        ({"old": b.old[1:]}, "grpo_loss: old_logps"),
        ({"old": b.old.long()}, "grpo_loss: old_logps: expected a floating dtype"),
        ({"ids": b.ids.float()}, "grpo_loss: action_ids: expected an integer dtype"),
        ({"ref": b.ref[..., 1:]}, "grpo_loss: ref_logits"),
    ):
        q = b.but(policy=b.policy.detach().requires_grad_(), **changes)
        with pytest.raises(rlk.InvalidArgument, match=match):
            rlk.jit.grpo_loss(*q.arguments({}), **GROUPS)


def test_few_rows_are_left_to_the_parts():
    b = draw(1000, rows=8)
    told = rlk.jit.explain(rlk.jit.grpo_loss, *b.arguments({}), backward=True, **GROUPS)
    assert told.kernel.startswith("logp.")
    b = draw(1000)
    for options in ({"policy_loss": "gspo"}, {"entropy_coef": 0.1}):
        told = rlk.jit.explain(
            rlk.jit.grpo_loss, *b.arguments({}), backward=True, **GROUPS, **options
        )
        assert told.kernel.startswith("logp."), options
