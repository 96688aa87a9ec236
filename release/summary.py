# SPDX-License-Identifier: Apache-2.0
"""Writes SHA256SUMS beside the files of a release and prints what they are: summary.py FOLDER."""

import hashlib
import sys
from pathlib import Path

from packaging.utils import parse_wheel_filename

MIB = 1 << 20


def kernels_in(pack: bytes) -> int:
    """The number of members, which stands before the checksum at the end of a pack."""
    return int.from_bytes(pack[-24:-16], "little")


def content(path: Path, data: bytes) -> str:
    """What a file is, in a few words."""
    if path.suffix == ".pack":
        return f"{kernels_in(data)} kernels"
    tags = {tag.interpreter for tag in parse_wheel_filename(path.name)[3]}
    return f"wheel for {', '.join(sorted(tags))}"


def main(folder: Path) -> None:
    """One line a file."""
    sums = []
    print(f"{'file':76} {'MiB':>6}  {'content':32} sha256")
    for path in sorted(folder.glob("rlk-*")):
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        sums.append(f"{digest}  {path.name}\n")
        print(f"{path.name:76} {len(data) / MIB:6.1f}  {content(path, data):32} {digest}")
    (folder / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
