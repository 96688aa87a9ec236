# SPDX-License-Identifier: Apache-2.0
"""Compiled calls of tensors that lie, or are used, in unusual ways: the bits of eager calls."""

import pytest
from long_run import LONG
from operator_cases import CASES, Case, fresh_compiler  # noqa: F401
from reference import same_bits
from tensors import torch

import rlk

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("device", "generic", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of its compiler
]
OPS = ("linear_logp", "logp", "det_gemm", "linear", "ppo_loss", "grpo_loss", "ratio_kl")
each_op = pytest.mark.parametrize("case", [CASES[op] for op in OPS], ids=OPS)


def strided(tensor):
    return torch.stack([tensor, tensor], -1)[..., 0]


def transposed(tensor):
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def expanded(tensor):
    return tensor[:1].expand(tensor.shape)


def float16(tensor):
    return tensor.half() if tensor.is_floating_point() else tensor


def found(case, inputs, call):
    """Outputs and gradients; those of the outputs are expanded, as sum() gives them."""
    inputs = [tensor.detach() for tensor in inputs]
    leaves = [tensor.requires_grad_() for tensor in inputs[: case.needs]]
    outputs = [output for output in call(*inputs) if output.is_floating_point()]
    total = sum(output.float().sum() for output in outputs)
    grads = torch.autograd.grad(total, leaves) if leaves else ()
    return [tensor.detach() for tensor in (*outputs, *grads)]


def expect_same(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        assert same_bits(one, other)


def whole(call, **options):
    return torch.compile(call, backend="aot_eager", fullgraph=True, **options)


@each_op
@pytest.mark.parametrize("layout", [strided, transposed, expanded, float16])
def test_layouts_and_dtypes(case, layout):
    inputs = [layout(tensor) for tensor in case.inputs(needs_grad=False)]
    want = found(case, inputs, case.outputs)
    for dynamic in (False, True) if LONG else (layout in (expanded, transposed),):
        torch._dynamo.reset()
        expect_same(found(case, inputs, whole(case.outputs, dynamic=dynamic)), want)


@pytest.mark.parametrize("rows", [(), (0,), (3, 0), (1,)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", ["linear_logp", "logp"])
def test_few_rows(rows, dynamic, op):
    shapes = {"linear_logp": ((*rows, 16), (71, 16)), "logp": ((*rows, 71),)}[op]
    case = Case(CASES[op].call, shapes, len(shapes), lambda: (torch.full(rows, 5),))
    inputs = case.inputs(needs_grad=False)
    compiled = whole(case.outputs, dynamic=dynamic)
    expect_same(found(case, inputs, compiled), found(case, inputs, case.outputs))


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_tensor_as_two_arguments(dynamic):
    def products(square, target):
        return rlk.jit.linear_logp(square, square, target), rlk.jit.det_gemm(square, square)

    case = Case(products, ((16, 16),), 1, lambda: (torch.arange(16),))
    inputs = case.inputs(needs_grad=False)
    compiled = whole(case.outputs, dynamic=dynamic)
    expect_same(found(case, inputs, compiled), found(case, inputs, case.outputs))

    def losses(logits, target, one):
        ratio = rlk.jit.ratio_kl(logits, logits, target, None, one)[0]
        return ratio, rlk.jit.ppo_loss(one, one, one)[0]

    case = Case(losses, ((6, 71),), 1, lambda: (torch.arange(6), torch.linspace(-1, 0, 6)))
    inputs = case.inputs(needs_grad=False)
    expect_same(found(case, inputs, whole(case.outputs)), found(case, inputs, case.outputs))


@each_op
def test_modes_and_recompiles(case):
    """What needs a gradient, or the mode, changes: each time the function has another graph."""
    compiled = whole(case.outputs)
    inputs = case.inputs(needs_grad=False)
    want = found(case, inputs, case.outputs)
    outputs = want[: len(want) - case.needs]
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with mode():
            got = [output for output in compiled(*inputs) if output.is_floating_point()]
        expect_same(got, outputs)
        expect_same(found(case, inputs, compiled), want)
    for needs in range(1, case.needs):
        some = Case(case.call, case.shapes, needs)
        expect_same(found(some, inputs, compiled), found(some, inputs, some.outputs))


@each_op
def test_graph_breaks_around_a_call(case):
    def broken(*inputs):
        first = inputs[0] * 2
        torch._dynamo.graph_break()
        outputs = case.outputs(first, *inputs[1:])
        torch._dynamo.graph_break()
        return tuple(output * 2 if output.is_floating_point() else output for output in outputs)

    inputs = case.inputs(needs_grad=False)
    want = found(case, inputs, broken)
    expect_same(found(case, inputs, torch.compile(broken, backend="aot_eager")), want)
    stats = torch._dynamo.utils.counters["stats"]
    assert stats["unique_graphs"] == 3
