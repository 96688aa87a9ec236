# SPDX-License-Identifier: Apache-2.0
"""ratio_kl and grpo_loss under autograd: the buffer of the forward, graphs, modes, refusals."""

import weakref

import numpy as np
import pytest
from devices import on_cpu_alone
from grpo import PAIRS, Tokens, draw
from reference import same_bits
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]


def tensors(p: Tokens, dtype: str = "float32") -> Tokens:
    """The same as torch tensors; the policy's logits are a leaf that asks for a gradient."""
    t = p.map(tensor)
    policy, ref = (tensor(x, dtype) for x in (p.policy, p.ref))
    return t.but(policy=policy.requires_grad_(), ref=ref)


def grad_of(loss, leaf, **kept):
    (found,) = torch.autograd.grad(loss, leaf, **kept)
    return found


def made_by(loss):
    """The gradient that the forward has saved."""
    node = loss.grad_fn
    return node.saved_tensors[node.names.index("made")]


def plain_logp(logits, ids):
    return logits.double().log_softmax(-1).gather(-1, ids[..., None])[..., 0]


@pytest.mark.parametrize("used", ["ratio", "kl", "both"])
def test_ratio_kl_against_autograd(used):
    t = tensors(draw())
    g = tensor(np.random.default_rng(0).standard_normal((2, 6, 9)), "float32")
    if used != "both":
        g[int(used == "ratio")] = 0
    found = t.ratio_kl()
    parts = {"ratio": found[:1], "kl": found[1:], "both": found}[used]
    upstream = {"ratio": g[:1], "kl": g[1:], "both": g}[used]
    got = torch.autograd.grad(parts, t.policy, list(upstream))[0]
    delta = (plain_logp(t.policy, t.ids) - t.old.double()).clamp(-20, 20)
    e = plain_logp(t.ref, t.ids) - plain_logp(t.policy, t.ids)
    ratio, kl = (torch.where(t.mask, x, 0) for x in (delta.exp(), torch.expm1(e) - e))
    want = grad_of((g.double()[0] * ratio + g.double()[1] * kl).sum(), t.policy)
    # Relative to the row's upstream, which a ratio of e^20 makes large.
    size = want.abs().amax(-1, keepdim=True)
    assert ((got - want).abs() <= 3e-5 * size + 1e-6).all()


def test_grpo_loss_against_autograd():
    t = tensors(draw(seed=1))
    found = t.loss(**PAIRS, beta=0.2)
    rewards = t.rewards.double().reshape(-1, 2)
    away = rewards - rewards.mean(1, keepdim=True)
    a = (away / (rewards.std(1, keepdim=True) + 1e-6)).reshape(-1, 1)
    log_probs = plain_logp(t.policy, t.ids)
    ratio = (log_probs - t.old.double()).clamp(-20, 20).exp()
    policy = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
    e = plain_logp(t.ref, t.ids) - log_probs
    kl = e.exp() - 1 - e
    policy, kl = (torch.where(t.mask, x, 0).sum() / t.mask.sum() for x in (policy, kl))
    want = policy + 0.2 * kl
    for got, exact in zip(found, (want, policy, kl), strict=True):
        assert got.item() == pytest.approx(exact.item(), rel=4e-5)
    got, exact = grad_of(found.loss, t.policy), grad_of(want, t.policy)
    size = exact.abs().amax(-1, keepdim=True)
    assert ((got - exact).abs() <= 3e-5 * size + 1e-7).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_autograd_gives_the_gradients_of_backward(dtype):
    p = draw()
    t = tensors(p, dtype)
    plain = t.but(policy=t.policy.detach())
    for upstream in (1.0, 0.0, -3.0):
        loss = t.loss(**PAIRS).loss * upstream
        want = rlk.jit.grpo_loss_backward(
            torch.tensor(upstream).to(t.old), *plain._grpo({}), **PAIRS
        )
        got = grad_of(loss, t.policy)
        assert got.dtype == t.policy.dtype
        assert same_bits(got, want)
    if dtype == "float32":
        assert same_bits(want, p.grad(-3.0, **PAIRS))
    found = t.ratio_kl()
    want = plain.ratio_kl_grad(t.old, t.old * 2)
    assert same_bits(torch.autograd.grad(found, t.policy, [t.old, t.old * 2])[0], want)


def test_policy_loss_and_kl_carry_no_gradient():
    """RL-Kernel's do, which counts them twice."""
    t = tensors(draw())
    found = t.loss(**PAIRS)
    assert found.loss.requires_grad
    assert not found.policy_loss.requires_grad
    assert not found.kl.requires_grad
    assert [x.shape for x in found] == [torch.Size([])] * 3


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)])
def test_twice_through_one_graph(factors):
    """The second backward must not see what was done to the gradient of the first."""
    t = tensors(draw(vocab=3331))
    loss = t.loss(**PAIRS).loss
    made = made_by(loss).data_ptr()
    for number, factor in enumerate(factors):
        got = grad_of(loss * factor, t.policy, retain_graph=True)
        assert (got.data_ptr() == made) == (number == 0)
        assert same_bits(got, t.but(policy=t.policy.detach()).grad(factor, **PAIRS))
        got.fill_(float("nan"))


def test_the_gradient_of_the_forward_is_handed_out():
    t = tensors(draw())
    loss = t.loss(**PAIRS).loss
    made = made_by(loss).data_ptr()
    first = grad_of(loss, t.policy, retain_graph=True)
    second = grad_of(loss, t.policy)
    assert first.data_ptr() == made != second.data_ptr()
    assert same_bits(first, second)
    scaled = t.loss(**PAIRS).loss
    made = made_by(scaled).data_ptr()
    assert grad_of(scaled * 3, t.policy).data_ptr() == made


