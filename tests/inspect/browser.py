"""A real headless browser, driven over the DevTools protocol through a pipe; stdlib only.

    with Browser() as browser:
        page = browser.open(path, width=400)
        page.click("#theme")
        page.evaluate("document.title")
        assert page.errors == [] and page.requests == [path.as_uri()]

Every name resolves to nothing, so a page that wants the network shows it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 60.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--no-default-browser-check", "--disable-dev-shm-usage", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads requests from descriptor 3 and writes answers to 4.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for number, one in enumerate(ends, 3):
    os.dup2(one, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
KEYS = {
    "Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " "), "/": (191, "/"),
    "ArrowLeft": (37, ""), "ArrowRight": (39, ""), "ArrowDown": (40, ""), "ArrowUp": (38, ""),
}  # fmt: skip


def find_browser() -> str | None:
    """Return the program, or None where there is none."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class BrowserError(AssertionError):
    """The browser did not do what it was asked for."""


class Browser:
    """One browser process; pages are tabs in it."""

    def __init__(self) -> None:
        program = find_browser()
        assert program is not None, "no chromium on PATH"
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        profile = f"--user-data-dir={self._folder.name}"
        command = [program, *FLAGS, profile, "about:blank"]
        ends = (to_browser, from_browser)
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", LAUNCH, *map(str, ends), *command],
            pass_fds=ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        for end in ends:
            os.close(end)
        self._number = 0
        self._buffer = b""
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser, and all that it started."""
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._folder.cleanup()

    def open(
        self, path: Path, width: int = 1200, height: int = 900, *, dark: bool = False,
        script: bool = True, fragment: str = "",
    ) -> Page:  # fmt: skip
        """Return a page with a file from disk, loaded.

        Args:
            script: False turns JavaScript off.
            fragment: what follows `#` in the address.
        """
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = {"targetId": target, "flatten": True}
        page = Page(self, self.send("Target.attachToTarget", attached)["sessionId"], target)
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.resize(width, height)
        page.set_dark(dark)
        if not script:
            page.send("Emulation.setScriptExecutionDisabled", {"value": True})
        page.go(path.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
        return page

    def send(
        self, method: str, parameters: dict[str, Any] | None = None, session: str = ""
    ) -> dict[str, Any]:
        """Ask the browser for something and return what it answers."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters or {}}
        if session:
            asked["sessionId"] = session
        message = memoryview(json.dumps(asked).encode() + b"\0")
        while message:
            message = message[os.write(self._out, message) :]
        until = time.monotonic() + SECONDS
        while True:
            answer = self.receive(until)
            if answer is None:
                raise BrowserError(f"{method}: no answer in {SECONDS} s")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                found: dict[str, Any] = answer["result"]
                return found

    def receive(self, until: float) -> dict[str, Any] | None:
        """Return the next message, after noting it with its page; None if there is none in time."""
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(until - time.monotonic(), 0))[0]:
                return None
            more = os.read(self._in, 1 << 20)
            if not more:
                raise BrowserError(f"the browser ended with code {self._process.poll()}")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.note(message["method"], message["params"])
        return message


class Page:
    """A tab.

    Attributes:
        errors: exceptions, console errors and warnings, and what the browser itself logs, such as
            violations of the content security policy.
        requests: addresses that were asked for, data: left out.
        dialogs: what alert() and its like said.
    """

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self._target = browser, session, target
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self._events: deque[str] = deque()

    def send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask this tab for something."""
        return self.browser.send(method, parameters, self.session)

    def note(self, method: str, parameters: dict[str, Any]) -> None:
        """Keep what an event says."""
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in {"error", "warning"}:
            self.errors.append(str([one.get("value") for one in parameters["args"]]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in {"error", "warning"}:
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            address = parameters["request"]["url"]
            if not address.startswith("data:"):
                self.requests.append(address.partition("#")[0])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])

    def go(self, address: str) -> None:
        """Load an address and wait for it."""
        self._events.clear()
        answer = self.send("Page.navigate", {"url": address})
        if "errorText" in answer:
            raise BrowserError(f"{address}: {answer['errorText']}")
        until = time.monotonic() + SECONDS
        while "Page.loadEventFired" not in self._events:
            if self.browser.receive(until) is None:
                raise BrowserError(f"{address}: not loaded in {SECONDS} s")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; promises are awaited."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True,
                 "userGesture": True}  # fmt: skip
        answer = self.send("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def all(self, selector: str, expression: str = "one.textContent") -> list[Any]:
        """Return the value of an expression for each element, `one`, that a selector finds."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        values: list[Any] = self.evaluate(f"{found}.map((one) => {expression})")
        return values

    def wait(self, expression: str, seconds: float = 10.0) -> Any:
        """Return the value of an expression as soon as it is true."""
        until = time.monotonic() + seconds
        while not (found := self.evaluate(expression)):
            if time.monotonic() > until:
                raise BrowserError(f"not true in {seconds} s: {expression}")
            time.sleep(0.02)
        return found

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of what a selector finds."""
        place = self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = one.getBoundingClientRect();"
            "return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            asked = {"type": kind, "button": "left", "clickCount": 1, **place}
            self.send("Input.dispatchMouseEvent", asked)

    def type(self, text: str) -> None:
        """Insert text where the focus is."""
        self.send("Input.insertText", {"text": text})

    def key(self, name: str, *, shift: bool = False) -> None:
        """Press a key and let it go."""
        code, text = KEYS[name]
        asked = {"key": name, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        down = (
            {"type": "keyDown", **asked, "text": text} if text else {"type": "rawKeyDown", **asked}
        )
        self.send("Input.dispatchKeyEvent", down)
        self.send("Input.dispatchKeyEvent", {"type": "keyUp", **asked})

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window, CSS pixels."""
        asked = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", asked)

    def set_dark(self, dark: bool, media: str = "") -> None:
        """Set what the system prefers, and the medium: "print", or "" for the screen."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", {"features": [scheme], "media": media})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        asked: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            asked["clip"] = {**size, "scale": 1}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", asked)["data"]))

    def close(self) -> None:
        """Close the tab."""
        self.browser.send("Target.closeTarget", {"targetId": self._target})
        del self.browser._pages[self.session]
