# SPDX-License-Identifier: Apache-2.0
"""RLK_JIT=async: the generic kernel at once, the specialized one when it is compiled."""

import os
import signal

import pytest
from processes import run_python

import rlk


@pytest.fixture
def environment(tmp_path):
    return {"RLK_JIT": "async", "RLK_CACHE_DIR": str(tmp_path)}


def test_the_specialized_kernel_takes_over_with_the_same_bits(environment):
    ended = run_python(
        """
        import rlk
        first = call(300, 40, 20)
        found = [rlk.jit.explain(rlk.jit.linear_logp, *operands(300, 40, 20)).variant]
        assert rlk.jit.wait() and rlk.jit.wait(0)
        later = call(300, 40, 20)
        found.append(rlk.jit.explain(rlk.jit.linear_logp, *operands(300, 40, 20)).variant)
        report(same=first == later, found=found)
        """,
        **environment,
    )
    report = ended.report
    assert report["same"]
    assert report["found"] == ["generic", "specialized"]
    assert (report["compiles"], report["fallbacks"]) == (1, 1)
    assert not ended.warnings
    again = run_python("call(300, 40, 20); report()", **environment).report
    assert (again["disk_hits"], again["compiles"], again["fallbacks"]) == (1, 0, 0)


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "import rlk; rlk.jit.wait(0)"])
def test_a_process_may_end_in_the_middle_of_compiles(environment, end):
    ended = run_python(
        f"""
        for vocab in range(50, 62):
            call(vocab)
        print(json.dumps("done"), flush=True)
        {end}
        """,
        timeout=300,
        **environment,
    )
    assert ended.report == "done"
    assert not ended.stderr


def test_a_fork_in_the_middle_of_compiles(environment):
    ended = run_python(
        """
        import rlk
        for vocab in range(50, 56):
            call(vocab)
        child = os.fork()
        for vocab in (50, 55, 60):
            call(vocab)
        assert rlk.jit.wait(300)
        same = [call(vocab) for vocab in (50, 55, 60)]
        rlk.jit.configure(specialize=False)
        same = same == [call(vocab) for vocab in (50, 55, 60)]
        report(child=child == 0, same=same, variants=rlk.jit.cache_info().fallbacks)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
        timeout=100,
        **environment,
    )
    assert sorted(report["child"] for report in ended.reports) == [False, True]
    assert all(report["same"] for report in ended.reports)
    assert not ended.warnings


@pytest.mark.parametrize("policy", ["sync", "async"])
def test_a_fork_passes_a_build_that_waits_for_its_turn(environment, policy, tmp_path):
    environment["RLK_JIT"] = policy
    ended = run_python(
        f"""
        import fcntl, threading, time
        call(51)
        import rlk
        assert rlk.jit.wait(300)
        waits, ends = os.pipe(), os.pipe()
        holder = os.fork()
        if holder == 0:  # as if it compiled everything
            lock = os.open({str(tmp_path / ".lock")!r}, os.O_RDWR)
            fcntl.lockf(lock, fcntl.LOCK_EX)
            os.write(waits[1], b".")
            os.close(ends[1])
            os.read(ends[0], 1)
            os._exit(0)
        os.read(waits[0], 1)
        import rlk
        rlk.jit.configure(log="info")
        thread = threading.Thread(target=call, args=(52,))
        thread.start()
        time.sleep(0.5)
        child = os.fork()
        if child == 0:
            rlk.jit.cache_info()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        compiles = rlk.jit.cache_info().compiles
        os.close(ends[1])
        thread.join()
        assert rlk.jit.wait(300)
        assert os.waitpid(holder, 0)[1] == 0
        report(before=compiles)
        """,
        timeout=100,
        **environment,
    )
    assert any("another process compiles" in line for line in ended.stderr)
    assert ended.report["compiles"] == ended.report["before"] + 1


def test_a_fork_waits_for_what_is_compiled_not_for_what_is_queued(environment):
    ended = run_python(
        """
        import rlk
        for vocab in range(50, 65):
            call(vocab)
        child = os.fork()
        if child == 0:
            os._exit(0)
        done = rlk.jit.cache_info().compiles
        assert os.waitpid(child, 0)[1] == 0
        assert rlk.jit.wait(300)
        report(done=done)
        """,
        **environment,
    )
    assert ended.report["done"] < 15
    assert ended.report["compiles"] == 15


def test_a_process_that_waits_for_its_turn_may_end(environment, tmp_path):
    ended = run_python(
        f"""
        import fcntl, signal, time
        call(51)
        import rlk
        rlk.jit.wait()
        waits = os.pipe()
        holder = os.fork()
        if holder == 0:
            lock = os.open({str(tmp_path / ".lock")!r}, os.O_RDWR)
            fcntl.lockf(lock, fcntl.LOCK_EX)
            os.closerange(1, 3)  # else whoever reads them would wait for this process
            os.write(waits[1], b".")
            signal.pause()
        os.read(waits[0], 1)
        call(52)
        time.sleep(0.5)  # it waits by now
        print(json.dumps(holder), flush=True)
        """,
        timeout=300,
        **environment,
    )
    os.kill(ended.report, signal.SIGKILL)


def test_wait_without_work_returns_at_once():
    assert rlk.jit.wait()
    assert rlk.jit.wait(0)


@pytest.mark.parametrize("timeout", ["1", -1, float("nan"), True, [1]])
def test_a_time_to_wait_that_is_none_is_refused(timeout):
    with pytest.raises(rlk.InvalidArgument, match="wait: timeout_s: expected a number of seconds"):
        rlk.jit.wait(timeout)


@pytest.mark.parametrize("timeout", [1e300, float("inf")])
def test_a_time_to_wait_may_be_beyond_any_clock(environment, timeout):
    ended = run_python(
        f"""
        import rlk
        call(52)
        report(done=rlk.jit.wait(float("{timeout}")))
        """,
        **environment,
    )
    assert ended.report["done"]
    assert ended.report["compiles"] == 1


def test_wait_hears_an_interrupt(environment):
    ended = run_python(
        """
        import rlk, signal
        for vocab in range(50, 80):
            call(vocab)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        class Heard(Exception): pass
        def hear(*_): raise Heard
        signal.signal(signal.SIGALRM, hear)
        try:
            rlk.jit.wait()
            print(json.dumps("not heard"))
        except Heard:
            print(json.dumps("heard"))
        """,
        **environment,
    )
    assert ended.report == "heard"
