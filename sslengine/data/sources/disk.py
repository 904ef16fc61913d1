"""Images in files: `disk_folder`, a folder tree; `disk_filelist`, a .npy file of paths;
`csv_filelist`, a table of images (.csv, .tsv, .parquet) with a column of paths, or a list (.txt);
`disk_roi_annotations`, parts of images, from a JSON list of {"path": ..., "bbox": [...]}.

The first line of a .csv or .tsv names the columns. IMAGE_COLUMN and LABEL_COLUMN say which are
meant; without them a column of a usual name is taken. Labels are numbers (3, or 3.0), or names,
which are numbered in their order; lists of them (.parquet), or text with LABEL_SEPARATOR between.
With LABEL_COLUMNS there is a column for each class.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.decode.files import (
    data_error,
    expect_file,
    how_far,
    read_file,
)
from sslengine.data.manifest.classes import ClassColumns, ClassNumbers, LabelError, count_classes
from sslengine.data.manifest.folder_scan import find_images
from sslengine.data.manifest.index import (
    FoundImages,
    ImageTable,
    ProgressLog,
    indexed,
    make_string_arrays,
    stamp,
)
from sslengine.data.manifest.paths import data_folder, data_path
from sslengine.data.manifest.tables import (
    IMAGE_NAMES,
    LABEL_NAMES,
    expect_column,
    load_array,
    open_table,
)
from sslengine.data.options import (
    OF_ENCODED_SOURCES,
    IndexOptions,
    PathOptions,
    SplitOptions,
    TableOptions,
    own,
)
from sslengine.data.sources.base import DataSource, EncodedSource
from sslengine.errors import DataError, listing
from sslengine.registry import register_data_source

# Of the formats that are decoded (data/decode).
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".pgm", ".pbm", ".pnm", ".bmp", ".dib",
    ".gif", ".tif", ".tiff", ".webp", ".jp2", ".j2k", ".avif",
)  # fmt: skip

# Of the source `video`.
VIDEO_SUFFIXES = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv", ".flv", ".ts", ".3gp",
)  # fmt: skip


class FileSource(EncodedSource):
    """An image in each file."""

    needs_path = True
    _paths: Sequence[bytes]

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> bytes:
        return read_file(self.path(index))

    def path(self, index: int) -> str:
        return os.path.join(self.root, os.fsdecode(self._paths[index]))

    def files_of(self, rows: NDArray[np.int64]) -> Iterable[str]:
        return map(self.path, rows.tolist())


def index_folder(root: Path, suffixes: Sequence[str], cached: bool) -> ImageTable:
    """Return the table of the files below a folder that end so, with their classes."""
    return indexed(
        f"folder, {' '.join(suffixes)}: {root.resolve()}",
        f"looking through {root}",
        lambda: find_images(root, suffixes),
        cached,
    )


@register_data_source("disk_folder")
class FolderSource(FileSource):
    """All images below a folder; the folders right below it are the classes, in order of name.

    Hidden files and folders are passed over. A flat folder of images has no classes.
    """

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        root, self.where = data_path(options, split, position)
        self.root = root
        if not root.is_dir():
            what = "a file, not a folder." if root.exists() else f"not there: {how_far(root)}"
            raise data_error(root)(f"{self.where}: the image folder {root} is {what}")
        suffixes = IMAGE_SUFFIXES + ((".npy",) if options.IMAGE_MODE == "stored" else ())
        index = index_folder(root, suffixes, own(options, IndexOptions).CACHE_INDEX)
        self._paths, self._labels = index.strings("paths"), index["labels"]
        if not len(self):
            raise DataError(
                f"{self.where}: no image in {self.root} or in the folders below it. "
                f"Looked for files that end in {', '.join(suffixes)} (or in capitals)."
            )
        self.class_names = [os.fsdecode(name) for name in index.strings("classes")]
        self.num_classes = len(self.class_names)

    def label(self, index: int) -> int:
        return int(self._labels.array[index])

    def labels(self) -> NDArray[np.generic]:
        advice = "lie in no class folder. Move each into a folder named after its class"
        return self.expect_labels(self._labels.array, advice)


class ListedFiles(FileSource):
    """Files whose paths some list holds."""

    # Do relative paths begin at the list's folder, or as in VISSL at the current one?
    beside_the_list: ClassVar[bool] = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._list, self.where = data_path(options, split, position)
        paths = own(options, PathOptions)
        self._old_prefix, self._new_prefix = paths.REMOVE_IMG_PATH_PREFIX, paths.NEW_IMG_PATH_PREFIX
        self.root = data_folder(options, split, position) if self.beside_the_list else ""
        expect_file(self._list, self.where)
        self._index = indexed(
            f"{self._kind()}: {self._list.resolve()}",
            f"reading {self._list}",
            self._find,
            cached=own(options, IndexOptions).CACHE_INDEX,
        )
        self._paths = self._index.strings("paths")

    def path(self, index: int) -> str:
        path = os.fsdecode(self._paths[index])
        if path.startswith(self._old_prefix):
            path = self._new_prefix + path[len(self._old_prefix) :]
        return os.path.join(self.root, path)

    @abstractmethod
    def _kind(self) -> str:
        """Say what is looked for, and how: lists of other kinds have other tables."""

    @abstractmethod
    def _find(self) -> FoundImages:
        """Read the paths, and what else the list holds."""


@register_data_source("disk_filelist")
class FileListSource(ListedFiles):
    """The images whose paths a .npy file holds."""

    beside_the_list = False

    def _kind(self) -> str:
        return "file list"

    def _find(self) -> FoundImages:
        marked = stamp(self._list)
        paths = load_array(self._list, self.where, mmap=True)
        if paths.ndim != 1 or paths.dtype.kind not in "SU" or not len(paths):
            raise DataError(
                f"{self.where}: {self._list} must hold a list of paths; it holds "
                f"an array of shape {paths.shape} and type {paths.dtype}."
            )
        read = _read_in_parts(self._list, paths)
        return FoundImages(make_string_arrays("paths", read), [marked], len(paths))


def _read_in_parts(file: Path, paths: NDArray[Any], at_once: int = 2**16) -> Iterator[bytes]:
    """Read one after another: all as strings of Python, or as pages of a map, would fill the
    memory."""
    assert isinstance(paths, np.memmap)
    with file.open("rb") as stream:
        stream.seek(paths.offset)
        while len(part := np.fromfile(stream, paths.dtype, at_once)):
            yield from map(os.fsencode, part.tolist())


@register_data_source("csv_filelist")
class TableSource(ListedFiles):
    """A row is an image. A table without a column of labels has none."""

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        self._columns, self._split = own(options, TableOptions), split
        super().__init__(options, split, position)
        self._labels = self._index["labels"]
        if not len(self):
            raise DataError(f"{self.where}: the table {self._list} has no row.")
        self.class_names = [os.fsdecode(name) for name in self._index.strings("classes")]
        self.num_classes = count_classes(self._labels.array)

    def labels(self) -> NDArray[np.generic]:
        if self._columns.LABEL_COLUMNS:
            return self._labels.array
        return self.expect_labels(
            self._labels.array,
            f"have none (empty, nan, None or -1) in {self._list}. Name their column in "
            f"config.DATA.{self._split}.LABEL_COLUMN, leave such rows out",
        )

    def column(self, name: str, where: str) -> list[Any]:
        names, read_rows = open_table(self._list)
        expect_column(names, name, where, self._list)
        return [value for (value,) in read_rows([list(names).index(name)])]

    def _kind(self) -> str:
        named = self._columns
        images = (named.IMAGE_COLUMN, named.LABEL_COLUMN)
        return f"table, columns {images}, {(*named.LABEL_COLUMNS,)}, {named.LABEL_SEPARATOR!r}"

    def _find(self) -> FoundImages:
        marked, of_classes = stamp(self._list), self._columns.LABEL_COLUMNS
        classes: ClassColumns | ClassNumbers = (
            ClassColumns(of_classes) if of_classes else ClassNumbers(self._columns.LABEL_SEPARATOR)
        )
        try:
            names, read_rows = open_table(self._list)
            rows = read_rows(self._find_columns(names))
            arrays = make_string_arrays("paths", self._read(rows, classes))
        except LabelError as error:
            raise DataError(f"{self.where}: {self._list}: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where}: {self._list} is not text in UTF-8: {error}") from error
        return FoundImages(
            {**arrays, **classes.arrays()}, [marked], len(arrays["paths_starts"]) - 1
        )

    def _find_columns(self, names: Sequence[str]) -> list[int]:
        """Find the numbers of the column of paths and of those of labels."""
        named = self._columns
        image = self._find_column(names, named.IMAGE_COLUMN, IMAGE_NAMES, "IMAGE_COLUMN")
        if not image:
            raise DataError(
                f"{self.where}: which column of {self._list} holds the paths? Name it with "
                f"config.DATA.{self._split}.IMAGE_COLUMN.\n  It has: {listing(names)}"
            )
        for each in named.LABEL_COLUMNS:
            image += self._find_column(names, each, (), "LABEL_COLUMNS")
        if named.LABEL_COLUMNS:
            return image
        return image + self._find_column(names, named.LABEL_COLUMN, LABEL_NAMES, "LABEL_COLUMN")

    def _find_column(
        self, names: Sequence[str], wanted: str, usual: Sequence[str], key: str
    ) -> list[int]:
        if wanted:
            expect_column(names, wanted, f"config.DATA.{self._split}.{key}", self._list)
            return [names.index(wanted)]
        lowered = [name.strip().lower() for name in names]
        return [lowered.index(name) for name in usual if name in lowered][:1]

    def _read(
        self, rows: Iterable[Sequence[Any]], classes: ClassNumbers | ClassColumns
    ) -> Iterator[bytes]:
        """Read the paths, and give their labels to `classes`."""
        progress = ProgressLog(f"reading {self._list}")
        for number, (path, *labels) in enumerate(rows):
            if not path or not isinstance(path, str):
                raise DataError(
                    f"{self.where}: row {number + 1} of {self._list} has no path, but {path!r:.40} "
                    f"(IMAGE_COLUMN). If the images themselves are in the file, set DATA_SOURCES "
                    f"to huggingface_dataset."
                )
            if isinstance(classes, ClassColumns):
                classes.add(labels)
            else:
                classes.add(labels[0] if labels else None)
            progress.tell(number, "rows")
            yield os.fsencode(path)


class _AnnotatedFiles(ListedFiles):
    """The whole images."""

    beside_the_list = False

    def _kind(self) -> str:
        return "regions"

    def _find(self) -> FoundImages:
        marked = stamp(self._list)
        try:
            entries = json.loads(self._list.read_text())
            paths = [os.fsencode(entry["path"]) for entry in entries]
            boxes = np.array([entry["bbox"] for entry in entries], np.float64).reshape(-1, 4)
            arrays = {**make_string_arrays("paths", paths), "boxes": boxes}
            if len(boxes) != len(paths) or not paths:
                raise ValueError("there must be one at least")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f'{self.where}: {self._list} must hold a JSON list of {{"path": ..., "bbox": '
                f"[left, top, right, bottom]}}; {type(error).__name__}: {error}"
            ) from error
        return FoundImages(arrays, [marked], len(paths))


@register_data_source("disk_roi_annotations")
class RegionSource(DataSource):
    """Each entry of the list is an image: a box in pixels, as Pillow crops, within its image.

    Relative paths begin at the current folder, as in VISSL.
    """

    reads = OF_ENCODED_SOURCES
    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._files = _AnnotatedFiles(options, split, position)
        self._boxes = self._files._index["boxes"]

    def __len__(self) -> int:
        return len(self._files)

    def image(self, index: int) -> Image.Image:
        image: Any = self._files.image(index)
        an_array = isinstance(image, np.ndarray)  # IMAGE_MODE stored
        height, width = image.shape[:2] if an_array else (image.height, image.width)
        left, top, right, bottom = (round(each) for each in self._boxes.array[index].tolist())
        box = (max(left, 0), max(top, 0), min(right, width), min(bottom, height))
        if box[0] >= box[2] or box[1] >= box[3]:
            raise ValueError(
                f"the box {left, top, right, bottom} has nothing in common with the image of "
                f"{width} x {height} pixels"
            )
        if an_array:
            return image[box[1] : box[3], box[0] : box[2]].copy()  # type: ignore[no-any-return]
        return image.crop(box)  # type: ignore[no-any-return]

    def path(self, index: int) -> str:
        return self._files.path(index)

    def files_of(self, rows: NDArray[np.int64]) -> Iterable[str]:
        return [str(self._files._list), *self._files.files_of(rows)]
