"""Files that a user names: what is there, and its bytes.

Bytes are those of regular files alone. A FIFO would be waited for, a device read for ever, and
their names may come from anyone's list.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice
from pathlib import Path

from sslengine.errors import DataError, MissingDataError, nearest

_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
}  # fmt: skip


class NotRegularError(OSError):
    """There is something else than a regular file."""


def kind_of(path: str | Path) -> str:
    """Name what is there if it is no regular file; "" for one, and where there is nothing."""
    try:
        return _name_kind(os.stat(path))
    except OSError:
        return ""


def _name_kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return ""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")


def read_file(path: str | Path) -> bytes:
    # The other end of a FIFO may be closed: it is opened without waiting, and checked.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if kind := _name_kind(os.fstat(descriptor)):
            raise NotRegularError(errno.EINVAL, f"not read, for it is {kind}", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def how_far(path: Path) -> str:
    """Tell of a path that is not there which folder of it is, and what is in that instead."""
    whole = path.absolute()
    folder = next(each for each in whole.parents if each.is_dir())
    missing = whole.relative_to(folder).parts[0]
    try:
        names = [each.name for each in islice(os.scandir(folder), 10_000)]
    except OSError:  # it may not be listed
        names = []
    return f"{folder} has no {missing!r}. {nearest(missing, names)}".rstrip()


def data_error(path: Path) -> type[DataError]:
    """Return the kind of an error about this path: what is not there was mistyped."""
    return DataError if path.exists() else MissingDataError


def expect_there(path: Path, where: str) -> None:
    if not path.exists():
        raise MissingDataError(f"{where}: {path} is not there: {how_far(path)}")


def expect_file(path: Path, where: str) -> None:
    if not path.is_file():
        kind = kind_of(path)
        why = f"it is {kind}" if kind else how_far(path)
        raise data_error(path)(f"{where}: there is no file {path}: {why}")
