# SPDX-License-Identifier: Apache-2.0
"""A forward that will be differentiated has its backward's kernels compiled meanwhile."""

import os

import pytest
from processes import entries, run_python

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="nothing is compiled ahead on one core"
)

PRELUDE = """
import torch, rlk.jit as jit

def leaf(*shape):
    return torch.randn(shape).requires_grad_()

ids = torch.randint(50, (4,))
hidden, weight, logits = leaf(4, 8), leaf(50, 8), leaf(4, 50)

def compiles():
    assert jit.wait(300)
    return jit.cache_info().compiles
"""


@pytest.fixture
def run(tmp_path):
    def run(code, **environment):
        given = {"RLK_CACHE_DIR": str(tmp_path), "RLK_JIT": "sync", **environment}
        return run_python(PRELUDE + code, timeout=300, **given)

    return run


def test_the_backward_has_nothing_left_to_compile(run):
    ended = run("""
found = []
for call in (
    lambda: jit.linear_logp(hidden, weight, ids),
    lambda: jit.linear_logp(hidden, weight, ids, return_entropy=True, entropy_grad=True)[1],
    lambda: jit.logp(logits, ids),
    lambda: jit.logp(logits, ids, return_entropy=True)[1],
    lambda: jit.linear(hidden, weight),
):
    before = compiles()
    result = call()
    ahead = compiles()
    result.sum().backward()
    found.append((ahead - before, compiles() - before))
report(found=found)
""")
    assert ended.report["found"] == [[2, 2]] * 5
    assert ended.report["fallbacks"] == 0
    assert not ended.stderr


def test_nothing_ahead_without_a_gradient_that_needs_it(run):
    ended = run("""
def without_grad():
    with torch.no_grad():
        jit.linear_logp(hidden, weight, ids)

found = []
for call in (
    without_grad,
    lambda: jit.linear_logp(hidden.detach(), leaf(51, 8).detach(), ids),
    lambda: jit.linear(hidden.detach(), weight),  # of the weight: a generic kernel
):
    before = compiles()
    call()
    found.append(compiles() - before)
report(found=found)
""")
    assert ended.report["found"] == [1, 1, 1]


def test_nothing_ahead_where_a_call_would_compile_nothing(run, tmp_path):
    code = "jit.linear_logp(hidden, weight, ids).sum().backward(); report(ahead=compiles())"
    assert run(code, RLK_JIT="off").report["ahead"] == 0
    generic = run("jit.configure(specialize=False)\n" + code)
    assert generic.report["ahead"] == 0
    assert not entries(tmp_path)
    assert run(code).report["ahead"] == 2
    again = run(code).report  # in the cache
    assert (again["ahead"], again["disk_hits"]) == (0, 2)


def test_a_forward_that_is_loaded_begins_it_too(run):
    ended = run("""
with torch.no_grad():
    jit.linear_logp(hidden, weight, ids)
before = compiles()
result = jit.linear_logp(hidden, weight, ids)
found = jit.explain(jit.linear_logp, hidden, weight, ids, backward=True)
ahead = compiles()
then = jit.explain(jit.linear_logp, hidden, weight, ids, backward=True)
report(before=before, ahead=ahead, sources=[found.source, then.source], reason=then.reason)
""")
    assert (ended.report["before"], ended.report["ahead"]) == (1, 2)
    assert ended.report["sources"][1] == "loaded"
    assert ended.report["reason"] == "it was compiled beside the forward"


def test_the_gradients_are_those_of_a_backward_that_compiles(run):
    code = """
torch.manual_seed(7)
hidden, weight = leaf(5, 16), leaf(60, 16)
result = jit.linear_logp(hidden, weight, torch.arange(5))
if {waits}: jit.wait(300)
result.sum().backward()
report(grads=[hidden.grad.tolist(), weight.grad.tolist()])
"""
    at_once = run(code.format(waits=False)).report["grads"]
    assert run(code.format(waits=True)).report["grads"] == at_once


def test_numpy_has_it_too(run):
    ended = run("""
h, w, t = operands()
jit.linear_logp_backward(np.ones(4, np.float32), h, w, t)
report()
""")
    assert ended.report["compiles"] == 2


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os._exit(0)"])
def test_a_process_may_end_in_the_middle(run, end):
    ended = run(f"""
for vocab in range(50, 56):
    jit.linear_logp(leaf(4, 8), leaf(vocab, 8), ids)
print(json.dumps({{"done": True}}), flush=True)
{end}
""")
    assert ended.report == {"done": True}
    assert not ended.stderr


def test_a_fork_in_the_middle(run):
    ended = run("""
def grads():
    a, b = torch.ones(4, 8, requires_grad=True), torch.ones(50, 8, requires_grad=True)
    jit.linear_logp(a, b, ids).sum().backward()
    return b.grad.tolist()

jit.linear_logp(hidden, weight, ids)
child = os.fork()
if child == 0:  # torch's autograd has threads, which a child must not use: by NumPy
    jit.linear_logp_backward(np.ones(4, np.float32), *operands())
    report(child=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
report(child=False, grads=grads())
""")
    assert sorted(report["child"] for report in ended.reports) == [False, True]


@pytest.mark.parametrize("change", ["policy='off'", "policy='async'", "cache_dir=other"])
def test_configure_in_between(run, change, tmp_path):
    ended = run(f"""
other = {str(tmp_path / "other")!r}
result = jit.linear_logp(hidden, weight, ids)
jit.configure({change})
result.sum().backward()
assert jit.wait(300)
report(grad=weight.grad.abs().sum().item())
""")
    assert ended.report["grad"] > 0
    assert ended.report["compiles"] <= 2
    assert not ended.warnings


def test_read_only_folders_change_nothing(run, tmp_path):
    os.chmod(tmp_path, 0o500)
    try:
        report = run("jit.linear_logp(hidden, weight, ids).sum().backward(); report()").report
    finally:
        os.chmod(tmp_path, 0o700)
    assert report["compiles"] == 2
