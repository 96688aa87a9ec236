# SPDX-License-Identifier: Apache-2.0
"""linear_ppo_loss and linear_grpo_loss: float64, the bits of their parts, what masks leave out."""

import numpy as np
import pytest
from linear_losses import HEAD, Batch, by_parts, draw, exact
from losses import same_metrics
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

TOLERANCE = {"float32": 5e-5, "bfloat16": 2e-2, "float16": 3e-3}  # of the largest entry
EVERYTHING = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}
OPTION_SETS = [
    {},
    {"temperature": 0.7},
    {"softcap": 3.0, "logit_scale": 0.5},
    {"kl_coef": 0.1},
    {"kl_coef": 0.3, "kl_estimator": "k1", "kl_gradient": "unbiased", "temperature": 1.5},
    {"kl_coef": 0.3, "kl_estimator": "k2", "softcap": 3.0},
    {"kl_coef": 0.3, "kl_estimator": "abs", "kl_reduction": "sequence_mean"},
    {"kl_coef": 0.3, "kl_weight": "ratio"},
    {"entropy_coef": 0.05},
    {"entropy_coef": 0.05, "temperature": 0.7, "softcap": 3.0},
    EVERYTHING,
    {"use_tis": True, "tis_level": "sequence", "tis_mode": "mask"},
    {"use_tis": True, "tis_level": "geometric", "tis_mode": "band"},
    {"policy_loss": "gspo"},
    {"policy_loss": "gspo", "ratio_level": "sequence", "loss_reduction": "sequence_mean_valid"},
    {"policy_loss": "cispo", "loss_reduction": "seq_mean_token_sum"},
    {"policy_loss": "sapo", "loss_reduction": "token_sum"},
    {"policy_loss": "gpg", "global_tokens": 100},
    {"delta": 1.1, "loss_reduction": "token_sum_over_L", "max_seq_len": 9},
    {"loss_reduction": "prompt_mean", "samples_per_prompt": 3},
    {"ignore_index": 3},
]


def gradients(b: Batch, loss, **kept):
    return torch.autograd.grad(loss, b.head, **kept)


def expect_close(found, exact_ones, within):
    for got, want in zip(found, exact_ones, strict=True):
        size = float(want.abs().max())
        assert (got.cpu().double() - want).abs().max() <= within * size + 1e-12


def expect_same(found, want):
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("options", OPTION_SETS, ids=str)
def test_against_float64(options):
    b = draw()
    answer, want = exact(b, options)
    assert not answer.ties.any()
    assert answer.counts["num_active"] > 0
    b = b.leaves()
    loss, metrics = b.loss(**options)
    assert abs(loss.item() - answer.loss) <= 5e-5 * answer.abs_loss_sum
    assert metrics.num_active.item() == answer.counts["num_active"]
    expect_close(gradients(b, loss), want, TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, EVERYTHING, {"policy_loss": "gspo"}], ids=str)
def test_sixteen_bits_against_float64(options, dtype):
    b = draw(dtype=dtype)
    answer, want = exact(b, options)
    b = b.leaves()
    loss = b.loss(**options).loss
    assert abs(loss.item() - answer.loss) <= 5e-5 * answer.abs_loss_sum
    found = gradients(b, loss)
    assert [x.dtype for x in found] == [x.dtype for x in b.head]
    expect_close(found, want, TOLERANCE[dtype])


@pytest.mark.parametrize("options", OPTION_SETS, ids=str)
def test_the_bits_of_the_parts(options):
    b = draw(bias=options != {}).leaves()
    (loss, metrics), (want, want_metrics) = b.loss(**options), by_parts(b.given(options))
    assert torch.equal(loss, want)
    assert same_metrics(metrics, want_metrics)
    expect_same(gradients(b, loss * 0.5), gradients(b, want * 0.5))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_options_of_logits_of_other_kinds(dtype):
    """A temperature a row, a mask of floats, masters in float32, a budget of 0."""
    b = draw(dtype=dtype).leaves()
    heat = torch.linspace(0.5, 2, 54, device=b.hidden.device).reshape(6, 9)
    master = b.but(weight=b.weight.detach().float().requires_grad_())
    for other, options in (
        (b, {"temperature": heat}),
        (b.but(loss_mask=b.loss_mask.float()), {"saved_mib": 0}),
        (b.but(loss_mask=None), {"ignore_index": None}),
        (master, {"compute_dtype": torch.bfloat16, "kl_coef": 0.1}),
    ):
        loss, want = other.loss(**options).loss, by_parts(other.given(options)).loss
        assert torch.equal(loss, want)
        expect_same(gradients(other, loss), gradients(other, want))


