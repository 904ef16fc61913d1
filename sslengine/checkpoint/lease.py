"""A lock for file systems that have none: a file that its owner rewrites every few seconds.

Exclusive creation lets one of two processes win. A waiting process watches the file rather than
comparing clocks: if it is not rewritten within a few beats, the owner is gone. On the same host
it looks for the owner's process, so a killed run can be started again at once.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

NAME = ".lock_held"
BEAT = 5.0  # seconds
BEATS = 4  # if none of them comes, the owner is gone


class Lease:
    """Held until `release`, or until this process ends."""

    def __init__(self, path: Path) -> None:
        self._path, self._token = path, uuid.uuid4().hex
        self._count = 0
        self._over = threading.Event()

    def take(self) -> bool:
        """False: a live run holds it. Waits a few beats where that is not known at once."""
        if not self._create():
            if _owner_is_alive(self._path):
                return False
            self._write()  # overwrite the file of a killed run
            time.sleep(BEAT / 10)  # another process may overwrite it too: the last one wins
            if _facts(self._path).get("token") != self._token:
                return False
        threading.Thread(target=self._keep, name="lease", daemon=True).start()
        return True

    def release(self) -> None:
        self._over.set()
        if _facts(self._path).get("token") == self._token:
            self._path.unlink(missing_ok=True)

    def _create(self) -> bool:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(file, "wb") as opened:
            opened.write(self._content())
        return True

    def _write(self) -> None:
        unfinished = self._path.with_name(f"{NAME}.{self._token}")
        unfinished.write_bytes(self._content())
        os.replace(unfinished, self._path)

    def _content(self) -> bytes:
        self._count += 1
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token}
        return json.dumps({**facts, "beat": self._count}).encode()

    def _keep(self) -> None:
        while not self._over.wait(BEAT):
            if _facts(self._path).get("token") == self._token:  # a removed file stays removed
                try:
                    self._write()
                except OSError:  # a full disk: others see no beat and take the lock after a while
                    continue


def _owner_is_alive(path: Path) -> bool:
    first = _facts(path)
    if first.get("host") == socket.gethostname() and isinstance(first.get("pid"), int):
        return _process_is_alive(first["pid"])
    for _ in range(BEATS):
        time.sleep(BEAT)
        if _facts(path) != first:
            return True
    return False


def _process_is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _facts(path: Path) -> dict[str, Any]:
    """The file's contents. It is opened each time: a network file system then asks its server."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
