# SPDX-License-Identifier: Apache-2.0
"""Words of the environment and of the command line that no shell has made ready, and streams that
the caller has closed."""

import os
import subprocess
import sys
import textwrap

import pytest
from processes import CALL, PACKAGE, PRELUDE, leftovers, run_python

REFUSED = """
import rlk
try:
    call()
except rlk.InvalidArgument as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.mark.parametrize("variable", ["RLK_CACHE_DIR", "RLK_TRACE", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [("~/k", "~/k"), ("$HOME/k", "$HOME/k"), ("{}/rlk\r", "{}/rlk\\x0d"), (" {}/k", " {}/k")],
)
def test_a_path_that_nobody_can_have_meant_is_an_error(
    tmp_path, monkeypatch, variable, value, shown
):
    monkeypatch.chdir(tmp_path)
    without = ("RLK_CACHE_DIR", "XDG_CACHE_HOME")
    ended = run_python(REFUSED, without=without, **{variable: value.format(tmp_path)})
    assert ended.report["error"].startswith(f"{variable}: expected a path ")
    assert ended.report["error"].endswith(f', got "{shown.format(tmp_path)}"')
    assert os.listdir(tmp_path) == []


def test_a_folder_truly_named_so_can_be_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_python(CALL, RLK_CACHE_DIR="./~").report["compiles"] == 1
    assert (tmp_path / "~").is_dir()


def test_a_relative_cache_home_is_told(tmp_path):
    ended = run_python(CALL, without=("RLK_CACHE_DIR",), XDG_CACHE_HOME="cache", HOME=str(tmp_path))
    (warning,) = ended.warnings
    assert 'XDG_CACHE_HOME: expected an absolute path, got "cache"' in warning
    assert (tmp_path / ".cache/rlk").is_dir()


def rlk_jit(line: str, folder, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which `rlk` is the program."""
    rlk = f'rlk() {{ "{PACKAGE}/bin/rlk-jit" --package "{PACKAGE}" "$@"; }}\n'
    env = os.environ | {"RLK_CACHE_DIR": str(folder / "cache")} | environment
    return subprocess.run(
        ["bash", "-c", rlk + line], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words",
    ["--cache-dir=~/k list", "--layer=~/k list", "export '$HOME/p'", "warm --trace=~/t", "warm ~"],
)
def test_paths_of_the_command_line_are_checked_too(tmp_path, words):
    done = rlk_jit(f"rlk {words.replace('warm ~', 'warm $tilde')}", tmp_path, tilde="~/m")
    assert done.returncode == 2
    assert ": expected a path in full" in done.stderr
    assert os.listdir(tmp_path) == []


def test_an_empty_folder_of_the_command_line_is_not_the_default(tmp_path):
    done = rlk_jit('rlk --cache-dir "" clear --yes', tmp_path)
    assert done.returncode == 2
    assert '--cache-dir: expected a path, got ""' in done.stderr


@pytest.mark.parametrize(
    ("to", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
@pytest.mark.parametrize("words", ["list", "list --html -", "doctor"])
def test_output_that_cannot_be_written_is_an_error_that_says_why(tmp_path, to, why, words):
    done = rlk_jit(f"rlk {words} {to}", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"rlk-jit: stdout: {why}"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_the_log_goes_into_no_file_of_the_cache(tmp_path, closed):
    """With stderr closed, the next file opened gets its number: it was the lock."""
    line = f"rlk warm V=64,D=8 --op logp --dtype fp32 {closed}"
    rlk_jit(line, tmp_path, RLK_LOG="trace")
    python = f'"$python" -c "$code" {closed}'
    other = {"python": sys.executable, "code": PRELUDE + "call()", "RLK_LOG": "trace"}
    rlk_jit(python, tmp_path, **other)
    cache = tmp_path / "cache"
    assert (cache / ".lock").stat().st_size == 0
    assert leftovers(cache) == []
    assert "rlk:" not in (cache / ".usage").read_text()
    assert rlk_jit("rlk verify", tmp_path).returncode == 0


def test_the_log_goes_into_no_file_of_the_caller(tmp_path):
    code = """
    call(51)
    with open("mine", "w") as mine:
        assert mine.fileno() == 2
        call(52)
    """
    env = {"code": PRELUDE + textwrap.dedent(code), "python": sys.executable, "RLK_LOG": "trace"}
    assert rlk_jit('"$python" -c "$code" 2>&-', tmp_path, **env).returncode == 0
    assert (tmp_path / "mine").read_text() == ""


def test_a_number_of_threads_that_is_none_is_told(tmp_path):
    ended = run_python(CALL, OMP_NUM_THREADS="2\r", RLK_CACHE_DIR=str(tmp_path))
    (warning,) = ended.warnings
    assert 'OMP_NUM_THREADS: expected a whole number above 0, got "2\\x0d"' in warning


def test_a_user_site_that_cannot_be_looked_at_is_passed_by():
    """As another user's home is under the HOME of an image."""
    ended = run_python(
        """
        import site
        from rlk._program import site_folders
        site.ENABLE_USER_SITE = True
        print(json.dumps(site_folders()))
        """,
        PYTHONUSERBASE="/" + "x" * 300,  # refused to root as well
    )
    assert ended.report
