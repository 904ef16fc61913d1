"""The TRANSFORMS list of a split, applied to a sample as VISSL does.

Each transform takes one image and is applied to every image in sample["data"], or to those that its
`indices` name. What it returns takes the image's place; what else there is, say the classes of
transform.py. What runs in the place of each, so that images of any kind pass: `adapt`.

Where the list ends with ToTensor and Normalize, and its collator only moves images, these two leave
it: they are done after collate (`Finish`), and images leave the worker as uint8. Transforms that
only move pixels, such as jigsaw's cutting into patches, may follow either of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms as tv
from torchvision.transforms import InterpolationMode

from sslengine.data.augment.colour import Jitter, make_grey
from sslengine.data.augment.geometry import Middle, RandomPart, Resized, ResizedCrop, flip
from sslengine.data.augment.image import Limits, Rgb, make_bytes, make_pil
from sslengine.data.augment.levels import (
    invert,
    posterize,
    sharpen,
    solarize,
    stretch_contrast,
)
from sslengine.data.augment.tensors import (
    CONVERSIONS,
    Finish,
    can_be_put_off,
    is_uint8,
)
from sslengine.data.augment.transform import (
    Change,
    Counterpart,
    InTurn,
    OnPil,
    Sample,
    Sometimes,
    TakesLabels,
    Transform,
    kind_of,
    round_p,
    takes_arrays,
    unwrap,
    walk,
)
from sslengine.errors import ConfigError, DataError, SSLEngineError, listing, nearest
from sslengine.registry import TRANSFORMS

# Where the classes are defined of which all is known.
KNOWN = ("sslengine.", "torchvision.", "classy_vision.")
# As torchvision names them, first those with a number of Pillow's.
BY_NUMBER = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
INTERPOLATIONS = (*BY_NUMBER, "nearest-exact")
# How a transform runs.
KNOWN_OF_ANY, FALLS_BACK = "known, on images of any kind", "falls back to PIL"
ON_TENSORS, LATER = "on tensors", "after collate, on the device"


class Pipeline:
    """All the transforms of a split. `listed`: in the order of the list; `steps`: as they run."""

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
        self.listed = [_make_step(each, f"{where}.{number}") for number, each in enumerate(entries)]
        self.cut = cut(self.listed) if image_keys else Cut(self.listed)
        self.finish: Finish | None = None
        last = PipelineStep("the end of the TRANSFORMS", _end_with_pil, ())
        if waits := [step.named for step in self.cut.waits]:
            self.finish = Finish(waits[0], waits[1:], image_keys)
            last = PipelineStep(self.cut.waits[0].where, ToBytes(waits), ())
        self.steps = [*self.cut.on_images, last, *self.cut.on_bytes]
        if limits:
            for each in (each for step in self.listed for each in walk(step.transform)):
                each.limits = Limits(*limits)

    @property
    def named(self) -> list[PipelineStep]:
        """Return the transforms that the list names, which may take PIL images alone."""
        return [replace(step, transform=step.named) for step in self.listed]

    def __call__(self, sample: Sample) -> Sample:
        for step in self.steps:
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
        for sample in samples:
            sample.update(self.finished(sample))

    def finished(self, sample: Sample) -> Sample:
        """Return a sample that goes into no batch as it would be in one."""
        if self.finish is None:
            return sample
        images = [self.finish(each) if is_uint8(each) else each for each in sample["data"]]
        return {**sample, "data": images}

    def finish_on(self, device: torch.device) -> Finish | None:
        """Return the rest of the work on a batch."""
        return None if self.finish is None else self.finish.prepare(device)


def build_transform(entry: Mapping[str, Any], where: str) -> Change:
    """Return what runs for one entry of a TRANSFORMS list, of images of any kind.

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
        return adapt(TRANSFORMS.make(name, arguments, where))  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} ({entry['name']}): {error}") from error


def is_known(name: str, where: str) -> bool:
    """Is it a transform of the engine or of torchvision, and not the user's own?"""
    return str(getattr(TRANSFORMS.get(name, where), "__module__", "")).startswith(KNOWN)


