# SPDX-License-Identifier: Apache-2.0
"""The C++ program rlk-jit that lies in the package, and how it is called."""

import os.path
import site
import sysconfig
from pathlib import Path


def site_folders() -> list[str]:
    """The folders of this interpreter in which wheels lie, NVRTC's among them; existing ones."""
    named = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    return [folder for folder in dict.fromkeys(named) if folder and os.path.isdir(folder)]


def command(arguments: list[str]) -> list[str]:
    """The command line that stands for `rlk-jit ARGUMENTS`."""
    program = Path(__file__).parent / "bin" / "rlk-jit"
    sites = [word for folder in site_folders() for word in ("--site", folder)]
    return [str(program), "--package", str(program.parent.parent), *sites, *arguments]
