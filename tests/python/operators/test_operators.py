# SPDX-License-Identifier: Apache-2.0
"""torch's operators of every op: torch.compile, torch.export and modes see the calls whole, and get
the bits of eager ones."""

import pytest
from long_run import LONG
from operator_cases import CASES, fresh_compiler  # noqa: F401
from reference import same_bits
from tensors import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import rlk

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("device", "generic", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of its compiler
]
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
each_differentiable = pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.needs], ids=[n for n, c in CASES.items() if c.needs]
)


class Operators(TorchDispatchMode):
    """Collects the calls of rlk's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "rlk":
            copies = torch.utils._pytree.tree_map_only(
                torch.Tensor, torch.clone, (args, kwargs or {})
            )
            self.calls.append((operator, *copies))
        return operator(*args, **(kwargs or {}))


def expect_same(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        assert one is None or same_bits(one.detach(), other.detach())


def results(case, call):
    """call's loss and gradients."""
    inputs = case.inputs()
    loss = call(*inputs)
    if case.needs:
        loss.backward()
    return (loss, *(tensor.grad for tensor in inputs[: case.needs]))


@each_case
@pytest.mark.parametrize("dynamic", [False, True] if LONG else [True])
def test_compiled_whole_with_the_bits_of_eager(case, dynamic):
    compiled = torch.compile(case.loss, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    expect_same(results(case, compiled), results(case, case.loss))
    with torch.no_grad():
        expect_same((compiled(*case.inputs()),), (case.loss(*case.inputs()),))


@each_case
def test_opcheck_of_every_operator(case):
    rlk.jit.configure(saved_mib=0)  # what is kept may have elements of any value
    inputs = case.inputs()
    with Operators() as seen:
        loss = case.loss(*inputs)
        if case.needs:
            loss.backward()
    names = {operator.name() for operator, *_ in seen.calls}
    assert len(names) >= 1 + bool(case.needs), names
    for operator, args, kwargs in seen.calls:
        torch.library.opcheck(operator, args, kwargs)


@each_case
def test_fake_tensors_have_the_results_shapes(case):
    want = case.outputs(*case.inputs(needs_grad=False))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in case.inputs(needs_grad=False)]
        got = case.outputs(*fakes)
    kinds = [[(t.shape, t.dtype, t.device, t.stride()) for t in found] for found in (got, want)]
    assert kinds[0] == kinds[1]


@each_differentiable
def test_make_fx_traces_forward_and_backward(case):
    def gradients(*inputs):
        return torch.autograd.grad(case.loss(*inputs), inputs[: case.needs])

    graph = make_fx(gradients)(*case.inputs())
    operators = [n for n in graph.graph.nodes if getattr(n.target, "namespace", "") == "rlk"]
    assert len(operators) >= 2
    expect_same(graph(*case.inputs()), gradients(*case.inputs()))


@each_case
def test_jit_trace_records_the_call_and_not_its_result(case):
    inputs = case.inputs(needs_grad=False)
    traced = torch.jit.trace(case.loss, inputs, check_trace=False)
    others = [tensor / 2 if tensor.is_floating_point() else tensor for tensor in inputs]
    expect_same((traced(*others),), (case.loss(*others),))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda x: rlk.jit.linear_cross_entropy(x, x, x, reduction="all"), "mean, sum, none"),
        (
            lambda x: rlk.jit.linear_logp(x, x, x[:, 0].long(), lora=(x, x, 1)),
            "None in torch.compile",
        ),
        (lambda x: rlk.jit.ppo_loss(x, x, x, epsilon=0.2), "here it is eps_clip_low"),
        (lambda x: rlk.jit.ppo_loss(x, x, x, group=2), "group: expected an option that exists"),
        (lambda x: rlk.jit.grpo_loss(x, x, x, x, x, kl_coef=0.2), "here it is beta"),
    ],
)
def test_an_error_of_the_compiler_has_our_words(call, word):
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=word):
        compiled(torch.ones(3, 3))


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("kind", ["linear", "linear_logp", "linear_logp, added"])
def test_flops_are_counted(kind, needs):
    """Those of the products, as torch counts them for F.linear."""
    hidden, weight = (
        torch.randn(n, 16, requires_grad=need) for n, need in zip((3, 71), needs, strict=True)
    )
    ids, into = torch.zeros(3, dtype=int), torch.zeros(71, 16) if needs[1] else None

    def flops(call):
        with FlopCounterMode(display=False) as counter:
            call().sum().backward()
        return counter.get_total_flops()

    calls = {
        "linear": lambda: rlk.jit.linear(hidden, weight),
        "linear_logp": lambda: rlk.jit.linear_logp(hidden, weight, ids),
        "linear_logp, added": lambda: rlk.jit.linear_logp(
            hidden, weight, ids, accumulate_into=into
        ),
    }
    assert flops(calls[kind]) == flops(lambda: torch.nn.functional.linear(hidden, weight))


