"""A headless Chromium, driven by its DevTools protocol: for tests of the page of a run."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 60.0


class Browser:
    """Chromium's DevTools protocol over its debugging pipe: JSON messages that end with a zero byte."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        options += "--disable-component-update --disable-sync --remote-debugging-pipe"
        # Chromium reads from descriptor 3 and writes to 4.
        command = f'exec "$0" {options} --user-data-dir="$1" about:blank 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, CHROMIUM, str(profile)],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait(timeout=SECONDS)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def show(self, page: str, width: int, height: int = 900, *, scheme: str = "light", touch: bool = False) -> None:
        """Load an address, and wait until it is loaded."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def until(self, expression: str, seconds: float = SECONDS) -> Any:
        """The value of an expression, once it is true. Nothing on a page tells of every change: this asks again."""
        return self.evaluate(
            f"new Promise((resolve, reject) => {{ const end = performance.now() + {1000 * seconds};"
            f"const look = () => {{ const found = ({expression}); if (found) resolve(found);"
            f"else if (performance.now() > end) reject(new Error('never: ' + {json.dumps(expression)}));"
            "else setTimeout(look, 10); }; look(); })"
        )

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def complaints(self) -> list[Any]:
        """What the console, the log and the auditor said."""
        said = [event for event in self.events if event.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}]
        said += [event for event in self.events if event.get("method") == "Runtime.consoleAPICalled"]
        return said + [event for event in self.events if event.get("method") == "Audits.issueAdded"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium said nothing for {SECONDS} s"
            received = os.read(self._in, 1 << 16)
            assert received, "Chromium has gone"
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
