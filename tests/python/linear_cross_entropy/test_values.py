# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy against torch's own in float64: values, gradients, options, errors."""

import itertools
import math

import numpy as np
import pytest
import ranks
from devices import on_cpu_alone
from linear_losses import HEAD, draw, logits_of
from operator_cases import fresh_compiler  # noqa: F401
from tensors import tensor, torch
from torch.nn import functional

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]
on_device = pytest.mark.usefixtures("device")

TOLERANCE = {"float32": 5e-5, "bfloat16": 2e-2, "float16": 4e-3}  # of the largest entry
OF_LOGITS = ("temperature", "softcap", "logit_scale")


def loss_of(b, **options):
    return rlk.jit.linear_cross_entropy(b.hidden, b.weight, b.target, **{"bias": b.bias, **options})


def exact(b, reduction="mean", ignore_index=-100, mask=None, lse_square_scale=0.0, **options):
    """In float64 on the host: the loss, and the head's leaves."""
    of_logits = {name: options.pop(name) for name in OF_LOGITS if name in options}
    count = options.pop("global_tokens", None)
    b = b.map(lambda x: x.detach().cpu())
    head = [x.double().requires_grad_() for x in b.head]
    z = logits_of(head, of_logits)
    active = b.target != ignore_index
    if mask is not None:
        active = active & (mask.cpu() != 0)
    target = torch.where(active, b.target, -100)
    each = functional.cross_entropy(z.movedim(-1, 1), target, reduction="none", **options)
    each = each + lse_square_scale * z.logsumexp(-1) ** 2
    each = torch.where(active, each, 0)
    if reduction == "none":
        return each, head
    return each.sum() / (1 if reduction == "sum" else count or active.sum()), head


def check(b, dtype="float32", **options):
    b = b.leaves()
    found, (want, head) = loss_of(b, **options), exact(b, **options)
    assert found.dtype == torch.float32
    assert found.shape == want.shape
    size = float(want.detach().abs().max())
    assert (found.detach().cpu().double() - want.detach()).abs().max() <= 1e-5 * size + 1e-6
    upstream = torch.linspace(-1, 1, want.numel()).reshape(want.shape) if want.ndim else None
    if upstream is None:
        upstream = torch.tensor(-0.5)
    got = torch.autograd.grad(found, b.head, upstream.to(found.device))
    assert [x.dtype for x in got] == [x.dtype for x in b.head]
    for one, exact_one in zip(got, torch.autograd.grad(want, head, upstream.double()), strict=True):
        size = float(exact_one.abs().max())
        assert (one.cpu().double() - exact_one).abs().max() <= TOLERANCE[dtype] * size


EXTRAS = [{}, {"label_smoothing": 0.1}, {"lse_square_scale": 1e-3}]
EXTRAS.append(EXTRAS[1] | EXTRAS[2])


OPTION_SETS = [
    {},
    {"temperature": 0.7},
    {"logit_scale": -0.25, "temperature": 2.0},
    {"ignore_index": 3},
]
CAPPED = {"softcap": 3.0, "logit_scale": 0.5}  # not with label smoothing


@on_device
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "options",
    [
        *(options | extra for options in OPTION_SETS for extra in EXTRAS),
        CAPPED,
        CAPPED | EXTRAS[2],
    ],
    ids=str,
)
def test_against_torch_in_float64(options, reduction):
    check(draw(), reduction=reduction, **options)


@on_device
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_sixteen_bits(reduction, extra, dtype):
    check(draw(dtype=dtype), dtype, reduction=reduction, **extra)


