"""Pillow images, and torch's map-style datasets of them, as one file that a data source reads.

Each image becomes a PNG, or a TIFF if PNG has no such pixels, with the same values. A torchvision
ImageFolder without a transform is the list of its files: nothing is copied.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.errors import ConfigError, DataError

log = logging.getLogger("sslengine")

OF_PNG = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}


class Packed(NamedTuple):
    images: int
    labels: list[int] | list[str] | None


class Item(NamedTuple):
    image: Image.Image
    label: Any = None


def names_files(data: Any) -> bool:
    """Is it an ImageFolder, or like one, that changes nothing of its files' images?"""
    folder: Any = sys.modules.get("torchvision.datasets.folder")  # importing it takes a second
    if folder is None or not isinstance(data, folder.DatasetFolder):
        return False
    own = type(data).__getitem__ is not folder.DatasetFolder.__getitem__
    return not own and data.loader is folder.default_loader and _transform_of(data) is None


def paths_of(data: Any) -> tuple[NDArray[Any], list[str]]:
    """Its files in its order, and the class of each."""
    paths = np.array([os.fsencode(os.path.abspath(path)) for path, _ in data.samples])
    return paths, [data.classes[number] for _, number in data.samples]


def listed(data: Any) -> Iterator[Item]:
    """data: a list of images, or a dataset of images or of (image, label)."""
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
