"""A headless browser by the DevTools protocol, where the system has one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120  # seconds, of a busy machine


class Tab:
    """One page. ``tab("Page.navigate", url=…)`` is a call of the protocol; ``events`` are what came meanwhile."""

    def __init__(self, address: str) -> None:
        import websocket

        self.events: list[dict[str, Any]] = []
        self._socket = websocket.create_connection(address, timeout=PATIENCE)
        self._count = 0
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def js(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        result = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, page: Path, *, width: int = 1400, dark: bool = False) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + PATIENCE
        ready = f"document.readyState === 'complete' && location.href === {json.dumps(page.as_uri())}"
        while not self.js(ready) and time.monotonic() < deadline:
            time.sleep(0.05)

    def requests(self) -> list[str]:
        """Everything that was asked for but data within the page."""
        urls = [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[Any]:
        """Errors of scripts, and what the page's own policy refused."""
        return [
            e["params"] for e in self.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]


@contextmanager
def browsing(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own; skips the test where there is none."""
    program = os.environ.get("ZBKERNELS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no browser (chromium) on this machine")
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    command += [f"--user-data-dir={folder}", "--remote-allow-origins=*", "--no-first-run", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = folder / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE
        while not (port_file.exists() and port_file.read_text().strip()):
            if process.poll() is not None:
                pytest.skip(f"{program} does not start here (exit status {process.returncode})")
            assert time.monotonic() < deadline, "the browser does not answer"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        here = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not by way of a proxy
        with here.open(f"http://127.0.0.1:{port}/json", timeout=PATIENCE) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        yield Tab(pages[0]["webSocketDebuggerUrl"])
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
