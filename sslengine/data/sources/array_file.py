"""`array_file`: images that lie in one array.

    .npy     memory-mapped; labels come from LABEL_PATHS
    .npz     images, x, data ... and labels, y ... (IMAGE_COLUMN and LABEL_COLUMN name others); with
             train, val or test in the name where the file holds several splits
    IDX      MNIST's format, also .gz: the file of images, or the folder of all four files

Images are N x height x width, N x height x width x channels or N x channels x height x width.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.decode.decoding import Decoder
from sslengine.data.decode.files import expect_there
from sslengine.data.manifest.classes import count_classes
from sslengine.data.manifest.index import SharedArray
from sslengine.data.manifest.paths import SPLIT_NAMES, SPLITS, data_path, split_words
from sslengine.data.manifest.tables import expect_column
from sslengine.data.options import ArrayOptions, SplitOptions, own
from sslengine.data.sources.base import DataSource
from sslengine.errors import DataError, SSLEngineError, listing
from sslengine.registry import register_data_source

Array = NDArray[Any]

IMAGE_NAMES = ("images", "image", "imgs", "x", "data")
LABEL_NAMES = ("labels", "label", "y", "targets", "target")
_IDX_IMAGES = re.compile(r"(?P<split>\w+?)-images[-.]idx3-ubyte(\.gz)?")
# The third byte of an IDX file: the type of its numbers, which are big-endian.
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
# Of images that are not square.
_USUAL_CHANNELS = (1, 3, 4)


@register_data_source("array_file")
class ArraySource(DataSource):
    reads = ("IMAGE_MODE", "PIXEL_RANGE")
    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._file, self.where = data_path(options, split, position)
        self.decoder: Decoder = Decoder.build(options, split)
        self._split, self._stored = split, self._file
        expect_there(self._file, self.where)
        try:
            self._images, labels = self._open(own(options, ArrayOptions))
        except SSLEngineError:
            raise
        except Exception as error:  # what it raises depends on the file
            raise DataError(f"{self.where}: {self._file} cannot be read: {error}") from error
        self._axis = find_channels(self._images.array.shape, f"{self.where}: {self._file}")
        self._labels = None if labels is None else SharedArray.share(self._check(labels))
        self.num_classes = 0 if self._labels is None else count_classes(self._labels.array)

    def __len__(self) -> int:
        return len(self._images)

    def image(self, index: int) -> Image.Image:
        values = self._images.array[index]
        values = values[..., None] if self._axis is None else np.moveaxis(values, self._axis - 1, 2)
        native = values.dtype.newbyteorder("=")
        return self.decoder.convert_array(values.astype(native, copy=False))

    def labels(self) -> Array:
        if self._labels is None:
            raise DataError(
                f"{self.where}: labels are asked for, and {self._file} has none. Give a .npy file "
                f"of them: LABEL_SOURCES [disk_filelist] with LABEL_PATHS."
            )
        return self._labels.array

    def path(self, index: int) -> str:
        return f"image {index} of {self._file}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        return [str(self._stored)]

    def _open(self, named: ArrayOptions) -> tuple[SharedArray, Array | None]:
        """Return the images, and the labels that are stored with them."""
        file = self._file
        if file.is_dir() or _IDX_IMAGES.fullmatch(file.name):
            self._stored = file = self._find_idx(file) if file.is_dir() else file
            beside = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
            labels = read_idx(beside) if beside.exists() else None
            return SharedArray.share(read_idx(file)), labels
        if file.suffix.lower() == ".npz":
            with np.load(file, allow_pickle=False) as held:
                return self._choose(held, named)
        mapped = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.memmap):
            raise ValueError("it holds no array; expected .npy, .npz, or a file of the IDX format")
        if not mapped.flags.c_contiguous:
            return SharedArray.share(mapped), None
        return SharedArray.map_file(file, mapped.dtype, mapped.shape, mapped.offset), None

    def _find_idx(self, folder: Path) -> Path:
        files = sorted(folder.iterdir())
        found = {match["split"]: each for each in files
                 if (match := _IDX_IMAGES.fullmatch(each.name))}  # fmt: skip
        for name in SPLITS[self._split]:
            if name in found:
                return found[name]
        raise DataError(
            f"{self.where}: {folder} has no file of images in the IDX format for {self._split} "
            f"({SPLITS[self._split][0]}-images-idx3-ubyte, also .gz). It has: "
            f"{listing(each.name for each in files)}."
        )

    def _choose(self, held: Any, named: ArrayOptions) -> tuple[SharedArray, Array | None]:
        images = self._find_name(held.files, named.IMAGE_COLUMN, IMAGE_NAMES, "IMAGE_COLUMN")
        images = images or (held.files if len(held.files) == 1 else [])
        if not images:
            raise DataError(
                f"{self.where}: which array of {self._file} holds the images? Name it with "
                f"config.DATA.{self._split}.IMAGE_COLUMN.\n  It has: {listing(held.files)}"
            )
        # Labels of `x_val` are not `y_test`, both of which are TEST's.
        of_images = split_words(images[0]) & SPLIT_NAMES
        beside = [
            name for name in held.files
            if not of_images or split_words(name) & SPLIT_NAMES in (set(), of_images)
        ]  # fmt: skip
        among = held.files if named.LABEL_COLUMN else beside
        labels = self._find_name(among, named.LABEL_COLUMN, LABEL_NAMES, "LABEL_COLUMN")
        return SharedArray.share(held[images[0]]), held[labels[0]] if labels else None

    def _find_name(
        self, names: Sequence[str], wanted: str, usual: Iterable[str], key: str
    ) -> list[str]:
        """Find the array that is wanted, or has a usual name: this split's before all others."""
        if wanted:
            expect_column(names, wanted, f"config.DATA.{self._split}.{key}", self._file)
            return [wanted]
        parts = {name: split_words(name) for name in names}
        ours = [name for split in SPLITS[self._split] for name, each in parts.items()
                if split in each]  # fmt: skip
        shared = [name for name, each in parts.items() if not each & SPLIT_NAMES]
        return [name for kind in usual for name in (*ours, *shared) if kind in parts[name]][:1]

    def _check(self, labels: Array) -> Array:
        labels = squeeze_column(labels)
        if labels.ndim not in (1, 2) or labels.dtype.kind not in "iub":
            raise DataError(
                f"{self.where}: the labels of {self._file} have the shape {labels.shape} and the "
                f"type {labels.dtype}; expected a whole number for each image, or a row of class "
                f"indicators."
            )
        return check_numbers(labels, f"{self.where}: the labels of {self._file}")


