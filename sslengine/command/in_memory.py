"""Open images that are objects of this process as files that a config can name.

    with open_data((images, labels)) as files:
        files.images        # /tmp/sslengine-x1/images.npy

Arrays and Pillow images are files in memory where the system has such files (Linux); datasets are
copied to $TMPDIR. All is gone afterwards. Ranks and loader workers open it by its name. Each Pillow
image becomes a PNG, or a TIFF if PNG has no such pixels, with the same values. A torchvision
ImageFolder without a transform is the list of its files. Of the package `datasets` what
load_from_disk returned, and was not changed since, is its own folder; anything else is written by
save_to_disk, with the images of files in it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from sslengine.data.sources.array_file import check_numbers, squeeze_column
from sslengine.data.sources.hugging_face import hide_bars
from sslengine.errors import ConfigError, DataError, OutputError, listing

log = logging.getLogger("sslengine")


class HuggingFaceRows(Protocol):
    """A Dataset or a DatasetDict, without importing the package."""

    @property
    def column_names(self) -> Any: ...
    @property
    def num_rows(self) -> Any: ...


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
# Modes of Pillow's images that a PNG holds.
OF_PNG = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}


class DataFiles(NamedTuple):
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
    """Say whether it is what `Data` says, and no object of another kind."""
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
def open_data(data: Data) -> Iterator[DataFiles]:
    if isinstance(data, str | Path):
        yield DataFiles(str(data))
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


def _files(data: Any, folder: Path, opened: ExitStack) -> DataFiles:
    if is_of_datasets(data):
        return DataFiles(str(rows_on_disk(data, folder)), each="row")
    if names_files(data):
        paths, classes = paths_of(data)
        np.save(folder / "images.npy", paths)
        return DataFiles(
            str(folder / "images.npy"), _label_file(classes, len(paths), folder, opened)
        )
    images, labels = data if isinstance(data, tuple) else (data, None)
    if isinstance(images, np.ndarray | Tensor):
        pixels = _images(images)
        place = folder / "images.npy"
        with _open_in_memory(place, opened) as stream:
            np.save(stream, pixels)
        return DataFiles(str(place), _label_file(labels, len(pixels), folder, opened), "image")
    place = folder / "images.tar"
    with _open_in_memory(place, opened) if isinstance(images, list) else place.open("wb") as stream:
        found = pack(listed(images), stream)
    labels = found.labels if labels is None else labels
    label_file = _label_file(labels, found.images, folder, opened)
    return DataFiles(str(place), label_file, "image", {"CACHE_INDEX": False})


def _images(given: Array) -> NDArray[Any]:
    images = _copy_to_host(given)
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or not len(images):
        raise ConfigError(
            f"data: expected images as an array N x height x width, also with channels last or "
            f"first, of numbers; got the shape {images.shape} of {images.dtype}."
        )
    return images


def _label_file(given: Classes | None, count: int, folder: Path, opened: ExitStack) -> str:
    if given is None:
        return ""
    labels = squeeze_column(_texts(_copy_to_host(given)))
    names = labels.ndim == 1 and labels.dtype.kind == "U"
    if labels.ndim not in (1, 2) or len(labels) != count or labels.dtype.kind not in "uibU":
        raise ConfigError(
            f"data: expected labels as whole numbers, names, or a row of class indicators, one "
            f"for each of {count} images; got the shape {labels.shape} of {labels.dtype}."
        )
    if not names:
        labels = check_numbers(labels, "data")
    with _open_in_memory(folder / "labels.npy", opened) as stream:
        np.save(stream, labels)
    return str(folder / "labels.npy")


def _texts(labels: NDArray[Any]) -> NDArray[Any]:
    """Return names that are objects, as pandas and numpy hold them, as texts."""
    are_names = labels.dtype == object and all(isinstance(each, str) for each in labels.flat)
    return labels.astype(str) if are_names else labels


def _copy_to_host(given: Any) -> NDArray[Any]:
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)


@contextmanager
def _open_in_memory(place: Path, opened: ExitStack) -> Iterator[BinaryIO]:
    """Open a place for writing: a link to a file in memory if there are such files."""
    if not hasattr(os, "memfd_create"):
        with place.open("wb") as file:
            yield file
        return
    descriptor = os.memfd_create(place.name)
    opened.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as stream:
        yield stream
    place.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")


# ---- Pillow images, and torch's map-style datasets of them


class Packed(NamedTuple):
    images: int
    labels: list[int] | list[str] | None


class Item(NamedTuple):
    image: Image.Image
    label: Any = None


def names_files(data: Any) -> bool:
    """Say whether it is like an ImageFolder, and changes nothing of its files' images."""
    folder: Any = sys.modules.get("torchvision.datasets.folder")  # importing it takes a second
    if folder is None or not isinstance(data, folder.DatasetFolder):
        return False
    own = type(data).__getitem__ is not folder.DatasetFolder.__getitem__
    return not own and data.loader is folder.default_loader and _transform_of(data) is None


def paths_of(data: Any) -> tuple[NDArray[Any], list[str]]:
    """Return its files in its order, and the class of each."""
    paths = np.array([os.fsencode(os.path.abspath(path)) for path, _ in data.samples])
    return paths, [data.classes[number] for _, number in data.samples]


