"""Which images there are, in a few digits: their number, their names, sizes and bytes.

The cost does not grow with their number: NAMED names and READ images are looked at, evenly apart.
Of fewer images all are. So a file that is added, removed or renamed changes it, for it moves those
that follow; one that is rewritten does so where it is among those that are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.sources.base import DataSource, EncodedSource

NAMED, READ = 100_000, 256


def fingerprint(dataset: SSLDataset, folders: Sequence[str]) -> dict[str, Any]:
    """folders: parts of paths that say where the data lies here, as DATA_PATHS has them."""
    names, contents, size = sha256(), sha256(), 0
    for source in dataset.sources:
        for row in _some(dataset.rows, NAMED):
            names.update(_below(source.path(int(row)), folders) + b"\n")
        for row in _some(dataset.rows, READ):
            content = _content(source, int(row))
            size += len(content)
            contents.update(len(content).to_bytes(8, "big") + content)
    count = len(dataset)
    both = sha256(f"{count} {names.hexdigest()} {contents.hexdigest()}".encode())
    return {
        "fingerprint": f"sha256:{both.hexdigest()}",
        "images": count,
        "names": f"sha256:{names.hexdigest()}",
        "named": min(count, NAMED),
        "contents": f"sha256:{contents.hexdigest()}",
        "read": min(count, READ),
        "bytes_read": size,
    }


def _some(rows: Any, most: int) -> Iterable[Any]:
    count = len(rows)
    if count <= most:
        return rows  # type: ignore[no-any-return]
    return (rows[number * count // most] for number in range(most))


def _below(path: str, folders: Iterable[str]) -> bytes:
    for folder in folders:
        path = path.removeprefix(f"{folder.rstrip('/')}/")
    return path.encode(errors="surrogateescape")


def _content(source: DataSource, row: int) -> bytes:
    """The bytes of its file, or its pixels; none of one that cannot be read."""
    try:
        if isinstance(source, EncodedSource):
            return source.read(row)
        pixels = np.asarray(source.image(row))
        return f"{pixels.shape} {pixels.dtype}".encode() + pixels.tobytes()
    except Exception:  # decoders raise many kinds
        return b""
