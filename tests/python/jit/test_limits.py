# SPDX-License-Identifier: Apache-2.0
"""Resources that the system refuses: the generic kernel runs where it can, with the same bits, and
one line names the cause. What is granted again later is used."""

import os
import resource
import subprocess
import sys
import textwrap

import pytest
from processes import run_python

# Imports all that a call needs, and says how a call of these sizes runs.
READY = """
import limits, resource, rlk
operands(), rlk.jit.settings(), rlk.jit.explain(rlk.jit.linear_logp, *operands())
def compiles():
    return rlk.jit.cache_info().compiles
def error():
    try:
        call()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
"""
GENERIC_LOADED = """
rlk.jit.configure(specialize=False)
generic = call()
rlk.jit.configure(specialize=True)
"""


def run(*codes, **environment):
    return run_python("".join(map(textwrap.dedent, codes)), **environment)


@pytest.fixture
def cache(tmp_path):
    return {"RLK_CACHE_DIR": str(tmp_path / "cache")}


def only_warning(ended):
    # Nobody may write where root's tests have their folders.
    (warning,) = [line for line in ended.stderr if "not writable (Permission denied)" not in line]
    assert warning.startswith("rlk: warning: ")
    return warning


def test_no_thread_for_a_compile_in_the_background(cache):
    ended = run(
        READY,
        """
        with limits.limit(resource.RLIMIT_NPROC, 0):
            first = [call(), call()]
            assert rlk.jit.wait(0) and compiles() == 0
        third = call()
        assert rlk.jit.wait(300) and compiles() == 1
        report(logp=[*first, third, call()])
        """,
        unprivileged=True,
        RLK_JIT="async",
        RLK_NUM_THREADS="1",
        **cache,
    )
    assert ended.report["logp"].count(ended.report["logp"][0]) == 4
    assert ended.report["fallbacks"] == 3
    warning = only_warning(ended)
    assert "the generic kernel runs instead: threads: expected one more, got:" in warning


def test_no_thread_for_the_pool(cache):
    code = """
        big = call(300, 40, 600)
        report(logp=big)
        """
    free = run(READY, code, RLK_NUM_THREADS="4", **cache)
    ended = run(READY, "limits.no_threads()", code, RLK_NUM_THREADS="4", **cache)
    assert ended.report["logp"] == free.report["logp"]
    assert not free.stderr
    assert "CPU kernels run on 1 of 4 threads: threads:" in only_warning(ended)


def test_no_thread_to_compile_in(cache):
    ended = run(READY, "limits.no_threads(); call(); report()", RLK_NUM_THREADS="1", **cache)
    assert ended.report["compiles"] == 1
    assert not ended.stderr


@pytest.mark.parametrize("size_kib", [32, 64, 256])
def test_a_thread_with_a_small_stack(cache, size_kib):
    ended = run(
        READY,
        f"""
        import threading
        results = []
        threading.stack_size({size_kib} << 10)
        thread = threading.Thread(target=lambda: results.append(call()))
        thread.start(), thread.join()
        report(same=results == [call()])
        """,
        **cache,
    )
    assert ended.report["same"]
    assert ended.report["compiles"] == 1
    assert not ended.stderr


def test_a_small_stack_and_no_thread_to_compile_in(cache):
    ended = run(
        READY,
        """
        import threading
        results = []
        threading.stack_size(64 << 10)
        go = threading.Event()
        thread = threading.Thread(target=lambda: (go.wait(), results.append(call())))
        thread.start()
        limits.no_threads()
        go.set(), thread.join()
        assert compiles() == 0
        report(same=results == [call()])
        """,
        RLK_NUM_THREADS="1",
        **cache,
    )
    assert ended.report["same"]
    assert ended.report["compiles"] == 1
    assert "stack: expected 1024 KiB for the compiler, got " in only_warning(ended)


@pytest.mark.parametrize("stack", [256 << 10, resource.RLIM_INFINITY])
def test_stacks_as_ulimit_says(cache, stack):
    code = READY, "call(300, 40, 600); rlk.jit.wait(300); report()"
    for policy in ("sync", "async"):
        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
        if stack == resource.RLIM_INFINITY != hard:
            pytest.skip("the hard limit of the stack is not unlimited")
        resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
        try:
            ended = run(*code, RLK_JIT=policy, RLK_NUM_THREADS="3", **cache)
        finally:
            resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
        assert not ended.stderr


