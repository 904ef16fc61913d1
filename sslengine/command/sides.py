"""`--size`: the views of a recipe at another side. All sides keep their share of the largest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sslengine.errors import ConfigError

# The small crops of a multi-crop list are a multiple of this, the patches of most transformers.
PATCH = 16
# How much smaller than its cell a patch of a puzzle is, where no key says it.
SHIFT = 21
SIZED = ("size_crops", "crop_size_image", "size")

Views = Sequence[Mapping[str, Any]]


def largest(views: Views) -> int | None:
    """Of the last crop; of an image in patches, that of the image."""
    found = [each[key] for each in views for key in SIZED if each.get(key)]
    if not found:
        return None
    return max(found[-1]) if isinstance(found[-1], list) else int(found[-1])


def keys(views: Views, size: int, patch: int | None) -> dict[str, Any]:
    """Those of the config that change. patch: of the network, which crops are multiples of."""
    was = largest(views)
    if was is None:
        raise ConfigError(
            "--size: no entry of config.DATA.TRAIN.TRANSFORMS has a size. Set what decides on it "
            "with --set KEY=VALUE; --show prints all keys."
        )
    _expect_patches(views, size, patch)
    return {
        f"DATA.TRAIN.TRANSFORMS.{number}.{key}": value
        for number, entry in enumerate(views)
        for key, value in _of_entry(entry, size, was, patch or 1).items()
        if value != entry.get(key)
    }


def _of_entry(entry: Mapping[str, Any], size: int, was: int, patch: int) -> dict[str, Any]:
    def scaled(side: int) -> int:
        return max(1, round(side * size / was))

    found: dict[str, Any] = {}
    if entry.get("size"):
        side = entry["size"]
        found["size"] = [*map(scaled, side)] if isinstance(side, list) else scaled(side)
    if "size_crops" in entry:
        found["size_crops"] = [_crop(side, size, was, patch) for side in entry["size_crops"]]
    if "crop_size_image" in entry:
        found["crop_size_image"] = scaled(entry["crop_size_image"])
        cells = math.isqrt(entry.get("num_patches", 9))
        shown = entry.get("crop_size_patches", 255) // cells - SHIFT
        found["crop_size_patches"] = cells * (scaled(shown) + SHIFT)
    if entry["name"] == "ImgPatchesFromTensor":
        found["patch_jitter"] = scaled(entry.get("patch_jitter", SHIFT))
    return found


def _crop(side: int, size: int, was: int, patch: int) -> int:
    if side == was:
        return size
    if size == was and side % patch == 0:
        return side
    step = patch if PATCH % patch else PATCH
    return max(step, round(side * size / was / step) * step)


def _expect_patches(views: Views, size: int, patch: int | None) -> None:
    """Patches, and the cells that are hidden, fill a view."""
    unit = math.lcm(patch or 1, *(each["cell_size"] for each in views if "cell_size" in each))
    if size % unit:
        fits = [each for each in (size // unit * unit, (size // unit + 1) * unit) if each]
        raise ConfigError(
            f"--size: views of {size} pixels are not whole patches of {unit}, those of a network "
            f"or of masks. Give --size {' or '.join(map(str, fits))}."
        )
