"""`dense` of EVALUATE.PROTOCOLS: what the patches of frozen maps know of masks.

Images and masks are resized to a square. The map is `lastMAP` or `lastPATCH` of a vision
transformer, of other trunks the last feature that has more than one place; EVALUATE.DENSE.LAYER
names another. Of raw pixels it is the image averaged to 16 x 16.
"""

from __future__ import annotations

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
from sslengine.engines.maps import as_map, judged_trunk, last_map
from sslengine.engines.run import Run
from sslengine.engines.stored import Network, StoredSplit
from sslengine.errors import DataError
from sslengine.evaluation.dense import dense
from sslengine.evaluation.options import DenseOptions

SETTINGS = "MODEL.FEATURE_EVAL_SETTINGS"
WHERE = "config.EVALUATE.DENSE.LAYER"


def of_maps(judged: Judged) -> Found:
    if judged.test != "TEST":
        raise DataError("there are no test images.")
    options: DenseOptions = judged.dense
    masks = {split: _Masks(judged, split) for split in ("TRAIN", "TEST")}
    for split, each in masks.items():
        each.of(judged.splits[split].dataset, 0)  # before the features are computed
    side = options.SIDE or judged.side
    layer = options.LAYER or last_map(judged, judged_trunk(judged), side, WHERE)
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


def _pixel_map(images: Tensor) -> dict[str, Tensor]:
    return {"16x16": F.adaptive_avg_pool2d(images, 16)}


def _as_map(compute: Compute) -> Compute:
    def maps(images: Any) -> dict[str, Tensor]:
        return {name: as_map(name, each, WHERE) for name, each in compute(images).items()}

    return maps
