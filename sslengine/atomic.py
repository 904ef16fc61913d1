"""Write, append to, lock and sync files in folders that may be anyone's."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def open_no_link(path: str | Path, flags: int) -> int:
    """Open a file for `open(opener=...)`; raise OSError if it is a link or a pipe."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file to write; rename it to `path` if the block ends without an error.

    A reader, also after a power cut, finds the old content or the new one, never a part of it.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=open_no_link) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file in one piece. private: only the owner may read it."""
    with whole_file(path) as file:
        if private:
            os.fchmod(file.fileno(), 0o600)
        file.write(content)


def write_json(path: Path, content: object) -> None:
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def append(path: Path, content: bytes) -> None:
    """Append to a file; of content that the disk cannot take, nothing stays."""
    file = open_no_link(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    size = os.fstat(file).st_size
    try:
        while content:
            content = content[os.write(file, content) :]
    except OSError:
        os.ftruncate(file, size)
        raise
    finally:
        os.close(file)


def lock_file(file: int, mode: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file for as long as it is open; return False if another process holds it."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and sync each of them to the disk."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(new):
        with suppress(PermissionError):  # a folder that can be written to but not listed
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder: the name of a new file is on the disk only after that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without fsync
            raise
    finally:
        os.close(descriptor)


def sync_files(paths: Iterable[Path]) -> None:
    """Sync these files and their folders to the disk; any process may have written them."""
    folders = set()
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(file)
        finally:
            os.close(file)
        folders.add(path.parent)
    for folder in folders:
        sync_folder(folder)
