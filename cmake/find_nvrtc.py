# SPDX-License-Identifier: Apache-2.0
"""Prints the path of libnvrtc in an installed wheel, or nothing: find_nvrtc.py WHEEL VERSION."""

import sys
from importlib.metadata import PackageNotFoundError, distribution


def find(wheel: str, version: str) -> str | None:
    try:
        found = distribution(wheel)
    except PackageNotFoundError:
        return None
    if not found.version.startswith(f"{version}."):
        return None
    name = f"libnvrtc.so.{version.split('.')[0]}"
    paths = [found.locate_file(file) for file in found.files or [] if file.name == name]
    return str(paths[0]) if paths else None


if __name__ == "__main__":
    print(find(sys.argv[1], sys.argv[2]) or "")
