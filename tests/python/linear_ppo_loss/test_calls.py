# SPDX-License-Identifier: Apache-2.0
"""linear_ppo_loss and linear_grpo_loss: NumPy, errors, torch.compile, explain, ranks."""

import math
import re

import numpy as np
import pytest
import ranks
from devices import on_cpu_alone
from linear_losses import HEAD, draw
from losses import same_metrics
from operator_cases import fresh_compiler  # noqa: F401
from reference import same_bits
from tensors import tensor, torch

import rlk

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("generic")]

EVERYTHING = {"use_dual_clip": True, "use_tis": True, "kl_coef": 0.1, "entropy_coef": 0.02}
GROUPS = {"samples_per_prompt": 2}


def grpo(b, **options):
    head = {"ref_hidden": b.ref_hidden, "ref_weight": b.ref_weight, "ref_bias": b.ref_bias}
    given = b.hidden, b.weight, b.target, b.old_log_probs, b.rewards, b.loss_mask
    return rlk.jit.linear_grpo_loss(*given, **{"bias": b.bias, **head, **GROUPS, **options})


@on_cpu_alone
def test_arrays_of_numpy(device):
    b = draw()
    arrays = b.map(lambda x: x.numpy())
    found, want = arrays.loss(**EVERYTHING), b.loss(**EVERYTHING)
    assert isinstance(found.loss, np.ndarray)
    assert same_bits(found.loss, want.loss)
    assert same_metrics(found.metrics, want.metrics)
    assert same_bits(grpo(arrays).loss, grpo(b).loss)


def changed(**options):
    b = draw()
    names = [name for name in options if hasattr(b, name)]
    return b.but(**{name: options.pop(name) for name in names}), options


WRONG = [
    ({"target": torch.zeros(6, 8, dtype=torch.int64)}, "target", "shape"),
    ({"weight": torch.zeros(210, 23)}, "weight", "shape"),
    ({"bias": torch.zeros(209)}, "bias", "shape"),
    ({"loss_mask": torch.zeros(6, 8)}, "loss_mask", "shape"),
    ({"old_log_probs": torch.zeros(6, 8)}, "old_log_probs", "shape"),
    ({"temperature": 0.0}, "temperature", "above 0"),
    ({"softcap": -1.0}, "softcap", "above 0"),
    ({"kl_coef": 0.1, "ref_hidden": None}, "ref_hidden", "ref_weight"),
    ({"kl_coef": 0.1, "ref_weight": None}, "ref_weight", "ref_hidden"),
    ({"kl_coef": 0.1, "ref_weight": torch.zeros(209, 24)}, "ref_weight", "210 rows"),
    ({"kl_coef": 0.1, "ref_weight": torch.zeros(210, 23)}, "ref_weight", "shape"),
    ({"kl_coef": 0.1, "ref_bias": torch.zeros(3)}, "ref_bias", "shape"),
    ({"kl_coef": 0.1, "ref_hidden": torch.zeros(6, 8, 24)}, "ref_hidden", "[6, 9, D]"),
    ({"use_tis": True, "rollout_logprobs": None}, "rollout_logprobs", "use_tis"),
    ({"policy_loss": "pg"}, "policy_loss", "gpg"),
    ({"dialect": "no"}, "dialect", "verl"),
    ({"eps_clip_low": 2.0}, "eps_clip_low", "to 1"),
    ({"grad_scale": "2"}, "grad_scale", "number"),
    ({"grad_scale": True}, "grad_scale", "number"),
    *(
        (
            {"grad_scale": value},
            "grad_scale",
            f"a finite number of float32 or a tensor of no axis, got {value!r}",
        )
        for value in (math.nan, math.inf, -math.inf, 1e39)
    ),
    ({"grad_scale": torch.ones(2)}, "grad_scale", "no axis"),
    ({"grad_scale": torch.ones((), requires_grad=True)}, "grad_scale", "without gradient"),
    ({"grad_scale": torch.ones((), dtype=torch.int64)}, "grad_scale", "floating"),
    ({"vocab_size": 210}, "vocab_size", "group"),
    ({"target": None}, "target", "a tensor, got None"),
    *(
        ({name: value}, name, f"a whole number from 0 to 1048576, or None, got {value!r}")
        for name in ("workspace_mib", "saved_mib")
        for value in (-1, 1.5, "a", True, 2**64)
    ),
]


