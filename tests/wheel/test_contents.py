# SPDX-License-Identifier: Apache-2.0
"""What is in the wheel's file, and that nothing else is."""

import email
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}


@pytest.fixture(scope="module")
def archive(wheel):
    with zipfile.ZipFile(wheel) as archive:
        yield archive


@pytest.fixture(scope="module")
def elves(unpacked):
    """The ELF files, by name."""
    files = [unpacked / "rlk/bin/rlk-jit", *unpacked.rglob("*.so*")]
    found = {file.name: ELFFile(file.open("rb")) for file in files}
    yield found
    for elf in found.values():
        elf.close()


def test_it_is_a_manylinux_wheel(wheel):
    name, _, _, tags = parse_wheel_filename(wheel.name)
    assert name == "rlk"
    platforms = {tag.platform for tag in tags}
    assert all(re.fullmatch(r"manylinux_2_\d+_x86_64", each) for each in platforms)
    # Debian 12 makes what RHEL 9, Ubuntu 22.04 and later can run; newer systems cannot.
    if platform.libc_ver() == ("glibc", "2.36"):
        assert "manylinux_2_34_x86_64" in platforms


def test_its_tags_name_the_pythons_that_it_has_a_module_for(wheel, archive, bindings):
    """Not py3-none: pip would install it where `import rlk` cannot work."""
    tags = parse_wheel_filename(wheel.name)[3]
    assert {tag.interpreter for tag in tags} == {tag.abi for tag in tags} == set(bindings)
    (path,) = (each for each in archive.namelist() if each.endswith(".dist-info/WHEEL"))
    told = email.message_from_bytes(archive.read(path)).get_all("Tag")
    assert {each.split("-")[1] for each in told} == set(bindings)


def test_its_files_have_one_time_and_an_order(archive):
    """Those of the commit, so that a commit gives the same bytes each time."""
    assert len({file.date_time for file in archive.infolist()}) == 1
    kernels = [name for name in archive.namelist() if "/builtin/" in name]
    assert kernels == sorted(kernels)


def test_no_kernel_tells_when_it_was_compiled(archive):
    kernels = [name for name in archive.namelist() if name.endswith(".rlk")]
    assert kernels
    for name in kernels:
        entry = archive.read(name)
        assert b'"name":' in entry
        assert b'"created":' not in entry, name
        assert b'"compile_ms":' not in entry, name


def test_another_python_is_told_what_is_missing(unpacked, tmp_path):
    """Where a folder of packages is used by a Python that pip did not install it for."""
    shutil.copytree(unpacked / "rlk", tmp_path / "rlk", ignore=shutil.ignore_patterns("_core*"))
    (tmp_path / "rlk/_core.cpython-399-x86_64-linux-gnu.so").touch()
    command = [sys.executable, "-c", "import rlk"]
    variables = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: rlk: expected a Python that this installation has a compiled module for "
        f"(_core.cpython-399-x86_64-linux-gnu.so), got {sys.implementation.cache_tag}"
    )


def test_it_is_small(wheel):
    assert wheel.stat().st_size < 60 << 20


def test_it_holds_the_package_and_nothing_else(archive, bindings):
    names = {name for name in archive.namelist() if not name.endswith("/")}
    inside = {name for name in names if ".dist-info/" not in name}
    sources = {
        path.relative_to(ROOT / "python").as_posix()
        for pattern in ("*.py", "*.json", "py.typed")
        for path in (ROOT / "python/rlk").rglob(pattern)
    }
    built = {"rlk/_core.pyi", "rlk/librlk_llvm.so", "rlk/bin/rlk-jit"}
    assert inside >= sources | built
    rest = inside - sources - built
    core = {name for name in rest if re.fullmatch(r"rlk/_core\.\S+\.so", name)}
    layer = {name for name in rest if re.fullmatch(r"rlk/builtin/[0-9a-f]{32}\.\S+\.rlk", name)}
    assert core == {f"rlk/{name}" for name in bindings.values()}
    assert len(layer) == 241  # 22 of every op, pass and dtype, 10 targets; 3 of 7 on CUDA alone
    assert rest == core | layer


def test_all_may_read_it(archive):
    for file in archive.infolist():
        assert file.external_attr >> 16 & 0o044 == 0o044, file.filename
    program = archive.getinfo("rlk/bin/rlk-jit")
    assert program.external_attr >> 16 & 0o111 == 0o111


def test_its_licenses_are_in_it(archive):
    for name in ("LICENSE", "THIRD_PARTY_NOTICES"):
        (path,) = (each for each in archive.namelist() if each.endswith(f"licenses/{name}"))
        assert archive.read(path) == (ROOT / name).read_bytes()


def test_its_metadata_is_valid(archive):
    (path,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    text = archive.read(path)
    metadata = Metadata.from_email(text, validate=True)
    assert metadata.version is not None
    assert str(metadata.version) == (ROOT / "VERSION").read_text().strip()
    assert email.message_from_bytes(text).get_payload() == (ROOT / "README.md").read_text()
    needed = [Requirement(str(line)) for line in metadata.requires_dist or []]
    assert [each.name for each in needed if each.marker is None] == ["numpy"]
    for extra, name in (("cuda12", "nvidia-cuda-nvrtc-cu12"), ("cuda13", "nvidia-cuda-nvrtc")):
        chosen = [each for each in needed if each.marker and each.marker.evaluate({"extra": extra})]
        assert [each.name for each in chosen] == [name]


def test_its_libraries_need_the_system_s_alone(elves):
    for name, elf in elves.items():
        dynamic = elf.get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
        assert needed <= SYSTEM, name
        assert not [*dynamic.iter_tags("DT_RPATH"), *dynamic.iter_tags("DT_RUNPATH")], name


def test_its_libraries_are_stripped(elves):
    for name, elf in elves.items():
        sections = {section.name for section in elf.iter_sections()}
        assert not {each for each in sections if each == ".symtab" or "debug" in each}, name
        # It covers debug information, and so folders of the build.
        assert ".note.gnu.build-id" not in sections, name


@pytest.mark.parametrize(
    ("library", "exported"), [("_core", r"PyInit__core"), ("librlk_llvm", r"rlk_llvm_\w+")]
)
def test_its_libraries_export_their_own_alone(elves, library, exported):
    tables = [
        elf.get_section_by_name(".dynsym")
        for name, elf in elves.items()
        if name.split(".")[0] == library
    ]
    assert tables
    for table in tables:
        names = {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
        }
        assert names
        assert {name for name in names if not re.fullmatch(exported, name)} == set()


def test_it_tells_nothing_of_where_it_was_built(archive):
    for name in archive.namelist():
        assert str(ROOT).encode() not in archive.read(name), name
