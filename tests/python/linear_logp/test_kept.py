# SPDX-License-Identifier: Apache-2.0
"""Kept exponentials: no budget changes a bit of a gradient, and what is kept is autograd's."""

import numpy as np
import pytest
from devices import torch_name
from problems import DTYPES, NAMES, problem, with_garbage
from reference import Reference, assert_within, same_bits
from tensors import leaves, tensor, torch, upload
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

ALL = 1 << 20  # MiB
SIZES = (40, 8, 50257)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def keeps(dtype):
    """Whether kernels of the device keep anything of this dtype."""
    if torch_name() == "cpu":
        return True
    return dtype != "float32" and torch.cuda.get_device_capability() == (9, 0)


@pytest.fixture
def kept_dtype():
    """A dtype of which the device keeps exponentials."""
    dtype = "float32" if torch_name() == "cpu" else "bfloat16"
    if not keeps(dtype):
        pytest.skip("keeps nothing")
    return dtype


def operands(dtype="float32", sizes=SIZES, needs=NAMES, bias="float32", seed=0):
    drawn = upload(problem(*sizes, bias="float32", seed=seed), dtype, bias)
    return leaves(drawn, needs), drawn.upstream


def kept_of(out):
    """What the call whose output this is keeps for its backward, or None."""
    node = out.grad_fn
    return dict(zip(node.names, node.saved_tensors, strict=True)).get("kept")


