"""What runs in the place of a transform: one that takes images of any kind.

    a transform of torchvision that is known     its counterpart: see COUNTERPARTS
    one that says `takes_arrays`                 a copy that knows the limits, with counterparts of
                                                 the transforms that it applies
    any other                                    `OnPil`, which gives it copies as PIL images

By exact type: what a subclass changes is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from PIL import Image
from torchvision import transforms as tv

from sslengine.data.augment.colour import Jitter, make_grey
from sslengine.data.augment.geometry import Middle, RandomPart, Resized, ResizedCrop, flip
from sslengine.data.augment.image import NO_LIMITS, Limits, Rgb, make_bytes, make_pil, make_rgb
from sslengine.data.augment.levels import (
    equalize,
    invert,
    posterize,
    sharpen,
    solarize,
    stretch_contrast,
)
from sslengine.data.augment.stream import round_p, uniform
from sslengine.data.augment.tensors import CONVERSIONS, CPU, Finish
from sslengine.data.augment.transform import (
    Counterpart,
    MakesLabel,
    MakesViews,
    TakesAll,
    Transform,
    kind_of,
    takes_arrays,
)

Change = Callable[[Any], Any]


def adapt(transform: Any, limits: Limits = NO_LIMITS) -> Change:
    """Return what runs in the place of a transform. limits: of the values of arrays of floats."""
    make = COUNTERPARTS.get(type(transform))
    if make is not None:
        return make(transform, limits) or OnPil(transform)
    if isinstance(transform, Transform) and takes_arrays(transform):
        return _adapt_parts(transform, limits)
    return OnPil(transform)


def _adapt_parts(transform: Transform, limits: Limits) -> Change:
    made: Any = copy(transform)
    made.limits = limits
    for name in transform.applies:
        inner = getattr(transform, name)
        several = isinstance(inner, (list, tuple))
        parts = [adapt(each, limits) for each in inner] if several else adapt(inner, limits)
        setattr(made, name, parts)
    change: Change = made
    return change


class OnPil:
    """Gives a transform PIL images that it may draw into, and takes back what came as arrays."""

    def __init__(self, named: Change) -> None:
        self.named, self.kind = named, kind_of(named)

    def __call__(self, image: Any) -> Any:
        if isinstance(image, list):  # all images of the sample
            made = self.named([_make_own_pil(each) for each in image])
            return self.take_back(made) if any(type(each) is Rgb for each in image) else made
        made = self.named(_make_own_pil(image))
        return self.take_back(made) if type(image) is Rgb else made

    def take_back(self, made: Any) -> Any:
        if issubclass(self.kind, (MakesViews, TakesAll)):
            return [make_rgb(each) for each in made]
        if issubclass(self.kind, MakesLabel):
            image, label = made
            return make_rgb(image), label
        if isinstance(made, dict):
            return {**made, "data": make_rgb(made["data"])}
        return make_rgb(made)


def _make_own_pil(image: Any) -> Any:
    if type(image) is Rgb:
        return make_pil(image)
    return image.copy() if isinstance(image, Image.Image) else image


# ---- counterparts of chance, of containers, and of conversions


class Sometimes(Counterpart):
    """One operation, with probability p; always where p is None."""

    def __init__(self, named: Change, p: float | None, operation: Change) -> None:
        super().__init__(named)
        self.p, self.operation = p, operation

    def change(self, image: Any) -> Any:
        return self.operation(image) if self.p is None or uniform() < self.p else image


class InTurn(Transform):
    """Compose, and RandomApply: all transforms one after another, or none."""

    def __init__(self, transforms: Sequence[Change], p: float | None) -> None:
        self.transforms, self.p = transforms, None if p is None else round_p(p)

    def __call__(self, image: Any) -> Any:
        if self.p is not None and self.p < uniform():
            return image
        for each in self.transforms:
            image = each(image)
        return image


class ToFloats(Counterpart):
    """A conversion to a float tensor, in its place in the list."""

    def __init__(self, named: Change, limits: Limits = NO_LIMITS) -> None:
        super().__init__(named, limits)
        self.finish = Finish(named)

    def __call__(self, image: Any) -> Any:
        if type(image) is not Rgb:
            return self.named(image)
        return self.finish.prepare(CPU)(make_bytes(image))


def _adapt_container(transform: Any, limits: Limits) -> Change | None:
    """Return None if it applies one that takes PIL images: then all of them get the same one."""
    inner = list(transform.transforms)
    made = [adapt(each, limits) for each in inner]
    one_to_one = all(kind_of(each).through is Transform.through for each in inner)
    if not one_to_one or any(isinstance(each, OnPil) for each in made):
        return None
    return InTurn(made, getattr(transform, "p", None))


def _random_crop(transform: Any, limits: Limits) -> Change | None:
    pads = transform.padding is not None or transform.pad_if_needed
    return None if pads else RandomPart(transform, limits)


def _resize(transform: Any, limits: Limits) -> Change | None:
    return None if transform.max_size is not None else Resized(transform, limits)


def _grayscale(transform: Any, limits: Limits) -> Change | None:
    return Sometimes(transform, None, make_grey) if transform.num_output_channels == 3 else None


def _solarize(transform: Any, limits: Limits) -> Change:
    # Of whole numbers, those from 127.5 on are those from 128 on.
    operation = partial(solarize, threshold=math.ceil(transform.threshold), limits=limits)
    return Sometimes(transform, transform.p, operation)


def _posterize(transform: Any, limits: Limits) -> Change | None:
    # Whether zero bits are an error depends on Pillow's version.
    if transform.bits not in range(1, 9):
        return None
    return Sometimes(transform, transform.p, partial(posterize, bits=transform.bits))


def _sharpness(transform: Any, limits: Limits) -> Change:
    return Sometimes(transform, transform.p, partial(sharpen, factor=transform.sharpness_factor))


# None where a transform's arguments ask for what is not known. Some of torchvision's compare a
# number with p, and some a tensor.
COUNTERPARTS: Mapping[type, Callable[[Any, Limits], Change | None]] = {
    tv.Compose: _adapt_container,
    tv.RandomApply: _adapt_container,
    tv.RandomResizedCrop: ResizedCrop,
    tv.RandomCrop: _random_crop,
    tv.CenterCrop: Middle,
    tv.Resize: _resize,
    tv.RandomHorizontalFlip: lambda each, _: Sometimes(each, round_p(each.p), flip),
    tv.ColorJitter: Jitter,
    tv.Grayscale: _grayscale,
    tv.RandomGrayscale: lambda each, _: Sometimes(each, round_p(each.p), make_grey),
    tv.RandomSolarize: _solarize,
    tv.RandomPosterize: _posterize,
    tv.RandomInvert: lambda each, limits: Sometimes(each, each.p, partial(invert, limits=limits)),
    tv.RandomAutocontrast: lambda each, _: Sometimes(each, each.p, stretch_contrast),
    tv.RandomEqualize: lambda each, _: Sometimes(each, each.p, equalize),
    tv.RandomAdjustSharpness: _sharpness,
    **dict.fromkeys(CONVERSIONS, ToFloats),
}
