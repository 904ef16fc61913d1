"""Images on disk: `disk_folder`, a folder tree, and `disk_filelist`, a .npy file of paths.

Paths are kept in one numpy array of bytes, not in a list of strings: it goes to every
loader worker, and a million short strings would cost each of them some 100 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.paths import Located, data_path
from sslengine.errors import DataError
from sslengine.registry import register_data_source

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip
NO_CLASS = -1


def open_image(path: str) -> Image.Image:
    """A file's pixels as RGB, as they are stored: as in VISSL, not turned as EXIF may say."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


class _Folder(NamedTuple):
    """Sorted, images are in the order of torchvision's ImageFolder: by class, folder, name."""

    label: str  # the first folder below the root; "" for the root itself
    below: str  # the path below the root
    images: list[str]


@register_data_source("disk_folder")
class FolderSource(DataSource):
    """All images below a folder; the folders right below it are the classes, in order of name.

    Hidden files and folders are passed over. A flat folder of images has no classes.
    """

    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self.root, self.where = data_path(options, split, position)
        if not self.root.is_dir():
            kind = "a file, not a folder" if self.root.exists() else "not there"
            raise DataError(f"{self.where}: the image folder {self.root} is {kind}.")
        self.class_names = sorted(entry.name for entry in _visible(self.root) if entry.is_dir())
        folders = sorted(_scan(self.root))
        files = [os.path.join(each.below, name) for each in folders for name in each.images]
        if not files:
            raise DataError(
                f"{self.where}: no image in {self.root} or in the folders below it. "
                f"Looked for files that end in {', '.join(IMAGE_SUFFIXES)} (or in capitals)."
            )
        numbers = {name: number for number, name in enumerate(self.class_names)}
        self._files = np.array([os.fsencode(file) for file in files])
        self._labels = np.repeat(
            [numbers.get(each.label, NO_CLASS) for each in folders],
            [len(each.images) for each in folders],
        )
        self.num_classes = len(self.class_names)

    def __len__(self) -> int:
        return len(self._files)

    def image(self, index: int) -> Image.Image:
        return open_image(self.path(index))

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def labels(self) -> NDArray[np.generic]:
        outside = np.flatnonzero(self._labels == NO_CLASS)
        if outside.size:
            raise DataError(
                f"{self.where}: labels are asked for, and {outside.size} images lie in no class "
                f"folder, the first is {self.path(int(outside[0]))}. Move each into a folder "
                f"named after its class, or train without LABEL_SOURCES."
            )
        return self._labels

    def path(self, index: int) -> str:
        return os.path.join(self.root, os.fsdecode(self._files[index]))


def _visible(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"Cannot look into the folder {folder}: {error}") from error


def _scan(root: str | Path, label: str = "", below: str = "") -> Iterator[_Folder]:
    entries = _visible(root)
    folders = [entry for entry in entries if entry.is_dir()]
    images = {entry.name for entry in entries if entry.name.lower().endswith(IMAGE_SUFFIXES)}
    yield _Folder(label, below, sorted(images - {folder.name for folder in folders}))
    for folder in folders:
        yield from _scan(folder.path, label or folder.name, os.path.join(below, folder.name))


@register_data_source("disk_filelist")
class FileListSource(DataSource):
    """The images whose paths a .npy file holds."""

    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._file = data_path(options, split, position)
        self._mmap = options.MMAP_MODE
        self._old_prefix = options.REMOVE_IMG_PATH_PREFIX
        self._new_prefix = options.NEW_IMG_PATH_PREFIX
        self._paths: NDArray[np.generic] | None = None
        paths = self._load()
        if paths.ndim != 1 or paths.dtype.kind not in "SU" or not len(paths):
            raise DataError(
                f"{self._file.where}: {self._file.path} must hold a list of paths; it holds "
                f"an array of shape {paths.shape} and type {paths.dtype}."
            )
        self._length = len(paths)

    def __len__(self) -> int:
        return self._length

    def image(self, index: int) -> Image.Image:
        return open_image(self.path(index))

    def path(self, index: int) -> str:
        path = os.fsdecode(self._load()[index])
        if path.startswith(self._old_prefix):
            return self._new_prefix + path[len(self._old_prefix) :]
        return path

    def _load(self) -> NDArray[np.generic]:
        if self._paths is None:
            self._paths = load_array(self._file, self._mmap)
        return self._paths

    def __getstate__(self) -> dict[str, Any]:
        # A worker reads the file anew: pickling would copy a memory map whole.
        return {**self.__dict__, "_paths": None}


def load_array(file: Located, mmap: bool) -> NDArray[np.generic]:
    """A .npy file of paths or labels."""
    if not file.path.is_file():
        hint = " It is a folder: use the source disk_folder." if file.path.is_dir() else ""
        raise DataError(f"{file.where}: there is no file {file.path}.{hint}")
    try:
        array = np.load(file.path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{file.where}: {file.path} is not a .npy file of plain values ({error}). "
            f"Save it anew with np.save(path, np.array(values)): arrays of Python objects "
            f"are not read, because reading them can run code."
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file.where}: {file.path} must hold one array, and is a .npz archive.")
    return array
