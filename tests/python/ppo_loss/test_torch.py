# SPDX-License-Identifier: Apache-2.0
"""ppo_loss on torch tensors: autograd, metrics, modes."""

import weakref

import numpy as np
import pytest
from devices import on_cpu_alone
from losses import ALL_ON, OPTION_SETS, Batch, batch, same, same_metrics
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]


def tensors(b: Batch, dtype: str = "float32") -> Batch:
    """Copies; log_probs and entropy ask for a gradient."""

    others = {name: tensor(x, dtype) for name, x in b.others.items()}
    others["entropy"].requires_grad_()
    arrays = [tensor(x, dtype) for x in (b.log_probs, b.old, b.advantages)]
    arrays[0].requires_grad_()
    return Batch(*arrays, tensor(b.mask), others)


@pytest.mark.parametrize("options", OPTION_SETS)
def test_autograd_gives_the_gradients_of_backward(options):
    b = batch()
    t = tensors(b)
    got, want = t.loss(**options), b.loss(**options)
    assert got.loss.requires_grad
    assert same(got.loss.detach(), want.loss)
    assert same_metrics(got.metrics, want.metrics)
    assert not any(m.requires_grad for m in got.metrics)
    (got.loss * 2.5).backward()
    grads = b.grads(2.5, **options)
    assert same(t.log_probs.grad, grads.log_probs)
    assert (grads.entropy is None) == ("entropy_coef" not in options)
    assert grads.entropy is None or same(t.others["entropy"].grad, grads.entropy)


@on_cpu_alone
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
def test_metrics_in_compiled_code():
    def read(metrics):
        counts, *_, exact = metrics
        few = sum([*metrics.named().values()][:5])
        return counts[0] + metrics.num_sequences, metrics.clip_ratio * 2, few, exact.sum()

    def call(x):
        loss, metrics = t.but(log_probs=x * 1).loss()
        return loss * 3, read(metrics), metrics

    torch._dynamo.reset()
    t = tensors(batch())
    want, figures, metrics = call(t.log_probs)
    for _ in range(2):
        t.log_probs.grad = None
        got, *found = torch.compile(call, backend="aot_eager", fullgraph=True)(t.log_probs)
        got.backward()
        assert same(got.detach(), want.detach())
        assert same_metrics(found[0], figures)
        assert type(found[1]) is rlk.losses.Metrics
        assert same_metrics(found[1], metrics)
        assert same(t.log_probs.grad, batch().grads(3.0).log_probs)
    for other in (batch(), batch(seed=1)):
        metrics = tensors(other).loss().metrics
        found = torch.compile(read, backend="aot_eager", fullgraph=True)(metrics)
        assert same_metrics(found, read(tensors(other).loss().metrics))
    torch._dynamo.reset()


def test_a_second_backward_is_the_same():
    t = tensors(batch())
    loss = t.loss().loss
    loss.backward(retain_graph=True)
    first = t.log_probs.grad.clone()
    t.log_probs.grad = None
    loss.backward()
    assert torch.equal(first, t.log_probs.grad)


def saved_of(loss):
    return loss.grad_fn.saved_tensors[0]


@pytest.mark.parametrize("upstream", [1.0, -2.5])
def test_the_last_backward_hands_out_what_was_saved(upstream):
    t = tensors(batch())
    loss = t.loss().loss
    place = saved_of(loss).data_ptr()
    want = batch().grads(upstream).log_probs
    factor = torch.tensor(upstream, device=t.old.device)
    first = torch.autograd.grad(loss, t.log_probs, factor, retain_graph=True)[0]
    first.fill_(7)  # what a caller does with it is no change of the next
    loss.backward(factor)
    assert first.data_ptr() != place
    assert t.log_probs.grad.data_ptr() == place
    assert same(t.log_probs.grad, want)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward(factor)


def test_what_a_hook_keeps_is_not_written_to():
    t = tensors(batch())
    kept = []

    def pack(saved):
        kept.append(saved.detach().clone())
        return len(kept) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, kept.__getitem__):
        loss = t.loss().loss
    before = kept[0].clone()
    (loss * 3).backward()
    assert torch.equal(kept[0], before)
    assert same(t.log_probs.grad, batch().grads(3.0).log_probs)


def test_a_gradient_is_added_to_one_that_is_there():
    t = tensors(batch())
    for _ in range(2):
        t.loss().loss.backward()
    want = batch().grads().log_probs
    assert same(t.log_probs.grad, want + want)


