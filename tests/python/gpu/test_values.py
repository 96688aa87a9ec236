# SPDX-License-Identifier: Apache-2.0
"""Log-probs and gradients against float64: dtypes, sizes, options, ordinary and hard inputs."""

import numpy as np
import pytest
from on_device import DIM, MIB, VOCAB, Problem, leaves, make, tensor, torch, upload
from problems import DTYPES, check, of_logits, problem
from reference import as_float64, assert_within, same_bits, worst

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]


@pytest.mark.parametrize("bias", [None, "same", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_log_probs_and_gradients(dtype, scale, bias):
    check(make(33, 72, 1203, dtype, scale=scale, bias=bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim", "vocab"), [(130, 904, 1025), (300, 1032, 5003)])
def test_more_than_one_tile_of_everything(rows, dim, vocab, dtype):
    check(make(rows, dim, vocab, dtype, bias="same"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_specialized(dtype):
    rlk.jit.configure(specialize=True)
    p = make(33, DIM, VOCAB, dtype, bias="float32")
    check(p)
    assert rlk.jit.explain(*p.operands).variant == "specialized"


# Around leaf, tile and warp. Padding with zeros, or a maximum that starts at zero, would outweigh
# every real logit.
@pytest.mark.parametrize("vocab", [1, 2, 7, 8, 9, 95, 96, 97, 191, 192, 193, 383, 385, 1000])
def test_odd_vocabularies_with_all_logits_far_below_zero(vocab):
    p = problem(17, 5, vocab, bias="float32", seed=vocab)
    below = Problem(p.hidden, p.weight, p.target, np.full_like(p.bias, -200), p.upstream)
    for dtype in DTYPES:
        check(upload(below, dtype), dtype)


@pytest.mark.parametrize(
    "dim", [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 191, 193, 385]
)
def test_odd_hidden_sizes(dim):
    for dtype in DTYPES:
        check(make(9, dim, 130, dtype, seed=dim), dtype)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257])
def test_odd_numbers_of_rows(rows):
    for dtype in DTYPES:
        check(make(rows, 20, 140, dtype, bias="float32", seed=rows), dtype)


@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (1, 2, 1, 3, 1), (0,), (3, 0)])
def test_leading_axes(lead):
    p = make(lead, 12, 301, bias="float32")
    check(p)
    assert p.logp().shape == lead
    assert p.grads().hidden.shape == (*lead, 12)


@pytest.mark.parametrize(("low", "high"), [(-300, -200), (200, 300), (-3e4, 3e4), (-1e-3, 1e-3)])
def test_all_logits_in_a_range(low, high):
    logits = np.random.default_rng(1).uniform(low, high, (6, 500))
    p = upload(of_logits(logits, logits.argmax(axis=1)))
    assert p.logp().isfinite().all()
    check(p)


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probs_are_never_above_zero(dtype):
    rng = np.random.default_rng(2)
    for gap in (0, 1e-3, 1, 5, 10, 15, 17, 20, 90, 200):
        logits = rng.standard_normal((64, 777)) * 1e-3
        target = rng.integers(0, 777, 64)
        logits[np.arange(64), target] += gap
        logits += rng.uniform(-50, 50, (64, 1))
        logp = upload(of_logits(logits, target), dtype).logp()
        assert (logp <= 0).all(), gap


def test_one_token_of_the_vocabulary_has_log_prob_zero():
    for dtype in DTYPES:
        p = make(5, 9, 1, dtype, bias="float32")
        assert same_bits(p.logp(), torch.zeros(5))
        assert not any(grad.any() for grad in p.grads())


@pytest.mark.parametrize("dim", [4, 700])
def test_bias_enters_once(dim):
    p = problem(8, dim, 260)
    bias = np.zeros(260, np.float32)
    bias[p.target] = 5
    biased = upload(Problem(p.hidden, p.weight, p.target, bias, p.upstream))
    check(biased)
    assert (biased.logp() > upload(p).logp()).all()


def test_a_common_offset_of_ten_thousand_changes_nothing():
    # Multiples of 1/64 below 2^17 are exact in float32, and so must be their differences.
    rng = np.random.default_rng(3)
    target = rng.integers(0, 333, 11)
    plain = upload(of_logits(rng.integers(-640, 640, (11, 333)) / 64, target))
    for offset in (1e4, -1e4):
        bias = tensor(np.full(333, offset, np.float32))
        moved = Problem(plain.hidden, plain.weight, plain.target, bias, plain.upstream)
        assert same_bits(moved.logp(), plain.logp())
        assert same_bits(moved.grads().hidden, plain.grads().hidden)


def test_float32_products_are_real_float32():
    # TF32 or bf16 factors are wrong by 2^-11 or 2^-9 here, where the logits differ by 2^-20 parts.
    dim = 64
    hidden = torch.full((1, dim), 1 + 2.0**-13)
    weight = torch.full((2, dim), 1 + 2.0**-13)
    weight[1] = 1
    p = Problem(tensor(hidden), tensor(weight), tensor([1]), None, tensor(np.ones(1, np.float32)))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True  # torch's own permission is none of ours
    try:
        check(p)
        logp = p.logp().item()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    difference = dim * (1 + 2.0**-13) * 2.0**-13
    np.testing.assert_allclose(logp, -np.log(1 + np.exp(difference)), atol=1e-5)
    assert abs(logp + np.log(2)) > 1e-3  # what rounded factors would give


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_are_not_rounded_to_sixteen_bits(dtype):
    # Exact products whose sums need more than 11 bits; rounded logits would be equal.
    hidden, weight = tensor([[256.0, 1]], dtype), tensor([[16.0, 0], [16, 1]], dtype)
    logp = rlk.jit.linear_logp(hidden, weight, tensor([1]))
    np.testing.assert_allclose(logp.item(), -np.log1p(np.exp(-1)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_softmax_over_a_quarter_of_a_million_tokens(dtype):
    # The sum, about 2^18, is above float16's largest number, and one term below its smallest.
    vocab = 262144
    zeros = tensor(np.zeros((2, 8)), dtype), tensor(np.zeros((vocab, 8)), dtype)
    logp = rlk.jit.linear_logp(*zeros, tensor([0, vocab - 1]))
    np.testing.assert_allclose(as_float64(logp), -np.log(vocab), rtol=3e-7)
    check(make(3, 8, vocab, dtype, scale=20))


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradients_over_many_rows_are_summed_in_float32(dtype):
    # Sums kept in 16 bits would lose most of 3,000 small terms.
    p = problem(3000, 8, 20, bias="float32")
    same_sign = Problem(np.abs(p.hidden), p.weight, p.target * 0, p.bias, np.abs(p.upstream))
    for bias in ("same", "float32"):  # each gradient in the dtype of its own operand
        given = upload(same_sign, dtype, bias)
        check(given)
        assert given.grads().bias.dtype == given.bias.dtype


def test_the_error_of_weight_gradients_does_not_grow_with_rows_or_waves():
    # A sum restarted or rounded at each strip or wave would show in the worst ratio.
    rlk.jit.configure(workspace_mib=1)
    ratios = []
    for rows in (64, 1000, 5000):
        p = make(rows, 12, 500)
        assert rows < 5000 or rows * 500 * 4 > 4 * MIB  # several waves
        ratios.append(worst(p.grads().weight, p.reference().gradients(p.upstream)["weight"]))
    assert max(ratios) < 0.5, ratios


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1, 1.5])
def test_temperature_is_applied_once(temperature, dtype):
    p = make(9, 16, 310, dtype, bias="float32")
    check(p, temperature=temperature)
    rows = torch.linspace(temperature, 2, 9).to(p.hidden.device)
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        check(p, str(kind), temperature=rows.to(kind))


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_a_number_and_a_tensor_of_temperatures_agree_to_the_bit(temperature):
    p = make(9, 16, 310, bias="float32")
    rows = torch.full((9,), temperature, dtype=torch.float64, device=p.hidden.device)
    assert same_bits(p.logp(temperature=temperature), p.logp(temperature=rows))
    pairs = zip(p.grads(temperature=temperature), p.grads(temperature=rows), strict=True)
    assert all(same_bits(one, many) for one, many in pairs)


def test_gradients_are_linear_in_their_upstream():
    # A power of two scales every float32 exactly.
    p = make(12, 16, 310)
    scaled = rlk.jit.linear_logp_backward(p.upstream * 8, *p.operands)
    assert same_bits(scaled.hidden, p.grads().hidden * 8)
    assert same_bits(scaled.weight, p.grads().weight * 8)


def test_a_float16_gradient_of_a_4096th_spread_over_a_vocabulary_survives():
    # Every term of dZ is 2e-9, far below float16's least; in the first column of the hidden
    # state's gradient all of them add up, and nothing else is there.
    rows, dim, vocab = 64, 16, 128256
    p = problem(rows, dim, vocab, scale=0.05)
    p.weight[:, 0] = 1
    p.weight[p.target, 0] = 0
    upstream = np.full(rows, 1 / 4096, np.float32)
    upstream[0] = 1  # a large one beside them scales the weight's gradient, not that of the others
    given = upload(Problem(p.hidden, p.weight, p.target, None, upstream), "float16")
    exact = given.reference().gradients(upstream)
    grads = given.grads()
    assert_within(grads.hidden, exact["hidden"])
    column = as_float64(grads.hidden)[1:, 0]
    np.testing.assert_allclose(column, -1 / 4096, rtol=2e-3)
    # In the weight's gradient the small rows' hidden states are 4096 times smaller, and so have a
    # step of their own: that of float16 relative to the largest gradient of the call.
    error = np.abs(as_float64(grads.weight) - exact["weight"].value)
    assert (error <= exact["weight"].bound + 2.0**-25).all()


def test_weights_changed_in_place_are_seen():
    p = make(4, 12, 200, "bfloat16")
    before = p.logp()
    p.weight.mul_(1.5)
    assert not same_bits(before, p.logp())
    check(p)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_the_same_after_a_call(dtype):
    p = make((3, 3), 16, 310, dtype, bias="same")
    # Views, as a trainer slices them from a batch.
    heat = torch.full((3, 4), 0.7, device=p.hidden.device)[:, 1:]
    mask = torch.ones((3, 4), device=p.hidden.device)[:, :3]
    inputs = (*p.operands, p.upstream, heat, mask)
    before = [t.clone() for t in inputs]
    p.logp(temperature=heat, mask=mask)
    p.grads(temperature=heat, mask=mask)
    assert all(same_bits(now, then) for now, then in zip(inputs, before, strict=True))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_targets_of_any_integer_type(kind):
    p = make(20, 8, 120)
    logp = rlk.jit.linear_logp(p.hidden, p.weight, p.target.to(kind))
    assert same_bits(logp, p.logp())


def test_agrees_with_torch():
    p = make(40, 64, 500, bias="float32")
    mine = leaves(p)
    rlk.jit.linear_logp(**mine, temperature=0.7).backward(p.upstream)
    theirs = {n: t.double().requires_grad_() for n, t in leaves(p, ()).items() if n != "target"}
    z = torch.nn.functional.linear(theirs["hidden"], theirs["weight"]) + theirs["bias"]
    logp = (z / 0.7).log_softmax(-1).gather(-1, p.target[:, None])[:, 0]
    logp.backward(p.upstream.double())
    torch.testing.assert_close(p.logp(temperature=0.7).double(), logp, rtol=1e-5, atol=2e-5)
    for name, wide in theirs.items():
        torch.testing.assert_close(mine[name].grad.double(), wide.grad, rtol=1e-4, atol=1e-5)


def test_results_do_not_share_memory():
    p = make(5, 8, 100)
    first = p.logp()
    copy = first.clone()
    other = make(5, 8, 100, seed=1).logp()
    assert first.data_ptr() != other.data_ptr()
    assert same_bits(first, copy)
    assert_within(first, p.reference().forward())
