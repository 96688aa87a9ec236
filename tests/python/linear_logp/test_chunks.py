# SPDX-License-Identifier: Apache-2.0
"""Backwards over chunks of rows: the bits of one backward over all, whatever the chunks."""

import numpy as np
import pytest
from chunks import GARBAGE, at_once, by_chunks, call_of, forward, garbage, memory_of, upstream_of
from devices import torch_name
from problems import DTYPES
from tensors import tensor, torch

import rlk
from rlk import _core

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]


def has_chunks(dtype):
    if torch_name() == "cpu":
        return True
    return dtype == "bfloat16" and torch.cuda.get_device_capability() == (9, 0)


def need_chunks(dtype):
    if not has_chunks(dtype):
        pytest.skip("no chunks of this dtype here")


PATTERNS = (
    "none",
    "half",
    "one chunk",
    "the first chunk",
    "the last chunk",
    "all but 3",
    "all but 3 at the end",
    "5 of each chunk",
    "all but 5 of each chunk",
    "one of each chunk",
    "all",
)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", [128, 256, 384])
def test_rows_without_a_gradient(size, pattern):
    need_chunks("bfloat16")
    call = call_of(grad_output=upstream_of(pattern, size))
    by_chunks(call, size).expect(at_once(call))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sums", [False, True])
def test_dtypes(dtype, sums):
    need_chunks(dtype)
    call = call_of(dtype, grad_output=upstream_of("half", 256))
    wanted = at_once(call, sums)
    by_chunks(call, 256, sums).expect(wanted)
    if sums:
        by_chunks(call, 256, sums, weight_is_sums=True).expect(wanted)


@pytest.mark.parametrize("rows", [1, 3, 127, 128, 129, 192, 257, 383, 385, 640, 1023])
def test_numbers_of_rows(rows):
    need_chunks("bfloat16")
    call = call_of(sizes=(rows, 40, 300))
    wanted = at_once(call)
    for size in (128, 256, 1024):
        by_chunks(call, size).expect(wanted)
    call["grad_output"][::3] = 0
    wanted = at_once(call)
    for size in (128, 256, 1024):
        by_chunks(call, size).expect(wanted)


@pytest.mark.parametrize("bias", [None, "float32", "same"])
def test_masks_and_ignored_ids(bias):
    need_chunks("bfloat16")
    rng = np.random.default_rng(0)
    call = call_of(bias=bias, mask=tensor(rng.random(1000) < 0.7))
    call["target"][tensor(rng.random(1000) < 0.3)] = -100
    call["hidden"][~call["mask"]] = GARBAGE
    call["grad_output"][5:300] = 0
    wanted = at_once(call)
    assert not wanted.hidden.isnan().any()
    for size in (128, 384):
        by_chunks(call, size).expect(wanted)


def test_options_and_the_gradient_of_lse():
    need_chunks("bfloat16")
    rng = np.random.default_rng(0)
    call = call_of(logit_scale=0.75, temperature=tensor(rng.random(1000) + 0.5, "float32"))
    call["grad_lse"] = upstream_of("half", 256)
    call["grad_output"][::5] = 0
    by_chunks(call, 256).expect(at_once(call))


@pytest.mark.parametrize(
    ("dim", "vocab"), [(7, 1), (8, 17), (41, 1000), (64, 4000), (200, 3331), (16, 50257)]
)
def test_sizes(dim, vocab):
    need_chunks("bfloat16")
    call = call_of(sizes=(500, dim, vocab))
    call["grad_output"][::2] = 0
    by_chunks(call, 128).expect(at_once(call))


def test_hidden_states_of_other_strides():
    need_chunks("bfloat16")
    call = call_of()
    wide = torch.cat([call["hidden"], call["hidden"]], 1)
    call["hidden"] = wide[:, 3:43]
    by_chunks(call, 256).expect(at_once(call))
    call["hidden"] = wide.t().contiguous().t()[:, :40]
    by_chunks(call, 256).expect(at_once(call))


def test_a_gradient_that_is_added():
    need_chunks("bfloat16")
    call = call_of()
    own = torch.randn(call["weight"].shape, device=torch_name())
    wanted, found = own.clone(), own.clone()
    first, _ = forward(call)
    _core.linear_logp_backward({**first, "accumulate_into": wanted}, False, True, False)
    by_chunks(call, 256, accumulate_into=found)
    assert not torch.equal(found, own)
    assert torch.equal(found, wanted)


def test_a_row_of_nan_and_a_target_at_minus_infinity():
    need_chunks("bfloat16")
    call = call_of()
    call["bias"][call["target"][0]] = -torch.inf
    wanted = at_once(call)
    by_chunks(call, 256).expect(wanted)
    call["hidden"][170] = GARBAGE
    wanted, found = at_once(call), by_chunks(call, 256)
    for name in ("hidden", "weight", "bias"):
        got, want = getattr(found, name), getattr(wanted, name)
        assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0)), name


def test_memory_is_told_before_it_is_made():
    call = call_of(sizes=(5, 12, 1153))
    if not has_chunks("bfloat16"):
        assert _core.linear_logp_chunk_memory(call, 256) is None
        return
    on_cpu = torch_name() == "cpu"
    memory = _core.linear_logp_chunk_memory(call, 256)
    assert memory["weight_sums"] == ((1153, 12), "float32")
    assert memory["chunk_state"] == ((2,), "int64")
    if not on_cpu:
        assert memory["chunk_hidden"] == ((64 + 256, 16), "bfloat16")
        assert memory["bias_sums"] == ((8, 1153), "float32")
    shape, dtype = memory["kept"]
    assert dtype == ("float32" if on_cpu else "bfloat16")
    assert shape[0] == (256 if on_cpu else 64 + 256)
    assert shape[1] >= 1153
    assert "bias_sums" not in _core.linear_logp_chunk_memory({**call, "bias": None}, 256)


