# SPDX-License-Identifier: Apache-2.0
"""./dev gpu-test on a copy of its scripts, with stand-ins for the tools that its parts run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with an empty pack, and tools that say their name and end well."""
    folder = tmp_path / "a tree"
    (folder / "tests").mkdir(parents=True)
    shutil.copy2(ROOT / "dev", folder)
    shutil.copytree(ROOT / "tests" / "gpu", folder / "tests" / "gpu")
    for name in ("headers", "wheels"):
        (folder / "gpu_pack" / name).mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("cmake", "ctest", "compute-sanitizer"):
        stub(folder, name, f"echo this is {name}")
    return folder


def stub(tree: Path, name: str, body: str) -> None:
    path = tree / "bin" / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tree / "dev"), "gpu-test", *arguments],
        env=os.environ | {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tree,
    )


def table(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    """Part and outcome, from what is printed last."""
    lines = done.stdout.rpartition("logs in ")[2].splitlines()[1:]
    return [(line.split()[0], line.split(" s  ", 1)[1]) for line in lines]


def test_parts_of_benchmarks_run_where_they_are_named(tree: Path) -> None:
    without = [name for name, _ in table(run(tree, "--limit", "0"))]
    assert without[0] == "build"
    assert not {"losses", "everyone"} & {*without}
    assert [name for name, _ in table(run(tree, "--limit", "0", "losses"))] == ["losses"]


def test_parts_run_in_order_and_leave_logs(tree: Path) -> None:
    done = run(tree, "--out", "logs", "ctest", "build")
    assert table(done) == [("build", "ok"), ("ctest", "ok")], done.stdout + done.stderr
    assert done.returncode == 0
    assert "this is ctest" in (tree / "logs" / "ctest.log").read_text()
    card = (tree / "logs" / "card.txt").read_text()
    assert "nvcc" in card
    assert card.splitlines()[-1].startswith("ctest")


def test_a_failed_part_stops_no_later_one(tree: Path) -> None:
    stub(tree, "cmake", "echo no compiler; exit 3")
    done = run(tree, "build", "ctest")
    assert done.returncode == 1
    assert table(done) == [("build", "status 3: cmake --fresh --preset"), ("ctest", "ok")]
    assert "    no compiler" in done.stdout.splitlines()


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tree: Path) -> None:
    stub(tree, "ctest", "sleep 600 & echo $!; wait")
    done = run(tree, "--limit", "2", "ctest")
    assert table(done) == [("ctest", "out of time: ctest --preset gpu")]
    log = (tree / "build" / "gpu-test" / "ctest.log").read_text()
    child = Path("/proc", log.splitlines()[1])
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]


def test_no_tests_collected_is_a_failure(tree: Path) -> None:
    (tree / "tests" / "python" / "gpu").mkdir(parents=True)
    done = run(tree, "pytest")
    assert table(done) == [("pytest", "status 5: python3 -m pytest")]


def test_skipped_tests_alone_are_a_failure(tree: Path) -> None:
    folder = tree / "tests" / "python" / "gpu"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text(
        "import pytest\n\n@pytest.mark.gpu\ndef test_one():\n    pytest.skip('no card')\n"
    )
    done = run(tree, "pytest")
    assert table(done) == [("pytest", r"does not say '\\b\\d+ passed': python3 -m pytest")]


def test_each_sanitizer_must_say_that_it_found_nothing(tree: Path) -> None:
    stub(tree, "compute-sanitizer", "[[ $2 == racecheck ]] || echo ERROR SUMMARY: 0 errors")
    done = run(tree, "sanitize")
    outcome = "does not say 'SUMMARY: 0': compute-sanitizer --tool racecheck"
    assert table(done) == [("sanitize", outcome)]


def test_without_a_pack_it_says_how_to_fill_one(tree: Path) -> None:
    shutil.rmtree(tree / "gpu_pack")
    done = run(tree)
    assert done.returncode == 1
    assert done.stdout == (
        "dev: no gpu_pack here; fill it by ./dev gpu-pack where there is a network\n"
    )
