"""All images below a folder, in the order of torchvision's ImageFolder: by class, folder, name.

Names are kept as bytes, folder by folder: as strings of Python, ten million of them would take a
gigabyte. Links to folders are followed, but not one to a folder that it lies in. What is no regular
file (a FIFO, a device, a socket) is passed over and reported.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sslengine.data.loading.progress import Progress
from sslengine.data.manifest.index_cache import Found, Stamp, stamp, string_arrays
from sslengine.data.manifest.shared_paths import path_arrays
from sslengine.data.sources.class_numbers import NO_CLASS
from sslengine.data.sources.regular_file import kind_of
from sslengine.errors import DataError, readable

log = logging.getLogger("sslengine")

# Links can make a folder of few files look like one of 2^40.
MOST_WAYS = 4096  # to one folder
NAMED = 5  # of what was passed over


class _Folder(NamedTuple):
    label: str  # the first folder below the root; "" for the root itself
    below: str  # the path below the root
    images: int
    names: bytes  # with a slash between them


def find_images(root: Path, suffixes: Sequence[str]) -> Found:
    """The paths below the root, `labels` (or NO_CLASS), and the names of the `classes`."""
    folders, stamps, passed_over = _look_through(root, tuple(suffixes))
    _report(root, passed_over)
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


def count_kinds(root: Path, kinds: Sequence[tuple[str, ...]]) -> Found:
    """`counts`: how many files below the root have an ending of each kind."""
    folders, stamps, _ = _look_through(root, tuple(chain(*kinds)))
    counts = np.zeros(len(kinds), np.int64)
    for folder in folders:
        names = os.fsdecode(folder.names).lower().split("/")
        counts += [sum(name.endswith(endings) for name in names) for endings in kinds]
    return Found({"counts": counts}, stamps, sum(each.images for each in folders))


# Thumbnails of network drives, what macOS puts into an archive, and bins.
OF_SYSTEMS = frozenset(
    {"@eaDir", "__MACOSX", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found"}
)


def is_hidden(name: str) -> bool:
    """Of a file or a folder."""
    return name.startswith(".") or name in OF_SYSTEMS


def _slashed(folder: str) -> bytes:
    return os.fsencode(os.path.join(folder, ""))


class _Pending(NamedTuple):
    label: str
    below: str
    inside: tuple[tuple[int, int], ...]  # device and inode of the folders that it lies in


def _look_through(
    root: Path, suffixes: tuple[str, ...]
) -> tuple[list[_Folder], list[Stamp], list[str]]:
    """The folders, their stamps, and what was passed over."""
    progress, seen = Progress(f"looking through {readable(root)}"), 0
    folders: list[_Folder] = []
    stamps: list[Stamp] = []
    passed_over: list[str] = []
    ways: Counter[tuple[int, int]] = Counter()
    pending = [_Pending("", "", ())]
    while pending:
        label, below, inside = pending.pop()
        path = os.path.join(root, below)
        try:
            status = os.stat(path)
            here = (status.st_dev, status.st_ino)
            if here in inside:
                passed_over.append(f"{path} (a link to a folder that it lies in)")
                continue
            _count(ways, here, path)
            stamps.append(stamp(path))
            names, inner, others = _entries(path, suffixes)
        except OSError as error:
            raise DataError(f"Cannot look into the folder {readable(path)}: {error}") from error
        passed_over += others
        folders.append(_Folder(label, below, len(names), b"/".join(map(os.fsencode, names))))
        inside = (*inside, here)
        pending += [_Pending(label or name, os.path.join(below, name), inside) for name in inner]
        seen += len(names)
        progress.tell(seen, f"images in {len(folders):,} folders")
    return folders, stamps, passed_over


def _count(ways: Counter[tuple[int, int]], here: tuple[int, int], path: str) -> None:
    ways[here] += 1
    if ways[here] > MOST_WAYS:
        raise DataError(
            f"{readable(path)}: links lead to this folder in more than {MOST_WAYS} ways, and its "
            f"images would be seen as often. Remove the links."
        )


def _report(root: Path, passed_over: list[str]) -> None:
    if passed_over:
        named = ", ".join(map(readable, sorted(passed_over)[:NAMED]))
        more = f" and {len(passed_over) - NAMED} more" if len(passed_over) > NAMED else ""
        log.warning("%s: passed over: %s%s", readable(root), named, more)


def _entries(folder: str, suffixes: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """The names of images, sorted; of folders; what is neither, though it is called an image.

    Hidden ones are left out. A link that leads nowhere is an image that cannot be read.
    """
    names, inner, others = [], [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                inner.append(entry.name)
            elif entry.name.lower().endswith(suffixes):
                kind = "" if entry.is_file() else kind_of(entry.path)
                if kind:
                    others.append(f"{entry.path} ({kind})")
                else:
                    names.append(entry.name)
    return sorted(names), inner, others
