# SPDX-License-Identifier: Apache-2.0
"""softcap, logit_scale, entropy and log-sum-exp: values, bits, special values, graphs."""

import numpy as np
import pytest
from on_device import (
    CUDA,
    DEVICE,
    DIM,
    VOCAB,
    Problem,
    cuda_only,
    graph_of,
    leaves,
    make,
    tensor,
    torch,
    upload,
)
from problems import DTYPES, check, check_all_outputs, of_logits, only, problem, with_garbage
from reference import assert_within, same_bits

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

OPTIONS = {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}
NAMES = ("log_prob", "entropy", "lse")


def all_grads(p: Problem, **options):
    """Gradients of all three outputs at once."""
    return rlk.jit.linear_logp_backward(
        p.upstream,
        *p.operands,
        grad_entropy=p.upstream * 0.25 - 1,
        grad_lse=p.upstream * 0.5,
        **options,
    )


def everything(p: Problem, **options) -> tuple:
    return *p.outputs(**options), *all_grads(p, **options)


def assert_equal(got: tuple, want: tuple, what: str) -> None:
    for name, one, other in zip((*NAMES, "hidden", "weight", "bias"), got, want, strict=False):
        assert same_bits(one, other), f"{name}: {what}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 30.0},
        {"softcap": 0.5},
        {"logit_scale": 0.0625},
        {"logit_scale": -3},
        {"logit_scale": 0},
        OPTIONS,
    ],
    ids=str,
)
def test_values_and_gradients(dtype, options):
    p = make(33, 72, 1203, dtype, scale=3.0, bias="same")
    check(p, **options)
    check_all_outputs(p, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_than_one_tile_of_everything(dtype):
    check_all_outputs(make(300, 264, 5003, dtype, bias="float32"), **OPTIONS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized(dtype):
    rlk.jit.configure(specialize=True)
    p = make(33, DIM, VOCAB, dtype, bias="float32")
    check_all_outputs(p, **OPTIONS)
    explained = rlk.jit.explain(*p.operands, **OPTIONS, return_entropy=True)
    assert explained.variant == "specialized"
    assert "softcap=yes logit_scale=yes entropy=yes" in explained.kernel


# tanh is 1 in fp32 from 9 on, and its slope no difference of two such numbers.
@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("softcap", [0.1, 2.0, 50.0])
def test_logits_far_beyond_the_cap(softcap, scale):
    for dtype in DTYPES:
        check_all_outputs(make(9, 40, 500, dtype, scale=scale), dtype, softcap=softcap)


# Columns beyond the vocabulary capped to -softcap would outweigh every real logit.
@pytest.mark.parametrize("vocab", [1, 2, 95, 97, 191, 192, 193, 385])
def test_odd_vocabularies_with_all_logits_far_below_zero(vocab):
    p = problem(17, 5, vocab, bias="float32", seed=vocab)
    below = Problem(p.hidden, p.weight, p.target, np.full_like(p.bias, -200), p.upstream)
    for dtype in DTYPES:
        given = upload(below, dtype)
        check_all_outputs(given, dtype, softcap=1000.0)
        assert (given.outputs(softcap=20.0, temperature=0.25).lse < -70).all()


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, OPTIONS], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype, options):
    p = make(531, DIM, VOCAB, dtype, bias="float32")
    whole, whole_grad = p.outputs(**options), all_grads(p, **options).hidden
    order = torch.as_tensor(np.random.default_rng(0).permutation(531), device=DEVICE)
    for rows in (slice(0, 1), slice(5, 20), slice(256, 257), slice(64, 531), order):
        part = only(p, rows)
        assert_equal(part.outputs(**options), tuple(value[rows] for value in whole), str(rows))
        assert same_bits(all_grads(part, **options).hidden, whole_grad[rows]), str(rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_beside_others_has_the_same_bits(dtype):
    p = make(130, 40, 1000, dtype, bias="float32")
    for options in ({}, OPTIONS):
        both = p.outputs(**options)
        assert same_bits(p.logp(**options), both.log_prob)
        assert same_bits(p.outputs(**options, return_lse=False).entropy, both.entropy)
        assert same_bits(p.outputs(**options, return_entropy=False).lse, both.lse)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        *((dtype, OPTIONS) for dtype in DTYPES),
        ("bfloat16", {}),
        ("bfloat16", {"softcap": 2.0}),
        ("bfloat16", {"logit_scale": 0.4}),
    ],
    ids=str,
)
def test_specialized_and_generic_give_the_same_bits(dtype, options):
    p = make(300, DIM, VOCAB, dtype, bias="float32")

    def results() -> tuple:
        return *everything(p, **options), p.logp(**options), *p.grads(**options)

    want = results()
    rlk.jit.configure(specialize=True)
    assert rlk.jit.explain(*p.operands, **options).variant == "specialized"
    for got, generic in zip(results(), want, strict=True):
        assert same_bits(got, generic)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_result_depends_on_the_workspace(dtype):
    # Partials of a strip, logits of a wave: with 1 MiB each is the least that there is.
    p = make(1500, 64, 70001, dtype, bias="float32")
    want = everything(p, **OPTIONS)
    for mib in (1, 23, 4096):
        rlk.jit.configure(workspace_mib=mib)
        assert_equal(everything(p, **OPTIONS), want, f"{mib} MiB of workspace")


