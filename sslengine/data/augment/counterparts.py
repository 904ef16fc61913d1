"""What runs in the place of a transform: one that takes images of any kind.

    a transform of torchvision that is known     its counterpart: see COUNTERPARTS
    one that says `takes_arrays`                 itself; so does one that takes labels
    any other                                    `OnPil`, which gives it copies as PIL images

By exact type: what a subclass changes is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torchvision import transforms as tv

from sslengine.data.augment.colour import Jitter, make_grey
from sslengine.data.augment.geometry import Middle, RandomPart, Resized, ResizedCrop, flip
from sslengine.data.augment.image import Rgb, make_bytes
from sslengine.data.augment.levels import (
    DrawnSolarize,
    Inverted,
    posterize,
    sharpen,
    stretch_contrast,
)
from sslengine.data.augment.stream import round_p
from sslengine.data.augment.tensors import CONVERSIONS, CPU, Finish
from sslengine.data.augment.transform import (
    Change,
    Counterpart,
    InTurn,
    OnPil,
    Sometimes,
    TakesLabels,
    Transform,
    takes_arrays,
)


def adapt(transform: Any) -> Any:
    """Return what runs in the place of a transform."""
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
        return self.finish.prepare(CPU)(make_bytes(image))


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
    operation = DrawnSolarize(math.ceil(transform.threshold))
    return Sometimes(transform, transform.p, operation)


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
    tv.RandomInvert: lambda each: Sometimes(each, each.p, Inverted()),
    tv.RandomAutocontrast: lambda each: Sometimes(each, each.p, stretch_contrast),
    tv.RandomAdjustSharpness: _sharpness,
    **dict.fromkeys(CONVERSIONS, ToFloats),
}