@pytest.mark.parametrize(
    "options", [{"softcap": 3.0}, {"return_entropy": True, "entropy_grad": True}]
)
def test_options_that_keep_nothing(options):
    need_chunks("bfloat16")
    call = call_of()
    memory = memory_of(call, 1024)
    assert _core.linear_logp_chunk_memory({**call, **options}, 1024) is None
    with pytest.raises(rlk.Unsupported, match=r"^linear_logp: chunk: expected neither softcap"):
        forward({**call, **options}, keep=True, kept=memory["kept"])


def one_chunk(call, change=None, rows=1000, needs=(True, True, True), last=True):
    """A backward whose chunk or gradients `change` alters."""
    memory = memory_of(call, rows)
    kept = memory.pop("kept")
    call, (call["kept"], call["kept_target"]) = forward(call, keep=True, kept=kept)
    into = {name: torch.empty_like(call[name]) for name in ("hidden", "weight", "bias")}
    if not last:
        into["weight"] = into["bias"] = None
    chunk = {**memory, "is_first": True, "is_last": last}
    if change is not None:
        change(call, chunk, into)
    return _core.linear_logp_backward(call, *needs, chunk=chunk, into=(*into.values(),))


def put(where, name, value):
    def change(*given):
        given[where][name] = value(given[where][name])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(0, "kept", lambda _: None), "kept: expected a tensor, got None"),
        (put(0, "kept", lambda kept: kept[:, 1:]), "kept: expected contiguous"),
        (put(0, "kept", lambda kept: kept[:999]), "kept: expected memory of"),
        (put(1, "chunk_state", lambda _: None), "chunk_state: expected a tensor, got None"),
        (put(1, "chunk_state", lambda state: state[:1]), "chunk_state: expected contiguous int64"),
        (put(1, "weight_sums", lambda _: None), "weight_sums: expected a tensor, got None"),
        (put(1, "weight_sums", lambda sums: sums.half()), "weight_sums: expected contiguous float"),
        (put(1, "bias_sums", lambda sums: sums[:1]), "bias_sums: expected contiguous float32"),
        (put(1, "bias_sums", lambda _: None), "bias_sums: expected a tensor, got None"),
        (put(2, "hidden", lambda _: None), r"into\[0\]: expected a tensor, got None"),
        (put(2, "hidden", lambda grad: grad[1:]), r"into\[0\]: expected a contiguous tensor of"),
        (put(2, "weight", lambda grad: grad.half()), r"into\[1\]: expected a contiguous tensor of"),
        (put(2, "bias", lambda _: None), r"into\[2\]: expected a tensor, got None"),
    ],
)
def test_errors(change, message):
    need_chunks("bfloat16")
    with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {message}"):
        one_chunk(call_of(), change)


def test_errors_of_a_chunk_that_is_not_the_last():
    need_chunks("bfloat16")
    with pytest.raises(rlk.InvalidArgument, match="hidden: expected a multiple of 128 rows in a"):
        one_chunk(call_of(), last=False)
    with pytest.raises(rlk.InvalidArgument, match=r"into\[2\]: expected None, got a tensor"):
        one_chunk(
            call_of(sizes=(256, 40, 300)),
            lambda call, _, into: into.update(bias=torch.empty_like(call["bias"])),
            last=False,
        )
    with pytest.raises(rlk.InvalidArgument, match="bias_sums: expected None, got a tensor"):
        one_chunk(call_of(), lambda *given: given[2].update(bias=None), needs=(True, True, False))


# --- Gradients that the caller has made.


def poisoned(call):
    return tuple(garbage(call[name]) for name in ("hidden", "weight", "bias"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_into_the_caller_s_memory(dtype):
    call, _ = forward(call_of(dtype))
    call["grad_output"][::3] = 0
    wanted = _core.linear_logp_backward(call, True, True, True)
    into = poisoned(call)
    found = _core.linear_logp_backward(call, True, True, True, into=into)
    for got, want, given in zip(found, wanted, into, strict=True):
        assert got is given
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upstream", ["none", "half", "all"])
def test_only_unless_the_factor_is_one(dtype, upstream):
    call, _ = forward(call_of(dtype))
    call["grad_output"] = 0.5 * upstream_of(upstream, 128)
    wanted = _core.linear_logp_backward(call, True, True, True)
    for factor in (1.0, 0.5, 0.0, GARBAGE):
        into = poisoned(call)
        unless_one = torch.tensor([factor], device=torch_name())
        _core.linear_logp_backward(call, True, True, True, into=into, unless_one=unless_one)
        for got, want in zip(into, wanted, strict=True):
            if factor == 1.0:
                assert got.isnan().all()
            else:
                assert torch.equal(got, want)


def test_errors_of_the_factor():
    call, _ = forward(call_of())
    for wrong in (torch.ones(2), torch.ones(1).double()):
        factor = wrong.to(torch_name())
        with pytest.raises(rlk.InvalidArgument, match="unless_one: expected one float32 on hidden"):
            _core.linear_logp_backward(
                call, True, True, True, into=poisoned(call), unless_one=factor
            )
