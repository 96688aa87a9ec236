# SPDX-License-Identifier: Apache-2.0
"""Rights that others set behind us: a kubelet at each mount, a mount with owners of its own."""

import os
import re
import subprocess
import sys

import pytest
from processes import CALL, PACKAGE, PRELUDE, entries, run_python
from rights import mount_with_fs_group

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")


def fix_modes(volume):
    """As a mount that shows one mode for all, whatever chmod asks for."""
    for path in (volume, *volume.rglob("*")):
        path.chmod(0o777)


def squash(volume):
    """As NFS shows what root has made."""
    for path in (volume, *volume.rglob("*")):
        os.chown(path, 65534, 65534)


def give_to_a_group(volume):
    mount_with_fs_group(volume, 54321)


def rlk_jit(*words, **environment):
    command = [PACKAGE / "bin/rlk-jit", "--package", PACKAGE, *words]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(os.getegid() != os.geteuid(), reason="this user has no group of his own")
def test_the_users_own_group_needs_no_setting(tmp_path):
    cache = tmp_path / "rlk"
    run_python(CALL, RLK_CACHE_DIR=str(cache))
    for _ in range(2):
        mount_with_fs_group(cache)
        ended = run_python(CALL, RLK_CACHE_DIR=str(cache))
        assert (ended.report["compiles"], ended.report["disk_hits"]) == (0, 1)
        assert ended.stderr == []


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        pytest.param(give_to_a_group, "group", marks=needs_root),
        pytest.param(squash, "all", marks=needs_root),
        (fix_modes, "all"),
    ],
)
def test_the_setting_that_the_message_names_lasts(tmp_path, change, setting):
    cache, pack = tmp_path / "rlk", tmp_path / "pack"
    where = {"RLK_CACHE_DIR": str(cache)}
    run_python(CALL, **where)
    change(cache)
    refused = run_python(CALL, **where)
    assert refused.report["compiles"] == 1
    (warning,) = refused.warnings
    assert re.findall(r"RLK_CACHE_SHARED=(\w+)", warning) == [setting]
    assert rlk_jit("verify", **where).returncode == 1
    shared = where | {"RLK_CACHE_SHARED": setting}
    for _ in range(2):  # at each mount anew
        change(cache)
        ended = run_python(CALL, **shared)
        assert (ended.report["compiles"], ended.report["disk_hits"]) == (0, 1)
        assert ended.stderr == []
    assert rlk_jit("verify", **shared).returncode == 0
    assert "fail  cache" not in rlk_jit("doctor", **shared).stdout
    assert rlk_jit("export", str(pack), **shared).returncode == 0
    (entry,) = entries(cache)
    (cache / entry).unlink()
    assert rlk_jit("import", str(pack), **shared).returncode == 0
    assert run_python(CALL, **shared).report["disk_hits"] == 1


def test_a_group_with_other_members_is_not_ones_own(tmp_path):
    cache, database = tmp_path / "rlk", tmp_path / "group"
    database.write_text(f"mine:x:{os.geteuid()}:somebody\n")
    run_python(CALL, RLK_CACHE_DIR=str(cache))
    mount_with_fs_group(cache)
    code = "import rlk; rlk.jit.linear_logp(*operands()); report()"
    inside = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-current-user"])]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mounts of one's own can be made here")
    script = 'mount --bind "$1" /etc/group && shift && exec "$@"'
    done = subprocess.run(
        [*inside, "sh", "-c", script, "sh", database, sys.executable, "-c", PRELUDE + code],
        env=os.environ | {"RLK_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "folder refused" in done.stderr
    assert "RLK_CACHE_SHARED=group" in done.stderr
