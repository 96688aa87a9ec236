# SPDX-License-Identifier: Apache-2.0
"""Calls from several threads, and processes forked at bad moments."""

import threading

import pytest
from problems import problem
from processes import run_python
from reference import same_bits

import rlk


def at_once(count, call):
    """call(0..count-1), all begun at the same moment, each in a thread; their results in order."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(index):
        barrier.wait()
        try:
            results[index] = call(index)
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def counted(call):
    before = rlk.jit.cache_info()
    result = call()
    after = rlk.jit.cache_info()
    return result, rlk.jit.CacheInfo(*(b - a for a, b in zip(before, after, strict=True)))


def test_eight_first_calls_of_one_spec_compile_once():
    p = problem(40, 11, 601)
    results, info = counted(lambda: at_once(8, lambda _: p.logp()))
    assert info.compiles == 1
    assert info.fallbacks == 0
    assert info.memory_hits <= 7
    rlk.jit.configure(specialize=False)
    for result in results:
        assert same_bits(result, p.logp())


def test_eight_first_calls_of_eight_specs():
    problems = [problem(40, 11, 610 + i) for i in range(8)]
    results, info = counted(lambda: at_once(8, lambda i: problems[i].logp()))
    assert info.compiles == 8
    rlk.jit.configure(specialize=False)
    for p, result in zip(problems, results, strict=True):
        assert same_bits(result, p.logp())


def test_first_calls_that_fail_do_not_block_others():
    p = problem(40, 11, 620)
    bad = p.target + 1000

    def call(index):
        if index % 2:
            return p.logp()
        with pytest.raises(rlk.InvalidArgument):
            rlk.jit.linear_logp(p.hidden, p.weight, bad)

    _, info = counted(lambda: at_once(8, call))
    assert info.compiles == 1


def test_warm_calls_from_many_threads():
    rlk.jit.configure(specialize=False, num_threads=2)
    problems = [problem(rows, 24, 500, bias="float32") for rows in (1, 40, 200, 700)]
    want = [(p.logp(), p.grads()) for p in problems]

    def call(index):
        for round_ in range(5):
            which = (index + round_) % 4
            p, (logp, grads) = problems[which], want[which]
            assert same_bits(p.logp(), logp)
            for got, whole in zip(p.grads(), grads, strict=True):
                assert same_bits(got, whole)

    at_once(8, call)


@pytest.mark.parametrize("rows", [1, 2, 15, 200, 1100])
def test_the_number_of_threads_changes_no_bit(rows):
    rlk.jit.configure(specialize=False, num_threads=1)
    p = problem(rows, 70, 1300, bias="float32")
    logp, grads = p.logp(), p.grads()
    for threads in (2, 3, 8):
        rlk.jit.configure(num_threads=threads)
        assert same_bits(p.logp(), logp)
        for got, whole in zip(p.grads(), grads, strict=True):
            assert same_bits(got, whole)


def test_settings_change_while_calls_run():
    p = problem(300, 24, 500)
    rlk.jit.configure(specialize=False)
    want = p.logp()

    def call(index):
        for round_ in range(20):
            if index == 0:
                rlk.jit.configure(num_threads=1 + round_ % 3)
            else:
                assert same_bits(p.logp(), want)

    at_once(4, call)


def test_python_runs_while_a_kernel_does():
    # The kernel's thread lets go of the interpreter; else this thread could not count.
    p = problem(2000, 64, 4000)
    rlk.jit.configure(specialize=False)
    p.logp()
    done = threading.Event()

    def work():
        for _ in range(3):
            p.logp()
        done.set()

    thread = threading.Thread(target=work)
    ticks = 0
    thread.start()
    while not done.is_set():
        ticks += 1
        done.wait(0.001)
    thread.join()
    assert ticks > 1


FORK = """
import signal, threading, time, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # 3.12+