def listed(data: Any) -> Iterator[Item]:
    """Yield the items of a list of images, or of a dataset of images or of (image, label)."""
    for number in range(_length(data)):
        try:
            item = data[number]
        except Exception as error:  # of the user's dataset
            raise DataError(
                f"data: item {number} of {type(data).__name__} cannot be read: "
                f"{type(error).__name__}: {error}"
            ) from error
        image, *rest = item if isinstance(item, tuple | list) and item else (item,)
        if not isinstance(image, Image.Image):
            raise ConfigError(f"data: {_no_image(data, number, image)}")
        yield Item(image, rest[0] if rest else None)


def _length(data: Any) -> int:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        raise ConfigError(
            f"data: {type(data).__name__} has no length; expected a map-style dataset, with "
            f"__len__ and __getitem__."
        ) from None


def _no_image(data: Any, number: int, found: Any) -> str:
    text = (
        f"item {number} of {type(data).__name__} is a {type(found).__name__}; expected a Pillow "
        f"image, or (image, label)."
    )
    if _transform_of(data) is not None:
        text += " The recipe augments images: leave the dataset's own transform out."
    return text


def _transform_of(data: Any) -> Any:
    while data is not None and not hasattr(data, "transform"):
        data = getattr(data, "dataset", None)  # of a Subset
    return getattr(data, "transforms", None) or getattr(data, "transform", None)


def pack(items: Iterable[Item], stream: BinaryIO) -> Packed:
    """Write a tar file of the images."""
    labels: list[Any] = []
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for number, item in enumerate(items):
            ending, content = _encoded(item.image, number)
            member = tarfile.TarInfo(f"{number}.{ending}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            labels.append(_class_of(item.label))
    if not labels:
        raise DataError("data: it holds no image.")
    log.info("data: a copy of %d images, %.1f MiB", len(labels), stream.tell() / 2**20)
    return Packed(len(labels), _all_known(labels))


def _encoded(image: Image.Image, number: int) -> tuple[str, bytes]:
    content = io.BytesIO()
    ending = "png" if image.mode in OF_PNG else "tif"
    try:
        if ending == "png":
            image.save(content, "PNG", compress_level=1, exif=image.getexif())
        else:
            # Without EXIF, by which Pillow turns a TIFF; raw, also of an image from a JPEG in one.
            image.save(content, "TIFF", compression="raw")
    except (OSError, ValueError) as error:
        raise DataError(
            f"data: image {number}, of mode {image.mode}, cannot be copied: {error}. Convert it "
            f'first: image.convert("RGB").'
        ) from error
    return ending, content.getvalue()


def _class_of(label: Any) -> int | str | None:
    """None: it is no class."""
    if isinstance(label, Tensor) and label.ndim == 0 and not label.is_floating_point():
        return int(label)
    if isinstance(label, Integral):
        return int(label)
    return label if isinstance(label, str) else None


def _all_known(labels: Sequence[Any]) -> list[Any] | None:
    missing = [number for number, label in enumerate(labels) if label is None]
    if missing and len(missing) < len(labels):
        log.warning(
            "data: %d of %d images, the first is number %d, have no whole number or name as their "
            "label: no labels are used.",
            len(missing),
            len(labels),
            missing[0],
        )
    return None if missing else list(labels)


# ---- rows of the package `datasets`


def is_of_datasets(given: Any) -> bool:
    package: Any = sys.modules.get("datasets")
    return package is not None and isinstance(given, package.Dataset | package.DatasetDict)


def rows_on_disk(data: Any, folder: Path) -> Path:
    """Return the folder of the rows; of a DatasetDict those of `train`, as of a folder of one."""
    rows = _train_of(data) if isinstance(data, dict) else data
    if not len(rows):
        raise DataError("data: it holds no image.")
    if rows.format["type"] == "custom":
        raise ConfigError(
            "data: the Dataset has a transform (set_transform), which would have no effect: the "
            "recipe augments images. Give data.with_format(None)."
        )
    return _saved_at(rows) or _saved(rows, folder / "rows")


def _train_of(splits: Any) -> Any:
    if "train" not in splits:
        raise ConfigError(
            f"data: the DatasetDict has no split train; it has {listing(splits)}. Give one of "
            f'them: data["{min(splits, default="train")}"].'
        )
    return splits["train"]


def _saved_at(rows: Any) -> Path | None:
    """The folder that holds the unchanged rows: loaded again it has the same fingerprint."""
    package: Any = sys.modules["datasets"]
    for folder in {Path(file["filename"]).parent for file in rows.cache_files}:
        with suppress(OSError, ValueError, KeyError):
            if package.load_from_disk(str(folder))._fingerprint == rows._fingerprint:
                return folder
    return None


def _saved(rows: Any, folder: Path) -> Path:
    log.info(
        "data: a copy of %d rows in %s. Without a copy: save_to_disk once, and give the folder",
        len(rows),
        folder.parent,
    )
    try:
        with hide_bars():
            rows.with_format(None).save_to_disk(str(folder))
    except OSError:
        raise
    except Exception as error:  # of pyarrow and of `datasets`
        raise DataError(f"data: `datasets` cannot save it: {error}") from error
    return folder