def squeeze_column(labels: Array) -> Array:
    """Take N x 1, as Keras has them, for class numbers."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def check_numbers(labels: Array, what: str) -> Array:
    """Return class numbers, or rows of indicators: of a byte each."""
    if labels.ndim == 1:
        return labels.astype(np.int64)
    others = labels[~np.isin(labels, (-1, 0, 1))]
    if others.size:
        raise DataError(
            f"{what}: rows of the shape {labels.shape} are indicators of classes, 1, 0, or -1 for "
            f"unknown; one of them holds {others[0]}. Class numbers are one for each image."
        )
    return labels.astype(np.int8)


def read_idx(file: Path) -> Array:
    with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as stream:
        content = stream.read()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise ValueError(f"{file.name} is no file of the IDX format")
    begin = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:begin], ">u4").astype(int)
    values = np.frombuffer(content, _IDX_TYPES[content[2]], offset=begin)
    if values.size != shape.prod():
        raise ValueError(
            f"{file.name} says that it holds {shape.prod()} values, and has {values.size}"
        )
    return values.reshape(shape)


def find_channels(shape: tuple[int, ...], where: str) -> int | None:
    """Find the axis of N images' channels: 1, 3, or None where there is none.

    Height and width of an image are equal, or the channels are as many as usual; anything else
    could be either.
    """
    if len(shape) == 3:
        return None
    if len(shape) == 4:
        _, first, middle, last = shape
        if (first == middle) != (middle == last):
            return 3 if first == middle else 1
        if (first in _USUAL_CHANNELS) != (last in _USUAL_CHANNELS):
            return 3 if last in _USUAL_CHANNELS else 1
    raise DataError(
        f"{where}: an array of shape {shape}; expected N x height x width, N x height x width x "
        f"channels or N x channels x height x width, of square images or with 1, 3 or 4 channels."
    )
