"""Chromium without a window, through its debugging pipe: no package is needed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Browser:
    """One tab."""

    def __init__(self, program: str, folder: Path) -> None:
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        # The browser reads from 3 and writes to 4.
        shell = f'exec "$@" 3<&{commands} 4>&{answers}'
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        command = ["bash", "-c", shell, "bash", program, *options, f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            command, pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        message, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            reply = self._read()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return reply["result"]
            self.events.append(reply)

    def open(self, file: Path, width: int, dark: bool = False) -> None:
        """Show a file, in a window of this width; events are those since."""
        metrics = {"height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", width=width, **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events = []
        self.call("Page.navigate", url=file.as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._read())
        # Two frames: what observes sizes has drawn.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """Give the value of an expression of JavaScript in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more
            )

    def complaints(self) -> list[str]:
        """List exceptions and errors of the console, and requests for other things than the file."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                found.append(str(params["args"]))
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                found += [url] if not url.startswith(("file:", "data:")) else []
        return found
