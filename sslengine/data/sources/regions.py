"""`disk_roi_annotations`: parts of images, from a JSON list of {"path": ..., "bbox": [...]}.

A box is left, top, right, bottom in pixels, as Pillow crops. What of it lies outside the image is
left out. Relative paths begin at the current folder, as in VISSL.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.manifest.index import FoundImages, make_string_arrays, stamp
from sslengine.data.options import OF_ENCODED_SOURCES, SplitOptions
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.disk import ListedFiles
from sslengine.errors import DataError
from sslengine.registry import register_data_source


class _AnnotatedFiles(ListedFiles):
    """The whole images."""

    beside_the_list = False

    def _kind(self) -> str:
        return "regions"

    def boxes(self) -> Any:
        return self._index["boxes"]

    def files_of(self, rows: NDArray[np.int64]) -> Iterable[str]:
        return [str(self._list), *super().files_of(rows)]

    def _find(self) -> FoundImages:
        marked = stamp(self._list)
        try:
            entries = json.loads(self._list.read_text())
            paths = [os.fsencode(entry["path"]) for entry in entries]
            boxes = np.array([entry["bbox"] for entry in entries], np.float64)
            if boxes.ndim != 2 or boxes.shape[1] != 4:
                raise ValueError("a bbox has four numbers, and there must be one at least")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f'{self.where}: {self._list} must hold a JSON list of {{"path": ..., "bbox": '
                f"[left, top, right, bottom]}}; {type(error).__name__}: {error}"
            ) from error
        arrays = {**make_string_arrays("paths", paths), "boxes": boxes}
        return FoundImages(arrays, [marked], len(paths))


@register_data_source("disk_roi_annotations")
class RegionSource(DataSource):
    """Each entry of the list is a separate image."""

    reads = OF_ENCODED_SOURCES
    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._files = _AnnotatedFiles(options, split, position)
        self._boxes = self._files.boxes()

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
        return self._files.files_of(rows)