def child_does(work, seconds=60):
    '''Forks; the child does work and must be done in time. Its results in JSON.'''
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        status = 1
        try:
            os.write(write, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SystemExit("the child hangs")
        time.sleep(0.002)
    with os.fdopen(read) as answer:
        assert status == 0, status
        return json.loads(answer.read())
"""


def test_a_fork_after_a_call_of_two_threads():
    ended = run_python(
        FORK
        + """
before = call(900, 30, 500)
children = [child_does(lambda: call(900, 30, 500)) for _ in range(3)]
new = child_does(lambda: call(901, 30, 500))  # compiles in the child
after = call(900, 30, 500)
assert all(child == before for child in children) and after == before
assert child_does(lambda: child_does(lambda: call(900, 30, 500))) == before  # and in its child
assert new == call(901, 30, 500)
report()
""",
        RLK_NUM_THREADS="2",
    )
    assert ended.stderr == []


def test_a_fork_while_another_thread_computes():
    run_python(
        FORK
        + """
want = call(900, 30, 2000)
stop = threading.Event()
def work():
    while not stop.is_set():
        assert call(900, 30, 2000) == want
thread = threading.Thread(target=work)
thread.start()
for _ in range(10):
    assert child_does(lambda: call(900, 30, 2000)) == want
stop.set()
thread.join()
""",
        RLK_NUM_THREADS="2",
    )


def test_a_fork_while_another_thread_compiles(tmp_path):
    ended = run_python(
        FORK
        + """
import rlk  # Python's own lock of a half-done import would stop the child
operands()
def work():
    for vocab in range(1000, 1006):
        call(vocab)
thread = threading.Thread(target=work)
thread.start()
answers = []
while thread.is_alive() and len(answers) < 12:
    time.sleep(0.01)
    vocab = 1000 + len(answers) % 6  # perhaps the very one that is being compiled
    answers.append((vocab, child_does(lambda: call(vocab))))
thread.join()
assert answers
assert all(answer == call(vocab) for vocab, answer in answers)
report()
""",
        RLK_NUM_THREADS="2",
        RLK_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert ended.report["compiles"] + ended.report["disk_hits"] == 6


def test_two_processes_with_one_cold_cache(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    script = "report(logp=[call(), call(51), call(52)])"
    cache = str(tmp_path / "cache")
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: run_python(script, RLK_CACHE_DIR=cache), range(3)))
    assert all(end.stderr == [] for end in ended)
    assert all(end.report["logp"] == ended[0].report["logp"] for end in ended)
    warm = run_python(script, RLK_CACHE_DIR=cache).report
    assert (warm["compiles"], warm["disk_hits"]) == (0, 3)


def test_exit_while_a_kernel_runs():
    run_python(
        """
        import threading, time
        threading.Thread(target=lambda: call(4000, 64, 4000), daemon=True).start()
        time.sleep(0.05)  # until then it has arguments of Python in hand, and not yet a kernel
        """,
        RLK_JIT="off",
        RLK_LOG="error",
        RLK_NUM_THREADS="2",
    )


@pytest.mark.parametrize("work", ["compile", "run"])
@pytest.mark.parametrize("after_s", [0.05, 0.15, 0.3])
def test_the_interpreter_may_end_during_calls(work, after_s, tmp_path):
    # Daemon threads are in the compiler or in a kernel while Python and the statics go.
    run_python(
        f"""
        import threading, time
        def work(first):
            dim = first
            while True:
                call(*((50, dim, 4) if {work == "compile"} else (5000, 512, 300)))
                dim += 8
        call()
        for first in (9, 10, 11):
            threading.Thread(target=work, args=(first,), daemon=True).start()
        time.sleep({after_s})
        """,
        RLK_CACHE_DIR=str(tmp_path),
    )


HALF_IMPORTED = """
import importlib.machinery, types
torch = types.ModuleType("torch")
{how}
sys.modules["torch"] = torch
import rlk
h, w, t = operands()
logits = (h @ w.T).reshape(2, 2, -1)
ids, rewards = t.reshape(2, 2), np.array([0.0, 1.0])
rlk.jit.linear_logp(h, w, t)
mask = np.ones_like(ids)
rlk.jit.grpo_loss(logits, logits, ids, np.zeros((2, 2)), rewards, mask, samples_per_prompt=2)
rlk.jit.group_advantages(rewards, group_boundaries=[0, 2])
rlk.jit.preload("V=50,D=8")
rlk.jit.preload("V=50,D=8", device="cpu")
report()
"""


@pytest.mark.parametrize(
    "how",
    [
        "",
        "torch.__spec__ = importlib.machinery.ModuleSpec('torch', None)\n"
        "torch.__spec__._initializing = True",
        "torch.__spec__ = importlib.machinery.ModuleSpec('torch', None)\n"
        "torch.__spec__._initializing = True\ntorch.Tensor = type('Tensor', (), {})",
        "torch.Tensor = type('Tensor', (), {})\ntorch.autograd = types.ModuleType('autograd')",
        "torch = None",
    ],
    ids=["empty", "begun", "with tensors", "a stand-in", "refused"],
)
def test_numpy_calls_beside_a_torch_that_is_not_ready(how):
    """Another thread may be importing it."""
    run_python(HALF_IMPORTED.format(how=how))
