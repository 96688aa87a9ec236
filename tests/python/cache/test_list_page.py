# SPDX-License-Identifier: Apache-2.0
"""`rlk-jit list --html`: the page in a real browser."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser

from rlk import _cli

NOW = int(time.time())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def put(folder: Path, metadata: dict | bytes, compiler: str = "llvm-19.1.7") -> Path:
    """An entry as a listing reads it: its payload is nothing, its checksum wrong."""
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    key = b""
    head = b"\x89RLK\r\n\x1a\n" + struct.pack("<IIQQ", 1, len(key), len(text), 10)
    path = folder / f"{hashlib.md5(text).hexdigest()}.{compiler}.rlk"
    path.write_bytes(head + key + text + bytes(10) + bytes(16))
    path.chmod(0o600)
    return path


def kernel(name: str, **more: object) -> dict:
    target = name.rpartition("@")[2]
    return {"name": name, "target": target, "created": NOW - 7200, "compile_ms": 187.4} | more


def rlk_jit(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    ended = subprocess.run(_cli.command([*arguments]), capture_output=True, check=False)
    assert ended.returncode == code, ended
    return ended


def write_page(folder: Path, page: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    return rlk_jit("--cache-dir", str(folder), "list", "--html", str(page), *options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def page(folder: Path, tmp_path: Path, browser: Browser) -> Path:
    """Four kernels of two targets, one of them damaged, and the built-in ones filtered out."""
    put(folder, kernel("linear_logp.fwd[x=bf16 V=128256 D=4096 tile=128x192]@sm_90a",
                       compile_ms=2300, registers=168, shared_bytes=16, spilled_bytes=0,
                       dynamic_shared_bytes=200704, code_bytes=40000), "nvrtc-12.9")  # fmt: skip
    put(folder, kernel("linear_logp.bwd[x=bf16 V=9000 D=512]@sm_90a", compile_ms=900,
                       registers=255, spilled_bytes=24), "nvrtc-12.9")  # fmt: skip
    put(folder, kernel("linear_logp.fwd[x=fp32 V=9000 D=512]@x86-64-v9", compile_ms=50))
    put(folder, kernel("lost")).write_bytes(b"damage")
    (folder / ".usage").write_text(
        "1 hit 1234 0 1700000000 linear_logp.bwd[x=bf16 V=9000 D=512]@sm_90a\n"
        "1 compiled 2 1800 1700000001 linear_logp.bwd[x=bf16 V=9000 D=512]@sm_90a\n"
    )
    (folder / ".usage").chmod(0o600)
    path = tmp_path / "page.html"
    write_page(folder, path)
    browser.resize(1280)
    browser.open(path)
    return path


def rows(browser: Browser) -> list[list[str]]:
    """The text of each cell of the kernels of the folder above, those of the package left out."""
    code = """[...document.querySelectorAll('#rows tr')]
        .map(row => [...row.cells].map(cell => cell.innerText.trim()))"""
    return [row for row in browser.run(code) if "built-in" not in row]


def head(browser: Browser, label: str) -> str:
    """A selector of the button that sorts by a column."""
    labels = browser.run("[...document.querySelectorAll('th')].map(th => th.innerText.trim())")
    labels = [text.rstrip("↑↓") for text in labels]
    return f"th:nth-child({labels.index(label) + 1}) button"


def search(browser: Browser, text: str) -> None:
    browser.run("search.value = ''; search.focus()")
    browser.type(text)


def test_every_kernel_is_there(page: Path, browser: Browser) -> None:
    found = rows(browser)
    assert len(found) == 4
    forward = next(row for row in found if "V=128256 D=4096" in row)
    for text in ("linear_logp.fwd\ntile=128x192", "bf16", "sm_90a", "user", "168", "196.0 KiB",
                 "2.3 s", "2 h"):  # fmt: skip
        assert any(cell.startswith(text) for cell in forward), (text, forward)
    backward = next(row for row in found if row[0] == "linear_logp.bwd")
    assert "1234" in backward
    assert "24 B" in backward
    assert sum("expected at least 32 bytes" in row[0] for row in found) == 1
    color = "getComputedStyle(document.querySelector('tr.bad .problem')).color"
    assert browser.run(color) == "rgb(179, 38, 30)"
    assert browser.errors == []
    totals = browser.run("document.getElementById('totals').innerText")
    assert "1,234" in totals
    assert "problem" in totals


def test_columns_sort(page: Path, browser: Browser) -> None:
    search(browser, "user")
    browser.click(head(browser, "Compile"))
    state = "document.querySelector('th[aria-sort]').getAttribute('aria-sort')"
    assert browser.run(state) == "descending"

    def order() -> list[str]:
        return [row[2] for row in rows(browser)]

    assert order() == ["V=128256 D=4096", "V=9000 D=512", "V=9000 D=512", "-"]
    assert [row[3] for row in rows(browser)][1:3] == ["sm_90a", "x86-64-v9"]
    browser.click(head(browser, "Compile"))
    assert browser.run(state) == "ascending"
    assert order()[-2:] == ["V=128256 D=4096", "-"], "absent values last, both ways"
    # By keyboard; numbers in text by value.
    browser.run(f"document.querySelector({head(browser, 'Shape')!r}).focus()")
    browser.press("Enter")
    assert order() == ["V=9000 D=512", "V=9000 D=512", "V=128256 D=4096", "-"]
    assert browser.run("document.querySelectorAll('th[aria-sort]').length") == 1
    assert browser.errors == []


def test_search_and_filters_choose(page: Path, browser: Browser) -> None:
    search(browser, "LINEAR_logp 128256")
    assert [row[2] for row in rows(browser)] == ["V=128256 D=4096"]
    assert re.fullmatch(r"1 of \d+", browser.run("count.innerText"))
    search(browser, "nothing has this")
    assert rows(browser) == []
    assert browser.run("document.getElementById('empty').hidden") is False
    search(browser, "user")
    assert len(rows(browser)) == 4

    def choose(field: str, value: str) -> None:
        event = "new Event('input', {bubbles: true})"
        browser.run(f"{field}.value = {value!r}; {field}.dispatchEvent({event})")

    choose("target", "sm_90a")
    assert len(rows(browser)) == 2
    choose("op", "linear_logp")
    assert len(rows(browser)) == 2
    choose("target", "")
    assert len(rows(browser)) == 3
    choose("op", "")
    browser.click("#bad")
    assert len(rows(browser)) == 1


def test_a_kernel_opens(page: Path, browser: Browser) -> None:
    search(browser, "128256")
    button = "#rows tr .kernel button"
    browser.click(button)
    assert (
        browser.run(f"document.querySelector({button!r}).getAttribute('aria-expanded')") == "true"
    )
    facts = browser.run("document.querySelector('.facts').innerText")
    assert "linear_logp.fwd[x=bf16 V=128256 D=4096 tile=128x192]@sm_90a" in facts
    assert "nvrtc-12.9" in facts
    assert "16 B fixed, 196.0 KiB a launch" in facts
    browser.click(button)
    assert browser.run("document.querySelector('.facts')") is None


def test_nothing_is_asked_of_the_network(page: Path, browser: Browser) -> None:
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert browser.requests == [page.as_uri()]
    assert browser.errors == []
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "")
    # The policy holds: a script that comes later does not run, a picture is not fetched.
    script = "Object.assign(document.createElement('script'), {textContent: 'hacked = 1'})"
    browser.run(f"document.body.append({script})")
    assert browser.run("typeof hacked") == "undefined"
    assert any("Content Security Policy" in error for error in browser.errors)


@pytest.mark.parametrize("width", [320, 360, 820, 821, 1081, 1280])
@pytest.mark.parametrize("is_dark", [False, True])
def test_no_window_is_too_narrow(
    folder: Path, page: Path, browser: Browser, width, is_dark
) -> None:
    long = "linear_logp.fwd[" + " ".join(f"a_long_option{i}={'9' * 40}" for i in range(9)) + "]"
    put(folder, kernel(long + "@" + "x" * 90, registers=10**6, compile_ms=1e8))
    put(folder, kernel("n" * 900))
    write_page(folder, page, "--layer", "/" + "layer" * 40)
    browser.resize(width)
    browser.set_dark(is_dark)
    browser.open(page)
    browser.run("document.querySelectorAll('.kernel button').forEach(one => one.click())")
    wide = browser.run("document.documentElement.scrollWidth")
    assert wide <= browser.run("window.innerWidth") == width
    spilling = browser.run(
        f"[...document.querySelectorAll('main > *, tbody td')]"
        f".filter(one => one.getBoundingClientRect().right > {width} + 0.5).length"
    )
    assert spilling == 0
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(22, 24, 26)") == is_dark
    browser.set_dark(False)


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 1</script>",
    "<!--<script>",
    "<img src=x onerror='window.hacked = 1'>",
    "\"'`&amp;&lt; \\u003c ${1}",
    "@DATA@ @SCRIPT@ $& $1",
    "\u202eright to left\u2028line\u2029",
    "op.fwd[x=<b>bold</b> V=1<i> </script>]@</option><script>window.hacked = 1</script>",
]


def escaped(name: str) -> str:
    """As rlk-jit shows marks that turn the order of a text round."""
    return "".join(
        c if c.isascii() else "".join(f"\\x{byte:02x}" for byte in c.encode()) for c in name
    )


def test_hostile_names_are_text(folder: Path, tmp_path: Path, browser: Browser) -> None:
    for name in HOSTILE:
        put(folder, kernel(name))
    put(folder, b'{"name": "\xff\xfe not UTF-8"}')
    put(folder, {"name": "bell \x07 and \x1b[31m"})
    put(folder, {"name": 5, "created": 1e17, "registers": -1, "compile_ms": "x"})
    put(folder, b"[" * 5000)
    put(folder, kernel("odd bytes"), "%FF%FE")
    put(folder, kernel("compiler"), "%3Cscript%3Ewindow.hacked=1%3C%2Fscript%3E")
    layer = tmp_path / "<img src=x onerror=alert(1)>"
    layer.mkdir()
    put(layer, kernel("in a hostile layer"))
    page = tmp_path / "page.html"
    write_page(folder, page, "--layer", str(layer))
    page.read_text(encoding="utf-8", errors="strict")
    browser.resize(1280)
    browser.open(page)
    assert browser.run("typeof hacked") == "undefined"
    assert browser.requests == [page.as_uri()]
    assert browser.errors == []
    assert browser.run("document.querySelectorAll('main script, main img, main b').length") == 0
    buttons = browser.run(
        "[...document.querySelectorAll('.kernel button')].map(one => one.textContent)"
    )
    turned = "\u202eright to left\u2028line\u2029"
    for name in HOSTILE[:-1]:
        assert (escaped(name) if name == turned else name) in buttons
    assert "op.fwd" in buttons
    assert "bell \\x07 and \\x1b[31m" in buttons
    assert sum(text == "(no name)" for text in buttons) == 3
    text = browser.run("document.body.innerText")
    assert "<img src=x onerror=alert(1)>" in text
    options = browser.run("[...target.options].map(one => one.value)")
    assert "</option><script>window.hacked = 1</script>" in options
    browser.run("document.querySelectorAll('.kernel button').forEach(one => one.click())")
    assert browser.run("typeof hacked") == "undefined"
    assert "<script>window.hacked=1</script>" in browser.run("document.body.innerText")
    assert browser.errors == []


def test_ten_thousand_kernels(folder: Path, tmp_path: Path, browser: Browser) -> None:
    for i in range(10000):
        put(folder, kernel(f"linear_logp.fwd[x=bf16 V={i} D=4096]@sm_80", compile_ms=i))
    page = tmp_path / "page.html"
    write_page(folder, page)
    browser.resize(1280)
    browser.open(page)
    drawn = "document.querySelectorAll('#rows tr').length"
    assert browser.run(drawn) < 1000, "a step at a time"
    search(browser, "user V=9999")
    assert [row[2] for row in rows(browser)] == ["V=9999 D=4096"]
    search(browser, "user")
    browser.click(head(browser, "Compile"))
    assert rows(browser)[0][2] == "V=9999 D=4096"
    before = browser.run(drawn)
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    look = f"(function look() {{ {drawn} > {before} ? done() : setTimeout(look, 20) }})()"
    browser.run(f"new Promise(done => {look})")
    for _ in range(60):
        browser.run("more.hidden || more.click()")
    assert browser.run(drawn) == 10000
    assert browser.run("more.hidden") is True
    assert browser.errors == []


def test_an_empty_cache(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "page.html"
    write_page(tmp_path / "absent", page)
    browser.resize(1280)
    browser.open(page)
    assert rows(browser) == []
    search(browser, "user")  # leaves the built-in ones out
    assert browser.run("document.getElementById('empty').hidden") is False
    assert browser.run("count.innerText").startswith("0 of ")
    assert browser.errors == []
    assert not (tmp_path / "absent").exists()


def test_where_the_page_goes(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(folder, page)
    printed = write_page(folder, Path("-")).stdout

    def without_time(text: bytes) -> bytes:
        return re.sub(rb'"now":\d+', b"", text)

    assert without_time(printed) == without_time(page.read_bytes())
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    for wrong, code in ((["--html", str(tmp_path)], 1), (["--html", str(page), "--json"], 2)):
        assert len(rlk_jit("list", *wrong, code=code).stderr.splitlines()) == 1