@on_cpu_alone
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize(("change", "name", "expected"), WRONG, ids=str)
def test_errors_name_the_argument(device, change, name, expected, needs_grad):
    b, options = changed(**change)
    b = b.leaves() if needs_grad else b
    with pytest.raises(rlk.InvalidArgument, match=rf"^linear_ppo_loss: {name}: ") as caught:
        b.loss(**options)
    assert expected in str(caught.value)


@on_cpu_alone
def test_both_log_probs_and_head_of_a_reference(device):
    b = draw()
    with pytest.raises(rlk.InvalidArgument, match="ref_hidden: expected None with ref_log_probs"):
        b.loss(kl_coef=0.1, ref_log_probs=b.old_log_probs, ref_hidden=b.ref_hidden)
    with pytest.raises(rlk.InvalidArgument, match="ref_hidden: expected None with ref_logps"):
        grpo(b, ref_logps=b.old_log_probs)


@on_cpu_alone
def test_a_target_out_of_range(device):
    b = draw()
    b.target[0, 0] = 210
    b.loss_mask[0, 0] = True
    with pytest.raises(rlk.InvalidArgument, match=r"^linear_ppo_loss: target: expected ids in"):
        b.loss()


@on_cpu_alone
@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("mask", "loss_mask"),
        ("beta", "kl_coef"),
        ("entropy", None),
        ("log_probs", None),
        ("return_lse", None),
    ],
)
def test_options_that_do_not_exist(device, name, here):
    with pytest.raises(TypeError, match=f"^linear_ppo_loss: {name}: ") as caught:
        draw().loss(**{name: None})
    assert here is None or f"here it is {here}" in str(caught.value)


@on_cpu_alone
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"beta": None}, "beta"),
        ({"beta": "x"}, "beta"),
        ({"samples_per_prompt": 4}, "samples_per_prompt"),
        ({"samples_per_prompt": None}, "samples_per_prompt"),
        ({"clip_eps": -1.0}, "clip_eps"),
        ({"ref_weight": None}, "ref_weight"),
    ],
    ids=str,
)
def test_errors_of_grpo(device, options, name):
    with pytest.raises(rlk.InvalidArgument, match=rf"^linear_grpo_loss: {name}: "):
        grpo(draw(), **options)
    for option, here in (("loss_mask", "completion_mask"), ("kl_coef", "beta")):
        expected = re.escape(f"linear_grpo_loss: {option}: expected an option that exists")
        with pytest.raises(TypeError, match=f"^{expected}; here it is {here}"):
            grpo(draw(), **{option: 1.0})
    short = draw()
    with pytest.raises(rlk.InvalidArgument, match="linear_grpo_loss: rewards: expected shape"):
        grpo(short.but(rewards=short.rewards[:4]))


