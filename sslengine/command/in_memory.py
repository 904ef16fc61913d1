"""Images that are objects of this process, as files that a config can name.

    with as_files((images, labels)) as files:
        files.images        # /tmp/sslengine-x1/images.npy

Arrays and Pillow images are files in memory where the system has such files (Linux); datasets are
copied to $TMPDIR. All is gone afterwards. Ranks and loader workers open it by its name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from sslengine.command.in_memory_items import listed, names_files, pack, paths_of
from sslengine.command.in_memory_rows import HuggingFaceRows, is_of_datasets, rows_on_disk
from sslengine.data.sources.array_file import as_numbers, in_one_column
from sslengine.errors import ConfigError, OutputError

Array: TypeAlias = NDArray[Any] | Tensor
Classes: TypeAlias = Array | Sequence[int] | Sequence[str]
# A path; images (N, height, width, channels) or (N, channels, height, width); Pillow images; these
# with labels; a map-style dataset of Pillow images, or of (image, label); rows of `datasets`.
Data: TypeAlias = (
    str | Path | NDArray[Any] | Tensor | Sequence[Image.Image] | Dataset[Any] | HuggingFaceRows
    | tuple[Array, Classes] | tuple[Sequence[Image.Image], Classes]
)  # fmt: skip
TAKEN = (
    "a path, an array of images, a list of Pillow images, (images, labels), a torch Dataset of "
    "Pillow images, or a Dataset of the package datasets"
)


class Files(NamedTuple):
    images: str
    labels: str = ""
    # What to call each image by its number; empty: by its file.
    each: str = ""
    # Of a split, for the source that reads the file.
    keys: Mapping[str, Any] = {}

    @property
    def values(self) -> dict[str, Any]:
        """The keys as a config has them."""
        return {f"DATA.TRAIN.{key}": value for key, value in self.keys.items()}


def is_data(given: Any) -> bool:
    """Is it what `Data` says, and no object of another kind?"""
    if isinstance(given, tuple):
        return len(given) == 2 and _is_array_or_list(given[0])
    is_items = isinstance(given, Dataset) and not isinstance(given, IterableDataset)
    return (
        isinstance(given, str | Path) or _is_array_or_list(given) or is_items
        or is_of_datasets(given)
    )  # fmt: skip


def _is_array_or_list(given: Any) -> bool:
    if isinstance(given, list):
        return bool(given) and all(isinstance(each, Image.Image) for each in given)
    return isinstance(given, np.ndarray | Tensor)


@contextmanager
def as_files(data: Data) -> Iterator[Files]:
    if isinstance(data, str | Path):
        yield Files(str(data))
        return
    if not is_data(data):
        raise ConfigError(f"data: expected {TAKEN}; got {_described(data)}")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sslengine-")))
        try:
            files = _files(data, folder, opened)
        except OSError as error:
            raise OutputError(
                f"data: it cannot be copied to {folder.parent} ($TMPDIR): {error}"
            ) from error
        yield files


def _described(data: Any) -> str:
    kind = type(data).__name__
    if isinstance(data, IterableDataset) or "Iterable" in kind:
        return (
            f"a {kind}, which can only be read from one end to the other. Of shards or of a "
            f"dataset of the hub give the path: stream=True, length=N."
        )
    if isinstance(data, list | tuple) and data:
        held = " and ".join(sorted({type(each).__name__ for each in data}))
        arrays = isinstance(data, list) and isinstance(data[0], np.ndarray | Tensor)
        hint = " Arrays of one size make one array: numpy.stack(images)." if arrays else ""
        return f"a {kind} of {held}.{hint}"
    return f"a {kind}."


def _files(data: Any, folder: Path, opened: ExitStack) -> Files:
    if is_of_datasets(data):
        return Files(str(rows_on_disk(data, folder)), each="row")
    if names_files(data):
        paths, classes = paths_of(data)
        np.save(folder / "images.npy", paths)
        return Files(str(folder / "images.npy"), _label_file(classes, len(paths), folder, opened))
    images, labels = data if isinstance(data, tuple) else (data, None)
    if isinstance(images, np.ndarray | Tensor):
        pixels = _images(images)
        place = folder / "images.npy"
        with _in_memory(place, opened) as stream:
            np.save(stream, pixels)
        return Files(str(place), _label_file(labels, len(pixels), folder, opened), "image")
    place = folder / "images.tar"
    with _in_memory(place, opened) if isinstance(images, list) else place.open("wb") as stream:
        found = pack(listed(images), stream)
    labels = found.labels if labels is None else labels
    label_file = _label_file(labels, found.images, folder, opened)
    return Files(str(place), label_file, "image", {"CACHE_INDEX": False})


def _images(given: Array) -> NDArray[Any]:
    images = _on_host(given)
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or not len(images):
        raise ConfigError(
            f"data: expected images as an array N x height x width, also with channels last or "
            f"first, of numbers; got the shape {images.shape} of {images.dtype}."
        )
    return images


def _label_file(given: Classes | None, count: int, folder: Path, opened: ExitStack) -> str:
    if given is None:
        return ""
    labels = in_one_column(_as_texts(_on_host(given)))
    names = labels.ndim == 1 and labels.dtype.kind == "U"
    if labels.ndim not in (1, 2) or len(labels) != count or labels.dtype.kind not in "uibU":
        raise ConfigError(
            f"data: expected labels as whole numbers, names, or a row of class indicators, one "
            f"for each of {count} images; got the shape {labels.shape} of {labels.dtype}."
        )
    if not names:
        labels = as_numbers(labels, "data")
    with _in_memory(folder / "labels.npy", opened) as stream:
        np.save(stream, labels)
    return str(folder / "labels.npy")


def _as_texts(labels: NDArray[Any]) -> NDArray[Any]:
    """Names that are objects, as pandas and numpy hold them."""
    are_names = labels.dtype == object and all(isinstance(each, str) for each in labels.flat)
    return labels.astype(str) if are_names else labels


def _on_host(given: Any) -> NDArray[Any]:
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)


@contextmanager
def _in_memory(place: Path, opened: ExitStack) -> Iterator[BinaryIO]:
    """For writing. The place is a link to a file in memory if there are such files."""
    if not hasattr(os, "memfd_create"):
        with place.open("wb") as file:
            yield file
        return
    descriptor = os.memfd_create(place.name)
    opened.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as stream:
        yield stream
    place.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
