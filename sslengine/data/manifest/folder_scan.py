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

from sslengine.data.decode.files import kind_of
from sslengine.data.manifest.classes import NO_CLASS
from sslengine.data.manifest.index import FoundImages, ProgressLog, Stamp, make_string_arrays, stamp
from sslengine.errors import DataError, readable

log = logging.getLogger("sslengine")

# Links can make a folder of few files look like one of 2^40.
MOST_WAYS = 4096  # to one folder
NAMED = 5  # of what was passed over
# Thumbnails of network drives, what macOS puts into an archive, and bins.
SYSTEM_FOLDERS = frozenset(
    {"@eaDir", "__MACOSX", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found"}
)


class _Folder(NamedTuple):
    label: str  # the first folder below the root; "" for the root itself
    below: str  # the path below the root
    images: int
    names: bytes  # with a slash between them


class _Scan(NamedTuple):
    folders: list[_Folder]
    stamps: list[Stamp]
    passed_over: list[str]


def find_images(root: Path, suffixes: Sequence[str]) -> FoundImages:
    """Find the `paths` below the root, `labels` (or NO_CLASS), and the names of the `classes`."""
    scan = _look_through(root, tuple(suffixes))
    if scan.passed_over:
        named = ", ".join(map(readable, sorted(scan.passed_over)[:NAMED]))
        more = len(scan.passed_over) - NAMED
        also = f" and {more} more" if more > 0 else ""
        log.warning("%s: passed over: %s%s", readable(root), named, also)
    classes = sorted({each.label for each in scan.folders} - {""})
    numbers = {name: number for number, name in enumerate(classes)}
    folders = sorted(each for each in scan.folders if each.images)
    counts = [each.images for each in folders]
    labels = [numbers.get(each.label, NO_CLASS) for each in folders]
    paths = (
        beginning + name
        for each in folders
        for beginning in [os.fsencode(os.path.join(each.below, ""))]
        for name in each.names.split(b"/")
    )
    arrays = {
        **make_string_arrays("paths", paths),
        **make_string_arrays("classes", map(os.fsencode, classes)),
        "labels": np.repeat(np.array(labels, np.int32), counts),
    }
    return FoundImages(arrays, scan.stamps, sum(counts))


def count_kinds(root: Path, kinds: Sequence[tuple[str, ...]]) -> FoundImages:
    """Count, as `counts`, the files below the root that have an ending of each kind."""
    scan = _look_through(root, tuple(chain(*kinds)))
    counts = np.zeros(len(kinds), np.int64)
    for folder in scan.folders:
        names = os.fsdecode(folder.names).lower().split("/")
        counts += [sum(name.endswith(endings) for name in names) for endings in kinds]
    return FoundImages({"counts": counts}, scan.stamps, sum(each.images for each in scan.folders))


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder of this name is passed over."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def _look_through(root: Path, suffixes: tuple[str, ...]) -> _Scan:
    progress, seen = ProgressLog(f"looking through {readable(root)}"), 0
    scan = _Scan([], [], [])
    ways: Counter[tuple[int, int]] = Counter()
    # Of each folder its label, its path below the root, and device and inode of those it lies in.
    pending: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [("", "", ())]
    while pending:
        label, below, inside = pending.pop()
        path = os.path.join(root, below)
        try:
            status = os.stat(path)
            here = (status.st_dev, status.st_ino)
            if here in inside:
                scan.passed_over.append(f"{path} (a link to a folder that it lies in)")
                continue
            ways[here] += 1
            if ways[here] > MOST_WAYS:
                raise DataError(
                    f"{readable(path)}: links lead to this folder in more than {MOST_WAYS} ways, "
                    f"and its images would be seen as often. Remove the links."
                )
            scan.stamps.append(stamp(path))
            names, inner, others = _list_entries(path, suffixes)
        except OSError as error:
            raise DataError(f"Cannot look into the folder {readable(path)}: {error}") from error
        scan.passed_over.extend(others)
        joined = b"/".join(map(os.fsencode, names))
        scan.folders.append(_Folder(label, below, len(names), joined))
        inside = (*inside, here)
        pending += [(label or name, os.path.join(below, name), inside) for name in inner]
        seen += len(names)
        progress.tell(seen, f"images in {len(scan.folders):,} folders")
    return scan


def _list_entries(folder: str, suffixes: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """List the names of images, sorted; of folders; what is neither, though it is called an image.

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
