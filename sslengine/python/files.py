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
ONCE = "Of shards or of a dataset of the hub give the path: stream=True, length=N."
# Modes of Pillow's images that a PNG holds.
OF_PNG = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}


class DataFiles(NamedTuple):
    """The files of some data, for a config."""

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


@contextmanager
def open_data(data: Data) -> Iterator[DataFiles]:
    """Open what `Data` says; raise a ConfigError for an object of another kind."""
    if isinstance(data, str | Path):
        yield DataFiles(str(data))
        return
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sslengine-")))
        try:
            files = _write(data, folder, opened)
        except OSError as error:
            raise OutputError(
                f"data: it cannot be copied to {folder.parent} ($TMPDIR): {error}"
            ) from error
        yield files


def _write(data: Any, folder: Path, opened: ExitStack) -> DataFiles:
    package: Any = sys.modules.get("datasets")
    if package is not None and isinstance(data, package.Dataset | package.DatasetDict):
        return DataFiles(str(put_on_disk(data, folder)), each="row")
    place, each, keys = folder / "images.npy", "image", dict[str, Any]()
    pair = isinstance(data, tuple) and len(data) == 2
    images, labels = data if pair else (data, None)
    if names_files(data):
        images, labels = paths_of(data)
        np.save(place, images)
        count, each = len(images), ""
    elif isinstance(images, np.ndarray | Tensor):
        count = _write_array(images, place, opened)
    elif _is_pictures(images) or (not pair and _is_map_style(data)):
        place, keys = folder / "images.tar", {"CACHE_INDEX": False}
        opening = _open_in_memory(place, opened) if isinstance(images, list) else place.open("wb")
        with opening as stream:
            count, own = pack(list_items(images), stream)
        labels = own if labels is None else labels
    else:
        raise ConfigError(f"data: expected {TAKEN}; got {_describe(data)}")
    label_file = "" if labels is None else _write_labels(labels, count, folder, opened)
    return DataFiles(str(place), label_file, each, keys)


def is_images(data: Any) -> bool:
    """Say whether it is `Data`, and no batches or samples of tensors."""
    if isinstance(data, tuple) and len(data) == 2:
        data = data[0]
    if _is_map_style(data) and not names_files(data) and len(data):
        item = data[0]
        return isinstance(item[0] if isinstance(item, tuple | list) else item, Image.Image)
    known = isinstance(data, str | Path | np.ndarray | Tensor) or hasattr(data, "column_names")
    return known or names_files(data) or _is_pictures(data)


