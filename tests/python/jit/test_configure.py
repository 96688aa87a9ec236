# SPDX-License-Identifier: Apache-2.0
"""configure, settings, cache_info and explain."""

import os
import pickle
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from devices import host_levels
from problems import problem
from processes import run_python
from reference import same_bits

import rlk


def counted(call):
    before = rlk.jit.cache_info()
    call()
    after = rlk.jit.cache_info()
    return rlk.jit.CacheInfo(*(b - a for a, b in zip(before, after, strict=True)))


def test_cache_info_is_a_named_tuple_of_integers():
    info = rlk.jit.cache_info()
    assert info._fields == (
        "memory_hits",
        "disk_hits",
        "compiles",
        "fallbacks",
        "loaded",
        "alternatives",
    )
    assert all(type(value) is int for value in info)


def test_counters_of_a_first_and_a_second_call():
    p = problem(3, 8, 701)
    assert counted(p.logp)[:4] == (0, 0, 1, 0)
    assert counted(p.logp)[:4] == (1, 0, 0, 0)
    # The backward runs the forward again, and is a kernel of its own.
    assert counted(p.grads)[:4] == (1, 0, 1, 0)
    assert counted(p.grads)[:4] == (2, 0, 0, 0)


def test_rows_options_and_layouts_share_a_kernel():
    p = problem(3, 8, 702, bias="float32")
    p.logp()
    many = problem((5, 7), 8, 702)
    info = counted(
        lambda: (
            many.logp(temperature=0.7),
            many.logp(mask=np.ones((5, 7))),
            rlk.jit.linear_logp(p.hidden[:, ::-1], np.asfortranarray(p.weight), p.target),
            rlk.jit.linear_logp(p.hidden[:0], p.weight, p.target[:0]),
        )
    )
    assert info[:4] == (4, 0, 0, 0)


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_a_kernel_for_each_dtype_and_shape(kind):
    base = problem(3, 9, 703, kind)
    assert counted(base.logp).compiles == 1
    assert counted(problem(3, 10, 703, kind).logp).compiles == 1
    assert counted(problem(3, 9, 704, kind).logp).compiles == 1


def test_a_refused_call_counts_nothing():
    p = problem(3, 8, 705)

    def refused():
        with pytest.raises(rlk.InvalidArgument):
            rlk.jit.linear_logp(p.hidden, p.weight, p.target[:1])

    assert counted(refused)[:4] == (0, 0, 0, 0)


def test_generic_only():
    rlk.jit.configure(specialize=False)
    p = problem(3, 8, 706)
    info = counted(p.logp)
    assert (info.compiles, info.fallbacks) == (0, 0)  # as asked for is no fallback
    assert rlk.jit.explain(rlk.jit.linear_logp, *p.operands).variant == "generic"
    generic = p.logp()
    rlk.jit.configure(specialize=True)
    assert counted(p.logp).compiles == 1
    assert same_bits(p.logp(), generic)


def test_policy_off(capfd):
    p, other = problem(3, 8, 707), problem(3, 8, 708)
    rlk.jit.configure(policy="off")
    assert counted(lambda: (p.logp(), p.logp(), other.logp())).fallbacks == 3
    assert capfd.readouterr().err == ""  # as asked for
    off = p.logp()
    # Back in sync, the same call is no longer held by what was remembered.
    rlk.jit.configure(policy="sync")
    assert counted(p.logp).compiles == 1
    assert same_bits(p.logp(), off)
    assert counted(p.logp).fallbacks == 0


