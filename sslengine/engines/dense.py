"""`dense` of EVALUATE.PROTOCOLS: what the patches of frozen maps know of masks.

Images and masks are resized to a square. The map is `lastMAP` or `lastPATCH` of a vision
transformer, of other trunks the last feature that has more than one place; EVALUATE.DENSE.LAYER
names another. Of raw pixels it is the image averaged to 16 x 16.
"""

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
from torch.nn import functional as F

from sslengine.config.sections import read
from sslengine.data.judged_view import described
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.features import Compute
from sslengine.engines.judged_images import Found, Judged
from sslengine.engines.judged_networks import PIXELS, REFERENCE, networks_of
from sslengine.engines.run import Run
from sslengine.engines.stored import Network, StoredSplit
from sslengine.errors import ConfigError, DataError
from sslengine.evaluation.dense import dense
from sslengine.evaluation.options import DenseOptions
from sslengine.models.build import trunk_with_heads
from sslengine.models.trunks.base import Trunk
from sslengine.task.build import build_base_model

SETTINGS = "MODEL.FEATURE_EVAL_SETTINGS"


def of_maps(judged: Judged) -> Found:
    if judged.test != "TEST":
        raise DataError("there are no test images.")
    options: DenseOptions = judged.dense
    masks = {split: _Masks(judged, split) for split in ("TRAIN", "TEST")}
    for split, each in masks.items():
        each.of(judged.splits[split].dataset, 0)  # before the features are computed
    side = options.SIDE or judged.side
    layer = options.LAYER or _last_map(judged, side)
    view = judged.before_tensor(
        {"name": "Resize", "size": [side, side], "interpolation": 3}, all_before=True
    )
    maps = {
        f"{SETTINGS}.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [[layer, ["Identity", []]]],
        f"{SETTINGS}.SHOULD_FLATTEN_FEATS": False,
    }
    networks = _with_maps(judged.run_with(maps), judged.weights, layer)
    found = {
        split: judged.stored(
            split, {**_some(judged, split), f"DATA.{split}.TRANSFORMS": view}, networks
        )
        for split in masks
    }
    if not is_primary():
        return {}
    about = {"layer": layer, "pooling": "none", "view": described(view)}
    return {(each.name, layer): _judge(judged, each, found, masks, about) for each in networks}


def _some(judged: Judged, split: str) -> dict[str, Any]:
    options: DenseOptions = judged.dense
    limit, count = options.IMAGES, len(judged.splits[split].dataset)
    return {f"DATA.{split}.DATA_LIMIT": limit} if 0 < limit < count else {}


def _with_maps(run: Run, weights: str, layer: str) -> Sequence[Network]:
    """The networks, whose features are maps. A reference may be another trunk: it is left out."""
    networks, _ = networks_of(run, weights)
    pixels = Network(PIXELS, _pixel_map, {"map": "16x16"})
    made = [replace(each, compute=_as_map(each.compute)) for each in networks
            if each.name not in (PIXELS, REFERENCE)]  # fmt: skip
    return [*made, pixels]


def _judge(
    judged: Judged,
    network: Network,
    found: dict[str, StoredSplit],
    masks: dict[str, _Masks],
    about: dict[str, Any],
) -> Any:
    options: DenseOptions = judged.dense
    maps_of: list[Tensor] = []
    masks_of: list[Tensor] = []
    for split, stored in found.items():
        store = stored.stores[network.name]
        (name,) = store.layers
        maps = store.layer(name).tensor()
        high, wide = maps.shape[2:]
        patch = max(1, round((options.SIDE or judged.side) / high))
        size = (wide * patch, high * patch)
        rows = [masks[split].of(stored.dataset, int(each), size) for each in store.indices]
        maps_of.append(maps)
        masks_of.append(torch.from_numpy(np.stack(rows)))
    (train, test), (train_masks, test_masks) = maps_of, masks_of
    ignored = tuple(options.IGNORED)
    outcome = dense(train, train_masks, test, test_masks, ignored, judged.run.device)
    images = {"train": len(train), "test": len(test)}
    patches = {"map": [*train.shape[2:]], "patch": patch, "images": images}
    details = {
        **outcome.details,
        **about,
        **patches,
        "network": network.about.get("network", network.name),
    }
    if network.name == PIXELS:
        details["layer"] = name
    return replace(outcome, details=details)


class _Masks:
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
        picture = Image.fromarray(mask.astype(np.int32))
        if size:
            picture = picture.resize(size, Image.Resampling.NEAREST)
        return np.array(picture, np.int32)

    def _read(self, image: Path) -> NDArray[Any]:
        inside = image.relative_to(self.images) if image.is_relative_to(self.images) else image.name
        path = (Path(self.folder).expanduser() / inside).with_suffix(".png")
        if not path.is_file():
            raise DataError(f"{self.key}: there is no mask {path} of the image {image}.")
        with Image.open(path, formats=["PNG"]) as picture:
            mask = np.array(picture)
        if mask.ndim != 2:
            raise DataError(
                f"{self.key}: {path} has {mask.shape[-1]} channels; expected one number for each "
                f"pixel (a grey or palette PNG)."
            )
        return mask


def _last_map(judged: Judged, side: int) -> str:
    model = build_base_model(judged.run.config, judged.run.device)
    trunk = trunk_with_heads(model, "reading maps").trunk.eval()
    (image,) = judged.splits["TRAIN"].dataset[0, 0]["data"]
    images = torch.zeros(1, len(image), side, side, device=judged.run.device)
    return _name_of_map(trunk, images)


@torch.no_grad()
def _name_of_map(trunk: Trunk, images: Tensor) -> str:
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
        f"config.EVALUATE.DENSE.LAYER: {type(trunk).__name__} has no map of features for images of "
        f"side {images.shape[-1]}."
    )


def _pixel_map(images: Tensor) -> dict[str, Tensor]:
    return {"16x16": F.adaptive_avg_pool2d(images, 16)}


def _as_map(compute: Compute) -> Compute:
    def maps(images: Any) -> dict[str, Tensor]:
        return {name: _mapped(name, each) for name, each in compute(images).items()}

    return maps


def _mapped(name: str, features: Tensor) -> Tensor:
    if features.ndim == 4:
        return features
    side = math.isqrt(features.shape[1]) if features.ndim == 3 else 0
    if not side or side**2 != features.shape[1]:
        raise DataError(
            f"config.EVALUATE.DENSE.LAYER: {name} is no map: a batch of it has shape "
            f"{tuple(features.shape)}."
        )
    return features.transpose(1, 2).reshape(len(features), -1, side, side)
