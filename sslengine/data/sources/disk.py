"""Images on disk: `disk_folder`, a folder tree, and `disk_filelist`, a .npy file of paths."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.index_cache import Found, Index, indexed, stamp
from sslengine.data.manifest.shared_paths import by_folder, path_arrays
from sslengine.data.options import IndexOptions, PathOptions, SplitOptions, own
from sslengine.data.sources.base import EncodedSource
from sslengine.data.sources.class_numbers import all_known
from sslengine.data.sources.folder_scan import find_images
from sslengine.data.sources.paths import Located, data_error, data_folder, data_path, how_far
from sslengine.data.sources.regular_file import kind_of, read_file
from sslengine.errors import DataError, readable
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


@register_data_source("disk_folder")
class FolderSource(EncodedSource):
    """All images below a folder; the folders right below it are the classes, in order of name.

    Hidden files and folders are passed over. A flat folder of images has no classes.
    """

    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self.root, self.where = data_path(options, split, position)
        if not self.root.is_dir():
            there = self.root.exists()
            what = "a file, not a folder." if there else f"not there: {how_far(self.root)}"
            told = f"{self.where}: the image folder {self.root} is {what}"
            raise data_error(self.root)(told)
        suffixes = IMAGE_SUFFIXES + ((".npy",) if options.IMAGE_MODE == "stored" else ())
        index = indexed(
            f"folder, {' '.join(suffixes)}: {self.root.resolve()}",
            f"looking through {self.root}",
            lambda: find_images(Path(self.root), suffixes),
            cached=own(options, IndexOptions).CACHE_INDEX,
        )
        self._files, self._labels = index.paths(), index["labels"]
        if not len(self._files):
            raise DataError(
                f"{self.where}: no image in {self.root} or in the folders below it. "
                f"Looked for files that end in {', '.join(suffixes)} (or in capitals)."
            )
        self.class_names = [os.fsdecode(name) for name in index.strings("classes")]
        self.num_classes = len(self.class_names)

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> bytes:
        return read_file(self.path(index))

    def label(self, index: int) -> int:
        return int(self._labels.array[index])

    def labels(self) -> NDArray[np.generic]:
        return all_known(
            self._labels.array,
            lambda outside: (
                f"{self.where}: labels are asked for, and {outside.size} images lie in no class "
                f"folder, the first is {readable(self.path(int(outside[0])))}. Move each into a "
                f"folder named after its class, or train without LABEL_SOURCES."
            ),
        )

    def path(self, index: int) -> str:
        return os.path.join(self.root, os.fsdecode(self._files[index]))

    def files_of(self, rows: NDArray[np.int64]) -> Iterable[str]:
        return map(self.path, rows.tolist())


class ListedFiles(EncodedSource):
    """Files whose paths some list holds."""

    needs_path = True
    # Do relative paths begin at the list's folder, or as in VISSL at the current one?
    beside_the_list: ClassVar[bool] = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._list, self.where = data_path(options, split, position)
        paths = own(options, PathOptions)
        self._old_prefix, self._new_prefix = paths.REMOVE_IMG_PATH_PREFIX, paths.NEW_IMG_PATH_PREFIX
        self.root = data_folder(options, split, position) if self.beside_the_list else ""
        self._index = self._indexed(options)
        self._paths = self._index.paths()

    def _indexed(self, options: SplitOptions) -> Index:
        if not self._list.is_file():
            raise data_error(self._list)(f"{self.where}: {no_file(self._list)}")
        return indexed(
            f"{self._kind()}: {self._list.resolve()}",
            f"reading {self._list}",
            self._find,
            cached=own(options, IndexOptions).CACHE_INDEX,
        )

    @abstractmethod
    def _kind(self) -> str:
        """What is looked for, and how: lists of other kinds have other indexes."""

    @abstractmethod
    def _find(self) -> Found:
        """The paths, and what else the list holds."""

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> bytes:
        return read_file(self.path(index))

    def path(self, index: int) -> str:
        path = os.fsdecode(self._paths[index])
        if path.startswith(self._old_prefix):
            path = self._new_prefix + path[len(self._old_prefix) :]
        return os.path.join(self.root, path)

    def files_of(self, rows: NDArray[np.int64]) -> Iterable[str]:
        return map(self.path, rows.tolist())


@register_data_source("disk_filelist")
class FileListSource(ListedFiles):
    """The images whose paths a .npy file holds."""

    beside_the_list = False

    def _kind(self) -> str:
        return "file list"

    def _find(self) -> Found:
        marked = stamp(self._list)
        paths = load_array(Located(self._list, self.where), mmap=True)
        if paths.ndim != 1 or paths.dtype.kind not in "SU" or not len(paths):
            raise DataError(
                f"{self.where}: {self._list} must hold a list of paths; it holds "
                f"an array of shape {paths.shape} and type {paths.dtype}."
            )
        paths_read = by_folder(_one_by_one(self._list, paths))
        return Found(path_arrays(paths_read), [marked], len(paths))


def _one_by_one(file: Path, paths: NDArray[np.generic], at_once: int = 2**16) -> Iterator[bytes]:
    """Read in parts: all as strings of Python, or as pages of a map, would fill the memory."""
    assert isinstance(paths, np.memmap)
    with file.open("rb") as stream:
        stream.seek(paths.offset)
        while len(part := np.fromfile(stream, paths.dtype, at_once)):
            yield from map(os.fsencode, part.tolist())


def no_file(path: Path) -> str:
    if path.is_dir():
        return f"there is no file {path}. It is a folder: use the source disk_folder."
    if kind := kind_of(path):
        return f"{path} is not a file that can be read: it is {kind}."
    return f"there is no file {path}: {how_far(path)}"


def load_array(file: Located, mmap: bool) -> NDArray[np.generic]:
    """A .npy file of paths or labels."""
    if not file.path.is_file():
        raise data_error(file.path)(f"{file.where}: {no_file(file.path)}")
    try:
        array = np.load(file.path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{file.where}: {file.path} is not a .npy file of plain values ({error}). "
            f"Save it again with np.save(path, np.array(values)): arrays of Python objects "
            f"are not read, because reading them can run code."
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file.where}: {file.path} must hold one array, and is a .npz archive.")
    return array
