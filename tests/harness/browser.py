"""Chromium without a window, driven by chromedriver over W3C WebDriver. Both are Debian's; who lacks them gets them by apt-get.

As much of the protocol as tests need, in plain HTTP: nothing is installed for it. Every browser has a profile of its own, and
asks nobody but the addresses that it is sent to.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dev.cluster.tools import browser_packages

T = TypeVar("T")

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-device-scale-factor=1",
)  # fmt: skip
KEYS = {"tab": "\ue004", "enter": "\ue007", "left": "\ue012", "up": "\ue013", "right": "\ue014", "down": "\ue015"}
WITHIN = 20.0
"""Seconds for anything that a test waits for: other tests may have the machine."""

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One session of chromedriver."""

    def __init__(self, port: int, profile: Path) -> None:
        self._base = f"http://127.0.0.1:{port}"
        options = {"args": [*OPTIONS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = ""
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def open(self, url: str, wide: int = 1280, high: int = 900) -> None:
        """Go to an address, in a window of this size, with nothing left of another page."""
        self.size(wide, high)
        self._call("POST", "/url", {"url": "about:blank"})
        self.complaints()
        self._call("POST", "/url", {"url": url})

    def size(self, wide: int, high: int) -> None:
        """Of what is shown."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=False)

    def prefers(self, **features: str) -> None:
        """What the user prefers, for example `color_scheme="dark"`."""
        named = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=named)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """The text of an element as it is shown; empty if it is hidden or not there."""
        return str(
            self.run(
                "const found = document.querySelector(arguments[0]); return found?.checkVisibility() ? found.innerText : ''",
                selector,
            )
        )

    def until(self, holds: Callable[[], T]) -> T:
        """Wait until this is true; what it is then."""
        deadline = time.monotonic() + WITHIN
        while not (found := holds()):
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not come true; the page shows:\n{self.text('body')[:3000]}\n{self.complaints()}")
            time.sleep(0.05)
        return found

    def press(self, *keys: str) -> None:
        """Press keys one after the other, where the focus is. Names are those of KEYS."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def look(self) -> None:
        """Have the page ask again now, as one that was in the background and is looked at again."""
        self.run("document.dispatchEvent(new Event('visibilitychange'))")

    def click(self, selector: str) -> None:
        """Click an element."""
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[_ELEMENT]}/click", {})

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of all that assistive technology is told of."""
        nodes = self.devtools("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and "role" in node
        ]

    def complaints(self) -> list[str]:
        """What the console said since the last time: errors, and what the Content-Security-Policy has kept out."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def picture(self, file: Path) -> None:
        """Write the whole page as it is shown as a PNG."""
        data = self.devtools("Page.captureScreenshot", captureBeyondViewport=False)["data"]
        file.write_bytes(base64.b64decode(data))

    def devtools(self, command: str, **parameters: object) -> Any:
        """A command of Chromium's own."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self) -> None:
        """End the browser."""
        self._call("DELETE", "")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}{self._session}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            said = json.loads(error.read())["value"]
            raise AssertionError(f"{method} {path}: {said['error']}: {said['message']}") from error


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser, which ends with the block."""
    browser_packages()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "chromedriver.log").open("wb") as log:
        driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert driver.poll() is None, (folder / "chromedriver.log").read_text()
                assert time.monotonic() < deadline, "chromedriver does not listen"
                time.sleep(0.05)
        browser = Browser(port, folder / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()
