"""What changes colours: brightness, contrast, saturation, hue, grey; and the jitter of all four.

Each is one function. Of 8-bit RGB its kernel comes to Pillow's bytes, in float32 as Pillow
computes; of other arrays values are floats, and what asks for colours refuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torchvision.transforms import ColorJitter, RandomGrayscale, functional

from sslengine.data.augment.compiling import Array, Number, inlined, kernel
from sslengine.data.augment.image import (
    NO_LIMITS,
    Limits,
    Rgb,
    make_floats,
    own,
    refuse_array,
)
from sslengine.data.augment.transform import (
    Counterpart,
    InTurn,
    Sometimes,
    probability,
    round_p,
    uniform,
)
from sslengine.registry import register_transform

F: Any = functional  # takes images as well as the tensors that its hints name
WITHOUT_COLOURS = "write ColorJitter with saturation: 0 and hue: 0"

# ITU-R 601 with 16 bits after the point. Sums stay below 2^24: float32 holds them exactly.
RED, GREEN, BLUE, ROUND = (np.float32(weight) for weight in (19595, 38470, 7471, 1 << 15))
FROM_16_BITS = np.float32(1 / (1 << 16))
ZERO, WHITE = np.float32(0), np.float32(255)


# ---- operations


def change_brightness(image: Any, factor: float, limits: Limits = NO_LIMITS) -> Any:
    """Move values away from black, or towards it."""
    if type(image) is Rgb:
        image, planes = own(image)
        blend_with(planes, 0, factor)
        return image
    if isinstance(image, Image.Image):
        return ImageEnhance.Brightness(image).enhance(factor)
    return limits.find(image).keep(make_floats(image) * factor, image)


def change_contrast(image: Any, factor: float, limits: Limits = NO_LIMITS) -> Any:
    """Move values away from the image's mean grey level, or towards it. Arrays have no grey level:
    theirs is the mean of all channels."""
    if type(image) is Rgb:
        image, planes = own(image)
        blend_with(planes, mean_luminance(planes), factor)
        return image
    if isinstance(image, Image.Image):
        return ImageEnhance.Contrast(image).enhance(factor)
    values, mean = make_floats(image), float(image.mean(dtype=np.float64))
    return limits.find(image).keep(mean + factor * (values - mean), image)


def change_saturation(image: Any, factor: float, limits: Limits = NO_LIMITS) -> Any:
    """Move each pixel away from its grey, or towards it."""
    if type(image) is Rgb:
        image, planes = own(image)
        saturate(planes, factor)
        return image
    if isinstance(image, Image.Image):
        return ImageEnhance.Color(image).enhance(factor)
    return refuse_array("Saturation", WITHOUT_COLOURS)


def turn_hue(image: Any, shift: float, limits: Limits = NO_LIMITS) -> Any:
    """Turn the circle of colours by `shift` of it, from -0.5 to 0.5."""
    if type(image) is Rgb:
        image, planes = own(image)
        # torchvision's conversion, whose sign it takes off by wrapping around.
        turn_planes(planes, int(shift * 255) % 256)
        return image
    if isinstance(image, Image.Image):
        return F.adjust_hue(image, shift)
    return refuse_array("Hue", WITHOUT_COLOURS)


def make_grey(image: Any) -> Any:
    """Put the luminance into all three channels."""
    if type(image) is Rgb:
        image, planes = own(image)
        grey_planes(planes)
        return image
    if isinstance(image, Image.Image):
        return Image.merge("RGB", [image.convert("L")] * 3)
    return refuse_array("Grey")


# ---- transforms

CHANGES: tuple[Callable[[Any, float, Limits], Any], ...] = (
    change_brightness, change_contrast, change_saturation, turn_hue,
)  # fmt: skip


class Jitter(Counterpart):
    """ColorJitter: the four changes, each by a random amount, in a random order."""

    def __init__(self, named: Any) -> None:
        super().__init__(named)
        self.ranges = (named.brightness, named.contrast, named.saturation, named.hue)

    def change(self, image: Any) -> Any:
        order = torch.randperm(4).tolist()
        drawn = [ends and uniform(*ends) for ends in self.ranges]
        for number in order:
            if drawn[number] is not None:
                image = CHANGES[number](image, drawn[number], self.limits)
        return image


@register_transform("ImgPilColorDistortion")
class ImgPilColorDistortion(InTurn):
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
        distort = InTurn([Jitter(ColorJitter(*ranges))], color_jitter_probability)
        grey = RandomGrayscale(probability(grayscale_probability))
        super().__init__([distort, Sometimes(grey, round_p(grey.p), make_grey)])


@register_transform("ImgPilRandomColorJitter")
class ImgPilRandomColorJitter(InTurn):
    """Colour jitter of a given strength, with probability p."""

    def __init__(self, strength: float = 1.0, p: float = 0.8) -> None:
        """
        strength: a factor on the ranges: 0.8 for brightness, contrast and saturation, 0.2 for hue.
        p: probability of the jitter.
        """
        ranges = (strength * each for each in (0.8, 0.8, 0.8, 0.2))
        super().__init__([Jitter(ColorJitter(*ranges))], p)


# ---- kernels
#
# Where Pillow computes in double, float32 comes to the same bytes: tests compare all 2^24 colours.
# Integers are float32 too, because numba makes 64 bits of each, and loops over these are slow.


@kernel("void(uint8[:, :, ::1], float32, float32)")
def blend_with(planes: Array, low: float, factor: float) -> None:
    """Move values away from the level `low`, or towards it."""
    values = planes.reshape(-1)
    for i in range(values.size):
        value = low + factor * (np.float32(values[i]) - low)
        values[i] = np.uint8(min(max(value, ZERO), WHITE))


@kernel("int64(uint8[:, :, ::1])")
def mean_luminance(planes: Array) -> int:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    total: Any = np.int64(0)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        total += np.int64(np.floor((RED * r + GREEN * g + BLUE * b + ROUND) * FROM_16_BITS))
    return int(total / red.size + 0.5)


@inlined
def _blend(low: Number, value: Number, factor: Number) -> Number:
    return np.uint8(min(max(low + factor * (value - low), ZERO), WHITE))


@kernel("void(uint8[:, :, ::1], float32)")
def saturate(planes: Array, factor: float) -> None:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        low = np.floor((RED * r + GREEN * g + BLUE * b + ROUND) * FROM_16_BITS)
        red[i] = _blend(low, r, factor)
        green[i] = _blend(low, g, factor)
        blue[i] = _blend(low, b, factor)


@kernel("void(uint8[:, :, ::1])")
def grey_planes(planes: Array) -> None:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        level = np.floor((RED * r + GREEN * g + BLUE * b + ROUND) * FROM_16_BITS)
        red[i] = green[i] = blue[i] = np.uint8(level)


HALF, ONE, THREE, FIVE, SIX = (np.float32(number) for number in (0.5, 1, 3, 5, 6))
TURN = np.float32(256)  # a turn of the hue takes so many steps of a byte
CIRCLE, TWO_THIRDS = np.float32(6 * 255), np.float32(4 * 255)
PER_WHITE_SQUARED = np.float32(1 / 255**2)


@inlined
def _hue(r: Number, g: Number, b: Number, high: Number, low: Number) -> Number:
    """Return 0 to 255; of a grey, 0. A sixth of the circle is 1 until the last line.

    One sum for each sector, rounded once: Pillow's longer ones come to the same.
    """
    span = max(high - low, ONE)
    middle = (high - (r + g + b - high - low)) / span
    if r == high:
        sixths = ONE - middle if b == low else middle - ONE
    elif g == high:
        sixths = THREE - middle if r == low else middle + ONE
    else:
        sixths = FIVE - middle if g == low else middle + THREE
    hue = sixths / SIX * WHITE
    hue = np.floor(hue + WHITE if hue < ZERO else hue)
    return hue if high > low else ZERO


@inlined
def _channel(ahead: Number, angle: Number, saturation: Number, value: Number) -> Number:
    """Over the circle a channel is full for a third, empty for a third, and slopes between."""
    angle = angle + ahead
    angle = angle - CIRCLE if angle >= CIRCLE else angle
    lack = min(max(min(angle, TWO_THIRDS - angle), ZERO), WHITE)
    return np.uint8(value - np.floor(value * saturation * lack * PER_WHITE_SQUARED + HALF))


@kernel("void(uint8[:, :, ::1], float32)")
def turn_planes(planes: Array, steps: float) -> None:
    """steps: of 256 to the circle, from 0 to 255."""
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        high, low = max(max(r, g), b), min(min(r, g), b)
        saturation = np.floor((high - low) / max(high, ONE) * WHITE)
        hue = _hue(r, g, b, high, low) + steps
        angle = (hue - TURN if hue >= TURN else hue) * SIX
        angle = angle - CIRCLE if angle >= CIRCLE else angle  # 255 is a full circle, as 0 is
        red[i] = _channel(FIVE * WHITE, angle, saturation, high)
        green[i] = _channel(THREE * WHITE, angle, saturation, high)
        blue[i] = _channel(WHITE, angle, saturation, high)