@pytest.mark.parametrize("dtype", DTYPES)
def test_absent_options_change_no_bits(dtype):
    p = make(40, 64, 1000, dtype, bias="float32")
    zeros = torch.zeros_like(p.upstream)
    full = rlk.jit.linear_logp_backward(
        p.upstream, *p.operands, grad_entropy=zeros, grad_lse=zeros, logit_scale=1, softcap=None
    )
    assert all(same_bits(one, other) for one, other in zip(full, p.grads(), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_upstream_gradients_of_any_stride_and_type(dtype):
    p = make((5, 7), 24, 310, dtype)
    base = torch.randn(5, 14, device=DEVICE, dtype=torch.float64)
    for strided in (base[:, ::2], base[:, :1].expand(5, 7), base[:1, :1].expand(5, 7)):
        for kind in (torch.float64, torch.bfloat16):
            grads = [
                rlk.jit.linear_logp_backward(None, *p.operands, grad_entropy=g, grad_lse=g)
                for g in (strided.to(kind), strided.to(kind).contiguous().float())
            ]
            assert same_bits(grads[0].hidden, grads[1].hidden)
            assert same_bits(grads[0].weight, grads[1].weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropies_that_are_known(dtype):
    vocab = 5003
    logits = np.zeros((3, vocab))
    logits[1, 77] = 200  # all others underflow
    logits[2, :2] = 150
    p = upload(of_logits(logits, [5, 77, 1]), dtype)
    entropy = p.outputs().entropy.cpu().double().numpy()
    np.testing.assert_allclose(entropy, [np.log(vocab), 0, np.log(2)], rtol=1e-6, atol=1e-7)
    assert (entropy >= 0).all()


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_vocabulary(dtype, lowest):
    p = problem(6, 12, 600)
    bias = np.random.default_rng(4).standard_normal(600).astype(np.float32)
    gone = np.r_[0:3, 190:400, 599]  # a leaf and more of nothing but masked columns
    bias[gone] = lowest
    target = np.array([5, 50, 100, 450, 598, 189])
    masked = upload(Problem(p.hidden, p.weight, target, bias, p.upstream), dtype)
    for options in ({}, {"logit_scale": 0.5}):
        found, grads = masked.outputs(**options), all_grads(masked, **options)
        assert all(value.isfinite().all() for value in found)
        assert not grads.weight[gone].any()
        assert not grads.bias[gone].any()
        assert grads.hidden.isfinite().all()
        if lowest == -np.inf:
            check_all_outputs(masked, **options)
    capped = masked.outputs(softcap=30.0)  # to -30: no longer masked, by the formula
    assert all(value.isfinite().all() for value in capped)
    assert all(value.isfinite().all() for value in all_grads(masked, softcap=30.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_nothing_has_no_entropy(dtype):
    bias = tensor(np.full(150, -np.inf, np.float32))
    p = make(3, 4, 150, dtype)
    found = Problem(p.hidden, p.weight, p.target, bias, p.upstream).outputs()
    assert found.log_prob.isnan().all()
    assert found.entropy.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_in_its_row(dtype):
    p = make(300, 12, 200, dtype)
    hidden = p.hidden.clone()
    hidden[[7, 130, 299], 3] = torch.nan
    broken = Problem(hidden, p.weight, p.target, None, p.upstream)
    is_nan = torch.zeros(300, dtype=torch.bool, device=DEVICE)
    is_nan[[7, 130, 299]] = True
    for options in ({}, OPTIONS):
        found = (*broken.outputs(**options), all_grads(broken, **options).hidden)
        want = (*p.outputs(**options), all_grads(p, **options).hidden)
        for got, exact in zip(found, want, strict=True):
            assert got[is_nan].isnan().all()
            assert same_bits(got[~is_nan], exact[~is_nan])


@pytest.mark.parametrize("rows", [50, 1300])  # in one row of tiles, and listed
@pytest.mark.parametrize("dtype", DTYPES)
def test_inactive_rows(dtype, rows):
    active = np.arange(rows) % 3 != 1
    drawn = problem(rows, 16, 310, bias="float32")
    wild, dense = upload(with_garbage(drawn, active), dtype), upload(only(drawn, active), dtype)
    mask = tensor(active)
    want = everything(dense, **OPTIONS)
    got = everything(wild, **OPTIONS, mask=mask)
    for value, exact in zip(got[:4], want[:4], strict=True):
        assert not value[~mask].any()
        assert not value[~mask].signbit().any()
        assert same_bits(value[mask], exact)
    assert_equal(got[4:], want[4:], "sums of active rows")


@cuda_only  # the CPU raises at once
def test_a_bad_id_makes_all_of_its_row_nan():
    p = make(9, 40, 193)
    target = p.target.clone()
    target[5] = 193
    bad = Problem(p.hidden, p.weight, target, None, p.upstream)
    found = bad.outputs(**OPTIONS)
    with pytest.raises(rlk.InvalidArgument, match="got 193 in row 5"):
        rlk.jit.check_errors()
    others = torch.arange(9, device=DEVICE) != 5
    for got, want in zip(found, p.outputs(**OPTIONS), strict=True):
        assert got[5].isnan()
        assert same_bits(got[others], want[others])


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_float16_keeps_gradients_of_any_size(size):
    # dZ is scaled by a bound of all three gradients: none overflows float16, none vanishes.
    p = make(24, 40, 3001, "float16")
    reference = p.reference(softcap=4.0)
    for of_logp, of_entropy, of_lse in ((1, 1, 1), (1e-4, 1, 0), (0, 1e-4, 1), (1, 1, 1e4)):
        given = [p.upstream * (factor * size) for factor in (of_logp, of_entropy, of_lse)]
        # The gradient itself is stored in float16: small and large ones through the hidden state.
        grads = rlk.jit.linear_logp_backward(
            given[0],
            *p.operands,
            grad_entropy=given[1],
            grad_lse=given[2],
            softcap=4.0,
            needs=("hidden",),
        )
        exact = reference.gradients(*given)["hidden"]
        if np.abs(exact.value).max() < 6e4:
            assert_within(grads.hidden, exact, str(size))
        assert not grads.hidden.isnan().any()


def test_under_autograd():
    p = make(40, 64, 500, "bfloat16", bias="float32")
    given = leaves(p)
    found = rlk.jit.linear_logp(**given, **OPTIONS, return_entropy=True, return_lse=True)
    loss = (found.log_prob * p.upstream).sum() + 0.1 * found.entropy.mean() - found.lse.sum()
    loss.backward()
    wide = {n: t.double().requires_grad_() for n, t in leaves(p, ()).items() if n != "target"}
    x = 0.75 * (wide["hidden"] @ wide["weight"].T + wide["bias"])
    z = 1.5 * torch.tanh(x / 1.5) / 0.7
    logs, lse = z.log_softmax(-1), z.logsumexp(-1)
    logp = logs.gather(-1, p.target[:, None])[:, 0]
    entropy = -(logs.exp() * logs).sum(-1)
    ((logp * p.upstream).sum() + 0.1 * entropy.mean() - lse.sum()).backward()
    for got, want in zip(found, (logp, entropy, lse), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=2e-5)
    for name, exact in wide.items():
        error = (given[name].grad.double() - exact.grad).norm() / exact.grad.norm()
        assert error < 8e-3, name


@cuda_only
@pytest.mark.parametrize("specialize", [True, False], ids=["specialized", "generic"])
def test_replays_of_a_graph_follow_changed_inputs(specialize):
    rlk.jit.configure(specialize=specialize)
    p = make(200, DIM, VOCAB, "bfloat16", bias="float32")
    mask = torch.ones(200, dtype=torch.bool, device=DEVICE)

    def calls():
        return everything(p, **OPTIONS, mask=mask)

    graph, results = graph_of(calls)
    for seed in (1, 2):
        other = make(200, DIM, VOCAB, "bfloat16", bias="float32", seed=seed)
        few = torch.arange(200, device=DEVICE) % (seed + 1) == 0
        fresh = (*other.operands, other.upstream, few)
        for t, value in zip((*p.operands, p.upstream, mask), fresh, strict=True):
            t.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        got = tuple(t.clone() for t in results)
        assert_equal(got, calls(), f"replay {seed}")


@pytest.mark.skipif(not CUDA, reason="RLK_TEST_DEVICE is not a CUDA device")
def test_entropy_and_lse_cost_no_memory_of_the_logits():
    rows, vocab = 1024, 65536
    p = make(rows, 64, vocab, "bfloat16")
    p.outputs()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    p.outputs(**OPTIONS)
    assert torch.cuda.max_memory_allocated() - before < rows * vocab * 2 / 8
