"""`torchvision_dataset`: CIFAR10, CIFAR100, STL10, MNIST or SVHN, by DATASET_NAMES.

The files must be there already, under DATA_PATHS; nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torchvision.datasets
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.paths import data_path
from sslengine.errors import DataError, nearest
from sslengine.registry import register_data_source

# How each is told which part to read, and where it keeps its labels.
BY_FLAG = {"CIFAR10": "targets", "CIFAR100": "targets", "MNIST": "targets"}
BY_SPLIT = {"STL10": "labels", "SVHN": "labels"}
LABELS = {**BY_FLAG, **BY_SPLIT}


@register_data_source("torchvision_dataset")
class TorchvisionSource(DataSource):
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
        part = {"train": split == "TRAIN"} if name in BY_FLAG else {"split": split.lower()}
        try:
            self._set: Any = getattr(torchvision.datasets, name)(str(root), download=False, **part)
        except (RuntimeError, OSError) as error:
            raise DataError(
                f"{self.where}: {name} is not in {root}, or not whole. Fetch it first: "
                f"torchvision.datasets.{name}({str(root)!r}, download=True)."
            ) from error
        self._labels = np.asarray(getattr(self._set, LABELS[name]), dtype=np.int64)
        self.num_classes = int(self._labels.max()) + 1

    def __len__(self) -> int:
        return len(self._set)

    def image(self, index: int) -> Image.Image:
        image: Image.Image = self._set[index][0]
        return image.convert("RGB")

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def labels(self) -> NDArray[np.generic]:
        return self._labels