def with_garbage(b: Batch) -> Batch:
    off = ~b.loss_mask
    ids = b.target.clone()
    ids[off] = tensor(np.resize([-100, 210, 2**62, -1], int(off.sum())))
    wild = {
        name: getattr(b, name).masked_fill(off[..., None] if "hidden" in name else off, torch.nan)
        for name in ("hidden", "ref_hidden", "old_log_probs", "advantages", "rollout_logprobs")
    }
    return b.but(target=ids, **wild)


@pytest.mark.parametrize("options", [{}, EVERYTHING, {"policy_loss": "gspo"}], ids=str)
def test_tokens_outside_of_the_mask_may_hold_anything(options):
    b = draw()
    wild = with_garbage(b).leaves()
    b = b.leaves()
    found, want = wild.loss(**options), b.loss(**options)
    assert torch.equal(found.loss, want.loss)
    grads = gradients(wild, found.loss)
    expect_same(grads, gradients(b, want.loss))
    assert not grads[0][~b.loss_mask].any()


def test_an_ignored_target_is_as_one_outside_of_the_mask():
    b = draw()
    ignored = b.but(target=b.target.masked_fill(~b.loss_mask, -100), loss_mask=None).leaves()
    b = b.leaves()
    for options in ({}, EVERYTHING):
        found, want = ignored.loss(**options), b.loss(**options)
        assert torch.equal(found.loss, want.loss)
        assert same_metrics(found.metrics, want.metrics)
        expect_same(gradients(ignored, found.loss), gradients(b, want.loss))


def test_without_an_active_token_all_is_zero():
    b = draw().but(loss_mask=torch.zeros_like(draw().loss_mask)).leaves()
    loss, metrics = b.loss(**EVERYTHING)
    assert loss.item() == 0
    assert metrics.num_active.item() == 0
    assert not any(grad.any() for grad in gradients(b, loss))


@pytest.mark.parametrize("options", [{}, EVERYTHING, {"policy_loss": "gspo"}], ids=str)
def test_packed_sequences_have_the_bits_of_padded_ones(options):
    b = draw()
    lengths = tensor(np.array([9, 4, 0, 7, 1, 9]))
    inside = torch.arange(9, device=lengths.device) < lengths[:, None]
    padded = b.but(loss_mask=b.loss_mask & inside)
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

    def pack(x):
        return x[inside] if x.shape[:2] == inside.shape else x

    packed, padded = padded.map(pack).leaves(), padded.leaves()
    found, want = packed.loss(cu_seqlens=starts, **options), padded.loss(**options)
    assert torch.equal(found.loss, want.loss)
    found, want = gradients(packed, found.loss), gradients(padded, want.loss)
    assert torch.equal(found[0], want[0][inside])


def test_the_references_log_probs_in_place_of_its_head():
    b = draw().leaves()
    ref = rlk.jit.linear_logp(b.ref_hidden, b.ref_weight, b.target, b.ref_bias, mask=b.loss_mask)
    found, want = b.loss(kl_coef=0.1, ref_log_probs=ref), b.loss(kl_coef=0.1)
    assert torch.equal(found.loss, want.loss)
    expect_same(gradients(b, found.loss), gradients(b, want.loss))
    # Of another width, whose gradient is not asked for.
    narrow = b.but(ref_hidden=b.ref_hidden[..., :8], ref_weight=b.ref_weight[:, :8]).map(
        lambda x: x.requires_grad_() if x.is_leaf and x.is_floating_point() else x
    )
    assert narrow.loss(kl_coef=0.1).loss.requires_grad
    # Not looked at without a KL term.
    assert torch.equal(b.loss(ref_hidden="nothing").loss, b.loss().loss)


def test_nothing_is_kept_where_nothing_needs_a_gradient():
    b = draw()
    want = b.leaves().loss(**EVERYTHING)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = b.leaves().loss(**EVERYTHING)
        assert not found.loss.requires_grad
        assert torch.equal(found.loss, want.loss)
    assert not b.loss(**EVERYTHING).loss.requires_grad
    assert torch.equal(b.loss(**EVERYTHING).loss, want.loss)


@pytest.mark.parametrize("needed", HEAD)
def test_one_gradient_alone(needed):
    b = draw()
    alone = b.but(**{needed: getattr(b, needed).detach().clone().requires_grad_()})
    b = b.leaves()
    (found,) = torch.autograd.grad(alone.loss(**EVERYTHING).loss, getattr(alone, needed))
    assert torch.equal(found, gradients(b, b.loss(**EVERYTHING).loss)[HEAD.index(needed)])


@pytest.mark.parametrize("factor", [0.25, -3.0, 1024.0])
@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
def test_grad_scale_multiplies_gradients_alone(options, factor):
    b = draw().leaves()
    want = gradients(b, b.loss(**options).loss * factor)
    for scale in (factor, tensor(np.float32(factor)), tensor(np.float64(factor))):
        loss = b.loss(grad_scale=scale, **options).loss
        assert torch.equal(loss, b.loss(**options).loss)
        expect_same(gradients(b, loss), want)