@on_device
@pytest.mark.parametrize("shape", [(1,), (17,), (2, 3, 4), (0,), (3, 0)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_shapes(reduction, shape):
    b = draw((max(shape[0], 1), *shape[1:]))
    b = b.but(hidden=b.hidden[: shape[0]], target=b.target[: shape[0]], bias=None)
    if b.target.numel():
        return check(b, reduction=reduction, label_smoothing=0.1)
    b = b.leaves()
    loss = loss_of(b, reduction=reduction, label_smoothing=0.1)
    assert loss.shape == (shape if reduction == "none" else ())
    assert loss.sum() == 0
    assert not any(grad.any() for grad in torch.autograd.grad(loss.sum(), b.head))


@on_device
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_masked_and_ignored_tokens_may_hold_anything(reduction, extra):
    b = draw()
    off = ~b.loss_mask
    heat = torch.linspace(0.5, 2, 54, device=off.device).reshape(6, 9)
    check(b, reduction=reduction, mask=b.loss_mask, **extra)
    options = {"reduction": reduction, "temperature": heat, **extra}
    wild = b.but(hidden=b.hidden.masked_fill(off[..., None], torch.nan))
    masked = wild.but(target=wild.target.masked_fill(off, 2**40)).leaves()
    ignored = wild.but(target=wild.target.masked_fill(off, -100)).leaves()
    b = b.leaves()
    wild_heat = {**options, "temperature": heat.masked_fill(off, torch.inf)}
    found = [
        loss_of(b, mask=b.loss_mask, **options),
        loss_of(masked, mask=b.loss_mask.to(torch.uint8), **wild_heat),
        loss_of(ignored, **wild_heat),
    ]
    grads = [
        torch.autograd.grad(loss.sum(), x.head)
        for loss, x in zip(found, (b, masked, ignored), strict=True)
    ]
    for loss, grad in zip(found[1:], grads[1:], strict=True):
        assert torch.equal(loss, found[0])
        assert all(torch.equal(x, y) for x, y in zip(grad, grads[0], strict=True))
    assert not grads[0][0][off].any()


@on_device
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_no_token_that_counts(extra):
    b = draw()
    b = b.but(target=torch.full_like(b.target, -100)).leaves()
    for reduction in ("mean", "sum", "none"):
        loss = loss_of(b, reduction=reduction, **extra)
        assert not loss.any()
        assert not any(grad.any() for grad in torch.autograd.grad(loss.sum(), b.head))


@on_device
def test_the_order_of_tokens_changes_no_bit():
    b = draw(bias=False).leaves()
    order = torch.randperm(54, generator=torch.Generator().manual_seed(0)).to(b.hidden.device)
    flat = b.but(
        hidden=b.hidden.detach().reshape(54, -1)[order].requires_grad_(),
        target=b.target.reshape(-1)[order],
    )
    for extra in EXTRAS:
        loss, want = loss_of(flat, **extra), loss_of(b, **extra)
        assert torch.equal(loss, want)
        (got,), (grad,) = (torch.autograd.grad(x, [y.hidden]) for x, y in ((loss, flat), (want, b)))
        assert torch.equal(got, grad.reshape(54, -1)[order])


@on_device
@pytest.mark.parametrize("kind", [int, "tensor"])
def test_the_mean_over_all_micro_batches(kind):
    """As transformers' num_items_in_batch: the sum of the parts is the whole."""
    b = draw().leaves()
    count = 54 if kind is int else tensor(np.int64(54))
    check(draw(), global_tokens=100)
    whole = torch.autograd.grad(loss_of(b), b.hidden)[0]
    parts = [b.but(hidden=b.hidden[i : i + 2], target=b.target[i : i + 2]) for i in (0, 2, 4)]
    losses = [loss_of(part, global_tokens=count) for part in parts]
    assert torch.equal(torch.autograd.grad(sum(losses), b.hidden)[0], whole)
    assert sum(x.item() for x in losses) == pytest.approx(loss_of(b).item(), rel=1e-6)


@on_device
def test_a_tied_weight():
    """The head's weight embeds the tokens as well."""
    b = draw(bias=False).leaves()
    tokens = b.target.roll(1)

    def both(weight, head):
        return head(functional.embedding(tokens, weight) * 3, weight)

    found = both(b.weight, lambda h, w: loss_of(b.but(hidden=h, weight=w), label_smoothing=0.1))
    weight = b.weight.detach().double().requires_grad_()
    want = both(
        weight,
        lambda h, w: functional.cross_entropy(
            (h @ w.T).flatten(0, 1), b.target.flatten(), label_smoothing=0.1
        ),
    )
    (got,), (grad,) = torch.autograd.grad(found, b.weight), torch.autograd.grad(want, weight)
    assert (got - grad).abs().max() <= 5e-5 * grad.abs().max()


@on_device
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_bfloat16_with_masters_in_float32(extra):
    b = draw()
    rounded = b.map(lambda x: x.bfloat16().float() if x.is_floating_point() else x)
    _, head = want = exact(rounded, **extra)
    grads = torch.autograd.grad(want[0], head)
    b = b.leaves()
    for loss in (
        loss_of(b, compute_dtype="bfloat16", **extra),
        autocast(lambda: loss_of(b, **extra)),
    ):
        assert loss.item() == pytest.approx(want[0].item(), rel=5e-3)
        found = torch.autograd.grad(loss, b.head)
        assert all(x.dtype == torch.float32 for x in found)
        for got, grad in zip(found, grads, strict=True):
            assert (got.cpu() - grad).abs().max() <= 2e-2 * grad.abs().max()


def autocast(call):
    with torch.autocast(draw().hidden.device.type, dtype=torch.bfloat16):
        return call()


@on_device
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_grad_scale_multiplies_gradients_alone(reduction, extra):
    b = draw().leaves()
    want = torch.autograd.grad((loss_of(b, reduction=reduction, **extra) * -3).sum(), b.head)
    for scale in (-3, tensor(np.float32(-3))):
        loss = loss_of(b, reduction=reduction, grad_scale=scale, **extra)
        assert torch.equal(loss, loss_of(b, reduction=reduction, **extra))
        found = torch.autograd.grad(loss.sum(), b.head)
        assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))


