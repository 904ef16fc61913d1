"""A recipe for colour photos, for images that are not: more than 8 bits, or many bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from sslengine.command.data import ImagesAt
from sslengine.data.augment.image import is_array
from sslengine.errors import SSLEngineError

LOOKED_AT, MEASURED = 8, 200  # images, evenly apart
# What RGB alone has, by transform.
COLOUR = {
    "ColorJitter": {"saturation": 0, "hue": 0},
    "ImgPilColorDistortion": {"saturation": 0, "hue": 0, "grayscale_probability": 0},
}
# Nothing of these remains without RGB.
COLOUR_ALONE = ("ImgPilRandomPhotometric", "RandomGrayscale")


@dataclass(frozen=True)
class MeasuredBands:
    """What was measured of the first images, as ToTensor returns them."""

    kind: str  # uint8, whole numbers (that float32 holds), or a type of numpy
    low: float
    high: float
    mean: list[float]
    spread: list[float]

    def __str__(self) -> str:
        count = len(self.mean)
        return (
            f"{count} band{'s' if count > 1 else ''} of {self.kind}, {self.low:g} to "
            f"{self.high:g}: all values are kept, and no colour is changed"
        )

    def keys(self, views: Sequence[Any]) -> dict[str, Any]:
        """Return the keys of a config."""
        found: dict[str, Any] = {"DATA.TRAIN.IMAGE_MODE": "stored"}
        if self.kind != "uint8":
            found["DATA.TRAIN.PIXEL_RANGE"] = [self.low, self.high]
        found["DATA.TRAIN.TRANSFORMS"] = views
        return found

    def views(self, of_photos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the same views without changes of colour, normalised by these values."""
        made = []
        for entry in of_photos:
            if entry["name"] in COLOUR:
                made.append({**entry, **COLOUR[entry["name"]]})
            elif entry["name"] == "Normalize":
                made.append({**entry, "mean": self.mean, "std": self.spread})
            elif entry["name"] not in COLOUR_ALONE:
                made.append(dict(entry))
        return made


def look(images: ImagesAt) -> MeasuredBands | None:
    """None for images that RGB of 8 bits holds: one at least of those looked at."""
    if images.only_stored:
        return _measured(images)
    refused = False
    for row in _some(images, LOOKED_AT):
        try:
            images.source.image(row)
        except SSLEngineError:  # more bits or bands; a broken file raises other errors
            refused = True
        except Exception:
            continue
        else:
            return None
    return _measured(images) if refused else None


def _some(images: ImagesAt, count: int) -> range:
    """Evenly apart; of a stream the first, for to reach others is to read all before them."""
    step = 1 if images.source.is_stream else max(1, len(images.source) // count)
    return range(0, len(images.source), step)[: count if images.source.is_stream else None]


def _measured(images: ImagesAt) -> MeasuredBands | None:
    source = images.open_stored()
    found = []
    for row in _some(images, MEASURED):
        with suppress(Exception):
            image: Any = source.image(row)
            if is_array(image):
                found.append(image)
    if not found or len({each.shape[2] for each in found}) > 1:
        return None  # the launch says what is wrong
    pixels = [each.reshape(-1, each.shape[2]) for each in found]
    scale = 255 if pixels[0].dtype == np.uint8 else 1
    count = sum(map(len, pixels))
    mean = sum(each.sum(0, dtype=np.float64) for each in pixels) / count
    square = sum(((each - mean) ** 2).sum(0) for each in pixels) / count
    whole = all(np.array_equal(each, np.rint(each)) for each in pixels)
    kind = "uint8" if scale == 255 else "whole numbers" if whole else str(pixels[0].dtype)
    return MeasuredBands(
        kind, min(float(each.min()) for each in pixels),
        max(float(each.max()) for each in pixels), _short(mean / scale),
        _short(np.maximum(np.sqrt(square) / scale, 1e-6)),
    )  # fmt: skip


def _short(values: Any) -> list[float]:
    return [float(f"{each:.4g}") for each in values]
