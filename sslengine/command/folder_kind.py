"""By which source a folder is read.

A dataset that `save_to_disk` wrote is known by a file of it. Otherwise the number of files of each
kind decides: it is what most of the files are, images, shards, parquet files with images in
them, or videos; then MNIST's files, then .npy files with an image in each. So a clip among photos
is left out, and so is the logo of a hub's repository among its parquet files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from sslengine.data.manifest.index_cache import indexed
from sslengine.data.sources.disk import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from sslengine.data.sources.folder_scan import count_kinds
from sslengine.errors import DataError, readable

log = logging.getLogger("sslengine")

IMAGES, ARRAYS = "disk_folder", ".npy"
OF_SAVE_TO_DISK = ("state.json", "dataset_dict.json")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
KINDS: Mapping[str, tuple[str, ...]] = {
    IMAGES: IMAGE_SUFFIXES,
    "webdataset": (".tar",),
    "huggingface_dataset": (".parquet",),
    "video": VIDEO_SUFFIXES,
    ARRAYS: (".npy",),
    "compressed": COMPRESSED,
}
# Of as many files the first: one picture beside one parquet file is a hub's, not a set.
NAMES = {
    "webdataset": ".tar files",
    "huggingface_dataset": ".parquet files",
    "video": "videos",
    IMAGES: "images",
}
UNPACK = "images of a shard are read where they lie in it, which compression prevents: unpack it"


def is_saved_to_disk(path: Path) -> bool:
    """Has `save_to_disk` of the package `datasets` written the folder?"""
    return any((path / file).exists() for file in OF_SAVE_TO_DISK)


def source_of_folder(path: Path, is_stored: bool = False) -> str:
    """Or ARRAYS, for .npy files. is_stored: these are images among others."""
    if is_saved_to_disk(path):
        return "huggingface_dataset"
    counts = _counts(path)
    found = {name: counts[name] for name in NAMES}
    found[IMAGES] += counts[ARRAYS] if is_stored else 0
    most = max(found, key=lambda name: found[name])
    if found[most]:
        _tell(path, most, found)
        return most
    if any(path.glob("*-images-idx3-ubyte*")):
        return "array_file"
    if counts[ARRAYS] and _holds_an_image(path):
        return ARRAYS
    raise DataError(_nothing(path, counts["compressed"]))


def holds_images(path: Path) -> bool:
    """Or shards, tables, videos; right in the folder or below it."""
    return any(_counts(path).values())


def _counts(path: Path) -> dict[str, int]:
    kinds = list(KINDS.values())
    found = indexed(
        f"kinds, {kinds}: {path.resolve()}",
        f"looking through {path}",
        lambda: count_kinds(path, kinds),
        cached=True,
    )
    return dict(zip(KINDS, found["counts"].array.tolist(), strict=True))


def _tell(path: Path, kind: str, found: Mapping[str, int]) -> None:
    parts = {name: f"{NAMES[name]} ({count})" for name, count in found.items() if count}
    read = parts.pop(kind)
    if parts:
        left = ", ".join(parts.values())
        log.warning("%s: %s are read; left out: %s", readable(path), read, left)


def _holds_an_image(path: Path) -> bool:
    """In the first of its .npy files; others hold lists, labels or features."""
    first = min(each for each in path.rglob("*") if each.suffix.lower() == ARRAYS)
    with suppress(Exception):  # of which kind depends on the file
        array = np.load(first, mmap_mode="r", allow_pickle=False)
        return isinstance(array, np.ndarray) and array.ndim in (2, 3) and array.dtype.kind in "buif"
    return False


def _nothing(path: Path, compressed: int) -> str:
    why = f"It has {compressed} compressed shards; {UNPACK}. " if compressed else ""
    return (
        f"{path}: no image in it or in the folders below it. {why}Looked for files that end in "
        f"{', '.join(IMAGE_SUFFIXES)}, for shards (.tar), parquet files with images in them, "
        f"videos ({', '.join(VIDEO_SUFFIXES)}), all of them also in capitals, for MNIST's files, "
        f"and for .npy files of one image each."
    )
