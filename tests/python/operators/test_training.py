# SPDX-License-Identifier: Apache-2.0
"""Compiled training: whole graphs, and the losses of eager steps bit for bit."""

import textwrap

import devices
import pytest
from operator_cases import fresh_compiler  # noqa: F401
from processes import run_python
from reference import same_bits
from tensors import torch

import rlk

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("device", "generic", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of its compiler
]
STEPS, ROWS, DIM, VOCAB = 20, (4, 6), 16, 71


class Policy(torch.nn.Module):
    """A trunk of products that do not depend on the compiler, and a head in rlk."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, DIM)
        self.lm_head = torch.nn.Linear(DIM, VOCAB)

    def forward(self, tokens, target):
        return rlk.jit.linear_logp(
            self.embed(tokens), self.lm_head.weight, target, self.lm_head.bias, temperature=0.7
        )


def grpo(model, tokens, target, old, rewards, mask):
    """The loss of a trainer such as TRL: log-probs, group advantages, the clipped loss."""
    advantages = rlk.jit.group_advantages(rewards, samples_per_prompt=2)
    loss, metrics = rlk.jit.ppo_loss(
        model(tokens, target), old, advantages, mask, dialect="trl", loss_reduction="token_mean"
    )
    return loss, metrics.clip_ratio


def batch(step):
    kind = {"generator": torch.Generator().manual_seed(step)}
    tokens = torch.randint(VOCAB, ROWS, **kind)
    drawn = tokens, tokens.roll(1), torch.randn(ROWS, **kind) - 4, torch.randn(ROWS[0], **kind)
    mask = torch.rand(ROWS, **kind) > 0.3
    return tuple(tensor.to(devices.torch_name()) for tensor in (*drawn, mask))


def train(compiled):
    """The losses of some steps, and the parameters after them."""
    torch.manual_seed(0)
    model = Policy().to(devices.torch_name())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loss_of = compiled(lambda *given: grpo(model, *given))
    losses = []
    for step in range(STEPS):
        loss, _ = loss_of(*batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    assert losses[0] != losses[-1]
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_steps_have_the_losses_of_eager_ones(backend):
    eager = train(lambda function: function)
    whole = train(lambda function: torch.compile(function, backend=backend, fullgraph=True))
    assert all(same_bits(one, other) for one, other in zip(whole, eager, strict=True))


def test_a_compiled_optimizer_and_model():
    torch.manual_seed(0)
    model = Policy().to(devices.torch_name())
    wanted = Policy().to(devices.torch_name())
    wanted.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for policy, follow in (
        (wanted, lambda f: f),
        (compiled, lambda f: torch.compile(f, backend="aot_eager")),
    ):
        optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01)
        step = follow(optimizer.step)
        for number in range(3):
            tokens, target, *_ = batch(number)
            (-policy(tokens, target).mean()).backward()
            step()
            optimizer.zero_grad()
    for name, parameter in model.state_dict().items():
        torch.testing.assert_close(parameter, wanted.state_dict()[name])


@pytest.mark.parametrize("into", ["tensor", "main_grad"])
@pytest.mark.parametrize("needs_hidden", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_backward_adds_to_what_it_is_given(backend, needs_hidden, into):
    def sums(compiled):
        kind = {"generator": torch.Generator().manual_seed(3)}
        hidden = torch.randn((5, DIM), **kind).to(devices.torch_name())
        weight = torch.nn.Parameter(torch.randn((VOCAB, DIM), **kind).to(devices.torch_name()))
        weight.main_grad = torch.ones(VOCAB, DIM, device=weight.device)
        given = weight.main_grad if into == "tensor" else into
        target = torch.arange(5, device=weight.device)
        hidden.requires_grad_(needs_hidden)

        def loss(hidden):
            found = rlk.jit.linear_logp(hidden * 2, weight, target, accumulate_into=given)
            return found.sum()

        loss = compiled(loss)
        for _ in range(2):
            loss(hidden).backward()
        assert weight.grad is None
        return weight.main_grad, hidden.grad

    got = sums(lambda f: torch.compile(f, backend=backend, fullgraph=True))
    want = sums(lambda f: f)
    assert same_bits(got[0], want[0])
    assert not needs_hidden or same_bits(got[1], want[1])


def test_other_numbers_do_not_compile_again():
    def call(logits, target, temperature):
        return rlk.jit.logp(logits, target, temperature=temperature)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        logits = torch.randn(rows, VOCAB, device=devices.torch_name())
        target = torch.arange(rows, device=logits.device)
        for temperature in (0.5, 0.7, 1.3):
            want = call(logits, target, temperature)
            assert same_bits(compiled(logits, target, temperature), want)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3


def test_refusals_name_the_argument():
    logits = torch.randn(3, VOCAB, device=devices.torch_name(), requires_grad=True)
    target = torch.arange(3, device=logits.device)

    def compiled(**options):
        function = torch.compile(
            lambda x: rlk.jit.logp(x * 1, target, **options), backend="aot_eager", fullgraph=True
        )
        return function(logits)

    for options, words in (
        ({"inplace_backward": True}, "logp: inplace_backward: expected False"),
        ({"stream": 5}, "logp: stream: expected None"),
        ({"mask": torch.ones(4, device=logits.device)}, r"logp: mask: expected shape \[3\]"),
    ):
        with pytest.raises(Exception, match=words):
            compiled(**options)
    heat = torch.ones(3, device=logits.device, requires_grad=True)
    with pytest.raises(Exception, match="temperature: expected a tensor that needs no gradient"):
        compiled(temperature=heat)


def test_torch_may_be_imported_after_rlk():
    script = f"""
        import rlk
        rlk.jit.configure(specialize=False)
        import torch
        torch.set_default_device("{devices.torch_name()}")
        x, ids = torch.randn(3, 71), torch.arange(3)
        call = lambda x: rlk.jit.logp(x, ids)
        assert torch.equal(torch.compile(call, backend="eager", fullgraph=True)(x), call(x))
    """
    assert not run_python(textwrap.dedent(script)).warnings  # and it ended well
