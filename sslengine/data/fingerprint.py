"""Which images there are, in a few digits: their number, their names, sizes and bytes.

The cost does not grow with their number: NAMED names and READ images are looked at, evenly apart.
Of fewer images all are. So a file that is added, removed or renamed changes it, for it moves those
that follow; one that is rewritten does so where it is among those that are read.

`hash_here` is for what is kept on this machine: all names, labels, and sizes and times of files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.index import stamp
from sslengine.data.sources.base import DataSource, EncodedSource

NAMED, READ = 100_000, 256
# The files of so many images are looked at: a million would take ten seconds, or minutes on NFS.
STAMPED = 100_000
# Another one whenever the same images get another hash.
HASHED_AS = 2


def identify(dataset: SSLDataset, folders: Sequence[str]) -> dict[str, Any]:
    """Return the fingerprint; of a stream, why it has none.

    folders: parts of paths that say where the data lies here, as DATA_PATHS has them.
    """
    if dataset.stream is not None:
        return {"fingerprint": None, "why": "a stream is read once, from one end to the other"}
    names, contents, size = hash_names(dataset, folders), sha256(), 0
    for source in dataset.sources:
        for row in _spread(dataset.rows, READ):
            content = _content(source, int(row))
            size += len(content)
            contents.update(len(content).to_bytes(8, "big") + content)
    count = len(dataset)
    both = f"{count} {names.removeprefix('sha256:')} {contents.hexdigest()}"
    return {
        "fingerprint": f"sha256:{sha256(both.encode()).hexdigest()}",
        "images": count,
        "names": names,
        "named": min(count, NAMED),
        "contents": f"sha256:{contents.hexdigest()}",
        "read": min(count, READ),
        "bytes_read": size,
    }


def hash_list(dataset: SSLDataset, folders: Sequence[str]) -> dict[str, str]:
    """Hash names and labels in their order: what the number of an image means. {} of a stream."""
    if dataset.stream is not None:
        return {}
    return {"names": hash_names(dataset, folders), "labels": hash_labels(dataset)}


def hash_names(dataset: SSLDataset, folders: Sequence[str]) -> str:
    names = sha256()
    for source in dataset.sources:
        for name in _names(source, _spread(dataset.rows, NAMED), folders):
            names.update(name.encode(errors="surrogateescape") + b"\n")
    return f"sha256:{names.hexdigest()}"


def hash_labels(dataset: SSLDataset) -> str:
    """Hash the classes of all images, and the classes' names."""
    found = sha256()
    for labels in dataset.labels:
        values = np.asarray(labels)
        whole = values.dtype.kind in "iub"  # the type does not matter
        values = values.astype(np.int64 if whole else np.float64)
        found.update(f"{values.shape} ".encode() + values.tobytes())
    for classes in dataset.classes:
        found.update("\n".join(classes.names).encode(errors="surrogateescape"))
    return f"sha256:{found.hexdigest()}"


def hash_here(dataset: SSLDataset) -> str:
    """Return another hash for other images or labels, where files that change get another time."""
    found = sha256(f"{HASHED_AS}\n".encode())
    for source in dataset.sources:
        for row in dataset.rows:
            found.update(source.path(int(row)).encode(errors="surrogateescape") + b"\n")
        rows = np.fromiter(_spread(dataset.rows, STAMPED), np.int64)
        files = source.files_of(rows)
        for file in map(source.path, rows.tolist()) if files is None else files:
            found.update(_size_and_time(file))
        for row in _spread(rows, READ) if files is None else ():  # its files are not known
            found.update(sha256(_content(source, int(row))).digest())
    for labels in dataset.labels:
        found.update(np.ascontiguousarray(labels).tobytes())
    return found.hexdigest()


def _size_and_time(file: str) -> bytes:
    try:
        _, changed, size = stamp(file)
    except (OSError, ValueError):  # there is none of this name
        return b"none\n"
    return f"{size} {changed}\n".encode()


def _spread(rows: Any, most: int) -> Iterable[Any]:
    """Take so many of the rows at most, evenly apart."""
    count = len(rows)
    if count <= most:
        return rows  # type: ignore[no-any-return]
    return (rows[number * count // most] for number in range(most))


def _names(source: DataSource, rows: Iterable[Any], folders: Sequence[str]) -> list[str]:
    names = [source.relative_path(int(row)) for row in rows]
    if not source.root:  # "image 3 of /data/birds.npy", or a path
        names = [_shorten(name, folders) for name in names]
    if names and all(map(os.path.isabs, names)):  # in a list that is elsewhere
        common = os.path.join(os.path.commonpath([*map(os.path.dirname, names)]), "")
        names = [name.removeprefix(common) for name in names]
    return names


def _shorten(name: str, folders: Sequence[str]) -> str:
    """Remove each path of `folders`, and the folder of one that is a file."""
    for place in (Path(each).expanduser() for each in folders):
        name = re.sub(rf"(?<!\S){re.escape(str(place))}(/|(?=[,\s]|$))", "", name)
        name = re.sub(rf"(?<!\S){re.escape(str(place.parent))}/", "", name)
    return name


def _content(source: DataSource, row: int) -> bytes:
    """Return the bytes of its file, or its pixels; none of one that cannot be read."""
    try:
        if isinstance(source, EncodedSource):
            return source.read(row)
        pixels = np.asarray(source.image(row))
        return f"{pixels.shape} {pixels.dtype}".encode() + pixels.tobytes()
    except Exception:  # decoders raise many kinds
        return b""