def test_nothing_is_kept_where_nothing_needs_a_gradient():
    t = tensors(draw())
    want = t.loss(**PAIRS)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = t.loss(**PAIRS)
        assert not found.loss.requires_grad
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    detached = t.but(policy=t.policy.detach(), old=t.old.requires_grad_())
    assert not detached.loss(**PAIRS).loss.requires_grad
    assert not detached.ratio_kl().ratio.requires_grad


def test_the_logits_are_not_held_by_the_loss():
    """After a backward a loss kept for a log holds no logits."""
    t = tensors(draw())
    for made in (lambda t: t.loss(**PAIRS).loss, lambda t: t.ratio_kl().ratio):
        logits = t.policy * 1
        held = weakref.ref(logits)
        found = made(t.but(policy=logits))
        found.sum().backward()
        del logits
        assert held() is None
        assert found.grad_fn is not None


def test_a_change_between_the_passes_is_found():
    for made in (lambda t: t.loss(**PAIRS).loss, lambda t: t.ratio_kl().kl.sum()):
        for name in ("policy", "ids", "mask"):
            t = tensors(draw())
            logits = t.policy * 1
            found = made(t.but(policy=logits))
            with torch.no_grad():
                {"policy": logits, "ids": t.ids, "mask": t.mask}[name].zero_()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                found.backward()


def test_no_second_derivative():
    for op in ("grpo_loss", "ratio_kl"):
        t = tensors(draw())
        found = t.loss(**PAIRS).loss if op == "grpo_loss" else t.ratio_kl().ratio.sum()
        grad = grad_of(found, t.policy, create_graph=True)
        with pytest.raises(rlk.Unsupported, match=f"^{op}: backward: expected one derivative"):
            grad.sum().backward()


def test_what_may_need_no_gradient():
    t = tensors(draw())
    for op, call in (("grpo_loss", lambda **o: t.loss(**PAIRS, **o)), ("ratio_kl", t.ratio_kl)):
        for name in ("temperature", "softcap", "logit_scale"):
            value = torch.tensor(2.0, requires_grad=True)
            with pytest.raises(rlk.InvalidArgument, match=f"^{op}: {name}: .*needs no gradient"):
                call(**{name: value})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in dual_level
@pytest.mark.parametrize("op", ["grpo_loss", "ratio_kl"])
def test_a_tangent_is_refused(op):
    t = tensors(draw())
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        logits = t.policy.detach()
        dual = forward_ad.make_dual(logits, torch.ones_like(logits))
        q = t.but(policy=dual)
        call = {"grpo_loss": lambda: q.loss(**PAIRS), "ratio_kl": q.ratio_kl}[op]
        with pytest.raises(rlk.Unsupported, match=f"^{op}: policy_logits: .*without a tangent"):
            call()


@pytest.mark.parametrize("ids", ["int32", "uint8", "int64", "uint32"])
def test_ids_of_any_type(ids):
    p = draw()
    t = tensors(p)
    want = t.loss(**PAIRS)
    got = t.but(ids=t.ids.to(getattr(torch, ids)), mask=t.mask.float()).loss(**PAIRS)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_an_expanded_upstream():
    t = tensors(draw())
    t.ratio_kl().ratio.sum().backward()
    one = torch.ones_like(t.old)
    assert same_bits(t.policy.grad, t.but(policy=t.policy.detach()).ratio_kl_grad(one, None))


def test_an_upstream_of_one_writes_nothing():
    t = tensors(draw())
    want = t.but(policy=t.policy.detach()).grad(3.0, **PAIRS)
    for factor in (1.0, 3.0):
        loss = t.loss(**PAIRS).loss
        made_by(loss).data.fill_(7.0)
        got = grad_of(loss * factor, t.policy)
        assert same_bits(got, torch.full_like(got, 7.0) if factor == 1.0 else want)


class Producer:
    """Tells nothing of itself but DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@on_cpu_alone
@pytest.mark.parametrize("ids", ["torch", "numpy", "producer"])
@pytest.mark.parametrize("mask", ["bool", "bfloat16", "needs_grad", "numpy", "producer"])
def test_ids_and_mask_of_several_frameworks(ids, mask):
    """A producer's mask was taken for all ones: it compared with 0 as an object does."""
    t = tensors(draw())
    want = t.loss(**PAIRS)
    given = {"torch": t.ids, "numpy": t.ids.numpy(), "producer": Producer(t.ids)}[ids]
    masks = {
        "bool": t.mask,
        "bfloat16": t.mask.bfloat16(),
        "needs_grad": t.mask.float().requires_grad_(),
        "numpy": t.mask.numpy(),
        "producer": Producer(t.mask.float()),
    }
    assert t.but(ids=given, mask=masks[mask]).loss(**PAIRS) == want


@on_cpu_alone
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_a_shape_is_refused():
    nested = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)])
    t = tensors(draw())
    for name, told in (("rewards", "rewards"), ("ref", "ref_logits")):
        with pytest.raises(rlk.InvalidArgument, match=f"^grpo_loss: {told}: expected"):
            t.but(**{name: nested}).loss(**PAIRS)
    with pytest.raises(rlk.InvalidArgument, match=r"^ppo_loss: needs: expected a tuple"):
        rlk.jit.ppo_loss_backward(torch.tensor(1.0), t.old, t.old, t.old, needs=nested)