def step_of(vocab):
    """Elements from one segment of a row to the next."""
    columns = -(-vocab // 8)
    step = 64 * -(-columns // 64)
    if torch_name() != "cpu":  # maxima of leaves besides
        step += 64 * -(-2 * -(-columns // 192) // 64)
    return step


def segment_bytes(rows, vocab, dtype):
    """What a budget counts for a segment: its columns, and padding where that is much."""
    element = 4 if torch_name() == "cpu" or dtype == "float32" else 2
    columns, step = -(-vocab // 8), step_of(vocab)
    return rows * (step if step > columns + columns // 8 else columns) * element


def num_kept(out, vocab):
    kept = kept_of(out)
    return 0 if kept is None else kept.shape[1] // step_of(vocab)


def fitting(mib, segment_mib, vocab, dtype):
    """Segments that a budget keeps: all, or four, or none."""
    held, everything = int(mib / segment_mib), -(-vocab // -(-vocab // 8))
    if not keeps(dtype):
        return 0
    return everything if held >= everything else 4 if held >= 4 else 0


def call(given, **options):
    return rlk.jit.linear_logp(**given, **options)


def gradients(out, upstream, given, **options):
    needs = [given[n] for n in NAMES if n in given and given[n].requires_grad]
    return torch.autograd.grad(out, needs, upstream, **options)


def expect_same(found, wanted):
    for got, want in zip(found, wanted, strict=True):
        assert same_bits(got, want)


@each_dtype
def test_no_budget_changes_a_bit(dtype):
    given, upstream = operands(dtype)
    out = call(given, saved_mib=0)
    assert kept_of(out) is None
    wanted = gradients(out, upstream, given)
    segment = segment_bytes(SIZES[0], SIZES[2], dtype) / 2**20
    found = set()
    for mib in (1, 2, 3, 5, 7, ALL):
        out = call(given, saved_mib=mib)
        assert num_kept(out, SIZES[2]) == fitting(mib, segment, SIZES[2], dtype)
        found.add(num_kept(out, SIZES[2]))
        expect_same(gradients(out, upstream, given), wanted)
    assert found == ({0, 4, 8} if keeps(dtype) else {0})


@pytest.mark.parametrize("vocab", range(1, 18))
def test_small_vocabularies(vocab):
    for dtype in ("float32", "bfloat16"):
        rows = 2**20 // (5 * segment_bytes(1, vocab, dtype))  # five segments fill one MiB
        given, upstream = operands(dtype, (rows, 2, vocab))
        wanted = gradients(call(given, saved_mib=0), upstream, given)
        for mib, segment_mib in ((1, 1 / 5), (ALL, 1)):
            out = call(given, saved_mib=mib)
            assert num_kept(out, vocab) == fitting(mib, segment_mib, vocab, dtype)
            expect_same(gradients(out, upstream, given), wanted)


@each_dtype
def test_the_gradients_are_right(dtype):
    options = {"temperature": 0.7, "logit_scale": 0.75}
    given, upstream = operands(dtype, ((3, 5), 24, 1153))
    out = call(given, saved_mib=ALL, **options)
    assert (kept_of(out) is not None) == keeps(dtype)
    exact = Reference(**given, **options).gradients(upstream)
    for name, got in zip(NAMES, gradients(out, upstream, given), strict=True):
        assert_within(got, exact[name], name)


@each_dtype
def test_inactive_rows_and_rows_without_upstream(dtype):
    drawn = problem(60, 8, 1153, bias="float32")
    active = np.arange(60) % 3 != 1
    drawn = upload(with_garbage(drawn, active), dtype)
    given, upstream = leaves(drawn), drawn.upstream.clone()
    upstream[5:20] = 0  # others than in the forward are active
    mask = tensor(active)
    wanted = gradients(call(given, saved_mib=0, mask=mask), upstream, given)
    out = call(given, saved_mib=ALL, mask=mask)
    assert (kept_of(out) is not None) == keeps(dtype)
    expect_same(gradients(out, upstream, given), wanted)


def test_a_target_at_minus_infinity_and_a_row_of_nan(kept_dtype):
    given, upstream = operands(kept_dtype, (9, 8, 1153))
    with torch.no_grad():
        given["bias"][given["target"][0]] = -torch.inf
        given["hidden"][4] = torch.nan
    wanted = gradients(call(given, saved_mib=0), upstream, given)
    expect_same(gradients(call(given, saved_mib=ALL), upstream, given), wanted)


@pytest.mark.parametrize("needs", [("hidden",), ("weight",), ("hidden", "bias"), NAMES])
def test_any_gradients(needs, kept_dtype):
    given, upstream = operands(kept_dtype, (9, 8, 1153), needs)
    wanted = gradients(call(given, saved_mib=0), upstream, given)
    out = call(given, saved_mib=ALL)
    assert kept_of(out) is not None
    expect_same(gradients(out, upstream, given), wanted)


def test_where_nothing_is_kept(kept_dtype):
    given, _ = operands(kept_dtype, (9, 8, 1153))
    assert kept_of(call(given, saved_mib=ALL, softcap=3.0)) is None
    entropy = call(given, saved_mib=ALL, return_entropy=True, entropy_grad=True)
    assert kept_of(entropy.log_prob) is None
    assert kept_of(call(given, saved_mib=ALL, return_entropy=True).log_prob) is not None
    given, _ = operands(kept_dtype, (9, 8, 1153), ("bias",))
    assert kept_of(call(given, saved_mib=ALL)) is None
    empty, upstream = operands(kept_dtype, (0, 8, 1153))
    out = call(empty, saved_mib=ALL)
    assert kept_of(out) is None
    gradients(out, upstream, empty)


def test_the_setting_is_for_calls_that_say_nothing(kept_dtype):
    given, _ = operands(kept_dtype, (9, 8, 1153))
    rlk.jit.configure(saved_mib=ALL)
    assert rlk.jit.settings()["saved_mib"] == ALL
    assert num_kept(call(given), 1153) == 8
    assert kept_of(call(given, saved_mib=0)) is None
    rlk.jit.configure(saved_mib=0)
    assert kept_of(call(given)) is None
    assert num_kept(call(given, saved_mib=1), 1153) == 8


@each_dtype
def test_a_second_backward_gives_the_same_bits(dtype):
    given, upstream = operands(dtype)
    wanted = gradients(call(given, saved_mib=0), upstream, given)
    out = call(given, saved_mib=ALL)
    for retain in (True, True, False):
        expect_same(gradients(out, upstream, given, retain_graph=retain), wanted)


def test_gradients_of_one_output_at_a_time():
    options = {"return_entropy": True, "return_lse": True}
    given, upstream = operands("bfloat16", (9, 8, 1153))
    plain = call(given, saved_mib=0, **options)
    kept = call(given, saved_mib=ALL, **options)
    for order in ("log_prob", "lse", "entropy", "log_prob"):
        wanted = gradients(getattr(plain, order), upstream, given, retain_graph=True)
        found = gradients(getattr(kept, order), upstream, given, retain_graph=True)
        expect_same(found, wanted)


@each_dtype
def test_an_entropy_gradient_that_arrives(dtype):
    given, upstream = operands(dtype, (9, 8, 1153))
    found = []
    for mib in (0, ALL):
        out = call(given, saved_mib=mib, return_entropy=True)
        loss = out.log_prob @ upstream + 0.1 * out.entropy.sum()
        found.append(gradients(loss, None, given))
    expect_same(*found)


def test_an_output_that_the_caller_writes_over():
    given, upstream = operands("bfloat16", (9, 8, 1153))
    wanted = gradients(call(given, saved_mib=0), 2 * upstream, given)
    out = call(given, saved_mib=ALL)
    out.mul_(2)
    expect_same(gradients(out, upstream, given), wanted)


@pytest.mark.parametrize("late", [False, True])
def test_memory_that_hooks_hold_stays_as_it_is(late):
    given, upstream = operands("bfloat16", (9, 8, 1153))
    wanted = gradients(call(given, saved_mib=0), upstream, given)
    held = []

    def pack(saved):
        held.append((saved, saved.detach().clone()))
        return saved

    if late:
        out = call(given, saved_mib=ALL)
        node = out.grad_fn
        for name, saved in zip(node.names, node._raw_saved_tensors, strict=True):
            if name == "kept":
                saved.register_hooks(pack, lambda saved: saved)
    else:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            out = call(given, saved_mib=ALL)
    shape = kept_of(out).shape
    for retain in (True, False):
        expect_same(gradients(out, upstream, given, retain_graph=retain), wanted)
    assert any(copy.shape == shape for _, copy in held)
    for saved, copy in held:
        assert same_bits(saved, copy)


def test_it_may_wait_in_host_memory():
    given, upstream = operands("bfloat16", (9, 8, 1153))
    wanted = gradients(call(given, saved_mib=0), upstream, given)
    with torch.autograd.graph.save_on_cpu():
        out = call(given, saved_mib=ALL)
    for retain in (True, False):
        expect_same(gradients(out, upstream, given, retain_graph=retain), wanted)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_drops_it(use_reentrant):
    given, upstream = operands("bfloat16", (9, 8, 1153))
    wanted = gradients(call(given, saved_mib=0), upstream, given)

    def head(hidden, weight, bias):
        changed = {**given, "hidden": hidden, "weight": weight, "bias": bias}
        return call(changed, saved_mib=ALL)

    leaf = [given[name] for name in NAMES]
    checkpoint(head, *leaf, use_reentrant=use_reentrant).backward(upstream)
    expect_same([operand.grad for operand in leaf], wanted)


@pytest.mark.parametrize("vocab", [1, 8, 40])
def test_a_budget_holds_padding_where_it_is_much(vocab, kept_dtype):
    given, _ = operands(kept_dtype, (20000, 2, vocab))
    for mib in (1, 8, 30):
        kept = kept_of(call(given, saved_mib=mib))
        assert kept is None or kept.numel() * kept.element_size() <= mib * 2**20


# What is kept lies as the forward's target has it.
def test_another_target_computes_the_logits_again():
    if torch_name() != "cpu":
        pytest.skip("configure(arch=) there is for another card")
    given, upstream = operands("float32", (20, 8, 300))
    wanted = gradients(call(given, saved_mib=0), upstream, given)
    out = call(given, saved_mib=ALL)
    assert kept_of(out) is not None
    rlk.jit.configure(arch="x86-64-v2")
    for got, want in zip(gradients(out, upstream, given), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_explain_names_the_kernel_that_keeps(kept_dtype):
    given, _ = operands(kept_dtype, (9, 8, 1153))

    def kernel(**options):
        return rlk.jit.explain(rlk.jit.linear_logp, **given, **options).kernel

    rlk.jit.configure(specialize=True)
    assert ("keep=yes" in kernel(saved_mib=ALL)) == (torch_name() != "cpu")  # one kernel there
    assert "keep" not in kernel(saved_mib=0)
    assert "keep" not in kernel(saved_mib=ALL, backward=True)
    with torch.no_grad():
        assert "keep" not in kernel(saved_mib=ALL)


def test_what_does_not_fit_the_call_is_refused(kept_dtype):
    given, upstream = operands(kept_dtype, (9, 8, 1153))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t[:, : t.shape[-1] // 2] if t.dim() == 2 and t.shape[1] > 999 else t
    ):
        out = call(given, saved_mib=ALL)
    with pytest.raises(rlk.InvalidArgument, match=r"^linear_logp: kept: expected what the forward"):
        gradients(out, upstream, given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"saved_mib": -1},
            "saved_mib: expected a whole number from 0 to 1048576, or None, got -1",
        ),
        ({"saved_mib": 2**20 + 1}, "saved_mib: expected a whole number from 0 to 1048576"),
        ({"saved_mib": 1.5}, "saved_mib: expected an int"),
        ({"saved_mib": True}, "saved_mib: expected an int"),
        ({"entropy_grad": True}, "entropy_grad: expected False without return_entropy, got True"),
        ({"entropy_grad": "yes"}, "entropy_grad: expected True or False"),
    ],
)
def test_errors(options, message):
    given, _ = operands("float32", (9, 8, 1153))
    with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {message}"):
        call(given, **options)
