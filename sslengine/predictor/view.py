"""Deterministic transforms of a single image for a trained model.

They are those of DATA.TEST. If there are none, or they make several views: resize and centre crop
to the size of DATA.TRAIN (in the usual ratio of 256 to 224), with its normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment.backends.base import build_backend
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.plan import Plan
from sslengine.data.augment.transform import MakesViews, Sample, TakesAll
from sslengine.data.loading.seeding import seed_sample, streams_kept
from sslengine.data.options import DataOptions
from sslengine.errors import ConfigError

DEFAULT_SIZE = 224


class View:
    """`view(image)`: the model's input. `description`: where the transforms come from."""

    def __init__(self, data: DataOptions, seed: int) -> None:
        self.entries, self.description = choose(data)
        pipeline = Pipeline(self.entries, "the predictor's transforms")
        self._plan = Plan(pipeline, build_backend("pil"), limits=data.TRAIN.limits)
        self._seed = seed

    def __call__(self, image: Image.Image) -> Tensor:
        sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]}
        with streams_kept():
            # Random transforms draw as for the first image of a test set, every time.
            seed_sample(self._seed, (0, 0))
            result = self._plan(sample)["data"][0]
        if not isinstance(result, Tensor):
            raise ConfigError(
                f"config.DATA.TEST.TRANSFORMS: they return {type(result).__name__}; a model needs "
                f"a tensor. End them with ToTensor."
            )
        return result.to(torch.float32)


def choose(data: DataOptions) -> tuple[list[dict[str, Any]], str]:
    """The entries of a TRANSFORMS list, and a description of where they come from."""
    given = data.TEST.TRANSFORMS
    if given and not _makes_views(given):
        return given, "from config.DATA.TEST"
    size = _size(data.TRAIN.TRANSFORMS)
    side = size or DEFAULT_SIZE
    margin = round(side * 256 / 224)
    entries: list[dict[str, Any]] = [
        {"name": "Resize", "size": margin},
        {"name": "CenterCrop", "size": side},
        {"name": "ToTensor"},
    ]
    normalise = next(_entries_named("Normalize", data.TRAIN.TRANSFORMS), None)
    if normalise is not None:
        entries.append({key: normalise[key] for key in ("name", "mean", "std")})
    why = "config.DATA.TEST makes several views" if given else "config.DATA.TEST has none"
    text = f"{why}: resized to {margin}, cropped to {side} in the centre"
    text += "" if size else " (config.DATA.TRAIN names no size)"
    return entries, text + (", normalised as in training" if normalise else ", not normalised")


def _makes_views(entries: list[dict[str, Any]]) -> bool:
    steps = Pipeline(entries, "config.DATA.TEST.TRANSFORMS").steps
    return any(issubclass(step.kind, (MakesViews, TakesAll)) for step in steps)


def _walk(entries: Any) -> Iterator[Mapping[str, Any]]:
    """All entries, also those nested in others."""
    for entry in entries:
        if isinstance(entry, Mapping):
            yield entry
            for value in entry.values():
                if isinstance(value, list):
                    yield from _walk(value)


def _entries_named(name: str, entries: Any) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in _walk(entries) if entry.get("name") == name)


def _size(entries: Any) -> int | None:
    """The side of the training images; the largest, if the first entry with a size has several."""
    for entry in _walk(entries):
        name = str(entry.get("name"))
        value = entry.get("size_crops", entry.get("size") if "Crop" in name or "Resize" in name
                          else None)  # fmt: skip
        sizes = value if isinstance(value, list) else [value]
        if all(isinstance(each, int) for each in sizes) and sizes:
            return int(max(sizes))
    return None
