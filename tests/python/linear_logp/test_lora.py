# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter on a frozen weight, which is not merged: values, gradients, what is kept of it."""

import itertools

import pytest
from devices import torch_name
from problems import DTYPES
from reference import same_bits
from tensors import make, torch
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]

ROWS, DIM, VOCAB, RANK, SCALE = (3, 5), 24, 310, 6, 2.0
NAMES = ("hidden", "a", "b", "bias")
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def operands(dtype="float32", adapter=None, needs=NAMES, rows=ROWS, rank=RANK, seed=0):
    p = make(rows, DIM, VOCAB, dtype, bias="float32", seed=seed)
    drawn = torch.Generator().manual_seed(seed)
    kind = {"device": torch_name(), "dtype": getattr(torch, adapter or dtype)}
    given = {
        "hidden": p.hidden,
        "a": (torch.randn(rank, DIM, generator=drawn) / DIM**0.5).to(**kind),
        "b": (torch.randn(VOCAB, rank, generator=drawn) / rank**0.5).to(**kind),
        "bias": p.bias,
    }
    given = {name: t.detach().clone().requires_grad_(name in needs) for name, t in given.items()}
    return given | {"weight": p.weight, "target": p.target}, p.upstream


def call(given, **options):
    own = {name: given[name] for name in ("hidden", "weight", "target", "bias")}
    return rlk.jit.linear_logp(**own, lora=(given["a"], given["b"], SCALE), **options)


def exact(given, adapter_dtype, **options):
    """(outputs, leaves) in float64, of what is stored."""
    leaf = {n: given[n].detach().double().requires_grad_() for n in NAMES}
    kind = given["hidden"].dtype
    a, b = (leaf[n] + (given[n].detach().to(kind).double() - leaf[n].detach()) for n in ("a", "b"))
    z = leaf["hidden"] @ given["weight"].double().T + leaf["bias"]
    z = z + SCALE * (leaf["hidden"] @ a.T) @ b.T
    if "softcap" in options:
        z = options["softcap"] * (z / options["softcap"]).tanh()
    heat = torch.as_tensor(options.get("temperature", 1.0), device=z.device)
    logs = (z / (heat[..., None] if heat.dim() else heat)).log_softmax(-1)
    logp = logs.gather(-1, given["target"].clamp(min=0)[..., None])[..., 0]
    return (logp, -(logs.exp() * logs).sum(-1), logs), leaf


def expect_close(got, want, dtype, what=""):
    rtol = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 8e-3}[dtype]
    error = (got.double() - want).norm() / want.norm()
    assert error < rtol, (what, float(error))


def expect_gradients(given, leaf, dtype, needs=NAMES):
    for name in NAMES:
        if name in needs:
            assert given[name].grad.dtype == given[name].dtype
            expect_close(given[name].grad, leaf[name].grad, dtype, name)
        else:
            assert given[name].grad is None


@pytest.mark.parametrize("adapter", [None, "float32"])
@each_dtype
def test_values_and_gradients(dtype, adapter):
    heat = torch.linspace(0.5, 1.5, 15, device=torch_name()).reshape(ROWS)
    for options in ({}, {"temperature": heat}, {"softcap": 3.0}):
        given, upstream = operands(dtype, adapter)
        logp = call(given, **options)
        (want, _, _), leaf = exact(given, adapter, **options)
        # No worse than logits that are never rounded to 16 bits.
        torch.testing.assert_close(logp.double(), want, rtol=1e-5, atol=3e-5)
        logp.backward(upstream)
        want.backward(upstream.double())
        expect_gradients(given, leaf, dtype)


def test_nothing_of_the_adapter_is_rounded_away():
    given, _ = operands("bfloat16")
    (want, _, _), _ = exact(given, None)
    own = (given["hidden"].float() @ given["a"].float().T * SCALE).to(torch.bfloat16)
    rows = torch.cat([given["hidden"], own], -1).detach()
    matrix = torch.cat([given["weight"], given["b"]], -1).detach()
    rounded = rlk.jit.linear_logp(rows, matrix, given["target"], given["bias"].detach())
    error = (call(given) - want).abs().max()
    assert error < (rounded - want).abs().max() / 50


