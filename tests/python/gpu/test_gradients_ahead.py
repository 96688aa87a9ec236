# SPDX-License-Identifier: Apache-2.0
"""A forward that will be differentiated has its backward's kernels compiled meanwhile."""

import pytest
from on_device import run_script

pytestmark = pytest.mark.gpu

SETUP = """
def leaf(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_()

def compiles():
    assert rlk.jit.wait(300)
    return rlk.jit.cache_info().compiles

torch.manual_seed(7)
ids = torch.randint(300, (64,), device=DEVICE)
"""


@pytest.mark.parametrize(
    "call",
    [
        "rlk.jit.linear_logp(leaf(64, 40), leaf(300, 40), ids)",
        "rlk.jit.linear_logp(leaf(64, 40), leaf(300, 40), ids, saved_mib=0)",
        "rlk.jit.linear_logp(leaf(64, 40), leaf(300, 40), ids, softcap=30.0, return_entropy=True,"
        " entropy_grad=True)[1]",
        "rlk.jit.linear_logp(leaf(64, 40, dtype=torch.float32), leaf(300, 40, dtype=torch.float32),"
        " ids)",
        "rlk.jit.logp(leaf(64, 300), ids)",
        "rlk.jit.grpo_loss(leaf(2, 32, 300), None, ids.view(2, 32), torch.zeros(2, 32,"
        " device=DEVICE), torch.tensor([0.0, 1.0], device=DEVICE), samples_per_prompt=2,"
        " beta=0.0)[0]",
        "rlk.jit.linear(leaf(64, 40), leaf(300, 40), leaf(300))",
        "rlk.jit.det_gemm(leaf(64, 40), leaf(40, 300))",
    ],
)
def test_the_backward_has_nothing_left_to_compile(call, tmp_path):
    ended = run_script(
        f"""{SETUP}
result = {call}
ahead = compiles()
result.sum().backward()
torch.cuda.synchronize()
report(ahead=ahead)
""",
        RLK_CACHE_DIR=str(tmp_path),
    )
    assert ended.report["ahead"] > 1
    assert ended.report["compiles"] == ended.report["ahead"]
    assert ended.warnings == []


def test_both_at_once_give_the_bits_of_one_after_the_other(tmp_path):
    code = """
hidden, weight = leaf(64, 40), leaf(300, 40)
result = rlk.jit.linear_logp(hidden, weight, ids)
{wait}
result.sum().backward()
report(grads=[hidden.grad.tolist(), weight.grad.tolist()])
"""
    grads = [
        run_script(SETUP + code.format(wait=wait), RLK_CACHE_DIR=str(tmp_path / name)).report
        for name, wait in (("a", "rlk.jit.wait()"), ("b", ""))
    ]
    assert grads[0]["grads"] == grads[1]["grads"]
    assert [report["compiles"] for report in grads] == [2, 2]


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
def test_a_process_may_end_in_the_middle(end, tmp_path):
    ended = run_script(
        f"""{SETUP}
rlk.jit.linear_logp(leaf(64, 40), leaf(300, 40), ids)
report()
{end}
""",
        RLK_CACHE_DIR=str(tmp_path),
    )
    assert ended.report["compiles"] >= 1
    assert ended.warnings == []


def test_a_graph_captured_meanwhile(tmp_path):
    ended = run_script(
        f"""{SETUP}
hidden, weight = leaf(64, 40), leaf(300, 40)
with torch.no_grad():
    expected = rlk.jit.linear_logp(hidden, weight, ids)
rlk.jit.linear_logp(hidden, weight, ids)  # begins the backward's kernel
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph), torch.no_grad():
    found = rlk.jit.linear_logp(hidden, weight, ids)
graph.replay()
same = torch.equal(found, expected)
rlk.jit.linear_logp(hidden, weight, ids).sum().backward()
report(same=same, compiled=compiles())
""",
        RLK_CACHE_DIR=str(tmp_path),
    )
    assert ended.report["same"]
    assert ended.warnings == []
