"""Masks of images: a class number for each pixel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.engines.judged_images import Judged
from sslengine.errors import DataError
from sslengine.evaluate.options import DenseOptions


class Masks:
    """Of a split's images: of the folder that the config names, or of the source."""

    def __init__(self, judged: Judged, split: str) -> None:
        self.key = f"config.EVALUATE.DENSE.MASKS_{split}"
        options: DenseOptions = judged.dense
        self.folder = {"TRAIN": options.MASKS_TRAIN, "TEST": options.MASKS_TEST}[split]
        self.images = (getattr(read(judged.run.config, DataOptions), split).DATA_PATHS or [""])[0]

    def of(
        self, dataset: SSLDataset, index: int, size: tuple[int, int] | None = None
    ) -> NDArray[np.int32]:
        """size: width and height."""
        source, row = dataset.sources[0], int(dataset.rows[index])
        if self.folder:
            mask = self._read(Path(source.path(row)))
        else:
            try:
                mask = source.mask(row)
            except DataError as error:
                raise DataError(f"{error} Name a folder of masks: {self.key}.") from None
        return resized(mask, size) if size else mask.astype(np.int32)

    def _read(self, image: Path) -> NDArray[Any]:
        inside = image.relative_to(self.images) if image.is_relative_to(self.images) else image.name
        path = (Path(self.folder).expanduser() / inside).with_suffix(".png")
        if not path.is_file():
            raise DataError(f"{self.key}: there is no mask {path} of the image {image}.")
        return read_mask(path, self.key)


def read_mask(path: Path, where: str) -> NDArray[Any]:
    """where: the key of the config, for a message."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            mask = np.array(picture)
    except OSError as error:
        raise DataError(f"{where}: {path} cannot be read as a PNG: {error}") from error
    if mask.ndim != 2:
        raise DataError(
            f"{where}: {path} has {mask.shape[-1]} channels; expected one number for each "
            f"pixel (a grey or palette PNG)."
        )
    return mask


def resized(mask: NDArray[Any], size: tuple[int, int]) -> NDArray[np.int32]:
    """size: width and height."""
    picture = Image.fromarray(mask.astype(np.int32))
    return np.array(picture.resize(size, Image.Resampling.NEAREST), np.int32)
