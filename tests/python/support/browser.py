# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by its DevTools protocol over a pipe: no driver, no port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str:
    """The browser's program; without one the test is skipped, in CI failed."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    reason = f"no browser here: none of {', '.join(NAMES)} is on PATH"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Browser:
    """One browser with one tab. What the page logs, throws and asks of the network is kept."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The pipe is the browser's files 3 and 4.
        shell = ("bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash")
        switches = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        pipe = ("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank")
        self._process = subprocess.Popen(
            [*shell, find(), *switches, *pipe],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._bytes = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._out)  # the browser ends with its pipe
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._out, rest) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, page: Path) -> None:
        """Loads the page and waits until it has run."""
        self.requests.clear()
        self.errors.clear()
        self.call("Page.navigate", url=page.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, f"{code}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Clicks the middle of the first element that the selector fits, as a mouse does."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.run(
            f"(b => [b.x + b.width / 2, b.y + b.height / 2])"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                clickCount=1,
            )  # fmt: skip

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Tab": 9, " ": 32}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key],
                **text,
            )  # fmt: skip

    def resize(self, width: int, height: int = 800) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip

    def set_dark(self, is_dark: bool) -> None:
        value = "dark" if is_dark else "light"
        feature = {"name": "prefers-color-scheme", "value": value}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._bytes:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has ended"
            self._bytes += more
        text, _, self._bytes = self._bytes.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.errors.append(json.dumps(parameters["args"]))
            case "Log.entryAdded":
                self.errors.append(parameters["entry"]["text"])
            case "Page.javascriptDialogOpening":
                raise AssertionError(f"a dialog: {parameters['message']}")
