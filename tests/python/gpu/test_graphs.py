# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: capture after a first call, a clear error without one, replays on changed inputs."""

import contextlib

import pytest
from on_device import run_script
from problems import DIM, NAMES, VOCAB
from reference import same_bits
from tensors import leaves, make, torch

import rlk

pytestmark = [pytest.mark.gpu]

SIZES = {"rows": 200, "dim": DIM, "vocab": VOCAB, "dtype": "bfloat16", "bias": "float32"}


def captured(function):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


@pytest.mark.parametrize(
    "extra", [{}, {"softcap": 1.5, "logit_scale": 0.75, "temperature": 0.7}], ids=["", "options"]
)
@pytest.mark.parametrize("specialize", [True, False], ids=["specialized", "generic"])
def test_replays_follow_changed_inputs(specialize, extra):
    rlk.jit.configure(specialize=specialize)
    p = make(**SIZES)
    mask = torch.ones(200, dtype=torch.bool, device=p.hidden.device)
    heat = torch.ones(200, device=p.hidden.device)
    inputs = (*p.operands, p.upstream, mask, heat)

    def calls():
        options = {"mask": mask, "temperature": heat, **extra}
        if not extra:
            return p.logp(**options), *p.grads(**options)
        more = {"grad_entropy": p.upstream * 0.25 - 1, "grad_lse": p.upstream * 0.5}
        return *p.outputs(**options), *p.grads(**options, **more)

    calls()
    graph, results = captured(calls)
    for seed in range(1, 4):
        other = make(**SIZES, seed=seed)
        few = torch.arange(200, device=mask.device) % (seed + 1) == 0  # another number of rows
        fresh = (*other.operands, other.upstream, few, heat * (1 + seed / 4))
        for t, value in zip(inputs, fresh, strict=True):
            t.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        got = [t.clone() for t in results]
        assert all(same_bits(one, eager) for one, eager in zip(got, calls(), strict=True)), seed
    assert got[0].count_nonzero() == few.count_nonzero()


def test_a_training_step_in_a_graph():
    p = make(**SIZES)
    given = leaves(p)

    def step():
        loss = -(rlk.jit.linear_logp(**given, temperature=0.7) * p.upstream).sum()
        loss.backward()
        return loss

    side = torch.cuda.Stream()  # as torch asks: autograd's first runs outside, on another stream
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    for name in NAMES:
        given[name].grad = None
    graph, loss = captured(step)
    with torch.no_grad():
        given["hidden"].mul_(-0.5)
        given["weight"].add_(0.125)
        for name in NAMES:
            given[name].grad.zero_()
    graph.replay()
    torch.cuda.synchronize()
    eager = {n: t.detach().clone().requires_grad_(n in NAMES) for n, t in given.items()}
    want = -(rlk.jit.linear_logp(**eager, temperature=0.7) * p.upstream).sum()
    want.backward()
    assert same_bits(loss, want)
    for name in NAMES:
        assert same_bits(given[name].grad, eager[name].grad), name


@pytest.mark.parametrize("saved_mib", [0, 512])
def test_graphed_callables(saved_mib):
    """make_graphed_callables: forward and backward as two graphs, replayed in turn."""
    p = make(**SIZES)

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(p.weight.clone())
            self.bias = torch.nn.Parameter(p.bias.clone())

        def forward(self, hidden, target):
            found = rlk.jit.linear_logp(
                hidden,
                self.weight,
                target,
                self.bias,
                temperature=0.7,
                return_entropy=True,
                saved_mib=saved_mib,
            )
            return found.log_prob, found.entropy.detach()

    eager, graphed = Head(), Head()
    sample = p.hidden.clone().requires_grad_(), p.target.clone()
    graphed = torch.cuda.make_graphed_callables(graphed, sample)
    for seed in range(1, 4):
        other = make(**SIZES, seed=seed)
        found = []
        for head in (eager, graphed):
            with torch.no_grad():
                head.weight.copy_(other.weight)
            head.zero_grad()
            hidden = (other.hidden * 2).requires_grad_()
            log_prob, entropy = head(hidden, other.target)
            log_prob.backward(other.upstream)
            grads = hidden.grad, head.weight.grad, head.bias.grad
            found.append([t.detach().clone() for t in (log_prob, entropy, *grads)])
        assert all(same_bits(one, want) for one, want in zip(*found, strict=True)), seed


def test_a_bad_id_in_a_replay_is_reported():
    rlk.jit.configure(specialize=False)
    p = make(**SIZES)
    p.logp()
    graph, logp = captured(p.logp)
    graph.replay()
    rlk.jit.check_errors()
    good = p.target[9].clone()
    p.target[9] = VOCAB
    graph.replay()
    with pytest.raises(rlk.InvalidArgument, match=rf"linear_logp: target: .*got {VOCAB} in row 9"):
        rlk.jit.check_errors()
    assert logp[9].isnan()
    p.target[9] = good
    graph.replay()
    rlk.jit.check_errors()
    assert same_bits(logp, p.logp())


def test_sync_validation_does_not_break_a_capture():
    # It cannot read the ids then: it may refuse, and must leave the capture as it is.
    rlk.jit.configure(specialize=False, validate="sync")
    p = make(**SIZES)
    p.logp()

    def calls():
        before = p.upstream + 1
        with contextlib.suppress(rlk.Unsupported):
            p.logp()
        return before * 2

    graph, after = captured(calls)
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(after, (p.upstream + 1) * 2)


CAPTURE = """
def capture(call):
    # Our call between two of torch's: the capture must end well, and its graph run.
    graph, x = torch.cuda.CUDAGraph(), torch.arange(4.0, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        before = x + 1
        result = call()
        after = before * 2
    graph.replay()
    torch.cuda.synchronize()
    assert after.tolist() == [2, 4, 6, 8], after
    return result
"""


def test_without_a_first_call_capture_is_refused_and_ends_well(tmp_path):
    ended = run_script(
        CAPTURE
        + """
operands = tensors()

def refused():
    try:
        rlk.jit.linear_logp(*operands)
    except rlk.Unsupported as error:
        return str(error)

said = capture(refused)
want = rlk.jit.linear_logp(*operands).tolist()
got = capture(lambda: rlk.jit.linear_logp(*operands)).tolist()
print(json.dumps([said, got == want]))
""",
        RLK_CACHE_DIR=str(tmp_path),
    )
    ((said, same),) = ended.reports
    assert said.startswith("linear_logp: ")
    assert "capture" in said
    assert same


@pytest.mark.parametrize("first", ["", "rlk.jit.linear_logp(*tensors(vocab=299)); "])
def test_the_capture_of_another_thread_survives_a_first_call(first, tmp_path):
    # With a call before, libcuda and the compiler are open; without, all happens meanwhile.
    ended = run_script(
        CAPTURE
        + f"""
import threading
{first}
operands, side, found = tensors(vocab=301), torch.cuda.Stream(), []
# What torch's allocator would ask the driver for. torch.cuda.graph() first gives back what is free
# as a whole, so something small must live in it.
with torch.cuda.stream(side):
    kept = torch.empty(64, device=DEVICE)
    torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)

def work():
    try:
        with torch.cuda.stream(side):
            found.append(rlk.jit.linear_logp(*operands))
    except Exception as error:
        found.append(error)

def meanwhile():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

capture(meanwhile)
(logp,) = found
if isinstance(logp, Exception):
    raise logp
report(same=logp.tolist() == rlk.jit.linear_logp(*operands).tolist())
""",
        RLK_CACHE_DIR=str(tmp_path),
    )
    assert ended.report["same"]
    assert ended.report["compiles"] == (2 if first else 1)
