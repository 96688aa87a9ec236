# SPDX-License-Identifier: Apache-2.0
"""logp on the device: float64, linear_logp's bits, invariance, layouts, masks, errors, graphs."""

import numpy as np
import pytest
from logits import Exact, Logits, draw
from on_device import DEVICE, cuda_only, graph_of, shifted, spaced, tensor, torch, transposed
from reference import assert_within, same_bits

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

DTYPES = ("float32", "bfloat16", "float16")
OPTION_SETS = [
    {},
    {"temperature": 0.7},
    {"softcap": 2.0, "logit_scale": -0.25, "temperature": 1.3},
]
EVERY = {"return_entropy": True, "return_lse": True}
# Around the leaf of 192, what a block reads at once, several parts.
SIZES = [1, 3, 8, 191, 192, 193, 385, 3072, 6145, 50257]

option_sets = pytest.mark.parametrize("options", OPTION_SETS, ids=str)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def upload(p: Logits, dtype: str = "float32") -> Logits:
    return Logits(tensor(p.logits, dtype), tensor(p.target), tensor(p.upstream))


def same(first, second) -> bool:
    return all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def run(p: Logits, **options):
    """Outputs, gradient of all of them, gradient of the log-prob."""
    every = {"grad_entropy": p.upstream * 0.5, "grad_lse": p.upstream + 1}
    return (*p.outputs(**options), p.grad(**options, **every), p.grad(**options))


def check(p: Logits, found, **options) -> None:
    want = Exact(p, **options)
    for (name, bounded), value in zip(want.outputs().items(), found, strict=False):
        assert_within(value, bounded, name)
    g = p.upstream.cpu().numpy()
    assert_within(found[3], want.gradient(g, np.float32(0.5) * g, g + np.float32(1)), "gradient")
    assert_within(found[4], want.gradient(g), "gradient of log_prob")


@dtypes
@option_sets
@pytest.mark.parametrize("vocab", SIZES)
def test_against_float64(vocab, options, dtype):
    p = upload(draw(5, vocab), dtype)
    check(p, run(p, **options), **options)


@dtypes
@option_sets
def test_specialized_is_generic(options, dtype):
    p = upload(draw(6, 3331), dtype)
    want = run(p, **options)
    rlk.jit.configure(specialize=True, policy="sync")
    before = rlk.jit.cache_info().fallbacks
    assert same(run(p, **options), want)
    assert rlk.jit.cache_info().fallbacks == before


@pytest.mark.parametrize("vocab", [1, 193, 1000, 6145])
@option_sets
def test_bits_are_those_of_linear_logp(vocab, options):
    p = upload(draw(32, vocab))
    linear = rlk.jit.linear_logp(
        torch.eye(32, device=DEVICE), p.logits.T.contiguous(), p.target, **options, **EVERY
    )
    assert same(linear, p.outputs(**options))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bits_do_not_follow_the_storage_type(dtype):
    p = upload(draw(9, 5003), dtype)
    assert same(p.outputs(), p.but(logits=p.logits.float()).outputs())


@dtypes
@pytest.mark.parametrize("vocab", [3333, 32768])
def test_a_row_has_its_bits_in_any_batch(vocab, dtype):
    """Few rows are cut into parts, many are not."""
    p = upload(draw(1300, vocab), dtype)
    want = run(p)
    for rows in (slice(0, 1), slice(7, 20), slice(100, 700)):
        part = Logits(p.logits[rows], p.target[rows], p.upstream[rows])
        assert same(run(part), [x[rows] for x in want])


@dtypes
def test_layouts(dtype):
    for vocab in (130, 1536, 1537):
        p = upload(draw((3, 4), vocab), dtype)
        want = run(p)
        unit = p.logits.element_size()
        for offset in (unit, 2 * unit, 16 - unit):
            assert same(run(p.but(logits=shifted(p.logits, offset))), want)
        room = torch.zeros(3, 4, vocab + 5, dtype=p.logits.dtype, device=DEVICE)
        room[..., :vocab] = p.logits
        axes = p.logits.transpose(0, 1).contiguous().transpose(0, 1)
        for same_logits in (spaced(p.logits), transposed(p.logits), room[..., :vocab], axes):
            assert same(run(p.but(logits=same_logits)), want)
        strided = Logits(p.logits, transposed(p.target), transposed(p.upstream))
        assert same(run(strided), want)


