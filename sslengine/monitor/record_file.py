"""Files of records that only grow, brought back to where they were at a checkpoint.

A checkpoint holds a mark of each such file: its length, and the sha256 of that much of it. A
run that resumes cuts the file there, for it makes the steps after the checkpoint again. What
is cut off is kept in `superseded/`, in the run's folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sslengine.atomic import append, make_folder, open_no_link, sync_files, sync_folder, write_whole

log = logging.getLogger("sslengine")

SUPERSEDED = "superseded"
# Plain values, as they stand in a checkpoint: {"bytes": 120, "sha256": "..."}.
Mark = Mapping[str, Any]
_CHUNK = 1 << 22


class RecordFile:
    """`mark` reads what was added since the last one, and costs no more than that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin(-1)

    def _begin(self, inode: int) -> None:
        self._digest, self._read, self._inode = hashlib.sha256(), 0, inode

    def mark(self) -> dict[str, Any]:
        """Of what the file holds now. A file that is not there yet has 0 bytes."""
        try:
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._read:
                    self._begin(facts.st_ino)  # replaced, or shortened
                file.seek(self._read)
                while chunk := file.read(_CHUNK):
                    self._digest.update(chunk)
                    self._read += len(chunk)
        except FileNotFoundError:
            self._begin(-1)
        return {"bytes": self._read, "sha256": self._digest.hexdigest()}


def mark_of(marks: Mapping[str, Any] | None, name: str) -> Mark | None:
    """That of one file; None if the checkpoint has none, or none that makes sense."""
    found = marks.get(name) if isinstance(marks, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("sha256"), str):
        return None
    size = found.get("bytes")
    return found if isinstance(size, int) and size >= 0 else None


def problem(path: Path, mark: Mark) -> str | None:
    """Why the file cannot be cut at the mark."""
    size = path.stat().st_size if path.exists() else 0
    if size < mark["bytes"]:
        return f"it has {size} bytes, and had {mark['bytes']} at the checkpoint"
    digest, left = hashlib.sha256(), mark["bytes"]
    if left:
        with path.open("rb") as file:
            while left and (chunk := file.read(min(left, _CHUNK))):
                digest.update(chunk)
                left -= len(chunk)
    if digest.hexdigest() != mark["sha256"]:
        return "what it held at the checkpoint has changed since"
    return None


def cut_back(path: Path, mark: Mark | None, keep: Callable[[bytes], bool]) -> None:
    """To the mark. Without one, or where it does not fit, to the whole lines that `keep` names."""
    try:
        if mark is not None:
            why = problem(path, mark)
            if why is None:
                cut(path, mark["bytes"], path.parent)
                return
            report_gap(path, why)
        _keep_lines(path, keep)
    except OSError as error:
        report_failure(path, error)


def report_gap(path: Path, why: str) -> None:
    log.warning(
        "%s: %s. The run resumes without what is missing there; its checkpoint is whole.", path, why
    )


def report_failure(path: Path, error: OSError) -> None:
    log.warning(
        "%s cannot be cut back to the checkpoint: %s. Lines of steps that are made again may be in "
        "it twice; sslengine.monitor.history shows each once.", path, error.strerror,
    )  # fmt: skip


def cut(path: Path, size: int, run_folder: Path) -> None:
    """What is longer is kept aside first; both are on the disk when this returns."""
    if not path.exists() or path.stat().st_size <= size:
        return
    with open(path, "rb+", opener=open_no_link) as file:
        file.seek(size)
        put_aside(path, file.read(), run_folder)
        file.truncate(size)
        os.fsync(file.fileno())


def _keep_lines(path: Path, keep: Callable[[bytes], bool]) -> None:
    if not path.exists():
        return
    kept: list[bytes] = []
    dropped: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        (kept if line.endswith(b"\n") and keep(line) else dropped).append(line)
    if dropped:
        put_aside(path, b"".join(dropped), path.parent)
        write_whole(path, b"".join(kept))


def put_aside(path: Path, content: bytes, run_folder: Path) -> None:
    """Append what a file loses to its namesake in `superseded/`."""
    target = _aside(path, run_folder)
    append(target, content)
    sync_files([target])
    size = len(content)
    log.info("%s: the last %d bytes are of steps made again; kept in %s", path, size, target)


def move_aside(path: Path, run_folder: Path) -> None:
    """A file that was begun after the checkpoint."""
    target = _aside(path, run_folder)
    os.replace(path, target)
    for folder in (target.parent, path.parent):
        sync_folder(folder)
    log.info("%s was begun after the checkpoint, and is now %s", path, target)


def _aside(path: Path, run_folder: Path) -> Path:
    target = run_folder / SUPERSEDED / path.relative_to(run_folder)
    make_folder(target.parent)
    return target