def no_executable_page(more=""):
    return f"""
import limits
why_not = limits.no_written_page_executable()
if why_not:
    print(json.dumps({{"skip": why_not}}))
    raise SystemExit
{more}
"""


def run_hardened(*code, more="", **environment):
    ended = run(no_executable_page(more), *code, **environment)
    if "skip" in ended.report:
        pytest.skip(ended.report["skip"])
    return ended


def test_written_pages_may_not_become_executable(cache):
    code = READY, GENERIC_LOADED, "report(logp=[generic, call()])"
    ended = run_hardened(*code, **cache)
    assert ended.report["logp"] == run(*code, **cache).report["logp"]
    assert ended.report["compiles"] == 1
    assert not ended.stderr


def test_no_page_may_become_executable(cache):
    ended = run_hardened(
        READY, "report(errors=[error(), error()])", more="limits.no_memfd()", **cache
    )
    first, second = ended.report["errors"]
    assert first == second
    assert first.startswith("LoadError: linear_logp: kernel: expected one for linear_logp.fwd[")
    assert "expected memory that may be executed, got: mprotect: " in first
    assert "seccomp" in first
    assert not ended.stderr


def test_no_memory_to_compile_in(cache):
    ended = run(
        READY,
        GENERIC_LOADED,
        """
        with limits.more_memory(50 << 20):
            refused = [call(), call()]
        assert compiles() == 0
        report(same=[*refused, call()] == [generic] * 3)
        """,
        RLK_NUM_THREADS="1",
        **cache,
    )
    assert ended.report["same"]
    assert ended.report["compiles"] == 1
    assert "memory: expected 128 MiB for the compiler, got: Cannot allocate" in only_warning(ended)


@pytest.mark.parametrize("policy", ["sync", "async"])
def test_no_file_descriptor(cache, policy):
    ended = run(
        READY,
        """
        with limits.no_more_files():
            refused = [error(), error()]
        first = call()
        rlk.jit.wait(300)
        report(refused=refused, same=first == call(), now=compiles())
        """,
        RLK_JIT=policy,
        **cache,
    )
    for refused in ended.report["refused"]:
        assert refused.startswith("LoadError: linear_logp: kernel: expected one for ")
        assert "Too many open files" in refused
    assert ended.report["same"]
    assert ended.report["now"] == 1
    assert not ended.stderr


def test_no_file_descriptor_and_a_generic_kernel_that_is_loaded(cache):
    code = (
        READY,
        GENERIC_LOADED,
        """
        with limits.no_more_files():
            refused = [call(), call()]
        assert compiles() == 0 and rlk.jit.cache_info().fallbacks == 2
        report(same=[*refused, call()] == [generic] * 3)
        """,
    )
    ended = run(*code, **cache)
    assert ended.report["same"]
    assert ended.report["compiles"] == 1
    assert "Too many open files" in only_warning(ended)
    # In the cache now, for a process that compiles nothing.
    ended = run(*code, RLK_JIT="off", **cache)
    assert ended.report["same"]
    assert ended.report["disk_hits"] == 2
    assert "Too many open files" in only_warning(ended)


def test_a_file_may_not_grow(cache):
    ended = run(
        READY,
        """
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as in a program that is not Python
        with limits.limit(resource.RLIMIT_FSIZE, 0):
            logp = call()
        report(same=logp == call())
        """,
        **cache,
    )
    assert ended.report["same"]
    assert ended.report["compiles"] == 1
    assert "entry not stored: put: File too large" in only_warning(ended)


def doctor(more):
    code = f"import json, sys\n{more}\nimport rlk._cli; sys.argv[1:] = ['doctor']; rlk._cli.main()"
    support = os.path.dirname(sys.modules["processes"].__file__)
    paths = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_doctor_calls_a_kernel():
    done = doctor("")
    (line,) = [line for line in done.stdout.splitlines() if "cpu calls" in line]
    assert done.returncode == 0
    assert line.endswith("found; one was called")
    done = doctor(no_executable_page())
    if "skip" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    done = doctor(no_executable_page("limits.no_memfd()"))
    (line,) = [line for line in done.stdout.splitlines() if "cpu calls" in line]
    assert done.returncode == 1
    assert line.startswith("fail")
    assert "a call fails: kernel object: expected memory that may be executed" in line
