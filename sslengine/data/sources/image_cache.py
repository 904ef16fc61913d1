"""`image_cache`: smaller copies of images in a few large files.

`sslengine make image-cache` makes them:

    cache.json          what was cached, how, its classes; written last: without it nothing is read
    part-00000.bin      the encoded images of the part, one after the other
    part-00000.npy      where each begins, and where the last ends
    labels.npy          the labels, if the source has any

An image that could not be read takes no bytes, and stays one that cannot be read. The images are
not those of the source: opening the cache says in the log what differs.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.shared import SharedArray
from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import EncodedSource
from sslengine.data.sources.class_numbers import count_classes
from sslengine.data.sources.paths import data_error, data_path, how_far
from sslengine.errors import DataError
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")

MANIFEST, PLAN = "cache.json", "making.json"
VERSION = 1


def part_name(number: int) -> str:
    return f"part-{number:05}"


@register_data_source("image_cache")
class ImageCacheSource(EncodedSource):
    """The images of the source that was cached, with its numbers and labels."""

    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._root, self.where = data_path(options, split, position)
        self._told = _read_manifest(self._root, self.where)
        starts = [
            np.load(self._root / f"{part_name(number)}.npy")
            for number in range(-(-self._told["images"] // self._told["images_in_a_part"]))
        ]
        self._starts = SharedArray.of(np.concatenate(starts))
        labels = self._root / "labels.npy"
        self._labels = SharedArray.of(np.load(labels)) if labels.exists() else None
        self.num_classes = count_classes(self._labels.array) if self._labels else 0
        self.class_names = list(self._told.get("classes", []))
        self._tell()

    def __len__(self) -> int:
        return int(self._told["images"])

    def read(self, index: int) -> bytes:
        part, place = divmod(index, self._told["images_in_a_part"])
        first = part * (self._told["images_in_a_part"] + 1) + place
        begin, end = self._starts.array[first : first + 2].tolist()
        with open(self._root / f"{part_name(part)}.bin", "rb", buffering=0) as file:
            content = os.pread(file.fileno(), end - begin, begin)
        if len(content) < end - begin:
            raise EOFError(f"the cache ends within it: {len(content)} of {end - begin} bytes")
        return content

    def labels(self) -> NDArray[np.generic]:
        if self._labels is None:
            raise DataError(f"{self.where}: the source that was cached has no labels.")
        return self._labels.array

    def path(self, index: int) -> str:
        return f"image {index} of the cache {self._root}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        parts = np.unique(rows // self._told["images_in_a_part"]).tolist()
        return [str(self._root / f"{part_name(part)}.bin") for part in parts]

    def _tell(self) -> None:
        told = self._told
        log.warning(
            "%s: these are copies of %s, not the images themselves: %s. %s of %s were smaller "
            "and keep their size, %s could not be read.",
            self.where,
            told["of"],
            told["changes"],
            f"{told['not_resized']:,}",
            f"{told['images']:,}",
            f"{told['unreadable']:,}",
        )


def _what_is_wrong(root: Path) -> str:
    if (root / PLAN).is_file():
        return "not complete: run `sslengine make image-cache` again, it continues."
    if root.is_dir():
        return f"none: the folder has no {MANIFEST}. `sslengine make image-cache` makes one."
    return f"not there: {how_far(root)}"


def _read_manifest(root: Path, where: str) -> dict[str, Any]:
    if not (root / MANIFEST).is_file():
        wrong = f"{where}: the image cache {root} is {_what_is_wrong(root)}"
        raise data_error(root)(wrong)
    told: dict[str, Any] = json.loads((root / MANIFEST).read_text())
    if told.get("version") != VERSION:
        raise DataError(f"{where}: the image cache {root} is of another version; make it again.")
    return told
