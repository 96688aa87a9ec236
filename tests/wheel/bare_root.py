# SPDX-License-Identifier: Apache-2.0
"""A root folder with this interpreter, NumPy, an unpacked wheel and nothing else.

No shell, compiler, LLVM, NVRTC, driver, /proc or /dev: what runs in it needs none of them.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

SITE = Path("/site")
HOME = Path("/home")


@dataclass(frozen=True)
class BareRoot:
    root: Path

    def run(
        self, *arguments: str, site: Path = SITE, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the interpreter in the root with these arguments; the test fails where none may."""
        inside = ["chroot", str(self.root), interpreter(), *arguments]
        # chroot is root's; another user becomes root of a namespace of his own.
        command = inside if os.geteuid() == 0 else ["unshare", "--map-root-user", *inside]
        try_out = [*command[: -len(arguments)], "-c", "pass"]
        variables = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(HOME),
            "PYTHONHOME": sys.base_prefix,
            "PYTHONPATH": str(site),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        }
        for line in (try_out, command):
            done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
            if line is try_out and done.returncode != 0:
                raise AssertionError(f"no bare root can be entered here: {line}: {done.stderr}")
        return done

    def without_llvm(self) -> Path:
        """A second site folder in the root, whose package lacks librlk_llvm.so."""
        site = Path("/site-without-llvm")
        inside = self.root / site.relative_to("/")
        if not inside.exists():
            shutil.copytree(self.root / SITE.relative_to("/"), inside)
            (inside / "rlk/librlk_llvm.so").unlink()
        return site


def interpreter() -> str:
    """The path, in the root as out of it, of the interpreter that runs this, no venv's link."""
    return os.path.realpath(sys.executable)


def needed(file: Path) -> set[str]:
    """The shared libraries that the loader finds for an ELF file, the loader itself included."""
    done = subprocess.run(["ldd", file], capture_output=True, text=True, check=True)
    assert "not found" not in done.stdout, f"{file}: {done.stdout}"
    return set(re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout))


def make(root: Path, unpacked: Path) -> BareRoot:
    """Fills root. The interpreter keeps its paths; NumPy and the wheel go to SITE."""

    def inside(path: str | Path) -> Path:
        return root / str(path).lstrip("/")

    standard = sysconfig.get_path("stdlib")
    shutil.copytree(
        standard,
        inside(standard),
        symlinks=False,
        ignore=shutil.ignore_patterns(
            "site-packages", "dist-packages", "__pycache__", "test", "config-*", "libpython*"
        ),
    )
    numpy = Path(importlib.util.find_spec("numpy").origin).parent
    shutil.copytree(unpacked, inside(SITE))
    for folder in (numpy, numpy.with_name("numpy.libs")):
        if folder.exists():
            shutil.copytree(
                folder,
                inside(SITE) / folder.name,
                ignore=shutil.ignore_patterns("__pycache__", "tests"),
            )
    inside(HOME).mkdir()
    files = {interpreter()}
    objects = [Path(interpreter()), inside(SITE) / "rlk/bin/rlk-jit"]
    for folder in (inside(standard) / "lib-dynload", inside(SITE)):
        objects += folder.rglob("*.so")
    for path in objects:
        files |= needed(path)
    for file in files:
        if not Path(file).is_relative_to(root):
            inside(file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, inside(file))
    return BareRoot(root)
