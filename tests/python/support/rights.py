# SPDX-License-Identifier: Apache-2.0
"""Sets rights behind rlk's back, as orchestrators and mounts do."""

import os
from pathlib import Path


def mount_with_fs_group(volume: Path, group: int | None = None) -> None:
    """What a kubelet does to a volume with fsGroup at each mount; by default to a group of ours."""
    for path in (volume, *volume.rglob("*")):
        added = 0o2770 if path.is_dir() else 0o660
        os.chown(path, -1, os.getegid() if group is None else group)
        path.chmod(path.stat().st_mode & 0o7777 | added)
