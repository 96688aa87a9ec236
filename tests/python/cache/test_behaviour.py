# SPDX-License-Identifier: Apache-2.0
"""The kernel cache as processes see it: folders, rights, damage."""

import os
import stat

import pytest
from processes import CALL, entries, leftovers, run_python

# Out of the environment: what would name a folder.
NO_FOLDERS = ("RLK_CACHE_DIR", "XDG_CACHE_HOME", "HOME")


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture(scope="module")
def expected():
    """What the scripts' first call gives, from the built-in generic kernel."""
    return run_python("import rlk; rlk.jit.configure(specialize=False)\n" + CALL).report["logp"]


def test_a_second_process_compiles_nothing(tmp_path, expected):
    cache = tmp_path / "cache"
    first = run_python(CALL, RLK_CACHE_DIR=str(cache))
    assert (first.report["compiles"], first.report["disk_hits"]) == (1, 0)
    assert first.report["llvm"]
    assert len(entries(cache)) == 1
    assert not leftovers(cache)
    second = run_python(CALL, RLK_CACHE_DIR=str(cache))
    assert (second.report["compiles"], second.report["disk_hits"]) == (0, 1)
    assert not second.report["llvm"]  # a warm process never opens the compiler
    assert first.report["logp"] == second.report["logp"] == expected
    assert first.stderr == second.stderr == []


def test_import_touches_nothing(tmp_path):
    ended = run_python(
        """
        import rlk
        assert "torch" not in sys.modules and "ml_dtypes" not in sys.modules
        assert not maps_llvm()
        assert not any("libcuda" in line or "nvrtc" in line for line in open("/proc/self/maps"))
        assert len(os.listdir("/proc/self/task")) == 1
        print(json.dumps(sorted(os.listdir(os.environ["HOME"]))))
        """,
        without=("RLK_CACHE_DIR", "XDG_CACHE_HOME"),
        HOME=str(tmp_path),
        OPENBLAS_NUM_THREADS="1",
    )
    assert ended.reports == [[]]
    assert ended.stderr == []


def test_a_bad_value_does_not_break_the_import():
    run_python("import rlk", RLK_JIT="nonsense")


def test_numpy_alone_does_not_import_torch():
    ended = run_python("call(); report(torch='torch' in sys.modules)", RLK_JIT="off")
    assert ended.report["torch"] is False


def test_the_home_folder(tmp_path):
    run_python(CALL, without=NO_FOLDERS, HOME=str(tmp_path))
    assert len(entries(tmp_path / ".cache/rlk")) == 1
    assert mode(tmp_path / ".cache/rlk") == 0o700


def test_xdg_cache_home(tmp_path):
    run_python(CALL, without=NO_FOLDERS, HOME="/nonexistent", XDG_CACHE_HOME=str(tmp_path))
    assert len(entries(tmp_path / "rlk")) == 1


@pytest.mark.parametrize("home", [None, "/nonexistent", "relative"])
def test_no_home(tmp_path, home, expected):
    environment = {"TMPDIR": str(tmp_path)} | ({"HOME": home} if home else {})
    first = run_python(CALL, without=NO_FOLDERS, **environment)
    assert first.report["logp"] == expected
    (folder,) = os.listdir(tmp_path)
    assert folder.startswith("rlk-")
    assert mode(tmp_path / folder) == 0o700
    assert len(first.warnings) == 1
    assert "RLK_CACHE_DIR" in first.warnings[0]
    second = run_python(CALL, without=NO_FOLDERS, **environment)
    assert second.report["disk_hits"] == 1


def test_the_root_folder_as_home(tmp_path, expected):
    # What a container with a user of no name has: HOME=/ and no right to write there.
    temp = tmp_path / "temp"
    temp.mkdir()
    temp.chmod(0o1777)
    ended = run_python(CALL, unprivileged=True, without=NO_FOLDERS, HOME="/", TMPDIR=str(temp))
    assert ended.report["logp"] == expected
    assert len(ended.warnings) == 1
    assert len(entries(temp / os.listdir(temp)[0])) == 1


def test_no_writable_folder_at_all(tmp_path, expected):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    ended = run_python(
        CALL, unprivileged=True, without=NO_FOLDERS, HOME=str(closed), TMPDIR=str(closed)
    )
    assert ended.report["logp"] == expected
    assert ended.report["compiles"] == 1
    assert len(ended.warnings) == 1
    assert os.listdir(closed) == []


def test_a_folder_that_cannot_be_written(tmp_path, expected):
    cache = tmp_path / "cache"
    run_python(CALL, RLK_CACHE_DIR=str(cache))
    for entry in entries(cache):
        (cache / entry).chmod(0o644)
    cache.chmod(0o555)
    before = os.stat(cache).st_mtime_ns, entries(cache)
    # What lies there is used; what does not is compiled and not stored.
    ended = run_python(
        CALL + "; call(51); call(52); report()", unprivileged=True, RLK_CACHE_DIR=str(cache)
    )
    first, last = ended.reports
    assert (first["disk_hits"], first["compiles"]) == (1, 0)
    assert first["logp"] == expected
    assert (last["disk_hits"], last["compiles"]) == (1, 2)
    assert len(ended.warnings) == 1
    assert "not writable" in ended.warnings[0]
    assert (os.stat(cache).st_mtime_ns, entries(cache)) == before
    cache.chmod(0o755)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_rights_whatever_the_umask(tmp_path, umask):
    cache = tmp_path / "a/b"
    run_python(f"os.umask({umask}); {CALL}", RLK_CACHE_DIR=str(cache))
    assert mode(cache) == 0o700
    (entry,) = entries(cache)
    assert mode(cache / entry) == 0o600
    assert run_python(CALL, RLK_CACHE_DIR=str(cache)).report["disk_hits"] == 1


