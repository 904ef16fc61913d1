"""Colour and blur: what SimCLR, BYOL and PIRL do to an image, with VISSL's random draws.

The p tests are part of what a transform computes, so `<=` and `<` stand as in VISSL.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np
from PIL import Image
from torchvision.transforms import ColorJitter, Compose, RandomApply, RandomGrayscale

from sslengine.data.plan.draws import Draw, draw_of
from sslengine.data.plan.ops import AutoContrast, Blur, Op, Posterize, Sharpness, Size, Solarize
from sslengine.data.plan.view import size_of
from sslengine.data.transforms.probability import probability
from sslengine.registry import register_transform

Change = Callable[[Image.Image], Image.Image]


class Changes:
    """A transform whose call and draw are those of `change`."""

    change: Change

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.change(image)

    def draw(self, size: Size) -> list[Op]:
        return self._draw(size)

    @cached_property
    def _draw(self) -> Draw:
        return draw_of(self.change)  # type: ignore[no-any-return]


class DoesWhatItDraws(ABC):
    @abstractmethod
    def draw(self, size: Size) -> list[Op]: ...

    def __call__(self, image: Image.Image) -> Image.Image:
        for op in self.draw(size_of(image)):
            image = op.on_pil(image)
        return image


@register_transform("ImgPilColorDistortion")
class ImgPilColorDistortion(Changes):
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
        self.change: Change = Compose([distort, grey])


@register_transform("ImgPilRandomColorJitter")
class ImgPilRandomColorJitter(Changes):
    """Colour jitter of a given strength, with probability p."""

    def __init__(self, strength: float = 1.0, p: float = 0.8) -> None:
        self.change = _with_probability(p, _jitter(strength))


@register_transform("ImgPilGaussianBlur")
class ImgPilGaussianBlur(DoesWhatItDraws):
    """PIL's Gaussian blur, of a random radius, with probability p."""

    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        self.p = probability(p)
        self.radius_min = radius_min
        self.radius_max = radius_max

    def draw(self, size: Size) -> list[Op]:
        if np.random.rand() > self.p:  # noqa: NPY002
            return []
        return [Blur(random.uniform(self.radius_min, self.radius_max))]


@register_transform("ImgPilRandomSolarize")
class ImgPilRandomSolarize(Changes):
    """Invert the pixels from a threshold on, with probability p."""

    def __init__(self, p: float = 0.66, threshold: int | None = None) -> None:
        """threshold: by default drawn for each image, from 0 to 256, as VISSL does.

        BYOL, Barlow Twins, VICReg and DINO have 128.
        """
        if threshold is not None and not 0 <= threshold <= 256:
            raise ValueError(f"threshold: expected a number from 0 to 256, got {threshold}.")
        self.change = _with_probability(p, _Solarize(threshold))


@register_transform("ImgPilRandomPhotometric")
class ImgPilRandomPhotometric(Changes):
    """PIRL's, all or none: posterize, sharpen or soften, solarize, stretch the contrast."""

    def __init__(self, p: float = 0.66) -> None:
        self.change = _with_probability(p, _Posterize(), _Sharpen(), _Solarize(), _Stretch())


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


class _Posterize(DoesWhatItDraws):
    def draw(self, size: Size) -> list[Op]:
        return [Posterize(int(np.random.randint(4, 9)))]  # noqa: NPY002


class _Sharpen(DoesWhatItDraws):
    def draw(self, size: Size) -> list[Op]:
        return [Sharpness(np.random.uniform(0.1, 1.9))]  # noqa: NPY002


class _Solarize(DoesWhatItDraws):
    """From a threshold on; a random one by default."""

    def __init__(self, threshold: int | None = None) -> None:
        self.threshold = threshold

    def draw(self, size: Size) -> list[Op]:
        if self.threshold is not None:
            return [Solarize(self.threshold)]
        return [Solarize(int(np.random.randint(0, 257)))]  # noqa: NPY002


class _Stretch(DoesWhatItDraws):
    def draw(self, size: Size) -> list[Op]:
        return [AutoContrast()]


def _with_probability(p: float, *changes: Change) -> Change:
    """All the changes, one after another, or none."""
    apply: Change = RandomApply(list(changes), probability(p))
    return apply