@pytest.mark.parametrize(
    "needs", [n for k in range(4) for n in itertools.combinations(NAMES, k)], ids="-".join
)
def test_only_the_asked_gradients_are_there(needs):
    given, upstream = operands("bfloat16", needs=needs)
    logp = call(given)
    assert logp.requires_grad == bool(needs)
    if not needs:
        return
    logp.backward(upstream)
    (want, _, _), leaf = exact(given, None)
    want.backward(upstream.double())
    expect_gradients(given, leaf, "bfloat16", needs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_outputs(dtype):
    given, upstream = operands(dtype)
    out = call(given, return_entropy=True, return_lse=True, return_stats=True)
    (logp, entropy, logs), leaf = exact(given, None)
    torch.testing.assert_close(out.entropy.double(), entropy, rtol=1e-5, atol=1e-4)
    assert torch.equal(out.stats.argmax, logs.argmax(-1))
    (out.log_prob * upstream + 0.3 * out.entropy).sum().backward()
    (logp * upstream + 0.3 * entropy).sum().backward()
    expect_gradients(given, leaf, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_inactive_rows_may_hold_anything(dtype):
    given, upstream = operands(dtype)
    mask = torch.ones(ROWS, device=torch_name())
    mask[1] = 0
    given["target"][0, 0] = -100
    inactive = (mask == 0) | (given["target"] == -100)
    (want, _, _), leaf = exact(given, None)
    (want * ~inactive).backward(upstream.double())
    with torch.no_grad():
        given["hidden"][inactive] = torch.nan
    logp = call(given, mask=mask)
    assert not logp[inactive].any()
    logp.backward(upstream)
    assert not given["hidden"].grad[inactive].any()
    expect_gradients(given, leaf, dtype)


@pytest.mark.parametrize("rows", [(VOCAB,), (), (0, 5), (1, VOCAB)])
def test_any_number_of_rows(rows):
    given, upstream = operands(rows=rows)
    call(given).backward(upstream)
    (want, _, _), leaf = exact(given, None)
    want.backward(upstream.double())
    if want.numel():
        return expect_gradients(given, leaf, "float32")
    assert not any(given[name].grad.any() for name in NAMES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_rows_in_parts(monkeypatch, dtype):
    from rlk._ops import torch_lora

    for options in ({}, {"ignore_index": None}):
        found = []
        for kept in (1, 1 << 27):  # 256 rows at a time, and all
            monkeypatch.setattr(torch_lora, "_KEPT_LOGITS", kept)
            given, upstream = operands(dtype, rows=(700,))
            mask = torch.arange(700, device=torch_name()) % 3 != 0
            call(given, mask=mask, temperature=mask + 0.5, **options).backward(upstream)
            found.append(given)
        for name in NAMES:
            one, other = (given[name].grad for given in found)
            close = 1e-5 if dtype == "float32" else 1e-2
            torch.testing.assert_close(one, other, rtol=close, atol=close)
        assert same_bits(found[0]["hidden"].grad, found[1]["hidden"].grad)


def test_an_entropy_that_was_said_to_have_a_gradient_and_has_none():
    """What entropy_grad says is of the call, not of the forwards that its backward makes."""
    found = []
    for said in (False, True):
        given, upstream = operands()
        out = call(given, return_entropy=True, entropy_grad=said)
        (out.log_prob * upstream).sum().backward()
        found.append([given[name].grad for name in NAMES])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_row_has_its_bits_in_every_batch():
    given, _ = operands("bfloat16", needs=())
    whole = call(given)
    one = {**given, "hidden": given["hidden"][1, 2:3], "target": given["target"][1, 2:3]}
    assert same_bits(call(one), whole[1, 2:3])
    with torch.no_grad():
        assert same_bits(call(given), whole)


def test_an_adapter_of_zeros_changes_nothing():
    given, _ = operands("bfloat16", needs=())
    given["b"].zero_()
    want = rlk.jit.linear_logp(*(given[n] for n in ("hidden", "weight", "target", "bias")))
    torch.testing.assert_close(call(given), want, rtol=1e-6, atol=1e-6)


def test_changes_in_place_are_seen():
    given, _ = operands(needs=())
    before = call(given)
    for name in ("b", "a", "weight"):
        given[name].mul_(1.5)
        (want, _, _), _ = exact(given, None)
        torch.testing.assert_close(call(given).double(), want, rtol=1e-5, atol=3e-5)
    assert not same_bits(call(given), before)


@pytest.mark.parametrize("name", ["a", "b", "weight"])
def test_a_change_before_the_backward_is_refused(name):
    given, upstream = operands()
    logp = call(given)
    with torch.no_grad():
        given[name].mul_(1.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.backward(upstream)


@pytest.mark.parametrize("has_room", [True, False])
def test_two_adapters_of_one_weight(has_room):
    given, upstream = operands()
    if has_room:
        rlk.jit.make_lora_room(given["weight"], RANK)
    other, _ = operands(seed=1)
    other = {**given, "a": other["a"], "b": other["b"]}
    want = torch.autograd.grad(call(given), [given[n] for n in NAMES], upstream)
    logp = call(given)
    call(other).backward(upstream)  # writes its own B where the first one's was
    for got, grad in zip(
        torch.autograd.grad(logp, [given[n] for n in NAMES], upstream), want, strict=True
    ):
        assert same_bits(got, grad)


@pytest.mark.parametrize("count", [True, False])
@pytest.mark.parametrize("has_room", [True, False])
def test_changes_between_calls_are_seen(has_room, count):
    given, upstream = operands("bfloat16")
    weight = given["weight"]
    if has_room:
        rlk.jit.make_lora_room(weight, RANK)
    for name in (None, "b", "a", "weight"):
        if name is not None:  # as trainers do that write to .data, which torch does not count
            (given[name].detach() if count else given[name].data).mul_(1.25)
        (want, _, _), leaf = exact(given, None)
        logp = call(given)
        torch.testing.assert_close(logp.double(), want, rtol=1e-5, atol=3e-5)
        for leaf_name in NAMES:
            given[leaf_name].grad = None
        logp.backward(upstream)
        want.backward(upstream.double())
        expect_gradients(given, leaf, "bfloat16")
    assert given["weight"] is weight


@each_dtype
def test_a_weight_with_room_is_not_copied(dtype):
    given, upstream = operands(dtype)
    want = torch.autograd.grad(call(given), [given[n] for n in NAMES], upstream)
    values, parameter = given["weight"].clone(), torch.nn.Parameter(given["weight"], False)
    rlk.jit.make_lora_room(parameter, RANK)
    given["weight"] = parameter
    assert same_bits(parameter, values)
    assert isinstance(parameter, torch.nn.Parameter)
    logp = call(given)
    assert logp.grad_fn.matrix.data_ptr() == parameter.data_ptr()
    for got, grad in zip(
        torch.autograd.grad(logp, [given[n] for n in NAMES], upstream), want, strict=True
    ):
        assert same_bits(got, grad)
    assert same_bits(parameter, values)
    # What has no room any more, or is for another rank, is copied.
    parameter.data = parameter.data.clone()
    assert call(given).grad_fn.matrix.data_ptr() != parameter.data_ptr()
    rlk.jit.make_lora_room(parameter, 4 * RANK)
    assert call(given).grad_fn.matrix.data_ptr() != parameter.data_ptr()


@pytest.mark.parametrize(
    ("weight", "rank", "message"),
    [
        (
            torch.zeros(3),
            2,
            r"weight: expected shape \[V, D\] of float32.*, got \[3\] of torch.float32",
        ),
        (
            torch.zeros(3, 2, dtype=torch.int8),
            2,
            r"weight: expected .*, got \[3, 2\] of torch.int8",
        ),
        (3, 2, "weight: expected a plain torch tensor, got int"),
        (torch.zeros(3, 2), 0, "rank: expected an int from 1 up, got 0"),
        (torch.zeros(3, 2), 1.5, "rank: expected an int from 1 up, got 1.5"),
    ],
)
def test_errors_of_room(weight, rank, message):
    with pytest.raises(rlk.InvalidArgument, match=f"^make_lora_room: {message}"):
        rlk.jit.make_lora_room(weight, rank)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint(use_reentrant):
    given, upstream = operands("bfloat16")
    leaves = [given[n] for n in NAMES]
    want = torch.autograd.grad(call(given), leaves, upstream)

    def part(*changed):
        return call({**given, **dict(zip(NAMES, changed, strict=True))})

    checkpoint(part, *leaves, use_reentrant=use_reentrant).backward(upstream)
    for leaf, grad in zip(leaves, want, strict=True):
        assert same_bits(leaf.grad, grad)


def test_a_second_derivative_is_refused():
    given, upstream = operands()
    (grad,) = torch.autograd.grad(call(given), given["a"], upstream, create_graph=True)
    with pytest.raises(rlk.Unsupported, match="one derivative"):
        grad.sum().backward()


def test_a_training_step_lowers_the_loss():
    given, _ = operands("bfloat16", "float32", needs=("a", "b"))
    with torch.no_grad():
        given["b"].zero_()
    optimizer = torch.optim.SGD([given["a"], given["b"]], lr=0.3)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = -call(given).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True), losses
    assert losses[-1] < losses[0] - 0.5, losses


def test_explain_names_the_wide_kernel():
    given, _ = operands("bfloat16")
    own = {name: given[name] for name in ("hidden", "weight", "target")}
    rlk.jit.configure(specialize=True)
    for backward in (False, True):
        lora = (given["a"], given["b"], SCALE)
        found = rlk.jit.explain(rlk.jit.linear_logp, **own, lora=lora, backward=backward)
        assert f"D={DIM + 16}" in found.kernel  # 24 columns, and 12 for u, up to 16 bytes


def changed(**values):
    given, _ = operands()
    return {**given, **values}


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (lambda a, b: (a, b), r"expected \(A, B, scale\), got 2 values"),
        (lambda a, b: a, r"expected \(A, B, scale\), got Tensor"),
        (lambda a, b: (a, b, "2"), "expected a finite number of float32 as scale, got '2'"),
        (lambda a, b: (a, b, float("nan")), "expected a finite number .* as scale, got nan"),
        (lambda a, b: (a, b, 1e39), r"expected a finite number .* as scale, got 1e\+39"),
        (lambda a, b: (a, b, 10**400), "expected a finite number .* as scale, got 1"),
        (
            lambda a, b: (a, b.cpu().detach().numpy(), 1),
            "expected a torch tensor as B, got ndarray",
        ),
        (lambda a, b: (a.T, b, 1), r"A of shape \[r, D\], here \[24, 24\], got \[24, 6\]"),
        (lambda a, b: (a[:0], b, 1), r"A of shape \[r, D\] with r at least 1, got \[0, 24\]"),
        (lambda a, b: (a, b.T, 1), r"B of shape \[V, r\], here \[310, 6\], got \[6, 310\]"),
        (lambda a, b: (a.double(), b, 1), "A of hidden's dtype or float32, got torch.float64"),
        (lambda a, b: (a[0], b, 1), r"A of shape \[r, D\].*, got \[24\]"),
    ],
)
def test_errors(lora, message):
    given, _ = operands()
    own = {name: given[name] for name in ("hidden", "weight", "target", "bias")}
    with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: lora: .*{message}"):
        rlk.jit.linear_logp(**own, lora=lora(given["a"], given["b"]))


@pytest.mark.parametrize("name", ["hidden", "weight", "bias"])
def test_arrays_beside_an_adapter(name):
    given, _ = operands()
    own = {name: given[name].detach() for name in ("hidden", "weight", "target", "bias")}
    own[name] = own[name].cpu().numpy()
    message = f"^linear_logp: {name}: expected a torch tensor with lora, got ndarray"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.linear_logp(**own, lora=(given["a"], given["b"], 1))


@each_dtype
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_rollout(dtype, mode):
    given, _ = operands(dtype)
    wanted = call(given)
    with mode():
        assert same_bits(call(given), wanted.detach())
        inside = {name: tensor.clone() for name, tensor in given.items()}
        found = call(inside, return_entropy=True)
    assert same_bits(found.log_prob, wanted.detach())
    assert not found.entropy.requires_grad


def test_what_does_not_go_together():
    given, _ = operands()
    into = torch.zeros_like(given["weight"])
    with pytest.raises(rlk.InvalidArgument, match=r"lora: expected None with accumulate_into"):
        call(given, accumulate_into=into)
    given["weight"].requires_grad_()
    with pytest.raises(
        rlk.InvalidArgument, match=r"lora: expected a weight that needs no gradient"
    ):
        call(given)
    with torch.no_grad():
        call(given)
    numpy = {n: given[n].detach().cpu().numpy() for n in ("hidden", "weight", "target")}
    with pytest.raises(rlk.InvalidArgument, match="hidden: expected a torch tensor"):
        rlk.jit.linear_logp(**numpy, lora=(given["a"], given["b"], 1.0))
    with pytest.raises(rlk.InvalidArgument, match="target: expected"):
        call(changed(target=given["target"].float()))
    for weight, message in (
        (given["weight"].detach()[:, 1:], r"shape \[V, 24\] .*, got \[310, 23\]"),
        (
            given["weight"].detach().half(),
            r"dtype torch.float32 .* \(as hidden\), got torch.float16",
        ),
    ):
        with pytest.raises(rlk.InvalidArgument, match=f"weight: expected {message}"):
            call(changed(weight=weight))
