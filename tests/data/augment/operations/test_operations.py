from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operation import Operation

Pixels = NDArray[np.uint8]


@pytest.fixture
def pixels() -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)


def after(operation: Operation, pixels: Pixels) -> Pixels:
    image = operation.on_pil(Image.fromarray(pixels))
    assert image.size[::-1] == operation.size(pixels.shape[:2])
    return np.asarray(image)


def luminance(pixels: Pixels) -> NDArray[np.int64]:
    """ITU-R 601, as Pillow rounds it."""
    weights = np.array([19595, 38470, 7471])
    return (pixels.astype(np.int64) @ weights + (1 << 15)) >> 16


def blended(low: NDArray[np.generic] | int, pixels: Pixels, factor: float) -> NDArray[np.float64]:
    return np.clip(low + factor * (pixels.astype(np.float64) - low), 0, 255)


def test_a_crop_of_its_own_size_keeps_the_pixels(pixels: Pixels) -> None:
    cut = after(ops.Crop(3, 4, 10, 12, to=(10, 12)), pixels)
    assert (cut == pixels[3:13, 4:16]).all()


def test_a_crop_does_not_see_what_lies_outside(pixels: Pixels) -> None:
    inside = np.full_like(pixels, 9)
    inside[3:13, 4:16] = 77
    assert (after(ops.Crop(3, 4, 10, 12, to=(7, 5)), inside) == 77).all()


def test_half_the_size_is_the_weighted_mean_of_a_triangle(pixels: Pixels) -> None:
    wide = np.repeat(pixels[:1], 4, axis=0)
    half = after(ops.Crop(0, 0, 4, 30, to=(4, 15)), wide)[0, 5].astype(float)
    expected = np.array([1, 3, 3, 1]) / 8 @ wide[0, 9:13]
    assert np.abs(half - expected).max() <= 1


def test_flip(pixels: Pixels) -> None:
    assert (after(ops.FlipLeftRight(), pixels) == pixels[:, ::-1]).all()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_quarter_turns_are_counter_clockwise(pixels: Pixels, times: int) -> None:
    assert (after(ops.QuarterTurns(times), pixels) == np.rot90(pixels, times)).all()


def test_any_other_turn_is_about_the_middle_and_leaves_corners_black() -> None:
    white = np.full((21, 21, 3), 255, np.uint8)
    white[10, 20] = 0
    turned = after(ops.Turn(45.0), white)
    assert not turned[[0, 0, -1, -1], [0, -1, 0, -1]].any()
    assert (turned[10, 1:20] == 255).all()  # what was on the right is above it now
    assert not turned[3, 17].any()


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7])
def test_brightness_contrast_and_saturation_blend(pixels: Pixels, factor: float) -> None:
    mean = int(luminance(pixels).mean() + 0.5)
    grey = luminance(pixels)[..., None]
    for operation, low in (
        (ops.Brightness(factor), 0),
        (ops.Contrast(factor), mean),
        (ops.Saturation(factor), grey),
    ):
        assert np.abs(after(operation, pixels) - blended(low, pixels, factor)).max() <= 1


def test_a_third_of_the_hue_turns_red_to_green() -> None:
    red = np.full((2, 2, 3), (255, 0, 0), np.uint8)
    assert (after(ops.Hue(1 / 3), red)[0, 0] == (0, 255, 0)).all()


def test_grey(pixels: Pixels) -> None:
    assert (after(ops.Grey(), pixels) == luminance(pixels)[..., None]).all()


def test_blur_keeps_the_mean_and_spreads_by_its_radius() -> None:
    dot = np.zeros((41, 41, 3), np.uint8)
    dot[20, 20] = 255
    blurred = after(ops.Blur(1.5), dot)[..., 0].astype(float)
    spread = (blurred.sum(0) @ (np.arange(41) - 20) ** 2) / blurred.sum()
    assert spread == pytest.approx(1.5**2, rel=0.1)


def test_solarize_inverts_from_the_threshold_on(pixels: Pixels) -> None:
    solarized = after(ops.Solarize(100), pixels)
    assert (solarized == np.where(pixels < 100, pixels, 255 - pixels)).all()


def test_posterize_keeps_the_upper_bits(pixels: Pixels) -> None:
    assert (after(ops.Posterize(3), pixels) == pixels // 32 * 32).all()
    assert (after(ops.Posterize(8), pixels) == pixels).all()


def test_invert(pixels: Pixels) -> None:
    assert (after(ops.Invert(), pixels) == 255 - pixels).all()


def test_autocontrast_stretches_each_channel(pixels: Pixels) -> None:
    narrow = (pixels // np.array([2, 4, 8]) + 30).astype(np.uint8)
    low, high = narrow.min((0, 1)).astype(float), narrow.max((0, 1)).astype(float)
    expected = (narrow - low) * 255 / (high - low)
    stretched = after(ops.AutoContrast(), narrow)
    assert np.abs(stretched - expected).max() <= 1


def test_equalize_gives_a_value_by_how_many_pixels_are_darker(pixels: Pixels) -> None:
    dark = np.tile((pixels.astype(int) ** 2 // 255).astype(np.uint8), (5, 5, 1))
    spread = after(ops.Equalize(), dark)
    for channel in range(3):
        values = dark[..., channel].ravel()
        darker = np.searchsorted(np.sort(values), values) / len(values)
        assert np.abs(spread[..., channel].ravel() - 255 * darker).max() < 255 * 0.03


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.9])
def test_sharpness_goes_away_from_a_weighted_mean_of_neighbours(
    pixels: Pixels, factor: float
) -> None:
    sharp, inner = after(ops.Sharpness(factor), pixels), (slice(1, -1), slice(1, -1))
    shifts = [pixels[y : y + 18, x : x + 28].astype(float) for y in range(3) for x in range(3)]
    smooth = (sum(shifts) + 4 * shifts[4]) / 13
    assert np.abs(sharp[inner] - blended(smooth, pixels[inner], factor)).max() < 2
    edge = np.ones(pixels.shape, bool)
    edge[inner] = False
    assert (sharp[edge] == pixels[edge]).all()


def test_the_centre_of_a_smaller_image_lies_on_black(pixels: Pixels) -> None:
    around = after(ops.CenterOnBlack((24, 22)), pixels)
    assert (around[2:-2] == pixels[:, 4:-4]).all()
    assert not around[:2].any()
    assert not around[-2:].any()