def test_a_new_cache_folder(tmp_path):
    rlk.jit.configure(cache_dir=str(tmp_path / "new"))
    assert rlk.jit.settings()["cache_dir"] == str(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    p = problem(3, 8, 709)
    assert counted(p.logp).compiles == 1
    assert len(list((tmp_path / "new").glob("*.rlk"))) == 1


def test_levels():
    p = problem(3, 8, 710)
    rlk.jit.configure(specialize=False)
    for level in host_levels():
        rlk.jit.configure(arch=level)
        assert rlk.jit.settings()["arch"] == level
        assert rlk.jit.explain(rlk.jit.linear_logp, *p.operands).kernel.endswith(f"@{level}")
        logp = p.logp()
        np.testing.assert_allclose(logp, p.reference().forward().value, atol=2e-5)


def test_a_forced_tile_is_undone_by_its_word():
    assert rlk.jit.settings()["tile"] == "tuned"
    rlk.jit.configure(tile="128-dynamic")
    assert rlk.jit.settings()["tile"] == "128-dynamic"
    rlk.jit.configure(tile="tuned")
    assert rlk.jit.settings()["tile"] == "tuned"


def test_a_forced_tile_changes_no_cpu_kernel():
    p = problem(3, 8, 719)
    want = p.logp()
    rlk.jit.configure(tile="64-static")
    assert counted(p.logp)[:4] == (1, 0, 0, 0)
    assert same_bits(p.logp(), want)


def test_settings_are_those_configured():
    wanted = {
        "num_threads": 3,
        "policy": "off",
        "log": "error",
        "specialize": False,
        "arch": "x86-64-v2,compute_80",
        "validate": "sync",
        "workspace_mib": 64,
        "saved_mib": 32,
        "max_sms": 7,
        "tile": "64-static",
    }
    rlk.jit.configure(**wanted)
    settings = rlk.jit.settings()
    assert {name: settings[name] for name in wanted} == wanted
    rlk.jit.configure()
    assert rlk.jit.settings() == settings
    assert set(settings) == {
        "policy",
        "arch",
        "cache_dir",
        "num_threads",
        "log",
        "specialize",
        "validate",
        "workspace_mib",
        "saved_mib",
        "max_sms",
        "tile",
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"policy": "maybe"}, 'sync, async or off, got "maybe"'),
        ({"arch": "x86-64-v9"}, '.*, got "x86-64-v9"'),
        ({"arch": ""}, ""),
        ({"arch": "sm_80,sm_90a"}, "one target a backend, got sm_80 and sm_90a"),
        ({"num_threads": 0}, "a whole number from 1 to 1024, got 0"),
        ({"num_threads": -3}, "a whole number from 1 to 1024, got -3"),
        ({"num_threads": 9999}, "a whole number from 1 to 1024"),
        ({"log": "loud"}, '.*, got "loud"'),
        ({"validate": "on"}, 'async or sync, got "on"'),
        ({"workspace_mib": 0}, "a whole number from 1 to 1048576, got 0"),
        ({"tile": "32-wide"}, 'one of tuned, .*64-static.*, got "32-wide"'),
        ({"tile": ""}, 'one of tuned, .*, got ""'),
        ({"policy": "sync\r"}, r'sync, async or off, got "sync\\x0d"'),
        ({"cache_dir": "~/x"}, 'a path in full .*, got "~/x"'),
        ({"cache_dir": Path("~/x")}, "a path in full"),
        ({"cache_dir": "/x\r"}, r'a path .*, got "/x\\x0d"'),
        ({"cache_dir": "/x\0"}, r'a path .*, got "/x\\x00"'),
        ({"cache_dir": ""}, 'a path, got ""'),
    ],
)
def test_a_wrong_value_changes_nothing(change, expected):
    before = rlk.jit.settings()
    other = {"policy": "off", "num_threads": 7, "specialize": False, "log": "error"}
    (name,) = change
    with pytest.raises(rlk.InvalidArgument, match=f"^configure: {name}: expected {expected}"):
        rlk.jit.configure(**other | change)
    assert rlk.jit.settings() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"specialize": "no"}, "configure: specialize: expected bool, got 'no'"),
        ({"specialize": 1}, "configure: specialize: expected bool, got 1"),
        ({"num_threads": 2.5}, "configure: num_threads: expected int, got 2.5"),
        ({"num_threads": True}, "configure: num_threads: expected int, got True"),
        ({"workspace_mib": "512M"}, "configure: workspace_mib: expected int, got '512M'"),
        ({"policy": True}, "configure: policy: expected str, got True"),
        ({"tile": 1}, "configure: tile: expected str, got 1"),
        ({"cache_dir": 5}, "configure"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_value_of_a_wrong_type(change, message):
    with pytest.raises(TypeError, match=message):
        rlk.jit.configure(**change)


def test_a_bool_of_numpy_is_one():
    rlk.jit.configure(specialize=np.False_)
    assert rlk.jit.settings()["specialize"] is False
    rlk.jit.configure(specialize=np.True_)
    assert rlk.jit.settings()["specialize"] is True
    with pytest.raises(TypeError, match="configure: num_threads: expected int"):
        rlk.jit.configure(num_threads=np.True_)


def test_explain_before_and_after():
    p = problem(3, 8, 711)
    before = rlk.jit.explain(rlk.jit.linear_logp, *p.operands)
    assert before.kernel.startswith("linear_logp.fwd[x=f32 V=711 D=8]@x86-64-v")
    assert (before.variant, before.source) == ("specialized", "compile")
    assert len(before.key) == 32
    assert counted(lambda: rlk.jit.explain(rlk.jit.linear_logp, *p.operands))[:4] == (0, 0, 0, 0)
    p.logp()
    after = rlk.jit.explain(rlk.jit.linear_logp, *p.operands)
    assert (after.variant, after.source) == ("specialized", "loaded")
    assert (after.kernel, after.key) == (before.kernel, before.key)
    assert after.kernel in str(after)
    assert after.key in str(after)


def test_explain_the_backward():
    p = problem(3, 8, 711)
    backward = rlk.jit.explain(rlk.jit.linear_logp, *p.operands, backward=True)
    assert backward.kernel.startswith("linear_logp.bwd[x=f32 V=711 D=8]@")
    assert backward.key != rlk.jit.explain(rlk.jit.linear_logp, *p.operands).key


def test_explain_what_lies_in_the_cache(tmp_path):
    ended = run_python(
        """
        import rlk
        explained = rlk.jit.explain(rlk.jit.linear_logp, *operands())
        report(explained=explained)
        """,
        RLK_CACHE_DIR=str(tmp_path),
    )
    assert ended.report["explained"][3] == "compile"
    run_python("call()", RLK_CACHE_DIR=str(tmp_path))
    ended = run_python(
        "import rlk; report(explained=rlk.jit.explain(rlk.jit.linear_logp, *operands()))",
        RLK_CACHE_DIR=str(tmp_path),
    )
    assert ended.report["explained"][3] == "cache"
    assert ended.report["disk_hits"] == 0


def test_explain_a_fallback(tmp_path):
    script = """
    import rlk
    rlk.jit.configure(policy="off", log="error")
    before = rlk.jit.explain(rlk.jit.linear_logp, *operands())
    call()
    report(before=before, after=rlk.jit.explain(rlk.jit.linear_logp, *operands()))
    """
    ended = run_python(script, RLK_CACHE_DIR=str(tmp_path))
    before, after = (rlk.jit.Explanation(*ended.report[name]) for name in ("before", "after"))
    assert (before.variant, before.source) == ("generic", "cache")
    assert (after.variant, after.source, after.key) == ("generic", "loaded", before.key)
    assert "RLK_JIT=off" in before.reason
    assert "RLK_JIT=off" in after.reason


def test_options_do_not_change_the_key():
    p = problem(3, 8, 713, bias="float32")
    key = rlk.jit.explain(rlk.jit.linear_logp, *p.operands).key
    assert (
        rlk.jit.explain(
            rlk.jit.linear_logp, *p.operands, temperature=0.5, mask=np.ones(3), ignore_index=7
        ).key
        == key
    )
    rlk.jit.configure(num_threads=1, log="info")
    assert rlk.jit.explain(rlk.jit.linear_logp, *p.operands).key == key


def test_the_version():
    from importlib import metadata

    assert rlk.__version__.count(".") == 2
    try:
        installed = metadata.version("rlk")
    except metadata.PackageNotFoundError:
        return  # run from a build folder
    assert installed == rlk.__version__


def test_all_public_names_exist():
    for module in (rlk, rlk.jit):
        for name in module.__all__:
            assert hasattr(module, name)
            assert getattr(module, name).__doc__ or name == "__version__"


@pytest.mark.parametrize("name", rlk.jit.__all__)
def test_public_names_are_of_rlk_jit(name):
    public = getattr(rlk.jit, name)
    assert public.__module__ == "rlk.jit"
    assert pickle.loads(pickle.dumps(public)) is public
    assert get_type_hints(public)  # each name in an annotation is found


def test_a_cache_folder_of_any_bytes(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    ended = run_python(
        """
        call()
        import rlk
        shown = rlk.jit.settings()["cache_dir"]
        rlk.jit.configure(cache_dir=shown)  # and what it shows it takes
        assert os.fsencode(shown) == os.environb[b"RLK_CACHE_DIR"]
        assert sum(name.endswith(".rlk") for name in os.listdir(shown)) == 1
        import pathlib
        rlk.jit.configure(cache_dir=pathlib.Path(shown))
        report()
        """,
        RLK_CACHE_DIR=folder,
    )
    assert ended.report["compiles"] == 1
