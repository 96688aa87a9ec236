# SPDX-License-Identifier: Apache-2.0
"""Prints what the size of a wheel is made of: describe_wheel.py WHEEL."""

import sys
import zipfile
from pathlib import Path

MIB = 1 << 20


def part_of(path: str) -> str:
    """Which line of the table a file counts to."""
    name = path.rpartition("/")[2]
    if "/builtin/" in path:
        kind = "LLVM" if ".llvm-" in name else "NVRTC"
        return f"builtin/ (generic kernels, {kind})"
    if name.endswith(".so"):
        return name
    if "/bin/" in path:
        return f"bin/{name}"
    if ".dist-info/" in path:
        return "metadata, licenses"
    return "Python sources" if path.endswith((".py", ".pyi", ".json", "py.typed")) else path


def main(path: Path) -> None:
    sizes: dict[str, tuple[int, int, int]] = {}
    with zipfile.ZipFile(path) as wheel:
        for file in wheel.infolist():
            if file.is_dir():
                continue
            part = part_of(file.filename)
            count, packed, whole = sizes.get(part, (0, 0, 0))
            sizes[part] = (count + 1, packed + file.compress_size, whole + file.file_size)
    print(f"{path.name}: {path.stat().st_size / MIB:.1f} MiB\n")
    print(f"{'part':44} {'files':>5} {'MiB compressed':>14} {'MiB':>7}")
    for part, (count, packed, whole) in sorted(sizes.items(), key=lambda item: -item[1][1]):
        print(f"{part:44} {count:5} {packed / MIB:14.2f} {whole / MIB:7.2f}")
    total = [sum(column) for column in zip(*sizes.values(), strict=True)]
    print(f"{'all':44} {total[0]:5} {total[1] / MIB:14.2f} {total[2] / MIB:7.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
