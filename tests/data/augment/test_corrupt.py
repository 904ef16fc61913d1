"""Corruptions of images: what they are by definition, and their draws."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from sslengine.data.augment.corrupt import CORRUPTIONS, Corrupt
from sslengine.evaluate.options import CORRUPTIONS as NAMES


def _seeded(kind: str, severity: int, image: Image.Image, seed: int = 0) -> np.ndarray:
    np.random.seed(seed)  # noqa: NPY002
    return np.asarray(Corrupt(kind, severity)(image)).astype(float)


@pytest.fixture(scope="module")
def image() -> Image.Image:
    draw = np.random.default_rng(0)
    small = Image.fromarray(draw.integers(0, 256, (8, 10, 3), dtype=np.uint8))
    return small.resize((60, 48), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_size_stays_and_the_draw_is_that_of_the_sample(kind: str, image: Image.Image) -> None:
    clean = np.asarray(image).astype(float)
    found = _seeded(kind, 3, image)
    assert found.shape == clean.shape
    assert np.abs(found - clean).mean() > 1
    assert np.array_equal(found, _seeded(kind, 3, image))
    drawn = kind not in {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate",
                         "jpeg_compression"}  # fmt: skip
    assert np.array_equal(found, _seeded(kind, 3, image, seed=1)) != drawn


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("gaussian_noise", [0.08, 0.38]), ("shot_noise", [60**-0.5 / 2**0.5, (1 / 6) ** 0.5])],
)
def test_noise_has_the_deviation_of_the_paper(kind: str, wanted: list[float]) -> None:
    """On middle grey; Poisson's is sqrt(x / amount). Values are cut at 0 and 1."""
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    least = _seeded(kind, 1, grey) / 255
    assert least.std() == pytest.approx(wanted[0], rel=0.03)
    assert least.mean() == pytest.approx(128 / 255, abs=0.005)
    assert least.std() < (_seeded(kind, 5, grey) / 255).std() <= wanted[1]


def test_digital_changes_by_hand(image: Image.Image) -> None:
    clean = np.asarray(image) / 255
    mean = clean.mean(axis=(0, 1))
    expected = 255 * ((clean - mean) * 0.05 + mean)
    assert np.abs(_seeded("contrast", 5, image) - expected).max() <= 0.5 + 1e-9
    file = io.BytesIO()
    image.save(file, "JPEG", quality=7)
    assert np.array_equal(_seeded("jpeg_compression", 5, image), np.asarray(Image.open(file)))
    red = Image.new("RGB", (4, 4), (100, 50, 0))
    raised = _seeded("brightness", 1, red)[0, 0]
    assert raised.tolist() == [126, 63, 0]  # of HSV the value alone: 100 + 25.5
    assert len(np.unique(_seeded("pixelate", 5, image).reshape(-1, 3), axis=0)) <= 15 * 12


def test_a_blur_of_a_small_image_is_as_wide_for_its_size() -> None:
    """An edge, by the deviation of its slope: that of a disc is half its radius."""
    for side in (112, 224):
        edge = np.zeros((side, side, 3), np.uint8)
        edge[:, side // 2 :] = 255
        slope = np.diff(_seeded("defocus_blur", 5, Image.fromarray(edge))[side // 3, :, 0])
        places = np.arange(len(slope))
        mean = (places * slope).sum() / slope.sum()
        deviation = np.sqrt(((places - mean) ** 2 * slope).sum() / slope.sum())
        assert deviation == pytest.approx(10 * side / 224 / 2, rel=0.08)


def test_there_are_fifteen_of_five_severities() -> None:
    assert tuple(CORRUPTIONS) == NAMES
    assert len(NAMES) == 15
    assert all(len(amounts) == 5 for _, amounts in CORRUPTIONS.values())


def test_images_of_more_than_8_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="an image of 8 bits"):
        Corrupt("fog")(Image.new("I;16", (4, 4)))
