# SPDX-License-Identifier: Apache-2.0
"""Losses from hidden states by chunks of rows: the bits of linear_logp and ppo_loss in a row."""

import devices
import pytest
import ranks
from devices import on_cpu_alone
from reference import same_bits
from tensors import torch
from torch.utils.checkpoint import checkpoint

import rlk
from rlk._ops import torch_linear_chunks

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("device", "generic")]
B, T, D, V = 6, 150, 16, 1500
WHOLE, PARTS = 100, 1  # MiB: one chunk; several, the last one of fewer rows


@pytest.fixture
def dtype(device):
    """One that is taken by chunks."""
    if devices.torch_name() == "cpu":
        return torch.float32
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("keeps no exponentials")
    return torch.bfloat16


class Batch:
    def __init__(self, dtype):
        g = torch.Generator().manual_seed(5)
        place = devices.torch_name()
        hidden, weight, bias = (
            torch.randn(size, generator=g) for size in ((B, T, D), (V, D), (V,))
        )
        self.hidden, self.weight = (x.to(place, dtype) for x in (hidden, 0.3 * weight))
        self.bias = bias.to(place, dtype)
        target, mask = torch.randint(V, (B, T), generator=g), torch.rand(B, T, generator=g) < 0.8
        mask[2] = False
        self.target, self.mask = target.to(place), mask.to(place)
        found = rlk.jit.linear_logp(self.hidden, self.weight, self.target, self.bias)
        noise = [0.3 * torch.randn(B, T, generator=g).to(place) for _ in range(3)]
        self.old, self.ref, self.rollout = (found + x for x in noise)
        self.advantages = torch.randn(B, generator=g).to(place)

    def leaves(self):
        return [x.clone().requires_grad_() for x in (self.hidden, self.weight, self.bias)]

    def policy(self, hidden, weight, bias, **options):
        given = hidden, weight, self.target, self.old, self.advantages, self.mask
        return rlk.jit.linear_ppo_loss(*given, bias=bias, **options)

    def entropy(self, hidden, weight, bias, **options):
        target = torch.where(self.mask, self.target, -100)
        return rlk.jit.linear_cross_entropy(hidden, weight, target, bias=bias, **options)


@pytest.fixture
def batch(dtype):
    return Batch(dtype)


@pytest.fixture
def expect_same(monkeypatch):
    """Of a call's tensors: by chunks, which it says, and by parts."""
    own, taken = torch_linear_chunks.chunk_rows, []

    def counted(*given):
        taken.append(own(*given))
        return taken[-1]

    def expect(call, rows=None):
        monkeypatch.setattr(torch_linear_chunks, "chunk_rows", counted)
        taken.clear()
        got = call()
        assert taken
        assert all(taken)
        assert rows is None or taken[0] == rows
        monkeypatch.setattr(torch_linear_chunks, "chunk_rows", lambda *_: 0)
        want = call()
        for one, other in zip(got, want, strict=True):
            assert (one is None) == (other is None)
            assert one is None or same_bits(one, other)

    return expect


def results(loss, leaves, upstream=None):
    loss.backward() if upstream is None else (loss * upstream).backward()
    return loss.detach(), *(leaf.grad for leaf in leaves)


@pytest.mark.parametrize("upstream", [None, 0.37])
@pytest.mark.parametrize("mib", [WHOLE, PARTS])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kl_coef": 0.1, "ref_log_probs": "ref"},
        {"loss_reduction": "seq_mean_token_sum", "use_dual_clip": True},
        {"loss_reduction": "prompt_mean", "samples_per_prompt": 2, "global_groups": 5},
        {"use_tis": True, "rollout_logprobs": "rollout", "tis_level": "sequence"},
        {"temperature": 0.7, "logit_scale": 1.5, "grad_scale": 0.25},
    ],
    ids=lambda options: "-".join(options),
)
def test_policy_loss(batch, expect_same, mib, options, upstream):
    options = {k: getattr(batch, v) if hasattr(batch, str(v)) else v for k, v in options.items()}

    def call():
        leaves = batch.leaves()
        loss, metrics = batch.policy(*leaves, workspace_mib=mib, **options)
        return *results(loss, leaves, upstream), metrics.clip_ratio, metrics.ratio_max

    expect_same(call, B * T if mib == WHOLE else None)


@pytest.mark.parametrize(("hidden_size", "one"), [(D, False), (64 * D, True)])
def test_one_chunk_may_take_the_memory_of_the_sum_of_several(batch, expect_same, hidden_size, one):
    times = hidden_size // D
    hidden, weight = batch.hidden.repeat(1, 1, times), batch.weight.repeat(1, times) / times
    several = 128 if hidden.dtype == torch.float32 else 256

    def call(**options):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = batch.policy(*leaves, None, workspace_mib=PARTS, **options).loss
        into = options.get("accumulate_into")
        return *results(loss, leaves if into is None else leaves[:1]), into

    expect_same(call, B * T if one else several)

    def accumulated():
        return call(accumulate_into=torch.zeros(weight.shape, device=weight.device))

    expect_same(accumulated, several)


