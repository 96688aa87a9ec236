# SPDX-License-Identifier: Apache-2.0
"""ratio_kl and grpo_loss on the device: float64, bits, masks, the buffer, graphs, memory."""

import numpy as np
import pytest
from grpo import Exactly, Tokens, draw
from on_device import DEVICE, cuda_only, graph_of, spaced, tensor, torch, transposed
from reference import assert_within, same_bits

import rlk
import rlk.check
from rlk.check.report import line

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

PAIRS = {"samples_per_prompt": 2}
DTYPES = ("float32", "bfloat16", "float16")
RATIO_OPTIONS = [{}, {"kl": "k2", "temperature": 0.7}, {"kl_gradient": "unbiased", "softcap": 2.0}]
LOSS_OPTIONS = [
    {},
    {"beta": 0.0},
    {"beta": 0.5, "loss_reduction": "sequence_mean", "temperature": 0.7},
    {"use_dual_clip": True, "kl_estimator": "k2"},
]


def upload(p: Tokens, dtype: str = "float32") -> Tokens:
    t = p.map(tensor)
    return t.but(policy=tensor(p.policy, dtype), ref=tensor(p.ref, dtype))


def host(t: Tokens) -> Tokens:
    return t.map(
        lambda x: x.detach().float().cpu().numpy() if x.is_floating_point() else x.cpu().numpy()
    )


def leaf(t: Tokens) -> Tokens:
    return t.but(policy=t.policy.detach().clone().requires_grad_())


def run_ratio_kl(t: Tokens, g, **options):
    q = leaf(t)
    found = q.ratio_kl(**options)
    return (*(x.detach() for x in found), *torch.autograd.grad(found, q.policy, list(g)))


def run_loss(t: Tokens, upstream: float = 1.0, **options):
    q = leaf(t)
    found = q.loss(**{**PAIRS, **options})
    grad = torch.autograd.grad(found.loss * upstream, q.policy)
    return (*(x.detach() for x in found), *grad)


def same(first, second) -> bool:
    return all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def upstream(t: Tokens):
    g = np.random.default_rng(1).standard_normal((2, *t.ids.shape)).astype(np.float32)
    return tensor(g)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 193, 3331])
@pytest.mark.parametrize("options", RATIO_OPTIONS, ids=str)
def test_ratio_kl_against_float64(options, vocab, dtype):
    t = upload(draw(6, 9, vocab), dtype)
    g = upstream(t)
    *outputs, grad = run_ratio_kl(t, g, **options)
    exact = Exactly(host(t), **options)
    for got, want in zip(outputs, exact.outputs(), strict=True):
        assert_within(got, want)
    exact.policy.dtype = dtype  # the gradient is rounded to it
    assert_within(grad, exact.ratio_kl_grad(*g.cpu().numpy()), "gradient")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", LOSS_OPTIONS, ids=str)
def test_grpo_loss_against_float64(options, dtype):
    t = upload(draw(6, 9, 3331), dtype)
    exact = Exactly(host(t), **PAIRS, **options)
    exact.policy.dtype = dtype
    want = exact.loss()
    for factor in (1.0, -2.5):
        loss, policy_loss, kl, grad = run_loss(t, factor, **options)
        assert abs(loss.item() - want.loss) <= 4e-5 * want.abs_loss_sum + 1e-6
        assert policy_loss.item() == pytest.approx(want.sums["policy_loss"], rel=1e-4, abs=1e-6)
        assert kl.item() == pytest.approx(want.sums.get("kl_loss", 0.0), rel=3e-5, abs=1e-5)
        assert_within(grad, exact.loss_grad(factor), "gradient")


def test_bits_are_those_of_the_parts():
    t = upload(draw(8, 12, 3331))
    log_probs, ref = (rlk.jit.logp(x, t.ids, mask=t.mask) for x in (t.policy, t.ref))
    a = rlk.jit.group_advantages(t.rewards, **PAIRS)
    want = rlk.jit.ppo_loss(log_probs, t.old, a, t.mask, kl_coef=0.04, ref_log_probs=ref)
    loss, policy_loss, kl, grad = run_loss(t, 3.0)
    assert same(
        (loss, policy_loss, kl), (want.loss, want.metrics.policy_loss, want.metrics.kl_loss)
    )
    c = rlk.jit.ppo_loss_backward(
        torch.tensor(3.0, device=DEVICE),
        log_probs,
        t.old,
        a,
        t.mask,
        kl_coef=0.04,
        ref_log_probs=ref,
    ).log_probs
    assert same_bits(grad, rlk.jit.logp_backward(c, t.policy, t.ids, mask=t.mask))
    assert same_bits(t.ratio_kl().kl, t.ratio_kl(ref_logps=ref).kl)


@pytest.mark.parametrize("options", [{}, {"kl": "k1"}, {"kl_gradient": "unbiased"}], ids=str)
def test_specialized_is_generic(options):
    t = upload(draw(6, 9, 3331), "bfloat16")
    g = upstream(t)
    want = run_ratio_kl(t, g, **options), run_loss(t)
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info().fallbacks
    assert same(run_ratio_kl(t, g, **options), want[0])
    assert same(run_loss(t), want[1])
    assert rlk.jit.cache_info().fallbacks == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_tokens_may_hold_anything(dtype):
    t = upload(draw(6, 9, 310), dtype)
    off, nan = ~t.mask, float("nan")
    wild = t.map(lambda x: x.clone())
    for x in (wild.policy, wild.ref, wild.old):
        x[off] = nan
    wild.ids[off] = 2**40
    g = upstream(t)
    bad = g.clone()
    bad[:, off] = nan
    found = run_ratio_kl(wild, bad)
    assert same(found, run_ratio_kl(t, g))
    assert (found[0][off] == 1).all()
    assert same_bits(found[1][off], torch.zeros_like(found[1][off]))
    assert same_bits(found[2][off], torch.zeros_like(found[2][off]))
    assert same(run_loss(wild), run_loss(t))
    wild.ids[off] = -100
    ignored = wild.but(mask=torch.ones_like(t.mask))
    assert same(run_ratio_kl(ignored, bad), found)
    assert same(run_loss(ignored), run_loss(t))


