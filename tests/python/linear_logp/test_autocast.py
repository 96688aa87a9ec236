# SPDX-License-Identifier: Apache-2.0
"""autocast and compute_dtype: operands are cast as F.linear casts them, and float32 ones have their
gradients unrounded."""

import numpy as np
import pytest
from devices import torch_name
from problems import NAMES, problem
from reference import STORE, Bounded, Reference, same_bits
from tensors import leaves, tensor, torch, upload
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

import rlk
from rlk.jit import linear_logp

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

SIZES = (12, 24, 331)
HALVES = ("bfloat16", "float16")
each_half = pytest.mark.parametrize("half", HALVES)


def autocast(half="bfloat16", **options):
    return torch.autocast(torch_name(), dtype=getattr(torch, half), **options)


def operands(needs=NAMES, bias="float32", **dtypes):
    """float32, those that `dtypes` names excepted; and the upstream gradient."""
    drawn = upload(problem(*SIZES, bias="float32"), "float32", bias)
    given = leaves(drawn, ())
    given |= {name: given[name].to(getattr(torch, dtype)) for name, dtype in dtypes.items()}
    return {n: x.requires_grad_(n in needs) for n, x in given.items()}, drawn.upstream


def in_half(given, half):
    """The operands of the product as it is computed."""
    cast = {name: given[name].detach().to(getattr(torch, half)) for name in ("hidden", "weight")}
    return {**{name: x.detach() for name, x in given.items()}, **cast}


def gradients(given, upstream, call=linear_logp, **options):
    found = call(**given, **options)
    found.backward(upstream)
    return found, {name: given[name].grad for name in NAMES}


def unrounded(exact, dtype):
    return Bounded(exact.value, exact.bound - STORE[dtype] * np.abs(exact.value) + 2.0**-149)


def expect_within(found, exact):
    error = np.abs(found.detach().cpu().double().numpy() - exact.value)
    assert (error <= exact.bound).all(), (error - exact.bound).max()


@each_half
@pytest.mark.parametrize("hidden", ["float32", "half"])
@pytest.mark.parametrize("saved_mib", [0, 1])
def test_values_against_float64(half, hidden, saved_mib):
    own = half if hidden == "half" else "float32"
    given, upstream = operands(hidden=own)
    with autocast(half):
        found, grads = gradients(given, upstream, saved_mib=saved_mib)
    reference = Reference(**in_half(given, half))
    assert found.dtype == torch.float32
    expect_within(found, reference.forward())
    for name, exact in reference.gradients(upstream).items():
        assert grads[name].dtype == given[name].dtype
        is_cast = name == "weight" or (name == "hidden" and hidden == "float32")
        expect_within(grads[name], unrounded(exact, half) if is_cast else exact)
        if is_cast:
            assert not same_bits(grads[name], grads[name].to(getattr(torch, half)).float())


@each_half
def test_bits_are_those_of_operands_that_were_cast_before(half):
    given, upstream = operands()
    with autocast(half):
        found, grads = gradients(given, upstream)
    cast = in_half(given, half)
    plain, own = gradients({n: x.requires_grad_(n in NAMES) for n, x in cast.items()}, upstream)
    assert same_bits(found, plain)
    assert same_bits(grads["bias"], own["bias"])
    for name in ("hidden", "weight"):
        assert same_bits(grads[name].to(getattr(torch, half)), own[name])


@each_half
@pytest.mark.parametrize("by_name", [False, True])
def test_compute_dtype_is_autocast_for_one_call(half, by_name):
    wanted, upstream = operands(hidden=half)
    with autocast(half):
        found, wanted_grads = gradients(wanted, upstream)
    given, _ = operands(hidden=half)
    dtype = half if by_name else getattr(torch, half)
    same, grads = gradients(given, upstream, compute_dtype=dtype)
    assert same_bits(same, found)
    for name in NAMES:
        assert same_bits(grads[name], wanted_grads[name])


def test_compute_dtype_goes_before_autocast():
    given, upstream = operands()
    with autocast("bfloat16"):
        found, _ = gradients(given, upstream, compute_dtype=torch.float16)
    assert same_bits(found, linear_logp(**in_half(given, "float16")))


