"""The draw of torchvision's ColorJitter, and SimCLR's changes of colour, under VISSL's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torchvision.transforms import ColorJitter, Compose, RandomGrayscale

from sslengine.data.augment.draws import Draw, draw_for
from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.operations.brightness import Brightness
from sslengine.data.augment.operations.contrast import Contrast
from sslengine.data.augment.operations.hue import Hue
from sslengine.data.augment.operations.saturation import Saturation
from sslengine.data.augment.stream import uniforms
from sslengine.data.augment.transform import Wraps, probability, with_probability
from sslengine.registry import register_transform


@draw_for(ColorJitter)
def _color_jitter(transform: Any) -> Draw:
    kinds = (Brightness, Contrast, Saturation, Hue)
    ranges = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
    given = [number for number in range(4) if ranges[number] is not None]
    # Neighbours in the stream that are of one range are drawn in one call.
    groups = [
        (*limits, len(list(each))) for limits, each in groupby(tuple(ranges[n]) for n in given)
    ]
    return partial(_draw_color_jitter, [(number, kinds[number]) for number in given], groups)


def _draw_color_jitter(
    kinds: Sequence[tuple[int, Callable[[float], Operation]]],
    ranges: Sequence[tuple[float, float, int]],
    size: Size,
) -> list[Operation]:
    order = torch.randperm(4).tolist()
    drawn = {number: kind(x) for (number, kind), x in zip(kinds, uniforms(ranges))}
    return [drawn[number] for number in order if number in drawn]


@register_transform("ImgPilColorDistortion")
class ImgPilColorDistortion(Wraps):
    """SimCLR's colour jitter of a given strength, then sometimes no colour at all."""

    def __init__(
        self,
        strength: float = 1.0,
        brightness: float = 0.8,
        contrast: float = 0.8,
        saturation: float = 0.8,
        hue: float = 0.2,
        color_jitter_probability: float = 0.8,
        grayscale_probability: float = 0.2,
    ) -> None:
        """
        strength: a factor on brightness, contrast, saturation and hue.
        brightness, contrast, saturation: 0.8: the factor on it is drawn from 0.2 to 1.8.
        hue: 0.2: it is turned by up to a fifth of the colour circle, either way.
        color_jitter_probability: probability of the jitter.
        grayscale_probability: probability that the image becomes grey.
        """
        ranges = (strength * each for each in (brightness, contrast, saturation, hue))
        distort = with_probability(color_jitter_probability, ColorJitter(*ranges))
        grey = RandomGrayscale(probability(grayscale_probability))
        self.change = Compose([distort, grey])


@register_transform("ImgPilRandomColorJitter")
class ImgPilRandomColorJitter(Wraps):
    """Colour jitter of a given strength, with probability p."""

    def __init__(self, strength: float = 1.0, p: float = 0.8) -> None:
        """
        strength: a factor on the ranges: 0.8 for brightness, contrast and saturation, 0.2 for hue.
        p: probability of the jitter.
        """
        ranges = (strength * each for each in (0.8, 0.8, 0.8, 0.2))
        self.change = with_probability(p, ColorJitter(*ranges))
