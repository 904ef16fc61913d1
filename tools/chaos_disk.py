"""Simulate a power cut for chaos.py: data that was not synced by fsync is lost.

In the run's processes every os.fsync is recorded: for a file its content at that time, for a
folder its names. After a kill the folder is rebuilt from these records. In the worst case only they
remain: a file that was never synced is empty, data appended since is lost, and names, renames and
removals in a folder that was not synced have not happened. In other cases each of these may have
happened, and files are truncated at a random place after the synced part.

Not simulated: blocks of a file written out of order, and folders that are removed and made again
with the same inode.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

Listing = dict[str, list[Any]]  # name: [kind, inode or target of a link]


class Disk:
    """The disk state of one run's folder, with its records in files of another folder."""

    def __init__(self, root: Path, notes: Path) -> None:
        self.root, self.notes = root, notes

    # ---- in the run's processes

    def watch(self) -> None:
        """Replace os.fsync by one that records the synced content. The real one is not called."""
        os.fsync = self._fsync  # type: ignore[assignment]

    def _fsync(self, file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path == self.root or self.root in path.parents:
            self._note(path)

    def _note(self, path: Path) -> None:
        inode = path.stat().st_ino
        if path.is_dir():
            self._put("folders", inode, json.dumps(_listing(path)).encode())
            return
        self._put("files", inode, path.read_bytes())
        pin = self.notes / "pins" / str(inode)  # so that no other file gets this inode
        pin.parent.mkdir(parents=True, exist_ok=True)
        if not pin.exists():
            os.link(path, pin)

    def _put(self, kind: str, inode: int, content: bytes) -> None:
        target = self.notes / kind / str(inode)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"{inode}.{os.getpid()}.tmp")
        unfinished.write_bytes(content)
        os.replace(unfinished, target)

    # ---- between two lives

    def begin(self) -> None:
        """Record the whole folder as synced."""
        shutil.rmtree(self.notes, ignore_errors=True)
        self.root.mkdir(parents=True, exist_ok=True)
        for path in (self.root, *self.root.rglob("*")):
            if not path.is_symlink():
                self._note(path)

    def cut(self, dice: random.Random) -> None:
        """Simulate the power cut: rebuild the folder from the records."""
        harsh = dice.random() < 0.5
        again = self.root.with_name(f"{self.root.name}.again")
        self._build(again, self.root, self.root.stat().st_ino, dice, harsh)
        shutil.rmtree(self.root)
        again.rename(self.root)
        self.begin()

    def _build(
        self, target: Path, now: Path, inode: int, dice: random.Random, harsh: bool
    ) -> None:  # fmt: skip
        target.mkdir()
        sure = self._noted("folders", inode)
        names: Listing = json.loads(sure) if sure is not None else {}
        if not harsh and now.is_dir() and now.stat().st_ino == inode and dice.random() < 0.5:
            names = _listing(now)
        for name, (kind, value) in names.items():
            if kind == "link":
                (target / name).symlink_to(value)
            elif kind == "folder":
                self._build(target / name, now / name, value, dice, harsh)
            else:
                content = self._content(now / name, value, dice, harsh)
                (target / name).write_bytes(content)

    def _content(self, now: Path, inode: int, dice: random.Random, harsh: bool) -> bytes:
        sure = self._noted("files", inode) or b""
        pin = self.notes / "pins" / str(inode)
        there = now.is_file() and not now.is_symlink() and now.stat().st_ino == inode
        path = pin if pin.exists() else now if there else None
        if harsh or path is None:
            return sure
        content = path.read_bytes()
        grown = content.startswith(sure)
        return content[: dice.randint(len(sure), len(content))] if grown else sure

    def _noted(self, kind: str, inode: int) -> bytes | None:
        path = self.notes / kind / str(inode)
        return path.read_bytes() if path.exists() else None


def _listing(folder: Path) -> Listing:
    found: Listing = {}
    for entry in os.scandir(folder):
        if entry.is_symlink():
            found[entry.name] = ["link", os.readlink(entry.path)]
        elif entry.is_file() or entry.is_dir():
            kind = "folder" if entry.is_dir() else "file"
            found[entry.name] = [kind, entry.inode()]
    return found