def saved_weight(out, shape):
    """Address of the weight that a graph holds."""
    saved = out.grad_fn.saved_tensors if hasattr(out.grad_fn, "saved_tensors") else ()
    (found,) = (x for x in saved if x.shape == shape)
    assert found.dtype == torch.bfloat16
    return found.data_ptr()


def test_a_region_casts_a_weight_once():
    given, upstream = operands()
    hidden, weight = given["hidden"], given["weight"]
    with autocast():
        out = linear_logp(**given)
        address = saved_weight(out, weight.shape)
        assert saved_weight(linear_logp(**given), weight.shape) == address
        assert saved_weight(rlk.jit.linear(hidden, weight), weight.T.shape) == address
        # torch's own layer has the same copy, and its gradient still flows.
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
            logits = linear(hidden, weight)
        assert address in [x.data_ptr() for x in seen]
    with autocast():
        assert saved_weight(linear_logp(**given), weight.shape) != address
    logits.float().sum().backward()
    of_linear, weight.grad = weight.grad, None
    exact = hidden.detach().bfloat16().double().sum(0).expand_as(weight)
    assert (of_linear - exact).abs().max() < 0.05
    out.backward(upstream)
    assert weight.grad is not None


def test_it_takes_the_copy_that_a_layer_has_made():
    given, _ = operands()
    with autocast():
        linear(given["hidden"], given["weight"])
        with torch.no_grad():
            given["weight"].zero_()  # the cache does not see it, whoever reads it
        out = linear_logp(**given)
        others = linear(given["hidden"], given["weight"])
    assert others.any()
    assert not same_bits(out, linear_logp(**in_half(given, "bfloat16")))


def test_a_cache_that_is_off():
    given, upstream = operands()
    with autocast(cache_enabled=False):
        found, grads = gradients(given, upstream)
    assert same_bits(found, linear_logp(**in_half(given, "bfloat16")))
    assert grads["weight"].dtype == torch.float32


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    given, _ = operands()
    wanted = linear_logp(**in_half(given, "bfloat16"))
    with mode(), autocast():
        assert same_bits(linear_logp(**given), wanted)
        assert same_bits(linear_logp(**given), wanted)


def test_regions_within_regions():
    given, upstream = operands()
    wanted, _ = gradients(given, upstream)
    with autocast(), torch.autocast(torch_name(), enabled=False):
        assert same_bits(linear_logp(**given), wanted)
    with autocast("bfloat16"), autocast("float16"):
        found = linear_logp(**given)
    assert same_bits(found, linear_logp(**in_half(given, "float16")))


@pytest.mark.parametrize("call", [linear_logp, None])
@pytest.mark.parametrize(("outer", "inner"), [HALVES, HALVES[::-1]])
def test_a_copy_that_another_region_has_cached(outer, inner, call):
    def product(**given):
        if call is None:
            return rlk.jit.linear(given["hidden"], given["weight"], given["bias"])
        return call(**given)

    given, _ = operands()
    with autocast(outer):
        first = product(**given)
        with autocast(inner):
            found = product(**given)
            found.float().sum().backward()
        assert same_bits(product(**given), first)
    assert same_bits(found, product(**in_half(given, inner)))
    assert given["weight"].grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