def test_a_second_derivative_is_refused():
    t = tensors(batch())
    (grad,) = torch.autograd.grad(t.loss().loss, t.log_probs, create_graph=True)
    with pytest.raises(rlk.Unsupported, match="second"):
        grad.sum().backward(retain_graph=True)
    # Where log_probs alone are asked for, and have another way to them.
    penalty = grad.square().sum() + t.log_probs.sum()
    with pytest.raises(rlk.Unsupported, match="second"):
        torch.autograd.grad(penalty, t.log_probs)


def test_no_grad_and_inference_mode():
    t = tensors(batch())
    want = t.loss().loss.detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = t.loss()
        assert not got.loss.requires_grad
        assert torch.equal(got.loss, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_gradient_has_the_dtype_of_log_probs(dtype):
    t = tensors(batch(), dtype)
    got = t.loss()
    assert got.loss.dtype == torch.float32
    got.loss.backward()
    assert t.log_probs.grad.dtype == getattr(torch, dtype)


def test_only_entropy_needs_a_gradient():
    t = tensors(batch())
    t = t.but(log_probs=t.log_probs.detach())
    t.loss(**ALL_ON).loss.backward()
    assert t.others["entropy"].grad.abs().sum() > 0


@on_cpu_alone
def test_a_gradient_asks_for_log_probs_of_torch():
    t = tensors(batch())
    t = t.but(log_probs=t.log_probs.detach().cpu().numpy())
    with pytest.raises(rlk.InvalidArgument, match=r"^ppo_loss: log_probs: expected a torch tensor"):
        t.loss(entropy_coef=0.1)


def test_what_is_off_is_not_kept():
    t = tensors(batch())
    for off in (lambda x: x, lambda x: (0.0, x)):
        value = torch.ones(3)
        seen = weakref.ref(value)
        t.loss(cispo_bounds=off(value))
        del value
        assert seen() is None


@on_cpu_alone
def test_against_autograd():
    """Liger 1082, 1088, 1202: the same formula written in torch, in float64."""
    b = batch(spread=0.4)
    lp = torch.tensor(b.log_probs, dtype=torch.float64, requires_grad=True)
    old, a = (torch.tensor(x, dtype=torch.float64) for x in (b.old, b.advantages))
    m = torch.tensor(b.mask)
    for c, eps in ((3.0, 0.2), (1.5, 0.1)):
        delta = torch.where(m, lp - old, 0.0).clamp(-20, 20)
        ratio = delta.exp()
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - eps, 1 + eps))
        loss = torch.where(a < 0, torch.minimum(loss, -a * c), loss)
        (want,) = torch.autograd.grad((loss * m).sum() / m.sum(), lp)
        options = {"use_dual_clip": True, "clip_ratio_c": c}
        grads = b.grads(eps_clip_low=eps, eps_clip_high=eps, **options)
        np.testing.assert_allclose(grads.log_probs, want, rtol=2e-5, atol=1e-9)


def test_strided_and_expanded_tensors():
    """torchtitan 3629."""
    b = batch()
    t = tensors(b)
    wide = t.advantages[:, :1].expand(6, 37)
    got = t.but(advantages=wide).loss().loss
    want = t.but(advantages=wide.contiguous()).loss().loss
    assert torch.equal(got, want)
    turned = t.but(log_probs=t.log_probs.detach().T.contiguous().T.requires_grad_())
    turned.loss().loss.backward()
    t.loss().loss.backward()
    assert torch.equal(turned.log_probs.grad, t.log_probs.grad)


def test_global_counts_as_tensors():
    t = tensors(batch())
    for name, count in (("global_tokens", 777), ("global_sequences", 9)):
        options = {"loss_reduction": "sequence_mean"} if name == "global_sequences" else {}
        got = t.loss(**{name: torch.tensor(count, device=t.old.device)}, **options).loss
        assert torch.equal(got, t.loss(**{name: count}, **options).loss)
    with pytest.raises(rlk.InvalidArgument, match="global_tokens: expected one int64"):
        t.loss(global_tokens=torch.tensor(7.0, device=t.old.device))


@on_cpu_alone
def test_metrics_of_two_frameworks_do_not_combine():
    parts = [batch().loss().metrics, tensors(batch()).loss().metrics]
    for mixed in (parts, parts[::-1]):
        with pytest.raises(rlk.InvalidArgument, match=r"^combine: parts: expected .* of one"):
            rlk.losses.combine(mixed)