def _is_pictures(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and isinstance(given[0], Image.Image)


def _is_map_style(given: Any) -> bool:
    return isinstance(given, Dataset) and not isinstance(given, IterableDataset)


def _describe(data: Any) -> str:
    kind = type(data).__name__
    if isinstance(data, IterableDataset) or "Iterable" in kind:
        return f"a {kind}, which can only be read from one end to the other. {ONCE}"
    if isinstance(data, list | tuple) and data:
        kind += f" of {' and '.join(sorted({type(each).__name__ for each in data}))}"
    return f"a {kind}."


def _write_array(given: Array, place: Path, opened: ExitStack) -> int:
    images = _copy_to_host(given)
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or not len(images):
        raise ConfigError(
            f"data: expected images as an array N x height x width, also with channels last or "
            f"first, of numbers; got the shape {images.shape} of {images.dtype}."
        )
    with _open_in_memory(place, opened) as stream:
        np.save(stream, images)
    return len(images)


def _write_labels(given: Classes, count: int, folder: Path, opened: ExitStack) -> str:
    labels = _copy_to_host(given)
    if labels.dtype == object and all(isinstance(each, str) for each in labels.flat):
        labels = labels.astype(str)  # names as pandas holds them
    labels = squeeze_column(labels)
    if labels.ndim not in (1, 2) or len(labels) != count or labels.dtype.kind not in "uibU":
        raise ConfigError(
            f"data: expected labels as whole numbers, names, or a row of class indicators, one "
            f"for each of {count} images; got the shape {labels.shape} of {labels.dtype}."
        )
    if labels.ndim > 1 or labels.dtype.kind != "U":
        labels = check_numbers(labels, "data")
    with _open_in_memory(folder / "labels.npy", opened) as stream:
        np.save(stream, labels)
    return str(folder / "labels.npy")


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


def names_files(data: Any) -> bool:
    """Say whether it is like an ImageFolder, and changes nothing of its files' images."""
    folder: Any = sys.modules.get("torchvision.datasets.folder")  # importing it takes a second
    if folder is None or not isinstance(data, folder.DatasetFolder):
        return False
    own = type(data).__getitem__ is not folder.DatasetFolder.__getitem__
    return not own and data.loader is folder.default_loader and _find_transform(data) is None


def paths_of(data: Any) -> tuple[NDArray[Any], list[str]]:
    """Return its files in its order, and the class of each."""
    paths = np.array([os.fsencode(os.path.abspath(path)) for path, _ in data.samples])
    return paths, [data.classes[number] for _, number in data.samples]


def list_items(data: Any) -> Iterator[tuple[Image.Image, Any]]:
    """Yield the images and labels of a list of images, or of a dataset of images or of pairs."""
    for number in range(len(data)):
        try:
            item = data[number]
        except Exception as error:  # of the user's dataset
            raise DataError(
                f"data: item {number} of {type(data).__name__} cannot be read: "
                f"{type(error).__name__}: {error}"
            ) from error
        image, *rest = item if isinstance(item, tuple | list) and item else (item,)
        if not isinstance(image, Image.Image):
            hint = " The recipe augments images: leave the dataset's own transform out."
            raise ConfigError(
                f"data: item {number} of {type(data).__name__} is a {type(image).__name__}; "
                f"expected a Pillow image, or (image, label)."
                f"{hint if _find_transform(data) is not None else ''}"
            )
        yield image, rest[0] if rest else None


def _find_transform(data: Any) -> Any:
    while data is not None and not hasattr(data, "transform"):
        data = getattr(data, "dataset", None)  # of a Subset
    return getattr(data, "transforms", None) or getattr(data, "transform", None)


def pack(
    items: Iterable[tuple[Image.Image, Any]], stream: BinaryIO
) -> tuple[int, list[Any] | None]:
    """Write a tar file of the images; return their number, and their labels if all are classes."""
    labels: list[Any] = []
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for number, (image, label) in enumerate(items):
            ending, content = _encode(image, number)
            member = tarfile.TarInfo(f"{number}.{ending}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            labels.append(_class_of(label))
    if not labels:
        raise DataError("data: it holds no image.")
    log.info("data: a copy of %d images, %.1f MiB", len(labels), stream.tell() / 2**20)
    missing = labels.count(None)
    if 0 < missing < len(labels):
        log.warning(
            "data: %d of %d images, the first is number %d, have no whole number or name as their "
            "label: no labels are used.", missing, len(labels), labels.index(None),
        )  # fmt: skip
    return len(labels), None if missing else labels


def _encode(image: Image.Image, number: int) -> tuple[str, bytes]:
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
    """Return a class by number or name; None: the label is none."""
    if isinstance(label, Tensor) and label.ndim == 0 and not label.is_floating_point():
        return int(label)
    return int(label) if isinstance(label, Integral) else label if isinstance(label, str) else None


# ---- rows of the package `datasets`


def put_on_disk(data: Any, folder: Path) -> Path:
    """Return the folder of the rows; of a DatasetDict those of `train`, as of a folder of one."""
    package: Any = sys.modules["datasets"]
    if isinstance(data, dict) and "train" not in data:
        raise ConfigError(f"data: the DatasetDict has no split train; it has {listing(data)}.")
    rows: Any = data["train"] if isinstance(data, dict) else data
    if not len(rows):
        raise DataError("data: it holds no image.")
    if rows.format["type"] == "custom":
        raise ConfigError(
            "data: the Dataset has a transform (set_transform), which would have no effect: the "
            "recipe augments images. Give data.with_format(None)."
        )
    for place in {Path(file["filename"]).parent for file in rows.cache_files}:
        with suppress(OSError, ValueError, KeyError):  # unchanged it has the same fingerprint
            if package.load_from_disk(str(place))._fingerprint == rows._fingerprint:
                return place
    log.info("data: a copy of %d rows in %s; save_to_disk once spares it", len(rows), folder)
    try:
        with hide_bars():
            rows.with_format(None).save_to_disk(str(folder / "rows"))
    except OSError:
        raise
    except Exception as error:  # of pyarrow and of `datasets`
        raise DataError(f"data: `datasets` cannot save it: {error}") from error
    return folder / "rows"