def test_a_region_of_float32():
    given, _ = operands((), hidden="bfloat16", bias="float32")
    target = given.pop("target")

    class Head(torch.nn.Module):
        def forward(self, hidden, weight, bias):
            return linear_logp(hidden, weight, target, bias), rlk.jit.linear(hidden, weight, bias)

    wide = {name: x.float() for name, x in given.items()}
    wanted = Head()(**wide)
    with autocast():
        torch.set_autocast_dtype(torch_name(), torch.float32)  # torch.autocast has none on the CPU
        called = Head()(**given)
        whole = torch.compile(Head(), backend="aot_eager", fullgraph=True)(**given)
        exported = torch.export.export(Head(), tuple(given.values()), strict=False)
    torch._dynamo.reset()
    for found in (called, whole, exported.module()(*given.values())):
        assert all(same_bits(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_parameter_of_the_other_half_type():
    given, upstream = operands(bias="bfloat16", hidden="bfloat16", weight="bfloat16")
    with autocast("float16"):
        found, grads = gradients(given, upstream)
    cast = in_half(given, "float16")
    cast["bias"] = cast["bias"].float()
    assert same_bits(found, linear_logp(**cast))
    for name, exact in Reference(**cast).gradients(upstream).items():
        assert grads[name].dtype == torch.bfloat16
        more = STORE["bfloat16"] * (np.abs(exact.value) + exact.bound)
        expect_within(grads[name], Bounded(exact.value, exact.bound + more))


def test_no_active_row():
    given, upstream = operands()
    mask = torch.zeros_like(given["target"], dtype=torch.bool)
    with autocast():
        _, grads = gradients(given, upstream, mask=mask)
    for name in NAMES:
        assert grads[name].dtype == torch.float32
        assert not grads[name].any()


def test_rows_without_a_gradient_get_zeros():
    given, upstream = operands()
    upstream = upstream.clone()
    upstream[::2] = 0
    with autocast():
        _, grads = gradients(given, upstream)
    assert not grads["hidden"][::2].any()
    assert grads["hidden"][1::2].any(1).all()


@each_half
def test_accumulate_into(half):
    given, upstream = operands()
    with autocast(half):
        _, wanted = gradients(given, upstream)
    again, _ = operands()
    weight = again["weight"]
    weight.main_grad = torch.full_like(weight, 0.5).detach()
    with autocast(half):
        _, grads = gradients(again, upstream, accumulate_into="main_grad")
    assert grads["weight"] is None
    assert same_bits(weight.main_grad, 0.5 + wanted["weight"])
    assert same_bits(grads["hidden"], wanted["hidden"])


def test_what_gradients_are_added_to_is_not_the_weight():
    given, _ = operands()
    for name in ("weight", "hidden"):
        into = given[name].detach()
        if name == "hidden":
            into = given["weight"].detach().clone()
            given["hidden"] = into[: SIZES[0]].requires_grad_()
        message = f"accumulate_into: expected memory that {name} does not share, got some of it"
        with autocast(), pytest.raises(rlk.InvalidArgument, match=message):
            linear_logp(**given, accumulate_into=into)


@each_half
def test_an_adapter(half):
    """What a LoRA adapter stands beside is cast as well; the adapter is taken as it is."""
    given, upstream = operands(needs=("hidden",))
    drawn = torch.Generator().manual_seed(0)
    sizes = (4, SIZES[1]), (SIZES[2], 4)
    lora = [
        torch.randn(size, generator=drawn).to(upstream.device).requires_grad_() for size in sizes
    ]
    with autocast(half):
        found = linear_logp(**given, lora=(*lora, 0.5))
        assert "x=" in rlk.jit.explain(linear_logp, **given, lora=(*lora, 0.5)).kernel
    wanted = linear_logp(**in_half(given, half), lora=(*lora, 0.5))
    assert same_bits(found, wanted)
    found.backward(upstream)
    for each in (given["hidden"], *lora):
        assert each.grad.dtype == torch.float32
        assert each.grad.any()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant):
    given, upstream = operands()
    again, _ = operands()

    def head(hidden):
        return linear_logp(**{**again, "hidden": hidden})

    with autocast():
        found, wanted = gradients(given, upstream)
        out = checkpoint(head, again["hidden"], use_reentrant=use_reentrant)
    out.backward(upstream)
    assert same_bits(out, found)
    for name in NAMES:
        assert same_bits(again[name].grad, wanted[name])


def test_a_checkpoint_that_keeps_products():
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    given, upstream = operands()
    again, _ = operands()
    keeps = [torch.ops.aten.mm.default]

    def head(hidden):
        return linear_logp(**{**again, "hidden": hidden})

    with autocast():
        _, wanted = gradients(given, upstream)
        out = checkpoint(
            head,
            again["hidden"],
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(keeps),
        )
    out.backward(upstream)
    for name in NAMES:
        assert same_bits(again[name].grad, wanted[name])


def test_hooks_on_saved_tensors():
    given, upstream = operands()
    again, _ = operands()
    kinds, packed = set(), []

    def pack(x):
        kinds.add(type(x))
        packed.append(x.to("cpu", copy=True))
        return packed[-1]

    with autocast():
        _, wanted = gradients(given, upstream)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.to(torch_name())):
            out = linear_logp(**again)
    out.backward(upstream)
    assert kinds <= {torch.Tensor, torch.nn.Parameter}
    assert torch.bfloat16 in {x.dtype for x in packed if x.shape == given["weight"].shape}
    for name in NAMES:
        assert same_bits(again[name].grad, wanted[name])


