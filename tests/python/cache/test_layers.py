# SPDX-License-Identifier: Apache-2.0
"""Many processes over one cache, layers that others have filled, sharing and the budget."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import CALL, entries, leftovers, run_python


def test_processes_that_start_together_compile_once(tmp_path):
    cache = str(tmp_path / "cache")
    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(lambda _: run_python(CALL, RLK_CACHE_DIR=cache), range(8)))
    assert sum(one.report["compiles"] for one in ended) == 1
    assert sum(one.report["disk_hits"] for one in ended) == 7
    assert len({str(one.report["logp"]) for one in ended}) == 1
    assert [one.stderr for one in ended] == [[]] * 8
    assert len(entries(tmp_path / "cache")) == 1
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("policy", ["sync", "async", "off"])
def test_a_read_only_layer_serves(tmp_path, policy):
    image, own = tmp_path / "image", tmp_path / "own"
    first = run_python(CALL, RLK_CACHE_DIR=str(image))
    before = image.stat().st_mtime_ns, entries(image)
    ended = run_python(
        CALL,
        RLK_JIT=policy,
        RLK_CACHE_DIR=str(own),
        RLK_CACHE_PATH=f"{tmp_path}/absent:{image}",
    )
    assert (ended.report["compiles"], ended.report["disk_hits"]) == (0, 1)
    assert ended.report["fallbacks"] == 0
    assert ended.report["logp"] == first.report["logp"]
    assert not ended.report["llvm"]
    assert ended.stderr == []
    assert (image.stat().st_mtime_ns, entries(image)) == before
    assert not own.exists()


def test_the_own_layer_comes_first(tmp_path):
    image, own = tmp_path / "image", tmp_path / "own"
    for folder in (image, own):
        run_python(CALL, RLK_CACHE_DIR=str(folder))
    (entry,) = entries(image)
    (image / entry).write_bytes(b"damage")
    layers = {"RLK_CACHE_DIR": str(own), "RLK_CACHE_PATH": str(image)}
    ended = run_python(CALL, **layers)
    assert (ended.report["compiles"], ended.report["disk_hits"]) == (0, 1)
    assert ended.stderr == []
    (own / entry).unlink()
    ended = run_python(CALL, **layers)
    assert ended.report["compiles"] == 1
    assert len(ended.warnings) == 1
    assert "damaged entry not used" in ended.warnings[0]
    assert entries(own) == [entry]


def test_a_group_shares(tmp_path):
    cache = tmp_path / "cache"
    shared = {"RLK_CACHE_DIR": str(cache), "RLK_CACHE_SHARED": "group"}
    run_python("os.umask(0o077)\n" + CALL, **shared)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o2770
    (entry,) = entries(cache)
    assert stat.S_IMODE((cache / entry).stat().st_mode) == 0o660
    assert run_python(CALL, **shared).report["disk_hits"] == 1


def test_the_budget_is_kept(tmp_path):
    ended = run_python(CALL, RLK_CACHE_DIR=str(tmp_path), RLK_CACHE_SIZE="1K")
    assert ended.report["compiles"] == 1
    assert ended.stderr == []
    assert entries(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == [".lock", ".swept", ".usage"]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("RLK_CACHE_PATH", "relative", "expected absolute folders separated by colons"),
        ("RLK_CACHE_SHARED", "any", "expected owner, group or all"),
        ("RLK_CACHE_SIZE", "1.5G", "expected a size such as 500M, 1GiB or 0 (no limit)"),
    ],
)
def test_a_bad_value_is_named(variable, value, words):
    ended = run_python(
        """
        import rlk
        try:
            call()
        except rlk.InvalidArgument as error:
            print(json.dumps({"error": str(error)}))
        """,
        **{variable: value},
    )
    assert ended.report["error"] == f'{variable}: {words}, got "{value}"'