def test_metrics_of_shards_combine():
    """TRL 6021, 6078; AReaL 1572."""
    t = tensors(batch(8))
    whole = t.loss(global_tokens=100)
    parts = []
    for rows in (slice(0, 3), slice(3, 8)):
        part = Batch(t.log_probs[rows], t.old[rows], t.advantages[rows], t.mask[rows])
        parts.append(part.loss(global_tokens=100).metrics)
    loss, metrics = rlk.losses.combine(parts)
    assert torch.equal(loss, whole.loss)
    assert same_metrics(metrics, whole.metrics)
    with pytest.raises(rlk.InvalidArgument, match="at least one"):
        rlk.losses.combine([])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in dual_level
@pytest.mark.parametrize("name", ["log_probs", "entropy"])
@pytest.mark.parametrize("grad_mode", [True, False])
def test_a_tangent_is_refused_and_never_lost(name, grad_mode):
    t = tensors(batch())
    t = t.but(log_probs=t.log_probs.detach()).with_others(entropy=t.others["entropy"].detach())
    want = t.loss(**ALL_ON).loss
    forward_ad = torch.autograd.forward_ad
    with torch.set_grad_enabled(grad_mode), forward_ad.dual_level():
        assert same(t.loss(**ALL_ON).loss, want)
        if name == "log_probs":
            dual = forward_ad.make_dual(t.log_probs, torch.ones_like(t.log_probs))
            t = t.but(log_probs=dual)
        else:
            dual = forward_ad.make_dual(t.others[name], torch.ones_like(t.old))
            t = t.with_others(entropy=dual)
        with pytest.raises(rlk.Unsupported, match=f"^ppo_loss: {name}: .* without a tangent"):
            t.loss(**ALL_ON)
        if name == "entropy":  # off, and not looked at
            t.loss()


@pytest.mark.parametrize("delta", [0.95, 1.1, 1.5, 4.0])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_delta_is_trls(delta, level):
    """Its lines, through autograd."""
    t = tensors(batch(spread=0.8)).but(others={})
    t = t.but(log_probs=t.log_probs.detach().clamp(-3, 0).requires_grad_())
    t = t.but(old=t.old.clamp(-3, 0), advantages=t.advantages[:, :1].expand(6, 37).contiguous())
    mask = torch.as_tensor(t.mask)
    log_ratio = torch.where(mask, t.log_probs - t.old, 0)
    if level == "sequence":
        log_ratio = (log_ratio.sum(-1) / mask.sum(-1).clamp(min=1)).unsqueeze(-1)
    coef_1 = torch.exp(log_ratio)
    coef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.28)
    coef_1 = torch.clamp(coef_1, max=delta)
    per_token = -torch.min(coef_1 * t.advantages, coef_2 * t.advantages)
    want = (per_token * mask).sum() / mask.sum()
    (grad,) = torch.autograd.grad(want, t.log_probs)
    policy = "ppo" if level == "token" else "gspo"
    options = {"policy_loss": policy, "eps_clip_high": 0.28, "loss_reduction": "bnpo"}
    got = t.loss(dialect="trl", delta=delta, **options).loss
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    got.backward()
    torch.testing.assert_close(t.log_probs.grad, grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("word", ["grpo", "bnpo", "dr_grpo", "token_sum", "seq_mean_token_sum"])
def test_the_sequences_ratio_under_any_reduction_is_trls(word):
    """One ratio a sequence, through autograd."""
    t = tensors(batch(spread=0.8)).but(others={})
    t = t.but(log_probs=t.log_probs.detach().clamp(-3, 0).requires_grad_())
    t = t.but(old=t.old.clamp(-3, 0), advantages=t.advantages[:, :1].expand(6, 37).contiguous())
    mask = torch.as_tensor(t.mask)
    num = mask.sum(-1, keepdim=True)
    log_ratio = torch.where(mask, t.log_probs - t.old, 0).sum(-1, keepdim=True) / num.clamp(min=1)
    coef = torch.exp(log_ratio)
    a = t.advantages[:, :1]
    each = torch.where(mask, -torch.min(coef * a, coef.clamp(0.8, 1.2) * a), 0)
    want = {
        "grpo": (each.sum(-1) / num[:, 0].clamp(min=1)).mean(),
        "bnpo": each.sum() / num.sum(),
        "dr_grpo": each.sum() / (6 * 40),
        "token_sum": each.sum(),
        "seq_mean_token_sum": each.sum() / (num > 0).sum(),
    }[word]
    (grad,) = torch.autograd.grad(want, t.log_probs)
    options = {"policy_loss": "gspo", "loss_reduction": word, "max_seq_len": 40}
    got = t.loss(dialect="trl", **options).loss
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    got.backward()
    torch.testing.assert_close(t.log_probs.grad, grad, rtol=1e-4, atol=1e-6)
