"""A run's folder belongs to one run at a time.

The operating system releases the lock when its process ends, so a killed run leaves none
behind. The file names the owner. It is never removed: a process that waits for a file which
another removes would lock a file that no other process can see.

Where the file system has no such locks (some Lustre and NFS), a file with a heartbeat replaces
them, with a warning.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from sslengine.atomic import lock_file, make_folder, open_no_link
from sslengine.checkpoint import lease
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.errors import CheckpointError, FolderInUseError

log = logging.getLogger("sslengine")

NAME = ".lock"


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
    """(the function that releases the lock, what is wrong)."""
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
    facts = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    os.ftruncate(file, 0)
    os.write(file, json.dumps(facts).encode() + b"\n")
    return release, None


def _lock(file: int, folder: Path) -> Callable[[], None] | None:
    """The function that releases the lock; None: another run holds it."""
    try:
        return partial(os.close, file) if lock_file(file) else None
    except OSError as error:
        return _lease(file, folder, error)


def _lease(file: int, folder: Path, error: OSError) -> Callable[[], None] | None:
    log.warning(
        "%s: this file system cannot lock a file (%s). A file with a heartbeat, %s, keeps other "
        "runs out of the folder.", folder, error.strerror, lease.NAME,
    )  # fmt: skip
    held = lease.Lease(folder / lease.NAME)
    if not held.take():
        return None

    def release() -> None:
        held.release()
        os.close(file)

    return release


def _owner(path: Path) -> str:
    try:
        facts = json.loads(path.read_text())
        return f"process {facts['pid']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its lock file does not say which"
