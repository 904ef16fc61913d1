"""Operations on other arrays: Pillow's pixels on 8 bits, and formulas in float64 on other types."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from torchvision.transforms import InterpolationMode

from sslengine.data.augment.blur import blur
from sslengine.data.augment.colour import (
    change_brightness,
    change_contrast,
    change_saturation,
    make_grey,
    turn_hue,
)
from sslengine.data.augment.geometry import crop, flip, turn
from sslengine.data.augment.image import Limits, Pixels
from sslengine.data.augment.levels import (
    invert,
    posterize,
    sharpen,
    solarize,
    stretch_contrast,
)
from tests.data.augment.planes import Operation, describe

CUBIC, NEAREST = InterpolationMode.BICUBIC, InterpolationMode.NEAREST
EXACT: list[Operation] = [
    partial(crop, box=(3, 2, 20, 18), to=(20, 18)),
    partial(crop, box=(3, 2, 20, 18), to=(9, 40), interpolation=NEAREST),
    partial(crop, box=(-5, 3, 50, 20), to=(50, 20)),
    flip,
    *(partial(turn, degrees=degrees) for degrees in (90, 180, 270, 33.0, 200.5)),
    *(partial(change_brightness, factor=factor) for factor in (0.3, 1.7)),
    invert,
    *(partial(solarize, threshold=threshold) for threshold in (128, 0, 256)),
]
WITHIN_ONE: list[Any] = [
    partial(crop, box=(3, 2, 20, 18), to=(31, 9)),
    partial(crop, box=(0, 0, 37, 41), to=(224, 224), interpolation=CUBIC),
    partial(crop, box=(0, 0, 37, 41), to=(9, 8), interpolation=CUBIC),
]


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Pixels:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(100, 300, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("operation", [*EXACT, *WITHIN_ONE], ids=describe)
def test_pillows_on_8_bits(operation: Operation) -> None:
    pixels = drawn((37, 41, 3), "uint8")
    if operation in WITHIN_ONE:
        pixels = 60 + pixels // 2  # between its two passes Pillow clips what a filter overshoots
    made = operation(pixels)
    expected = np.asarray(operation(Image.fromarray(pixels)))
    assert made.dtype == np.uint8
    most = np.abs(made.astype(int) - expected.astype(int)).max()
    assert most <= (operation in WITHIN_ONE)


@pytest.mark.parametrize("radius", [0.1, 0.7, 2.0, 5.5])
def test_pillows_blur_but_for_its_roundings(radius: float) -> None:
    """Six passes round by half a level each, which no pass makes larger."""
    noise = drawn((37, 41, 3), "uint8")
    for pixels in (noise, gaussian_filter(noise, (4, 4, 0)).astype(np.uint8)):
        expected = np.asarray(blur(Image.fromarray(pixels), radius)).astype(int)
        error = np.abs(blur(pixels, radius).astype(int) - expected)
        assert error.max() <= 3
        assert error.mean() < 1.2


@pytest.mark.parametrize("operation", WITHIN_ONE, ids=describe)
@pytest.mark.parametrize("channels", [1, 4, 13])
def test_a_resize_is_that_of_pillows_floats(operation: Any, channels: int) -> None:
    pixels = drawn((37, 41, channels), "float32")
    asked = operation.keywords
    top, left, height, width = asked["box"]
    box = (left, top, left + width, top + height)
    cubic = asked.get("interpolation") is CUBIC
    kind = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    planes = [
        np.asarray(Image.fromarray(pixels[..., n]).crop(box).resize(asked["to"][::-1], kind))
        for n in range(channels)
    ]
    made = operation(pixels)
    np.testing.assert_allclose(made, np.stack(planes, -1), atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "int16"])
@pytest.mark.parametrize("channels", [1, 4, 13])
def test_formulas(dtype: str, channels: int) -> None:
    pixels = drawn((12, 15, channels), dtype)
    exact, given = pixels.astype(np.float64), Limits(-400.0, 700.0)
    limits = np.iinfo(dtype) if dtype != "float32" else None
    low, high = (limits.min, limits.max) if limits else (-400.0, 700.0)
    threshold = low + 200 / 255 * (high - low)
    solarized = np.where(exact < threshold, exact, low + high - exact)
    pairs = {
        "flip": (flip(pixels), exact[:, ::-1]),
        "crop": (crop(pixels, (2, 3, 5, 6), (5, 6), limits=given), exact[2:7, 3:9]),
        "turn": (turn(pixels, 90), np.rot90(exact)),
        "brightness": (change_brightness(pixels, 1.4, given), np.clip(1.4 * exact, low, high)),
        "invert": (invert(pixels, given), np.clip(low + high - exact, low, high)),
        "solarize": (solarize(pixels, 200, given), np.clip(solarized, low, high)),
    }
    for factor in (0.4, 1.8):
        blended = np.clip(exact.mean() + factor * (exact - exact.mean()), low, high)
        pairs[f"contrast {factor}"] = change_contrast(pixels, factor, given), blended
    for name, (made, values) in pairs.items():
        assert made.dtype == pixels.dtype, name
        one = 1 if limits else 1e-3  # whole numbers are cut off
        np.testing.assert_allclose(made, values, atol=one, err_msg=name)


def test_a_blur_is_near_to_a_gaussian() -> None:
    pixels = gaussian_filter(drawn((60, 60, 4), "float32"), (3, 3, 0)).astype(np.float32)
    made = blur(pixels, 2.0)
    exact = gaussian_filter(pixels.astype(np.float64), (2, 2, 0), mode="nearest")
    error = np.abs(made - exact)[8:-8, 8:-8].max()
    assert error < 0.02 * (pixels.max() - pixels.min())
    assert np.abs(made - pixels).max() > 10 * error


def test_floats_without_limits_are_not_clipped() -> None:
    pixels = drawn((5, 6, 2), "float32")
    np.testing.assert_allclose(change_brightness(pixels, 1e4), pixels * 1e4, rtol=1e-6)
    with pytest.raises(TypeError, match=r"Invert .*set PIXEL_RANGE: \[low, high\]"):
        invert(pixels)


def test_the_source_stays_and_its_shape() -> None:
    flat = drawn((9, 8), "uint16")
    before = flat.copy()
    same = partial(crop, box=(0, 0, 9, 8), to=(9, 8))
    for operation in (same, flip, partial(turn, degrees=180), partial(blur, radius=1.0)):
        made = operation(flat)
        assert made.shape == (9, 8)
        assert not np.shares_memory(made, flat)
        assert made.flags.c_contiguous
    np.testing.assert_array_equal(flat, before)


@pytest.mark.parametrize(
    "operation",
    [
        partial(change_saturation, factor=1.2), partial(turn_hue, shift=0.1), make_grey,
        partial(posterize, bits=3), stretch_contrast, partial(sharpen, factor=1.2),
    ],
    ids=describe,
)  # fmt: skip
def test_the_others_ask_for_rgb(operation: Operation) -> None:
    with pytest.raises(TypeError, match="asks for RGB: .*, or set IMAGE_MODE: RGB"):
        operation(drawn((4, 4, 5), "uint8"))
