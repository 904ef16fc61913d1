"""A run's folder belongs to one run at a time.

The operating system releases the lock when its process ends, so a killed run leaves none
behind. The file names the owner. It is never removed: a process that waits for a file which
another removes would lock a file that no other process can see.

Some file systems have no such locks (Lustre and NFS may not). A second file replaces them there,
with a warning: its owner rewrites it every few seconds. Exclusive creation lets one of two
processes win. A waiting process watches the file rather than comparing clocks: if it is not
rewritten within a few beats, the owner is gone. On the same host it looks for the owner's process.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from sslengine.atomic import lock_file, make_folder, open_no_link
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.errors import CheckpointError, FolderInUseError

log = logging.getLogger("sslengine")

NAME, HEARTBEAT = ".lock", ".lock_held"
BEAT = 5.0  # seconds
BEATS = 4  # if none of them comes, the owner is gone


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Rank 0 locks the folder for all; if it cannot, all ranks raise the error. Collective."""
    held, problem = _take(folder) if is_primary() else (None, None)
    problem = broadcast_object(problem)
    if problem is not None:
        raise problem
    try:
        yield
    finally:
        if held is not None:
            held()


def _take(folder: Path) -> tuple[Callable[[], None] | None, CheckpointError | None]:
    """Return (the function that releases the lock, what is wrong)."""
    path = folder / NAME
    try:
        make_folder(folder)
        file = open_no_link(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        return None, CheckpointError(
            f"{folder} cannot be the folder of a run: {error.strerror} ({error.filename})."
        )
    release = _lock(file, folder)
    if release is None:
        os.close(file)
        return None, FolderInUseError(
            f"another run is using {folder}: {_owner(path)}. Wait for its end, or set another "
            f"folder for this one: config.CHECKPOINT.DIR."
        )
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    os.ftruncate(file, 0)
    os.write(file, json.dumps({**_this_process(), "since": since}).encode() + b"\n")
    return release, None


def _lock(file: int, folder: Path) -> Callable[[], None] | None:
    """Return the function that releases the lock; None: another run holds it."""
    try:
        return partial(os.close, file) if lock_file(file) else None
    except OSError as error:
        log.warning(
            "%s: this file system cannot lock a file (%s). A file with a heartbeat, %s, keeps "
            "other runs out of the folder.", folder, error.strerror, HEARTBEAT,
        )  # fmt: skip
    lease = Lease(folder / HEARTBEAT)

    def release() -> None:
        lease.release()
        os.close(file)

    return release if lease.take() else None


def _owner(path: Path) -> str:
    try:
        facts = json.loads(path.read_text())
        return f"process {facts['pid']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its lock file does not say which"


class Lease:
    """A file with a heartbeat, held until `release`, or until this process ends."""

    def __init__(self, path: Path) -> None:
        self._path, self._token = path, uuid.uuid4().hex
        self._count = 0
        self._over = threading.Event()

    def take(self) -> bool:
        """Return False if a live run holds it; wait a few beats where only they can tell."""
        try:
            with open(self._path, "xb") as file:
                file.write(self._content())
        except FileExistsError:
            if _owner_is_alive(self._path):
                return False
            self._write()  # overwrite the file of a killed run
            time.sleep(BEAT / 10)  # another process may overwrite it too: the last one wins
            if not self._is_mine():
                return False
        threading.Thread(target=self._keep, name="lease", daemon=True).start()
        return True

    def release(self) -> None:
        self._over.set()
        if self._is_mine():
            self._path.unlink(missing_ok=True)

    def _is_mine(self) -> bool:
        return bool(_facts(self._path).get("token") == self._token)

    def _write(self) -> None:
        unfinished = self._path.with_name(f"{self._path.name}.{self._token}")
        unfinished.write_bytes(self._content())
        os.replace(unfinished, self._path)

    def _content(self) -> bytes:
        self._count += 1
        return json.dumps({**_this_process(), "token": self._token, "beat": self._count}).encode()

    def _keep(self) -> None:
        while not self._over.wait(BEAT):
            if self._is_mine():  # a removed file stays removed
                with suppress(OSError):  # a full disk: others take the lock after a while
                    self._write()


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}


def _owner_is_alive(path: Path) -> bool:
    first = _facts(path)
    if first.get("host") == socket.gethostname() and isinstance(first.get("pid"), int):
        try:
            os.kill(first["pid"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True
    for _ in range(BEATS):
        time.sleep(BEAT)
        if _facts(path) != first:
            return True
    return False


def _facts(path: Path) -> dict[str, Any]:
    """Open and read the file each time: a network file system then asks its server."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
