"""Colour and blur: what SimCLR, BYOL and PIRL do to an image, with VISSL's random draws.

The p tests are part of what a transform computes, so `<=` and `<` stand as in VISSL.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import ColorJitter, Compose, RandomApply, RandomGrayscale

from sslengine.data.plan.draws import Draw, draw_of
from sslengine.data.plan.ops import Blur, Op, Size, Solarize
from sslengine.data.plan.view import size_of
from sslengine.data.transforms.probability import probability
from sslengine.registry import register_transform

Change = Callable[[Image.Image], Image.Image]


@register_transform("ImgPilColorDistortion")
class ImgPilColorDistortion:
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
        jitter = _jitter(strength, brightness, contrast, saturation, hue)
        distort = _with_probability(color_jitter_probability, jitter)
        grey = RandomGrayscale(probability(grayscale_probability))
        self.distort: Change = Compose([distort, grey])

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.distort(image)

    def draw(self, size: Size) -> list[Op]:
        return self._draw(size)

    @cached_property
    def _draw(self) -> Draw:
        return draw_of(self.distort)  # type: ignore[no-any-return]


@register_transform("ImgPilRandomColorJitter")
class ImgPilRandomColorJitter:
    """Colour jitter of a given strength, with probability p."""

    def __init__(self, strength: float = 1.0, p: float = 0.8) -> None:
        self.jitter = _with_probability(p, _jitter(strength))

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.jitter(image)

    def draw(self, size: Size) -> list[Op]:
        return self._draw(size)

    @cached_property
    def _draw(self) -> Draw:
        return draw_of(self.jitter)  # type: ignore[no-any-return]


@register_transform("ImgPilGaussianBlur")
class ImgPilGaussianBlur:
    """PIL's Gaussian blur, of a random radius, with probability p."""

    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        self.p = probability(p)
        self.radius_min = radius_min
        self.radius_max = radius_max

    def __call__(self, image: Image.Image) -> Image.Image:
        return _applied(self.draw(size_of(image)), image)

    def draw(self, size: Size) -> list[Op]:
        if np.random.rand() > self.p:  # noqa: NPY002
            return []
        return [Blur(random.uniform(self.radius_min, self.radius_max))]


@register_transform("ImgPilRandomSolarize")
class ImgPilRandomSolarize:
    """Invert the pixels above a random threshold, with probability p."""

    def __init__(self, p: float = 0.66) -> None:
        self.solarize = _with_probability(p, _Solarize())

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.solarize(image)

    def draw(self, size: Size) -> list[Op]:
        return self._draw(size)

    @cached_property
    def _draw(self) -> Draw:
        return draw_of(self.solarize)  # type: ignore[no-any-return]


@register_transform("ImgPilRandomPhotometric")
class ImgPilRandomPhotometric:
    """PIRL's, all or none: posterize, sharpen or soften, solarize, stretch the contrast."""

    def __init__(self, p: float = 0.66) -> None:
        self.change = _with_probability(p, _posterize, _sharpen, _Solarize(), ImageOps.autocontrast)

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.change(image)


def _jitter(
    strength: float,
    brightness: float = 0.8,
    contrast: float = 0.8,
    saturation: float = 0.8,
    hue: float = 0.2,
) -> Change:
    change: Change = ColorJitter(
        brightness * strength, contrast * strength, saturation * strength, hue * strength
    )
    return change


def _posterize(image: Image.Image) -> Image.Image:
    return ImageOps.posterize(image, int(np.random.randint(4, 9)))  # noqa: NPY002


def _sharpen(image: Image.Image) -> Image.Image:
    return ImageEnhance.Sharpness(image).enhance(np.random.uniform(0.1, 1.9))  # noqa: NPY002


class _Solarize:
    """From a random threshold on."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return _applied(self.draw(size_of(image)), image)

    def draw(self, size: Size) -> list[Op]:
        return [Solarize(int(np.random.randint(0, 257)))]  # noqa: NPY002


def _with_probability(p: float, *changes: Change) -> Change:
    """All the changes, one after another, or none."""
    apply: Change = RandomApply(list(changes), probability(p))
    return apply


def _applied(ops: Sequence[Op], image: Image.Image) -> Image.Image:
    for op in ops:
        image = op.on_pil(image)
    return image
