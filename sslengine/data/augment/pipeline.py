"""The TRANSFORMS list of a split, applied to a sample as VISSL does.

Each transform takes one image and is applied to every image in sample["data"], or to those that its
`indices` name. What it returns takes the image's place; what else there is, say the classes of
transform.py. What runs in the place of each, so that images of any kind pass: counterparts.py.

Where the list ends with ToTensor and Normalize, and its collator only moves images, these two leave
it: they are done after collate (`Finish`), and images leave the worker as uint8. Transforms that
only move pixels, such as jigsaw's cutting into patches, may follow either of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode

from sslengine.data.augment.counterparts import Change, adapt
from sslengine.data.augment.finish import (
    CONVERSIONS,
    CPU,
    Finish,
    FinishOn,
    can_be_put_off,
    is_uint8,
)
from sslengine.data.augment.image import NO_LIMITS, Limits, Rgb, make_bytes, make_pil
from sslengine.data.augment.transform import (
    Sample,
    TakesLabels,
    Transform,
    kind_of,
    outdated,
    takes_arrays,
    takes_bytes,
)
from sslengine.errors import ConfigError, DataError, SSLEngineError, listing, nearest
from sslengine.registry import TRANSFORMS

# Where the classes are defined of which all is known.
KNOWN = ("sslengine.", "torchvision.", "classy_vision.")
# As torchvision names them, first those with a number of Pillow's.
BY_NUMBER = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
INTERPOLATIONS = (*BY_NUMBER, "nearest-exact")


class Pipeline:
    """All the transforms of a split, in order. `named`: as the list names them, which take PIL
    images; `steps`: what runs in their place."""

    def __init__(
        self,
        entries: Sequence[Mapping[str, Any]],
        where: str,
        image_keys: Sequence[str] = (),
        limits: tuple[float, float] | None = None,
    ) -> None:
        """
        image_keys: of the batch, if its collator only moves images; else floats leave here.
        limits: of the values of images that are arrays of floats.
        """
        self.named = [_step(entry, f"{where}.{number}") for number, entry in enumerate(entries)]
        self.cut = cut(self.named) if image_keys else Cut(self.named)
        self.finish = _finish_of(self.cut.waits, image_keys)
        given = Limits(*limits) if limits else NO_LIMITS
        self.steps = [
            *(_adapt_step(step, given) for step in self.cut.on_images),
            _last_step(self.cut.waits),
            *(_step_on_bytes(step) for step in self.cut.on_bytes),
        ]

    def __call__(self, sample: Sample) -> Sample:
        for step in self.steps:
            step(sample)
        return sample

    def run_plainly(self, sample: Sample) -> Sample:
        """Pass a sample of PIL images through the transforms as the list names them."""
        for step in self.named:
            step(sample)
        return sample

    def settle(self, samples: Iterable[Sample]) -> None:
        """If a transform sometimes makes images that are not RGB, finish those of the batch that
        are: images of one batch are of one type."""
        if self.finish is None:
            return
        samples = list(samples)
        if all(is_uint8(image) for sample in samples for image in sample["data"]):
            return
        finish = self.finish.on(CPU)
        for sample in samples:
            sample["data"] = [finish(each) if is_uint8(each) else each for each in sample["data"]]

    def finished(self, sample: Sample) -> Sample:
        """Return a sample that goes into no batch as it would be in one."""
        finish = self.finish_on(CPU)
        if finish is None:
            return sample
        return {**sample, "data": [finish(each) if is_uint8(each) else each
                                   for each in sample["data"]]}  # fmt: skip

    def finish_on(self, device: torch.device) -> FinishOn | None:
        """Return the rest of the work on a batch."""
        return None if self.finish is None else self.finish.on(device)


def build_transform(entry: Mapping[str, Any], where: str) -> Change:
    """Return the transform that one entry of a TRANSFORMS list names.

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
    kind: type[Transform] = Transform  # of the transform, or of what it runs in place of

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
    if not any(isinstance(image, np.ndarray) and type(image) is not Rgb for image in images):
        return ""
    return (
        "\n  Images are arrays here, height x width x channels (IMAGE_MODE: stored), which "
        "docs/augmentation.md says what takes. After ToTensor follow transforms of tensors, such "
        "as torchvision's."
    )


# ---- what waits until after collate


class Cut(NamedTuple):
    """The steps of a list. Where nothing waits, all of them are in `on_images`."""

    on_images: Sequence[Step]
    waits: Sequence[Step] = ()  # ToTensor and Normalize
    on_bytes: Sequence[Step] = ()  # what moves pixels that ToTensor would have made floats of


def cut(steps: Sequence[Step]) -> Cut:
    """ToTensor waits, if what follows it is Normalize, only moves pixels or takes labels.

    What follows it and has no need of pixels (such as a mask for a size) still takes images.
    Otherwise the order stays.
    """
    first = _conversion_that_waits(steps)
    if first is None:
        return Cut(steps)
    waits = [step for step in steps[first:] if _converts(step) or _normalizes(step)]
    behind = [step for step in steps[first:] if step not in waits]
    on_images = list(takewhile(_needs_no_pixels, behind))
    return Cut([*steps[:first], *on_images], waits, behind[len(on_images) :])


def _conversion_that_waits(steps: Sequence[Step]) -> int | None:
    for number in reversed(range(len(steps))):
        step = steps[number]
        if _converts(step):
            return number
        if not may_follow(step):
            return None
    return None


def may_follow(step: Step) -> bool:
    """May it follow a ToTensor that waits?"""
    return takes_labels(step) or _normalizes(step) or only_moves(step)


def takes_labels(step: Step) -> bool:
    return issubclass(step.kind, TakesLabels)


def only_moves(step: Step) -> bool:
    return takes_bytes(step.transform)


def _normalizes(step: Step) -> bool:
    return not step.indices and can_be_put_off(step.transform)


def _converts(step: Step) -> bool:
    return not step.indices and type(step.transform) in CONVERSIONS


def _needs_no_pixels(step: Step) -> bool:
    return takes_labels(step) or takes_arrays(step.transform)


def _finish_of(waits: Sequence[Step], image_keys: Sequence[str]) -> Finish | None:
    if not waits:
        return None
    conversion, *normalizations = (step.transform for step in waits)
    return Finish(conversion, normalizations, image_keys)  # type: ignore[arg-type]


# ---- what runs


def _adapt_step(step: Step, limits: Limits) -> Step:
    return step if takes_labels(step) else replace(step, transform=adapt(step.transform, limits))


def _last_step(waits: Sequence[Step]) -> Step:
    """Return the step that arrays do not pass."""
    if waits:
        return Step(waits[0].where, ToBytes([step.transform for step in waits]), ())
    return Step("the end of the TRANSFORMS", _end_with_pil, ())


class ToBytes:
    """In place of ToTensor and Normalize: uint8. Images that are not RGB are converted at once."""

    def __init__(self, waits: Sequence[Change]) -> None:
        self.waits = waits

    def __call__(self, image: Any) -> Any:
        if type(image) is Rgb or (isinstance(image, Image.Image) and image.mode == "RGB"):
            return make_bytes(image)
        for transform in self.waits:
            image = transform(image)
        return image


def _end_with_pil(image: Any) -> Any:
    return make_pil(image) if type(image) is Rgb else image


def _step_on_bytes(step: Step) -> Step:
    if takes_labels(step):
        return step
    return replace(step, transform=step.transform.on_bytes)  # type: ignore[attr-defined]