@pytest.mark.usefixtures("device", "fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
def test_a_compiled_call_is_one_graph_of_the_same_bits():
    b = draw()
    scale = tensor(np.float32(4))

    def losses(b):
        first = b.loss(grad_scale=scale, workspace_mib=1, saved_mib=0, **EVERYTHING)
        return first.loss + grpo(b, grad_scale=2.0).loss, first.metrics.num_active

    # Of a dataclass the compiler would look at each field.
    def of_head(*head):
        return losses(b.but(**dict(zip(HEAD, head, strict=True))))

    b = b.leaves()
    want, count = of_head(*b.head)
    found, compiled_count = torch.compile(of_head, fullgraph=True, backend="aot_eager")(*b.head)
    assert torch.equal(found, want)
    assert torch.equal(compiled_count, count)
    for got, exact in zip(
        torch.autograd.grad(found, b.head), torch.autograd.grad(want, b.head), strict=True
    ):
        assert torch.equal(got, exact)


@pytest.mark.usefixtures("device", "fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
def test_a_factor_that_changes_between_calls_stays_in_one_graph():
    """As a gradient scaler's: from the second value on the compiler has a number without value."""
    b = draw().leaves()

    def loss(scale, *head):
        return b.but(**dict(zip(HEAD, head, strict=True))).loss(grad_scale=scale).loss

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for scale in (1.0, 2.0, 8.0, 0.5):
        got, want = (torch.autograd.grad(f(scale, *b.head), b.head) for f in (compiled, loss))
        assert all(map(torch.equal, got, want)), scale


@on_cpu_alone
def test_tensors_without_values(device):
    """Shapes and dtypes alone, as on a meta device's model."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    b, mode = draw().leaves(), FakeTensorMode()
    b = b.map(mode.from_tensor)
    with mode:
        loss, metrics = b.loss(**EVERYTHING)
        loss.backward()
        assert b.hidden.grad.shape == b.hidden.shape
    assert (loss.shape, loss.dtype) == (torch.Size([]), torch.float32)
    assert metrics.num_active.dtype == torch.int64


@on_cpu_alone
def test_explain_names_the_kernel_of_the_product(device):
    b = draw().leaves()
    given = b.hidden, b.weight, b.target, b.old_log_probs, b.advantages
    found = rlk.jit.explain(rlk.jit.linear_ppo_loss, *given, temperature=0.5)
    want = rlk.jit.explain(rlk.jit.linear_logp, *given[:3], temperature=0.5)
    assert found == want
    asked = {"return_entropy": True, "entropy_grad": True}
    found = rlk.jit.explain(rlk.jit.linear_grpo_loss, *given, entropy_coef=0.1, backward=True)
    want = rlk.jit.explain(rlk.jit.linear_logp, *given[:3], **asked, backward=True)
    assert found == want


def work(kind, rank):
    """On each rank: the head cut among the ranks, then the sequences, then both policies' heads."""
    size = torch.distributed.get_world_size()
    world = torch.distributed.group.WORLD
    b = draw(vocab=208, seed=3).map(lambda x: x.to(kind))
    own = slice(rank * 208 // size, (rank + 1) * 208 // size)
    cut = {n: getattr(b, n)[own] for n in ("weight", "bias", "ref_weight", "ref_bias")}
    part = b.but(**cut).leaves()
    loss = part.loss(group=world, **EVERYTHING).loss
    found = {"tp": [loss.detach(), *torch.autograd.grad(loss, part.head)]}
    rows = slice(rank * 6 // size, (rank + 1) * 6 // size)
    part = b.but(**{n: getattr(b, n)[rows] for n in ("hidden", "ref_hidden")}, **cut).leaves()
    loss = part.loss(group=world, sequence_parallel=True, **EVERYTHING).loss
    found["sp"] = [loss.detach(), *torch.autograd.grad(loss, part.head)]
    part = b.map(lambda x: x[rows] if x.shape[0] == 6 else x).leaves()
    loss = part.loss(loss_group=world, **EVERYTHING).loss
    found["dp"] = [loss.detach(), *torch.autograd.grad(loss, part.head)]
    loss = grpo(part, loss_group=world, samples_per_prompt=3).loss
    found["grpo"] = [loss.detach(), *torch.autograd.grad(loss, part.head)]
    return found


def test_ranks_that_share_the_head_or_the_batch(tmp_path):
    found = ranks.run("cpu", work, tmp_path)
    b = draw(vocab=208, seed=3).leaves()
    want = b.loss(**EVERYTHING).loss
    hidden, weight, bias = torch.autograd.grad(want, b.head, retain_graph=True)
    for name in ("tp", "sp"):
        assert all(torch.equal(one[name][0], want) for one in found)
        assert torch.equal(torch.cat([one[name][2] for one in found]), weight)
        assert torch.equal(torch.cat([one[name][3] for one in found]), bias)
    assert all(torch.equal(one["tp"][1], hidden) for one in found)
    assert torch.equal(torch.cat([one["sp"][1] for one in found]), hidden)
    for name, loss in (("dp", want), ("grpo", grpo(b, samples_per_prompt=3).loss)):
        assert all(torch.equal(one[name][0], loss) for one in found)
        of_hidden, of_weight, _ = torch.autograd.grad(loss, b.head)
        assert torch.equal(torch.cat([one[name][1] for one in found]), of_hidden)
        total = sum(one[name][2].double() for one in found)
        assert (total - of_weight.double()).abs().max() <= 1e-5 * of_weight.abs().max()