@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
@pytest.mark.parametrize("inside", [True, False])
def test_compile(inside):
    """A graph break, as outside of autocast; the call itself and layers beside it are cast."""

    def loss_of(hidden, weight, bias, target):
        with autocast(enabled=inside):
            logits = linear(torch.tanh(hidden), weight)
            logp = linear_logp(torch.tanh(hidden), weight, target, bias)
        return logp.sum() + logits.float().logsumexp(-1).sum()

    found = []
    for function in (loss_of, torch.compile(loss_of, backend="eager")):
        given, _ = operands()
        with autocast():
            function(**given).backward()
        found.append(given)
    torch._dynamo.reset()
    for name in NAMES:
        assert found[1][name].grad.dtype == torch.float32
        assert same_bits(found[1][name].grad, found[0][name].grad)


def test_a_second_derivative_is_refused():
    given, upstream = operands()
    with autocast():
        out = linear_logp(**given)
    (grad,) = torch.autograd.grad(out, given["weight"], upstream, create_graph=True)
    with pytest.raises(rlk.Unsupported, match="one derivative"):
        grad.sum().backward()


@pytest.mark.parametrize(("scale", "is_finite"), [(2.0**16, True), (2.0**126, False)])
def test_grad_scaler(scale, is_finite):
    given, upstream = operands()
    _, wanted = gradients(
        {n: x.detach().requires_grad_(n in NAMES) for n, x in given.items()}, upstream
    )
    weight = given["weight"]
    before = weight.detach().clone()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(torch_name(), init_scale=scale)
    with autocast("float16"):
        loss = (linear_logp(**given) * upstream).sum() * (1.0 if is_finite else 64.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == (scale if is_finite else scale / 2)
    if not is_finite:
        assert not torch.isfinite(weight.grad).all()
        assert same_bits(weight, before)
        return
    step = before - weight.detach()
    assert (step - wanted["weight"]).abs().max() < 0.01 * wanted["weight"].abs().max()


def test_explain_says_what_a_call_would_run():
    given, _ = operands()
    for backward in (False, True):
        plain = rlk.jit.explain(linear_logp, **given, backward=backward)
        assert "x=f32" in plain.kernel
        with autocast():
            found = rlk.jit.explain(linear_logp, **given, backward=backward)
        assert "x=bf16" in found.kernel
        found = rlk.jit.explain(linear_logp, **given, compute_dtype="float16", backward=backward)
        assert "x=f16" in found.kernel or "x=fp16" in found.kernel


def test_errors():
    given, _ = operands(hidden="bfloat16")
    with pytest.raises(rlk.InvalidArgument, match="weight: expected dtype bfloat16"):
        linear_logp(**given)
    for dtype in ("float64", torch.float64, "half", 16, np.float16, torch.int8):
        with pytest.raises(
            rlk.InvalidArgument,
            match=r"^linear_logp: compute_dtype: expected None, bfloat16, float16 or float32, got ",
        ):
            linear_logp(**given, compute_dtype=dtype)
    with (
        autocast(),
        pytest.raises(rlk.InvalidArgument, match="weight: expected dtype bfloat16"),
    ):
        linear_logp(**{**given, "weight": given["weight"].detach().double()})
    p = problem(*SIZES)
    with pytest.raises(rlk.InvalidArgument, match="expected None where hidden is no torch tensor"):
        linear_logp(*p.operands, compute_dtype="float16")


def test_numpy_arrays_are_taken_as_they_are():
    if torch_name() != "cpu":
        pytest.skip("NumPy arrays are read on the CPU")
    p = problem(*SIZES)
    wanted = linear_logp(*p.operands)
    with autocast():
        assert same_bits(linear_logp(*p.operands), wanted)
        given = leaves(upload(p), ())
        found = rlk.jit.linear_logp_backward(tensor(p.upstream), **given)
    assert found.weight.dtype == torch.float32
