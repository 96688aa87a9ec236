# SPDX-License-Identifier: Apache-2.0
"""No compiler at hand, or none wanted: the generic kernels run, and one line says so."""

import shutil

import pytest
from processes import CALL, PACKAGE, run_python

THREE = "report(logp=[call(), call(51), call()], variant=variant(), llvm=maps_llvm())"
VARIANT = """
def variant():
    import rlk
    return rlk.jit.explain(rlk.jit.linear_logp, *operands()).variant
"""


@pytest.fixture(scope="module")
def package_without_llvm(tmp_path_factory):
    """A copy of the package that has no librlk_llvm.so."""
    copy = tmp_path_factory.mktemp("without llvm") / "rlk"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("librlk_llvm.so", "__pycache__"))
    copy.joinpath("builtin").chmod(0o755)
    return copy


def test_the_compiler_s_library_is_missing(tmp_path, package_without_llvm):
    cache = tmp_path / "cache"
    ended = run_python(VARIANT + THREE, package=package_without_llvm, RLK_CACHE_DIR=str(cache))
    normal = run_python(VARIANT + THREE, RLK_CACHE_DIR=str(tmp_path / "other"))
    assert ended.report["logp"] == normal.report["logp"]
    assert ended.report["variant"] == "generic"
    assert normal.report["variant"] == "specialized"
    assert (ended.report["compiles"], ended.report["fallbacks"]) == (0, 3)
    assert len(ended.warnings) == len(ended.stderr) == 1
    assert "librlk_llvm.so is missing" in ended.warnings[0]
    assert not cache.exists()


def test_the_compiler_s_library_is_not_one(tmp_path, package_without_llvm):
    broken = tmp_path / "rlk"
    shutil.copytree(package_without_llvm, broken)
    (broken / "librlk_llvm.so").write_text("not a library")
    ended = run_python(VARIANT + THREE, package=broken, RLK_CACHE_DIR=str(tmp_path / "cache"))
    assert ended.report["fallbacks"] == 3
    assert len(ended.warnings) == len(ended.stderr) == 1
    assert "librlk_llvm.so" in ended.warnings[0]


def test_a_warm_cache_needs_no_compiler(tmp_path, package_without_llvm):
    cache = str(tmp_path / "cache")
    warm = run_python(CALL, RLK_CACHE_DIR=cache).report
    ended = run_python(CALL, package=package_without_llvm, RLK_CACHE_DIR=cache)
    assert (ended.report["disk_hits"], ended.report["fallbacks"]) == (1, 0)
    assert ended.report["logp"] == warm["logp"]
    assert ended.stderr == []


def test_neither_compiler_nor_built_in_kernels(tmp_path, package_without_llvm):
    bare = tmp_path / "rlk"
    shutil.copytree(package_without_llvm, bare, ignore=shutil.ignore_patterns("builtin"))
    ended = run_python(
        """
        import rlk
        for _ in range(2):
            try:
                call()
                raise SystemExit("expected Unsupported")
            except rlk.Unsupported as error:
                report(message=str(error))
        """,
        package=bare,
        RLK_CACHE_DIR=str(tmp_path / "cache"),
    )
    for said in ended.reports:
        for word in ("linear_logp", "x86-64-v", "f32", "librlk_llvm.so"):
            assert word in said["message"]


def test_off_never_compiles(tmp_path):
    cache = tmp_path / "cache"
    ended = run_python(VARIANT + THREE, RLK_JIT="off", RLK_CACHE_DIR=str(cache))
    assert (ended.report["compiles"], ended.report["fallbacks"]) == (0, 3)
    assert ended.report["variant"] == "generic"
    assert not ended.report["llvm"]
    assert ended.stderr == []  # it is what was asked for
    assert not cache.exists()


def test_off_uses_what_is_stored(tmp_path):
    cache = str(tmp_path / "cache")
    warm = run_python(CALL, RLK_CACHE_DIR=cache).report
    ended = run_python(CALL, RLK_JIT="off", RLK_CACHE_DIR=cache)
    assert (ended.report["disk_hits"], ended.report["fallbacks"]) == (1, 0)
    assert ended.report["logp"] == warm["logp"]
    assert ended.stderr == []
