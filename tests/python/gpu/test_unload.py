# SPDX-License-Identifier: Apache-2.0
"""RLK_MAX_KERNELS on a device: queued launches, captured graphs and other threads' captures."""

import pytest
from on_device import cuda_only, run_script

pytestmark = [pytest.mark.gpu, cuda_only]


def test_a_queued_launch_is_waited_for_before_its_kernel_is_unloaded(tmp_path):
    ended = run_script(
        """
problems = [tensors(vocab=vocab) for vocab in (301, 302, 303)]
want = [rlk.jit.linear_logp(*p).tolist() for p in problems]
rlk.jit.linear_logp(*problems[0])
side = torch.cuda.Stream()
torch.cuda.synchronize()
with torch.cuda.stream(side):
    torch.cuda._sleep(1_000_000_000)  # about half a second
    late = rlk.jit.linear_logp(*problems[0])
others = [rlk.jit.linear_logp(*p).tolist() for p in problems[1:]]
side.synchronize()
info = rlk.jit.cache_info()
report(same=[late.tolist(), *others] == want, loaded=info.loaded, unloads=info.unloads)
""",
        RLK_CACHE_DIR=str(tmp_path),
        RLK_MAX_KERNELS="1",
    )
    assert ended.report["same"]
    assert ended.report["loaded"] == 1
    assert ended.report["unloads"] == 5


def test_the_kernel_of_a_graph_is_never_unloaded(tmp_path):
    ended = run_script(
        """
operands = tensors(vocab=301)
want = rlk.jit.linear_logp(*operands).tolist()
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    logp = rlk.jit.linear_logp(*operands)
for vocab in (302, 303, 304):
    rlk.jit.linear_logp(*tensors(vocab=vocab))
logp.zero_()
graph.replay()
torch.cuda.synchronize()
report(same=logp.tolist() == want, loaded=rlk.jit.cache_info().loaded)
""",
        RLK_CACHE_DIR=str(tmp_path),
        RLK_MAX_KERNELS="1",
    )
    assert ended.report["same"]
    assert ended.report["loaded"] == 2


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_the_capture_of_another_thread_survives_an_unload(mode, tmp_path):
    ended = run_script(
        f"""
import threading
problems = [tensors(vocab=vocab) for vocab in (301, 302, 303)]
want = [rlk.jit.linear_logp(*p).tolist() for p in problems]
side, found = torch.cuda.Stream(), []
with torch.cuda.stream(side):  # so that torch's allocator need not ask the driver
    kept = torch.empty(64, device=DEVICE)
    torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)

def work():
    try:
        with torch.cuda.stream(side):
            found.extend(rlk.jit.linear_logp(*p) for p in problems)
    except Exception as error:
        found.append(error)

graph, x = torch.cuda.CUDAGraph(), torch.arange(4.0, device=DEVICE)
torch.cuda.synchronize()
with torch.cuda.graph(graph, capture_error_mode={mode!r}):
    before = x + 1
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    after = before * 2
for each in found:
    if isinstance(each, Exception):
        raise each
graph.replay()
torch.cuda.synchronize()
meanwhile = rlk.jit.cache_info()
rlk.jit.linear_logp(*problems[0])  # what could not be unloaded then goes now
report(
    same=[t.tolist() for t in found] == want,
    graph=after.tolist(),
    meanwhile=meanwhile.loaded,
    loaded=rlk.jit.cache_info().loaded,
)
""",
        RLK_CACHE_DIR=str(tmp_path),
        RLK_MAX_KERNELS="1",
    )
    assert ended.report["same"]
    assert ended.report["graph"] == [2, 4, 6, 8]
    assert ended.report["meanwhile"] >= 1
    assert ended.report["loaded"] == 1