@each_case
@pytest.mark.parametrize("strict", [False, True])
def test_export(case, strict):
    class Model(torch.nn.Module):
        def forward(self, *inputs):
            return case.outputs(*inputs)

    exported = torch.export.export(Model(), case.inputs(needs_grad=False), strict=strict)
    graphs = [part.graph for part in exported.graph_module.modules() if hasattr(part, "graph")]
    named = [str(node.target) for graph in graphs for node in graph.nodes]
    of_rlk = [name for name in named if name.startswith("rlk.")]
    assert of_rlk
    assert not any(name.startswith("rlk._") for name in of_rlk)  # those are this version's
    want = case.outputs(*case.inputs(needs_grad=False))
    expect_same(exported.module()(*case.inputs(needs_grad=False)), want)
    lower = exported.run_decompositions()
    expect_same(lower.module()(*case.inputs(needs_grad=False)), want)


@each_differentiable
def test_torch_func_grad_and_vjp(case):
    _, *want = results(case, case.loss)
    places = tuple(range(case.needs))
    inputs = case.inputs(needs_grad=False)
    expect_same(torch.func.grad(case.loss, places)(*inputs), want)
    value, pull = torch.func.vjp(
        lambda *some: case.loss(*some, *inputs[case.needs :]), *inputs[: case.needs]
    )
    expect_same(pull(torch.ones_like(value)), want)


@each_differentiable
@pytest.mark.parametrize("transform", ["vmap", "vmap of grad", "jacrev", "jvp", "jacfwd", "second"])
def test_torch_func_is_refused_in_words(case, transform):
    inputs = case.inputs(needs_grad=False)

    def of_first(first):
        return case.loss(first, *inputs[1:])

    def calls():
        func = torch.func
        if transform == "jvp":
            return func.jvp(of_first, inputs[:1], inputs[:1])
        if transform == "second":
            return func.grad(lambda x: func.grad(of_first)(x).sum())(inputs[0])
        if transform in ("jacrev", "jacfwd"):
            return getattr(func, transform)(lambda x: case.outputs(x, *inputs[1:])[0])(inputs[0])
        many = torch.stack([inputs[0], inputs[0]])
        return func.vmap(of_first if transform == "vmap" else func.grad(of_first))(many)

    words = {"jvp": "tangent|jvp", "jacfwd": "tangent|jvp|vmap", "second": "one derivative"}
    with pytest.raises(rlk.Unsupported, match=words.get(transform, "vmap")):
        calls()


@each_differentiable
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("how", ["is_grads_batched", "vmap", "jacobian"])
def test_a_batch_of_backwards_is_refused_in_words(case, how, create_graph):
    inputs = case.inputs()
    loss, many = case.loss(*inputs), torch.ones(3, device=inputs[0].device)
    options = {"retain_graph": True, "create_graph": create_graph}

    def gradient(upstream):
        return torch.autograd.grad(loss, inputs[0], upstream, **options)

    def calls():
        if how == "is_grads_batched":
            return torch.autograd.grad(loss, inputs[0], many, is_grads_batched=True, **options)
        if how == "vmap":
            return torch.func.vmap(gradient)(many)
        return torch.autograd.functional.jacobian(
            lambda first: case.outputs(first, *inputs[1:])[0],
            inputs[0],
            create_graph=create_graph,
            vectorize=True,
        )

    with pytest.raises(rlk.Unsupported, match="vmap: expected a call and its backward outside"):
        calls()
    expect_same(gradient(many[0]), torch.autograd.grad(case.loss(*inputs), inputs[0]))


def test_by_name_after_one_import():
    from rlk import operators

    assert not operators.__all__
    given = CASES["logp"].inputs()
    assert same_bits(torch.ops.rlk.logp(*given)[0].detach(), CASES["logp"].call(*given).detach())
    for name in ("linear_logp", "det_gemm", "ppo_loss", "grpo_loss", "ratio_kl"):
        assert hasattr(torch.ops.rlk, name)