@pytest.mark.parametrize("mib", [WHOLE, PARTS])
@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "sum"}, {"lse_square_scale": 1e-3}, {"global_tokens": 777}],
    ids=lambda options: "-".join(options),
)
def test_cross_entropy(batch, expect_same, mib, options):
    def call():
        leaves = batch.leaves()
        return results(batch.entropy(*leaves, workspace_mib=mib, **options), leaves, 0.3)

    expect_same(call)


@pytest.mark.parametrize("dtype_of_starts", [torch.int64, torch.int16, torch.uint32])
def test_packed_tokens_of_unequal_sequences(batch, expect_same, dtype_of_starts):
    starts = torch.tensor([0, 100, 100, 355, B * T], device=batch.hidden.device)
    starts = starts.to(dtype_of_starts)
    temperature = torch.linspace(0.5, 1.5, B * T, device=batch.hidden.device)
    flat = [x.flatten() for x in (batch.target, batch.old)]

    def call():
        hidden, weight, _ = batch.leaves()
        given = hidden.flatten(0, 1), weight, *flat, batch.advantages[:4], batch.mask.flatten()
        options = {"cu_seqlens": starts, "temperature": temperature, "workspace_mib": PARTS}
        loss = rlk.jit.linear_ppo_loss(*given, loss_reduction="sequence_mean_valid", **options).loss
        return results(loss, (hidden, weight))

    expect_same(call)


def test_one_temperature_for_all_as_a_tensor(batch, expect_same):
    heat = torch.tensor(0.7, device=batch.hidden.device)

    def call():
        leaves = batch.leaves()
        return results(batch.policy(*leaves, workspace_mib=PARTS, temperature=heat).loss, leaves)

    expect_same(call)


def test_one_token_without_axes(batch, expect_same):
    def call():
        hidden, weight, bias = batch.leaves()
        loss = rlk.jit.linear_cross_entropy(hidden[0, 0], weight, batch.target[0, 0], bias=bias)
        return results(loss, (hidden, weight, bias))

    expect_same(call)


def test_starts_that_hold_nothing_below_0(batch, expect_same):
    count = 250
    starts = torch.tensor([0, 100, 100, count], device=batch.hidden.device, dtype=torch.uint8)
    given = [x.flatten()[:count] for x in (batch.target, batch.old, batch.mask)]

    def call():
        hidden, weight, _ = batch.leaves()
        own, (target, old, mask) = hidden.flatten(0, 1)[:count], given
        options = {"cu_seqlens": starts, "workspace_mib": PARTS}
        of = own, weight, target, old, batch.advantages[:3], mask
        loss = rlk.jit.linear_ppo_loss(*of, loss_reduction="sequence_mean", **options).loss
        return results(loss, (hidden, weight))

    expect_same(call)


@on_cpu_alone
def test_arrays_of_numpy_among_tensors(batch):
    """Arguments that need no gradient, with each budget."""
    flat = [x.flatten() for x in (batch.target, batch.old, batch.mask)]
    starts, rows = torch.tensor([0, 100, 100, 355, B * T]), torch.full((B * T,), 0.7)

    def call(as_given, mib):
        hidden, weight, _ = batch.leaves()
        target, old, mask, cu_seqlens, temperature = map(as_given, (*flat, starts, rows))
        options = {"cu_seqlens": cu_seqlens, "temperature": temperature, "workspace_mib": mib}
        given = target, old, as_given(batch.advantages[:4]), mask
        loss = rlk.jit.linear_ppo_loss(hidden.flatten(0, 1), weight, *given, **options).loss
        return results(loss, (hidden, weight))

    want = call(lambda x: x, 0)
    for mib in (0, PARTS, WHOLE):
        assert all(map(same_bits, call(lambda x: x.numpy(), mib), want))
        one = call(lambda x: x.numpy() if x is starts else x, mib)
        assert all(map(same_bits, one, want))


def test_rows_without_a_gradient(batch, expect_same):
    """Of a whole chunk and more; of all."""
    for active in (0, 3, 400):
        mask = torch.arange(B * T, device=batch.hidden.device).view(B, T) >= B * T - active
        batch.mask = mask

        def call():
            leaves = batch.leaves()
            return results(batch.policy(*leaves, workspace_mib=PARTS).loss, leaves)

        expect_same(call)


