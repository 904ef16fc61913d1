"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the name `path` when the block ends well.

    A reader, or a power cut, finds the old content or the new one, never half of it.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes, private: bool = False) -> None:
    """private: for its owner alone to read."""
    with whole_file(path) as file:
        if private:
            os.fchmod(file.fileno(), 0o600)
        file.write(content)


def make_folder(folder: Path) -> None:
    """With its parents. Each of them is on the disk when this returns."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(new):
        with suppress(PermissionError):  # of a folder that others may write to and not list
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """A new name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(descriptor)


def sync_files(paths: Iterable[Path]) -> None:
    """What others have written into these files is on the disk when this returns."""
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