@dtypes
@pytest.mark.parametrize("vocab", [310, 1536, 50257])
def test_inactive_rows_may_hold_anything(vocab, dtype):
    p = upload(draw(37, vocab), dtype)
    mask = torch.arange(37, device=DEVICE) % 3 != 1
    x, ids, upstream = p.logits.clone(), p.target.clone(), p.upstream.clone()
    x[~mask], ids[~mask], upstream[~mask] = float("nan"), 2**40, float("nan")
    wild = Logits(x, ids, upstream)
    found, dense = (
        run(wild, mask=mask),
        run(Logits(p.logits[mask], p.target[mask], p.upstream[mask])),
    )
    assert same([f[mask] for f in found], dense)
    for value in found:
        assert same_bits(value[~mask], torch.zeros_like(value[~mask]))
    ids[~mask] = -100
    assert same(run(wild.but(target=ids)), found)


def test_special_values():
    p = draw(7, 1000)
    x = p.logits
    x[0, :500] = -np.inf
    x[1] = -np.inf
    x[2, 700] = np.nan
    x[3, 5] = np.inf
    x[4, 5] = 3e38
    x[5, :200] = -1e30
    p = upload(p.but(target=np.array([800, 3, 3, 4, 5, 7, 9])))
    found = run(p)
    assert found[0][1:4].isnan().all()
    for rows in ([0], [4], [5], [6]):
        part = Logits(p.logits[rows], p.target[rows], p.upstream[rows])
        check(part, [value[rows] for value in found])
    assert not found[4][0, :500].any()
    masked = p.but(target=torch.full_like(p.target, 3)).outputs()
    assert masked.log_prob[0] == -torch.inf


def test_in_place():
    p = upload(draw((3, 4), 1537))
    mask = tensor(np.arange(12).reshape(3, 4) % 3 != 1)
    want = p.grad(mask=mask)
    for make in (lambda x: x * 1, lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)):
        leaf = p.logits.clone().requires_grad_()
        made = make(leaf)
        found = rlk.jit.logp(made, p.target, mask=mask, inplace_backward=True)
        found.backward(p.upstream)
        assert same_bits(leaf.grad, want)
        assert same_bits(made.detach(), want)


@cuda_only
def test_targets_out_of_range():
    p = upload(draw(5, 310))
    ids = p.target.clone()
    ids[2] = 310
    found = p.but(target=ids).outputs()
    assert found.log_prob.isnan().tolist() == [False, False, True, False, False]
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: target: .*got 310 in row 2$"):
        rlk.jit.check_errors()
    rlk.jit.configure(validate="sync")
    with pytest.raises(rlk.InvalidArgument, match=r"^logp: target: .*got 310 in row 2$"):
        p.but(target=ids).logp()


@cuda_only
def test_large_offsets():
    """More than 2^31 elements: the last rows are right."""
    rows, vocab = 17000, 131072
    if torch.cuda.mem_get_info()[0] < 3 * rows * vocab * 2:
        pytest.skip("too little free memory")
    logits = torch.zeros(rows, vocab, dtype=torch.float16, device=DEVICE)
    logits[-3:] = torch.randn(3, vocab, device=DEVICE)
    target = torch.full((rows,), vocab - 1, device=DEVICE)
    found = rlk.jit.logp(logits, target)
    assert same_bits(found[-3:], rlk.jit.logp(logits[-3:].clone(), target[-3:]))
    grad = rlk.jit.logp_backward(torch.ones_like(found), logits, target)
    few = rlk.jit.logp_backward(torch.ones_like(found[-3:]), logits[-3:].clone(), target[-3:])
    assert same_bits(grad[-3:], few)


@cuda_only
def test_a_graph_captures_it():
    p = upload(draw(40, 3333))
    leaf = p.logits.clone().requires_grad_()
    want = p.logp(), p.grad()

    def step():
        found = rlk.jit.logp(leaf, p.target)
        (grad,) = torch.autograd.grad(found, leaf, p.upstream)
        return found.detach(), grad

    graph, found = graph_of(step)
    graph.replay()
    torch.cuda.synchronize()
    assert same(found, want)