def test_ways_of_autograd(batch, expect_same):
    def loss(hidden, weight, **options):
        return batch.policy(hidden, weight, None, workspace_mib=PARTS, **options).loss

    def accumulated():
        hidden, weight, _ = batch.leaves()
        total = torch.ones(V, D, device=weight.device)
        for _ in range(2):
            loss(hidden, weight, accumulate_into=total).backward()
        assert weight.grad is None
        return hidden.grad, total

    def frozen(which):
        leaves = batch.leaves()[:2]
        leaves[which].requires_grad_(False)
        return results(loss(*leaves), leaves)

    def twice():
        hidden, weight, _ = batch.leaves()
        found = loss(hidden, weight)
        found.backward(retain_graph=True)
        first = hidden.grad.clone()
        (3 * found).backward()
        return first, hidden.grad, weight.grad

    def changed_in_between():
        leaves = batch.leaves()[:2]
        found = loss(*leaves)
        first = torch.autograd.grad(found, leaves, retain_graph=True)
        kept = [x.clone() for x in first]
        for grad in first:
            grad.mul_(0)
        return *kept, *results(found, leaves)

    def of_float32_master():
        hidden, weight, _ = batch.leaves()
        leaves = hidden, weight.detach().float().requires_grad_()
        return results(loss(*leaves, compute_dtype=hidden.dtype), leaves)

    def strided():
        hidden, weight, _ = batch.leaves()
        found = loss(hidden.transpose(0, 2).contiguous().transpose(0, 2), weight)
        return results(found, (hidden, weight))

    calls = (
        accumulated,
        twice,
        changed_in_between,
        of_float32_master,
        strided,
    )
    for call in (*calls, lambda: frozen(0), lambda: frozen(1)):
        expect_same(call)


def test_a_second_derivative_is_refused(batch):
    hidden, weight, _ = batch.leaves()
    found = batch.policy(hidden, weight, None, workspace_mib=PARTS).loss
    (grad,) = torch.autograd.grad(found, hidden, create_graph=True)
    with pytest.raises(rlk.Unsupported, match="one derivative"):
        grad.sum().backward()


def test_what_is_not_taken_by_chunks(batch, monkeypatch):
    """Each runs as its parts."""
    monkeypatch.setattr(torch_linear_chunks, "chunk_rows", None)
    for options in ({"softcap": 3.0}, {"entropy_coef": 0.1}, {"policy_loss": "gspo"}):
        leaves = batch.leaves()
        batch.policy(*leaves, **options).loss.backward()
        assert leaves[1].grad.isfinite().all()


def test_hooks_of_saved_tensors_find_no_gradients(batch, monkeypatch):
    """They are there to hold less until the backward: the call runs as its parts."""

    def loss(hidden, weight):
        return batch.policy(hidden, weight, None, workspace_mib=PARTS).loss

    wanted = results(loss(*(leaves := batch.leaves()[:2])), leaves)
    monkeypatch.setattr(torch_linear_chunks, "chunk_rows", None)
    leaves = batch.leaves()[:2]
    with torch.autograd.graph.save_on_cpu():
        found = loss(*leaves)
    for other in (
        results(found, leaves),
        results(checkpoint(loss, *(leaves := batch.leaves()[:2]), use_reentrant=False), leaves),
    ):
        assert all(same_bits(one, want) for one, want in zip(other, wanted, strict=True))


#: Sequences of each rank, and its workspace_mib: parts, one chunk and several of them meet.
CUTS = [((0, 5), PARTS), ((5, B), PARTS)], [((0, 4), PARTS), ((4, B), 0)], [((0, B), WHOLE), None]


def work(kind, rank):
    batch, world = Batch(torch.float32), torch.distributed.group.WORLD
    found = []
    for cut in CUTS:
        (first, last), mib = cut[rank] or ((B, B), PARTS)
        own = Batch(torch.float32)
        for name in ("hidden", "target", "mask", "old", "ref", "advantages"):
            setattr(own, name, getattr(batch, name)[first:last])
        options = {"workspace_mib": mib, "loss_group": world}
        policy = {"kl_coef": 0.1, "ref_log_probs": own.ref, "loss_reduction": "sequence_mean"}
        for of, asked in ((own.policy, policy), (own.entropy, {})):
            leaves = own.leaves()
            loss = of(*leaves, **options, **asked)
            found.append(results(getattr(loss, "loss", loss), leaves))
    return found


@on_cpu_alone
def test_ranks_need_not_have_as_many_chunks(batch, tmp_path):
    ranks_found = ranks.run("cpu", work, tmp_path)
    policy = {"kl_coef": 0.1, "ref_log_probs": batch.ref, "loss_reduction": "sequence_mean"}
    wanted = []
    for of, asked in ((batch.policy, policy), (batch.entropy, {})):
        leaves = batch.leaves()
        loss = of(*leaves, **asked)
        wanted.append(results(getattr(loss, "loss", loss), leaves))
    assert len(ranks_found[0]) == len(CUTS) * len(wanted)
    for number, parts in enumerate(zip(*ranks_found, strict=True)):
        loss, of_hidden, of_weight, _ = wanted[number % len(wanted)]
        assert all(same_bits(part[0], loss) for part in parts)
        assert same_bits(torch.cat([part[1] for part in parts]), of_hidden)
        total = sum(part[2].double() for part in parts)
        assert (total - of_weight.double()).abs().max() <= 1e-5 * of_weight.abs().max()