@on_device
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_the_weights_gradient_is_accumulated(extra):
    b = draw().leaves()
    (want,) = torch.autograd.grad(loss_of(b, **extra), [b.weight])
    found = torch.zeros(b.weight.shape, device=b.weight.device)
    loss_of(b, accumulate_into=found, **extra).backward()
    assert b.weight.grad is None
    assert (found - want).abs().max() <= 1e-6 * want.abs().max()
    b.weight.main_grad = torch.zeros_like(found)
    loss_of(b, accumulate_into="main_grad", **extra).backward()
    assert torch.equal(b.weight.main_grad, found)


@on_device
def test_an_adapter_on_the_head():
    b = draw(bias=False)
    a, up = (torch.full(shape, 0.1, device=b.hidden.device) for shape in ((4, 24), (210, 4)))
    a, up = a.requires_grad_(), up.requires_grad_()
    found = loss_of(b, lora=(a, up, 0.5), lse_square_scale=1e-3)
    merged = b.but(weight=b.weight + 0.5 * up @ a)
    want = loss_of(merged, lse_square_scale=1e-3)
    assert found.item() == pytest.approx(want.item(), rel=1e-5)
    pairs = zip(*(torch.autograd.grad(x, (a, up)) for x in (found, want)), strict=True)
    assert all((x - y).abs().max() <= 1e-4 * y.abs().max() for x, y in pairs)


@on_cpu_alone
def test_arrays_of_numpy_and_no_gradient(device):
    for extra, reduction in itertools.product(EXTRAS, ("mean", "sum", "none")):
        b = draw()
        want = loss_of(b.leaves(), reduction=reduction, **extra).detach()
        found = loss_of(b.map(lambda x: x.numpy()), reduction=reduction, **extra)
        assert found.dtype == np.float32
        assert torch.equal(torch.as_tensor(found), want)
        with torch.inference_mode():
            assert torch.equal(loss_of(b, reduction=reduction, **extra), want)


WRONG = [
    ({"reduction": "avg"}, "reduction", "mean, sum, none"),
    ({"reduction": None}, "reduction", "mean, sum, none"),
    ({"label_smoothing": 1.5}, "label_smoothing", "from 0 to 1"),
    ({"label_smoothing": "a"}, "label_smoothing", "from 0 to 1"),
    *(
        ({name: value}, name, "a finite number of float32")
        for name in ("lse_square_scale", "grad_scale")
        for value in (math.nan, -math.inf, 1e39)
    ),
    ({"global_tokens": 3, "reduction": "sum"}, "global_tokens", "where reduction is 'sum', got 3"),
    ({"global_tokens": 0}, "global_tokens", "above 0"),
    ({"grad_scale": None}, "grad_scale", "number"),
    ({"mask": torch.ones(3)}, "mask", "shape"),
    ({"bias": torch.ones(3)}, "bias", "shape"),
    ({"temperature": -1.0}, "temperature", "above 0"),
    ({"vocab_size": 3}, "vocab_size", "group"),
    ({"workspace_mib": -1}, "workspace_mib", "from 0 to 1048576, or None, got -1"),
]


