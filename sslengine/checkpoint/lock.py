"""Keep a run's folder to one run at a time.

The operating system releases the lock when its process ends, so a killed run leaves none
behind. The file names the owner. It is never removed: a process that waits for a file which
another removes would lock a file that no other process can see.

Some file systems have no locks (Lustre and NFS may not): a run warns, and does not see another.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from sslengine.atomic import lock_file, make_folder, open_no_link
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.errors import CheckpointError, FolderInUseError

log = logging.getLogger("sslengine")

NAME = ".lock"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Rank 0 locks the folder for all; if it cannot, all ranks raise the error. Collective."""
    file, problem = _lock(folder) if is_primary() else (None, None)
    problem = broadcast_object(problem)
    if problem is not None:
        raise problem
    try:
        yield
    finally:
        if file is not None:
            os.close(file)


def _lock(folder: Path) -> tuple[int | None, CheckpointError | None]:
    """Return the open file whose lock is held, and what is wrong."""
    path = folder / NAME
    try:
        make_folder(folder)
        file = open_no_link(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        return None, CheckpointError(
            f"{folder} cannot be the folder of a run: {error.strerror} ({error.filename})."
        )
    try:
        is_mine = lock_file(file)
    except OSError as error:
        is_mine = True
        log.warning(
            "%s: this file system cannot lock a file (%s). Start no second run in this folder: "
            "it would not be refused.", folder, error.strerror,
        )  # fmt: skip
    if not is_mine:
        os.close(file)
        return None, FolderInUseError(
            f"another run is using {folder}: {_owner(path)}. Wait for its end, or set another "
            f"folder for this one: config.CHECKPOINT.DIR."
        )
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    facts = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    os.ftruncate(file, 0)
    os.write(file, json.dumps(facts).encode() + b"\n")
    return file, None


def _owner(path: Path) -> str:
    try:
        facts = json.loads(path.read_text())
        return f"process {facts['pid']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its lock file does not say which"
