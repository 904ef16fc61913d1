"""Processes of a machine that take turns: one does the work, the others find it done."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sslengine.atomic import lock_file

log = logging.getLogger("sslengine")


@contextmanager
def turn(lock: Path, waits_for: str) -> Iterator[None]:
    """One process at a time. The lock of a process that dies is free again.

    waits_for: what the log says another process is doing, if it has to be waited for.
    """
    with lock.open("w") as file:
        if not lock_file(file.fileno()):
            log.info("waiting for another process that is %s", waits_for)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
