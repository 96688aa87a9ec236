# SPDX-License-Identifier: Apache-2.0
"""The RLK_ variables of the environment."""

import pytest
from devices import host_levels
from processes import CALL, entries, run_python

BAD = [
    ("RLK_JIT", "maybe"),
    ("RLK_JIT", "SYNC"),
    ("RLK_JIT", "1"),
    ("RLK_ARCH", "x86-64-v9"),
    ("RLK_ARCH", "native"),
    ("RLK_ARCH", "x86-64-v2,"),
    ("RLK_VALIDATE", "1"),
    ("RLK_WORKSPACE_MIB", "0"),
    ("RLK_WORKSPACE_MIB", "1048577"),
    ("RLK_NUM_THREADS", "0"),
    ("RLK_NUM_THREADS", "-1"),
    ("RLK_NUM_THREADS", "two"),
    ("RLK_NUM_THREADS", "1.5"),
    ("RLK_NUM_THREADS", "2 "),
    ("RLK_NUM_THREADS", "1025"),
    ("RLK_NUM_THREADS", "99999999999999999999"),
    ("RLK_LOG", "loud"),
]


@pytest.mark.parametrize(("variable", "value"), BAD)
def test_bad_values_of_variables(variable, value):
    ended = run_python(
        """
        import rlk
        for attempt in (call, rlk.jit.cache_info, lambda: rlk.jit.configure(num_threads=1)):
            try:
                attempt()
                raise SystemExit("expected InvalidArgument")
            except rlk.InvalidArgument as error:
                print(json.dumps(str(error)))
        """,
        **{variable: value},
    )
    assert ended.stderr == []
    word = value.split(",")[-1]
    for message in ended.reports:
        assert message.startswith(f"{variable}: expected ")
        assert message.endswith(f'got "{word}"')


@pytest.mark.parametrize(
    "variable", ["RLK_JIT", "RLK_ARCH", "RLK_NUM_THREADS", "RLK_LOG", "RLK_CACHE_DIR"]
)
def test_an_empty_variable_is_unset(tmp_path, variable):
    environment = {"HOME": str(tmp_path), "RLK_CACHE_DIR": str(tmp_path / "cache"), variable: ""}
    ended = run_python(CALL, without=("XDG_CACHE_HOME",), **environment)
    assert ended.report["compiles"] == 1
    assert ended.stderr == []


def test_levels_have_kernels_of_their_own(tmp_path):
    cache = tmp_path / "cache"
    script = """
    import rlk
    logp = call()
    kernel = rlk.jit.explain(rlk.jit.linear_logp, *operands()).kernel
    report(logp=logp, kernel=kernel, arch=rlk.jit.settings()["arch"])
    """
    keys = set()
    for level in host_levels():
        ended = run_python(script, RLK_ARCH=level, RLK_CACHE_DIR=str(cache))
        assert ended.report["compiles"] == 1
        assert ended.report["arch"] == level
        assert ended.report["kernel"] == f"linear_logp.fwd[x=f32 V=50 D=8]@{level}"
        again = run_python(script, RLK_ARCH=level, RLK_CACHE_DIR=str(cache))
        assert again.report["disk_hits"] == 1
        assert again.report["logp"] == ended.report["logp"]
        keys.add(tuple(entries(cache)))
    assert len(keys) == len(host_levels())  # one entry more each time


def test_a_cuda_target_leaves_the_level_as_it_is(tmp_path):
    both = run_python(
        "call(); import rlk; report(arch=rlk.jit.settings()['arch'])", RLK_ARCH="sm_90a,x86-64-v2"
    )
    assert both.report["arch"] == "x86-64-v2,sm_90a"
    empty = {"RLK_CACHE_DIR": str(tmp_path)}  # other tests may have stored the kernel
    alone = run_python("call(); report()", RLK_ARCH="sm_90a", RLK_JIT="off", **empty)
    assert alone.report["fallbacks"] == 1


def test_threads_by_variable():
    script = "import rlk; report(threads=rlk.jit.settings()['num_threads'], logp=call(50, 8, 300))"
    three = run_python(script, RLK_NUM_THREADS="3", RLK_JIT="off").report
    one = run_python(script, OMP_NUM_THREADS="1", RLK_JIT="off").report
    assert (three["threads"], one["threads"]) == (3, 1)
    assert three["logp"] == one["logp"]


def test_info_says_what_is_compiled(tmp_path):
    ended = run_python(CALL, RLK_LOG="info", RLK_CACHE_DIR=str(tmp_path / "cache"))
    lines = [line for line in ended.warnings if "compiled" in line]
    assert len(lines) == 1
    assert "linear_logp.fwd[x=f32 V=50 D=8]@x86-64-v" in lines[0]
