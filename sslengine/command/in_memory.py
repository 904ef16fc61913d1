"""Images that are an array of this process, as a file that a config can name.

    with as_files((images, labels)) as files:
        files.images        # /tmp/sslengine-x1/images.npy

The file is in memory where the system has such files (Linux), and is gone afterwards. Ranks and
loader workers open it by its name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sslengine.errors import ConfigError

Array: TypeAlias = NDArray[Any] | Tensor
# A path, images (N, height, width, channels) or (N, channels, height, width), or images and labels.
Data: TypeAlias = str | Path | NDArray[Any] | Tensor | tuple[Array, Array]


class Files(NamedTuple):
    images: str
    labels: str = ""


def is_data(given: Any) -> bool:
    """Is it what `Data` says, and no object of another kind?"""
    if isinstance(given, tuple):
        return len(given) == 2 and all(isinstance(each, np.ndarray | Tensor) for each in given)
    return isinstance(given, str | Path | np.ndarray | Tensor)


@contextmanager
def as_files(data: Data) -> Iterator[Files]:
    if isinstance(data, str | Path):
        yield Files(str(data))
        return
    if not is_data(data):
        raise ConfigError(
            f"data: expected a path, an array of images, or (images, labels); got a "
            f"{type(data).__name__}."
        )
    images, labels = data if isinstance(data, tuple) else (data, None)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sslengine-")))
        files = [_written(_images(images), folder / "images.npy", opened)]
        if labels is not None:
            files.append(_written(_labels(labels, len(images)), folder / "labels.npy", opened))
        yield Files(*map(str, files))


def _images(given: Array) -> NDArray[Any]:
    images = _on_host(given)
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or not len(images):
        raise ConfigError(
            f"data: expected images as an array N x height x width, also with channels last or "
            f"first, of numbers; got the shape {images.shape} of {images.dtype}."
        )
    return images


def _labels(given: Array, count: int) -> NDArray[Any]:
    labels = _on_host(given)
    if labels.ndim not in (1, 2) or len(labels) != count or labels.dtype.kind not in "uib":
        raise ConfigError(
            f"data: expected labels as whole numbers, or a row of class indicators, one for each "
            f"of {count} images; got the shape {labels.shape} of {labels.dtype}."
        )
    return labels.astype(np.int64 if labels.ndim == 1 else np.int8)


def _on_host(given: Array) -> NDArray[Any]:
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else given


def _written(array: NDArray[Any], place: Path, opened: ExitStack) -> Path:
    """The place, which is a link to a file in memory if there are such files."""
    if not hasattr(os, "memfd_create"):
        np.save(place, array)
        return place
    descriptor = os.memfd_create(place.name)
    opened.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as stream:
        np.save(stream, array)
    place.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
    return place