def test_the_weights_gradient_is_accumulated():
    b = draw(dtype="bfloat16").leaves()
    found = torch.ones(b.weight.shape, device=b.weight.device)
    want = found.clone()
    b.loss(accumulate_into=found, **EVERYTHING).loss.backward()
    hidden = b.hidden.grad.clone()
    assert b.weight.grad is None
    b.hidden.grad = None
    by_parts(b.given({"accumulate_into": want, **EVERYTHING})).loss.backward()
    assert torch.equal(found, want)
    assert (found != 1).any()
    assert torch.equal(hidden, b.hidden.grad)


def test_an_adapter_on_the_head():
    b = draw(bias=False)
    b = b.but(hidden=b.hidden.clone().requires_grad_())
    a = tensor(np.random.default_rng(0).standard_normal((4, 24)), "float32").requires_grad_()
    up = tensor(np.random.default_rng(1).standard_normal((210, 4)), "float32").requires_grad_()
    lora, leaves = (a, up, 0.5), (b.hidden, a, up)
    loss = b.loss(lora=lora, kl_coef=0.1).loss
    want = by_parts(b.given({"lora": lora, "kl_coef": 0.1})).loss
    assert torch.equal(loss, want)
    expect_same(torch.autograd.grad(loss, leaves), torch.autograd.grad(want, leaves))


GROUPS = {"samples_per_prompt": 2}


@pytest.mark.parametrize(
    "options",
    [
        {**GROUPS, "beta": 0.0},
        {**GROUPS},
        {**GROUPS, "clip_eps": 0.1, "normalize": "center", "temperature": 0.7},
        {**GROUPS, "dialect": "trl", "policy_loss": "gspo"},
        {"group_boundaries": [0, 2, 6], "loss_reduction": "prompt_mean", "entropy_coef": 0.01},
    ],
    ids=str,
)
def test_grpo_has_the_bits_of_its_parts(options):
    b, options = draw().leaves(), dict(options)
    names = ("samples_per_prompt", "group_boundaries", "normalize", "dialect")
    groups = {name: options[name] for name in names if name in options}
    advantages = rlk.jit.group_advantages(b.rewards, **groups)
    for_ppo = {k: v for k, v in options.items() if k not in ("beta", "clip_eps", "normalize")}
    if "group_boundaries" in for_ppo:
        for_ppo["group_boundaries"] = tensor(np.array([0, 2, 6]))
    if "clip_eps" in options:
        for_ppo.update(eps_clip_low=options["clip_eps"], eps_clip_high=options["clip_eps"])
    beta = options.get("beta", 0.04)
    want, metrics = b.but(advantages=advantages).loss(kl_coef=beta, **for_ppo)
    head = {"ref_hidden": b.ref_hidden, "ref_weight": b.ref_weight, "ref_bias": b.ref_bias}
    given = b.hidden, b.weight, b.target, b.old_log_probs, b.rewards, b.loss_mask
    found = rlk.jit.linear_grpo_loss(*given, bias=b.bias, **head, **options)
    assert isinstance(found, rlk.jit.GrpoLoss)
    expect_same(found, (want, metrics.policy_loss, metrics.kl_loss))
    assert [x.requires_grad for x in found] == [True, False, False]
    expect_same(gradients(b, found.loss), gradients(b, want))
    if beta:
        ref = rlk.jit.linear_logp(
            b.ref_hidden,
            b.ref_weight,
            b.target,
            b.ref_bias,
            mask=b.loss_mask,
            temperature=options.get("temperature", 1.0),
        )
        found = rlk.jit.linear_grpo_loss(*given, bias=b.bias, ref_logps=ref, **options)
        assert torch.equal(found.loss, want)


def test_grpo_against_its_loss_of_logits():
    """The same loss where a product makes the logits in float64."""
    b = draw(bias=False).leaves()
    given = b.target, b.old_log_probs, b.rewards, b.loss_mask
    found = rlk.jit.linear_grpo_loss(
        b.hidden, b.weight, *given, ref_hidden=b.ref_hidden, ref_weight=b.ref_weight, **GROUPS
    )
    logits, ref = (
        (h.detach().double() @ w.detach().double().T).float()
        for h, w in ((b.hidden, b.weight), (b.ref_hidden, b.ref_weight))
    )
    logits.requires_grad_()
    want = rlk.jit.grpo_loss(logits, ref, *given, **GROUPS)
    for got, exact_one in zip(found, want, strict=True):
        assert got.item() == pytest.approx(exact_one.item(), rel=1e-4)
    (dz,) = torch.autograd.grad(want.loss, logits)
    exact_ones = dz.double() @ b.weight.detach().double(), None
    expect_close(gradients(b, found.loss)[:1], [exact_ones[0].cpu()], 1e-4)
