"""Feature maps of the judged trunks, and masks: for protocols on what is where in an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.engine.build import build_base_model
from sslengine.engines.features import Compute
from sslengine.engines.judged_images import Judged
from sslengine.engines.judged_networks import REFERENCE, networks_of
from sslengine.engines.stored import Network
from sslengine.errors import ConfigError, DataError
from sslengine.models.build import trunk_with_heads
from sslengine.models.trunks.base import Trunk
from sslengine.monitor.run_facts import PIXELS

SETTINGS = "MODEL.FEATURE_EVAL_SETTINGS"


def judged_trunk(judged: Judged) -> Trunk:
    """Build the trunk as initialised: for the names and shapes of its features."""
    model = build_base_model(judged.run.config, judged.run.device)
    return trunk_with_heads(model, "reading maps").trunk.eval()


def last_map(judged: Judged, trunk: Trunk, side: int, where: str) -> str:
    """Its name. where: what names another, for a message."""
    (image,) = judged.splits["TRAIN"].dataset[0, 0]["data"]
    images = torch.zeros(1, len(image), side, side, device=judged.run.device)
    return _name_of_map(trunk, images, where)


@torch.no_grad()
def _name_of_map(trunk: Trunk, images: Tensor, where: str) -> str:
    for name in ("lastMAP", "lastPATCH"):
        if name in trunk.feature_names:
            return name
    for name in reversed(trunk.feature_names):
        try:
            (found,) = trunk(images, [name])
        except ConfigError:
            continue
        if found.ndim == 4 and found.shape[2] * found.shape[3] > 1:
            return name
    raise DataError(
        f"{where}: {type(trunk).__name__} has no map of features for images of side "
        f"{images.shape[-1]}."
    )


def networks_with_maps(judged: Judged, layer: str, where: str) -> list[Network]:
    """The networks, whose features are maps; without pixels."""
    return [replace(each, compute=_shape_maps(each.compute, where))
            for each in networks_with(judged, [layer]) if each.name != PIXELS]  # fmt: skip


def networks_with(judged: Judged, layers: Sequence[str]) -> list[Network]:
    """The networks with these features of the trunk, not pooled, and pixels. A reference may be
    another trunk: it is left out."""
    changes = {
        f"{SETTINGS}.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [[each, ["Identity", []]] for each in layers],
        f"{SETTINGS}.SHOULD_FLATTEN_FEATS": False,
    }
    networks, _ = networks_of(judged.run_with(changes), judged.weights)
    return [each for each in networks if each.name != REFERENCE]


def _shape_maps(compute: Compute, where: str) -> Compute:
    def maps(images: Any) -> dict[str, Tensor]:
        high, wide = images.shape[-2:]
        return {name: shape_map(name, each, where, high / wide)
                for name, each in compute(images).items()}  # fmt: skip

    return maps


def shape_map(name: str, features: Tensor, where: str, ratio: float = 1.0) -> Tensor:
    """Rows of patches, or a map, as a map. ratio: of the image's height to its width."""
    if features.ndim == 4:
        return features
    count = features.shape[1] if features.ndim == 3 else 0
    side = round(math.sqrt(count * ratio))
    if not side or count % side or round(side / ratio) != count // side:
        raise DataError(
            f"{where}: {name} is no map: a batch of it has shape {tuple(features.shape)}."
        )
    return features.transpose(1, 2).reshape(len(features), -1, side, count // side)


class Masks:
    """A class number for each pixel of a split's images, by the config's folder or the source."""

    def __init__(self, judged: Judged, split: str) -> None:
        self.key = f"config.EVALUATE.DENSE.MASKS_{split}"
        options = judged.EVALUATE.DENSE
        self.folder = {"TRAIN": options.MASKS_TRAIN, "TEST": options.MASKS_TEST}[split]
        self.images = (getattr(read(judged.run.config, DataOptions), split).DATA_PATHS or [""])[0]

    def read(
        self, dataset: SSLDataset, index: int, size: tuple[int, int] | None = None
    ) -> NDArray[np.int32]:
        """Return the mask of an image. size: width and height."""
        source, row = dataset.sources[0], int(dataset.rows[index])
        if self.folder:
            mask = self._read_file(Path(source.path(row)))
        else:
            try:
                mask = source.mask(row)
            except DataError as error:
                raise DataError(f"{error} Name a folder of masks: {self.key}.") from None
        return resize_mask(mask, size) if size else mask.astype(np.int32)

    def _read_file(self, image: Path) -> NDArray[Any]:
        inside = image.relative_to(self.images) if image.is_relative_to(self.images) else image.name
        path = (Path(self.folder).expanduser() / inside).with_suffix(".png")
        if not path.is_file():
            raise DataError(f"{self.key}: there is no mask {path} of the image {image}.")
        return read_mask(path, self.key)


def read_mask(path: Path, where: str) -> NDArray[Any]:
    """Read a mask. where: the key of the config, for a message."""
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


def resize_mask(mask: NDArray[Any], size: tuple[int, int]) -> NDArray[np.int32]:
    """Resize a mask. size: width and height."""
    picture = Image.fromarray(mask.astype(np.int32))
    return np.array(picture.resize(size, Image.Resampling.NEAREST), np.int32)
