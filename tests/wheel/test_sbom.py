# SPDX-License-Identifier: Apache-2.0
"""The bill of materials in the wheel: what the build has linked and included, and nothing else."""

import json
import re
import shlex
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/dev"
#: What a path of a header or an archive of others tells, and the component that it belongs to. The
#: last are of the system that the wheel runs on, or of its Python: their libraries are not in it.
OWNERS = {
    r"/llvm(-c)?-19/": "LLVM",
    r"/libzstd\.a$|/zstd\.h$": "Zstandard",
    r"/libz\.a$|/zlib\.h$|/zconf\.h$": "zlib",
    r"/include/spdlog/": "spdlog",
    r"/include/fmt/": "fmt",
    r"/include/nlohmann/": "JSON for Modern C++",
    r"/include/xx(hash|h3)\.h$": "xxHash",
    r"/include/CLI/": "CLI11",
    r"/pybind11/": "pybind11",
    r"/include/python3\.\d+/": None,
    r"/include/c\+\+/|/lib/gcc/|/include/x86_64-linux-gnu/": None,
    r"/usr/include/(asm-generic/|linux/)?[\w-]+\.h$": None,
}


@pytest.fixture(scope="module")
def sbom(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (each for each in archive.namelist() if re.search(r"/sboms/.", each))
        assert re.fullmatch(r"rlk-[^/]+\.dist-info/sboms/rlk\.cdx\.json", path)
        return json.loads(archive.read(path))


@pytest.fixture(scope="module")
def inside(sbom):
    """The components that the wheel holds something of."""
    return {each["name"]: each for each in sbom["components"] if each.get("scope") != "excluded"}


def ninja(*arguments: str) -> str:
    done = subprocess.run(
        ["ninja", "-C", BUILD, "-t", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def headers() -> set[str]:
    """All that objects of the shipped programs include, but for our own."""
    found = set()
    for block in ninja("deps").split("\n\n"):
        output, _, rest = block.partition(": #deps")
        if output.split("/")[0] in ("cache", "cli", "jit", "python", "runtime", "templates"):
            found |= {line.strip() for line in rest.splitlines()[1:]}
    own = (str(ROOT / each) for each in ("cache", "cli", "jit", "python", "runtime", "templates"))
    folders = (*own, str(BUILD))
    return {str(Path(BUILD, each).resolve()) for each in found if not each.startswith(folders)}


def archives() -> set[str]:
    """The static libraries of others that the link lines of the shipped programs name."""
    words = set()
    for target in ("python/rlk/librlk_llvm.so", "python/rlk/bin/rlk-jit", "_core"):
        words |= set(shlex.split(ninja("commands", "-s", target).replace("&&", " ")))
    others = {word for word in words if word.endswith(".a") and word.startswith(("/", "-l:"))}
    return {word.replace("-l:", "/") for word in others}


def owner(path: str) -> str | None:
    for pattern, name in OWNERS.items():
        if re.search(pattern, path):
            return name
    raise AssertionError(f"{path}: whose is it? add it to the bill and to THIRD_PARTY_NOTICES")


def test_it_says_what_the_build_took(inside):
    paths = headers() | archives()
    assert any(path.endswith("/libLLVMCore.a") for path in paths)
    assert any("/pybind11/" in path for path in paths)
    assert {owner(path) for path in paths} - {None} | {"zlib", "Zstandard"} == set(inside)
    assert {"/libzstd.a", "/libz.a"} <= archives()


def test_the_notices_have_each_of_them(inside):
    notices = (ROOT / "THIRD_PARTY_NOTICES").read_text()
    blocks = notices.split("-" * 100 + "\n")[1:]
    told = {block.split(" (http")[0]: block for block in blocks}
    assert {re.sub(r" \d+$", "", name) for name in told} == set(inside)
    for name, block in told.items():
        (license_,) = inside[re.sub(r" \d+$", "", name)]["licenses"]
        identifier = license_.get("expression") or license_["license"]["id"]
        assert f"\nLicense: {identifier}\n" in block, name


def test_it_is_a_bill_of_this_version(sbom, inside):
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    version = (ROOT / "VERSION").read_text().strip()
    assert sbom["metadata"]["component"]["version"] == version
    for name, each in inside.items():
        assert re.fullmatch(r"\d+(\.\d+)+", each["version"]), name
        assert each["purl"].endswith(each["version"]), name
    (edges,) = sbom["dependencies"]
    assert sorted(edges["dependsOn"]) == sorted(each["bom-ref"] for each in inside.values())
    # Nothing that changes from build to build.
    assert not {"serialNumber", "timestamp"} & (set(sbom) | set(sbom["metadata"]))


def test_nvrtc_made_kernels_and_is_not_inside(sbom, inside):
    (nvrtc,) = (each for each in sbom["components"] if each["name"] == "NVRTC")
    assert nvrtc["version"].startswith("12.9.")
    assert nvrtc["name"] not in inside