def all_known(entries: Sequence[Any], where: str) -> bool:
    """Are they all transforms of the engine or of torchvision, also those nested in others?"""
    return all(is_known(TRANSFORMS.name_in(each, where), where) for each in walk_entries(entries))


def walk_entries(entries: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a TRANSFORMS list, and those nested in their arguments."""
    for entry in entries:
        if isinstance(entry, Mapping) and "name" in entry:
            yield entry
            for value in entry.values():
                yield from walk_entries(value if isinstance(value, list) else ())


def _interpolation(given: Any, where: str) -> InterpolationMode:
    """Read an interpolation: torchvision's classes keep any text, and fail at the first image."""
    is_number = type(given) is int and 0 <= given < len(BY_NUMBER)
    name = BY_NUMBER[given] if is_number else str(getattr(given, "value", given)).lower()
    if name not in INTERPOLATIONS:
        raise ConfigError(
            f"{where}.interpolation: expected {listing(INTERPOLATIONS)}, or Pillow's number of one "
            f"(2 is bilinear, 3 bicubic); got {given!r}. {nearest(name, INTERPOLATIONS)}".rstrip()
        )
    return InterpolationMode(name)


def _make_step(entry: Mapping[str, Any], where: str) -> PipelineStep:
    transform = build_transform(entry, where)
    indices = _indices(entry, where)
    return PipelineStep(f"{where} ({entry['name']})", transform, indices, kind_of(transform))


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
class PipelineStep:
    """One transform and where it applies."""

    where: str
    transform: Change
    indices: tuple[int, ...]  # none: every image
    kind: type[Transform] = Transform

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

    @property
    def named(self) -> Any:
        return unwrap(self.transform)

    @property
    def takes_labels(self) -> bool:
        return issubclass(self.kind, TakesLabels)

    @property
    def normalizes(self) -> bool:
        return not self.indices and can_be_put_off(self.named)

    @property
    def may_follow(self) -> bool:
        """May it follow a ToTensor that waits?"""
        takes_bytes = self.kind.on_bytes is not Transform.on_bytes
        return self.takes_labels or self.normalizes or takes_bytes


def _why_not_pil(images: Sequence[Any]) -> str:
    if any(isinstance(image, Tensor) for image in images):
        return "\n  Images are tensors here, after ToTensor: it takes transforms of tensors."
    if any(isinstance(image, np.ndarray) and type(image) is not Rgb for image in images):
        return (
            "\n  Images are arrays here, height x width x channels (IMAGE_MODE: stored), which "
            "docs/augmentation.md says what takes."
        )
    return ""


# ---- what runs in the place of a transform


def adapt(transform: Any) -> Any:
    """Return what runs in the place of a transform, so that images of any kind pass.

    A known one of torchvision has its counterpart; one that says `takes_arrays`, or takes labels,
    runs itself; any other gets copies as PIL images. By exact type: what a subclass changes is not
    known.
    """
    make = COUNTERPARTS.get(type(transform))
    if make is not None:
        return make(transform) or OnPil(transform)
    ours = isinstance(transform, Transform)
    runs_itself = ours and (takes_arrays(transform) or isinstance(transform, TakesLabels))
    return transform if runs_itself else OnPil(transform)


class ToFloats(Counterpart):
    """A conversion to a float tensor, in its place in the list."""

    def __init__(self, named: Change) -> None:
        super().__init__(named)
        self.finish = Finish(named)

    def __call__(self, image: Any) -> Any:
        if type(image) is not Rgb:
            return self.named(image)
        return self.finish(make_bytes(image))


def _adapt_container(transform: Any) -> Change:
    return InTurn([adapt(each) for each in transform.transforms], getattr(transform, "p", None))


def _random_crop(transform: Any) -> Change | None:
    pads = transform.padding is not None or transform.pad_if_needed
    return None if pads else RandomPart(transform)


def _resize(transform: Any) -> Change | None:
    return None if transform.max_size is not None else Resized(transform)


def _grayscale(transform: Any) -> Change | None:
    return Sometimes(transform, None, make_grey) if transform.num_output_channels == 3 else None


def _solarize(transform: Any) -> Change:
    # Of whole numbers, those from 127.5 on are those from 128 on.
    operation = partial(solarize, threshold=math.ceil(transform.threshold))
    return Sometimes(transform, transform.p, operation, limited=True)


def _posterize(transform: Any) -> Change | None:
    # Whether zero bits are an error depends on Pillow's version.
    if transform.bits not in range(1, 9):
        return None
    return Sometimes(transform, transform.p, partial(posterize, bits=transform.bits))


def _sharpness(transform: Any) -> Change:
    return Sometimes(transform, transform.p, partial(sharpen, factor=transform.sharpness_factor))


# None where a transform's arguments ask for what is not known. Some of torchvision's compare a
# number with p, and some a tensor.
COUNTERPARTS: Mapping[type, Callable[[Any], Change | None]] = {
    tv.Compose: _adapt_container,
    tv.RandomApply: _adapt_container,
    tv.RandomResizedCrop: ResizedCrop,
    tv.RandomCrop: _random_crop,
    tv.CenterCrop: Middle,
    tv.Resize: _resize,
    tv.RandomHorizontalFlip: lambda each: Sometimes(each, round_p(each.p), flip),
    tv.ColorJitter: Jitter,
    tv.Grayscale: _grayscale,
    tv.RandomGrayscale: lambda each: Sometimes(each, round_p(each.p), make_grey),
    tv.RandomSolarize: _solarize,
    tv.RandomPosterize: _posterize,
    tv.RandomInvert: lambda each: Sometimes(each, each.p, invert, limited=True),
    tv.RandomAutocontrast: lambda each: Sometimes(each, each.p, stretch_contrast),
    tv.RandomAdjustSharpness: _sharpness,
    **dict.fromkeys(CONVERSIONS, ToFloats),
}


# ---- what waits until after collate


class Cut(NamedTuple):
    """The steps of a list. Where nothing waits, all of them are in `on_images`."""

    on_images: Sequence[PipelineStep]
    waits: Sequence[PipelineStep] = ()  # ToTensor and Normalize
    # What moves pixels that ToTensor would have made floats of.
    on_bytes: Sequence[PipelineStep] = ()


def cut(steps: Sequence[PipelineStep]) -> Cut:
    """Let ToTensor wait, if what follows it is Normalize, only moves pixels or takes labels.

    What follows it and has no need of pixels (such as a mask for a size) still takes images.
    Otherwise the order stays.
    """
    behind = [*takewhile(lambda step: step.may_follow, reversed(steps))][::-1]
    first = len(steps) - len(behind) - 1
    if first < 0 or steps[first].indices or type(steps[first].named) not in CONVERSIONS:
        return Cut(steps)
    waits = [steps[first], *(step for step in behind if step.normalizes)]
    others = [step for step in behind if not step.normalizes]
    on_images = [*takewhile(lambda step: step.takes_labels or takes_arrays(step.named), others)]
    on_bytes = [
        step if step.takes_labels else replace(step, transform=step.named.on_bytes)
        for step in others[len(on_images) :]
    ]
    return Cut([*steps[:first], *on_images], waits, on_bytes)


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


# ---- for `sslengine explain`


def explain(pipeline: Pipeline) -> dict[str, str]:
    """Say of each entry of the list, by its place, how it runs."""
    said, tensors = {}, False
    waiting = {step.where for step in pipeline.cut.waits}
    for step in pipeline.listed:
        on_pil = any(isinstance(each, OnPil) for each in walk(step.transform))
        said[step.where] = (
            LATER if step.where in waiting
            else KNOWN_OF_ANY if not on_pil
            else ON_TENSORS if tensors
            else FALLS_BACK
        )  # fmt: skip
        converts, back = type(step.named) in CONVERSIONS, type(step.named) is tv.ToPILImage
        tensors = (tensors or converts) and not back
    return said
