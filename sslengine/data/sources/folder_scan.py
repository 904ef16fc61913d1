"""All images below a folder, in the order of torchvision's ImageFolder: by class, folder, name.

Each folder is looked into once. Names are kept as bytes, folder by folder: as strings of Python,
ten million of them would take a gigabyte.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sslengine.data.index_cache import Found, Stamp, stamp, string_arrays
from sslengine.data.progress import Progress
from sslengine.data.shared_paths import path_arrays
from sslengine.data.sources.class_numbers import NO_CLASS
from sslengine.errors import DataError


class _Folder(NamedTuple):
    label: str  # the first folder below the root; "" for the root itself
    below: str  # the path below the root
    images: int
    names: bytes  # with a slash between them


def find_images(root: Path, suffixes: Sequence[str]) -> Found:
    """The paths below the root, `labels` (or NO_CLASS), and the names of the `classes`."""
    folders, stamps = _look_through(root, tuple(suffixes))
    classes = sorted({each.label for each in folders} - {""})
    numbers = {name: number for number, name in enumerate(classes)}
    folders = sorted(each for each in folders if each.images)
    counts = [each.images for each in folders]
    labels = [numbers.get(each.label, NO_CLASS) for each in folders]
    arrays = {
        **path_arrays((_slashed(each.below), each.names.split(b"/")) for each in folders),
        **string_arrays("classes", map(os.fsencode, classes)),
        "labels": np.repeat(np.array(labels, np.int32), counts),
    }
    return Found(arrays, stamps, sum(counts))


def _slashed(folder: str) -> bytes:
    return os.fsencode(os.path.join(folder, ""))


def _look_through(root: Path, suffixes: tuple[str, ...]) -> tuple[list[_Folder], list[Stamp]]:
    progress, seen = Progress(f"looking through {root}"), 0
    folders: list[_Folder] = []
    stamps: list[Stamp] = []
    pending = [("", "")]
    while pending:
        label, below = pending.pop()
        path = os.path.join(root, below)
        try:
            stamps.append(stamp(path))
            names, inner = _entries(path, suffixes)
        except OSError as error:
            raise DataError(f"Cannot look into the folder {path}: {error}") from error
        folders.append(_Folder(label, below, len(names), b"/".join(map(os.fsencode, names))))
        pending += [(label or name, os.path.join(below, name)) for name in inner]
        seen += len(names)
        progress.tell(seen, f"images in {len(folders):,} folders")
    return folders, stamps


def _entries(folder: str, suffixes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The names of images, sorted, and of folders; without hidden ones."""
    names, inner = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                inner.append(entry.name)
            elif entry.name.lower().endswith(suffixes):
                names.append(entry.name)
    return sorted(names), inner