@pytest.mark.parametrize("right", [0o777, 0o707])
def test_a_folder_that_others_may_write_is_refused(tmp_path, right, expected):
    cache = tmp_path / "cache"
    run_python(CALL, RLK_CACHE_DIR=str(cache))
    cache.chmod(right)
    ended = run_python(CALL, RLK_CACHE_DIR=str(cache))
    assert ended.report["logp"] == expected
    assert ended.report["compiles"] == 1
    assert len(ended.warnings) == 1
    assert "chmod go-w" in ended.warnings[0]


NAMES = ["with spaces", "quo'te\"s", "ünïcødé-目录", "-rf", "$;{}%s%n", "x" * 200]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_of_folders(tmp_path, name):
    cache = tmp_path / name
    assert run_python(CALL, RLK_CACHE_DIR=str(cache)).report["compiles"] == 1
    assert len(entries(cache)) == 1
    assert run_python(CALL, RLK_CACHE_DIR=str(cache)).report["disk_hits"] == 1


def test_a_relative_folder_is_that_of_the_first_call(tmp_path):
    ended = run_python(
        f"""
        os.chdir({str(tmp_path)!r})
        call()
        os.mkdir("elsewhere"); os.chdir("elsewhere")
        call(51)
        report()
        """,
        RLK_CACHE_DIR="relative",
    )
    assert ended.report["compiles"] == 2
    assert len(entries(tmp_path / "relative")) == 2


def test_a_file_in_the_place_of_the_folder(tmp_path, expected):
    (tmp_path / "cache").write_text("no folder")
    ended = run_python(CALL, RLK_CACHE_DIR=str(tmp_path / "cache"))
    assert ended.report["logp"] == expected
    assert len(ended.warnings) == 1
    assert (tmp_path / "cache").read_text() == "no folder"


def test_the_folder_is_removed_while_running(tmp_path):
    cache = tmp_path / "cache"
    ended = run_python(
        """
        import shutil
        before = call()
        shutil.rmtree(os.environ["RLK_CACHE_DIR"])
        assert call() == before
        call(51)
        report()
        """,
        RLK_CACHE_DIR=str(cache),
    )
    assert ended.report["compiles"] == 2
    assert ended.stderr == []
    assert len(entries(cache)) == 1


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0x10
    return bytes(changed)


# What may become of an entry's bytes; `other` is a sound entry of another key.
DAMAGES = {
    "zero length": lambda data, other: b"",
    "one byte": lambda data, other: data[:1],
    "half a head": lambda data, other: data[:20],
    "head alone": lambda data, other: data[:32],
    "no payload": lambda data, other: data[:700],
    "one byte short": lambda data, other: data[:-1],
    "longer": lambda data, other: data + b"\0",
    "wrong magic": lambda data, other: flipped(data, 0),
    "wrong version": lambda data, other: flipped(data, 8),
    "wrong size": lambda data, other: flipped(data, 24),
    "huge size": lambda data, other: flipped(data, 31),
    "flipped in the key": lambda data, other: flipped(data, 40),
    "flipped in the code": lambda data, other: flipped(data, len(data) // 2),
    "flipped checksum": lambda data, other: flipped(data, len(data) - 1),
    "zeros": lambda data, other: bytes(len(data)),
    "text": lambda data, other: b"<html>not found</html>\n",
    "another key": lambda data, other: other,
}


def test_damaged_entries_heal(tmp_path):
    cache, elsewhere = tmp_path / "cache", tmp_path / "other"
    run_python(CALL, RLK_CACHE_DIR=str(elsewhere))
    other = (elsewhere / entries(elsewhere)[0]).read_bytes()
    script = f"report(logp=[call(vocab) for vocab in range(60, {60 + len(DAMAGES)})])"
    sound = run_python(script, RLK_CACHE_DIR=str(cache)).report
    names = entries(cache)
    for name, damage in zip(names, DAMAGES.values(), strict=True):
        data = (cache / name).read_bytes()
        (cache / name).write_bytes(damage(data, other))

    healing = run_python(script, RLK_CACHE_DIR=str(cache))
    assert healing.report["compiles"] == len(DAMAGES)
    assert healing.report["logp"] == sound["logp"]
    assert len(healing.warnings) == len(DAMAGES)
    assert all("damaged" in line for line in healing.warnings)

    healed = run_python(script, RLK_CACHE_DIR=str(cache))
    assert (healed.report["compiles"], healed.report["disk_hits"]) == (0, len(DAMAGES))
    assert healed.report["logp"] == sound["logp"]
    assert healed.stderr == []
    assert not leftovers(cache)


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_what_is_no_file_under_an_entry_s_name(tmp_path, kind, expected):
    cache = tmp_path / "cache"
    run_python(CALL, RLK_CACHE_DIR=str(cache))
    (name,) = entries(cache)
    entry, elsewhere = cache / name, tmp_path / "elsewhere"
    entry.rename(elsewhere)
    if kind == "folder":
        entry.mkdir()
    elif kind == "link":
        entry.symlink_to(elsewhere)
    else:
        os.mkfifo(entry)
    ended = run_python(CALL, RLK_CACHE_DIR=str(cache))
    assert ended.report["logp"] == expected
    assert ended.report["compiles"] == 1
    assert ended.warnings


def test_an_entry_vanishes_between_processes(tmp_path):
    cache = tmp_path / "cache"
    run_python(CALL, RLK_CACHE_DIR=str(cache))
    for name in entries(cache):
        (cache / name).unlink()
    ended = run_python(CALL, RLK_CACHE_DIR=str(cache))
    assert ended.report["compiles"] == 1
    assert ended.stderr == []
