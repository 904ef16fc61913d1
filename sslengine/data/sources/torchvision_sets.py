"""`torchvision_dataset`: CIFAR10, CIFAR100, STL10, MNIST, SVHN and others, by DATASET_NAMES.

The files must be there already, under DATA_PATHS; nothing is downloaded.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.decode.decoding import Decoder
from sslengine.data.manifest.index import SharedArray
from sslengine.data.manifest.paths import data_path
from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource
from sslengine.errors import DataError, nearest
from sslengine.registry import register_data_source

# How each chooses the part to read, and where it keeps its labels.
BY_FLAG = dict.fromkeys(
    ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "USPS"), "targets"
)
BY_SPLIT = {
    "STL10": "labels",
    "SVHN": "labels",
    **dict.fromkeys(("DTD", "FGVCAircraft", "Flowers102", "Food101", "OxfordIIITPet"), "_labels"),
}
OTHER_NAMES = {("OxfordIIITPet", "TRAIN"): "trainval"}
LABELS = {**BY_FLAG, **BY_SPLIT}


@register_data_source("torchvision_dataset")
class TorchvisionSource(DataSource):
    reads = ("IMAGE_MODE",)
    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        where = f"config.DATA.{split}.DATASET_NAMES.{position}"
        name = (options.DATASET_NAMES[position:] or [""])[0]
        if name not in LABELS:
            raise DataError(
                f"{where}: expected one of {', '.join(LABELS)}; got {name!r}. "
                f"{nearest(name, LABELS)}".rstrip()
            )
        root, self.where = data_path(options, split, position)
        self.decoder: Decoder = Decoder.build(options, split)
        called = OTHER_NAMES.get((name, split), split.lower())
        part = {"train": split == "TRAIN"} if name in BY_FLAG else {"split": called}
        try:
            self._set: Any = getattr(torchvision.datasets, name)(str(root), download=False, **part)
        except (RuntimeError, OSError) as error:
            raise DataError(
                f"{self.where}: {name} is not in {root}, or not whole. Fetch it first: "
                f"torchvision.datasets.{name}({str(root)!r}, download=True)."
            ) from error
        self._labels = np.asarray(getattr(self._set, LABELS[name]), dtype=np.int64)
        self.num_classes = int(self._labels.max()) + 1
        names = list(getattr(self._set, "classes", ()))
        # A set may hold some of its classes alone.
        self.class_names = names if len(names) >= self.num_classes else []
        # Some sets hold all pixels in one array, which goes to workers as a reference.
        pixels = getattr(self._set, "data", None)
        self._pixels = SharedArray.share(pixels) if isinstance(pixels, np.ndarray) else None
        self._give_pixels()

    def _give_pixels(self) -> None:
        if self._pixels is not None:
            self._set.data = self._pixels.array

    def __getstate__(self) -> dict[str, Any]:
        bare = copy.copy(self._set)
        if self._pixels is not None:
            bare.data = None
        return {**self.__dict__, "_set": bare}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._give_pixels()

    def __len__(self) -> int:
        return len(self._set)

    def image(self, index: int) -> Image.Image:
        return self.decoder.given(self._set[index][0])

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        for name in ("_image_files", "_images"):
            if images := getattr(self._set, name, None):
                return [str(images[row]) for row in rows.tolist()]
        # All images are in a few files, those of both splits.
        if splits := getattr(self._set, "split_list", None):
            return [os.path.join(self._set.root, name) for _, name, *_ in splits.values()]
        folder = getattr(self._set, "raw_folder", "")
        folder = folder or os.path.join(self._set.root, self._set.base_folder)
        return sorted(str(each) for each in Path(folder).iterdir() if each.is_file())

    def labels(self) -> NDArray[np.generic]:
        return self._labels
