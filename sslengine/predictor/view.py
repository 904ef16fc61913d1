"""How a single image is made ready for a trained model: without chance.

The transforms of DATA.TEST; where there are none, or they make several views, those that go
with DATA.TRAIN: its size, with the usual margin of 256 to 224 around it, and its normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sslengine.data.loading.seeding import seed_sample, streams_kept
from sslengine.data.options import DataOptions
from sslengine.data.transforms.pipeline import Pipeline, Sample
from sslengine.errors import ConfigError

DEFAULT_SIZE = 224


class View:
    """`view(image)`: what the model gets, one image of it. `said`: where it comes from."""

    def __init__(self, data: DataOptions, seed: int) -> None:
        self.entries, self.said = choose(data)
        self._pipeline = Pipeline(self.entries, "the predictor's transforms")
        self._seed = seed

    def __call__(self, image: Image.Image) -> Tensor:
        sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]}
        with streams_kept():
            # Transforms that draw do so as for the first image of a test set, every time.
            seed_sample(self._seed, (0, 0))
            result = self._pipeline(sample)["data"][0]
        if not isinstance(result, Tensor):
            raise ConfigError(
                f"config.DATA.TEST.TRANSFORMS: they make {type(result).__name__} of an image; a "
                f"model needs a tensor. End them with ToTensor."
            )
        return result.to(torch.float32)


def choose(data: DataOptions) -> tuple[list[dict[str, Any]], str]:
    """The entries of a TRANSFORMS list, and in words where they come from."""
    given = data.TEST.TRANSFORMS
    if given and not _makes_views(given):
        return given, "those of config.DATA.TEST"
    size = _size(data.TRAIN.TRANSFORMS)
    side = size or DEFAULT_SIZE
    margin = round(side * 256 / 224)
    entries: list[dict[str, Any]] = [
        {"name": "Resize", "size": margin},
        {"name": "CenterCrop", "size": side},
        {"name": "ToTensor"},
    ]
    if data.TRAIN.IMAGE_MODE == "stored":  # perhaps an array, which ToTensor alone takes
        entries.insert(0, entries.pop())
    normalise = next(_entries_named("Normalize", data.TRAIN.TRANSFORMS), None)
    if normalise is not None:
        entries.append({key: normalise[key] for key in ("name", "mean", "std")})
    why = "config.DATA.TEST makes several views" if given else "config.DATA.TEST has none"
    text = f"{why}: resized to {margin}, cropped to {side} in the centre"
    text += "" if size else " (config.DATA.TRAIN names no size)"
    return entries, text + (", normalised as in training" if normalise else ", not normalised")


def _makes_views(entries: list[dict[str, Any]]) -> bool:
    steps = Pipeline(entries, "config.DATA.TEST.TRANSFORMS").steps
    kinds = ("makes_views", "takes_all")
    return any(getattr(step.transform, kind, False) for step in steps for kind in kinds)


def _walk(entries: Any) -> Iterator[Mapping[str, Any]]:
    """All entries, those inside others included."""
    for entry in entries:
        if isinstance(entry, Mapping):
            yield entry
            for value in entry.values():
                if isinstance(value, list):
                    yield from _walk(value)


def _entries_named(name: str, entries: Any) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in _walk(entries) if entry.get("name") == name)


def _size(entries: Any) -> int | None:
    """The side of the images that training sees; of several, the largest of the first entry."""
    for entry in _walk(entries):
        name = str(entry.get("name"))
        value = entry.get("size_crops", entry.get("size") if "Crop" in name or "Resize" in name
                          else None)  # fmt: skip
        sizes = value if isinstance(value, list) else [value]
        if all(isinstance(each, int) for each in sizes) and sizes:
            return int(max(sizes))
    return None
