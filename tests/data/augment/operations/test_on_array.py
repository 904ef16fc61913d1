"""Operations on arrays: Pillow's pixels on 8-bit RGB, and formulas in float64 on other types."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from torchvision.transforms import InterpolationMode

from sslengine.data.augment.arrays import OnArrays, Pixels
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.operations import (
    OPERATIONS,
    Blur,
    Brightness,
    CenterOnBlack,
    Contrast,
    Crop,
    FlipLeftRight,
    Invert,
    QuarterTurns,
    Solarize,
    Turn,
)

CUBIC, NEAREST = InterpolationMode.BICUBIC, InterpolationMode.NEAREST
EXACT = [
    Crop(3, 2, 20, 18, (20, 18)), Crop(3, 2, 20, 18, (9, 40), NEAREST), CenterOnBlack((50, 20)),
    CenterOnBlack((17, 51)), FlipLeftRight(), QuarterTurns(1), QuarterTurns(2), QuarterTurns(3),
    Turn(33.0), Turn(200.5), Brightness(0.3), Brightness(1.7), Invert(), Solarize(128),
    Solarize(0), Solarize(256),
]  # fmt: skip
WITHIN_ONE = [
    Crop(3, 2, 20, 18, (31, 9)), Crop(0, 0, 37, 41, (224, 224), CUBIC),
    Crop(0, 0, 37, 41, (9, 8), CUBIC),
]  # fmt: skip
BLURS = [Blur(0.1), Blur(0.7), Blur(2.0), Blur(5.5)]


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Pixels:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(100, 300, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("operation", [*EXACT, *WITHIN_ONE], ids=str)
def test_pillows_on_8_bits(operation: Operation) -> None:
    pixels = drawn((37, 41, 3), "uint8")
    if operation in WITHIN_ONE:
        pixels = 60 + pixels // 2  # between its two passes Pillow clips what a filter overshoots
    made = OnArrays()(pixels, [operation])
    expected = np.asarray(operation.on_pil(Image.fromarray(pixels)))
    assert made.dtype == np.uint8
    assert made.shape[:2] == operation.size((37, 41))
    most = np.abs(made.astype(int) - expected.astype(int)).max()
    assert most <= (operation in WITHIN_ONE)


@pytest.mark.parametrize("blur", BLURS, ids=str)
def test_pillows_blur_but_for_its_roundings(blur: Blur) -> None:
    """Six passes round by half a level each, which no pass makes larger."""
    noise = drawn((37, 41, 3), "uint8")
    for pixels in (noise, gaussian_filter(noise, (4, 4, 0)).astype(np.uint8)):
        expected = np.asarray(blur.on_pil(Image.fromarray(pixels))).astype(int)
        error = np.abs(OnArrays()(pixels, [blur]).astype(int) - expected)
        assert error.max() <= 3
        assert error.mean() < 1.2


@pytest.mark.parametrize("operation", WITHIN_ONE, ids=str)
@pytest.mark.parametrize("channels", [1, 4, 13])
def test_a_resize_is_that_of_pillows_floats(operation: Crop, channels: int) -> None:
    pixels = drawn((37, 41, channels), "float32")
    box = (operation.left, operation.top, operation.left + operation.width,
           operation.top + operation.height)  # fmt: skip
    kind = {InterpolationMode.BILINEAR: Image.Resampling.BILINEAR,
            CUBIC: Image.Resampling.BICUBIC}[operation.interpolation]  # fmt: skip
    planes = [
        np.asarray(Image.fromarray(pixels[..., n]).crop(box).resize(operation.to[::-1], kind))
        for n in range(channels)
    ]
    made = OnArrays()(pixels, [operation])
    np.testing.assert_allclose(made, np.stack(planes, -1), atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "int16"])
@pytest.mark.parametrize("channels", [1, 4, 13])
def test_formulas(dtype: str, channels: int) -> None:
    pixels = drawn((12, 15, channels), dtype)
    exact, render = pixels.astype(np.float64), OnArrays((-400.0, 700.0))
    limits = np.iinfo(dtype) if dtype != "float32" else None
    low, high = (limits.min, limits.max) if limits else (-400.0, 700.0)
    threshold = low + 200 / 255 * (high - low)
    expected = {
        FlipLeftRight(): exact[:, ::-1],
        Crop(2, 3, 5, 6, (5, 6)): exact[2:7, 3:9],
        QuarterTurns(1): np.rot90(exact),
        Brightness(1.4): np.clip(1.4 * exact, low, high),
        Contrast(0.4): np.clip(exact.mean() + 0.4 * (exact - exact.mean()), low, high),
        Contrast(1.8): np.clip(exact.mean() + 1.8 * (exact - exact.mean()), low, high),
        Invert(): np.clip(low + high - exact, low, high),
        Solarize(200): np.clip(np.where(exact < threshold, exact, low + high - exact), low, high),
    }
    for operation, values in expected.items():
        made = render(pixels, [operation])
        assert made.dtype == pixels.dtype, operation
        one = 1 if limits else 1e-3  # whole numbers are cut off
        np.testing.assert_allclose(made, values, atol=one, err_msg=str(operation))


def test_a_blur_is_near_to_a_gaussian() -> None:
    pixels = gaussian_filter(drawn((60, 60, 4), "float32"), (3, 3, 0)).astype(np.float32)
    made = OnArrays()(pixels, [Blur(2.0)])
    exact = gaussian_filter(pixels.astype(np.float64), (2, 2, 0), mode="nearest")
    error = np.abs(made - exact)[8:-8, 8:-8].max()
    assert error < 0.02 * (pixels.max() - pixels.min())
    assert np.abs(made - pixels).max() > 10 * error


def test_floats_without_limits_are_not_clipped() -> None:
    pixels = drawn((5, 6, 2), "float32")
    np.testing.assert_allclose(OnArrays()(pixels, [Brightness(1e4)]), pixels * 1e4, rtol=1e-6)
    with pytest.raises(TypeError, match=r"Invert .*set PIXEL_RANGE: \[low, high\]"):
        OnArrays()(pixels, [Invert()])


def test_the_source_stays_and_its_shape() -> None:
    flat = drawn((9, 8), "uint16")
    before = flat.copy()
    for ops in ([], [FlipLeftRight()], [Brightness(0.5), Blur(1.0)]):
        made = OnArrays()(flat, ops)
        assert made.shape == (9, 8)
        assert not np.shares_memory(made, flat)
        assert made.flags.c_contiguous
    np.testing.assert_array_equal(flat, before)


def test_the_others_ask_for_rgb() -> None:
    refuse = {kind.__name__ for kind in OPERATIONS if kind.on_array is Operation.on_array}
    assert refuse == {
        "Saturation", "Hue", "Grey", "Posterize", "AutoContrast", "Equalize", "Sharpness"
    }  # fmt: skip
    grey = next(kind for kind in OPERATIONS if kind.__name__ == "Grey")
    with pytest.raises(TypeError, match="Grey asks for RGB: remove it, or set IMAGE_MODE: RGB"):
        OnArrays()(drawn((4, 4, 5), "uint8"), [grey()])