def test_layouts_and_types():
    t = upload(draw(6, 9, 310))
    g = upstream(t)
    want = run_ratio_kl(t, g), run_loss(t)
    for change in (transposed, spaced):
        q = t.map(lambda x, change=change: x if x.dim() < 2 or x.dtype == torch.bool else change(x))
        q = q.but(mask=transposed(t.mask))
        assert same(run_ratio_kl(q, [change(x) for x in g]), want[0])
        assert same(run_loss(q), want[1])
    q = t.but(old=t.old.double(), mask=t.mask.float(), ids=t.ids.int(), rewards=t.rewards.double())
    assert same(run_ratio_kl(q, g), want[0])
    assert same(run_loss(q)[:3], want[1][:3])
    one = torch.ones((), device=DEVICE).expand(6, 9)
    assert same(run_ratio_kl(t, [one, one]), run_ratio_kl(t, [one.contiguous()] * 2))


def test_packed_is_padded():
    t = upload(draw(6, 9, 310))
    lengths = [int(row.nonzero().max()) + 1 if row.any() else 0 for row in t.mask]
    kept = torch.arange(9, device=DEVICE) < torch.tensor(lengths, device=DEVICE)[:, None]
    packed = t.map(lambda x: x if x.dim() < 2 else x[kept])
    starts = torch.tensor(np.cumsum([0, *lengths]), device=DEVICE, dtype=torch.int32)
    *found, grad = run_loss(packed, cu_seqlens=starts)
    *want, whole = run_loss(t)
    assert same(found, want)
    assert same_bits(grad, whole[kept])


def test_boundaries_from_the_host_and_the_device():
    t = upload(draw(6, 9, 310))
    starts = [0, 2, 4, 6]
    want = run_loss(t)
    for given in (starts, np.array(starts), torch.tensor(starts, device=DEVICE)):
        options = {"samples_per_prompt": None, "group_boundaries": given}
        assert same(run_loss(t, **options), want)


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
def test_twice_through_one_graph(factors):
    t = leaf(upload(draw(6, 9, 3331)))
    loss = t.loss(**PAIRS).loss
    made = loss.grad_fn.gradient.data_ptr()
    for number, factor in enumerate(factors):
        (got,) = torch.autograd.grad(loss * factor, t.policy, retain_graph=True)
        assert (got.data_ptr() == made) == (number == 0)
        assert same_bits(got, run_loss(t, factor)[3])
        got.fill_(float("nan"))


def test_an_upstream_of_one_writes_nothing():
    t = leaf(upload(draw(6, 9, 3331)))
    for factor in (1.0, 3.0):
        loss = t.loss(**PAIRS).loss
        loss.grad_fn.gradient.fill_(7.0)
        (got,) = torch.autograd.grad(loss * factor, t.policy)
        want = torch.full_like(got, 7.0) if factor == 1.0 else run_loss(t, factor)[3]
        assert same_bits(got, want)


# From a graph, so that no later launch of the same call tells the error first.
@cuda_only
@pytest.mark.parametrize("op", ["ratio_kl", "loss"])
def test_ids_out_of_range(op):
    t = upload(draw(6, 9, 310))
    at = tuple(t.mask.nonzero()[0].tolist())
    graph, found = graph_of(
        lambda: t.ratio_kl().ratio[at] if op == "ratio_kl" else t.loss(**PAIRS).loss
    )
    t.ids[at] = 310
    graph.replay()
    assert found.isnan()
    with pytest.raises(rlk.InvalidArgument, match="got 310 in row"):
        rlk.jit.check_errors()


@cuda_only
def test_a_graph_captures_it():
    t = leaf(upload(draw(6, 9, 3331)))
    g = upstream(t)
    want = run_ratio_kl(t, g), run_loss(t, 2.0)

    def step():
        ratio, kl = t.ratio_kl()
        (first,) = torch.autograd.grad((ratio, kl), t.policy, list(g))
        found = t.loss(**PAIRS)
        (second,) = torch.autograd.grad(found.loss * 2.0, t.policy)
        parts = (x.detach() for x in (ratio, kl))
        return (*parts, first), (*(x.detach() for x in found), second)

    graph, found = graph_of(step)
    graph.replay()
    torch.cuda.synchronize()
    assert same(found[0], want[0])
    assert same(found[1], want[1])


@cuda_only
def test_no_memory_beside_the_gradient():
    shape = (8, 64, 32768)
    policy = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    ref = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.randint(shape[-1], shape[:-1], device=DEVICE)
    old, rewards = torch.full(shape[:-1], -10.0, device=DEVICE), torch.randn(8, device=DEVICE)

    def step(factor):
        loss = rlk.jit.grpo_loss(policy, ref, ids, old, rewards, samples_per_prompt=4).loss
        (loss * factor).backward()
        policy.grad = None

    for factor in (1.0, 3.0):
        step(factor)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(factor)
        assert torch.cuda.max_memory_allocated() - before < policy.nbytes + (4 << 20)


@pytest.mark.parametrize("op", ["ratio_kl", "grpo_loss"])
def test_the_checker_passes(op):
    for dtype in ("fp32", "bf16"):
        report = rlk.check.run(op, suite=True, dtype=dtype, variant="generic", device=DEVICE.type)
        assert report.ok, "\n".join(map(line, report.failures()))
