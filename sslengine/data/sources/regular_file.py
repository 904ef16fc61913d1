"""Bytes of regular files alone.

A FIFO would be waited for, a device read for ever, and their names may come from anyone's list.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
}  # fmt: skip


class NotRegularError(OSError):
    """There is something else than a regular file."""


def kind_of(path: str | Path) -> str:
    """What is there if it is no regular file; "" for one, and where there is nothing."""
    try:
        return _kind(os.stat(path))
    except OSError:
        return ""


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return ""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")


def read_file(path: str | Path) -> bytes:
    # The other end of a FIFO may be closed: it is opened without waiting, and checked.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = _kind(os.fstat(descriptor))
        if kind:
            raise NotRegularError(errno.EINVAL, f"not read, for it is {kind}", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