@on_cpu_alone
@pytest.mark.parametrize(("options", "name", "expected"), WRONG, ids=str)
def test_errors_name_the_argument(device, options, name, expected):
    for b in (draw(), draw().leaves()):
        with pytest.raises(rlk.InvalidArgument, match=f"^linear_cross_entropy: {name}: ") as caught:
            loss_of(b, **options)
        assert expected in str(caught.value)


@on_cpu_alone
@pytest.mark.parametrize("name", ["hidden", "target"])
def test_no_tensor_at_all(device, name):
    for b in (draw(), draw().leaves()):
        with pytest.raises(rlk.InvalidArgument, match=f"^linear_cross_entropy: {name}: "):
            loss_of(b.but(**{name: None}))


@on_cpu_alone
def test_what_label_smoothing_does_not_go_with(device):
    b = draw()
    lora = (torch.zeros(4, 24), torch.zeros(210, 4), 1.0)
    for name, value in (("softcap", 3.0), ("lora", lora), ("group", "any")):
        with pytest.raises(rlk.Unsupported, match=f"^linear_cross_entropy: {name}: "):
            loss_of(b, label_smoothing=0.1, **{name: value})


@on_device
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
def test_a_compiled_call_is_one_graph_of_the_same_bits():
    b, scale = draw().leaves(), tensor(np.float32(4))

    def losses(*head):
        own = b.but(**dict(zip(HEAD, head, strict=True)))
        mean = loss_of(own, grad_scale=scale, label_smoothing=0.1, lse_square_scale=1e-3)
        return mean + loss_of(own, reduction="none").square().sum() + loss_of(own, global_tokens=3)

    want = losses(*b.head)
    found = torch.compile(losses, fullgraph=True, backend="aot_eager")(*b.head)
    assert torch.equal(found, want)
    pairs = zip(*(torch.autograd.grad(x, b.head) for x in (found, want)), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


def work(kind, rank):
    """On each rank: the head cut among the ranks, then the tokens."""
    world = torch.distributed.group.WORLD
    b = draw(vocab=208, seed=3).map(lambda x: x.to(kind))
    own = slice(rank * 104, (rank + 1) * 104)
    part = b.but(weight=b.weight[own], bias=b.bias[own]).leaves()
    loss = loss_of(part, group=world, lse_square_scale=1e-3)
    found = {"tp": [loss.detach(), *torch.autograd.grad(loss, part.head)]}
    rows = slice(rank * 2, 2 + rank * 4)
    part = b.but(hidden=b.hidden[rows], target=b.target[rows]).leaves()
    loss = loss_of(part, loss_group=world, lse_square_scale=1e-3, label_smoothing=0.1)
    found["dp"] = [loss.detach(), *torch.autograd.grad(loss, part.head)]
    with pytest.raises(rlk.InvalidArgument, match=r"^linear_cross_entropy: loss_group: expected N"):
        loss_of(part, loss_group=world, reduction="none")
    return found


def test_ranks_that_share_the_head_or_the_batch(tmp_path):
    found = ranks.run("cpu", work, tmp_path)
    b = draw(vocab=208, seed=3).leaves()
    for name, axes, extra in (("tp", 1, {}), ("dp", 0, {"label_smoothing": 0.1})):
        loss = loss_of(b, lse_square_scale=1e-3, **extra)
        want = torch.autograd.grad(loss, b.head)
        assert all(torch.equal(one[name][0], loss) for one in found)
        if name == "tp":
            assert all(torch.equal(one[name][1], want[0]) for one in found)
        assert torch.equal(torch.cat([one[name][1 + axes] for one in found]), want[axes])
