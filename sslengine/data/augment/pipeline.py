"""The TRANSFORMS list of a split, applied to a sample as VISSL does.

Each transform takes one image and is applied to every image in sample["data"], or to
those that its `indices` name. What it returns takes the image's place; what else there is, say the
classes of transform.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torchvision.transforms import InterpolationMode

from sslengine.data.augment.transform import Sample, Transform, kind_of, outdated
from sslengine.data.decode.channels import KNOWN
from sslengine.errors import ConfigError, DataError, SSLEngineError, listing, nearest
from sslengine.registry import TRANSFORMS

Change = Callable[[Any], Any]
# As torchvision names them, first those with a number of Pillow's.
BY_NUMBER = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
INTERPOLATIONS = (*BY_NUMBER, "nearest-exact")


class Pipeline:
    """All the transforms of a split, in order."""

    def __init__(self, entries: Sequence[Mapping[str, Any]], where: str) -> None:
        self.steps = [_step(entry, f"{where}.{number}") for number, entry in enumerate(entries)]

    def __call__(self, sample: Sample) -> Sample:
        for step in self.steps:
            step(sample)
        return sample


def build_transform(entry: Mapping[str, Any], where: str) -> Change:
    """The transform that one entry of a TRANSFORMS list names.

    Entries in one of its arguments (`RandomApply`: `transforms: [...]`) are built too.
    """
    name = TRANSFORMS.name_in(entry, where)
    arguments = {
        key: _build_nested(value, f"{where}.{key}")
        for key, value in entry.items()
        if key not in TRANSFORMS.entry_keys
    }
    if arguments.get("interpolation") is not None and is_known(name, where):
        arguments["interpolation"] = _interpolation(arguments["interpolation"], where)
    try:
        transform: Change = TRANSFORMS.make(name, arguments, where)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} ({entry['name']}): {error}") from error
    if problem := outdated(transform):
        raise ConfigError(f"{where} ({entry['name']}): {problem}")
    return transform


def is_known(name: str, where: str) -> bool:
    """Is it a transform of the engine or of torchvision, and not the user's own?"""
    return str(getattr(TRANSFORMS.get(name, where), "__module__", "")).startswith(KNOWN)


def _interpolation(given: Any, where: str) -> InterpolationMode:
    """torchvision's classes keep any text, and fail at the first image."""
    is_number = type(given) is int and 0 <= given < len(BY_NUMBER)
    name = BY_NUMBER[given] if is_number else str(getattr(given, "value", given)).lower()
    if name not in INTERPOLATIONS:
        raise ConfigError(
            f"{where}.interpolation: expected {listing(INTERPOLATIONS)}, or Pillow's number of one "
            f"(2 is bilinear, 3 bicubic); got {given!r}. {nearest(name, INTERPOLATIONS)}".rstrip()
        )
    return InterpolationMode(name)


def _step(entry: Mapping[str, Any], where: str) -> Step:
    transform = build_transform(entry, where)
    indices = _indices(entry, where)
    return Step(f"{where} ({entry['name']})", transform, indices, kind_of(transform))


def _build_nested(value: Any, where: str) -> Any:
    nested = isinstance(value, list) and any(isinstance(e, Mapping) and "name" in e for e in value)
    if not nested:
        return value
    return [build_transform(entry, f"{where}.{number}") for number, entry in enumerate(value)]


def _indices(entry: Mapping[str, Any], where: str) -> tuple[int, ...]:
    indices = entry.get("indices", [])
    if not isinstance(indices, list) or not all(isinstance(index, int) for index in indices):
        raise ConfigError(f"{where}.indices: expected a list of numbers, got {indices!r}.")
    return tuple(indices)


@dataclass(frozen=True)
class Step:
    """One transform and where it applies."""

    where: str
    transform: Change
    indices: tuple[int, ...]  # none: every image
    kind: type[Transform] = Transform  # of the transform, or of what it represents

    def __call__(self, sample: Sample) -> None:
        try:
            self.kind.through(sample, self.indices, self.transform)
        except SSLEngineError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.where} failed on sample {sample['data_idx'][0]}: "
                f"{type(error).__name__}: {error}{_why_not_pil(sample['data'])}"
            ) from error
        if any(image is None for image in sample["data"]):
            raise DataError(
                f"{self.where} returned None for sample {sample['data_idx'][0]}. Expected the "
                f"image that takes the place of the one it was given."
            )


def _why_not_pil(images: Sequence[Any]) -> str:
    if any(isinstance(image, Tensor) for image in images):
        return (
            "\n  Images are tensors here, after ToTensor: it takes transforms of tensors, such as "
            "torchvision's."
        )
    if not any(isinstance(image, np.ndarray) for image in images):
        return ""
    return (
        "\n  Images are arrays here, height x width x channels (IMAGE_MODE: stored), which "
        "docs/augmentation.md says what takes. After ToTensor follow transforms of tensors, such "
        "as torchvision's."
    )
