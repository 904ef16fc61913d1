"""The fifteen corruptions of ImageNet-C, each at five severities: `Corrupt`.

Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations, 2019: noise, blur, weather and digital changes. The amounts are those of the authors'
code (hendrycks/robustness 8190fe3) for images of 224 pixels. Lengths are scaled with the shorter
side of an image, so that a small one is corrupted as much to the eye. Frost is drawn (the paper has
photographs of it), and blurs by motion are those of a line, not of ImageMagick: these numbers
cannot be compared with the paper's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage  # type: ignore[import-untyped]

from sslengine.data.augment.transform import Transform, expect
from sslengine.registry import register_transform

SIDE = 224

Values = Any  # an array, height x width x 3, from 0 to 1
Draw = np.random.Generator


def _scale(x: Values) -> float:
    return float(min(x.shape[:2]) / SIDE)


def gaussian_noise(x: Values, amount: float, draw: Draw) -> Values:
    return x + draw.normal(scale=amount, size=x.shape)


def shot_noise(x: Values, amount: float, draw: Draw) -> Values:
    return draw.poisson(x * amount) / amount


def impulse_noise(x: Values, amount: float, draw: Draw) -> Values:
    """Salt and pepper, by halves."""
    changed, white = draw.random(x.shape) < amount, draw.random(x.shape) < 0.5
    return np.where(changed, white.astype(float), x)


def defocus_blur(x: Values, amount: tuple[float, float], draw: Draw) -> Values:
    """A disc whose edge is softened."""
    radius, softness = amount[0] * _scale(x), amount[1]
    reach = int(np.ceil(radius)) + 1
    line = np.arange(-reach, reach + 1)
    disc = (np.hypot(*np.meshgrid(line, line)) <= radius).astype(float)
    return _filtered(x, ndimage.gaussian_filter(disc, softness))


def glass_blur(x: Values, amount: tuple[float, float, int], draw: Draw) -> Values:
    """Pixels are exchanged with near ones, between two blurs."""
    sigma, reach, times = amount[0] * _scale(x), max(1, round(amount[1] * _scale(x))), amount[2]
    found = _blurred(x, sigma)
    high, wide = x.shape[:2]
    for _ in range(times):
        moves = draw.integers(-reach, reach, size=(2, high, wide))
        for row in range(high - reach - 1, reach, -1):
            for column in range(wide - reach - 1, reach, -1):
                other = row + moves[0, row, column], column + moves[1, row, column]
                kept = found[row, column].copy()
                found[row, column], found[other] = found[other], kept
    return _blurred(found, sigma)


def motion_blur(x: Values, amount: tuple[float, float], draw: Draw) -> Values:
    return _along_a_line(x, amount[0] * _scale(x), amount[1] * _scale(x), draw.uniform(-45, 45))


def zoom_blur(x: Values, amount: tuple[float, float], draw: Draw) -> Values:
    """The mean of enlarged images. amount: the largest enlargement, and the step."""
    zooms = np.arange(1, *amount)
    return (x + sum(_enlarged(x, zoom) for zoom in zooms)) / (len(zooms) + 1)


def snow(x: Values, amount: tuple[float, ...], draw: Draw) -> Values:
    mean, deviation, zoom, threshold, radius, sigma, kept = amount
    flakes = _enlarged(draw.normal(mean, deviation, size=(*x.shape[:2], 1)), zoom)
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    length, width = radius * _scale(x), sigma * _scale(x)
    flakes = _along_a_line(flakes, length, width, draw.uniform(-135, -45))
    grey = (x @ [0.299, 0.587, 0.114])[..., None] * 1.5 + 0.5
    x = kept * x + (1 - kept) * np.maximum(x, grey)
    return x + flakes + np.rot90(flakes, 2)


def frost(x: Values, amount: tuple[float, float], draw: Draw) -> Values:
    """Crystals: the ridges of a fractal, bluish and bright."""
    ridges = (1 - np.abs(2 * _fractal(x.shape[:2], 1.5, draw) - 1)) ** 2
    # As bright as the paper's photographs: half of white.
    crystals = (0.5 / ridges.mean() * ridges)[..., None] * np.array([0.9, 1.0, 1.1])
    return amount[0] * x + amount[1] * crystals


def fog(x: Values, amount: tuple[float, float], draw: Draw) -> Values:
    most = x.max()
    x = x + amount[0] * _fractal(x.shape[:2], amount[1], draw)[..., None]
    return x * most / (most + amount[0])


def brightness(x: Values, amount: float, draw: Draw) -> Values:
    """Of HSV the value is raised; hue and saturation stay."""
    value = x.max(axis=2, keepdims=True)
    raised = np.minimum(value + amount, 1)
    return np.where(value > 0, x / np.maximum(value, 1e-12), 1) * raised


def contrast(x: Values, amount: float, draw: Draw) -> Values:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * amount + mean


def elastic_transform(x: Values, amount: tuple[float, float, float], draw: Draw) -> Values:
    """An affine change of three corners, then a smooth shift of all pixels. Shares of the side."""
    size = np.array(x.shape[:2])
    # The authors count shares of 244 pixels.
    strength, sigma, affine = (each * 244 * _scale(x) for each in amount)
    third = size.min() / 3
    corners = size / 2 + third * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + draw.uniform(-affine, affine, size=(3, 2))
    change = np.linalg.solve(np.c_[moved, np.ones(3)], corners)  # from an answer's place
    grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), axis=-1).astype(float)
    places = np.c_[grid.reshape(-1, 2), np.ones(size.prod())] @ change
    found = _sampled(x, places.reshape(*size, 2))
    shifts = draw.uniform(-1, 1, size=(2, *size))
    smooth = [ndimage.gaussian_filter(each, sigma, mode="reflect", truncate=3) for each in shifts]
    return _sampled(found, grid + strength * np.stack(smooth, axis=-1))


def pixelate(x: Values, amount: float, draw: Draw) -> Values:
    image = _image(x)
    small = (max(1, int(image.width * amount)), max(1, int(image.height * amount)))
    box = Image.Resampling.BOX
    return np.asarray(image.resize(small, box).resize(image.size, box)) / 255


def jpeg_compression(x: Values, amount: int, draw: Draw) -> Values:
    file = io.BytesIO()
    _image(x).save(file, "JPEG", quality=amount)
    with Image.open(file, formats=["JPEG"]) as found:
        return np.asarray(found.convert("RGB")) / 255


# The function, and its amount at each severity.
CORRUPTIONS: Mapping[str, tuple[Callable[[Values, Any, Draw], Values], tuple[Any, ...]]] = {
    "gaussian_noise": (gaussian_noise, (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": (shot_noise, (60, 25, 12, 5, 3)),
    "impulse_noise": (impulse_noise, (0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": (defocus_blur, ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))),
    "glass_blur": (
        glass_blur, ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": (motion_blur, ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))),
    "zoom_blur": (
        zoom_blur, ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    "snow": (
        snow,
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7), (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    "frost": (frost, ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
    "fog": (fog, ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))),
    "brightness": (brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (contrast, (0.4, 0.3, 0.2, 0.1, 0.05)),
    "elastic_transform": (
        elastic_transform,
        (
            (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        ),
    ),
    "pixelate": (pixelate, (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": (jpeg_compression, (25, 18, 15, 10, 7)),
}  # fmt: skip


@register_transform("Corrupt")
class Corrupt(Transform):
    """One of the fifteen corruptions of ImageNet-C, to judge a network, not to train it."""

    def __init__(self, kind: str, severity: int = 3) -> None:
        """
        kind: gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur,
            zoom_blur, snow, frost, fog, brightness, contrast, elastic_transform, pixelate or
            jpeg_compression.
        severity: 1 to 5.
        """
        expect(kind in CORRUPTIONS, "kind", "one of " + ", ".join(CORRUPTIONS), kind)
        expect(severity in range(1, 6), "severity", "1 to 5", severity)
        self.change, amounts = CORRUPTIONS[kind]
        self.amount = amounts[severity - 1]

    def __call__(self, image: Image.Image) -> Image.Image:
        expect(getattr(image, "mode", "") in ("L", "RGB"), "Corrupt", "an image of 8 bits", image)
        seed = np.random.randint(2**31)  # noqa: NPY002 - the stream that is seeded for each sample
        draw = np.random.default_rng(seed)
        values = np.asarray(image.convert("RGB")) / 255
        return _image(self.change(values, self.amount, draw)).convert(image.mode)


def _image(x: Values) -> Image.Image:
    return Image.fromarray((np.clip(x, 0, 1) * 255 + 0.5).astype(np.uint8))


def _blurred(x: Values, sigma: float) -> Values:
    return ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")


def _filtered(x: Values, kernel: Values) -> Values:
    kernel = kernel / kernel.sum()
    return np.stack(
        [ndimage.convolve(each, kernel, mode="mirror") for each in np.moveaxis(x, 2, 0)], axis=2
    )


def _along_a_line(x: Values, radius: float, sigma: float, degrees: float) -> Values:
    """The mean of shifted images, weighted by a half Gaussian."""
    steps = np.arange(max(1, round(radius)) * 2 + 1)
    weights = np.exp(-(steps**2) / (2 * max(sigma, 1e-3) ** 2))
    angle = np.deg2rad(degrees)
    found = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum()):
        if weight > 1e-6:
            shift = (-step * np.sin(angle), -step * np.cos(angle), 0)
            found += weight * ndimage.shift(x, shift, order=1, mode="nearest")
    return found


def _enlarged(x: Values, zoom: float) -> Values:
    """The middle of the image, enlarged to the whole of it."""
    centre = (np.array(x.shape[:2]) - 1) / 2
    grid = np.stack(np.meshgrid(*map(np.arange, x.shape[:2]), indexing="ij"), axis=-1)
    return _sampled(x, (grid - centre) / zoom + centre)


def _sampled(x: Values, places: Values) -> Values:
    """places: height x width x 2; between pixels linearly, beyond the edge mirrored."""
    at = np.moveaxis(places, 2, 0)
    planes = np.moveaxis(x, 2, 0)
    return np.stack(
        [ndimage.map_coordinates(each, at, order=1, mode="reflect") for each in planes], axis=2
    )


def _fractal(size: tuple[int, ...], decay: float, draw: Draw) -> Values:
    """Plasma by the diamond-square algorithm, from 0 to 1: each finer level is fainter."""
    side = 1 << (max(size) - 1).bit_length()
    plane = np.zeros((side, side))
    step, wibble = side, 1.0
    while step >= 2:
        half = step // 2
        corners = plane[::step, ::step]
        right, down = np.roll(corners, -1, axis=1), np.roll(corners, -1, axis=0)
        middle = (corners + right + down + np.roll(right, -1, axis=0)) / 4
        plane[half::step, half::step] = middle + draw.uniform(-wibble, wibble, middle.shape)
        middle = plane[half::step, half::step]
        above, left = np.roll(middle, 1, axis=0), np.roll(middle, 1, axis=1)
        plane[::step, half::step] = (corners + right + middle + above) / 4 + draw.uniform(
            -wibble, wibble, middle.shape
        )
        plane[half::step, ::step] = (corners + down + middle + left) / 4 + draw.uniform(
            -wibble, wibble, middle.shape
        )
        step, wibble = half, wibble / decay**2  # the authors' code draws by the square of it
    plane -= plane.min()
    return (plane / max(plane.max(), 1e-12))[: size[0], : size[1]]
